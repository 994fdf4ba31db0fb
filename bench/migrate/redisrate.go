package migrate

import (
	"context"
	"time"

	"github.com/go-redis/redis_rate/v10"
	"github.com/penstock/penstock"
	"github.com/penstock/penstock/redisguard"
	"github.com/penstock/penstock/redisstore/goredis"
	"github.com/redis/go-redis/v9"
)

// Before: a limiter of redis_rate.
func redisRateBefore(client *redis.Client) func(ctx context.Context, user string) (allowed bool, retryAfter time.Duration, err error) {
	limiter := redis_rate.NewLimiter(client)
	return func(ctx context.Context, user string) (bool, time.Duration, error) {
		res, err := limiter.Allow(ctx, user, redis_rate.PerMinute(10))
		if err != nil {
			return false, 0, err
		}
		return res.Allowed > 0, res.RetryAfter, nil
	}
}

// After: the same client, with guards around it.
func redisRateAfter(client *redis.Client) (func(ctx context.Context, user string) (allowed bool, retryAfter time.Duration, err error), error) {
	store, err := redisguard.New(goredis.New(client), redisguard.Options{}) // call its Close at the end
	if err != nil {
		return nil, err
	}
	limiter, err := penstock.NewLimiter(store, "api", penstock.PerMinute(10))
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, user string) (bool, time.Duration, error) {
		decision, err := limiter.Allow(ctx, user)
		if err != nil {
			return false, 0, err
		}
		return decision.Allowed, decision.RetryAfter(), nil
	}, nil
}
