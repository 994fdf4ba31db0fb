package revproxy_test

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"testing"

	"github.com/penstock/penstock/cmd/penstock/internal/serve/revproxy"
)

// BenchmarkProxy compares the proxy with httputil.ReverseProxy. The latter has default settings,
// but keeps as many idle connections as the proxy.
func BenchmarkProxy(b *testing.B) {
	up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		io.WriteString(w, `{"drivers":[1,2,3]}`)
	}))
	defer up.Close()
	target, _ := url.Parse(up.URL)
	proxy := newProxy(revproxy.Options{Upstream: target})
	defer proxy.Close()
	bare := &httputil.ReverseProxy{
		Rewrite:   func(pr *httputil.ProxyRequest) { pr.SetURL(target); pr.SetXForwarded() },
		Transport: &http.Transport{MaxIdleConnsPerHost: 1024, DisableCompression: true},
	}
	for _, c := range []struct {
		name    string
		handler http.Handler
	}{{"bare", bare}, {"penstock", proxy}} {
		b.Run(c.name, func(b *testing.B) {
			server := httptest.NewServer(c.handler)
			defer server.Close()
			b.ReportAllocs()
			b.SetParallelism(16) // connections per core
			b.RunParallel(func(pb *testing.PB) {
				conn, err := net.Dial("tcp", server.Listener.Addr().String())
				if err != nil {
					b.Error(err)
					return
				}
				defer conn.Close()
				reader := bufio.NewReader(conn)
				for pb.Next() {
					io.WriteString(conn, "GET /api/drivers/nearby?lat=1 HTTP/1.1\r\nHost: h\r\nUser-Agent: bench\r\nAccept: */*\r\nX-API-Key: k1\r\n\r\n")
					res, err := http.ReadResponse(reader, nil)
					if err != nil {
						b.Error(err)
						return
					}
					io.Copy(io.Discard, res.Body)
				}
			})
		})
	}
}
