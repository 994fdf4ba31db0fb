package core

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/cmd/penstock/internal/console/activity"
	"github.com/penstock/penstock/cmd/penstock/internal/console/admin"
	"github.com/penstock/penstock/cmd/penstock/internal/serve/logthrottle"
	"github.com/penstock/penstock/guard"
	"github.com/penstock/penstock/internal/batches"
	"github.com/penstock/penstock/internal/regions"
	"github.com/penstock/penstock/policy"
	"github.com/penstock/penstock/redisstore"
)

// A regionExchange is this instance's part in the exchange with other regions.
type regionExchange struct {
	*regions.Instance // nil: there are no other regions
	core              *Core
	lines             map[string]*logthrottle.Line // by region

	mu     sync.Mutex
	failed map[string]bool // by region: its latest exchange failed
}

// regionLineInterval is the time between two log lines about a region that gives no answer.
const regionLineInterval = time.Minute

// openRegions prepares the exchange with the other regions, if there are some.
func (c *Core) openRegions() error {
	s := &c.Settings
	if len(s.RegionPeers) == 0 {
		return nil
	}
	r := &c.regions
	r.core, r.lines, r.failed = c, make(map[string]*logthrottle.Line), make(map[string]bool)
	servers := make(map[string]regions.Server)
	for _, name := range append(slices.Sorted(maps.Keys(s.RegionPeers)), s.Region) {
		r.lines[name] = &logthrottle.Line{Every: regionLineInterval}
		if name == s.Region {
			continue
		}
		store, err := redisstore.Open(s.RegionPeers[name], redisstore.Options{Prefix: s.Prefix, Secret: s.KeyHashSecret})
		if err != nil {
			return fmt.Errorf("region %s: %w", name, err)
		}
		c.onClose(func() { store.Close() })
		servers[name] = store
	}
	var err error
	r.Instance, err = regions.NewInstance(regions.Options{Self: s.Region, Every: s.RegionInterval, Exchanged: r.exchanged, ContactChanged: r.contactChanged}, c.scripts.Store, servers, s.KeyHashSecret)
	if err != nil {
		return err
	}
	c.onClose(r.Close)
	c.Metrics.AddRegions(r.Statuses)
	return nil
}

func (r *regionExchange) use(plans []*penstock.Plan) {
	if r.Instance != nil {
		r.Use(plans)
	}
}

// start starts the exchange. Before that, the limits must be known, because totals of other limits
// are not merged.
func (r *regionExchange) start() {
	if r.Instance != nil {
		r.Start()
	}
}

// exchanged logs that a region has given no answer, or gives answers again.
func (r *regionExchange) exchanged(region string, err error) {
	r.mu.Lock()
	wasFailed := r.failed[region]
	r.failed[region] = err != nil
	r.mu.Unlock()
	switch {
	case err == nil && wasFailed:
		r.core.Log.Info("the exchange with a region works again", "region", region)
	case err != nil:
		if skipped, isDue := r.lines[region].Due(); isDue {
			r.core.Log.Warn("the exchange with a region fails; without contact, each region has its share of the limits", withHint(err, "region", region, "err", err, "unlogged", skipped)...)
		}
	}
}

func (r *regionExchange) contactChanged(region string, isInContact bool) {
	if isInContact {
		r.core.Log.Info("there is contact with a region: it has its part of each limit", "region", region, activity.EventAttribute, string(activity.RegionWorks))
	} else {
		r.core.Log.Warn("there is no contact with a region: each region has its share of the limits; penstock doctor may say why", "region", region, activity.EventAttribute, string(activity.RegionFails))
	}
}

// check is the check of /readyz. An instance without contact to a region stays ready, because it
// decides with its region's share.
func (r *regionExchange) check(context.Context) (admin.State, string) {
	var lost []string
	for _, s := range r.Statuses() {
		if !s.IsInContact {
			lost = append(lost, s.Region)
		}
	}
	if len(lost) == 0 {
		return admin.OK, ""
	}
	return admin.OK, "no contact with " + strings.Join(lost, ", ") + ": each region has its share of the limits"
}

// checkRules rejects rules that the servers or the regions cannot enforce.
func (c *Core) checkRules(rules *policy.Rules) error {
	for _, plan := range rules.Plans() {
		if !regions.IsAcross(plan) {
			continue
		}
		if c.Settings.Region == "" {
			return fmt.Errorf("%w: limit %s.%s has across, and this instance belongs to no region; write --region and --region-peers, or --region alone if there is only one region",
				penstock.ErrInvalid, plan.Group(), plan.Name())
		}
		if c.regions.Instance != nil {
			if err := c.regions.Check(plan); err != nil {
				return err
			}
		}
	}
	return c.Check(rules)
}

// around wraps the store with its guards in one that enforces this region's share of limits across
// regions. The guards stay inside, so that their fallback enforces the share too.
func (r *regionExchange) around(store penstock.Store) penstock.Store {
	guarded, hasGuards := store.(*guard.Guarded)
	if r.Instance == nil || !hasGuards {
		return store
	}
	s := &regionStore{guarded: guarded, decide: r.Around(guarded)}
	s.listDecider = batches.NewListDecider(s, s.decide)
	return s
}

// A regionStore is a store with guards for one of several regions.
type regionStore struct {
	listDecider
	guarded *guard.Guarded
	decide  batches.Func
}

type listDecider = batches.ListDecider

func (s *regionStore) Decide(ctx context.Context, charges []penstock.Charge) (penstock.Decision, error) {
	return s.decide.Decide(ctx, charges)
}

// RegionSetup returns how the regions exchange, with the delay that was measured, if there is one.
func (c *Core) RegionSetup() regions.Setup {
	setup := c.Settings.Regions()
	if c.regions.Instance != nil {
		setup.Delay = cmp.Or(c.regions.Delay(), setup.Delay)
	}
	return setup
}

// Enforced returns what this region enforces of a limit now.
func (c *Core) Enforced(plan *penstock.Plan) *penstock.Plan {
	if c.regions.Instance == nil {
		return plan
	}
	return c.regions.Enforced(plan)
}

// RegionStatuses returns what is known of the other regions, if there are some.
func (c *Core) RegionStatuses() []regions.Status {
	if c.regions.Instance == nil {
		return nil
	}
	return c.regions.Statuses()
}

// Settings tells package admission that the store has guards.
func (s *regionStore) Settings(plan *penstock.Plan) guard.Settings { return s.guarded.Settings(plan) }
