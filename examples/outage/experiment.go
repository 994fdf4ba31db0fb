package main

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/penstock/penstock/internal/testing/redistest"
)

// An experiment runs instances with one Redis under load, and records what happens in each second.
type experiment struct {
	shouldCheckTimes bool // of decisions, and of the return of Redis
	instances        []*instance
	load             *load
	start            time.Time
	stop             chan struct{}
	watcher          sync.WaitGroup // the goroutine that runs watch

	mu       sync.Mutex
	wasReset bool // since the last second; see interval.wasReset
	seconds  []interval
	record   record
	totals   [len(fallbacks)]int64 // admitted requests by the fallback of their limit
	failures []string
	err      error
	hasEnded bool
}

// begin starts an experiment. The first second begins when Redis decides for all instances.
func begin(name, binary, store string, shouldCheckTimes bool) (*experiment, error) {
	e := &experiment{shouldCheckTimes: shouldCheckTimes, stop: make(chan struct{})}
	for range instances {
		one, err := startInstance(binary, store)
		if err != nil {
			e.stopInstances()
			return nil, err
		}
		e.instances = append(e.instances, one)
	}
	e.load = startLoad(e.instances)
	if _, err := e.awaitRedis(time.Second); err != nil {
		e.load.end()
		e.stopInstances()
		return nil, err
	}
	fmt.Printf("\n%s\n%s", name, heading)
	e.load.take()
	e.start = time.Now()
	e.watcher.Go(e.watch)
	return e, nil
}

// runOutage makes Redis fail for a while. Then runOutage waits until Redis makes all decisions
// again.
func (e *experiment) runOutage(what string, begin func(), duration time.Duration, end func() error) {
	e.printEvent("Redis is " + what)
	begin()
	time.Sleep(duration)
	if err := end(); err != nil {
		e.fail(err)
		return
	}
	returned := time.Now()
	e.recordReset()
	back, err := e.awaitRedis(0)
	if err != nil {
		e.fail(err)
		return
	}
	took := back.Sub(returned)
	e.printEvent(fmt.Sprintf("Redis is up, and makes all decisions after %v", took.Round(time.Millisecond)))
	if e.shouldCheckTimes && took > recovery {
		e.addFailure("Redis made all decisions again %v after its return; want at most %v", took, recovery)
	}
}

// flush deletes all data and scripts of Redis. A flush is not an outage.
func (e *experiment) flush(redis *redistest.Server) error {
	e.printEvent("Redis is flushed, with its scripts")
	if _, err := redis.Do("SCRIPT", "FLUSH"); err != nil {
		return err
	}
	e.recordReset()
	_, err := redis.Do("FLUSHALL")
	return err
}

// recordReset records that the buckets in Redis may be full: it lost its data, or was away long
// enough to refill them.
func (e *experiment) recordReset() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.wasReset = true
}

// awaitRedis waits until Redis has made all decisions of all instances for a time of length stable.
// It returns when this time began.
func (e *experiment) awaitRedis(stable time.Duration) (since time.Time, err error) {
	before := make([]counters, len(e.instances))
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(25 * time.Millisecond) {
		isSettled := true
		for i, one := range e.instances {
			now, err := readCounters([]*instance{one})
			if err != nil {
				return since, err
			}
			latest := now.since(before[i])
			isSettled = isSettled && before[i].sources != nil && latest.sources["store"] > 0 && latest.fallbackDecisions() == 0
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
func (e *experiment) watch() {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	before, err := readCounters(e.instances)
	if err != nil {
		e.fail(err)
		return
	}
	for {
		select {
		case <-e.stop:
			return
		case <-tick.C:
		}
		now, err := readCounters(e.instances)
		if err != nil {
			e.fail(err)
			return
		}
		counts, to := e.load.take(), time.Now()
		e.check(to, counts, now.since(before))
		before = now
	}
}

// check prints and checks one second.
func (e *experiment) check(to time.Time, counts [len(fallbacks)]count, decisions counters) {
	e.mu.Lock()
	defer e.mu.Unlock()
	seen := interval{hasStore: decisions.sources["store"]+decisions.sources["deny_cache"] > 0, hasFallback: decisions.fallbackDecisions() > 0, wasReset: e.wasReset}
	e.seconds, e.wasReset = append(e.seconds, seen), false
	// The counts of clients lag a little behind those of instances. So the bound also allows what
	// happened in the second before.
	if n := len(e.seconds); n > 1 {
		before := e.seconds[n-2]
		seen.hasStore = seen.hasStore || before.hasStore
		seen.hasFallback = seen.hasFallback || before.hasFallback
		seen.wasReset = seen.wasReset || before.wasReset
	}
	second := recordedSecond{At: round(to.Sub(e.start))}
	at := fmt.Sprintf("second %.0f", to.Sub(e.start).Seconds())
	row := fmt.Sprintf("%6.0f s ", to.Sub(e.start).Seconds())
	for i, c := range counts {
		fallback := fallbacks[i]
		e.totals[i] += c.admitted
		bound := seen.boundOf(fallback, c)
		second.add(c.admitted, bound)
		row += fmt.Sprintf("%6d ≤ %-6s", c.admitted, bound)
		if c.admitted > bound.units && !bound.isUnlimited {
			e.failures = append(e.failures, fmt.Sprintf("%s: %s let %d through; at most %v may pass", at, fallback, c.admitted, bound))
		}
		mayRefuse := fallback == "closed"
		if c.failed > 0 || c.refused > 0 && !mayRefuse {
			e.failures = append(e.failures, fmt.Sprintf("%s: %d requests of %s failed, and %d were refused; want none", at, c.failed, fallback, c.refused))
		}
	}
	e.record.Seconds = append(e.record.Seconds, second)
	p99 := decisions.p99()
	fmt.Printf("%s   %-58s %6.1f ms\n", row, decisions.sourceCounts(), p99*1000)
	if e.shouldCheckTimes && p99 > (deadline+slack).Seconds() {
		e.failures = append(e.failures, fmt.Sprintf("%s: the p99 of decisions is %.1f ms; want at most %v", at, p99*1000, deadline+slack))
	}
}

// end ends the experiment, and checks the totals.
func (e *experiment) end() {
	if e.hasEnded {
		return
	}
	e.hasEnded = true
	close(e.stop)
	e.watcher.Wait()
	e.load.end()
	passed := time.Since(e.start)
	for i, c := range e.load.take() {
		e.totals[i] += c.admitted
	}
	for i, fallback := range fallbacks {
		bound := totalBound(fallback, e.seconds, passed)
		fmt.Printf("%-7s let %d through in %.1f s; the bound: %v\n", fallback, e.totals[i], passed.Seconds(), bound)
		if !bound.isUnlimited && e.totals[i] > bound.units {
			e.addFailure("%s let %d through; at most %v may pass in %v", fallback, e.totals[i], bound, passed)
		}
	}
	e.stopInstances()
	fmt.Printf("critical lines in the log of the first instance:\n%s", e.instances[0].log(func(l line) bool { return l.Critical }))
}

func (e *experiment) stopInstances() {
	for _, one := range e.instances {
		one.stop()
	}
}

func (e *experiment) printEvent(what string) {
	at := time.Since(e.start)
	e.mu.Lock()
	e.record.Events = append(e.record.Events, recordedEvent{round(at), what})
	e.mu.Unlock()
	fmt.Printf("%6.1f s  — %s\n", at.Seconds(), what)
}

func (e *experiment) addFailure(format string, args ...any) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.failures = append(e.failures, fmt.Sprintf(format, args...))
}

func (e *experiment) fail(err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.err = errors.Join(e.err, err)
}
