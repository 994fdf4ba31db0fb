package workers

import (
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
)

func TestPoolDoesAllTasksAndKeepsItsLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const limit = 10
		var mu sync.Mutex
		running, mostRunning, sum := 0, 0, 0
		release := make(chan struct{})
		p := New(limit, func(n int) {
			mu.Lock()
			running++
			mostRunning = max(mostRunning, running)
			mu.Unlock()
			<-release
			mu.Lock()
			defer mu.Unlock()
			running--
			sum += n
		})
		wantSum := 0
		for range 3 { // from the second round on, kept goroutines do the tasks
			started := 0
			for range 2 * limit {
				if p.Start(7) {
					started++
				}
			}
			if started != limit {
				t.Errorf("%d tasks were started, want %d", started, limit)
			}
			wantSum += 7 * started
			synctest.Wait()
			for range started {
				release <- struct{}{}
			}
			synctest.Wait()
		}
		p.Stop()
		if mostRunning != limit || sum != wantSum {
			t.Errorf("at most %d tasks ran at a time, and the sum of their arguments is %d; want %d and %d", mostRunning, sum, limit, wantSum)
		}
		if p.Start(1) {
			t.Error("Start returns true after Stop; want false")
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
			t.Error("Stop returns before the tasks have ended; want that it waits for them")
		default:
		}
		close(release)
		<-stopped
		synctest.Wait()
		if n := runtime.NumGoroutine(); n > before {
			t.Errorf("%d goroutines are left after Stop; want none", n-before)
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
