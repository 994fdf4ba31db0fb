package migrate

import (
	"net/http"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/httplimit"
	"github.com/redis/go-redis/v9"
	"github.com/ulule/limiter/v3"
	"github.com/ulule/limiter/v3/drivers/middleware/stdlib"
	ululeredis "github.com/ulule/limiter/v3/drivers/store/redis"
)

// Before: the middleware of ulule/limiter.
func ululeBefore(client *redis.Client, api http.Handler) (http.Handler, error) {
	store, err := ululeredis.NewStore(client)
	if err != nil {
		return nil, err
	}
	rate := limiter.Rate{Period: time.Minute, Limit: 10} // or limiter.NewRateFromFormatted("10-M")
	return stdlib.NewMiddleware(limiter.New(store, rate)).Handler(api), nil
}

// After: a window that begins with a client's first request, as in ulule/limiter.
func ululeAfter(store penstock.Store, api http.Handler) (http.Handler, error) {
	rate := penstock.PerMinute(10).With(penstock.AnchoredWindow) // penstock.ParseRate reads "10-M"
	gate, err := httplimit.PerKey(store, "api", rate, httplimit.ByAddress)
	if err != nil {
		return nil, err
	}
	return gate.Middleware(api), nil
}
