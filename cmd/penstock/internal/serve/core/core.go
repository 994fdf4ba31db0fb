// Package core has what all servers of the service share: the current rules, the store with its
// guards, and the health and metrics of both.
package core

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/admission"
	"github.com/penstock/penstock/algorithm"
	"github.com/penstock/penstock/cmd/penstock/internal/console/activity"
	"github.com/penstock/penstock/cmd/penstock/internal/console/admin"
	"github.com/penstock/penstock/cmd/penstock/internal/console/denials"
	"github.com/penstock/penstock/cmd/penstock/internal/console/redisops"
	"github.com/penstock/penstock/cmd/penstock/internal/serve/logthrottle"
	"github.com/penstock/penstock/cmd/penstock/internal/serve/metrics"
	"github.com/penstock/penstock/cmd/penstock/internal/serve/settings"
	"github.com/penstock/penstock/cmd/penstock/internal/text/redact"
	"github.com/penstock/penstock/guard"
	"github.com/penstock/penstock/internal/background"
	"github.com/penstock/penstock/internal/labels"
	penstockotel "github.com/penstock/penstock/observe/otel"
	"github.com/penstock/penstock/policy"
)

// Options of Open. Settings, Metrics and Log must be set.
type Options struct {
	Settings settings.Settings
	Reload   <-chan os.Signal // each value reloads the policy file; nil: only a change of the file reloads it
	Metrics  *metrics.Metrics
	Log      *slog.Logger

	// Algorithms are those that policies may name besides the built-in ones.
	Algorithms []*algorithm.Algorithm

	// SettingsOutsidePolicy returns the guards' settings of a limit that is not in the policy.
	SettingsOutsidePolicy func(*penstock.Plan) guard.Settings

	// Version is the version of the program, which other instances show.
	Version string

	// Events are the events of this instance, for its summary. Default: there are none.
	Events *activity.Events

	// Denials passes samples of denied requests to its readers.
	Denials *denials.Recorder

	// Identities shows the keys in log lines.
	Identities *redact.Identities

	// Spans makes a span of each decision within a sampled trace. Default: there are none.
	Spans *penstockotel.Spans

	// Check rejects rules that the servers cannot enforce.
	Check func(*policy.Rules) error

	// WrapStore wraps the store with its guards, for tests. The Core uses the store that WrapStore
	// returns. Default: the store is not wrapped.
	WrapStore func(penstock.Store) penstock.Store
}

// A Core decides requests for all servers of one process. Open makes one, Close ends it.
type Core struct {
	Options
	Store      penstock.Store        // with its guards
	Reads      penstock.Store        // answers what operators read; see makeReads
	Controller *admission.Controller // admits the requests of all servers
	Activity   *activity.Recorder    // what happened in this instance

	guarded *guard.Guarded // the same value as Store; nil: the store is memory
	backend store          // the store without its guards
	scripts *scriptLoader  // nil: the store is memory
	regions regionExchange
	rules   *rules
	fleet   fleet
	markers markers

	health            health
	failOpen          failOpenReporter
	monitor           storeMonitor
	rejectedTokenLine logthrottle.Line

	mu    sync.Mutex
	plans map[string][]*penstock.Plan // by owner: "policy" or "envoy"

	background sync.WaitGroup
	cancel     context.CancelFunc // ends what runs in the background
	closers    []func()           // called in reverse order
}

// tokenLineInterval is the time between two log lines about rejected tokens.
const tokenLineInterval = 10 * time.Second

// Open connects to the store, loads the policy and puts the guards around the store. Background
// work ends when ctx ends or Close is called.
//
// An error wraps settings.ErrInvalid or penstock.ErrInvalid if the configuration cannot be used,
// and penstock.ErrUnavailable if the store is required and makes no decision.
func Open(ctx context.Context, o Options) (*Core, error) {
	c := newCore(o)
	ctx, c.cancel = context.WithCancel(ctx)
	if err := c.open(ctx); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

func newCore(o Options) *Core {
	c := &Core{
		Options:           o,
		plans:             make(map[string][]*penstock.Plan),
		Activity:          newActivity(o.Settings),
		health:            health{log: o.Log},
		failOpen:          failOpenReporter{log: o.Log},
		rejectedTokenLine: logthrottle.Line{Every: tokenLineInterval},
		markers:           markers{wanted: make(chan struct{}, 1)},
	}
	host, _ := os.Hostname() // "" if it is not known
	c.fleet = fleet{core: c, started: time.Now(), host: host}
	return c
}

func (c *Core) open(ctx context.Context) error {
	var err error
	if c.backend, err = openStore(c.Settings, c.Log); err != nil {
		return err
	}
	c.onClose(c.backend.close)
	c.onClose(c.background.Wait)
	if redis := c.backend.redis; redis != nil {
		c.scripts = &scriptLoader{Store: redis, log: c.Log, probe: c.probeNow}
		c.background.Go(func() { c.scripts.retry(ctx) })
	}
	if err := c.probeAtStart(ctx); err != nil {
		return err
	}
	c.background.Go(func() { c.testStoreEachSecond(ctx) })
	if redis := c.backend.redis; redis != nil {
		c.monitor = storeMonitor{
			log:     c.Log,
			servers: func(ctx context.Context) ([]redisops.Server, error) { return redisops.Servers(ctx, redis) },
			sample: func(ctx context.Context, keys int) (redisops.KeySample, error) {
				return redisops.SampleKeys(ctx, redis, keys)
			},
		}
		c.background.Go(func() { c.monitor.run(ctx) })
		c.Metrics.AddStore(func() metrics.StoreHealth {
			health := c.monitor.latestHealth()
			health.IsDegraded = c.health.currentReason() != ""
			return health
		})
	}
	start := time.Now()
	c.background.Go(func() {
		background.Every(ctx, time.Second, func() {
			c.Activity.Tick(time.Since(start), c.eachCounter)
			c.Denials.Tick()
		})
	})
	// Loaded is called before the file is watched: later, it would hide a reload that has failed. If
	// the policy cannot be loaded, the process ends, so an early Loaded does no harm.
	c.Metrics.Loaded(time.Now())
	if err := c.openRegions(); err != nil {
		return err
	}
	if c.rules, err = c.openRules(ctx); err != nil {
		return err
	}
	c.onClose(c.rules.close)
	if c.Store, err = c.guard(ctx); err != nil {
		return err
	}
	c.Store = c.regions.around(c.Store)
	c.regions.start()
	c.Reads = c.makeReads()
	if c.WrapStore != nil {
		c.Store = c.WrapStore(c.Store)
	}
	c.Controller, err = admission.New(c.Store, c, admission.Options{
		Settings: c.LimitSettings, Observe: c.Observe, TokenRejected: c.TokenRejected,
	})
	if err != nil {
		return err
	}
	c.Metrics.AddWaiting(c.Controller.Waiting)
	return nil
}

// LimitSettings returns how the guards treat a limit. The current rules may not have it.
func (c *Core) LimitSettings(plan *penstock.Plan) guard.Settings {
	if s := c.Rules().Settings(plan); s != (guard.Settings{}) {
		return s
	}
	return c.SettingsOutsidePolicy(plan)
}

// SetPlans replaces the limits of an owner: "policy" or "envoy". The limits of the other owner
// stay. SetPlans loads the scripts of all limits; if the store is down, they are loaded later.
func (c *Core) SetPlans(ctx context.Context, owner string, plans []*penstock.Plan) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.plans[owner] = plans
	var all []*penstock.Plan
	for _, owner := range slices.Sorted(maps.Keys(c.plans)) {
		all = append(all, c.plans[owner]...)
	}
	c.Activity.SetLimits(all)
	c.regions.use(all)
	if c.scripts != nil { // the store is Redis
		c.scripts.load(ctx, all)
	}
}

// Close ends the core and all of its background work.
func (c *Core) Close() {
	c.cancel()
	for i := len(c.closers) - 1; i >= 0; i-- {
		c.closers[i]()
	}
}

func (c *Core) onClose(closer func()) { c.closers = append(c.closers, closer) }

// Rules returns the current rules. They change with a reload.
func (c *Core) Rules() *policy.Rules { return c.rules.current.Rules() }

// Policy returns the description of the rules of the first load.
func (c *Core) Policy() Policy { return c.rules.first }

// probeAtStart checks whether the store makes decisions. Its timeout is longer than that of a
// decision, because connections must be made first.
func (c *Core) probeAtStart(ctx context.Context) error {
	const timeout = 3 * time.Second
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	err := c.backend.probe(ctx)
	if err == nil {
		return nil
	}
	if c.Settings.RequireStore {
		return fmt.Errorf("store %s (%s): %w", c.Settings.StoreName(), c.Settings.Source("store"), err)
	}
	c.health.storeDownAtStart(err)
	c.scripts.storeDownAtStart(err)
	c.Log.Warn("the store makes no decision; starting without it", activity.EventAttribute, activity.StoreFails, "store", c.Settings.StoreName(), "err", err)
	return nil
}

// probe checks whether the store makes decisions. It fails while scripts are not loaded yet,
// because no batch is sent to the store then.
func (c *Core) probe(ctx context.Context) error {
	if c.scripts != nil && c.scripts.isRejecting.Load() {
		return c.scripts.unavailable()
	}
	return c.probeNow(ctx)
}

// probeNow requests a decision from the store, with the usual timeout of a decision.
func (c *Core) probeNow(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, c.Settings.StoreTimeout)
	defer cancel()
	return c.backend.probe(ctx)
}

// testStoreEachSecond tests the store each second, until ctx ends. It also logs the total of the
// requests that passed unlimited, when they no longer do.
func (c *Core) testStoreEachSecond(ctx context.Context) {
	background.Every(ctx, time.Second, func() {
		c.selfTest(ctx)
		c.failOpen.reportEnd(c.health.isFailing.Load())
	})
}

// selfTest requests a decision from the store. If there are no requests, nothing else notices an
// outage or its end.
func (c *Core) selfTest(ctx context.Context) {
	begin := time.Now()
	err := c.probe(ctx)
	if err == nil {
		c.Metrics.StoreProbed(time.Since(begin))
	}
	if ctx.Err() == nil && c.health.recordProbe(err) {
		c.storeFailed(err)
	}
}

func (c *Core) Observe(e *admission.Event) {
	c.Metrics.ObserveRequest(e)
	c.Activity.Observe(e)
	c.Denials.Observe(e)
	c.noteDecision(e)
	if c.Spans != nil {
		c.Spans.ObserveRequest(e)
	}
	// The guards around Redis report failed calls themselves. A batch with an invalid charge is never
	// sent to Redis, so no guard reports it.
	isReportedByGuards := c.Settings.Store != "" && !errors.Is(e.Err, penstock.ErrInvalid)
	if e.Err != nil && e.Outcome != admission.Abandoned && !isReportedByGuards {
		c.noteFailure(e.Err)
	}
	if e.SkippedRule != "" {
		c.failOpen.reportPassed(e.SkippedRule)
	}
	if e.Source == penstock.FromStore && isEnforcedDecision(e) {
		c.health.recordSuccess()
		if e.Latency > 0 {
			c.Activity.Store.Observe(e.Latency)
		}
	}
}

// isEnforcedDecision reports whether the store or a guard made a decision that was enforced.
// Shadows are not enforced. New identities are counted by this process, not by the store.
func isEnforcedDecision(e *admission.Event) bool {
	switch e.Outcome {
	case admission.ShadowAllowed, admission.ShadowDenied, admission.DeniedNewIdentity:
		return false
	}
	hasNoDecision := e.Err != nil && e.Source == penstock.FromStore // as Event.Source defines
	return e.Rule != "" && !hasNoDecision
}

// TokenRejected counts a request whose token is rejected. It logs at most one such request per
// tokenLineInterval.
func (c *Core) TokenRejected(e *policy.TokenError) {
	c.Metrics.TokenRejected(e)
	c.rejectedTokenLine.Log(c.Log.Warn, "a token is rejected; its request is limited like one without a token", "reason", e.Reason, "err", e)
}

func (c *Core) Digest() string { return c.rules.digestInForce() }

type StoreState struct {
	Reason    string                 // why it fails; "" if it works
	Breakers  map[string]guard.State // by node
	Memory    *redisops.Memory       // of the fullest server; nil: not known
	Instances int                    // how many instances share the limits if the store fails
}

// StoreState returns the state of the store as this instance has seen it. It calls no store.
func (c *Core) StoreState() StoreState {
	s := StoreState{Reason: c.health.currentReason(), Instances: 1}
	if servers := c.monitor.latestHealth().Servers; servers != nil {
		worst := redisops.WorstMemory(servers)
		s.Memory = &worst
	}
	if c.guarded != nil {
		s.Breakers, s.Instances = c.guarded.Stats().Breakers, c.guarded.Instances()
	}
	return s
}

// Checks returns the checks of /readyz: the store and the policy, and the other regions if there
// are some.
func (c *Core) Checks() []admin.Check {
	checks := []admin.Check{
		{Name: "store", Run: func(ctx context.Context) (admin.State, string) {
			if reason := c.health.currentReason(); reason != "" {
				return admin.Degraded, "degraded: " + reason
			}
			if err := c.probe(ctx); err != nil {
				return admin.Degraded, "degraded: " + labels.Reason(err)
			}
			return admin.OK, ""
		}},
		{Name: "policy", Run: func(context.Context) (admin.State, string) {
			// With an invalid file the instance stays ready. A restarted one would have no rules at all.
			if isFileInvalid, since := c.rules.state(); isFileInvalid {
				return admin.OK, "reload failed: the rules of " + since.UTC().Format(time.RFC3339) + " stay in force"
			}
			return admin.OK, ""
		}},
	}
	if c.regions.Instance != nil {
		checks = append(checks, admin.Check{Name: "regions", Run: c.regions.check})
	}
	return checks
}
