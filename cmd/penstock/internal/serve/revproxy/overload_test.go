package revproxy_test

import (
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock/penstock/cmd/penstock/internal/serve/revproxy"
)

// sendFrom sends a request of the peer to a handler in the background. The response comes on the
// channel.
func sendFrom(h http.Handler, peer string) <-chan *httptest.ResponseRecorder {
	done := make(chan *httptest.ResponseRecorder, 1)
	r := httptest.NewRequest("GET", "/", nil)
	r.RequestURI, r.RemoteAddr = "/", peer
	go func() {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		done <- w
	}()
	return done
}

// One address has at most half of the connections to the upstream, unless it is a trusted proxy. If
// all connections are in use, a request waits for at most a second.
func TestNoAddressTakesAllConnections(t *testing.T) {
	arrived, release := make(chan struct{}, 16), make(chan struct{})
	upstream := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		arrived <- struct{}{}
		<-release
	}))
	defer upstream.Close()
	target, err := url.Parse(upstream.URL)
	if err != nil {
		t.Fatal(err)
	}
	var overloaded atomic.Int64
	h := newProxy(revproxy.Options{
		Upstream: target, MaxConnections: 4,
		IsTrusted:  func(r *http.Request) bool { return strings.HasPrefix(r.RemoteAddr, "10.") },
		Overloaded: func() { overloaded.Add(1) },
		Observe: func(status int, _ time.Duration) { // not for requests that were not sent
			if status == 0 {
				t.Error("Observe is called for a request that was not sent")
			}
		},
		NoResponse: func(*http.Request) { t.Error("NoResponse is called for a request that was not sent") },
	})
	defer h.Close()
	mustBeOverloaded := func(what, peer string, least, most time.Duration) {
		t.Helper()
		begin, before := time.Now(), overloaded.Load()
		w := <-sendFrom(h, peer)
		if took := time.Since(begin); w.Code != 503 || w.Header().Get("Retry-After") != "1" || overloaded.Load() != before+1 || took < least || took > most {
			t.Errorf("%s, a request of %s got %d after %v, with Retry-After %q; want 503 after %v to %v, and 1", what, peer, w.Code, took, w.Header().Get("Retry-After"), least, most)
		}
	}
	var inFlight []<-chan *httptest.ResponseRecorder
	for _, peer := range []string{"[2001:db8:0:1::1]:1", "[2001:db8:0:1::2]:1"} {
		inFlight = append(inFlight, sendFrom(h, peer))
		<-arrived
	}
	mustBeOverloaded("beside two requests of its /64", "[2001:db8:0:1:ffff::]:9", 0, 500*time.Millisecond)
	for range 2 { // a trusted proxy has no share
		inFlight = append(inFlight, sendFrom(h, "10.0.0.1:1"))
		<-arrived
	}
	mustBeOverloaded("while all connections are in use", "10.0.0.2:1", time.Second, 30*time.Second)
	mustBeOverloaded("while all connections are in use", "192.0.2.1:1", time.Second, 30*time.Second)
	close(release)
	for _, done := range inFlight {
		if w := <-done; w.Code != 200 {
			t.Errorf("a request in flight got %d; want 200", w.Code)
		}
	}
	for range 3 { // its requests have ended
		if w := <-sendFrom(h, "[2001:db8:0:1::1]:1"); w.Code != 200 {
			t.Errorf("after its requests have ended, a request got %d; want 200", w.Code)
		}
	}
}

// A connection that is slow to open is bounded by ConnectTimeout, and not by the wait for a free
// one.
func TestSlowConnectingIsNotOverload(t *testing.T) {
	t.Parallel()
	upstream := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	upstream.Listener = slowListener{upstream.Listener}
	upstream.StartTLS()
	defer upstream.Close()
	target, err := url.Parse(upstream.URL)
	if err != nil {
		t.Fatal(err)
	}
	h := newProxy(revproxy.Options{Upstream: target, MaxConnections: 4, ConnectTimeout: time.Minute, TLS: upstream.Client().Transport.(*http.Transport).TLSClientConfig})
	defer h.Close()
	if w := <-sendFrom(h, "192.0.2.1:1"); w.Code != 200 {
		t.Errorf("a request whose connection opens slowly got %d %s; want 200", w.Code, w.Body)
	}
}

// A slowListener has connections whose first read lasts longer than a request waits for a free one.
type slowListener struct{ net.Listener }

func (l slowListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	return &slowConn{Conn: conn}, err
}

type slowConn struct {
	net.Conn
	hasRead bool
}

func (c *slowConn) Read(p []byte) (int, error) {
	if !c.hasRead {
		c.hasRead = true
		time.Sleep(1200 * time.Millisecond)
	}
	return c.Conn.Read(p)
}

// While there is no memory, a response is copied with a small buffer.
func TestResponsesAreCopiedWithoutMemory(t *testing.T) {
	text := strings.Repeat("a", 100_000)
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.Write([]byte(text)) }))
	defer upstream.Close()
	target, err := url.Parse(upstream.URL)
	if err != nil {
		t.Fatal(err)
	}
	for _, size := range []int64{0, 1 << 20} {
		budget := &countedMemory{size: size}
		h := newProxy(revproxy.Options{Upstream: target, Memory: budget})
		for range 3 {
			w := <-sendFrom(h, "192.0.2.1:1")
			if w.Body.String() != text || budget.taken.Load() != 0 {
				t.Errorf("with a budget of %d bytes, the response has %d bytes, and %d are still taken; want %d and 0", size, w.Body.Len(), budget.taken.Load(), len(text))
			}
		}
		if (budget.most.Load() > 0) != (size > 0) {
			t.Errorf("of a budget of %d bytes, %d were taken", size, budget.most.Load())
		}
		h.Close()
	}
}

type countedMemory struct {
	size        int64
	taken, most atomic.Int64
}

func (m *countedMemory) Take(n int64) bool {
	if m.taken.Load()+n > m.size {
		return false
	}
	m.most.Store(m.taken.Add(n))
	return true
}

func (m *countedMemory) Release(n int64) { m.taken.Add(-n) }
