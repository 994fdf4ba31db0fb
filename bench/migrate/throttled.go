package migrate

import (
	"net/http"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/httplimit"
	"github.com/redis/go-redis/v9"
	"github.com/throttled/throttled/v2"
	goredisstore "github.com/throttled/throttled/v2/store/goredisstore.v9"
)

// Before: the middleware of throttled.
func throttledBefore(client *redis.Client, api http.Handler) (http.Handler, error) {
	store, err := goredisstore.NewCtx(client, "throttled:")
	if err != nil {
		return nil, err
	}
	quota := throttled.RateQuota{MaxRate: throttled.PerMin(10), MaxBurst: 4}
	limiter, err := throttled.NewGCRARateLimiterCtx(store, quota)
	if err != nil {
		return nil, err
	}
	middleware := throttled.HTTPRateLimiterCtx{RateLimiter: limiter, VaryBy: &throttled.VaryBy{Headers: []string{"X-API-Key"}}}
	return middleware.RateLimit(api), nil
}

// After: MaxBurst does not count the first request, and Burst does.
func throttledAfter(store penstock.Store, api http.Handler) (http.Handler, error) {
	byKey := func(r *http.Request) string { return "key:" + r.Header.Get("X-API-Key") } // check first that the key is valid
	gate, err := httplimit.PerKey(store, "api", penstock.PerMinute(10).WithBurst(5), byKey)
	if err != nil {
		return nil, err
	}
	return gate.Middleware(api), nil
}
