package main

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/penstock/penstock/internal/redistest"
)

// An experiment runs instances with one Redis under load, and records what happens in each second.
type experiment struct {
	shouldCheckTimes bool // times are checked too
	instances        []*instance
	load             *load
	start            time.Time
	stop             chan struct{}
	watching         sync.WaitGroup

	mu       sync.Mutex
	wasReset bool // Redis has just lost its data
	seconds  []interval
	record   record
	totals   [len(failureModes)]int64 // admitted
	faults   []string
	err      error
	hasEnded bool
}

// begin starts an experiment. Its first second begins when Redis decides for all instances.
func begin(name, binary, store string, shouldCheckTimes bool) (*experiment, error) {
	s := &experiment{shouldCheckTimes: shouldCheckTimes, stop: make(chan struct{})}
	for range instances {
		g, err := startInstance(binary, store)
		if err != nil {
			s.stopInstances()
			return nil, err
		}
		s.instances = append(s.instances, g)
	}
	s.load = startLoad(s.instances)
	if _, err := s.awaitRedis(time.Second); err != nil {
		s.load.end()
		s.stopInstances()
		return nil, err
	}
	fmt.Printf("\n%s\n%s", name, heading)
	s.load.take()
	s.start = time.Now()
	s.watching.Go(s.watch)
	return s, nil
}

// wait lets the load continue for a while.
func (s *experiment) wait(d time.Duration) { time.Sleep(d) }

// runOutage makes Redis fail for a while. Then it waits until Redis makes all decisions again.
func (s *experiment) runOutage(what string, begin func(), duration time.Duration, end func() error) {
	s.printEvent("Redis is " + what)
	begin()
	time.Sleep(duration)
	if err := end(); err != nil {
		s.fail(err)
		return
	}
	returned := time.Now()
	s.recordReset()
	back, err := s.awaitRedis(0)
	if err != nil {
		s.fail(err)
		return
	}
	took := back.Sub(returned)
	s.printEvent(fmt.Sprintf("Redis is up, and makes all decisions after %v", took.Round(time.Millisecond)))
	if s.shouldCheckTimes && took > recovery {
		s.addFault("Redis made all decisions again %v after its return; want at most %v", took, recovery)
	}
}

// flush deletes all data and scripts of Redis. This is not an outage.
func (s *experiment) flush(redis *redistest.Server) error {
	s.printEvent("Redis is flushed, with its scripts")
	if _, err := redis.Do("SCRIPT", "FLUSH"); err != nil {
		return err
	}
	s.recordReset()
	_, err := redis.Do("FLUSHALL")
	return err
}

// recordReset records that the buckets in Redis may be full: it lost its data, or was away long
// enough to refill them.
func (s *experiment) recordReset() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wasReset = true
}

// awaitRedis waits until Redis has made all decisions of all instances for a time of length stable.
// It returns the beginning of that time.
func (s *experiment) awaitRedis(stable time.Duration) (since time.Time, err error) {
	before := make([]counters, len(s.instances))
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(25 * time.Millisecond) {
		isSettled := true
		for i, g := range s.instances {
			now, err := readCounters([]*instance{g})
			if err != nil {
				return since, err
			}
			latest := now.since(before[i])
			isSettled = isSettled && before[i].sources != nil && latest.sources["store"] > 0 && latest.withoutRedis() == 0
			before[i] = now
		}
		switch now := time.Now(); {
		case !isSettled:
			since = time.Time{}
		case since.IsZero():
			since = now
		}
		if isSettled && time.Since(since) >= stable {
			return since, nil
		}
	}
	return since, errors.New("Redis did not make all decisions of all instances within 20 s")
}

// watch prints and checks each second.
func (s *experiment) watch() {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	before, err := readCounters(s.instances)
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
		now, err := readCounters(s.instances)
		if err != nil {
			s.fail(err)
			return
		}
		counts, to := s.load.take(), time.Now()
		s.check(to, counts, now.since(before))
		before = now
	}
}

// check prints and checks one second.
func (s *experiment) check(to time.Time, counts [len(failureModes)]count, m counters) {
	s.mu.Lock()
	defer s.mu.Unlock()
	seen := interval{hasStore: m.sources["store"]+m.sources["deny_cache"] > 0, hasFallback: m.withoutRedis() > 0, wasReset: s.wasReset}
	s.seconds, s.wasReset = append(s.seconds, seen), false
	if n := len(s.seconds); n > 1 { // instances and clients are not counted at the same moment
		before := s.seconds[n-2]
		seen = interval{seen.hasStore || before.hasStore, seen.hasFallback || before.hasFallback, seen.wasReset || before.wasReset}
	}
	second := recordedSecond{At: round(to.Sub(s.start))}
	at := fmt.Sprintf("second %.0f", to.Sub(s.start).Seconds())
	row := fmt.Sprintf("%6.0f s ", to.Sub(s.start).Seconds())
	for p, c := range counts {
		s.totals[p] += c.admitted
		bound := seen.boundOf(failureModes[p], c)
		second.add(c.admitted, bound)
		row += fmt.Sprintf("%6d ≤ %-6s", c.admitted, bound)
		if c.admitted > bound.units && !bound.isUnlimited {
			s.faults = append(s.faults, fmt.Sprintf("%s: %s let %d through; at most %v may pass", at, failureModes[p], c.admitted, bound))
		}
		if c.failed > 0 || c.refused > 0 && failureModes[p] != "closed" {
			s.faults = append(s.faults, fmt.Sprintf("%s: %d requests of %s failed, and %d were refused", at, c.failed, failureModes[p], c.refused))
		}
	}
	s.record.Seconds = append(s.record.Seconds, second)
	p99 := m.p99()
	fmt.Printf("%s   %-58s %6.1f ms\n", row, m.sourceCounts(), p99*1000)
	if s.shouldCheckTimes && p99 > (deadline+slack).Seconds() {
		s.faults = append(s.faults, fmt.Sprintf("%s: the p99 of decisions is %.1f ms; want at most %v", at, p99*1000, deadline+slack))
	}
}

// end ends the experiment, and checks the totals.
func (s *experiment) end() {
	if s.hasEnded {
		return
	}
	s.hasEnded = true
	close(s.stop)
	s.watching.Wait()
	s.load.end()
	passed := time.Since(s.start)
	for p, c := range s.load.take() {
		s.totals[p] += c.admitted
	}
	for p, policy := range failureModes {
		bound := totalBound(policy, s.seconds, passed)
		fmt.Printf("%-7s let %d through; at most %v may pass in %.1f s\n", policy, s.totals[p], bound, passed.Seconds())
		if !bound.isUnlimited && s.totals[p] > bound.units {
			s.addFault("%s let %d through; at most %v may pass in %v", policy, s.totals[p], bound, passed)
		}
	}
	s.stopInstances()
	fmt.Printf("critical lines in the log of the first instance:\n%s", s.instances[0].log(func(l line) bool { return l.Critical }))
}

func (s *experiment) stopInstances() {
	for _, g := range s.instances {
		g.stop()
	}
}

func (s *experiment) printEvent(what string) {
	at := time.Since(s.start)
	s.mu.Lock()
	s.record.Events = append(s.record.Events, recordedEvent{round(at), what})
	s.mu.Unlock()
	fmt.Printf("%6.1f s  — %s\n", at.Seconds(), what)
}

func (s *experiment) addFault(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = append(s.faults, fmt.Sprintf(format, args...))
}

func (s *experiment) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = errors.Join(s.err, err)
}
