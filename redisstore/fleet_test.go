package redisstore_test

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/testing/effort"
	"github.com/penstock/penstock/internal/testing/redistest"
	"github.com/penstock/penstock/memstore"
	"github.com/penstock/penstock/redisstore"
)

const (
	fleetSize      = 12
	burstCount     = 4
	callsPerMember = 25 // in each burst
)

// fleetLimit admits a burst of 20 requests, and 10 per second.
var fleetLimit = penstock.PerSecond(10).WithBurst(20)

// fleetStore is the environment variable that makes the test binary a member of a fleet. The value
// is a URL of Redis, or "memory".
const fleetStore = "PENSTOCK_FLEET_STORE"

// TestFleetMember is the program of a member of the fleet. Each input line is a key. Each output
// line reports whether the key is allowed. The program ends when its input ends. In the tests' own
// process it does nothing.
func TestFleetMember(t *testing.T) {
	url := os.Getenv(fleetStore)
	if url == "" {
		return
	}
	store := penstock.Store(memstore.New(memstore.Options{}))
	if url != "memory" {
		store = open(t, url, redisstore.Options{})
	}
	limiter, err := penstock.NewLimiter(store, "rides", fleetLimit)
	if err != nil {
		t.Fatal(err)
	}
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		d, err := limiter.Allow(t.Context(), lines.Text())
		fmt.Printf("%t %v\n", d.Allowed, err)
	}
}

// A member is one process of the fleet.
type member struct {
	process *exec.Cmd
	in      io.WriteCloser
	out     *bufio.Scanner
}

func startMember(t *testing.T, url string) *member {
	t.Helper()
	m := &member{process: exec.Command(os.Args[0], "-test.run=^TestFleetMember$")}
	m.process.Env = append(os.Environ(), fleetStore+"="+url)
	var err error
	if m.in, err = m.process.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := m.process.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	m.out = bufio.NewScanner(out)
	if err := m.process.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = m.in.Close() // then the member ends
		kill := time.AfterFunc(5*time.Second, func() { _ = m.process.Process.Kill() })
		defer kill.Stop()
		_ = m.process.Wait()
	})
	return m
}

// call sends a key to the member, and returns the member's decision.
func (m *member) call(key string) (allowed bool, err error) {
	if _, err := fmt.Fprintln(m.in, key); err != nil {
		return false, err
	}
	if !m.out.Scan() {
		return false, fmt.Errorf("the member has ended: %v", m.out.Err())
	}
	answer, failure, _ := strings.Cut(m.out.Text(), " ")
	if failure != "<nil>" {
		return false, fmt.Errorf("the member wrote %q; want a decision without an error", m.out.Text())
	}
	return answer == "true", nil
}

// sendBursts sends bursts to a fleet, an equal share to each member. It returns how many calls were
// admitted, and the time from before the first call to after the last answer.
func sendBursts(t *testing.T, url string) (admitted int, took time.Duration) {
	t.Helper()
	fleet := make([]*member, fleetSize)
	for i := range fleet {
		fleet[i] = startMember(t, url)
	}
	for _, m := range fleet { // wait until all run
		if _, err := m.call("warm-up"); err != nil {
			t.Fatal(err)
		}
	}
	var mu sync.Mutex
	start := time.Now()
	for range burstCount {
		var burst sync.WaitGroup
		for _, m := range fleet {
			burst.Go(func() {
				for range callsPerMember {
					allowed, err := m.call("rider:R-4421")
					if err != nil {
						t.Errorf("a call of a member: %v; want a decision", err)
						return
					}
					if allowed {
						mu.Lock()
						admitted++
						mu.Unlock()
					}
				}
			})
		}
		burst.Wait()
		time.Sleep(120 * time.Millisecond) // some tokens are refilled; the bound holds however long it takes
	}
	return admitted, time.Since(start)
}

func TestTwelveProcessesShareOneLimit(t *testing.T) {
	effort.SkipUnderRace(t)
	t.Parallel()
	bound := func(took time.Duration) int {
		return int(fleetLimit.Burst) + int(took.Seconds()*float64(fleetLimit.Count))
	}
	admitted, took := sendBursts(t, redistest.Start(t).URL())
	t.Logf("counted: %d admitted by twelve processes over one Redis (in %v; at most %d are allowed)", admitted, took, bound(took))
	if admitted > bound(took) || admitted < int(fleetLimit.Burst) {
		t.Errorf("%d processes over one Redis admitted %d calls in %v; want %d to %d", fleetSize, admitted, took, fleetLimit.Burst, bound(took))
	}
	admittedAlone, took := sendBursts(t, "memory")
	t.Logf("counted: %d admitted by twelve processes without a shared store (in %v; %.1f times what one limit allows)", admittedAlone, took, float64(admittedAlone)/float64(bound(took)))
	// Twelve limits admit twelve bursts. Eleven bursts are enough to show that sharing has an effect.
	if least := (fleetSize - 1) * int(fleetLimit.Burst); admittedAlone < least {
		t.Errorf("%d processes with a limit each admitted %d calls; want %d or more", fleetSize, admittedAlone, least)
	}
}
