package main

import (
	"context"
	_ "embed"
	"fmt"
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
	coldKeys  = 100_000 // cold keys: all their charges are allowed
	coldCount = 1000    // units per day of a cold key: enough for all its charges
	hotKeys   = 64      // hot keys: all their charges are denied, since all their units are used
	hotCount  = 100     // units per day of a hot key
	window    = 4000    // decisions in a window
	rounds    = coldKeys / window
)

// A phase is the state of the keys that decisions use.
type phase int

const (
	fresh  phase = iota // no state: the key is charged for the first time
	known               // a state of earlier decisions, with room
	denied              // a state without room
)

// key returns the i-th cold key. With prefix and group, its name in Redis has 25 bytes.
func key(i int) string    { return fmt.Sprintf("client:%07d", i%coldKeys) }
func hotKey(i int) string { return fmt.Sprintf("hotkey:%07d", i%hotKeys) }

// firstCost returns the cost of the first charge of the i-th key: 1 to 100 units. So the keys have
// used different parts of their limits.
func firstCost(i int) int { return 1 + i*7919%100 }

// A subject is a limiter whose server time is measured.
type subject struct {
	name    string
	scripts []string
	add     func(l *load, i int, p phase) // appends the i-th decision

	// Time of the server per decision in µs, by phase, in each window.
	script  [3][]float64 // as Redis reports the time of scripts
	process [3][]float64 // CPU time of the whole process
}

// penstockSubject returns a subject that decides charges with these limits of count units.
func penstockSubject(name string, limits func(count int64) []penstock.Limit) (*subject, error) {
	r := &recorder{load: new(load), scripts: make(map[string]string)}
	store, err := redisstore.New(r, redisstore.Options{})
	if err != nil {
		return nil, err
	}
	var charges [2][]penstock.Charge // for cold keys and for hot keys
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
				c.Cost = int64(firstCost(i))
			}
			if c.Plan.Algorithm().NeedsHolder() {
				c.Holder = "holder-" + strconv.Itoa(i)
			}
		}
		_, _ = store.Decide(context.Background(), batch) // the recorder returns an error
	}}
	s.add(new(load), 0, known)
	for _, text := range r.scripts {
		s.scripts = append(s.scripts, text)
	}
	return s, nil
}

// scriptSubject returns a subject that calls a script. args returns the arguments for a limit of
// count units per day.
func scriptSubject(name, script, prefix string, args func(count, cost int) []string) *subject {
	digest := digestOf(script)
	return &subject{name: name, scripts: []string{script}, add: func(l *load, i int, p phase) {
		key, count, cost := key(i), coldCount, 1
		switch p {
		case fresh:
			cost = firstCost(i)
		case denied:
			key, count = hotKey(i), hotCount
		}
		l.add(append([]string{"EVALSHA", digest, "1", prefix + key}, args(count, cost)...)...)
	}}
}

// source returns the token bucket of source.lua.
func source() *subject {
	return scriptSubject("source's script", sourceLua, "rate_limit:", func(count, cost int) []string {
		rate, now := float64(count)/86_400_000, time.Now().UnixMilli()
		return []string{strconv.Itoa(count), fmt.Sprint(rate), strconv.FormatInt(now, 10), strconv.Itoa(cost), "172800"}
	})
}

// gcra returns the script of gcra.lua.
func gcra() *subject {
	return scriptSubject("redis_rate's shape", gcraLua, "rate:limits", func(count, cost int) []string {
		return []string{strconv.Itoa(count), strconv.Itoa(count), "86400", strconv.Itoa(cost)}
	})
}

// one returns a batch with a single limit.
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

// three returns a batch with three token buckets.
func three(count int64) []penstock.Limit {
	return []penstock.Limit{penstock.PerSecond(count), penstock.PerMinute(count), penstock.PerDay(count)}
}

func redisSubjects() ([]*subject, error) {
	subjects := []*subject{source(), gcra()}
	for _, c := range cases {
		s, err := penstockSubject(c.name, c.limits)
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

// A measuredServer is a Redis server, and the connection that sends it the load.
type measuredServer struct {
	server   *redistest.Server
	pipeline *pipeline
}

func newMeasuredServer() (*measuredServer, error) {
	server, err := redistest.Launch()
	if err != nil {
		return nil, err
	}
	w, err := dialPipeline(server.Socket)
	if err != nil {
		server.Close()
		return nil, err
	}
	return &measuredServer{server, w}, nil
}

func (r *measuredServer) close() {
	_ = r.pipeline.conn.Close()
	r.server.Close()
}

// prepare loads a subject's scripts, and uses up the limits of its hot keys.
func (r *measuredServer) prepare(s *subject) error {
	var l load
	for _, script := range s.scripts {
		l.add("SCRIPT", "LOAD", script)
	}
	for i := range hotKeys * hotCount {
		s.add(&l, i, denied)
	}
	return r.pipeline.run(&l)
}

// measure runs the n-th window of a subject.
func (r *measuredServer) measure(s *subject, n int, p phase) error {
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
	if err := r.pipeline.run(&l); err != nil {
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

// lowQuantile returns the 25th percentile. Other load of the machine affects it less than the
// median.
func lowQuantile(windows []float64) float64 { return percentile(windows, 25) }

func serverTimeSection(r *report) error {
	subjects, err := redisSubjects()
	if err != nil {
		return err
	}
	servers := make([]*measuredServer, len(subjects)) // each subject has a server with only its own keys
	for i, s := range subjects {
		if servers[i], err = newMeasuredServer(); err != nil {
			return err
		}
		defer servers[i].close()
		if err := servers[i].prepare(s); err != nil {
			return err
		}
	}
	// Every cold key is charged three times. The results for known keys are those of the third
	// charge, because the second charge may still change the format of the state.
	for _, phases := range [][]phase{{fresh}, {known}, {known, denied}} {
		for _, s := range subjects {
			s.script[known], s.process[known] = nil, nil
		}
		for n := range rounds {
			for i, s := range subjects {
				for _, p := range phases {
					if err := servers[i].measure(s, n, p); err != nil {
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
	for p, what := range []string{"allowed, a new key", "allowed, a key in use", "denied"} { // in the order of phase
		r.title("Server time, %s: µs of Redis per decision (25th percentile of %d windows of %d decisions)", what, rounds, window)
		r.row("", "script", "/ source", "/ redis_rate", "process", "/ source", "/ redis_rate")
		for _, s := range subjects {
			script, process := lowQuantile(s.script[p]), lowQuantile(s.process[p])
			r.row(s.name, number(script), number(script/lowQuantile(source.script[p])), number(script/lowQuantile(gcra.script[p])),
				number(process), number(process/lowQuantile(source.process[p])), number(process/lowQuantile(gcra.process[p])))
		}
	}
	bucket, three := subjects[2], subjects[len(subjects)-1]
	for _, g := range []struct {
		name  string
		a, b  *subject
		bound float64 // goal: largest ratio of a to b
	}{
		{"token bucket / source's script", bucket, source, 0.70},
		{"token bucket / redis_rate's shape", bucket, gcra, 0.75},
		{"three limits / one", three, bucket, 1.5},
	} {
		r.atMost("server-time: "+g.name+", script", lowQuantile(g.a.script[known])/lowQuantile(g.b.script[known]), g.bound)
		r.atMost("server-time: "+g.name+", process", lowQuantile(g.a.process[known])/lowQuantile(g.b.process[known]), g.bound)
	}
}

// number formats a number with two decimals.
func number(f float64) string { return strconv.FormatFloat(f, 'f', 2, 64) }
