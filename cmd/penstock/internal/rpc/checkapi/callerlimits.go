package checkapi

import (
	"math"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/algorithm"
	"github.com/penstock/penstock/grpclimit/penstockv1"
	"github.com/penstock/penstock/guard"
	"github.com/penstock/penstock/internal/cache"
	"github.com/penstock/penstock/internal/callerlimits"
	"github.com/penstock/penstock/internal/reserved"
	"github.com/penstock/penstock/internal/syntax"
	"github.com/penstock/penstock/internal/wording"
	"github.com/penstock/penstock/policy"
)

// CallerLimitAlgorithms returns the algorithms that a caller limit may have. A leaky bucket is not
// one of them: it returns units only to the holder that took them, and only a limit with in_flight
// has holders.
func CallerLimitAlgorithms() []*algorithm.Algorithm {
	return slices.DeleteFunc(algorithm.All(), func(a *algorithm.Algorithm) bool { return a.OwnsRefunds() && !a.NeedsHolder() })
}

const (
	maxCallerLimits = 16                // limits of one request
	maxRateText     = 64                // bytes
	maxBurst        = 1_000_000_000_000 // units
	maxEntries      = 10_000            // units of a limit that keeps an entry for each unit, which makes calls slower
	minSlotTTL      = time.Second
	maxSlotTTL      = 24 * time.Hour
	defaultSlotTTL  = time.Minute
	maxCached       = 1024 // compiled limits in the cache; about 500 kB
)

// A spec is a limit as a caller sends it. The names in JSON are short, because the id of a
// reservation or hold contains the spec.
type spec struct {
	Name      string `json:"n,omitempty"`
	Rate      string `json:"r,omitempty"`
	Burst     int64  `json:"b,omitempty"`
	Algorithm string `json:"a,omitempty"`
	InFlight  int64  `json:"f,omitempty"`
	TTL       int64  `json:"t,omitempty"` // ms
}

// A callerLimit is the compiled form of a spec.
type callerLimit struct {
	plan  *penstock.Plan
	limit *policy.Limit // for events and answers
	spec  spec
}

type callerLimits struct {
	rule     *policy.Rule // the rule of all caller limits in events
	compiled cache.Cache[spec, *callerLimit]
}

func newCallerLimits() *callerLimits {
	return &callerLimits{rule: &policy.Rule{Name: reserved.CallerLimits}, compiled: cache.Cache[spec, *callerLimit]{Max: maxCached}}
}

func specOf(l *penstockv1.Limit) spec {
	return spec{l.GetName(), l.GetRate(), l.GetBurst(), l.GetAlgorithm(), l.GetInFlight(), l.GetTtlMs()}
}

// limitOf returns the compiled limit of a spec. The error names the field.
func (s *callerLimits) limitOf(wanted spec, field string) (*callerLimit, error) {
	return s.compiled.Get(wanted, func(wanted spec) (*callerLimit, error) { return s.compile(wanted, field) })
}

func (s *callerLimits) compile(spec spec, field string) (*callerLimit, error) {
	limit, err := spec.limit(field)
	if err != nil {
		return nil, err
	}
	plan, err := limit.Compile()
	if err != nil { // the rate and the burst contradict each other
		return nil, conflict(field, "%s", withoutKind(err))
	}
	a, l := plan.Algorithm(), plan.Limit()
	switch largest := callerlimits.MaxBurst(l.Count, l.Period); {
	case l.Period > callerlimits.MaxPeriod:
		return nil, invalid(field+".rate", "the period is %s; the longest of a caller limit is 366 days", wording.Period(l.Period))
	case plan.Capacity() > largest:
		return nil, conflict(field, "a burst of %d takes longer than 366 days to refill at this rate; the largest is %d", plan.Capacity(), largest)
	}
	if a.IsCollection() && plan.Capacity() > maxEntries {
		return nil, conflict(field, "it keeps an entry for each of %d units; at most %d are allowed, so choose another algorithm", plan.Capacity(), maxEntries)
	}
	return &callerLimit{plan: plan, spec: spec, limit: &policy.Limit{
		Rule: s.rule, Name: reserved.CallerLimits, FullName: plan.Name(), Algorithm: a.Title(), InHeaders: true, Key: policy.Global(),
		Guard: guard.Settings{OnFailure: guard.FailLocal}, Variants: []*penstock.Plan{plan},
	}}, nil
}

func (s spec) limit(field string) (limit penstock.Limit, err error) {
	switch {
	case s.Rate == "" && s.InFlight == 0:
		return limit, invalid(field+".rate", "it is missing; write one such as 100/s")
	case s.Rate != "" && s.InFlight != 0:
		return limit, invalid(field, "it has both rate and in_flight; write two limits")
	case len(s.Rate) > maxRateText:
		return limit, invalid(field+".rate", "it is longer than %d bytes; write one such as 100/s", maxRateText)
	case s.Burst < 0 || s.Burst > maxBurst:
		return limit, invalid(field+".burst", "write 1 to %d", int64(maxBurst))
	case s.InFlight < 0 || s.InFlight > maxEntries:
		return limit, invalid(field+".in_flight", "write 1 to %d", maxEntries)
	}
	if s.InFlight > 0 {
		limit, err = s.slots(field)
	} else {
		limit, err = s.rate(field)
	}
	if s.Name != "" {
		limit.Name = s.Name
	}
	if err == nil && !syntax.IsName(limit.Name) {
		err = invalid(field+".name", "write 1 to 64 of a-z, 0-9, '_', '.' and '-'")
	}
	limit.Group = reserved.CallerLimits
	return limit, err
}

func (s spec) slots(field string) (limit penstock.Limit, err error) {
	ttl := defaultSlotTTL
	if s.TTL != 0 {
		ttl = milliseconds(s.TTL)
	}
	switch {
	case s.Burst != 0 || s.Algorithm != "":
		return limit, invalid(field, "a limit with in_flight has no burst and no algorithm; remove them")
	case ttl < minSlotTTL || ttl > maxSlotTTL:
		return limit, invalid(field+".ttl_ms", "write %d to %d", minSlotTTL.Milliseconds(), maxSlotTTL.Milliseconds())
	}
	return penstock.InFlight(s.InFlight, ttl), nil
}

func (s spec) rate(field string) (limit penstock.Limit, err error) {
	if limit, err = penstock.ParseRate(s.Rate); err != nil {
		return limit, invalid(field+".rate", "%s", withoutKind(err))
	}
	switch {
	case s.TTL != 0:
		return limit, invalid(field+".ttl_ms", "only a limit with in_flight has a ttl_ms; remove it")
	case s.Burst > 0 && limit.Burst > 0 && s.Burst != limit.Burst:
		return limit, invalid(field+".burst", "the text of the rate states another burst; remove one of them")
	case s.Burst > 0:
		limit.Burst = s.Burst
	}
	var titles []string
	for _, a := range CallerLimitAlgorithms() {
		if a.NeedsHolder() {
			continue
		}
		if s.Algorithm == "" || s.Algorithm == a.Title() {
			limit.Algorithm = a
			return limit, nil
		}
		titles = append(titles, a.Title())
	}
	if s.Algorithm == "gcra" {
		title := algorithm.TokenBucket.Title()
		return limit, invalid(field+".algorithm", "gcra is another name of %s; write %s", title, title)
	}
	return limit, invalid(field+".algorithm", "it is unknown; write one of %s", strings.Join(titles, ", "))
}

// withoutKind returns the text of an error without the prefix of ErrInvalid. The prefix is not
// needed, because the code of the failure tells the same.
func withoutKind(err error) string {
	return strings.TrimPrefix(err.Error(), penstock.ErrInvalid.Error()+": ")
}

// milliseconds converts a number of milliseconds. Too large a number becomes the longest duration.
func milliseconds(n int64) time.Duration {
	const longest = math.MaxInt64 / int64(time.Millisecond)
	return time.Duration(min(n, longest)) * time.Millisecond
}

var errCallerLimits = failf(codes.PermissionDenied, "limits: this service does not accept limits of callers; name a rule, or start the service with allow-caller-limits")
