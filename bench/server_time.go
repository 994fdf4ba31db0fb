package main

import (
	"context"
	_ "embed"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/algorithm"
	"github.com/penstock/penstock/internal/redistest"
	"github.com/penstock/penstock/redisstore"
)

var (
	//go:embed source.lua
	sourceLua string
	//go:embed gcra.lua
	gcraLua string
)

const (
	coldKeys  = 100_000 // that the allowed charges are spread over
	coldCount = 1000    // units per key and day there: each visit finds the state that the last one left, and room for itself
	hotKeys   = 64      // that the denied charges hit
	hotCount  = 100     // units per key and day there, all used
	window    = 4000    // decisions in a measurement
	rounds    = coldKeys / window
)

// A phase is the state of the keys that decisions use.
type phase int

const (
	fresh  phase = iota // no state: the key is charged some units for the first time
	known               // state that the key's last decisions have left
	denied              // state without room
)

// key is the i-th key. Its whole name in Redis has 25 bytes.
func key(i int) string    { return fmt.Sprintf("client:%07d", i%coldKeys) }
func hotKey(i int) string { return fmt.Sprintf("hotkey:%07d", i%hotKeys) }

// first is how many units the i-th key is charged before the measurement, so that the keys have
// used different shares of their limits.
func first(i int) int { return 1 + i*7919%100 }

// A subject is a limiter whose server time is measured.
type subject struct {
	name    string
	scripts []string
	add     func(l *load, i int, p phase) // appends the i-th decision

	script, process [3][]float64 // µs of the server per decision, by phase, in each window
}

// ofPenstock decides charges of limits of count units.
func ofPenstock(name string, limits func(count int64) []penstock.Limit) (*subject, error) {
	r := &recorder{load: new(load), scripts: make(map[string]string)}
	store, err := redisstore.New(r, redisstore.Options{})
	if err != nil {
		return nil, err
	}
	var charges [2][]penstock.Charge
	for i, count := range []int64{coldCount, hotCount} {
		for _, limit := range limits(count) {
			if limit.Group == "" {
				limit.Group = "search"
			}
			plan, err := limit.Compile()
			if err != nil {
				return nil, err
			}
			charge := penstock.Charge{Plan: plan, Cost: 1}
			if limit.Algorithm == penstock.LeakyBucket {
				charge.Patience = 12 * time.Hour
			}
			charges[i] = append(charges[i], charge)
		}
	}
	s := &subject{name: name, add: func(l *load, i int, p phase) {
		r.load = l
		batch, key := charges[0], key(i)
		if p == denied {
			batch, key = charges[1], hotKey(i)
		}
		for j := range batch {
			c := &batch[j]
			c.Key, c.Cost = key, 1
			if p == fresh && !c.Plan.Algorithm().IsCollection() {
				c.Cost = int64(first(i))
			}
			if c.Plan.Algorithm().NeedsHolder() {
				c.Holder = "holder-" + strconv.Itoa(i)
			}
		}
		_, _ = store.Decide(context.Background(), batch) // the recorder has no answer
	}}
	s.add(new(load), 0, known)
	for _, text := range r.scripts {
		s.scripts = append(s.scripts, text)
	}
	return s, nil
}

// ofScript calls a script with the arguments that args has for a limit of count units per day.
func ofScript(name, script, prefix string, args func(count, cost int) []string) *subject {
	digest := digestOf(script)
	return &subject{name: name, scripts: []string{script}, add: func(l *load, i int, p phase) {
		key, count, cost := key(i), coldCount, 1
		switch p {
		case fresh:
			cost = first(i)
		case denied:
			key, count = hotKey(i), hotCount
		}
		l.add(append([]string{"EVALSHA", digest, "1", prefix + key}, args(count, cost)...)...)
	}}
}

func source() *subject {
	return ofScript("source's script", sourceLua, "rate_limit:", func(count, cost int) []string {
		rate, now := float64(count)/86_400_000, time.Now().UnixMilli()
		return []string{strconv.Itoa(count), fmt.Sprint(rate), strconv.FormatInt(now, 10), strconv.Itoa(cost), "172800"}
	})
}

func gcra() *subject {
	return ofScript("redis_rate's shape", gcraLua, "rate:limits", func(count, cost int) []string {
		return []string{strconv.Itoa(count), strconv.Itoa(count), "86400", strconv.Itoa(cost)}
	})
}

// one returns a batch of a single limit.
func one(a *algorithm.Algorithm) func(int64) []penstock.Limit {
	return func(count int64) []penstock.Limit {
		limit := penstock.Limit{Name: "day", Algorithm: a, Count: count, Period: 24 * time.Hour}
		if a == penstock.LeakyBucket || a == penstock.Concurrency {
			limit.Burst = count
		}
		return []penstock.Limit{limit}
	}
}

const threeName = "three token buckets"

// three returns a batch of token buckets.
func three(count int64) []penstock.Limit {
	return []penstock.Limit{penstock.PerSecond(count), penstock.PerMinute(count), penstock.PerDay(count)}
}

func redisSubjects() ([]*subject, error) {
	subjects := []*subject{source(), gcra()}
	for _, c := range cases {
		s, err := ofPenstock(c.name, c.limits)
		if err != nil {
			return nil, err
		}
		subjects = append(subjects, s)
	}
	return subjects, nil
}

var cases = []struct {
	name   string
	limits func(int64) []penstock.Limit
}{
	{"tokenbucket", one(penstock.TokenBucket)},
	{"leakybucket", one(penstock.LeakyBucket)},
	{"fixedwindow", one(penstock.FixedWindow)},
	{"fixedwindow, anchored", one(penstock.AnchoredWindow)},
	{"fixedwindow, calendar", one(penstock.CalendarWindow(algorithm.Week, time.UTC))},
	{"slidingwindow", one(penstock.SlidingWindow)},
	{"subwindow of 10", one(penstock.SubWindow(10))},
	{"subwindow of 60", one(penstock.SubWindow(60))},
	{"slidinglog", one(penstock.SlidingLog)},
	{"concurrency", one(penstock.Concurrency)},
	{threeName, three},
}

// A rig is a server with a connection that sends it the load.
type rig struct {
	server *redistest.Server
	wire   *wire
}

func newRig() (*rig, error) {
	server, err := redistest.Launch()
	if err != nil {
		return nil, err
	}
	w, err := dialWire(server.Socket)
	if err != nil {
		server.Close()
		return nil, err
	}
	return &rig{server, w}, nil
}

func (r *rig) close() {
	_ = r.wire.conn.Close()
	r.server.Close()
}

// prepare loads a subject's scripts, and uses up the limits of its hot keys.
func (r *rig) prepare(s *subject) error {
	var l load
	for _, script := range s.scripts {
		l.add("SCRIPT", "LOAD", script)
	}
	for i := range hotKeys * hotCount {
		s.add(&l, i, denied)
	}
	return r.wire.run(&l)
}

// measure runs the n-th window of a subject.
func (r *rig) measure(s *subject, n int, p phase) error {
	var l load
	for i := range window {
		s.add(&l, n*window+i, p)
	}
	_, scriptBefore, err := r.server.CommandStats("evalsha")
	if err != nil {
		return err
	}
	before, err := r.server.CPU()
	if err != nil {
		return err
	}
	if err := r.wire.run(&l); err != nil {
		return fmt.Errorf("%s: %w", s.name, err)
	}
	after, err := r.server.CPU()
	if err != nil {
		return err
	}
	_, scriptAfter, err := r.server.CommandStats("evalsha")
	if err != nil {
		return err
	}
	s.script[p] = append(s.script[p], float64(scriptAfter-scriptBefore)/window)
	s.process[p] = append(s.process[p], float64((after-before).Nanoseconds())/1000/window)
	return nil
}

// clean returns the quantile that a busy machine disturbs least.
func clean(windows []float64) float64 {
	sorted := slices.Sorted(slices.Values(windows))
	return sorted[len(sorted)/4]
}

func serverTimeSection(r *report) error {
	subjects, err := redisSubjects()
	if err != nil {
		return err
	}
	rigs := make([]*rig, len(subjects)) // a server each, so that it holds its own keys only
	for i, s := range subjects {
		if rigs[i], err = newRig(); err != nil {
			return err
		}
		defer rigs[i].close()
		if err := rigs[i].prepare(s); err != nil {
			return err
		}
	}
	// Every key is charged three times. Known keys are measured the third time, because the state's
	// format may still change the second time.
	for _, phases := range [][]phase{{fresh}, {known}, {known, denied}} {
		for _, s := range subjects {
			s.script[known], s.process[known] = nil, nil
		}
		for n := range rounds {
			for i, s := range subjects {
				for _, p := range phases {
					if err := rigs[i].measure(s, n, p); err != nil {
						return err
					}
				}
			}
		}
	}
	reportRedis(r, subjects)
	return nil
}

func reportRedis(r *report, subjects []*subject) {
	source, gcra := subjects[0], subjects[1]
	for p, what := range []string{"allowed, a new key", "allowed, a key in use", "denied"} {
		r.title("Server time, %s: µs of Redis per decision (25th percentile of %d windows of %d decisions)", what, rounds, window)
		r.row("", "script", "/ source", "/ redis_rate", "process", "/ source", "/ redis_rate")
		for _, s := range subjects {
			script, process := clean(s.script[p]), clean(s.process[p])
			r.row(s.name, number(script), number(script/clean(source.script[p])), number(script/clean(gcra.script[p])),
				number(process), number(process/clean(source.process[p])), number(process/clean(gcra.process[p])))
		}
	}
	bucket, three := subjects[2], subjects[len(subjects)-1]
	for _, g := range []struct {
		name  string
		a, b  *subject
		bound float64
	}{
		{"token bucket / source's script", bucket, source, 0.70},
		{"token bucket / redis_rate's shape", bucket, gcra, 0.75},
		{"three limits / one", three, bucket, 1.5},
	} {
		r.atMost("server-time: "+g.name+", script", clean(g.a.script[known])/clean(g.b.script[known]), g.bound)
		r.atMost("server-time: "+g.name+", process", clean(g.a.process[known])/clean(g.b.process[known]), g.bound)
	}
}

func number(f float64) string { return strconv.FormatFloat(f, 'f', 2, 64) }
