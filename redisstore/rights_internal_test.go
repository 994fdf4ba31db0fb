package redisstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/redisrights"
	"github.com/penstock/penstock/internal/testing/effort"
	"github.com/penstock/penstock/internal/testing/redistest"
)

// If a user lacks one of the rights, calls that need this right fail. Nothing is charged, every key
// that is left has a TTL, and the error names the right. For each right, a user without it tries
// each step of a trace. If the step fails, a user with all rights runs it next. The trace runs
// every command of the scripts.
func TestNothingIsWrittenWithoutARight(t *testing.T) {
	effort.SkipUnderRace(t)
	t.Parallel()
	s := redistest.Start(t)
	rules := redisrights.Rules("limiter", redisrights.Of(redisrights.Options{}))
	keys, commands, _ := strings.Cut(rules, " -@all ")
	all := strings.Fields(commands)
	mustDo(t, s, append(strings.Fields("ACL SETUSER complete on >secret "+keys+" -@all"), all...)...)
	dial := func(user string) Client { return dialURL(t, "redis://"+user+":secret@"+s.Addr) }
	complete := dial("complete")
	refused := 0
	for _, right := range all {
		user := "no" + strings.Map(dropMarks, right)
		others := slices.DeleteFunc(slices.Clone(all), func(other string) bool { return other == right })
		mustDo(t, s, append(strings.Fields("ACL SETUSER "+user+" on >secret "+keys+" -@all"), others...)...)
		mustDo(t, s, "FLUSHALL")
		mustDo(t, s, "SCRIPT", "FLUSH")
		n := tryWithout(t, s, right, dial(user), complete)
		if n == 0 {
			t.Errorf("no step of the trace failed without %s; want one that needs it", right)
		}
		refused += n
	}
	t.Logf("counted: %d calls refused for one of %d missing rights", refused, len(all))
}

// dropMarks is a mapping for strings.Map that drops all characters except lower-case letters.
func dropMarks(c rune) rune {
	if c >= 'a' && c <= 'z' {
		return c
	}
	return -1
}

// tryWithout runs the trace as a user who lacks a right. It returns how many steps failed because
// the right was missing.
func tryWithout(t *testing.T, s *redistest.Server, right string, without, complete Client) (refused int) {
	clock := time.Now()
	restrictedStores, completeStores := storesOf(t, without, &clock), storesOf(t, complete, &clock)
	for i, step := range everyCommand(&clock) {
		name := fmt.Sprintf("step %d (%s) without %s", i, step.name, right)
		before := dump(t, s)
		err := step.run(restrictedStores)
		if err == nil {
			continue
		}
		refused++
		var e *penstock.StoreError
		if !errors.As(err, &e) || e.Reason != penstock.ReasonPermissionDenied {
			t.Errorf("%s: %v; want an error for the missing right", name, err)
			e = penstock.NewStoreError(penstock.ReasonPermissionDenied, err)
		}
		if e.Hint != right {
			t.Errorf("%s: the hint is %q in %v; want %q", name, e.Hint, err, right)
		}
		for key, state := range dump(t, s) {
			if before[key] != state {
				t.Errorf("%s: %q has changed; want it unchanged\nbefore %s\nafter  %s", name, key, before[key], state)
			}
			delete(before, key)
		}
		for key := range before {
			t.Errorf("%s: %q was deleted; want nothing changed", name, key)
		}
		if err := step.run(completeStores); err != nil {
			t.Fatalf("%s, with all rights: %v; want no error", name, err)
		}
	}
	return refused
}

// stores are two stores of one user, named after their clocks.
type stores struct{ testClock, serverClock *Store }

func storesOf(t *testing.T, client Client, clock *time.Time) stores {
	return stores{
		testClock:   storeOn(t, client, Options{Prefix: "limiter", Now: func() time.Time { return *clock }}),
		serverClock: storeOn(t, client, Options{Prefix: "limiter"}),
	}
}

// A commandStep is one call to the stores of a user.
type commandStep struct {
	name string
	run  func(user stores) error
}

// everyCommand returns a trace in which scripts of each kind (single, uniform and mixed) run every
// command that they contain.
func everyCommand(clock *time.Time) (steps []commandStep) {
	ctx := context.Background()
	add := func(name string, run func(user stores) error) {
		steps = append(steps, commandStep{name, run})
	}
	decide := func(name string, charges ...penstock.Charge) {
		add(name, func(user stores) error {
			_, err := user.testClock.Decide(ctx, charges)
			return err
		})
	}
	together := func(name string, batches ...[]penstock.Charge) {
		add(name, func(user stores) error {
			if _, _, err := user.testClock.decideList(ctx, batches); err != nil {
				return user.testClock.unavailable(ctx, err)
			}
			return nil
		})
	}
	sleep := func(d time.Duration) {
		add("time passes", func(stores) error {
			*clock = clock.Add(d)
			return nil
		})
	}

	years := 8 * 365 * 24 * time.Hour
	numbers := penstock.Limit{Name: "numbers", Group: "g", Count: 10, Period: years}.MustCompile()
	more := penstock.Limit{Name: "more", Group: "g", Count: 10, Period: years}.MustCompile()
	bucket := penstock.Limit{Name: "bucket", Count: 10, Period: years}.MustCompile()
	log, slots := penstock.PerMinute(10).With(penstock.SlidingLog).MustCompile(), penstock.InFlight(10, time.Minute).MustCompile()
	charge := func(key string, limit *penstock.Plan, mode penstock.Mode, cost int64, holder string) penstock.Charge {
		return penstock.Charge{Key: key, Plan: limit, Mode: mode, Cost: cost, Holder: holder}
	}
	one := func(c penstock.Charge) []penstock.Charge { return []penstock.Charge{c} }

	add("by the server's time", func(user stores) error {
		_, err := user.serverClock.Decide(ctx, one(charge("time", numbers, penstock.Spend, 1, "")))
		return err
	})
	decide("SET", charge("k", numbers, penstock.Spend, 2, ""))
	decide("SETRANGE", charge("k", numbers, penstock.Refund, 1, ""))
	decide("SET beside another limit", charge("k", more, penstock.Spend, 1, ""))
	decide("SET of the remaining entries", charge("k", numbers, penstock.Reset, 0, ""))
	decide("DEL", charge("k", more, penstock.Reset, 0, ""))

	// Several strings in one script: one is overwritten in place, one is set again, one deleted.
	decide("a string to write in place", charge("a", numbers, penstock.Spend, 1, ""))
	decide("a string to delete", charge("c", numbers, penstock.Spend, 1, ""))
	batches := [][]penstock.Charge{
		one(charge("a", numbers, penstock.Spend, 1, "")), one(charge("b", numbers, penstock.Spend, 1, "")), one(charge("c", numbers, penstock.Reset, 0, "")),
	}
	together("uniform script: in place, set again, deleted", batches...)
	slices.Reverse(batches)
	together("uniform script: deleted, set again, in place", batches...)
	decide("mixed script: strings", charge("d", numbers, penstock.Spend, 1, ""), charge("e", bucket, penstock.Spend, 1, ""))
	decide("mixed script: strings, one deleted", charge("d", numbers, penstock.Spend, 1, ""), charge("e", bucket, penstock.Reset, 0, ""))

	// Collections beside strings, and several in one script.
	for range 2 {
		for _, holder := range []string{"a", "b", "c"} {
			decide("sets and a string", charge("k", log, penstock.Spend, 3, ""), charge("k", slots, penstock.Spend, 3, holder),
				charge("k", bucket, penstock.Spend, 1, ""))
			sleep(time.Second)
		}
		decide("denied", charge("k", log, penstock.Spend, 3, ""), charge("k", slots, penstock.Spend, 3, "d"))
		decide("refunded", charge("k", log, penstock.Refund, 1, ""), charge("k", slots, penstock.Refund, 1, "c"))
		together("sets of several callers", one(charge("l", log, penstock.Spend, 3, "")), one(charge("l", slots, penstock.Spend, 2, "a")),
			one(charge("l", log, penstock.Spend, 1, "")))
		decide("deleted", charge("l", log, penstock.Reset, 0, ""), charge("l", slots, penstock.Reset, 0, ""))
		sleep(59 * time.Second) // then some entries and holds have expired
	}
	sleep(-time.Hour) // then the next call repairs the state
	decide("after a step back", charge("k", log, penstock.Spend, 1, ""), charge("k", slots, penstock.Spend, 1, "e"))

	add("Heartbeat", func(user stores) error {
		_, err := user.testClock.Heartbeat(ctx, "a", time.Minute)
		return err
	})
	add("Eval", func(user stores) error {
		_, err := user.testClock.Eval(ctx, "return redis.call('SET', KEYS[1], ARGV[1], 'PX', 60000).ok", []string{"a"}, "text")
		return err
	})
	add("Heartbeat of an instance that leaves", func(user stores) error {
		_, err := user.testClock.Heartbeat(ctx, "a", 0)
		return err
	})
	add("EvalOnEach", func(user stores) error {
		return user.testClock.EvalOnEach(ctx, "return redis.call('GET', KEYS[1]) or ''", "a", nil, func(_, _ string) error { return nil })
	})
	add("Load", func(user stores) error {
		return user.testClock.Load(ctx, numbers)
	})
	add("Ping", func(user stores) error {
		return user.testClock.Ping(ctx)
	})
	return steps
}

// dump returns the data of a server, by key. It fails the test if a key has no TTL.
func dump(t *testing.T, s *redistest.Server) map[string]string {
	t.Helper()
	const script = `local all = {}
for _, key in ipairs(redis.call('KEYS', '*')) do
	all[#all + 1] = {key, redis.call('PEXPIRETIME', key), redis.call('DUMP', key)}
end
return all`
	state := make(map[string]string)
	for _, row := range mustDo(t, s, "EVAL", script, "0").([]any) {
		key, expires, value := row.([]any)[0].(string), row.([]any)[1].(int64), row.([]any)[2]
		if expires == -1 {
			t.Errorf("key %q has no TTL; want one", key)
		}
		state[key] = fmt.Sprintf("%d %q", expires, value)
	}
	return state
}

// mustDo sends a command to the server, and returns the reply.
func mustDo(t testing.TB, s *redistest.Server, args ...string) any {
	t.Helper()
	reply, err := s.Do(args...)
	if err != nil {
		t.Fatalf("command %v: %v; want no error", args, err)
	}
	return reply
}
