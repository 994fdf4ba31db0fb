package workers

import (
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
)

func TestPoolDoesAllTasksAndKeepsItsLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const limit = 10
		var running, most, done atomic.Int64
		release := make(chan struct{})
		p := New(limit, func(n int) {
			most.Store(max(most.Load(), running.Add(1)))
			<-release
			running.Add(-1)
			done.Add(int64(n))
		})
		want := 0
		for range 3 { // the second time, the goroutines are kept ones
			started := 0
			for range 2 * limit {
				if p.Start(7) {
					started++
				}
			}
			if started != limit {
				t.Errorf("%d tasks were started, want %d", started, limit)
			}
			want += 7 * started
			synctest.Wait()
			for range started {
				release <- struct{}{}
			}
			synctest.Wait()
		}
		if most.Load() != limit || done.Load() != int64(want) {
			t.Errorf("%d tasks ran at once, and did %d; want %d and %d", most.Load(), done.Load(), limit, want)
		}
		p.Stop()
		if p.Start(1) {
			t.Error("a task is started after Stop")
		}
	})
}

func TestStopWaitsForTasksAndLeavesNoGoroutine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		before := runtime.NumGoroutine()
		release, stopped := make(chan struct{}), make(chan struct{})
		p := New(5, func(struct{}) { <-release })
		for range 5 {
			p.Start(struct{}{})
		}
		go func() {
			p.Stop()
			close(stopped)
		}()
		synctest.Wait()
		select {
		case <-stopped:
			t.Error("Stop returns before the tasks")
		default:
		}
		close(release)
		<-stopped
		synctest.Wait()
		if n := runtime.NumGoroutine(); n > before {
			t.Errorf("%d goroutines are left", n-before)
		}
	})
}

func TestKeptGoroutinesHaveABound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		p := New(2*maxIdle, func(struct{}) { <-release })
		for range 2 * maxIdle {
			p.Start(struct{}{})
		}
		close(release)
		synctest.Wait()
		if n := len(p.idle); n != maxIdle {
			t.Errorf("%d goroutines are kept, want %d", n, maxIdle)
		}
		p.Stop()
	})
}
