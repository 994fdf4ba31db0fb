package faults

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/guard"
	"github.com/penstock/penstock/internal/testing/eventually"
	"github.com/penstock/penstock/internal/testing/redistest"
	"github.com/penstock/penstock/redisstore"
)

const (
	busyLoops   = 8  // endless loops on the core of busyMain
	busyCallers = 64 // callers of busyMain that decide concurrently

	busyName = "busy" // value of PENSTOCK_FAULTS_LIMIT that makes TestMain run busyMain
)

// TestBusyMachineIsNoFailureOfTheStore runs busyMain on a core that it shares with endless loops.
// Redis has another core. The store must make at least 99.9 % of all decisions, and all breakers
// must stay closed. This is checked after the start, with new limits, after SCRIPT FLUSH, after a
// failover, and while busyMain is stopped for a time. When Redis is stopped, the first callers wait
// for the deadline, and later callers do not wait.
func TestBusyMachineIsNoFailureOfTheStore(t *testing.T) {
	decisions := repeats(1_000, 10_000)
	group := redistest.StartSentinel(t)
	first, last := cores(t)
	for _, s := range append([]*redistest.Server{group.Primary, group.Replica}, group.Sentinels...) {
		pin(t, last, s.PID())
	}
	for range busyLoops {
		startOn(t, first, exec.Command("sh", "-c", "while :; do :; done"))
	}
	url := "redis+sentinel://" + strings.Join(group.Addrs(), ",") + "/" + redistest.MasterName
	program := exec.Command(os.Args[0])
	program.Env = append(os.Environ(), "PENSTOCK_FAULTS_CHILD="+url, "PENSTOCK_FAULTS_LIMIT="+busyName)
	program.Stderr = os.Stderr
	in, err := program.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := program.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	startOn(t, first, program)
	reports := json.NewDecoder(out)
	// runSeries makes busyMain decide n requests that charge this number of limits.
	runSeries := func(when string, limits, n int) (r busyReport) {
		t.Helper()
		if _, err := fmt.Fprintln(in, limits, n); err != nil {
			t.Fatal(err)
		}
		if err := reports.Decode(&r); err != nil {
			t.Fatalf("%s: read the report of the program: %v; want no error", when, err)
		}
		if n == decisions {
			t.Logf("counted: %d of %d decisions by the store %s (%d calls, %d openings of a breaker, the slowest took %v; the program had %d %% of a core for %v; last error: %s)",
				r.ByStore, n, when, r.StoreCalls, r.Openings, r.Slowest.Round(time.Millisecond), 100*r.CPU/max(r.Duration, 1), r.Duration.Round(time.Millisecond), r.LastError)
		}
		return r
	}
	// checkSeries checks that the store decides a series, and that no breaker opens.
	checkSeries := func(when string, limits int) {
		t.Helper()
		if r := runSeries(when, limits, decisions); r.ByStore*1000 < decisions*999 || r.Openings > 0 {
			t.Errorf("%s: the store made %d of %d decisions, and breakers opened %d times; want 99.9 %% of the decisions, and no opening",
				when, r.ByStore, decisions, r.Openings)
		}
	}
	checkSeries("after the start", 1)
	checkSeries("with new limits", 3)
	if _, err := group.Primary.Do("SCRIPT", "FLUSH"); err != nil {
		t.Fatal(err)
	}
	checkSeries("after SCRIPT FLUSH", 3)
	if err := group.Failover(); err != nil {
		t.Fatal(err)
	}
	eventually.True(t, "the store decides after the failover", func() bool { return runSeries("to find the new primary", 1, busyCallers).ByStore == busyCallers })
	checkSeries("after a failover", 3)
	stopDuringCalls(t, group.Primary, program.Process)
	checkSeries("while the program is stopped for two seconds", 3)

	group.Primary.Pause()
	if r := runSeries("with Redis stopped", 1, busyCallers); r.ByStore > 0 || r.Openings == 0 {
		t.Errorf("the stopped store made %d decisions, and breakers opened %d times; want no decision, and an open breaker", r.ByStore, r.Openings)
	}
	if r := runSeries("with the breaker open", 1, decisions); r.ByStore > 0 || r.StoreCalls > decisions/10 {
		t.Errorf("the stopped store made %d decisions, and received %d calls for %d decisions; want no decision, and calls for at most a tenth",
			r.ByStore, r.StoreCalls, decisions)
	}
	group.Primary.Resume()
}

// stopDuringCalls stops a program after the server has run three more of its scripts. So the
// program is stopped while it waits for replies. Two seconds later, the program continues.
func stopDuringCalls(t *testing.T, server *redistest.Server, program *os.Process) {
	t.Helper()
	scriptsBefore, _, err := server.CommandStats("evalsha")
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		for scripts := scriptsBefore; scripts < scriptsBefore+3; {
			if scripts, _, err = server.CommandStats("evalsha"); err != nil {
				return
			}
		}
		_ = program.Signal(syscall.SIGSTOP)
		time.Sleep(2 * time.Second)
		_ = program.Signal(syscall.SIGCONT)
	}()
}

// A busyReport is the result of a series of decisions.
type busyReport struct {
	ByStore    int           // decisions that the store made
	StoreCalls int           // calls that the guards made to the store
	Openings   int           // of breakers
	Slowest    time.Duration // the longest decision
	Duration   time.Duration // of the series
	CPU        time.Duration // CPU time that the program used during the series
	LastError  string        // of the store; "": none
}

// busyMain reads lines from standard input. Each line has a number of limits and a number of
// decisions. busyMain makes this series of decisions, and prints a report.
func busyMain(url, _ string) error {
	var opened, calls atomic.Int64
	store, err := redisstore.Open(url, redisstore.Options{})
	if err != nil {
		return err
	}
	defer store.Close()
	var last atomic.Pointer[string]
	counting := penstock.StoreFunc(func(ctx context.Context, charges []penstock.Charge) (penstock.Decision, error) {
		calls.Add(1)
		return store.Decide(ctx, charges)
	})
	g, err := guard.Standard(counting, guard.Options{
		Server: store,
		Breaker: guard.BreakerOptions{Changed: func(_ string, _, to guard.State) {
			if to == guard.StateOpen {
				opened.Add(1)
			}
		}},
		OnStoreError: func(e guard.Event) { text := e.Err.Error(); last.Store(&text) },
	})
	if err != nil {
		return err
	}
	defer g.Close()
	const plenty = 1_000_000 // no decision is a denial
	all := []penstock.Limit{
		penstock.PerSecond(plenty).WithName("bucket"),
		{Name: "window", Algorithm: penstock.SlidingWindow, Count: plenty, Period: time.Minute},
		{Name: "fixed", Algorithm: penstock.FixedWindow, Count: plenty, Period: time.Minute},
	}
	reports := json.NewEncoder(os.Stdout)
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		var limits, n int
		if _, err := fmt.Sscan(lines.Text(), &limits, &n); err != nil {
			return err
		}
		calls.Store(0)
		opened.Store(0)
		r := decideConcurrently(g, all[:limits], n)
		r.StoreCalls, r.Openings = int(calls.Load()), int(opened.Load())
		if text := last.Swap(nil); text != nil {
			r.LastError = *text
		}
		if err := reports.Encode(r); err != nil {
			return err
		}
	}
	return nil
}

// decideConcurrently makes n decisions for busyCallers callers. Each caller charges all limits
// under its own key.
func decideConcurrently(store penstock.Store, limits []penstock.Limit, n int) busyReport {
	var byStore, slowest, begun atomic.Int64
	var callers sync.WaitGroup
	start, used := time.Now(), cpu()
	for c := range busyCallers {
		callers.Go(func() {
			var charges []penstock.Charge
			for _, l := range limits {
				charges = append(charges, penstock.Charge{Key: strconv.Itoa(c), Plan: l.MustCompile(), Cost: 1})
			}
			for begun.Add(1) <= int64(n) {
				sent := time.Now()
				if d, err := store.Decide(context.Background(), charges); err == nil && d.Source == penstock.FromStore {
					byStore.Add(1)
				}
				raise(&slowest, int64(time.Since(sent)))
			}
		})
	}
	callers.Wait()
	return busyReport{ByStore: int(byStore.Load()), Slowest: time.Duration(slowest.Load()), Duration: time.Since(start), CPU: cpu() - used}
}

// raise sets n to value if value is larger.
func raise(n *atomic.Int64, value int64) {
	for old := n.Load(); value > old && !n.CompareAndSwap(old, value); {
		old = n.Load()
	}
}

// cores returns the first and the last core that this process may use. Both are the same if there
// is only one core.
func cores(t *testing.T) (first, last string) {
	t.Helper()
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	_, list, _ := strings.Cut(string(text), "Cpus_allowed_list:")
	list, _, _ = strings.Cut(strings.TrimSpace(list), "\n")
	all := strings.FieldsFunc(list, func(r rune) bool { return r == '-' || r == ',' })
	return all[0], all[len(all)-1]
}

// cpu returns the CPU time of this process so far.
func cpu() time.Duration {
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		return 0
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

// pin makes a server run on one core. The server must be fast while other programs use the core. So
// pin also gives the server a real-time priority, if the user has the right.
func pin(t *testing.T, core string, pid int) {
	t.Helper()
	if out, err := exec.Command("taskset", "-a", "-c", "-p", core, strconv.Itoa(pid)).CombinedOutput(); err != nil {
		t.Fatalf("taskset: %v: %s", err, out)
	}
	_ = exec.Command("chrt", "--fifo", "--pid", "1", strconv.Itoa(pid)).Run()
}

// startOn starts a program on one core, and ends it with the test.
func startOn(t *testing.T, core string, program *exec.Cmd) {
	t.Helper()
	taskset, err := exec.LookPath("taskset")
	if err != nil {
		t.Fatal(err)
	}
	program.Args = append([]string{"taskset", "-c", core}, append([]string{program.Path}, program.Args[1:]...)...)
	program.Path = taskset
	if err := program.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = program.Process.Kill()
		if err := program.Wait(); err != nil && !errors.As(err, new(*exec.ExitError)) {
			t.Error(err)
		}
	})
}
