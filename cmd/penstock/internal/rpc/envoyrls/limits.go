package envoyrls

import (
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/algorithm"
	"github.com/penstock/penstock/cmd/penstock/internal/rpc/envoyconfig"
	"github.com/penstock/penstock/guard"
	"github.com/penstock/penstock/internal/cache"
	"github.com/penstock/penstock/policy"
)

// A compiledConfig is a configuration with its compiled limits. Only its caches change.
type compiledConfig struct {
	config *envoyconfig.Config
	limits []*limit // by the Index of the limit in config

	mu           sync.RWMutex
	byMetricPath map[string]*policy.Limit // limits with detailed_metric or value_to_metric, as events name them

	overrides overrides
}

// overrides caches the limits that come with requests.
type overrides struct {
	limits cache.Cache[Override, *limit]
	events map[string]*policy.Limit // by domain: the one limit that events name for all overrides of the domain
}

// The bounds of the caches that requests fill, in entries. Compiling a limit again takes a few µs.
const (
	maxMetricPaths = 1000
	maxOverrides   = 1024
)

// A limit is a limit of the configuration, of a request or of a policy in compiled form.
type limit struct {
	config     *envoyconfig.Limit // nil for a limit of a request or of a policy
	eventLimit *policy.Limit      // the limit as events name it; nil if config is nil
	current    CurrentLimit
	period     time.Duration

	plan *penstock.Plan // nil if the limit allows nothing

	// probe reads the same counter with a capacity that is one unit larger. Usage up to the limit
	// leaves at least one unit in it. Usage above the limit leaves none.
	probe *penstock.Plan
}

// compile compiles a limit. An error wraps penstock.ErrInvalid.
func (o *Options) compile(current CurrentLimit) (*limit, error) {
	l := &limit{current: normalized(current)}
	l.period = l.current.period()
	if l.period > algorithm.MaxPeriod*time.Microsecond || l.period <= 0 {
		return nil, fmt.Errorf("%w: the period of %d × %v is out of range; the longest is 8 years", penstock.ErrInvalid, current.UnitMultiplier, current.Unit)
	}
	storeLimit := penstock.Limit{
		Name: counterName(l.current), Group: group, Algorithm: o.Algorithm, Count: int64(current.RequestsPerUnit), Period: l.period,
	}
	var err error
	if storeLimit.Count > 0 {
		if l.plan, err = storeLimit.Compile(); err != nil {
			return nil, err
		}
	}
	// The probe has one unit more. The capacity of a token bucket is its Burst, and that of a window
	// its Count. Options allow no leaky bucket.
	if o.Algorithm.RefillsSteadily() {
		storeLimit.Count, storeLimit.Burst = max(storeLimit.Count, 1), storeLimit.Count+1
	} else {
		storeLimit.Count++
	}
	if l.probe, err = storeLimit.Compile(); err != nil {
		return nil, err
	}
	return l, nil
}

// normalized prefers a larger unit to a multiplier, because not every Envoy knows multipliers.
func normalized(l CurrentLimit) CurrentLimit {
	if l.UnitMultiplier <= 1 {
		l.UnitMultiplier = 0
		return l
	}
	for u := envoyconfig.Second; u.IsValid(); u++ {
		if u.Period() == l.period() {
			l.Unit, l.UnitMultiplier = u, 0
		}
	}
	return l
}

// counterName returns the name of a limit's counter: the unit, and its multiplier. Windows of
// different lengths have different counters. Limits that differ only in their count share a
// counter.
func counterName(l CurrentLimit) string {
	name := strings.ToLower(l.Unit.String())
	if l.UnitMultiplier > 1 {
		name += "-" + strconv.FormatUint(uint64(l.UnitMultiplier), 10)
	}
	return name
}

func (e *Engine) compileConfig(c *envoyconfig.Config) (*compiledConfig, error) {
	all := &compiledConfig{config: c, byMetricPath: make(map[string]*policy.Limit)}
	all.overrides.limits.Max, all.overrides.events = maxOverrides, make(map[string]*policy.Limit)
	known := make(map[CurrentLimit]*limit) // many limits have the same numbers
	for _, configured := range c.Limits() {
		if configured.IsUnlimited {
			all.limits = append(all.limits, &limit{config: configured})
			continue
		}
		current := CurrentLimit{Name: configured.Name, RequestsPerUnit: configured.RequestsPerUnit, Unit: configured.Unit}
		compiled := known[current]
		if compiled == nil {
			var err error
			if compiled, err = e.options.compile(current); err != nil {
				return nil, fmt.Errorf("%s:%d: %w", configured.File, configured.Line, err)
			}
			known[current] = compiled
		}
		l := *compiled
		l.config = configured
		l.eventLimit = e.eventLimit(configured.Path, compiled.probe)
		all.limits = append(all.limits, &l)
	}
	for _, domain := range c.Domains() {
		all.overrides.events[domain] = e.overrideLimit(domain)
	}
	return all, nil
}

// eventLimit returns a limit of the configuration as events name it. The path is the name of the
// rule in events. The plan gives the names of the limit and of its algorithm.
func (e *Engine) eventLimit(path string, plan *penstock.Plan) *policy.Limit {
	return &policy.Limit{
		Rule: &policy.Rule{Name: path}, Name: plan.Name(), FullName: path, Algorithm: plan.Algorithm().Title(), InHeaders: true,
		Guard: guard.Settings{OnFailure: e.options.OnFailure.mode()},
	}
}

// overrideName names all overrides in events. The name does not contain the numbers of overrides,
// because clients choose them without bound.
const overrideName = "override"

// overrideLimit returns the limit that events name for all overrides of a domain.
func (e *Engine) overrideLimit(domain string) *policy.Limit {
	return &policy.Limit{
		Rule: &policy.Rule{Name: domain}, Name: overrideName, FullName: domain + "." + overrideName, Algorithm: e.options.Algorithm.Title(), InHeaders: true,
		Guard: guard.Settings{OnFailure: e.options.OnFailure.mode()},
	}
}

type EventName struct{ Rule, Limit, Algorithm string }

// EventNames returns the names of all limits of the configuration in force. Events can also have
// the names that Options.NewLimit is called with.
func (e *Engine) EventNames() (names []EventName) {
	compiled := e.compiled.Load()
	if compiled == nil {
		return nil
	}
	add := func(l *policy.Limit) { names = append(names, EventName{l.Rule.Name, l.Name, l.Algorithm}) }
	for _, l := range compiled.limits {
		if l.eventLimit != nil {
			add(l.eventLimit)
		}
	}
	for _, l := range compiled.overrides.events {
		add(l)
	}
	return names
}

// override returns the compiled form of a limit that comes with a request.
func (e *Engine) override(compiled *compiledConfig, o Override) (*limit, error) {
	return compiled.overrides.limits.Get(o, func(o Override) (*limit, error) {
		if !o.Unit.IsValid() {
			return nil, invalid("the limit of a descriptor has the unit %v; send SECOND, MINUTE, HOUR, DAY, WEEK, MONTH or YEAR", o.Unit)
		}
		l, err := e.options.compile(CurrentLimit{RequestsPerUnit: o.RequestsPerUnit, Unit: o.Unit, UnitMultiplier: o.UnitMultiplier})
		if err != nil {
			return nil, invalid("the limit of a descriptor cannot be enforced: %v", err)
		}
		return l, nil
	})
}

// eventLimitOf returns a matched limit as events name it. For detailed_metric and value_to_metric
// the name depends on the request. After maxMetricPaths such names, further requests get the name
// in the configuration. The buffer is for the name; eventLimitOf returns it, because it may grow.
func (e *Engine) eventLimitOf(c *compiledConfig, l *limit, m *envoyconfig.Match, domain string, entries []envoyconfig.Entry, buffer []byte) (*policy.Limit, []byte) {
	if !l.config.DetailedMetric && !l.config.ValueToMetric {
		return l.eventLimit, buffer
	}
	buffer = m.AppendMetricPath(buffer[:0], domain, entries)
	c.mu.RLock()
	named, count := c.byMetricPath[string(buffer)], len(c.byMetricPath)
	c.mu.RUnlock()
	if named != nil {
		return named, buffer
	}
	if count >= maxMetricPaths || len(buffer) > maxMetricPathLength {
		return l.eventLimit, buffer
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	path := string(buffer)
	if named = c.byMetricPath[path]; named != nil {
		return named, buffer
	}
	if len(c.byMetricPath) >= maxMetricPaths {
		return l.eventLimit, buffer
	}
	named = e.eventLimit(path, l.probe)
	e.options.NewLimit(EventName{named.Rule.Name, named.Name, named.Algorithm})
	c.byMetricPath[path] = named
	return named, buffer
}

// maxMetricPathLength is how long a name that depends on the request may be, in bytes.
const maxMetricPathLength = 512

// Plans returns the compiled limits of the configuration in force, in its order: one for each
// window length. A store loads its scripts for them.
func (e *Engine) Plans() (plans []*penstock.Plan) {
	compiled := e.compiled.Load()
	if compiled == nil {
		return nil
	}
	seen := make(map[string]bool) // by the name of the plan
	for _, l := range compiled.limits {
		if l.probe != nil && !seen[l.probe.Name()] {
			seen[l.probe.Name()] = true
			plans = append(plans, l.probe)
		}
	}
	return plans
}
