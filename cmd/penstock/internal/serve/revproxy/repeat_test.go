package revproxy_test

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/penstock/penstock/cmd/penstock/internal/serve/revproxy"
)

// A mortalUpstream is an upstream that responds to the first request of each connection. It closes
// the connection when it has received a second request.
type mortalUpstream struct {
	url      string
	requests atomic.Int32   // that it has received
	first    sync.WaitGroup // first requests that must arrive before any response
}

func startMortalUpstream(t *testing.T, shouldReset bool) *mortalUpstream {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	m := &mortalUpstream{url: "http://" + listener.Addr().String()}
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go m.serve(conn, shouldReset)
		}
	}()
	return m
}

func (m *mortalUpstream) serve(conn net.Conn, shouldReset bool) {
	defer conn.Close()
	r := bufio.NewReader(conn)
	for isFirst := true; ; isFirst = false {
		request, err := http.ReadRequest(r)
		if err != nil {
			return
		}
		io.Copy(io.Discard, request.Body)
		n := m.requests.Add(1)
		if !isFirst {
			if shouldReset {
				conn.(*net.TCPConn).SetLinger(0) // closing then sends RST
			}
			return
		}
		if n <= idleConns {
			m.first.Done()
			m.first.Wait()
		}
		io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
	}
}

// idleConns is how many connections a test makes.
const idleConns = 8

func TestRequestIsSentOnce(t *testing.T) {
	for _, shouldReset := range []bool{false, true} {
		for _, request := range []string{
			"GET / HTTP/1.1\r\nHost: h\r\n\r\n",
			"OPTIONS / HTTP/1.1\r\nHost: h\r\n\r\n",
			"DELETE / HTTP/1.1\r\nHost: h\r\nIdempotency-Key: k\r\n\r\n",
			"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\nX-Idempotency-Key: k\r\n\r\n",
			"PUT / HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\nIdempotency-Key: k\r\n\r\nhello",
		} {
			up := startMortalUpstream(t, shouldReset)
			up.first.Add(idleConns)
			site := startProxy(t, revproxy.Options{}, up.url)
			var all sync.WaitGroup
			for range idleConns {
				all.Go(func() { sendRaw(t, site, "GET / HTTP/1.1\r\nHost: h\r\n\r\n") })
			}
			all.Wait()
			res, _ := sendRaw(t, site, request)
			if got := up.requests.Load() - idleConns; got != 1 || res.StatusCode != http.StatusBadGateway {
				t.Errorf("%q, with reset %v: the upstream got the request %d times, and the client %s; want once, and 502", request, shouldReset, got, res.Status)
			}
		}
	}
}

func TestRequestOverHTTP2IsSentOnce(t *testing.T) {
	var got atomic.Int32
	up := httptest.NewUnstartedServer(nil)
	up.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if got.Add(1) > 1 {
			up.CloseClientConnections()
		}
	})
	up.Config.Protocols = new(http.Protocols)
	up.Config.Protocols.SetUnencryptedHTTP2(true)
	up.Start()
	t.Cleanup(up.Close)
	site := startProxy(t, revproxy.Options{}, strings.Replace(up.URL, "http:", "h2c:", 1))
	for n, status := range []int{200, 502} {
		res, _ := sendRaw(t, site, "GET / HTTP/1.1\r\nHost: h\r\nIdempotency-Key: k\r\n\r\n")
		if res.StatusCode != status || int(got.Load()) != n+1 {
			t.Errorf("request %d gets %s, and the upstream got %d requests; want %d and %d", n+1, res.Status, got.Load(), status, n+1)
		}
	}
}

// TestRefusedStreamIsRepeatedOnce: the upstream reports that it has not processed the request, so
// the proxy may repeat it.
func TestRefusedStreamIsRepeatedOnce(t *testing.T) {
	const protocolError, refusedStream = 1, 7
	for _, code := range []byte{protocolError, refusedStream} {
		var got atomic.Int32
		up := listenRaw(t, func(conn net.Conn) {
			r := bufio.NewReader(conn)
			r.Discard(len("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"))
			conn.Write([]byte{0, 0, 0, 4, 0, 0, 0, 0, 0}) // SETTINGS
			for {
				head := make([]byte, 9)
				if _, err := io.ReadFull(r, head); err != nil {
					return
				}
				r.Discard(int(head[0])<<16 | int(head[1])<<8 | int(head[2]))
				if head[3] == 1 { // HEADERS
					got.Add(1)
					conn.Write(append([]byte{0, 0, 4, 3, 0}, append(head[5:9:9], 0, 0, 0, code)...)) // RST_STREAM
				}
			}
		})
		res, _ := sendRaw(t, startProxy(t, revproxy.Options{}, "h2c://"+up), "GET / HTTP/1.1\r\nHost: h\r\n\r\n")
		if res.StatusCode != http.StatusBadGateway || got.Load() != 2 {
			t.Errorf("code %d: the client got %s, and the upstream the request %d times; want 502 and twice", code, res.Status, got.Load())
		}
	}
}

// listenRaw starts a server that calls serve for each connection and then closes it. It returns the
// address.
func listenRaw(t *testing.T, serve func(net.Conn)) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				serve(conn)
			}()
		}
	}()
	return listener.Addr().String()
}
