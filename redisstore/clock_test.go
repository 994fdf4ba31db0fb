package redisstore_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock/internal/testing/effort"
	"github.com/penstock/penstock/internal/testing/redistest"
	"github.com/penstock/penstock/redisstore"
)

// A clockServer is a server that does nothing but return its time, which may be wrong.
type clockServer struct {
	redisstore.Client
	offset                 time.Duration // by how much its clock is ahead
	requestTime, replyTime time.Duration // how long a request and its reply take
	isDown                 bool
}

func (*clockServer) Close() error { return nil }

// A slowClockServer is a clockServer with random request and reply times.
type slowClockServer struct {
	clockServer
	mu  sync.Mutex
	rng *rand.Rand
}

func (s *slowClockServer) Eval(ctx context.Context, script string, keys, args []string) (string, error) {
	s.mu.Lock()
	call := clockServer{requestTime: time.Duration(s.rng.Int64N(int64(2 * time.Second))), replyTime: time.Duration(s.rng.Int64N(int64(2 * time.Second)))}
	s.mu.Unlock()
	return call.Eval(ctx, script, keys, args)
}

func (s *clockServer) Eval(context.Context, string, []string, []string) (string, error) {
	time.Sleep(s.requestTime)
	now := time.Now().Add(s.offset)
	time.Sleep(s.replyTime)
	if s.isDown {
		return "", errors.New("no answer")
	}
	// The reply of luagen.Heartbeat: 3 instances, seconds, µs and the epoch.
	return fmt.Sprintf("3 %d %06d E", now.Unix(), now.Nanosecond()/1000), nil
}

// A clock that runs a little fast or slow, behind a network that is sometimes slow, must not count
// as a step. A step that is too large for the network to hide must be counted, in its direction.
func TestEveryStepOfTheServersClockIsCounted(t *testing.T) {
	steps, readings := 0, 0
	for seed := range uint64(effort.Of(50, 2000)) {
		synctest.Test(t, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 1))
			server := &clockServer{offset: time.Duration(rng.Int64N(int64(time.Hour)))}
			store := newStore(t, server, redisstore.Options{})
			var back, forward int64
			roundTrip := time.Duration(0)
			drift := float64(rng.IntN(1001)-500) / 1e6 // of the server's clock: up to 0.05 % too slow or too fast
			for i := range 100 {
				pause := time.Duration(rng.Int64N(int64(10 * time.Second)))
				time.Sleep(pause)
				server.offset += time.Duration(float64(pause) * drift)
				lastRoundTrip := roundTrip
				server.requestTime = time.Duration(rng.Int64N(int64(200 * time.Millisecond)))
				server.replyTime = time.Duration(rng.Int64N(int64(200 * time.Millisecond)))
				roundTrip = server.requestTime + server.replyTime
				if i > 0 && rng.IntN(4) == 0 {
					// The step is larger than all that can hide it together: the two round trips, the tolerance of
					// 100 ms, and twice the tolerance of 0.1 % for drift.
					hidden := lastRoundTrip + roundTrip
					size := hidden + 101*time.Millisecond + (pause+hidden)/500 + time.Duration(rng.Int64N(int64(time.Minute)))
					if rng.IntN(2) == 0 {
						server.offset -= size
						back++
					} else {
						server.offset += size
						forward++
					}
					steps++
				}
				if n, err := store.Heartbeat(t.Context(), "i", time.Minute); n != 3 || err != nil {
					t.Fatalf("seed %d: Heartbeat returned %d instances and the error %v; want 3 and none", seed, n, err)
				}
				readings++
				if gotBack, gotForward := store.ClockSteps(); gotBack != back || gotForward != forward {
					t.Fatalf("seed %d: counted %d steps back and %d forward; want %d and %d", seed, gotBack, gotForward, back, forward)
				}
			}
		})
	}
	t.Logf("counted: %d steps of a server's clock (%d readings)", steps, readings)
}

func TestClockWithoutAnAnswerDoesNotStep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := &clockServer{}
		store := newStore(t, server, redisstore.Options{})
		readClock := func() { store.Heartbeat(t.Context(), "i", time.Minute) }
		readClock()
		server.isDown, server.offset = true, -time.Hour
		for range 10 {
			time.Sleep(5 * time.Second)
			readClock()
		}
		if back, forward := store.ClockSteps(); back+forward != 0 {
			t.Errorf("while the server was down, %d steps back and %d forward were counted; want none", back, forward)
		}
		server.isDown = false
		readClock()
		readClock()
		if back, forward := store.ClockSteps(); back != 1 || forward != 0 {
			t.Errorf("counted %d steps back and %d forward; want the one step back during the outage", back, forward)
		}
		for _, step := range []time.Duration{99 * time.Millisecond, -99 * time.Millisecond} { // too small
			server.offset += step
			readClock()
		}
		if back, forward := store.ClockSteps(); back != 1 || forward != 0 {
			t.Errorf("counted %d steps back and %d forward; want 1 and 0, because less than 100 ms is not a step", back, forward)
		}
		for _, step := range []time.Duration{101 * time.Millisecond, -101 * time.Millisecond} {
			server.offset += step
			readClock()
		}
		if back, forward := store.ClockSteps(); back != 2 || forward != 1 {
			t.Errorf("counted %d steps back and %d forward; want 2 and 1, because more than 100 ms is a step", back, forward)
		}
	})
}

func TestReadingsThatOverlapShowNoSteps(t *testing.T) {
	for seed := range uint64(50) {
		synctest.Test(t, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 2))
			store := newStore(t, &slowClockServer{rng: rand.New(rand.NewPCG(seed, 3))}, redisstore.Options{})
			var all sync.WaitGroup
			for range 50 {
				all.Go(func() { store.Heartbeat(t.Context(), "i", time.Minute) })
				time.Sleep(time.Duration(rng.Int64N(int64(500 * time.Millisecond))))
			}
			all.Wait()
			if back, forward := store.ClockSteps(); back+forward != 0 {
				t.Errorf("seed %d: counted %d steps back and %d forward; want none, because the clock never stepped", seed, back, forward)
			}
		})
	}
}

func TestAClockThatRunsFastOrSlowDoesNotStep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := &clockServer{}
		store := newStore(t, server, redisstore.Options{})
		for range 100 {
			for _, direction := range []time.Duration{1, -1} {
				store.Heartbeat(t.Context(), "i", time.Minute)
				time.Sleep(time.Hour)
				server.offset += direction * 3 * time.Second // less than 0.1 % of the hour
			}
		}
		if back, forward := store.ClockSteps(); back+forward != 0 {
			t.Errorf("counted %d steps back and %d forward; want none, because the clock never stepped", back, forward)
		}
	})
}

func TestTheClockOfARealServerIsRead(t *testing.T) {
	t.Parallel()
	store := open(t, redistest.Shared(t).URL(), redisstore.Options{Prefix: newPrefix()})
	for range 20 {
		if n, err := store.Heartbeat(t.Context(), "i", time.Minute); n != 1 || err != nil {
			t.Fatalf("Heartbeat returned %d instances and the error %v; want 1 and none", n, err)
		}
	}
	if back, forward := store.ClockSteps(); back+forward != 0 {
		t.Logf("the machine's clock has stepped %d times", back+forward) // allowed: it is a real clock
	}
}
