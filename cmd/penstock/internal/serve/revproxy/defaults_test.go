package revproxy_test

import (
	"cmp"
	"context"
	"log/slog"
	"net/http"
	"time"

	"github.com/penstock/penstock/cmd/penstock/internal/serve/revproxy"
)

// noBudget is a Memory without a bound.
type noBudget struct{}

func (noBudget) Take(int64) bool { return true }
func (noBudget) Release(int64)   {}

// newProxy makes a Handler. The functions that o lacks do nothing.
func newProxy(o revproxy.Options) *revproxy.Handler {
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	if o.NoResponse == nil {
		o.NoResponse = func(*http.Request) {}
	}
	if o.Observe == nil {
		o.Observe = func(int, time.Duration) {}
	}
	if o.ReadsHeader == nil {
		o.ReadsHeader = func(string) bool { return false }
	}
	if o.SetMarker == nil {
		o.SetMarker = func(context.Context, http.Header) {}
	}
	if o.Trace == nil {
		o.Trace = func(context.Context, http.Header) {}
	}
	if o.AddHeaders == nil {
		o.AddHeaders = func(http.Header, *http.Request) {}
	}
	if o.IsTrusted == nil {
		o.IsTrusted = func(*http.Request) bool { return false }
	}
	if o.Overloaded == nil {
		o.Overloaded = func() {}
	}
	if o.Memory == nil {
		o.Memory = noBudget{}
	}
	return revproxy.New(o)
}
