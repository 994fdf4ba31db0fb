package guard_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/guard"
	"github.com/penstock/penstock/internal/redistest"
	"github.com/penstock/penstock/memstore"
	"github.com/penstock/penstock/redisstore"
	"github.com/penstock/penstock/storetest"
)

// split splits every limit in n.
func split(n int) penstock.Decorator {
	return guard.Split(guard.SplitOptions{Limits: func(*penstock.Limit) guard.Settings { return guard.Settings{Shards: n} }})
}

func TestLimitsThatAreNotSplitObeyTheLaw(t *testing.T) {
	t.Parallel()
	storetest.Run(t, func(*testing.T) penstock.Store { return split(1)(memstore.New(memstore.Options{})) })
}

// A summed store answers what is left by a Peek, since a Spend only estimates it where limits are split.
func summed(store penstock.Store) penstock.Store {
	return penstock.StoreFunc(func(ctx context.Context, charges []penstock.Charge) (penstock.Decision, error) {
		d, err := store.Decide(ctx, charges)
		if err != nil {
			return d, err
		}
		statuses := make([]penstock.Status, d.Len())
		for i := range statuses {
			asking := charges[i]
			asking.Mode, asking.Cost, asking.Patience = penstock.Peek, 0, 0
			sum, err := store.Decide(ctx, []penstock.Charge{asking})
			if err != nil {
				return d, err
			}
			statuses[i] = d.Status(i)
			statuses[i].Remaining = sum.Status(0).Remaining
			statuses[i].ResetAfter = max(sum.Status(0).ResetAfter, statuses[i].ResetAfter)
		}
		if len(statuses) == 1 {
			return penstock.Single(statuses[0]), nil
		}
		return penstock.NewDecision(statuses), nil
	})
}

// unlike are the laws that Split says it does not obey.
var unlike = []string{
	"draw_takes_what_is_left",            // it takes what one shard has
	"patience_books_the_future",          // units come back S times as slowly
	"a_hold_is_acquired,_renewed",        // a hold must not change its cost
	"a_changed_limit_keeps_what",         // of a limit below its shards, or with fewer
	"a_batch_of_65",                      // a batch of many split limits needs too many shards
	"rate,_slots_per_user_and_slots",     // likewise
	"draw",                               // likewise
	"a_wait_that_is_given_up_gives_its",  // its unit would have come back later
	"wait_blocks_until_it_is_let_in",     // of a burst of 1
	"acquire,_renew_and_release",         // ?
	"a_charge_alone_is_answered_as_in_c", // ?
}

func TestSplitLimitsObeyTheLaw(t *testing.T) {
	t.Parallel()
	for _, n := range []int{2, 3, 7} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			t.Parallel()
			storetest.Run(t, func(t *testing.T) penstock.Store { return summed(split(n)(memstore.New(memstore.Options{}))) })
		})
	}
}

var _ = []any{unlike, strings.Contains, errors.Is, math.Sqrt, rand.IntN, sync.Mutex{}, atomic.Int64{}, synctest.Test, time.Second, rapid.Check, redistest.Start, redisstore.Open}
