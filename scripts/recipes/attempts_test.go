//go:build checks

package recipes

import (
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/penstock/penstock/scripts/internal/process"
)

// Proxies ask Penstock once for each request, because Penstock may charge each attempt. In place of
// Penstock is a server that never answers some requests, and counts them. Envoy is left out: the
// server does not speak gRPC.
func TestProxiesAskOnce(t *testing.T) {
	var attempts atomic.Int32
	address := process.ServeHTTP(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if strings.Contains(fmt.Sprint(r.Header), "/hung") {
			attempts.Add(1)
			<-r.Context().Done() // until the proxy closes the connection
		}
	}))
	dir, app := publicDir(t), startApp(t)
	for number, recipe := range recipes {
		program := find(t, recipe.program)
		if program == "" || recipe.program == "envoy" {
			continue
		}
		r := newRow(t, recipe, app, number+1)
		r.start(dir, program, &process.Service{API: address, GRPC: address})
		attempts.Store(0)
		status := r.sendWhenHung().status
		n := attempts.Load()
		r.expect(n == 1 && status == recipe.whenHung, "%d attempts, and then status %s; want 1 and %s", n, status, recipe.whenHung)
	}
}
