// Package redisguard opens a store on Redis or Valkey with all guards around it: the usual store of
// a Go service.
package redisguard

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/guard"
	"github.com/penstock/penstock/internal/batches"
	"github.com/penstock/penstock/internal/regions"
	"github.com/penstock/penstock/redisstore"
)

// Options of a Store. The zero value suits production.
type Options struct {
	Redis redisstore.Options

	// Guard configures the guards. Guard.Server must be nil, because New sets it to the Redis store.
	Guard guard.Options

	// RegionPeers are the URLs of the Redis servers of other regions, by the names of the regions; see
	// Open. All regions together enforce limits of algorithm.Across and algorithm.ShareAcross. All
	// must have the same limits, Redis options (also the Secret) and RegionInterval. Load names the
	// limits: others are refused. The number of regions that ShareAcross got is replaced by that of
	// the peers and this region. Default: there is one region, so write ShareAcross(a, 1).
	RegionPeers map[string]string

	// Region is the name of this region among others.
	Region string

	// RegionInterval is how often each other region is asked, ± 10 %. A region without contact for
	// three intervals enforces only its part of a limit of algorithm.Across. Default: 1 s.
	RegionInterval time.Duration
}

// A Store is a penstock.Store on Redis that also decides while Redis gives no answer, as
// Options.Guard.OnFailure says. It suits httplimit.PerKey and httplimit.NewSimple as it is. For
// admission.New, set Options.Guard.Limits to the method Settings of the policy.Rules.
type Store struct {
	*guard.Guarded
	listDecider
	redis *redisstore.Store

	regions *regions.Instance                    // nil: there are no other regions
	peers   []*redisstore.Store                  // of the other regions
	loaded  atomic.Pointer[map[loadedLimit]bool] // the limits that Load has named; nil: none yet
	loading sync.Mutex
}

// A loadedLimit identifies a limit that Load has named.
type loadedLimit struct {
	id           [2]uint64
	count, burst int64
	period       time.Duration
}

func loadedLimitOf(plan *penstock.Plan) loadedLimit {
	limit := plan.Limit()
	return loadedLimit{plan.ID(), limit.Count, limit.Burst, limit.Period}
}

// A listDecider lets other packages of this module have lists of batches decided. The name is
// unexported, so that the documentation of Store does not show it.
type listDecider = batches.ListDecider

// Open makes a Store for the server or servers that a URL names; see redisstore.Open for its
// forms. It does not wait for a connection: until Redis answers, each limit is decided by its
// fallback. An error wraps penstock.ErrInvalid. Close ends the Store.
func Open(url string, o Options) (*Store, error) {
	client, err := redisstore.Dial(url)
	if err != nil {
		return nil, err
	}
	s, err := New(client, o)
	if err != nil {
		_ = client.Close()
	}
	return s, err
}

// New makes a Store of a client, such as one of package redisstore/goredis. After an error, the
// caller still owns the client.
func New(client redisstore.Client, o Options) (*Store, error) {
	if o.Guard.Server != nil {
		return nil, fmt.Errorf("%w: redisguard: Options.Guard has a Server; leave it nil, because New sets it to the Redis store", penstock.ErrInvalid)
	}
	redis, err := redisstore.New(client, o.Redis)
	if err != nil {
		return nil, err
	}
	o.Guard.Server = redis
	guarded, err := guard.Standard(redis, o.Guard)
	if err != nil {
		return nil, err
	}
	s := &Store{Guarded: guarded, redis: redis}
	decide := batches.Of(guarded)
	if len(o.RegionPeers) > 0 {
		if decide, err = s.join(o); err != nil {
			s.closePeers()
			guarded.Close()
			return nil, err
		}
		guarded.Store = decide
	}
	s.listDecider = batches.NewListDecider(s, decide)
	return s, nil
}

// join starts the exchange with the other regions. It returns what decides in this one.
func (s *Store) join(o Options) (batches.Func, error) {
	servers := make(map[string]regions.Server)
	for name, url := range o.RegionPeers {
		peer, err := redisstore.Open(url, o.Redis)
		if err != nil {
			return nil, fmt.Errorf("region %s: %w", name, err)
		}
		s.peers, servers[name] = append(s.peers, peer), peer
	}
	var err error
	if s.regions, err = regions.NewInstance(regions.Options{Self: o.Region, Every: o.RegionInterval}, s.redis, servers, o.Redis.Secret); err != nil {
		return nil, err
	}
	s.regions.Start()
	decide := s.regions.Around(s.Guarded)
	return func(ctx context.Context, list []*batches.Batch) {
		list = slices.DeleteFunc(slices.Clone(list), func(b *batches.Batch) bool {
			b.Err = s.checkLoaded(b.Charges)
			return b.Err != nil
		})
		if len(list) > 0 {
			decide(ctx, list)
		}
	}, nil
}

// checkLoaded refuses limits that Load has not named: the exchange would ignore their totals.
func (s *Store) checkLoaded(charges []penstock.Charge) error {
	loaded := s.loaded.Load()
	for i := range charges {
		plan := charges[i].Plan
		if !regions.IsAcross(plan) || loaded != nil && (*loaded)[loadedLimitOf(plan)] {
			continue
		}
		return fmt.Errorf("%w: limit %q is across regions, and Load has not named it; call Load with all limits before the first decision", penstock.ErrInvalid, plan.Name())
	}
	return nil
}

// Ping returns nil if Redis answers. A program that must not start without Redis calls Ping first.
func (s *Store) Ping(ctx context.Context) error { return s.redis.Ping(ctx) }

// Load loads the scripts of limits into Redis, so that the first decisions are as fast as later
// ones. See (*redisstore.Store).Load. With Options.RegionPeers, the latest call must name all
// limits that are across regions. Load returns an error that wraps penstock.ErrInvalid, and changes
// nothing, if the regions cannot enforce one of them. After another error, the limits are known,
// and only their scripts are not loaded yet.
func (s *Store) Load(ctx context.Context, plans ...*penstock.Plan) error {
	if s.regions != nil {
		loaded := make(map[loadedLimit]bool)
		for _, plan := range plans {
			if err := s.regions.Check(plan); err != nil {
				return err
			}
			loaded[loadedLimitOf(plan)] = true
		}
		s.loading.Lock()
		s.regions.Use(plans)
		s.loaded.Store(&loaded)
		s.loading.Unlock()
	}
	return s.redis.Load(ctx, plans...)
}

// Close returns leased units, ends all work in the background, and closes the connections that Open
// has made. It takes at most about three seconds, and a second more with other regions.
func (s *Store) Close() error {
	s.Guarded.Close()
	if s.regions != nil {
		s.regions.Close()
	}
	s.closePeers()
	return s.redis.Close()
}

func (s *Store) closePeers() {
	for _, peer := range s.peers {
		_ = peer.Close()
	}
}
