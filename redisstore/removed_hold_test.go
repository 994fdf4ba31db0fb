package redisstore_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/testing/redistest"
	"github.com/penstock/penstock/redisstore"
)

// An operator removes a member of the sorted set of holds. The sum of the slots is then too large,
// so no number of expired holds frees enough of them. Still, the script must end: a script
// that does not end blocks the server.
func TestRemovedHoldDoesNotBlockTheServer(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	store := open(t, s.URL(), redisstore.Options{})
	slots := penstock.InFlight(3, time.Hour).MustCompile()
	hold := func(holder string) penstock.Charge {
		return penstock.Charge{Key: "k", Plan: slots, Cost: 1, Holder: holder}
	}
	for i := range 3 {
		if _, err := store.Decide(t.Context(), []penstock.Charge{hold(fmt.Sprint(i))}); err != nil {
			t.Fatal(err)
		}
	}
	key := onlyKey(t, s)
	for _, removed := range []string{"h0", "h1", "h2"} { // in the end, no hold is left
		must(t, s, "ZREM", key, removed)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		all := hold("late")
		all.Cost = 3
		_, err := store.Decide(ctx, []penstock.Charge{all})
		cancel()
		wantReason(t, "a charge after "+removed+" was removed", err, penstock.ReasonCorrupt)
	}
}
