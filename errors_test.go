package penstock_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"

	"github.com/penstock/penstock"
)

func TestStoreErrorWrapsItsCause(t *testing.T) {
	cause := errors.New("connection refused")
	for _, err := range []error{
		penstock.NewStoreError(penstock.ReasonUnreachable, cause),
		fmt.Errorf("guard: %w", penstock.NewStoreError(penstock.ReasonUnreachable, cause)),
	} {
		e := penstock.AsStoreError(err)
		if e == nil || e.Reason != penstock.ReasonUnreachable || !errors.Is(err, penstock.ErrUnavailable) || !errors.Is(err, cause) {
			t.Errorf("AsStoreError(%v) = %+v; want the reason unreachable, and an error that wraps ErrUnavailable and the cause", err, e)
		}
	}
	bare := penstock.NewStoreError(penstock.ReasonShed, nil)
	if got, want := bare.Error(), "penstock: store unavailable: shed"; got != want || !errors.Is(bare, penstock.ErrUnavailable) {
		t.Errorf("an error without a cause is %q, and wraps ErrUnavailable: %v; want %q, true", got, errors.Is(bare, penstock.ErrUnavailable), want)
	}
}

// An error that only wraps ErrUnavailable is treated as the worst case: the charges may have been
// made, and the store is at fault.
func TestAsStoreErrorOfOtherErrors(t *testing.T) {
	for _, row := range []struct {
		err  error
		want penstock.Reason
	}{
		{penstock.ErrUnavailable, penstock.ReasonUnknown},
		{fmt.Errorf("%w: no route", penstock.ErrUnavailable), penstock.ReasonUnknown},
		{fmt.Errorf("%w: %w", penstock.ErrUnavailable, context.DeadlineExceeded), penstock.ReasonTimeout},
		{fmt.Errorf("%w: %w", penstock.ErrUnavailable, os.ErrDeadlineExceeded), penstock.ReasonTimeout},
	} {
		e := penstock.AsStoreError(row.err)
		if e == nil || e.Reason != row.want || !e.MayBeCharged || !e.IsStoreFault || e.IsPermanent {
			t.Errorf("AsStoreError(%v) = %+v; want %v with MayBeCharged and IsStoreFault, and not IsPermanent", row.err, e, row.want)
		}
	}
	for _, err := range []error{nil, penstock.ErrInvalid, context.Canceled, context.DeadlineExceeded, errors.New("other")} {
		if e := penstock.AsStoreError(err); e != nil {
			t.Errorf("AsStoreError(%v) = %v; want nil, because it is not an error of a store", err, e)
		}
	}
}

func TestReasonSetsWhatAStoreErrorMeans(t *testing.T) {
	for reason, want := range map[penstock.Reason]penstock.StoreError{
		penstock.ReasonUnknown:          {MayBeCharged: true, IsStoreFault: true},
		penstock.ReasonTimeout:          {MayBeCharged: true, IsStoreFault: true},
		penstock.ReasonRejected:         {MayBeCharged: true, IsStoreFault: true},
		penstock.ReasonLate:             {IsStoreFault: true},
		penstock.ReasonUnreachable:      {IsStoreFault: true},
		penstock.ReasonNotReady:         {IsStoreFault: true},
		penstock.ReasonOutOfMemory:      {IsStoreFault: true},
		penstock.ReasonBusy:             {IsStoreFault: true},
		penstock.ReasonPermissionDenied: {IsStoreFault: true, IsPermanent: true},
		penstock.ReasonCorrupt:          {},
		penstock.ReasonShed:             {},
		penstock.ReasonBreakerOpen:      {},
	} {
		e := penstock.NewStoreError(reason, nil)
		if e.MayBeCharged != want.MayBeCharged || e.IsStoreFault != want.IsStoreFault || e.IsPermanent != want.IsPermanent {
			t.Errorf("%v: MayBeCharged %v, IsStoreFault %v, IsPermanent %v; want %v, %v, %v",
				reason, e.MayBeCharged, e.IsStoreFault, e.IsPermanent, want.MayBeCharged, want.IsStoreFault, want.IsPermanent)
		}
	}
}

// A reason that only a later version has does not cause a panic. Errors with such a reason report
// that the charges may have been made.
func TestUnknownReasonMeansThatChargesMayHaveBeenMade(t *testing.T) {
	reasonByName := map[string]penstock.Reason{}
	for _, r := range penstock.Reasons() {
		if other, isTaken := reasonByName[r.String()]; isTaken {
			t.Errorf("the reasons %d and %d have the same name, %q; want different names", r, other, r)
		}
		reasonByName[r.String()] = r
	}
	const ofLaterVersion penstock.Reason = 255
	if e := penstock.NewStoreError(ofLaterVersion, nil); e.Reason.String() != "unknown" || !e.MayBeCharged {
		t.Errorf("the error of an unknown reason is %+v; want the name \"unknown\", and MayBeCharged", e)
	}
}
