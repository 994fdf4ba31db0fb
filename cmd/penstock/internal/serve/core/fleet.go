package core

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/cmd/penstock/internal/console/activity"
	"github.com/penstock/penstock/cmd/penstock/internal/console/redisops"
	"github.com/penstock/penstock/cmd/penstock/internal/serve/metrics"
	"github.com/penstock/penstock/cmd/penstock/internal/serve/settings"
	"github.com/penstock/penstock/guard"
	"github.com/penstock/penstock/internal/labels"
	"github.com/penstock/penstock/internal/rediskeys"
	"github.com/penstock/penstock/redisstore"
)

const (
	summaryEvery   = 3 * time.Second  // time between two writes of one instance
	summaryLife    = 15 * time.Second // how long the store keeps a summary, so that some writes may fail
	summaryTimeout = time.Second      // timeout of one read or write
	fleetMaxAge    = 2 * time.Second  // readers within this time share one read of the store
)

// A fleet writes the summary of this instance to the store, and reads the summaries of all
// instances that share the store.
type fleet struct {
	core     *Core
	store    *redisstore.Store             // nil: the store is memory
	breakers func() map[string]guard.State // by node
	name     atomic.Pointer[string]        // the registered name of this instance; nil: not yet registered
	started  time.Time
	host     string

	otherVersion, corrupt, otherSecret atomic.Int64 // ignored summaries, by cause

	mu     sync.Mutex // held during reads of the store
	latest *activity.Fleet
}

// errNoStore is why an instance without a shared store shows only itself.
var errNoStore = errors.New("the counters are in this process, so there are no other instances")

func (f *fleet) self() *activity.Summary {
	c := f.core
	s := c.Activity.Summary()
	s.Version = c.Version
	s.Host, s.PID = f.host, os.Getpid()
	s.Started, s.Written = f.started, time.Now()
	s.Events = c.Events.Latest()
	s.Health = c.health.currentReason()
	s.IsChargedTwice = time.Since(time.Unix(c.markers.lastChargedTwice.Load(), 0)) < chargedTwiceLife // see MarkerHeader
	if c.rules != nil {
		s.Digest = c.rules.digestInForce()
	}
	return s
}

// isStoreUnusable reports whether the store must not be called: a breaker is not closed, or the
// store was down at the start and has not received the scripts of the policy since.
func (f *fleet) isStoreUnusable() bool {
	if f.core.scripts.isRejecting.Load() {
		return true
	}
	for _, state := range f.breakers() {
		if state != guard.StateClosed {
			return true
		}
	}
	return false
}

// write writes the summary of this instance to the store. A failure is only logged, and at debug
// level: the next write may succeed, and an outage has log lines of its own.
func (f *fleet) write(ctx context.Context) {
	name := f.name.Load()
	if name == nil || f.isStoreUnusable() {
		return
	}
	text, err := f.self().Text()
	if err == nil {
		ctx, cancel := context.WithTimeout(ctx, summaryTimeout)
		defer cancel()
		err = redisops.WriteSummary(ctx, f.store, *name, text, summaryLife)
	}
	if err != nil {
		f.core.Log.Debug("the summary of this instance is not written", withHint(err, "err", err)...)
	}
}

// Fleet returns the summaries of all instances. It reads the store at most once per fleetMaxAge,
// and not while a breaker is open.
func (c *Core) Fleet(ctx context.Context) *activity.Fleet {
	f := &c.fleet
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.latest == nil || time.Since(f.latest.At) >= fleetMaxAge {
		f.latest = f.readLocked(ctx)
	}
	return f.latest
}

// readLocked returns the fleet as this instance and the store know it. The caller holds mu.
func (f *fleet) readLocked(ctx context.Context) *activity.Fleet {
	self := activity.Instance{IsSelf: true, Summary: f.self()}
	if name := f.name.Load(); name != nil {
		self.Name = *name
	}
	found := &activity.Fleet{At: time.Now(), Registered: 1}
	others, registered, err := f.others(ctx, self.Name)
	switch {
	case err == nil:
		found.Registered = max(registered, 1)
	case errors.Is(err, errNoStore):
		found.Problem = err.Error()
	default:
		found.Problem = "the store gives no answer: " + labels.Reason(err)
	}
	found.Instances = append([]activity.Instance{self}, others...)
	found.Ignored = activity.Ignored{OtherVersion: f.otherVersion.Load(), Corrupt: f.corrupt.Load(), OtherSecret: f.otherSecret.Load()}
	for window := range activity.Windows() {
		var parts []*activity.Activity
		for _, instance := range found.Instances {
			parts = append(parts, instance.Activity[window])
		}
		found.Activity = append(found.Activity, activity.MergeActivities(maxOffenders, parts...))
	}
	return found
}

// maxOffenders is how many keys of each kind a fleet shows at most.
const maxOffenders = 100

// others returns the summaries of all instances but self, and how many instances are registered.
func (f *fleet) others(ctx context.Context, self string) (all []activity.Instance, registered int, err error) {
	if f.store == nil {
		return nil, 1, errNoStore
	}
	if f.isStoreUnusable() {
		return nil, 0, penstock.NewStoreError(penstock.ReasonBreakerOpen, errors.New("a breaker is not closed"))
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), summaryTimeout) // other readers wait for the result too
	defer cancel()
	written, registered, err := redisops.ReadSummaries(ctx, f.store)
	if err != nil {
		return nil, 0, err
	}
	seed := activity.SeedID(seedOf(f.core.Settings))
	for _, w := range written {
		if w.Instance == self {
			continue
		}
		s, err := activity.ParseSummary(w.Text)
		switch {
		case errors.Is(err, activity.ErrFormat):
			f.otherVersion.Add(1)
			continue
		case err != nil:
			f.corrupt.Add(1)
			continue
		case s.Seed != seed: // it hashes with another secret, so its counts and hashed keys cannot be merged with ours
			f.otherSecret.Add(1)
			continue
		}
		all = append(all, activity.Instance{Name: w.Instance, Summary: s})
	}
	slices.SortFunc(all, func(a, b activity.Instance) int {
		return cmp.Or(a.Started.Compare(b.Started), cmp.Compare(a.Name, b.Name))
	})
	return all, registered, nil
}

// newActivity makes the recorder of what happens in this instance. It keeps keys in the form that
// the store has: as hashes if there is a secret.
func newActivity(s settings.Settings) *activity.Recorder {
	o := activity.Options{Seed: seedOf(s), NearPercent: int(s.NearLimit), MeasuresNeeds: s.AdminListen != ""}
	if s.ShownIdentities != "off" {
		// Each function that Names returns serves one goroutine.
		o.Names = func() func([]byte, string) []byte { return rediskeys.NewNames(s.KeyHashSecret).Append }
	}
	return activity.New(o)
}

// seedOf returns a number that is the same for all instances with the same secrets. Clients must
// not know it: they could choose identities that the estimated number of different keys misses.
func seedOf(s settings.Settings) uint64 {
	hash := sha256.New()
	for _, part := range [][]byte{[]byte("penstock activity"), []byte(s.Prefix), s.KeyHashSecret, s.CallerToken} {
		hash.Write(binary.BigEndian.AppendUint32(nil, uint32(len(part))))
		hash.Write(part)
	}
	return binary.BigEndian.Uint64(hash.Sum(nil))
}

func (c *Core) eachCounter(add func(activity.Series, uint64)) {
	c.Metrics.Each(func(rule metrics.Rule, name string, n uint64) {
		if n > 0 {
			add(activity.Series{Rule: rule.Name, Limit: rule.Limit, Name: name}, n)
		}
	})
}
