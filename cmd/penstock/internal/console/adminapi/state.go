package adminapi

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"maps"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/penstock/penstock/cmd/penstock/internal/console/activity"
	"github.com/penstock/penstock/cmd/penstock/internal/console/explain"
	"github.com/penstock/penstock/cmd/penstock/internal/console/keylimits"
	"github.com/penstock/penstock/internal/policy/describe"
	"github.com/penstock/penstock/policy"
)

// A stateCache keeps the latest state, so that it is made at most once a second for all readers.
type stateCache struct {
	mu     sync.Mutex
	made   time.Time // when the state was made
	latest encoded   // the state in JSON
	state  *State
}

func (h *Handler) makeState(ctx context.Context, _ Viewer, _ url.Values) (any, error) {
	return h.state(ctx), nil
}

// state returns the state, which is up to a second old. If several readers need a new one, the
// first makes it and the others wait.
func (h *Handler) state(ctx context.Context) encoded {
	s := &h.stateCache
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.latest.text != nil && time.Since(s.made) < time.Second {
		return s.latest
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), timeout)
	defer cancel()
	fleet := h.Fleet(ctx)
	current := &State{Health: h.Health(ctx), Store: h.storeState(ctx), Counts: h.counts(), FleetCounts: totals(fleet), Waiting: h.Waiting(),
		Fleet: FleetState{Shown: len(fleet.Instances), Registered: fleet.Registered, Problem: fleet.Problem}}
	if name := h.Upstream(); name != "" {
		current.Upstream = &Upstream{name, latencyOf(&h.Recorder.Upstream)}
	}
	known := h.RegionsNow()
	for _, r := range known {
		current.Regions = append(current.Regions, Region{Name: r.Region, IsInContact: r.IsInContact, HasDropped: r.HasDropped})
	}
	stable, _ := json.Marshal(current) // for the ETag: without the fields below, which change every second
	sum := sha256.Sum256(stable)
	current.Time = time.Now().UTC()
	for i, r := range known {
		current.Regions[i].LagMS, current.Regions[i].Changed = max(r.Contact.Milliseconds(), -1), r.Changed
	}
	const isSummed = true
	current.Recent = h.history("seconds", recentSeconds, isSummed, nil) // of all series
	current.Times = h.timings("seconds", recentSeconds)
	s.state = current
	text, _ := json.Marshal(current)
	s.latest = encoded{append(text, '\n'), `"` + hex.EncodeToString(sum[:12]) + `"`}
	s.made = time.Now()
	return s.latest
}

// recentSeconds is how many of the last seconds the state lists one by one.
const recentSeconds = 10

func (h *Handler) storeState(ctx context.Context) StoreState {
	store := h.StoreInfo(ctx)
	store.Latency = latencyOf(&h.Recorder.Store)
	isFailing := store.IsFailing
	for _, state := range store.Breakers {
		isFailing = isFailing || state != "closed"
	}
	if isFailing {
		store.Over = h.overAdmission(max(store.Instances, 1))
	}
	return store
}

func latencyOf(t *activity.Timing) Latency {
	times := t.Since(recentSeconds)
	return Latency{Calls: times.Calls, Failed: times.Failed, P50: times.P50.Microseconds(), P95: times.P95.Microseconds(), P99: times.P99.Microseconds()}
}

// overAdmission returns how many units beyond each limit may be admitted while the store fails, and
// when the store returns.
func (h *Handler) overAdmission(instances int) *OverAdmission {
	const maxListed = 50 // limits; Skipped counts the others
	rules, all := h.Policy.Rules(), &OverAdmission{Limits: []LimitBound{}}
	for _, r := range rules.Spec().Rules {
		for _, l := range r.Limits {
			switch {
			case keylimits.KindOf(l) != keylimits.Enforced || len(l.Variants) == 0:
				continue
			case len(all.Limits) == maxListed:
				all.Skipped++
				continue
			}
			bounds := slices.DeleteFunc(h.boundsOf(rules, l.Variants[0], instances), func(b Bound) bool { return b.When != "store fails" && b.When != "store returns" })
			all.Limits = append(all.Limits, LimitBound{Rule: r.Name, Limit: l.Name, OnFailure: l.Guard.OnFailure.String(), Bounds: bounds})
		}
	}
	return all
}

func (h *Handler) counts() []Count {
	history := h.Recorder.History()
	last10 := history.Since(10)
	counts := []Count{}
	for s, n := range history.Since(60) {
		counts = append(counts, Count{Rule: s.Rule, Limit: s.Limit, Name: s.Name, Last10: last10[s], Last60: n})
	}
	sortCounts(counts)
	return counts
}

func sortCounts(counts []Count) {
	slices.SortFunc(counts, func(a, b Count) int {
		return cmp.Or(cmp.Compare(a.Rule, b.Rule), cmp.Compare(a.Limit, b.Limit), cmp.Compare(a.Name, b.Name))
	})
}

func totals(fleet *activity.Fleet) []Count {
	sums := make(map[activity.Series]Count)
	for _, i := range fleet.Instances {
		for _, c := range i.Counts {
			sum := sums[c.Series]
			sums[c.Series] = Count{Rule: c.Rule, Limit: c.Limit, Name: c.Name, Last10: sum.Last10 + c.Last10, Last60: sum.Last60 + c.Last60}
		}
	}
	counts := slices.AppendSeq(make([]Count, 0, len(sums)), maps.Values(sums))
	sortCounts(counts)
	return counts
}

func (h *Handler) makeHealth(ctx context.Context, _ Viewer, _ url.Values) (any, error) {
	return h.Health(ctx), nil
}

func (h *Handler) makeStore(ctx context.Context, _ Viewer, _ url.Values) (any, error) {
	return h.storeState(ctx), nil
}

func (h *Handler) makeInstances(ctx context.Context, _ Viewer, _ url.Values) (any, error) {
	fleet := h.Fleet(ctx)
	all := Instances{Instances: []Instance{}, Registered: fleet.Registered, Problem: fleet.Problem,
		Ignored: Ignored{OtherVersion: fleet.Ignored.OtherVersion, Corrupt: fleet.Ignored.Corrupt, OtherSecret: fleet.Ignored.OtherSecret}}
	for _, i := range fleet.Instances {
		one := Instance{
			Name: i.Name, IsSelf: i.IsSelf, Version: i.Version, Host: i.Host, PID: i.PID, Digest: i.Digest,
			Started: i.Started.UTC(), Written: i.Written.UTC(), Reason: i.Health, Counts: []Count{},
		}
		for _, c := range i.Counts {
			one.Counts = append(one.Counts, Count{Rule: c.Rule, Limit: c.Limit, Name: c.Name, Last10: c.Last10, Last60: c.Last60})
		}
		sortCounts(one.Counts)
		all.Instances = append(all.Instances, one)
	}
	return all, nil
}

func (h *Handler) makeRules(ctx context.Context, _ Viewer, _ url.Values) (any, error) {
	rules := h.Policy.Rules()
	type name struct{ rule, limit string }
	counts := make(map[name][]Count)
	for _, c := range h.counts() {
		at := name{c.Rule, c.Limit}
		counts[at] = append(counts[at], c)
	}
	instances, spec := max(h.StoreInfo(ctx).Instances, 1), rules.Spec()
	needs := h.Recorder.Needs()
	describeLimit := func(l *policy.Limit, kind string) Limit {
		one := Limit{Name: l.Name, Kind: kind, Identity: describe.Identity(l.Key), Algorithm: l.Algorithm, OnFailure: l.Guard.OnFailure.String(),
			Failure: describe.StoreFailure(&l.Guard), WaitMS: l.Patience.Milliseconds(), Rates: []Rate{}, Bounds: []Bound{}, Counts: counts[name{l.Rule.Name, l.Name}]}
		if ceiling, err := l.Guard.Ceiling.Compile(); err == nil {
			one.Ceiling = describe.Rate(ceiling)
		}
		if one.Counts == nil {
			one.Counts = []Count{}
		}
		for tier, plan := range l.Variants {
			rate := Rate{Text: describe.Rate(plan)}
			if len(l.Variants) > 1 {
				rate.Tier = spec.Tiers[tier].Name
			}
			one.Rates = append(one.Rates, rate)
		}
		if len(l.Variants) > 0 {
			one.Needs = needsOf(needs[activity.Series{Rule: l.Rule.Name, Limit: l.Name}], l.Variants[0])
		}
		if kind == keylimits.Enforced && len(l.Variants) > 0 {
			one.Bounds = h.boundsOf(rules, l.Variants[0], instances)
		}
		return one
	}
	all := Rules{Digest: h.Digest(), Allow: describe.Clients(spec.Allow), Deny: describe.Clients(spec.Deny), Tiers: []Tier{}, Rules: []Rule{}}
	for _, t := range spec.Tiers {
		all.Tiers = append(all.Tiers, Tier{t.Name, describe.Tier(t)})
	}
	for _, r := range rules.Spec().Rules {
		rule := Rule{Name: r.Name, Always: r.Always, Shadow: r.Shadow, Unlimited: r.Unlimited, When: describe.When(r), Match: append([]describe.Condition{}, describe.Conditions(r)...), Limits: []Limit{}}
		if n := r.NewIdentities; n != nil {
			rule.NewIdentities = describe.Rate(n)
		}
		for _, l := range r.Limits {
			one := describeLimit(l, keylimits.KindOf(l))
			if l.Candidate != nil {
				candidate := describeLimit(l.Candidate, keylimits.Candidate)
				one.Candidate = &candidate
			}
			rule.Limits = append(rule.Limits, one)
		}
		all.Rules = append(all.Rules, rule)
	}
	return all, nil
}

const maxLines = 200

func (h *Handler) makeHistory(_ context.Context, _ Viewer, q url.Values) (any, error) {
	span, n, err := spanOf(q)
	if err != nil {
		return nil, err
	}
	matches := func(parameter, value string) bool { return !q.Has(parameter) || q.Get(parameter) == value }
	isSummed := q.Get("sum") == "rules"
	return h.history(span, n, isSummed, func(s activity.Series) bool {
		return matches("rule", s.Rule) && matches("limit", s.Limit) && matches("name", s.Name)
	}), nil
}

func (h *Handler) makeTimings(_ context.Context, _ Viewer, q url.Values) (any, error) {
	span, n, err := spanOf(q)
	if err != nil {
		return nil, err
	}
	return h.timings(span, n), nil
}

// spanOf returns the span that a request names, and how many seconds or minutes it wants.
func spanOf(q url.Values) (span string, n int, err error) {
	most := activity.Seconds
	if span = q.Get("span"); span == "minutes" {
		most = activity.Minutes
	}
	n, err = number(q, "last", 60, most)
	return span, n, err
}

// history returns the last n counts of each series that isSelected selects; nil selects all.
func (h *Handler) history(span string, n int, isSummed bool, isSelected func(activity.Series) bool) History {
	found := History{Span: span, End: time.Now().UTC().Truncate(time.Second), Lines: []Line{}}
	all := h.Recorder.History()
	read, unitSeconds := all.BySecond, int64(1)
	if span == "minutes" {
		read, unitSeconds = all.ByMinute, 60
	}
	var lines []activity.Line
	found.Last = readWithinASecond(all.Second, func() { lines = read(n, isSelected) }) / unitSeconds
	if isSummed {
		lines = sumRules(lines)
	}
	for _, line := range lines {
		if len(found.Lines) == maxLines {
			found.IsCut = true
			break
		}
		found.Lines = append(found.Lines, Line{Rule: line.Rule, Limit: line.Limit, Name: line.Name, Counts: line.Counts})
	}
	return found
}

// sumRules adds up the lines that have the same name. The result has a line for each rule, which is
// the sum of its limits, and a line for the rule "", which is the sum of all lines.
func sumRules(lines []activity.Line) []activity.Line {
	sums := make(map[activity.Series][]uint32)
	add := func(s activity.Series, counts []uint32) {
		sum := sums[s]
		if sum == nil {
			sum = make([]uint32, len(counts))
			sums[s] = sum
		}
		for i, n := range counts {
			sum[i] = uint32(min(uint64(sum[i])+uint64(n), math.MaxUint32))
		}
	}
	for _, line := range lines {
		add(activity.Series{Name: line.Name}, line.Counts)
		if line.Rule != "" {
			add(activity.Series{Rule: line.Rule, Name: line.Name}, line.Counts)
		}
	}
	summed := make([]activity.Line, 0, len(sums))
	for s, counts := range sums {
		summed = append(summed, activity.Line{Series: s, Counts: counts})
	}
	slices.SortFunc(summed, func(a, b activity.Line) int { return cmp.Or(cmp.Compare(a.Rule, b.Rule), cmp.Compare(a.Name, b.Name)) })
	return summed
}

// timings returns how long the calls of the last n seconds or minutes took.
func (h *Handler) timings(span string, n int) Timings {
	found := Timings{Span: span, End: time.Now().UTC().Truncate(time.Second)}
	unitSeconds := int64(1)
	if span == "minutes" {
		unitSeconds = 60
	}
	fill := func(t *activity.Timing) *Times {
		read := t.BySecond
		if span == "minutes" {
			read = t.ByMinute
		}
		var all []activity.Times
		found.Last = readWithinASecond(t.Second, func() { all = read(n) }) / unitSeconds
		return timesOf(all)
	}
	found.Store = *fill(&h.Recorder.Store)
	if h.Upstream() != "" {
		found.Upstream = fill(&h.Recorder.Upstream)
	}
	return found
}

func timesOf(all []activity.Times) *Times {
	t := &Times{Calls: []uint64{}, Failed: []uint64{}, P50: []int64{}, P95: []int64{}, P99: []int64{}}
	for _, one := range all {
		t.Calls, t.Failed = append(t.Calls, one.Calls), append(t.Failed, one.Failed)
		t.P50, t.P95, t.P99 = append(t.P50, one.P50.Microseconds()), append(t.P95, one.P95.Microseconds()), append(t.P99, one.P99.Microseconds())
	}
	return t
}

// readWithinASecond calls read. If a new second begins during the call, it calls read again. So all
// that the last call has read belongs to one second. readWithinASecond returns this second.
func readWithinASecond(second func() int64, read func()) int64 {
	for {
		before := second()
		if read(); second() == before {
			return before
		}
	}
}

// number reads a parameter that is a number from 1 to most. Without it, number returns ifMissing.
func number(q url.Values, name string, ifMissing, most int) (int, error) {
	if !q.Has(name) {
		return ifMissing, nil
	}
	n, err := strconv.Atoi(q.Get(name))
	if err != nil || n < 1 || n > most {
		return 0, refuse(http.StatusBadRequest, "%s is not a number from 1 to %d", name, most)
	}
	return n, nil
}

func (h *Handler) makeExplain(ctx context.Context, v Viewer, q url.Values) (any, error) {
	size := int64(0)
	if q.Has("size") {
		var err error
		if size, err = strconv.ParseInt(q.Get("size"), 10, 64); err != nil || size < -1 {
			return nil, refuse(http.StatusBadRequest, "size is not a number of bytes; write 0 or more, or -1 if it is unknown")
		}
	}
	r, err := explain.NewRequest(cmp.Or(q.Get("method"), "GET"), q.Get("url"), q["header"], cmp.Or(q.Get("from"), "192.0.2.1"), size)
	if err != nil {
		return nil, refuse(http.StatusBadRequest, "%s", strings.TrimSpace(err.Error()))
	}
	descriptor, err := explain.ReadDescriptor(q["descriptor"])
	if err != nil {
		return nil, refuse(http.StatusBadRequest, "%s", err)
	}
	report, charges, err := h.Explain(r, descriptor)
	if err == nil && !v.isOperator { // the numbers of the store could be compared with those of masked keys
		err = report.CheckCost(charges)
	}
	if err != nil {
		return nil, refuse(http.StatusBadRequest, "%s", err)
	}
	if v.isOperator {
		if h.Reader.Enforced != nil {
			report.Enforce(charges, h.Reader.Enforced)
		}
		_ = report.Peek(ctx, h.Reader.Store, charges) // without an answer, the report still lists the limits
	}
	return report, nil
}
