package envoyrls_test

import (
	"testing"
	"testing/synctest"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/algorithm"
	"github.com/penstock/penstock/grpclimit/envoyrls"
	"github.com/penstock/penstock/guard"
	"github.com/penstock/penstock/memstore"
)

// The guards of the service change no response. In particular, the deny cache must not answer a
// check with the denial of a charge.
func TestGuardsChangeNoResponse(t *testing.T) {
	for _, a := range []*algorithm.Algorithm{penstock.FixedWindow, penstock.TokenBucket, penstock.SlidingWindow, penstock.SlidingLog} {
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
						t.Errorf("%s, mode %v, call %d: %s\nwith guards %s\nwithout     %s", a.Title(), mode, i, text, got, want)
					}
				}
			})
		}
	}
}
