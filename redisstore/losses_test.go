package redisstore_test

import (
	"testing"
	"time"

	"github.com/penstock/penstock/internal/testing/eventually"
	"github.com/penstock/penstock/internal/testing/redistest"
	"github.com/penstock/penstock/redisstore"
)

// Every instance sees each loss of the keys once. Instances that start, pause or stop, an outage
// that loses nothing, and keys that expire are no losses.
func TestLostKeysAreNoticedByEveryInstance(t *testing.T) {
	t.Parallel()
	server, clock := redistest.StartClocked(t)
	names, byName := []string{"a", "b"}, make(map[string]*redisstore.Store)
	start := func(name string) { byName[name] = open(t, server.URL(), redisstore.Options{Prefix: "l"}) }
	for _, name := range names {
		start(name)
	}
	ahead := time.Duration(0)
	after := func(pause time.Duration, beating ...string) {
		t.Helper()
		ahead += pause
		if err := clock.Set(ahead); err != nil {
			t.Fatal(err)
		}
		for _, name := range beating {
			eventually.True(t, name+" is registered", func() bool { // a connection may have broken
				_, err := byName[name].Heartbeat(t.Context(), name, 15*time.Second)
				return err == nil
			})
		}
	}
	check := func(when string, want ...int64) {
		t.Helper()
		for i, name := range names {
			if got := byName[name].Losses(); got != want[i] {
				t.Errorf("%s, instance %s has noticed %d losses; want %d", when, name, got, want[i])
			}
		}
	}
	do := func(args ...string) {
		t.Helper()
		if _, err := server.Do(args...); err != nil {
			t.Fatal(err)
		}
	}
	after(0, "a", "b")
	do("FLUSHALL")
	after(time.Second, "a", "b")
	check("after the loss of an epoch that was seen once", 0, 0)
	after(time.Second, "a", "b")
	do("FLUSHALL")
	after(time.Second, "a", "b")
	check("after the loss of an epoch that was seen for 1 s", 1, 1)
	do("FLUSHALL")
	after(time.Second, "a", "b")
	check("after a second loss", 2, 2)
	after(5*time.Second, "a", "b")
	do("DEL", "l1{%@}instances")
	after(5*time.Second, "a", "b")
	check("after the loss of the list of instances alone", 2, 2)
	do("FLUSHALL")
	after(5*time.Second, "a", "b")
	after(5*time.Second, "b", "a")
	check("after FLUSHALL", 3, 3)
	start("b")
	after(5*time.Second, "b", "a")
	check("after a restart of b", 3, 0)
	after(20*time.Hour, "a")
	after(20*time.Hour, "b", "a")
	check("after b has been stopped for 40 hours", 3, 0)
	after(25*time.Hour, "a", "b")
	after(5*time.Second, "a", "b")
	check("after both have been stopped for 25 hours", 3, 0)
	after(10*time.Second, "a", "b")
	server.Kill()
	if err := server.Restart(); err != nil { // without its keys
		t.Fatal(err)
	}
	after(20*time.Hour, "a")
	check("after an outage of 20 hours that lost all keys", 4, 0)
	after(5*time.Second, "b")
	check("after an outage of 20 hours that lost all keys", 4, 1)
	after(10*time.Second, "a", "b")
	do("FLUSHALL")
	eventually.True(t, "the last heartbeat of a", func() bool { // a connection may have broken
		_, err := byName["a"].Heartbeat(t.Context(), "a", 0)
		return err == nil
	})
	check("after FLUSHALL, when only an instance that stops has sent a heartbeat", 4, 1)
	if n, err := server.Do("EXISTS", "l1{%@}epoch"); err != nil || n.(int64) != 0 {
		t.Errorf("an instance that stops has written the epoch: EXISTS replied %v, %v; want 0", n, err)
	}
}
