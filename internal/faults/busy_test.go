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
	"github.com/penstock/penstock/internal/redistest"
	"github.com/penstock/penstock/redisstore"
)

// busyMain shares a core with busyLoops endless loops, and makes decisions for busyCallers callers.
const (
	busyLoops   = 8
	busyCallers = 64

	busyName = "busy" // value of PENSTOCK_FAULTS_LIMIT that makes TestMain run busyMain
)

// TestBusyMachineIsNoFailureOfTheStore runs a program on a core that it shares with busy loops,
// while Redis has another core. The store must make at least 99.9 % of all decisions, and no
// breaker may open: after the start, with new limits, after SCRIPT FLUSH, after a failover, and
// around a stop of the program. When Redis is stopped, the first callers wait for the deadline, and
// later ones do not wait.
func TestBusyMachineIsNoFailureOfTheStore(t *testing.T) {
	decisions := repeats(2_000, 10_000)
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
	burst := func(when string, limits, n int) (r busyReport) {
		t.Helper()
		if _, err := fmt.Fprintln(in, limits, n); err != nil {
			t.Fatal(err)
		}
		if err := reports.Decode(&r); err != nil {
			t.Fatalf("%s: %v", when, err)
		}
		if n == decisions {
			t.Logf("counted: %d of %d decisions by the store %s (%d calls, %d openings of a breaker, the slowest took %v; the program had %d %% of a core for %v %s)",
				r.Store, n, when, r.Calls, r.Opened, r.Slowest.Round(time.Millisecond), 100*r.CPU/max(r.Took, 1), r.Took.Round(time.Millisecond), r.Err)
		}
		return r
	}
	checkBurst := func(when string, limits int) {
		t.Helper()
		if r := burst(when, limits, decisions); r.Store*1000 < decisions*999 || r.Opened > 0 {
			t.Errorf("%s: the store made %d of %d decisions, and breakers opened %d times", when, r.Store, decisions, r.Opened)
		}
	}
	checkBurst("after the start", 1)
	checkBurst("with new limits", 3)
	if _, err := group.Primary.Do("SCRIPT", "FLUSH"); err != nil {
		t.Fatal(err)
	}
	checkBurst("after SCRIPT FLUSH", 3)
	if err := group.Failover(); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool { return burst("to find the new primary", 1, busyCallers).Store == busyCallers }, "the store decides after the failover")
	checkBurst("after a failover", 3)
	stopInside(t, group.Primary, program.Process)
	checkBurst("while the program is stopped for two seconds", 3)

	group.Primary.Pause()
	if r := burst("with Redis stopped", 1, busyCallers); r.Store > 0 || r.Opened == 0 {
		t.Errorf("the stopped store made %d decisions; breakers opened %d times", r.Store, r.Opened)
	}
	if r := burst("with the breaker open", 1, decisions); r.Store > 0 || r.Calls > decisions/10 {
		t.Errorf("the stopped store made %d decisions; %d of %d were sent to it", r.Store, r.Calls, decisions)
	}
	group.Primary.Resume()
}

// stopInside stops a program when the server has received some more of its scripts, and continues
// it two seconds later. Replies arrive in between.
func stopInside(t *testing.T, server *redistest.Server, program *os.Process) {
	t.Helper()
	had, _, err := server.CommandStats("evalsha")
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		for scripts := had; scripts < had+3; {
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
	Store, Calls, Opened int
	Slowest, Took, CPU   time.Duration
	Err                  string
}

// busyMain reads lines from standard input, each with a number of decisions and of limits. It makes
// the decisions of each line and prints a report.
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
	all := []penstock.Limit{
		penstock.PerSecond(1_000_000).WithName("bucket"),
		{Name: "window", Algorithm: penstock.SlidingWindow, Count: 1_000_000, Period: time.Minute},
		{Name: "fixed", Algorithm: penstock.FixedWindow, Count: 1_000_000, Period: time.Minute},
	}
	reports := json.NewEncoder(os.Stdout)
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		var limits, n int
		if _, err := fmt.Sscan(lines.Text(), &limits, &n); err != nil {
			return err
		}
		calls.Store(0)
		opened.Store(0)
		var byStore, slowest, turn atomic.Int64
		var callers sync.WaitGroup
		began, used := time.Now(), cpu()
		for c := range busyCallers {
			callers.Go(func() {
				var charges []penstock.Charge
				for _, l := range all[:limits] {
					charges = append(charges, penstock.Charge{Key: strconv.Itoa(c), Plan: l.MustCompile(), Cost: 1})
				}
				for turn.Add(1) <= int64(n) {
					began := time.Now()
					if d, err := g.Decide(context.Background(), charges); err == nil && d.Source == penstock.FromStore {
						byStore.Add(1)
					}
					for took := int64(time.Since(began)); ; {
						if was := slowest.Load(); took <= was || slowest.CompareAndSwap(was, took) {
							break
						}
					}
				}
			})
		}
		callers.Wait()
		r := busyReport{Store: int(byStore.Load()), Calls: int(calls.Load()), Opened: int(opened.Load()), Slowest: time.Duration(slowest.Load()),
			Took: time.Since(began), CPU: cpu() - used}
		if text := last.Swap(nil); text != nil {
			r.Err = *text
		}
		if err := reports.Encode(r); err != nil {
			return err
		}
	}
	return nil
}

// cores returns the first and the last core that this process may use. They are the same if there
// is only one.
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

// cpu is the CPU time of this process.
func cpu() time.Duration {
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		return 0
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

// pin makes a server run on one core, with a high priority if the user may set it. The server must
// be fast whatever else the machine does.
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
