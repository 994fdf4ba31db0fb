package revproxy_test

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"

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
		h := revproxy.New(revproxy.Options{Upstream: target, Memory: budget})
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
