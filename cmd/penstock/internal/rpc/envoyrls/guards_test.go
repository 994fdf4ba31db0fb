package envoyrls_test

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/algorithm"
	"github.com/penstock/penstock/cmd/penstock/internal/rpc/envoyrls"
	"github.com/penstock/penstock/guard"
	"github.com/penstock/penstock/memstore"
)

// The guards of the service change no response. In particular, the deny cache must not answer a
// check with the denial of a charge.
func TestGuardsChangeNoResponse(t *testing.T) {
	for _, a := range []*algorithm.Algorithm{penstock.FixedWindow, penstock.TokenBucket, penstock.AnchoredWindow, penstock.SlidingWindow, penstock.SlidingLog} {
		for _, mode := range []envoyrls.Mode{envoyrls.Atomic, envoyrls.Exact} {
			if mode == envoyrls.Exact && a != penstock.FixedWindow {
				continue
			}
			synctest.Test(t, func(t *testing.T) {
				o := envoyrls.Options{Mode: mode, Algorithm: a}
				g, err := guard.Standard(memstore.New(memstore.Options{}), guard.Options{Instances: 1, Limits: o.Settings})
				if err != nil {
					t.Fatal(err)
				}
				defer g.Close()
				guarded, bare := newFixture(t, g, limits, o), newFixture(t, memstore.New(memstore.Options{}), limits, o)
				for i, text := range []string{
					"3: small", "small +0", "small", "small", "small +0", "small,large", "small +0,large", "small +1", "small +0", "small,small +0", "small -2", "small +0", "small", "small @9/2", "small @1/2",
					"zero", "zero", "zero +0", "10: large", "large", "large", "large @11/3", "large +0", "quota1,quota2", "quota1,quota2", "shadow", "shadow", "shadow +0",
				} {
					if got, want := guarded.send(text), bare.send(text); got != want {
						t.Errorf("algorithm %s, mode %v, call %d: the response to %q is\n%s with guards; want, as without guards,\n%s", a.Title(), mode, i, text, got, want)
					}
				}
			})
		}
	}
}

// Guards may use the context of a call in the background, after the call has returned. They do so
// for a lease, or for a batch that other callers wait for.
func TestContextsMayBeUsedAfterTheCall(t *testing.T) {
	type key struct{}
	inner := memstore.New(memstore.Options{})
	var kept []context.Context
	store := penstock.StoreFunc(func(ctx context.Context, charges []penstock.Charge) (penstock.Decision, error) {
		kept = append(kept, ctx)
		return inner.Decide(ctx, charges)
	})
	f := newFixture(t, store, limits, envoyrls.Options{})
	for i := range 10 {
		var to envoyrls.Response
		if err := f.Decide(context.WithValue(t.Context(), key{}, i), request("small,large"), &to); err != nil {
			t.Fatal(err)
		}
	}
	for i, ctx := range kept {
		if deadline, hasDeadline := ctx.Deadline(); ctx.Value(key{}) != i || hasDeadline {
			t.Errorf("the context of call %d has the value %v and the deadline %v; want the value %d and no deadline", i, ctx.Value(key{}), deadline, i)
		}
	}
	if len(kept) != 10 {
		t.Errorf("the store decided %d calls; want 10", len(kept))
	}
}
