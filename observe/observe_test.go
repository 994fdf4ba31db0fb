package observe

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/admission"
	"github.com/penstock/penstock/guard"
	"github.com/penstock/penstock/internal/labels"
	"github.com/penstock/penstock/policy"
)

var (
	search = Rule{Name: "search", Limit: "second", Algorithm: "token-bucket"}
	login  = Rule{Name: "login", Limit: "hour", Algorithm: "sliding-log"}
)

// countOf returns the number of requests with a rule and an outcome, and how many rules there are.
func (c *Counts) countOf(rule Rule, o admission.Outcome) (n uint64, rules int) {
	c.Requests(func(r Rule, byOutcome []uint64) {
		rules++
		if r == rule {
			n = byOutcome[o]
		}
	})
	return n, rules
}

// observeOutcome counts a request with this rule and outcome.
func (c *Counts) observeOutcome(rule Rule, o admission.Outcome) {
	c.ObserveRequest(&admission.Event{Rule: rule.Name, Limit: rule.Limit, Algorithm: rule.Algorithm, Outcome: o, Latency: time.Millisecond})
}

// counters returns all counters above 0 except those of requests. Their names have the form
// "kind:value".
func (c *Counts) counters() map[string]uint64 {
	all := make(map[string]uint64)
	add := func(name string, n uint64) {
		if n > 0 {
			all[name] = n
		}
	}
	c.Decisions(func(s penstock.Source, n uint64) { add("source:"+s.String(), n) })
	c.Errors(func(reason string, n uint64) { add("error:"+reason, n) })
	c.TokensRejected(func(reason string, n uint64) { add("token:"+reason, n) })
	c.BreakerChanges(func(to guard.State, n uint64) { add("breaker:"+to.String(), n) })
	add("unknown outcome", c.UnknownOutcomes())
	add("uncounted", c.Uncounted())
	return all
}

func TestSetRulesKeepsAddedRules(t *testing.T) {
	c, call := New(Options{}), Rule{"call", "call", "token-bucket"}
	c.SetRules([]Rule{search})
	c.observeOutcome(search, admission.Allowed)
	c.SetRulesOf("call", []Rule{call})
	for _, rules := range [][]Rule{{search}, {search, login}, {login}, nil, {search}} {
		c.observeOutcome(call, admission.Denied)
		c.SetRules(rules)
	}
	if n, rules := c.countOf(call, admission.Denied); n != 5 || rules != 3 {
		t.Errorf("the added rule has %d requests, and there are %d rules; want 5 requests, and 3 rules", n, rules)
	}
	if n, _ := c.countOf(search, admission.Allowed); n != 0 {
		t.Errorf("a rule that was removed and set again has %d requests; want 0", n)
	}
	c.SetRules([]Rule{search})
	c.observeOutcome(search, admission.Allowed)
	c.SetRulesOf("login", []Rule{login})
	if n, _ := c.countOf(search, admission.Allowed); n != 1 {
		t.Errorf("a rule of the policy has %d requests after another was added; want 1", n)
	}
}

// A recordingHistogram records the latencies of one rule as text.
type recordingHistogram struct {
	name string
	log  *[]string
}

func (r recordingHistogram) Observe(ctx context.Context, latency time.Duration) {
	line := fmt.Sprint(r.name, " ", latency)
	if ctx == nil {
		line += " without a context"
	}
	*r.log = append(*r.log, line)
}

func TestHistogramsEndWithTheirRules(t *testing.T) {
	var log []string
	c := New(Options{
		Histogram: func(r Rule) Histogram { log = append(log, "new "+r.Name); return recordingHistogram{r.Name, &log} },
		Removed:   func(r Rule) { log = append(log, "removed "+r.Name) },
	})
	c.SetRules([]Rule{search, login})
	c.observeOutcome(search, admission.Allowed)
	c.observeOutcome(search, admission.Denied)
	c.observeOutcome(Rule{"unknown", "x", "y"}, admission.Denied)
	c.ObserveRequest(&admission.Event{Outcome: admission.Unlimited}) // no store was called
	c.SetRules(nil)
	c.observeOutcome(search, admission.Allowed)
	want := []string{"new search", "search 1ms", "search 1ms", "new other", "other 1ms", "removed search", "other 1ms"}
	if fmt.Sprint(log) != fmt.Sprint(want) {
		t.Errorf("the calls of Histogram, Observe and Removed are %q; want %q", log, want)
	}
}

// Each error is counted once, whether the guards or package admission reports it.
func TestErrorsAreCountedOnce(t *testing.T) {
	timeoutErr := penstock.NewStoreError(penstock.ReasonTimeout, nil)
	observeRequest := func(c *Counts, o admission.Outcome, s penstock.Source, err error) {
		c.ObserveRequest(&admission.Event{Rule: "search", Limit: "second", Algorithm: "token-bucket", Outcome: o, Source: s, Err: err})
	}
	for _, row := range []struct {
		name   string
		events func(*Counts)
		want   string
	}{
		{name: "without guards", events: func(c *Counts) {
			c.ObserveRequest(&admission.Event{Rule: "search", Outcome: admission.FailedOpen, Source: penstock.FromOpen, Err: timeoutErr, SkippedRule: "search"})
			observeRequest(c, admission.FailedClosed, penstock.FromClosed, errors.New("?"))
			observeRequest(c, admission.Allowed, penstock.FromFallback, timeoutErr)
		}, want: "map[error:other:1 error:timeout:2 source:closed:1 source:fallback:1 source:open:1 uncounted:1 unknown outcome:2]"},
		{name: "with guards", events: func(c *Counts) {
			c.SetGuards(Guards{})
			c.ObserveStoreError(guard.Event{Err: timeoutErr, Reason: "timeout"})
			observeRequest(c, admission.Allowed, penstock.FromFallback, timeoutErr)
			c.ObserveStoreError(guard.Event{Err: context.Canceled, Reason: "canceled"})
			observeRequest(c, admission.FailedClosed, penstock.FromClosed, penstock.ErrInvalid)
		}, want: "map[error:invalid:1 error:timeout:1 source:closed:1 source:fallback:1 unknown outcome:1]"},
		{name: "abandoned", events: func(c *Counts) { observeRequest(c, admission.Abandoned, penstock.FromStore, context.Canceled) }, want: "map[]"},
		{name: "shadows and new identities", events: func(c *Counts) {
			observeRequest(c, admission.ShadowDenied, penstock.FromStore, nil)
			observeRequest(c, admission.DeniedNewIdentity, penstock.FromStore, nil)
		}, want: "map[]"},
		{name: "skipped limits", events: func(c *Counts) {
			c.ObserveRequest(&admission.Event{Rule: "search", Outcome: admission.Allowed, Source: penstock.FromFallback, SkippedRule: "flood"})
			c.ObserveRequest(&admission.Event{Outcome: admission.Unlimited, SkippedRule: "flood"})
		}, want: "map[source:fallback:1 uncounted:2]"},
		{name: "decisions", events: func(c *Counts) {
			plan := penstock.PerSecond(1).MustCompile()
			c.ObserveDecision(guard.Event{Plan: plan, Allowed: true})
			c.ObserveDecision(guard.Event{Plan: plan, Source: penstock.FromDenyCache})
			c.ObserveDecision(guard.Event{Plan: plan, Allowed: true, Source: penstock.FromOpen})
			c.ObserveDecision(guard.Event{Err: timeoutErr, Reason: "timeout"})
			c.ObserveDecision(guard.Event{Err: context.Canceled, Reason: "canceled"})
		}, want: "map[error:timeout:1 source:deny_cache:1 source:open:1 source:store:1 uncounted:1 unknown outcome:1]"},
		{name: "tokens, breakers and unknown values", events: func(c *Counts) {
			c.TokenRejected(&policy.TokenError{Reason: "expired"})
			c.TokenRejected(&policy.TokenError{Reason: "?"})
			c.BreakerChanged("a", guard.StateClosed, guard.StateOpen)
			c.BreakerChanged("a", guard.StateClosed, 77) // a state that only a later version has
			observeRequest(c, 200, 200, nil)             // an outcome and a source that only a later version has
			c.CountError(&penstock.StoreError{Reason: 200})
		}, want: "map[breaker:open:1 error:unknown:1 token:expired:1]"},
	} {
		c := New(Options{})
		c.SetRules([]Rule{search})
		row.events(c)
		if got := fmt.Sprint(c.counters()); got != row.want {
			t.Errorf("%s: the counters are %s; want %s", row.name, got, row.want)
		}
	}
}

func TestDecisionsHaveTheOutcomesOfRequests(t *testing.T) {
	plan := penstock.PerSecond(1).WithName("second").MustCompile()
	for _, row := range []struct {
		event guard.Event
		want  admission.Outcome
	}{
		{guard.Event{Allowed: true}, admission.Allowed},
		{guard.Event{Allowed: true, Source: penstock.FromOpen}, admission.FailedOpen},
		{guard.Event{}, admission.Denied},
		{guard.Event{Source: penstock.FromClosed}, admission.FailedClosed},
		{guard.Event{Err: penstock.ErrUnavailable, Reason: "timeout"}, admission.FailedClosed},
		{guard.Event{Err: context.Canceled, Reason: "canceled"}, admission.Abandoned},
		{guard.Event{Err: penstock.ErrInvalid, Reason: "invalid"}, admission.Malformed},
	} {
		c := New(Options{})
		c.SetRules(RulesOfPlans(plan))
		row.event.Plan = plan
		c.ObserveDecision(row.event)
		if n, _ := c.countOf(ruleOf(plan), row.want); n != 1 {
			t.Errorf("after the event %+v, %d requests have the outcome %s; want 1", row.event, n, row.want)
		}
	}
}

func TestSeriesOfNodesHaveABound(t *testing.T) {
	breakers := map[string]guard.State{"": guard.StateClosed}
	for i := range 1000 {
		breakers[fmt.Sprintf("10.0.0.%04d:6379", i)] = guard.StateClosed
	}
	breakers["10.0.0.0700:6379"], breakers["10.0.0.0900:6379"] = guard.StateOpen, guard.StateHalfOpen
	all := Breakers(breakers)
	defaultState, hasDefault := all["default"]
	if len(all) != labels.MaxNodes+1 || all["other"] != 2 || !hasDefault || defaultState != 0 {
		t.Errorf("%d nodes have %d series, the state of default is %d (found: %t), and that of other is %d; want %d series, and the states 0 and 2",
			len(breakers), len(all), defaultState, hasDefault, all["other"], labels.MaxNodes+1)
	}
}

func TestWaitingIsTheSumOfAllFunctions(t *testing.T) {
	c := New(Options{})
	if c.Waiting() != 0 {
		t.Errorf("without functions, %d requests wait; want 0", c.Waiting())
	}
	c.AddWaiting(func() int { return 2 })
	c.AddWaiting(func() int { return 3 })
	if n := c.Waiting(); n != 5 {
		t.Errorf("%d requests wait; want 5, the sum of 2 and 3", n)
	}
}

func TestRequestsNearTheirLimitAreCounted(t *testing.T) {
	for _, row := range []struct {
		capacity, remaining int64
		percent             int
		want                bool
	}{
		{10, 2, 80, true}, {10, 3, 80, false}, {10, 0, 100, true}, {10, 1, 100, false}, {10, 5, 50, true}, {10, 6, 50, false},
		{1, 0, 80, true}, {1, 1, 80, false}, {1 << 51, 1<<51/100*20 + 1, 80, false}, {1 << 51, 1 << 51 / 100 * 20, 80, true},
	} {
		if got := labels.IsNear(row.capacity, row.remaining, row.percent); got != row.want {
			t.Errorf("with %d of %d left, and %d %%, IsNear returns %t; want %t", row.remaining, row.capacity, row.percent, got, row.want)
		}
	}
	plan := penstock.PerHour(10).WithName(search.Limit).MustCompile()
	event := func(mode penstock.Mode, remaining int64, source penstock.Source) *admission.Event {
		d := penstock.Single(penstock.Status{Remaining: remaining})
		return &admission.Event{
			Rule: search.Name, Limit: search.Limit, Algorithm: search.Algorithm, Outcome: admission.Allowed, Source: source,
			Decision: &d, Charges: []penstock.Charge{{Key: "k", Plan: plan, Cost: 1, Mode: mode}},
		}
	}
	c := New(Options{NearPercent: 90})
	c.SetRules([]Rule{search})
	for _, e := range []*admission.Event{
		event(penstock.Spend, 1, penstock.FromStore), event(penstock.Force, 0, penstock.FromStore), // these two count
		event(penstock.Spend, 2, penstock.FromStore), event(penstock.Peek, 0, penstock.FromStore), event(penstock.Spend, 0, penstock.FromLease),
		{Rule: search.Name, Limit: search.Limit, Algorithm: search.Algorithm, Outcome: admission.Allowed},
		{Rule: search.Name, Limit: search.Limit, Algorithm: search.Algorithm, Outcome: admission.Denied, Decision: event(penstock.Spend, 0, penstock.FromStore).Decision},
	} {
		c.ObserveRequest(e)
	}
	c.NearLimit(func(rule Rule, n uint64) {
		if want := map[Rule]uint64{search: 2}[rule]; n != want {
			t.Errorf("the rule %v has %d requests near its limit; want %d", rule, n, want)
		}
	})
}
