package httplimit_test

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/httplimit"
	"github.com/penstock/penstock/memstore"
)

// A request has reserved 100 units and uses none. When it ends, 95 of them have been refilled, and
// another request has spent those. So 5 units come back, and 100 pass in this moment.
func TestLateRefundReturnsNoRefilledUnits(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	gate, _ := gateWith(t, memstore.New(memstore.Options{Now: func() time.Time { return now }}), `
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
		if err := httplimit.Settle(r.Context(), 0); err != nil {
			t.Error(err)
		}
	}))
	send(h, "GET", "/long", "X-Max", "100")
	if got := send(h, "GET", "/short", "X-Max", "0").Header().Get("RateLimit"); !strings.HasPrefix(got, `"chat.tokens";r=5;`) {
		t.Errorf("RateLimit is %s; want 5 units left", got)
	}
}

// Charges that may be refunded take more memory, and are not leased. Most users of NewSimple refund
// nothing.
func TestSimpleGateRefundsOnlyIfAsked(t *testing.T) {
	for _, refunds := range []bool{false, true} {
		inner := memstore.New(memstore.Options{})
		var sent []penstock.Charge
		store := penstock.StoreFunc(func(ctx context.Context, charges []penstock.Charge) (penstock.Decision, error) {
			sent = append(sent, charges...)
			return inner.Decide(ctx, charges)
		})
		limits := []penstock.Limit{penstock.PerHour(10)}
		gate, err := httplimit.NewSimple(store, "api", limits, httplimit.SimpleOptions{Refunds: refunds})
		if err != nil {
			t.Fatal(err)
		}
		send(gate.Middleware(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			if err := httplimit.Settle(r.Context(), 0); err != nil {
				t.Error(err)
			}
		})), "GET", "/")
		peek := sent[0]
		peek.Mode = penstock.Peek
		d, err := inner.Decide(t.Context(), []penstock.Charge{peek})
		if err != nil {
			t.Fatal(err)
		}
		left := int64(9)
		if refunds {
			left = 10
		}
		if sent[0].IsRefundable != refunds || d.Remaining() != left {
			t.Errorf("with Refunds %t, the charge is refundable: %t, and a cost of 0 leaves %d of 10 units; want %d", refunds, sent[0].IsRefundable, d.Remaining(), left)
		}
	}
}
