package main

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/penstock/penstock/internal/redistest"
)

// A stage is gates on one Redis, under load, and what was seen of them each second.
type stage struct {
	strict bool // times are judged too
	gates  []*gate
	load   *load
	start  time.Time
	stop   chan struct{}
	seen   sync.WaitGroup

	mu      sync.Mutex
	lost    bool // Redis has just lost what it knew
	seconds []second
	totals  [len(policies)]int64 // admitted
	wrong   []string
	err     error
	ended   bool
}

// begin starts a stage. Its first second begins when all gates decide by Redis.
func begin(name, binary, store string, strict bool) (*stage, error) {
	s := &stage{strict: strict, stop: make(chan struct{})}
	for range gates {
		g, err := startGate(binary, store)
		if err != nil {
			s.stopGates()
			return nil, err
		}
		s.gates = append(s.gates, g)
	}
	s.load = startLoad(s.gates)
	if _, err := s.awaitRedis(time.Second); err != nil {
		s.load.end()
		s.stopGates()
		return nil, err
	}
	fmt.Printf("\n%s\n%s", name, heading)
	s.load.take()
	s.start = time.Now()
	s.seen.Go(s.watch)
	return s, nil
}

// pause lets the load go on for a while.
func (s *stage) pause(d time.Duration) { time.Sleep(d) }

// outage has Redis fail for a while, and waits until decisions are its own again after it is back.
func (s *stage) outage(what string, begin func(), last time.Duration, end func() error) {
	s.say("Redis is " + what)
	begin()
	time.Sleep(last)
	if err := end(); err != nil {
		s.fail(err)
		return
	}
	returned := time.Now()
	s.forgot()
	back, err := s.awaitRedis(0)
	if err != nil {
		s.fail(err)
		return
	}
	took := back.Sub(returned)
	s.say(fmt.Sprintf("Redis is back, and all decisions are its own after %v", took.Round(time.Millisecond)))
	if s.strict && took > soon {
		s.judged("when Redis was back, its decisions came after %v; it should be at most %v", took, soon)
	}
}

// flush has Redis forget all it knows, scripts too. That is no outage.
func (s *stage) flush(redis *redistest.Server) error {
	s.say("Redis is flushed, with its scripts")
	if _, err := redis.Do("SCRIPT", "FLUSH"); err != nil {
		return err
	}
	s.forgot()
	_, err := redis.Do("FLUSHALL")
	return err
}

// forgot notes that Redis' buckets may be full.
func (s *stage) forgot() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lost = true
}

// awaitRedis returns when all gates decide by Redis, and have done so for some time, and nothing
// without it. It tells since when.
func (s *stage) awaitRedis(some time.Duration) (since time.Time, err error) {
	before := make([]measures, len(s.gates))
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(25 * time.Millisecond) {
		settled := true
		for i, g := range s.gates {
			now, err := measure([]*gate{g})
			if err != nil {
				return since, err
			}
			new := now.since(before[i])
			settled = settled && before[i].sources != nil && new.sources["store"] > 0 && new.without() == 0
			before[i] = now
		}
		switch now := time.Now(); {
		case !settled:
			since = time.Time{}
		case since.IsZero():
			since = now
		}
		if settled && time.Since(since) >= some {
			return since, nil
		}
	}
	return since, errors.New("the gates do not find Redis")
}

// watch prints and judges each second.
func (s *stage) watch() {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	before, err := measure(s.gates)
	if err != nil {
		s.fail(err)
		return
	}
	for {
		select {
		case <-s.stop:
			return
		case <-tick.C:
		}
		now, err := measure(s.gates)
		if err != nil {
			s.fail(err)
			return
		}
		counts, to := s.load.take(), time.Now()
		s.judge(to, counts, now.since(before))
		before = now
	}
}

// judge prints and judges what was seen in a second.
func (s *stage) judge(to time.Time, counts [len(policies)]count, m measures) {
	s.mu.Lock()
	defer s.mu.Unlock()
	seen := second{store: m.sources["store"]+m.sources["deny_cache"] > 0, without: m.without() > 0, lost: s.lost}
	s.seconds, s.lost = append(s.seconds, seen), false
	if n := len(s.seconds); n > 1 { // gates and clients do not count in the same moment
		before := s.seconds[n-2]
		seen = second{seen.store || before.store, seen.without || before.without, seen.lost || before.lost}
	}
	at := fmt.Sprintf("second %.0f", to.Sub(s.start).Seconds())
	row := fmt.Sprintf("%6.0f s ", to.Sub(s.start).Seconds())
	for p, c := range counts {
		s.totals[p] += c.admitted
		most := seen.bound(policies[p], c)
		row += fmt.Sprintf("%6d ≤ %-6s", c.admitted, most)
		if c.admitted > most.units && !most.any {
			s.wrong = append(s.wrong, fmt.Sprintf("%s: %s let %d through; at most %v should pass", at, policies[p], c.admitted, most))
		}
		if c.failed > 0 || c.refused > 0 && policies[p] != "closed" {
			s.wrong = append(s.wrong, fmt.Sprintf("%s: %d requests of %s failed, and %d were refused", at, c.failed, policies[p], c.refused))
		}
	}
	p99 := m.p99()
	fmt.Printf("%s   %-58s %6.1f ms\n", row, m.shares(), p99*1000)
	if s.strict && p99 > (deadline+slack).Seconds() {
		s.wrong = append(s.wrong, fmt.Sprintf("%s: the p99 of decisions is %.1f ms; it should be at most %v", at, p99*1000, deadline+slack))
	}
}

// end ends the stage, and judges it as a whole.
func (s *stage) end() {
	if s.ended {
		return
	}
	s.ended = true
	close(s.stop)
	s.seen.Wait()
	s.load.end()
	passed := time.Since(s.start)
	for p, c := range s.load.take() {
		s.totals[p] += c.admitted
	}
	for p, policy := range policies {
		most := total(policy, s.seconds, passed)
		fmt.Printf("%-7s let %d through; at most %v should pass in %.1f s\n", policy, s.totals[p], most, passed.Seconds())
		if !most.any && s.totals[p] > most.units {
			s.judged("%s let %d through; at most %v should pass in %v", policy, s.totals[p], most, passed)
		}
	}
	s.stopGates()
	fmt.Printf("what the first gate logged as critical:\n%s", s.gates[0].log(func(l line) bool { return l.Critical }))
}

func (s *stage) stopGates() {
	for _, g := range s.gates {
		g.stop()
	}
}

func (s *stage) say(what string) {
	fmt.Printf("%6.1f s  — %s\n", time.Since(s.start).Seconds(), what)
}

func (s *stage) judged(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wrong = append(s.wrong, fmt.Sprintf(format, args...))
}

func (s *stage) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = errors.Join(s.err, err)
}
