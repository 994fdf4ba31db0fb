package httplimit_test

import (
	"net/http"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/httplimit"
	"github.com/penstock/penstock/memstore"
)

// limited lets each client address send 100 requests per minute, counted in memory.
func limited(api http.Handler) (http.Handler, error) {
	gate, err := httplimit.PerKey(memstore.New(memstore.Options{}), "api", penstock.PerMinute(100), httplimit.ByAddress)
	if err != nil {
		return nil, err
	}
	return gate.Middleware(api), nil
}
