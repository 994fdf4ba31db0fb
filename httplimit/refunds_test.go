package httplimit_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/httplimit"
	"github.com/penstock/penstock/memstore"
)

// A request has reserved 100 units and uses none. When it ends, 95 of them have been refilled, and
// another request has spent those. So 5 units come back, and 100 pass in this moment.
func TestLateRefundReturnsNoRefilledUnits(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	gate, _ := gateWith(t, memstore.New(memstore.Options{Now: func() time.Time { return now }}), true, `
rules: [{name: chat, per: global, limits: [{name: tokens, rate: 50/s, burst: 100, cost: {header: X-Max, min: 0, max: 100, actual: X-Tokens}, headers: true}]}]
`)
	var h http.Handler
	h = gate.Middleware(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/long" {
			return
		}
		now = now.Add(1900 * time.Millisecond)
		if other := send(h, "GET", "/short", "X-Max", "95"); other.Code != http.StatusOK {
			t.Errorf("a request of 95 units gets %d; want 200", other.Code)
		}
		if err := httplimit.Settle(r, 0); err != nil {
			t.Error(err)
		}
	}))
	send(h, "GET", "/long", "X-Max", "100")
	if got := send(h, "GET", "/short", "X-Max", "0").Header().Get("RateLimit"); !strings.HasPrefix(got, `"chat.tokens";r=5;`) {
		t.Errorf("RateLimit is %s; want 5 units left", got)
	}
}
