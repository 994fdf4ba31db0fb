package resplimit

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/cache"
	"github.com/penstock/penstock/internal/callerlimits"
)

// maxPeriodSeconds is the longest period of a limit, 366 days.
const maxPeriodSeconds = int64(callerlimits.MaxPeriod / time.Second)

// The texts of errors about arguments.
const (
	errNotInteger = "ERR value is not an integer or out of range"
	errZeroRate   = "ERR zero rates are not supported: count and period must be at least 1"
	errNoStore    = "ERR this server has no store for limits that come with the call; use PENSTOCK.CHECK"
)

// throttle adds the job of CL.THROTTLE or THROTTLE: key max_burst count period [quantity].
func (c *client) throttle(b *batch, k kind, args [][]byte) {
	name := "CL.THROTTLE"
	if k == crabThrottle {
		name = "THROTTLE"
	}
	if c.server.store == nil {
		c.fail(b, errNoStore)
		return
	}
	if len(args) != 5 && len(args) != 6 {
		c.fail(b, "ERR wrong number of arguments; write "+name+" key max_burst count period [quantity]")
		return
	}
	values := [4]int64{3: 1} // the quantity is 1 by default
	for i, arg := range args[2:] {
		n, err := strconv.ParseInt(string(arg), 10, 64)
		if err != nil {
			c.fail(b, errNotInteger)
			return
		}
		values[i] = n
	}
	n, quantity, problem := checkNumbers(k, values)
	if problem != "" {
		c.fail(b, problem)
		return
	}
	plan, err := c.server.plans.get(n)
	if err != nil {
		c.fail(b, errorText(err))
		return
	}
	j := b.add(k, string(args[1]))
	j.replyNumber = n.burst
	j.single[0] = penstock.Charge{Key: j.key, Plan: plan, Cost: quantity}
	if quantity == 0 {
		j.single[0].Mode = penstock.Peek
	}
}

// checkNumbers checks max_burst, count, period and quantity. problem is the error reply, or "".
func checkNumbers(k kind, values [4]int64) (n numbers, quantity int64, problem string) {
	burst, count, period, quantity := values[0], values[1], values[2], values[3]
	leastBurst := boolToInt(k == crabThrottle) // 1 for throttlecrab, 0 for redis-cell
	extra := boolToInt(k == cellThrottle)      // redis-cell admits bursts of max_burst + 1 units
	switch {
	case burst < leastBurst:
		problem = fmt.Sprintf("ERR max_burst is %d; it must be at least %d", burst, leastBurst)
	case burst >= penstock.MaxCost:
		problem = fmt.Sprintf("ERR max_burst is %d; it must be below %d", burst, int64(penstock.MaxCost))
	case count == 0 || period == 0:
		problem = errZeroRate
	case count < 0 || period < 0:
		problem = fmt.Sprintf("ERR count is %d and period is %d; neither may be negative", count, period)
	case period > maxPeriodSeconds:
		problem = fmt.Sprintf("ERR the period is %d seconds; the longest is %d (366 days)", period, maxPeriodSeconds)
	case quantity < 0:
		problem = fmt.Sprintf("ERR the quantity is %d; it must not be negative, and DEL resets a key", quantity)
	case quantity > penstock.MaxCost:
		problem = fmt.Sprintf("ERR the quantity is %d; the largest is %d", quantity, int64(penstock.MaxCost))
	default:
		if largest := callerlimits.MaxBurst(count, time.Duration(period)*time.Second) - extra; burst > largest {
			problem = fmt.Sprintf("ERR max_burst is %d, which takes longer than 366 days to refill at this rate; the largest is %d", burst, largest)
		}
	}
	return numbers{burst: burst + extra, count: count, periodSeconds: period}, quantity, problem
}

// del adds the job of DEL and UNLINK: the keys are reset, all or none.
func (c *client) del(b *batch, args [][]byte) {
	switch {
	case c.server.store == nil:
		c.fail(b, errNoStore)
		return
	case len(args) < 2:
		c.fail(b, wrongArgumentCount(args[0]))
		return
	}
	if len(args) > 2 {
		c.decide(b) // the earlier commands, so that the commands of each key keep their order
	}
	j := b.add(deletion, string(args[1]))
	j.single[0] = penstock.Charge{Key: j.key, Plan: c.server.plans.resetPlan, Mode: penstock.Reset}
	if len(args) == 2 {
		j.replyNumber = 1
		return
	}
	seen := make(map[string]bool, maxArgs)
	for _, arg := range args[1:] {
		if key := string(arg); !seen[key] {
			seen[key] = true
			j.charges = append(j.charges, penstock.Charge{Key: key, Plan: c.server.plans.resetPlan, Mode: penstock.Reset})
		}
	}
	j.replyNumber = int64(len(j.charges)) // before decide, which writes the reply
	c.decide(b)
}

func (j *job) answer(r *reply) {
	switch {
	case j.err != nil:
		r.fail(errorText(j.err))
	case j.kind == deletion && !j.decision.Allowed: // no store denies a Reset
		r.fail(errorText(penstock.ErrUnavailable))
	case j.kind == deletion:
		r.integer(j.replyNumber)
	case j.kind == namedCheck:
		j.check.answer(r)
	case j.kind == crabThrottle: // the reply has allowed, limit, remaining, reset after, retry after
		a := j.throttleReply()
		r.array(5)
		for _, n := range []int64{1 - a.limited, a.limit, a.remaining, a.resetAfter, max(a.retryAfter, -a.limited)} { // the last is 0 if allowed, -1 if it never fits
			r.integer(n)
		}
	default:
		r.array(5)
		j.throttleReply().answer(r)
	}
}

// throttleReply are the five numbers of redis-cell, in their order. limited is 1 for a denial, else
// 0. Times are in seconds.
type throttleReply struct{ limited, limit, remaining, retryAfter, resetAfter int64 }

func (a throttleReply) answer(r *reply) {
	for _, n := range []int64{a.limited, a.limit, a.remaining, a.retryAfter, a.resetAfter} {
		r.integer(n)
	}
}

func (j *job) throttleReply() throttleReply {
	d := &j.decision
	return newThrottleReply(d.Allowed, d.Source, d.Status(0), j.replyNumber)
}

// newThrottleReply returns the numbers for a status. If nothing was charged because the store
// failed (FromOpen), all of the limit remains.
func newThrottleReply(isAllowed bool, source penstock.Source, s penstock.Status, limit int64) throttleReply {
	a := throttleReply{limit: limit, remaining: min(s.Remaining, limit), retryAfter: -1, resetAfter: seconds(s.ResetAfter)}
	if source == penstock.FromOpen {
		a.remaining = limit
	}
	if !isAllowed {
		a.limited, a.retryAfter = 1, seconds(s.RetryAfter)
	}
	return a
}

// seconds returns d in seconds, rounded up, so that a client that waits this long is never too
// early. For Never it returns -1.
func seconds(d time.Duration) int64 {
	if d == penstock.Never {
		return -1
	}
	return int64(d/time.Second) + boolToInt(d%time.Second > 0)
}

func boolToInt(isOne bool) int64 {
	if isOne {
		return 1
	}
	return 0
}

// errorText returns the error reply for an error of a store or a plan. The store's own text is
// omitted, because it may contain addresses. Programs can read the first word:
//
//   - UNAVAILABLE: there is no decision. Clients do not repeat the command by themselves, as some
//     do after TRYAGAIN. To repeat it could charge twice.
//   - ERR: the command is wrong.
func errorText(err error) string {
	if s := penstock.AsStoreError(err); s != nil {
		if s.MayBeCharged {
			return "UNAVAILABLE " + s.Reason.String() + ": the store gave no decision; the charge may have been made"
		}
		return "UNAVAILABLE " + s.Reason.String() + ": the store gave no decision; nothing was charged"
	}
	switch {
	case errors.Is(err, context.Canceled):
		return "UNAVAILABLE closing: the server is closing; the charge may have been made"
	case errors.Is(err, penstock.ErrInvalid):
		return "ERR " + strings.TrimPrefix(err.Error(), penstock.ErrInvalid.Error()+": ")
	}
	return "UNAVAILABLE unknown: there is no decision; the charge may have been made"
}

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
