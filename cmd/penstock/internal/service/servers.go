package service

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/penstock/penstock/cmd/penstock/internal/admin"
	"github.com/penstock/penstock/cmd/penstock/internal/redact"
	"github.com/penstock/penstock/cmd/penstock/internal/revproxy"
	"github.com/penstock/penstock/cmd/penstock/internal/seldom"
)

// newGateServer makes the server that clients meet: HTTP/1.1, and HTTP/2 with TLS or for those who
// know.
func (s *service) newGateServer(handler http.Handler, config *tls.Config, life context.Context) *http.Server {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(true)
	protocols.SetUnencryptedHTTP2(true)
	return &http.Server{
		Handler:           handler,
		TLSConfig:         config,
		Protocols:         protocols,
		ReadHeaderTimeout: s.Settings.HeaderTimeout,
		ReadTimeout:       s.readTimeout(),
		IdleTimeout:       s.Settings.IdleTimeout,
		MaxHeaderBytes:    int(s.Settings.MaxHeader), // the server reads 4 KB more; limitHeader is exact
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams: 100,
			SendPingTimeout:      s.Settings.StallTimeout, // a client that is silent for so long is asked whether it is there
			WriteByteTimeout:     s.Settings.StallTimeout,
		},
		DisableGeneralOptionsHandler: true, // OPTIONS * is a request like others
		ErrorLog:                     serverLog(s.Log),
		BaseContext:                  func(net.Listener) context.Context { return life },
	}
}

// limitHeader answers 431 to requests whose line and headers have more than so many bytes, as
// HTTP/1.1 writes them.
func limitHeader(gate Gate, most int64, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		size := len(r.Method) + len(" ") + len(r.RequestURI) + len(" HTTP/1.1\r\n") + len("Host: \r\n") + len(r.Host) + len("\r\n")
		for name, values := range r.Header {
			for _, value := range values {
				size += len(name) + len(": \r\n") + len(value)
			}
		}
		if int64(size) <= most {
			next.ServeHTTP(w, r)
			return
		}
		gate.AllowOrigin(w.Header(), r)
		revproxy.Problem(w, http.StatusRequestHeaderFieldsTooLarge, fmt.Sprintf("the headers have more than %d bytes", most))
	})
}

// readTimeout is for bodies of requests that the server answers by itself, as 417. Those of all
// others are watched by package pace.
func (s *service) readTimeout() time.Duration {
	if s.Settings.StallTimeout == 0 {
		return 0
	}
	return s.Settings.HeaderTimeout + s.Settings.StallTimeout
}

func (s *service) newAdminServer() *http.Server {
	server := &http.Server{
		Handler:           admin.New(admin.Options{Checks: s.checks(), Metrics: s.metrics.Handler(), Pprof: s.Settings.Pprof}),
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       10 * time.Second,
		WriteTimeout:      30 * time.Second,
		IdleTimeout:       time.Minute,
		MaxHeaderBytes:    16 << 10,
		ErrorLog:          serverLog(s.Log),
	}
	if s.Settings.Pprof {
		server.WriteTimeout = 0 // a profile takes as long as it is asked for
	}
	return server
}

func (s *service) openListeners(ctx context.Context) error {
	listen := func(name, address string, places int64) (net.Listener, error) {
		var config net.ListenConfig
		l, err := config.Listen(ctx, "tcp", address)
		if err != nil {
			return nil, fmt.Errorf("%s (%s): %w", name, s.Settings.Source(name), err)
		}
		s.later(func() { l.Close() })
		full := &seldom.Line{Every: time.Minute}
		return limitConnections(l, int(places), func() {
			if _, due := full.Due(); due {
				s.Log.Warn("all places for connections are taken; new ones wait until one is free", "address", name, "places", places)
			}
		}), nil
	}
	var err error
	if s.listen, err = listen("listen", s.Settings.Listen, s.places.clients); err != nil {
		return err
	}
	if s.Settings.Admin != "" {
		s.admin, err = listen("admin", s.Settings.Admin, s.places.admin)
	}
	return err
}

// serveOn serves until the server is closed.
func serveOn(server *http.Server, listener net.Listener) error {
	if server.TLSConfig != nil {
		return server.ServeTLS(listener, "", "")
	}
	return server.Serve(listener)
}

// serverLog takes what http.Server logs: mostly what clients do wrong, which anyone can do at will,
// so it is for debugging only. A panic is not.
func serverLog(l *slog.Logger) *log.Logger { return log.New(serverLines{l}, "", 0) }

type serverLines struct{ log *slog.Logger }

func (w serverLines) Write(p []byte) (int, error) {
	level := slog.LevelDebug
	if bytes.Contains(p, []byte("panic")) {
		level = slog.LevelError
	}
	w.log.Log(context.Background(), level, redact.Quoted(strings.TrimSpace(string(p))))
	return len(p), nil
}

// StandardLog is for log.SetOutput. It logs what the standard library reports by itself, such as
// that an upstream sent what nobody asked for.
func StandardLog(l *slog.Logger) io.Writer { return &standardLines{log: l} }

type standardLines struct {
	log  *slog.Logger
	line seldom.Line
}

func (w *standardLines) Write(p []byte) (int, error) {
	if held, due := w.line.Due(); due {
		w.log.Warn("the standard library reports", "err", redact.Quoted(strings.TrimSpace(string(p))), "unlogged", held)
	}
	return len(p), nil
}
