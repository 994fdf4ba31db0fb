package service

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
)

// A server serves the connections of one listener. All kinds of servers start and end the same way.
type server struct {
	setting  string // the name of the setting that has its address
	listener *limitedListener
	idle     *idleList // connections that may be closed to make room for new ones; nil for gRPC and RESP

	serve       func(net.Listener) error  // returns nil after shutdown or stop
	announceEnd func()                    // reports to clients that it will shut down; nil: the protocol has no such message
	shutdown    func(ctx context.Context) // accepts nothing new; returns when nothing is in flight or ctx ends
	stop        func()                    // closes all connections
	ended       chan struct{}             // closed when serve has returned
}

// newServer makes a server for HTTP, or HTTPS if TLS is configured. It sets ConnState of http1.
func newServer(setting string, http1 *http.Server) *server {
	idle := newIdleList()
	http1.ConnState = func(conn net.Conn, state http.ConnState) {
		if held := heldMemoryIn(conn); held != nil {
			held.note(state)
		}
		idle.note(conn, state)
	}
	return &server{
		setting: setting,
		idle:    idle,
		serve: func(l net.Listener) (err error) {
			http1.Handler = closeHTTP10(http1.Handler)
			if http1.TLSConfig != nil {
				err = http1.ServeTLS(l, "", "")
			} else {
				err = http1.Serve(l)
			}
			if errors.Is(err, http.ErrServerClosed) {
				return nil
			}
			return err
		},
		shutdown: func(ctx context.Context) { http1.Shutdown(ctx) },
		stop:     func() { http1.Close() },
	}
}

// closeHTTP10 closes the connection of an HTTP/1.0 request after the response, also if the client
// asks to keep it. net/http ignores Transfer-Encoding in such a request, but a proxy in front may
// not. Then they disagree about where the request ends, and the rest of its body would be read as a
// request.
func closeHTTP10(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ProtoMajor == 1 && r.ProtoMinor == 0 {
			w.Header().Set("Connection", "close")
		}
		next.ServeHTTP(w, r)
	})
}

// start serves connections in the background. If that fails, it sends the error to failed.
func (s *server) start(failed chan<- error) {
	s.ended = make(chan struct{})
	go func() {
		defer close(s.ended)
		if err := s.serve(s.listener); err != nil {
			failed <- fmt.Errorf("%s %s: %w", s.setting, s.listener.Addr(), err)
		}
	}()
}

func (s *server) close() {
	s.stop()
	<-s.ended
}

func shutdown(ctx context.Context, servers []*server) {
	var all sync.WaitGroup
	for _, s := range servers {
		all.Go(func() { s.shutdown(ctx) })
	}
	all.Wait()
}
