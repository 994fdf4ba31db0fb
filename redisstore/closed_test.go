package redisstore_test

import (
	"errors"
	"testing"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/testing/redistest"
	"github.com/penstock/penstock/redisstore"
)

// After Close, nothing is sent, so nothing was charged.
func TestClosedStoreChargesNothing(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := dial("redis://" + server.Addr)(t)
	store, err := redisstore.New(client, redisstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	charges := []penstock.Charge{spend("k", slowRefill("d", 9), 1)}
	if _, err := store.Decide(within(t, time.Minute), charges); err != nil {
		t.Fatal(err)
	}
	if err := store.Close(); err != nil {
		t.Fatal(err)
	}
	_, err = store.Decide(within(t, time.Minute), charges)
	if e, ok := errors.AsType[*penstock.StoreError](err); !ok || e.Reason != penstock.ReasonUnreachable || e.MayBeCharged {
		t.Errorf("a decision after Close: %v; want an unreachable StoreError that says that nothing was charged", err)
	}
	_, evalSha := client.EvalSha(t.Context(), "0", nil, nil)
	_, eval := client.Eval(t.Context(), "return 1", nil, nil)
	_, sharded := client.Sharded(t.Context())
	for name, err := range map[string]error{
		"EvalSha": evalSha, "Eval": eval, "Sharded": sharded, "Ping": client.Ping(t.Context()), "Load": client.Load(t.Context(), "", nil),
	} {
		if err == nil {
			t.Errorf("%s of a closed client returns no error; want one", name)
		}
	}
}
