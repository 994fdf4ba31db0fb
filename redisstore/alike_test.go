package redisstore_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/testing/redistest"
	"github.com/penstock/penstock/memstore"
	"github.com/penstock/penstock/redisstore"
)

// If Options.Now returns a time before 1970 or after 2112, both stores return an error that names
// the option.
func TestClocksOutsideTheirRangeAreRefused(t *testing.T) {
	t.Parallel()
	server := redistest.Shared(t)
	for _, now := range []time.Time{{}, time.Unix(0, 0), time.Unix(-1, 0), time.Date(2200, 1, 1, 0, 0, 0, 0, time.UTC)} {
		clock := func() time.Time { return now }
		for name, s := range map[string]penstock.Store{
			"redisstore": open(t, server.URL(), redisstore.Options{Now: clock, Prefix: newPrefix()}),
			"memstore":   memstore.New(memstore.Options{Now: clock}),
		} {
			for _, limit := range []penstock.Limit{penstock.PerSecond(1), penstock.InFlight(1, time.Second), penstock.PerSecond(1).With(penstock.SlidingLog)} {
				_, err := s.Decide(t.Context(), []penstock.Charge{{Key: "k", Plan: limit.MustCompile(), Cost: 1, Holder: "h"}})
				if !errors.Is(err, penstock.ErrInvalid) || !strings.Contains(err.Error(), name+": Options.Now") {
					t.Errorf("%s at %v: %v, want an ErrInvalid that names Options.Now", name, now, err)
				}
			}
		}
	}
}

// Both stores return the same error for a context that has ended.
func TestEndedContextsGetTheSameError(t *testing.T) {
	t.Parallel()
	late, cancelLate := context.WithDeadline(t.Context(), time.Unix(1, 0))
	defer cancelLate()
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	for name, s := range map[string]penstock.Store{
		"redisstore": open(t, redistest.Shared(t).URL(), redisstore.Options{Prefix: newPrefix()}),
		"memstore":   memstore.New(memstore.Options{}),
	} {
		charges := []penstock.Charge{{Key: "k", Plan: penstock.PerSecond(1).MustCompile(), Cost: 1}}
		if _, err := s.Decide(late, charges); !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, penstock.ErrUnavailable) {
			t.Errorf("%s after the deadline: %v; want an ErrUnavailable that wraps DeadlineExceeded", name, err)
		}
		if _, err := s.Decide(canceled, charges); !errors.Is(err, context.Canceled) || errors.Is(err, penstock.ErrUnavailable) {
			t.Errorf("%s after the caller was canceled: %v; want context.Canceled only", name, err)
		}
	}
}
