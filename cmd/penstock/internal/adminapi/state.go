package adminapi

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/penstock/penstock/cmd/penstock/internal/activity"
	"github.com/penstock/penstock/cmd/penstock/internal/explain"
	"github.com/penstock/penstock/cmd/penstock/internal/keylimits"
	"github.com/penstock/penstock/policy"
	"github.com/penstock/penstock/policy/describe"
)

// states makes the state at most once a second for all readers.
type states struct {
	mu     sync.Mutex
	at     time.Time
	latest encoded
}

func (h *Handler) makeState(ctx context.Context, _ viewer, _ url.Values) (any, error) {
	return h.state(ctx), nil
}

// state returns the current state, up to a second old. Readers that wait for it share it.
func (h *Handler) state(ctx context.Context) encoded {
	s := &h.states
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.latest.text != nil && time.Since(s.at) < time.Second {
		return s.latest
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), timeout)
	defer cancel()
	fleet := h.Fleet(ctx)
	now := State{Health: h.Health(ctx), Store: h.StoreInfo(ctx), Counts: h.counts(), AllTotal: totals(fleet),
		Fleet: FleetState{Shown: len(fleet.Instances), Registered: fleet.Registered, Problem: fleet.Problem}}
	same, _ := json.Marshal(now) // without the time
	sum := sha256.Sum256(same)
	now.Time = time.Now().UTC()
	text, _ := json.Marshal(now)
	s.latest, s.at = encoded{append(text, '\n'), `"` + hex.EncodeToString(sum[:12]) + `"`}, time.Now()
	return s.latest
}

// counts returns those of this instance, sorted.
func (h *Handler) counts() []Count {
	history := h.Recorder.History()
	last10 := history.Since(10)
	counts := []Count{}
	for s, n := range history.Since(60) {
		counts = append(counts, Count{s.Rule, s.Limit, s.Name, last10[s], n})
	}
	sortCounts(counts)
	return counts
}

func sortCounts(counts []Count) {
	slices.SortFunc(counts, func(a, b Count) int {
		return cmp.Or(cmp.Compare(a.Rule, b.Rule), cmp.Compare(a.Limit, b.Limit), cmp.Compare(a.Name, b.Name))
	})
}

// totals adds up the counts of all instances.
func totals(fleet *activity.Fleet) []Count {
	sums := make(map[activity.Series]Count)
	for _, i := range fleet.Instances {
		for _, c := range i.Counts {
			sum := sums[c.Series]
			sums[c.Series] = Count{c.Rule, c.Limit, c.Name, sum.Last10 + c.Last10, sum.Last60 + c.Last60}
		}
	}
	counts := make([]Count, 0, len(sums))
	for _, c := range sums {
		counts = append(counts, c)
	}
	sortCounts(counts)
	return counts
}

func (h *Handler) makeHealth(ctx context.Context, _ viewer, _ url.Values) (any, error) {
	return h.Health(ctx), nil
}

func (h *Handler) makeStore(ctx context.Context, _ viewer, _ url.Values) (any, error) {
	return h.StoreInfo(ctx), nil
}

func (h *Handler) makeInstances(ctx context.Context, _ viewer, _ url.Values) (any, error) {
	fleet := h.Fleet(ctx)
	all := Instances{Instances: []Instance{}, Registered: fleet.Registered, Problem: fleet.Problem,
		Ignored: Ignored{fleet.Ignored.OtherVersion, fleet.Ignored.Corrupt, fleet.Ignored.OtherSecret}}
	for _, i := range fleet.Instances {
		one := Instance{i.Name, i.IsSelf, i.Version, i.Host, i.Digest, i.Started.UTC(), i.Written.UTC(), i.Health, []Count{}}
		for _, c := range i.Counts {
			one.Counts = append(one.Counts, Count{c.Rule, c.Limit, c.Name, c.Last10, c.Last60})
		}
		sortCounts(one.Counts)
		all.Instances = append(all.Instances, one)
	}
	return all, nil
}

func (h *Handler) makeRules(ctx context.Context, _ viewer, _ url.Values) (any, error) {
	rules := h.Rules()
	type name struct{ rule, limit string }
	counts := make(map[name][]Count)
	for _, c := range h.counts() {
		at := name{c.Rule, c.Limit}
		counts[at] = append(counts[at], c)
	}
	instances := max(h.StoreInfo(ctx).Instances, 1)
	describeLimit := func(l *policy.Limit, kind string) Limit {
		one := Limit{Name: l.Name, Kind: kind, Identity: describe.Identity(l.Key), Algorithm: l.Algorithm, OnFailure: l.Guard.OnFailure.String(),
			Rates: []string{}, Bounds: []Bound{}, Counts: counts[name{l.Rule.Name, l.Name}]}
		if one.Counts == nil {
			one.Counts = []Count{}
		}
		for _, plan := range l.Variants {
			one.Rates = append(one.Rates, describe.Rate(plan))
		}
		if kind == keylimits.Enforced && len(l.Variants) > 0 {
			one.Bounds = boundsOf(rules, l.Variants[0], instances)
		}
		return one
	}
	all := Rules{Digest: h.Digest(), Rules: []Rule{}}
	for _, r := range rules.Rules() {
		rule := Rule{Name: r.Name, Always: r.Always, Shadow: r.Shadow, Unlimited: r.Unlimited, Limits: []Limit{}}
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

// maxLines is how many lines a history has at most.
const maxLines = 200

func (h *Handler) makeHistory(_ context.Context, _ viewer, q url.Values) (any, error) {
	most := map[string]int{"seconds": activity.Seconds, "minutes": activity.Minutes}[q.Get("span")]
	n, err := number(q, "last", 60, most)
	if err != nil {
		return nil, err
	}
	has := func(s activity.Series) bool {
		return (!q.Has("rule") || s.Rule == q.Get("rule")) && (!q.Has("limit") || s.Limit == q.Get("limit")) && (!q.Has("name") || s.Name == q.Get("name"))
	}
	read := h.Recorder.History().BySecond
	if q.Get("span") == "minutes" {
		read = h.Recorder.History().ByMinute
	}
	found := History{Span: q.Get("span"), End: time.Now().UTC().Truncate(time.Second), Lines: []Line{}}
	for _, line := range read(n, has) {
		if found.Cut = len(found.Lines) == maxLines; found.Cut {
			break
		}
		found.Lines = append(found.Lines, Line{line.Rule, line.Limit, line.Name, line.Counts})
	}
	return found, nil
}

// number reads a parameter that is a number from 1 to most.
func number(q url.Values, name string, otherwise, most int) (int, error) {
	if !q.Has(name) {
		return otherwise, nil
	}
	n, err := strconv.Atoi(q.Get(name))
	if err != nil || n < 1 || n > most {
		return 0, refuse(http.StatusBadRequest, "%s is no number from 1 to %d", name, most)
	}
	return n, nil
}

func (h *Handler) makeExplain(ctx context.Context, _ viewer, q url.Values) (any, error) {
	size := int64(0)
	if q.Has("size") {
		var err error
		if size, err = strconv.ParseInt(q.Get("size"), 10, 64); err != nil || size < -1 {
			return nil, refuse(http.StatusBadRequest, "size is no number of bytes; -1 stands for unknown")
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
	report, err := h.Explain(ctx, r, descriptor)
	if err != nil {
		return nil, refuse(http.StatusBadRequest, "%s", err)
	}
	return report, nil
}
