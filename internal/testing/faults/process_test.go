package faults

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/guard"
	"github.com/penstock/penstock/internal/testing/eventually"
	"github.com/penstock/penstock/internal/testing/redistest"
	"github.com/penstock/penstock/redisstore"
)

// F21 and F22: the program itself is stopped, killed or terminated while it has a lease and a slot.

const (
	maxLease            = 50 // units in a lease
	configuredInstances = 2  // instances for which leases and shares are computed
)

var (
	daily    = perDay(10_000, "daily")
	windowed = penstock.Limit{Name: "windowed", Algorithm: penstock.FixedWindow, Count: 400, Period: time.Second}.MustCompile()
	slots    = penstock.InFlight(1, time.Second)
)

// leaseSettings returns the guard settings of a limit. All limits except slots are leased.
func leaseSettings(limit *penstock.Plan) guard.Settings {
	if limit.Name() == slots.Name {
		return guard.Settings{OnFailure: guard.FailClosed}
	}
	return guard.Settings{OnFailure: guard.FailClosed, Lease: maxLease}
}

// openLeasing opens an instance with leases. Its timeout is long, since the store has no fault.
// closeAll closes the guards and the store.
func openLeasing(url string) (instance *guard.Guarded, spyOfStore *spy, closeAll func(), err error) {
	store, err := redisstore.Open(url, redisstore.Options{})
	if err != nil {
		return nil, nil, nil, err
	}
	s := newSpy(store)
	g, err := guard.Standard(s, guard.Options{Server: store, Limits: leaseSettings, Instances: configuredInstances, DenyCacheTTL: 50 * time.Millisecond,
		Timeout: guard.TimeoutOptions{After: patient}})
	if err != nil {
		return nil, nil, nil, err
	}
	return g, s, func() {
		g.Close()
		_ = store.Close()
	}, nil
}

// childMain is the program that the tests of this file start. It acquires a slot and then spends
// units of a limit, one after another. For each unit it prints the source of the decision and the
// times before and after the decision. It ends cleanly on SIGTERM.
func childMain(url, limitName string) error {
	g, _, closeAll, err := openLeasing(url)
	if err != nil {
		return err
	}
	limit := daily
	if limitName == windowed.Name() {
		limit = windowed
	}
	stopCtx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	limiter, err := penstock.NewLimiter(g, "slots", slots)
	if err != nil {
		return err
	}
	hold, err := limiter.Acquire(stopCtx, "k")
	if err != nil {
		return err
	}
	for parent := os.Getppid(); stopCtx.Err() == nil && os.Getppid() == parent; { // end when the parent has ended
		at := time.Now()
		d, err := g.Decide(context.Background(), []penstock.Charge{{Key: "k", Plan: limit, Cost: 1}})
		if err != nil {
			return err
		}
		if d.Allowed {
			fmt.Println(uint8(d.Source), at.UnixMicro(), time.Now().UnixMicro())
		}
		time.Sleep(500 * time.Microsecond)
	}
	if err := hold.Release(context.Background()); err != nil {
		return err
	}
	closeAll()
	return nil
}

// A grant is a unit that was spent between two times.
type grant struct {
	source   penstock.Source
	from, to int64 // µs since the epoch
}

// A child is a process that runs childMain, and the units that it has spent so far.
type child struct {
	cmd   *exec.Cmd
	ended chan error

	mu     sync.Mutex
	grants []grant
}

// startChild starts a child that spends this limit. The child is killed when the test ends.
func startChild(t *testing.T, url string, limit *penstock.Plan) *child {
	t.Helper()
	c := &child{cmd: exec.Command(os.Args[0]), ended: make(chan error, 1)}
	c.cmd.Env = append(os.Environ(), "PENSTOCK_FAULTS_CHILD="+url, "PENSTOCK_FAULTS_LIMIT="+limit.Name())
	c.cmd.Stderr = os.Stderr
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		for lines := bufio.NewScanner(out); lines.Scan(); {
			var g grant
			if _, err := fmt.Sscan(lines.Text(), &g.source, &g.from, &g.to); err == nil {
				c.mu.Lock()
				c.grants = append(c.grants, g)
				c.mu.Unlock()
			}
		}
		c.ended <- c.cmd.Wait()
	}()
	t.Cleanup(func() { _ = c.cmd.Process.Kill() })
	return c
}

// spent returns the units that the child has spent so far, and how many of them are from its lease.
func (c *child) spent() (grants []grant, leased int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, g := range c.grants {
		if g.source == penstock.FromLease {
			leased++
		}
	}
	return c.grants[:len(c.grants):len(c.grants)], leased
}

// awaitLeased waits until the child has spent more units of its lease.
func (c *child) awaitLeased(t *testing.T, more int) {
	t.Helper()
	_, had := c.spent()
	eventually.True(t, "the child spends units of its lease", func() bool {
		_, leased := c.spent()
		return leased >= had+more
	})
}

// usedDaily returns how many units of the daily limit are used, by the state of the store.
func usedDaily(t *testing.T, store *redisstore.Store) int {
	t.Helper()
	d, err := store.Decide(t.Context(), []penstock.Charge{{Key: "k", Plan: daily, Mode: penstock.Peek}})
	if err != nil {
		t.Fatal(err)
	}
	return int(daily.Limit().Count - d.Status(0).Remaining)
}

// refilledDaily returns the most units of the daily limit that may have refilled since a time.
func refilledDaily(since time.Time) int {
	perUnit := daily.Limit().Period / time.Duration(daily.Limit().Count)
	return int(time.Since(since)/perUnit) + 1
}

// repeats returns how often a test repeats its fault.
func repeats(short, soak int) int {
	if isSoak {
		return soak
	}
	return short
}

// startStore starts a server, and opens a store and a limiter for the checks.
func startStore(t *testing.T) (*redistest.Server, *redisstore.Store, *penstock.Limiter) {
	t.Helper()
	s := redistest.Start(t)
	store, err := redisstore.Open(s.URL(), redisstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	limiter, err := penstock.NewLimiter(store, "slots", slots)
	if err != nil {
		t.Fatal(err)
	}
	return s, store, limiter
}

// F22: at most one lease of units per key is lost, and the slot expires.
func TestKilledProgramLosesAtMostItsLease(t *testing.T) {
	t.Parallel()
	s, store, limiter := startStore(t)
	lost, kills := 0, repeats(2, 60)
	for range kills {
		began, before := time.Now(), usedDaily(t, store)
		c := startChild(t, s.URL(), daily)
		c.awaitLeased(t, 100)
		_ = c.cmd.Process.Kill()
		<-c.ended
		grants, _ := c.spent()
		used := usedDaily(t, store) - before
		const unprinted = 1 // the kill may come between a decision and its line
		if used < len(grants)-refilledDaily(began) || used > len(grants)+maxLease+unprinted {
			t.Errorf("%d units are used, and the killed program has spent %d; want at most %d units of difference", used, len(grants), maxLease)
		}
		lost += used - len(grants)
		eventually.True(t, "the slot of the killed program is free", func() bool {
			hold, err := limiter.Acquire(t.Context(), "k")
			return err == nil && hold.Release(t.Context()) == nil
		})
		if usedDaily(t, store) > int(daily.Limit().Count)*3/4 {
			reset(t, store)
		}
	}
	t.Logf("counted: %d programs killed (%d units lost)", kills, lost)
}

// F22: a program that is terminated returns its lease and its slot. If the return takes too long on
// a busy machine, the lease is lost as if the program were killed. The reason: a late refund could
// free units that other instances have used.
func TestTerminatedProgramReturnsItsLease(t *testing.T) {
	t.Parallel()
	s, store, limiter := startStore(t)
	wantComplete, complete := repeats(2, 60), 0 // programs that return their whole lease
	for tries := 0; complete < wantComplete; tries++ {
		if tries == 3*wantComplete {
			t.Fatalf("only %d of %d programs returned their whole lease; want %d", complete, tries, wantComplete)
		}
		began, before := time.Now(), usedDaily(t, store)
		c := startChild(t, s.URL(), daily)
		c.awaitLeased(t, 100)
		_ = c.cmd.Process.Signal(syscall.SIGTERM)
		if err := <-c.ended; err != nil {
			t.Fatal(err)
		}
		hold, err := limiter.Acquire(t.Context(), "k")
		if err != nil {
			t.Errorf("acquire the slot of a program that has ended: %v; want no error", err)
		} else if err := hold.Release(t.Context()); err != nil {
			t.Error(err)
		}
		grants, _ := c.spent()
		used := usedDaily(t, store) - before
		if used < len(grants)-refilledDaily(began) || used > len(grants)+maxLease {
			t.Errorf("%d units are used, and the program has spent %d; want at most %d more", used, len(grants), maxLease)
		}
		if used <= len(grants) {
			complete++
		}
		if usedDaily(t, store) > int(daily.Limit().Count)*3/4 {
			reset(t, store)
		}
	}
	t.Logf("counted: %d programs terminated", wantComplete)
}

// reset makes all units of the daily limit available.
func reset(t *testing.T, store *redisstore.Store) {
	t.Helper()
	if _, err := store.Decide(t.Context(), []penstock.Charge{{Key: "k", Plan: daily, Mode: penstock.Reset}}); err != nil {
		t.Fatal(err)
	}
}

// F21: a program with a lease is stopped for longer than the lease lasts. When the program
// continues, it spends nothing of that lease. Such units would belong to an old window, and would
// exceed the limit of the current window if other instances have used up that limit.
func TestStoppedProgramSpendsNothingOfItsOldLease(t *testing.T) {
	t.Parallel()
	s, _, _ := startStore(t)
	stopped := startChild(t, s.URL(), windowed)
	other, _, closeAll, err := openLeasing(s.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer closeAll()
	var mu sync.Mutex
	var otherGrants []grant
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	all.Go(func() {
		for ctx.Err() == nil {
			at := time.Now()
			d, err := other.Decide(context.Background(), []penstock.Charge{{Key: "k", Plan: windowed, Cost: 1}})
			if err != nil {
				t.Error(err)
				return
			}
			if d.Allowed {
				mu.Lock()
				otherGrants = append(otherGrants, grant{source: d.Source, from: at.UnixMicro(), to: time.Now().UnixMicro()})
				mu.Unlock()
			}
			time.Sleep(500 * time.Microsecond)
		}
	})
	stops := repeats(3, 60)
	for range stops {
		stopped.awaitLeased(t, 20)
		_ = stopped.cmd.Process.Signal(syscall.SIGSTOP)
		time.Sleep(1500 * time.Millisecond) // one and a half times the life of a lease
		_ = stopped.cmd.Process.Signal(syscall.SIGCONT)
	}
	stopped.awaitLeased(t, 20)
	cancel()
	all.Wait()
	_ = stopped.cmd.Process.Kill()
	<-stopped.ended
	stoppedGrants, leasedUnits := stopped.spent()
	windows := map[int64]int64{}
	for _, g := range append(stoppedGrants, otherGrants...) {
		period := windowed.Limit().Period.Microseconds()
		if g.from/period == g.to/period { // if it is not, its window is unknown
			windows[g.to/period]++
		}
	}
	most := int64(0)
	for _, n := range windows {
		most = max(most, n)
		if n > windowed.Limit().Count {
			t.Errorf("%d units were admitted in one window; want at most %d, the limit", n, windowed.Limit().Count)
		}
	}
	t.Logf("counted: %d stops of a program with a lease (%d units leased there, %d at most in a window of %d)", stops, leasedUnits, most, windowed.Limit().Count)
}
