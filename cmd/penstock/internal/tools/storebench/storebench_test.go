package storebench

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/testing/eventually"
	"github.com/penstock/penstock/internal/testing/redistest"
)

func keysOf(t *testing.T, server *redistest.Server) int64 {
	t.Helper()
	n, err := server.Do("DBSIZE")
	if err != nil {
		t.Fatal(err)
	}
	return n.(int64)
}

func TestEachStepIsMeasured(t *testing.T) {
	server := redistest.Start(t)
	if _, err := server.Do("SET", "other", "1"); err != nil {
		t.Fatal(err)
	}
	const maxRate = 2000
	r, err := Run(t.Context(), Options{URL: server.URL(), Callers: []int{1, 16}, Duration: 300 * time.Millisecond, MaxRate: maxRate})
	if err != nil {
		t.Fatal(err)
	}
	if r.Servers != 1 || len(r.Steps) != 2 || r.PingP50 <= 0 || r.ScriptMicros <= 0 {
		t.Errorf("the report is %+v; want one server, two steps, and times", r)
	}
	_, usec, err := server.CommandStats("evalsha")
	if err != nil {
		t.Fatal(err)
	}
	inSteps := 0.0
	for i, s := range r.Steps {
		inSteps += s.ScriptMicros * float64(s.Decisions)
		if s.Callers != []int{1, 16}[i] || s.Decisions < 10 || s.Decisions > maxRate/2 || s.Rate > maxRate || s.P50 <= 0 || s.P99 < s.P50 || s.CPUMicros <= 0 {
			t.Errorf("step %d is %+v; want its callers, 10 to %d decisions, and times", i, s, maxRate/2)
		}
	}
	if inSteps < 1 || inSteps > float64(usec) {
		t.Errorf("the scripts of the steps take %.0f us; the server reports %d for these and a few more", inSteps, usec)
	}
	if n := keysOf(t, server); n != 1 {
		t.Errorf("the server has %d keys after the measurement; want only the one of another program", n)
	}
}

func TestKeysAreDeletedAfterAnInterruption(t *testing.T) {
	server := redistest.Start(t)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() {
		_, err := Run(ctx, Options{URL: server.URL(), Callers: []int{4}, Duration: time.Minute, MaxRate: 10_000})
		done <- err
	}()
	eventually.True(t, "keys of the measurement", func() bool { return keysOf(t, server) > 100 })
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) || keysOf(t, server) != 0 {
		t.Errorf("after an interruption, the error is %v, and the server has %d keys; want the error of the context, and none", err, keysOf(t, server))
	}
}

func TestAStoreThatFailsIsReported(t *testing.T) {
	server := redistest.Start(t)
	done := make(chan error)
	go func() {
		_, err := Run(t.Context(), Options{URL: server.URL(), Callers: []int{4}, Duration: time.Minute, MaxRate: 10_000})
		done <- err
	}()
	eventually.True(t, "keys of the measurement", func() bool { return keysOf(t, server) > 100 })
	server.Kill()
	if err := <-done; !errors.Is(err, penstock.ErrUnavailable) {
		t.Errorf("without a server, the error is %v; want one that says that the store is unavailable", err)
	}
}
