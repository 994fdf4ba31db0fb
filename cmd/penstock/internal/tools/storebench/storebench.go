// Package storebench measures how fast a store makes decisions, and what they cost its servers.
package storebench

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/cmd/penstock/internal/console/redisops"
	"github.com/penstock/penstock/internal/batches"
	"github.com/penstock/penstock/redisstore"
)

// Options of Run. All must be set.
type Options struct {
	URL      string
	Callers  []int         // that make decisions at the same time, for each step
	Duration time.Duration // of a step
	MaxRate  float64       // decisions per second at most
}

const (
	pings        = 100
	idleTime     = 300 * time.Millisecond // in which the load of others is measured
	keys         = 1000
	callTimeout  = 3 * time.Second
	cleanTimeout = 10 * time.Second
)

// probe is the limit of all decisions. It never denies, and its state expires after some seconds.
var probe = penstock.PerSecond(1_000_000).WithName("bench").MustCompile()

// A Report has what was measured. Times are in microseconds.
type Report struct {
	Store   string  `json:"store"` // without its password
	Servers int     `json:"servers"`
	Prefix  string  `json:"prefix"` // of all keys, which were deleted
	Others  float64 `json:"others_cores"`
	PingP50 float64 `json:"ping_p50_us"`
	PingP99 float64 `json:"ping_p99_us"`

	// ScriptMicros is that of the fastest step, because a server that is often idle needs longer for
	// each script. penstock size computes with it.
	ScriptMicros float64 `json:"script_us"`
	Steps        []Step  `json:"steps"`
}

// A Step has the decisions of one number of callers.
type Step struct {
	Callers   int     `json:"callers"`
	Decisions int64   `json:"decisions"`
	Rate      float64 `json:"decisions_per_second"`
	IsBounded bool    `json:"is_bounded"` // MaxRate was reached, so the store may be faster
	P50       float64 `json:"p50_us"`
	P99       float64 `json:"p99_us"`

	// The time of the server's processor for each decision, in scripts and in all. Decisions that are
	// made together share a script. The time of other programs is subtracted.
	ScriptMicros float64 `json:"script_us"`
	CPUMicros    float64 `json:"cpu_us"`
}

// Run measures. It deletes its keys, also if ctx ends or a decision fails.
func Run(ctx context.Context, o Options) (r *Report, err error) {
	prefix := "psbench-" + strings.ToLower(rand.Text()[:8])
	store, err := redisstore.Open(o.URL, redisstore.Options{Prefix: prefix})
	if err != nil {
		return nil, err
	}
	defer store.Close()
	r = &Report{Prefix: prefix}
	begin, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if err := store.Ping(begin); err != nil {
		return nil, err
	}
	if err := r.measureIdle(ctx, store); err != nil {
		return nil, err
	}
	defer func() {
		if cleanErr := clean(ctx, store); cleanErr != nil {
			err = errors.Join(err, fmt.Errorf("the keys of the prefix %s were not deleted, and expire within a minute: %w", prefix, cleanErr))
		}
	}()
	if _, err := run(ctx, store, 1, 50*time.Millisecond, o.MaxRate); err != nil { // loads the script
		return nil, err
	}
	for _, callers := range o.Callers {
		s, err := r.measure(ctx, store, callers, o)
		if err != nil {
			return nil, err
		}
		r.Steps = append(r.Steps, *s)
	}
	r.ScriptMicros = slices.MaxFunc(r.Steps, func(a, b Step) int { return cmp.Compare(a.Rate, b.Rate) }).ScriptMicros
	return r, nil
}

// A usage is what the servers have used since their start.
type usage struct {
	at          time.Time
	cpu, script time.Duration
}

func readUsage(ctx context.Context, store *redisstore.Store) (u usage, servers int, err error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	all, err := redisops.Servers(ctx, store)
	for _, s := range all {
		u.cpu, u.script = u.cpu+s.CPU, u.script+s.ScriptTime
	}
	u.at = time.Now()
	return u, len(all), err
}

// measureIdle measures round trips, and what other programs use.
func (r *Report) measureIdle(ctx context.Context, store *redisstore.Store) error {
	before, servers, err := readUsage(ctx, store)
	if err != nil {
		return err
	}
	r.Servers = servers
	select {
	case <-time.After(idleTime):
	case <-ctx.Done():
		return ctx.Err()
	}
	after, _, err := readUsage(ctx, store)
	if err != nil {
		return err
	}
	r.Others = (after.cpu - before.cpu).Seconds() / after.at.Sub(before.at).Seconds()
	h := newHistogram()
	for range pings {
		start := time.Now()
		if err := store.Ping(ctx); err != nil {
			return err
		}
		_ = h.RecordValue(time.Since(start).Nanoseconds())
	}
	r.PingP50, r.PingP99 = micros(h, 50), micros(h, 99)
	return nil
}

func newHistogram() *hdrhistogram.Histogram {
	return hdrhistogram.New(1, 2*callTimeout.Nanoseconds(), 3)
}

func micros(h *hdrhistogram.Histogram, percent float64) float64 {
	return float64(h.ValueAtPercentile(percent)) / 1000
}

func (r *Report) measure(ctx context.Context, store *redisstore.Store, callers int, o Options) (*Step, error) {
	before, _, err := readUsage(ctx, store)
	if err != nil {
		return nil, err
	}
	start := time.Now()
	h, err := run(ctx, store, callers, o.Duration, o.MaxRate)
	if err != nil {
		return nil, err
	}
	took := time.Since(start)
	after, _, err := readUsage(ctx, store)
	if err != nil {
		return nil, err
	}
	n := float64(h.TotalCount())
	s := &Step{Callers: callers, Decisions: h.TotalCount(), Rate: n / took.Seconds(), P50: micros(h, 50), P99: micros(h, 99)}
	s.IsBounded = s.Rate > 0.95*o.MaxRate
	s.ScriptMicros = (after.script - before.script).Seconds() * 1e6 / n
	s.CPUMicros = max((after.cpu-before.cpu).Seconds()-r.Others*after.at.Sub(before.at).Seconds(), 0) * 1e6 / n
	return s, nil
}

// run makes decisions for a time, by several callers. It returns how many ns each took.
func run(ctx context.Context, store *redisstore.Store, callers int, length time.Duration, maxRate float64) (*hdrhistogram.Histogram, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	start := time.Now()
	var sent atomic.Int64
	all := newHistogram()
	var mu sync.Mutex // guards all
	var working sync.WaitGroup
	for range callers {
		working.Go(func() {
			for ctx.Err() == nil {
				n := sent.Add(1) - 1
				due := start.Add(time.Duration(float64(n) / maxRate * float64(time.Second)))
				time.Sleep(time.Until(due))
				if time.Since(start) >= length {
					break
				}
				begin := time.Now()
				if err := decide(ctx, store, n); err != nil {
					cancel(err)
					break
				}
				took := time.Since(begin)
				mu.Lock()
				_ = all.RecordValue(took.Nanoseconds())
				mu.Unlock()
			}
		})
	}
	working.Wait()
	if all.TotalCount() == 0 && ctx.Err() == nil {
		return nil, errors.New("no decision was made in the time of a step; write a longer --duration or a larger --max-rate")
	}
	return all, context.Cause(ctx)
}

// charge is a charge of the nth decision.
func charge(n int64, mode penstock.Mode) []penstock.Charge {
	return []penstock.Charge{{Key: fmt.Sprintf("bench-%d", n%keys), Plan: probe, Cost: 1, Mode: mode}}
}

func decide(ctx context.Context, store *redisstore.Store, n int64) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	_, err := store.Decide(ctx, charge(n, penstock.Spend))
	return err
}

// clean deletes all keys.
func clean(ctx context.Context, store *redisstore.Store) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanTimeout)
	defer cancel()
	var resets []*batches.Batch
	for n := range int64(keys) {
		resets = append(resets, &batches.Batch{Charges: charge(n, penstock.Reset)})
	}
	batches.Of(store)(ctx, resets)
	for _, b := range resets {
		if b.Err != nil {
			return b.Err // one says enough
		}
	}
	return nil
}
