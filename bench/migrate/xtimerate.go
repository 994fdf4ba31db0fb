package migrate

import (
	"context"
	"sync"
	"time"

	"github.com/penstock/penstock"
	"golang.org/x/time/rate"
)

// Before: a limiter of golang.org/x/time/rate for each user. The map grows forever, and each
// process has its own.
type perUser struct {
	mu       sync.Mutex
	limiters map[string]*rate.Limiter
}

func (p *perUser) allow(user string) bool {
	p.mu.Lock()
	limiter := p.limiters[user]
	if limiter == nil {
		limiter = rate.NewLimiter(rate.Every(6*time.Second), 10) // 10 per minute
		p.limiters[user] = limiter
	}
	p.mu.Unlock()
	return limiter.Allow()
}

// After: the key is an argument. Requests are counted in this process with memstore, and in all
// processes with Redis.
func newPerUser(store penstock.Store) (*penstock.Limiter, error) {
	return penstock.NewLimiter(store, "api", penstock.PerMinute(10))
}

func allow(ctx context.Context, limiter *penstock.Limiter, user string) (bool, error) {
	decision, err := limiter.Allow(ctx, user)
	return decision.Allowed, err
}
