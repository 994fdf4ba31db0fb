package memstore_test

import (
	"testing"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/memstore"
	"github.com/penstock/penstock/storetest"
)

func TestMemoryStoreObeysTheLaw(t *testing.T) {
	t.Parallel()
	storetest.Run(t, func(*testing.T) penstock.Store { return memstore.New(memstore.Options{}) })
}

func TestMemoryStoreOfOneLockObeysTheLaw(t *testing.T) {
	t.Parallel()
	storetest.Run(t, func(*testing.T) penstock.Store { return memstore.New(memstore.Options{Locks: 1}) })
}
