package slowclient

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// A pipeListener is a listener with connections in memory. With them, synctest can advance time
// while a connection waits. A write blocks until the other side has read it.
type pipeListener struct{ conns chan net.Conn }

func (p pipeListener) Accept() (net.Conn, error) {
	conn, ok := <-p.conns
	if !ok {
		return nil, net.ErrClosed
	}
	return conn, nil
}

func (p pipeListener) Close() error   { close(p.conns); return nil }
func (p pipeListener) Addr() net.Addr { return &net.TCPAddr{} }
func (p pipeListener) dial() net.Conn { client, server := net.Pipe(); p.conns <- server; return client }

// A testServer is a server in a synctest bubble. Handler wraps its handler.
type testServer struct {
	*testing.T
	dial    func() net.Conn
	handle  http.HandlerFunc
	results chan result // of the handler
}

// serve runs a test with a server of its own.
func serve(t *testing.T, o Options, test func(s *testServer)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		listener := pipeListener{make(chan net.Conn)}
		s := &testServer{T: t, dial: listener.dial, results: make(chan result, 1)}
		handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { s.handle(w, r) })
		protocols := new(http.Protocols)
		protocols.SetHTTP1(true)
		protocols.SetUnencryptedHTTP2(true)
		server := &http.Server{
			Handler: Handler(handler, o), Protocols: protocols,
			ReadTimeout: 2 * o.Stall, IdleTimeout: 24 * time.Hour, // as package service has them
		}
		ended := make(chan struct{})
		go func() {
			server.Serve(listener)
			close(ended)
		}()
		test(s)
		server.Close()
		<-ended
	})
}

// A result is what a handler has read.
type result struct {
	read int64 // bytes
	err  error
	took time.Duration
}

// readAll is a handler that reads the body and reports the result.
func (s *testServer) readAll(w http.ResponseWriter, r *http.Request) {
	start := time.Now()
	n, err := io.Copy(io.Discard, r.Body)
	s.results <- result{n, err, time.Since(start)}
}

func TestBodyMayArriveAtTheRateAndPauseForTheStall(t *testing.T) {
	rateAndStall, onlyStall := Options{Stall: 10 * time.Second, Rate: 100}, Options{Stall: 10 * time.Second}
	for _, c := range []struct {
		name     string
		options  Options
		piece    int           // size in bytes
		pause    time.Duration // before each piece
		pieces   int
		isCutOff bool
	}{
		{name: "arrives below the rate", options: rateAndStall, piece: 10, pause: time.Second, pieces: 1000, isCutOff: true},
		{name: "sends one byte before each stall ends", options: rateAndStall, piece: 1, pause: 9 * time.Second, pieces: 1000, isCutOff: true},
		{name: "arrives at the rate for hours", options: rateAndStall, piece: 100, pause: time.Second, pieces: 10_000, isCutOff: false},
		{name: "pauses, but keeps the rate", options: rateAndStall, piece: 1000, pause: 9 * time.Second, pieces: 1000, isCutOff: false},
		{name: "pauses longer than the stall after much data", options: rateAndStall, piece: 100_000, pause: 11 * time.Second, pieces: 10, isCutOff: true},
		{name: "sends slowly without a rate", options: onlyStall, piece: 1, pause: 9 * time.Second, pieces: 1000, isCutOff: false},
		{name: "pauses too long without a rate", options: onlyStall, piece: 1, pause: 11 * time.Second, pieces: 10, isCutOff: true},
		{name: "pauses for an hour without a stall", options: Options{}, piece: 1, pause: time.Hour, pieces: 3, isCutOff: false},
	} {
		t.Run(c.name, func(t *testing.T) {
			serve(t, c.options, func(s *testServer) {
				s.handle = s.readAll
				conn := s.dial()
				defer conn.Close()
				go io.Copy(io.Discard, conn)
				fmt.Fprintf(conn, "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n", c.piece*c.pieces)
				for range c.pieces {
					time.Sleep(c.pause)
					if _, err := io.WriteString(conn, strings.Repeat("x", c.piece)); err != nil {
						break
					}
				}
				got := <-s.results
				isCutOff := errors.Is(got.err, os.ErrDeadlineExceeded)
				if isCutOff != c.isCutOff || !isCutOff && got.read != int64(c.piece*c.pieces) {
					s.Errorf("after %v and %d bytes, the body ended with the error %v; want it cut off: %v", got.took, got.read, got.err, c.isCutOff)
				}
			})
		})
	}
}

func TestTimeOfTheHandlerDoesNotCount(t *testing.T) {
	for _, version := range []int{1, 2} {
		serve(t, Options{Stall: 10 * time.Second, Rate: 1000}, func(s *testServer) {
			s.handle = func(w http.ResponseWriter, r *http.Request) {
				var total int64
				p := make([]byte, 10)
				for {
					time.Sleep(time.Minute) // the upstream is slow
					n, err := r.Body.Read(p)
					total += int64(n)
					if err != nil {
						s.results <- result{read: total, err: err}
						return
					}
				}
			}
			client := s.client(version)
			defer client.CloseIdleConnections()
			res, err := client.Post("http://h/", "", strings.NewReader(strings.Repeat("x", 100)))
			if got := <-s.results; got.read != 100 || got.err != io.EOF || err != nil || res.ProtoMajor != version {
				s.Errorf("HTTP/%d: the handler read %d bytes, then %v, and the client got the error %v; want 100 bytes, then EOF, and no error",
					version, got.read, got.err, err)
			}
		})
	}
}

func TestLargeBodyMayWaitForTheHandler(t *testing.T) {
	const size = 8 << 20 // larger than all flow-control windows
	for _, version := range []int{1, 2} {
		serve(t, Options{Stall: time.Second, Rate: 1000}, func(s *testServer) {
			s.handle = func(w http.ResponseWriter, r *http.Request) {
				time.Sleep(time.Hour)
				s.readAll(w, r)
			}
			client := s.client(version)
			defer client.CloseIdleConnections()
			_, err := client.Post("http://h/", "", strings.NewReader(strings.Repeat("x", size)))
			if got := <-s.results; got.read != size || got.err != nil || err != nil {
				s.Errorf("HTTP/%d: the handler read %d bytes with the error %v, and the client got the error %v; want %d bytes and no error",
					version, got.read, got.err, err, size)
			}
		})
	}
}

func TestBodyThatStallsIsCutOffInBothVersions(t *testing.T) {
	for _, version := range []int{1, 2} {
		for _, pause := range []time.Duration{0, time.Hour} { // of the handler, before it reads
			serve(t, Options{Stall: 10 * time.Second, Rate: 100}, func(s *testServer) {
				s.handle = func(w http.ResponseWriter, r *http.Request) {
					time.Sleep(pause)
					s.readAll(w, r)
					w.WriteHeader(http.StatusRequestTimeout)
				}
				client := s.client(version)
				defer client.CloseIdleConnections()
				body, feed := io.Pipe()
				defer feed.Close()
				go func() {
					res, err := client.Post("http://h/", "", body)
					if err == nil {
						res.Body.Close()
					}
				}()
				feed.Write(make([]byte, 1000))
				if got := <-s.results; !errors.Is(got.err, os.ErrDeadlineExceeded) || got.read != 1000 || got.took != 10*time.Second {
					s.Errorf("HTTP/%d: the handler began to read after %v; it read %d bytes, and got the error %v after %v; want 1000 bytes, and a deadline after 10 s",
						version, pause, got.read, got.err, got.took)
				}
			})
		}
	}
}

func TestDeniedRequestGetsItsResponseThoughItsBodyNeverArrives(t *testing.T) {
	for _, c := range []struct {
		head  string
		after time.Duration // until the response
	}{
		{"Content-Length: 100", 10 * time.Second},
		{"Transfer-Encoding: chunked", 10 * time.Second},
		{"Content-Length: 100\r\nExpect: 100-continue", 0}, // this client sends no body before the response
	} {
		serve(t, Options{Stall: 10 * time.Second, Rate: 100}, func(s *testServer) {
			s.handle = func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(http.StatusTooManyRequests) }
			conn := s.dial()
			defer conn.Close()
			start := time.Now()
			fmt.Fprintf(conn, "POST / HTTP/1.1\r\nHost: h\r\n%s\r\n\r\n", c.head)
			res, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err != nil || res.StatusCode != 429 || time.Since(start) != c.after || !res.Close {
				s.Errorf("%q: the response is %v, error %v, after %v; want status 429 after %v, and the connection closed",
					c.head, res, err, time.Since(start), c.after)
			}
		})
	}
}

func TestClientThatDoesNotReadItsResponseIsCutOff(t *testing.T) {
	const long, short = 1 << 20, 5 // the short response stays in the server's buffer until the handler has returned
	for _, size := range []int{long, short} {
		serve(t, Options{Stall: 10 * time.Second}, func(s *testServer) {
			s.handle = func(w http.ResponseWriter, r *http.Request) {
				start := time.Now()
				_, err := io.WriteString(w, strings.Repeat("x", size))
				s.results <- result{err: err, took: time.Since(start)}
			}
			conn := s.dial()
			defer conn.Close()
			io.WriteString(conn, "GET / HTTP/1.1\r\nHost: h\r\n\r\n")
			if got := <-s.results; size == long && (!errors.Is(got.err, os.ErrDeadlineExceeded) || got.took != 10*time.Second) {
				s.Errorf("a response of %d bytes ended with %v after %v; want a deadline after 10 s", size, got.err, got.took)
			}
			time.Sleep(11 * time.Second)
			if _, err := io.WriteString(conn, "GET"); err == nil {
				s.Errorf("after a response of %d bytes that the client does not read, the connection is open; want it closed", size)
			}
		})
	}
}

// client makes a client for one version of HTTP.
func (s *testServer) client(version int) *http.Client {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(version == 1)
	protocols.SetUnencryptedHTTP2(version == 2)
	return &http.Client{Transport: &http.Transport{
		Protocols:   protocols,
		DialContext: func(context.Context, string, string) (net.Conn, error) { return s.dial(), nil },
	}}
}

func TestSilentEventStreamLives(t *testing.T) {
	for _, version := range []int{1, 2} {
		serve(t, Options{Stall: 10 * time.Second, Rate: 100}, func(s *testServer) {
			s.handle = func(w http.ResponseWriter, r *http.Request) {
				for range 5 {
					io.WriteString(w, "event\n")
					http.NewResponseController(w).Flush()
					time.Sleep(time.Hour)
				}
			}
			client := s.client(version)
			defer client.CloseIdleConnections()
			res, err := client.Get("http://h/")
			if err != nil {
				s.Fatal(err)
			}
			text, err := io.ReadAll(res.Body)
			if err != nil || string(text) != strings.Repeat("event\n", 5) || res.ProtoMajor != version {
				s.Errorf("the stream by HTTP/%d has the text %q, error %v; want five events by HTTP/%d", res.ProtoMajor, text, err, version)
			}
		})
	}
}

func TestEachRequestOfAConnectionHasItsOwnTime(t *testing.T) {
	serve(t, Options{Stall: 10 * time.Second, Rate: 100}, func(s *testServer) {
		s.handle = s.readAll
		conn := s.dial()
		defer conn.Close()
		reader := bufio.NewReader(conn)
		for i := range 20 {
			fmt.Fprint(conn, "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\nx")
			time.Sleep(8 * time.Second)
			fmt.Fprint(conn, "x")
			if got := <-s.results; got.err != nil {
				s.Fatalf("the body of request %d ended with %v; want no error", i+1, got.err)
			}
			if res, err := http.ReadResponse(reader, nil); err != nil || res.Close {
				s.Fatalf("request %d got %v, %v; want a response that keeps the connection", i+1, res, err)
			}
			time.Sleep(time.Minute) // a deadline that was not cleared would pass now
		}
	})
}

func TestHTTP2StreamThatIsNotReadIsReset(t *testing.T) {
	serve(t, Options{Stall: 10 * time.Second}, func(s *testServer) {
		s.handle = func(w http.ResponseWriter, r *http.Request) {
			_, err := io.WriteString(w, strings.Repeat("x", 1<<24)) // more than the client's window
			s.results <- result{err: err}
		}
		client := s.client(2)
		defer client.CloseIdleConnections()
		res, err := client.Get("http://h/")
		if err != nil {
			s.Fatal(err)
		}
		defer res.Body.Close()
		if got := <-s.results; got.err == nil { // the client does not read, so the window stays full
			s.Error("the handler wrote 16 MB to a client that does not read; want an error")
		}
	})
}

// TestBodyMayBeReadAfterTheHandlerHasReturned: the transport of a proxy reads a body until it
// notices that the response came early.
func TestBodyMayBeReadAfterTheHandlerHasReturned(t *testing.T) {
	for _, version := range []int{1, 2} {
		serve(t, Options{Stall: 10 * time.Second, Rate: 100}, func(s *testServer) {
			late := make(chan error, 2)
			s.handle = func(w http.ResponseWriter, r *http.Request) {
				go func() { // is inside Read when the handler returns
					_, err := io.Copy(io.Discard, r.Body)
					late <- err
					_, err = r.Body.Read(make([]byte, 1))
					late <- err
				}()
				synctest.Wait()
			}
			client := s.client(version)
			defer client.CloseIdleConnections()
			body, feed := io.Pipe()
			go func() {
				defer feed.Close()
				feed.Write(make([]byte, 10))
			}()
			res, err := client.Post("http://h/", "", body)
			if err == nil {
				res.Body.Close()
			}
			for i := range 2 {
				if err := <-late; err == nil && i == 1 {
					s.Errorf("HTTP/%d: a read after the handler has returned gives no error; want one", version)
				}
			}
		})
	}
}
