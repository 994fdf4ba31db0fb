package resplimit

import (
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/cache"
)

// numbers are the numbers of a limit that comes with a call.
type numbers struct{ burst, count, periodSeconds int64 }

// plans caches the compiled form of limits that come with calls. All have one name, so a key has
// one counter whatever the numbers are.
type plans struct {
	name      string
	resetPlan *penstock.Plan // for charges that reset a key, whatever the numbers of its limit are

	compiled cache.Cache[numbers, *penstock.Plan]
}

// maxPlans bounds the cache: 1,024 plans take about 300 kB. A plan that was dropped is compiled
// again, which takes a few microseconds.
const maxPlans = 1024

func newPlans(name string) (*plans, error) {
	resetPlan, err := limitOf(name, numbers{burst: 1, count: 1, periodSeconds: 1}).Compile()
	if err != nil {
		return nil, err
	}
	return &plans{name: name, resetPlan: resetPlan, compiled: cache.Cache[numbers, *penstock.Plan]{Max: maxPlans}}, nil
}

func limitOf(name string, n numbers) penstock.Limit {
	return penstock.Limit{Name: name, Count: n.count, Period: time.Duration(n.periodSeconds) * time.Second, Burst: n.burst}
}

// get returns the plan of a limit, whose period must be at most maxPeriodSeconds.
func (p *plans) get(n numbers) (*penstock.Plan, error) {
	return p.compiled.Get(n, func(n numbers) (*penstock.Plan, error) { return limitOf(p.name, n).Compile() })
}
