package clienttest

import (
	"testing"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/redisstore"
	"github.com/penstock/penstock/storetest"
)

// A Maker makes the client of a store under test.
type Maker struct {
	Name   string
	Client func(t testing.TB) redisstore.Client
}

// RunConformance runs the conformance suite of stores over each client, with one store for all its
// tests.
func RunConformance(t *testing.T, o redisstore.Options, makers ...Maker) {
	for _, m := range makers {
		t.Run(m.Name, func(t *testing.T) {
			t.Parallel()
			o := o
			o.Prefix = NewPrefix()
			store := NewStore(t, m.Client(t), o)
			storetest.Run(t, func(*testing.T) penstock.Store { return store })
		})
	}
}
