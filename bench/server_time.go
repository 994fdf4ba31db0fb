package main

import (
	"context"
	_ "embed"
	"fmt"
	"strconv"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/algorithm"
	"github.com/penstock/penstock/internal/luagen"
	"github.com/penstock/penstock/internal/testing/redistest"
	"github.com/penstock/penstock/redisstore"
)

var (
	//go:embed source.lua
	sourceLua string
	//go:embed gcra.lua
	gcraLua string
)

const (
	coldKeys  = 100_000 // number of cold keys, whose charges are all allowed
	coldCount = 1000    // units per day of a cold key: enough for all its charges
	hotKeys   = 64      // number of hot keys, whose charges are all denied: prepare has used all their units
	hotCount  = 100     // units per day of a hot key
	window    = 4000    // decisions in a window

	rounds = coldKeys / window // windows in which each cold key has one decision
)

// A keyState is the state of the keys that decisions use.
type keyState int

const (
	fresh  keyState = iota // no state: the key is charged for the first time
	known                  // a state of earlier decisions, with room
	denied                 // a state without room
)

// key returns the i-th cold key. With prefix and group, its name in Redis has 25 bytes.
func key(i int) string    { return fmt.Sprintf("client:%07d", i%coldKeys) }
func hotKey(i int) string { return fmt.Sprintf("hotkey:%07d", i%hotKeys) }

// firstCost returns the cost of the first charge of the i-th key: 1 to 100 units, in an order
// without a pattern. So the keys have used different parts of their limits.
func firstCost(i int) int { return 1 + i*7919%100 }

// A subject is a limiter whose server time is measured.
type subject struct {
	name    string
	scripts []string
	add     func(l *load, i int, s keyState) // appends the command of the i-th decision to l

	// Time of the server per decision in µs: by keyState, and then by window.
	script  [3][]float64 // as Redis reports the time of scripts
	process [3][]float64 // CPU time of the whole process
}

// penstockSubject returns a subject that makes decisions with a store. limits returns the limits of
// a key that has count units in each of them.
func penstockSubject(name string, limits func(count int64) []penstock.Limit) (*subject, error) {
	r := &recorder{load: new(load), scripts: make(map[string]string)}
	store, err := redisstore.New(r, redisstore.Options{})
	if err != nil {
		return nil, err
	}
	coldCharges, err := chargesFor(limits(coldCount))
	if err != nil {
		return nil, err
	}
	hotCharges, err := chargesFor(limits(hotCount))
	if err != nil {
		return nil, err
	}
	s := &subject{name: name, add: func(l *load, i int, state keyState) {
		r.load = l
		batch, key := coldCharges, key(i)
		if state == denied {
			batch, key = hotCharges, hotKey(i)
		}
		for j := range batch {
			c := &batch[j]
			c.Key, c.Cost = key, 1
			if state == fresh && !c.Plan.Algorithm().IsCollection() {
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

// chargesFor returns a batch with a charge for each limit. The charges have no key yet.
func chargesFor(limits []penstock.Limit) (batch []penstock.Charge, err error) {
	for _, limit := range limits {
		if limit.Group == "" {
			limit.Group = "search"
		}
		plan, err := limit.Compile()
		if err != nil {
			return nil, err
		}
		charge := penstock.Charge{Plan: plan, Cost: 1}
		if limit.Algorithm == penstock.LeakyBucket {
			charge.Patience = 12 * time.Hour // longer than a cold key ever has to wait
		}
		batch = append(batch, charge)
	}
	return batch, nil
}

// scriptSubject returns a subject that calls a script. Names of its keys in Redis begin with
// prefix. args returns the script's arguments for a limit of count units per day.
func scriptSubject(name, script, prefix string, args func(count, cost int) []string) *subject {
	digest := luagen.Digest(script)
	return &subject{name: name, scripts: []string{script}, add: func(l *load, i int, state keyState) {
		key, count, cost := key(i), coldCount, 1
		switch state {
		case fresh:
			cost = firstCost(i)
		case denied:
			key, count = hotKey(i), hotCount
		}
		l.add(append([]string{"EVALSHA", digest, "1", prefix + key}, args(count, cost)...)...)
	}}
}

// sourceSubject returns a subject that calls source.lua: a token bucket as in tutorials.
func sourceSubject() *subject {
	return scriptSubject("source's script", sourceLua, "rate_limit:", func(count, cost int) []string {
		const msPerDay, ttlSeconds = 86_400_000, "172800"
		rate, now := float64(count)/msPerDay, time.Now().UnixMilli()
		return []string{strconv.Itoa(count), fmt.Sprint(rate), strconv.FormatInt(now, 10), strconv.Itoa(cost), ttlSeconds}
	})
}

// gcraSubject returns a subject that calls gcra.lua: a script like that of redis_rate.
func gcraSubject() *subject {
	return scriptSubject("redis_rate's shape", gcraLua, "rate:limits", func(count, cost int) []string {
		burst, rate := strconv.Itoa(count), strconv.Itoa(count)
		const periodSeconds = "86400"
		return []string{burst, rate, periodSeconds, strconv.Itoa(cost)}
	})
}

// one returns a function that returns a single limit with the algorithm a and count units per day.
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

// three returns three token buckets, with count units per second, per minute and per day.
func three(count int64) []penstock.Limit {
	return []penstock.Limit{penstock.PerSecond(count), penstock.PerMinute(count), penstock.PerDay(count)}
}

// redisSubjects returns the subject of source.lua, that of gcra.lua, and those of cases.
func redisSubjects() ([]*subject, error) {
	subjects := []*subject{sourceSubject(), gcraSubject()}
	for _, c := range cases {
		s, err := penstockSubject(c.name, c.limits)
		if err != nil {
			return nil, err
		}
		subjects = append(subjects, s)
	}
	return subjects, nil
}

// cases are Penstock's subjects. The first is a token bucket, and the last is three of them.
var cases = []struct {
	name   string
	limits func(count int64) []penstock.Limit
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
	p, err := dialPipeline(server.Socket)
	if err != nil {
		server.Close()
		return nil, err
	}
	return &measuredServer{server, p}, nil
}

func (r *measuredServer) close() {
	_ = r.pipeline.conn.Close()
	r.server.Close()
}

// prepare loads a subject's scripts, and uses up the limits of its hot keys. No measured decision
// has a holder of these.
func (r *measuredServer) prepare(s *subject) error {
	var l load
	for _, script := range s.scripts {
		l.add("SCRIPT", "LOAD", script)
	}
	for i := range hotKeys * hotCount {
		s.add(&l, coldKeys+i, denied)
	}
	return r.pipeline.run(&l)
}

// measure makes the decisions of the n-th window of a subject, on keys with the given state, and
// stores their time in the subject.
func (r *measuredServer) measure(s *subject, n int, state keyState) error {
	var l load
	for i := range window {
		s.add(&l, n*window+i, state)
	}
	_, scriptBefore, err := r.server.CommandStats("evalsha")
	if err != nil {
		return err
	}
	cpuBefore, err := r.server.CPU()
	if err != nil {
		return err
	}
	if err := r.pipeline.run(&l); err != nil {
		return fmt.Errorf("%s: %w", s.name, err)
	}
	cpuAfter, err := r.server.CPU()
	if err != nil {
		return err
	}
	_, scriptAfter, err := r.server.CommandStats("evalsha")
	if err != nil {
		return err
	}
	scriptMicros, cpuMicros := float64(scriptAfter-scriptBefore), float64((cpuAfter-cpuBefore).Nanoseconds())/1000
	s.script[state] = append(s.script[state], scriptMicros/window)
	s.process[state] = append(s.process[state], cpuMicros/window)
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
	for _, states := range [][]keyState{{fresh}, {known}, {known, denied}} {
		for _, s := range subjects {
			s.script[known], s.process[known] = nil, nil
		}
		for n := range rounds {
			for i, s := range subjects {
				for _, state := range states {
					if err := servers[i].measure(s, n, state); err != nil {
						return err
					}
				}
			}
		}
	}
	reportServerTimes(r, subjects)
	return nil
}

// reportServerTimes prints the times of all subjects, which are in the order of redisSubjects.
func reportServerTimes(r *report, subjects []*subject) {
	source, gcra := subjects[0], subjects[1]
	for state, description := range []string{fresh: "allowed, a new key", known: "allowed, a key in use", denied: "denied"} {
		r.beginTable("Server time, %s: µs of Redis per decision (25th percentile of %d windows of %d decisions)", description, rounds, window)
		r.addRow("", "script", "/ source", "/ redis_rate", "process", "/ source", "/ redis_rate")
		for _, s := range subjects {
			script, process := lowQuantile(s.script[state]), lowQuantile(s.process[state])
			r.addRow(s.name, number(script), number(script/lowQuantile(source.script[state])), number(script/lowQuantile(gcra.script[state])),
				number(process), number(process/lowQuantile(source.process[state])), number(process/lowQuantile(gcra.process[state])))
		}
	}
	bucket, three := subjects[2], subjects[len(subjects)-1]
	for _, g := range []struct {
		name      string
		s         *subject
		reference *subject
		bound     float64 // goal: largest ratio of the time of s to that of reference
	}{
		{name: "token bucket / source's script", s: bucket, reference: source, bound: 0.66},
		{name: "token bucket / redis_rate's shape", s: bucket, reference: gcra, bound: 0.66},
		{name: "three limits / one", s: three, reference: bucket, bound: 1.5},
	} {
		r.atMost("server-time: "+g.name+", script", lowQuantile(g.s.script[known])/lowQuantile(g.reference.script[known]), g.bound)
		r.atMost("server-time: "+g.name+", process", lowQuantile(g.s.process[known])/lowQuantile(g.reference.process[known]), g.bound)
	}
}

// number formats a number with two decimals.
func number(f float64) string { return strconv.FormatFloat(f, 'f', 2, 64) }
