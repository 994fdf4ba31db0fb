package checkapi

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/admission"
	"github.com/penstock/penstock/grpclimit/penstockv1"
	"github.com/penstock/penstock/guard"
	"github.com/penstock/penstock/memstore"
)

// A failure says whether the charge may have been made, over HTTP and over gRPC.
func TestFailuresSayWhetherTheChargeMayHaveBeenMade(t *testing.T) {
	const mayBe, nothing = "the charge may have been made", "nothing was charged"
	for _, c := range []struct {
		err          error
		code         codes.Code
		text         string // the whole text of the failure
		mayBeCharged bool
		retryAfter   time.Duration
		details      int // of the gRPC status
		status       int // over HTTP
	}{
		{err: penstock.NewStoreError(penstock.ReasonTimeout, errors.New("secret")), code: codes.Unavailable, text: "the store gave no decision (timeout); " + mayBe, mayBeCharged: true, retryAfter: time.Second, details: 2, status: 503},
		{err: penstock.NewStoreError(penstock.ReasonUnreachable, nil), code: codes.Unavailable, text: "the store gave no decision (unreachable); " + nothing, retryAfter: time.Second, details: 2, status: 503},
		{err: fmt.Errorf("secret: %w", context.DeadlineExceeded), code: codes.DeadlineExceeded, text: "the deadline of the call passed before there was a decision; " + mayBe, mayBeCharged: true, details: 1, status: 503},
		{err: context.Canceled, code: codes.Canceled, text: "the call was canceled before there was a decision; " + mayBe, mayBeCharged: true, status: 503},
		{err: fmt.Errorf("%w: the cost is wrong", penstock.ErrInvalid), code: codes.InvalidArgument, text: "the cost is wrong", status: 400},
		{err: errors.New("secret"), code: codes.Unavailable, text: "there is no decision; " + mayBe, mayBeCharged: true, retryAfter: time.Second, details: 2, status: 503},
		{err: conflict("a", "b"), code: codes.InvalidArgument, text: "a: b", status: 409},
		{err: invalid("a", "b"), code: codes.InvalidArgument, text: "a: b", status: 400},
		{err: failf(codes.Internal, "a"), code: codes.Internal, text: "a", status: 500},
		{err: failf(codes.DataLoss, "a"), code: codes.DataLoss, text: "a", status: 500}, // a code without a status of its own
	} {
		f := asFailure(c.err)
		if f.code != c.code || f.text != c.text || f.mayBeCharged != c.mayBeCharged || f.retryAfter != c.retryAfter {
			t.Errorf("%v: the failure is %+v; want %+v", c.err, f, c)
		}
		s := f.GRPCStatus()
		if s.Code() != c.code || s.Message() != c.text || len(s.Details()) != c.details {
			t.Errorf("%v: the gRPC status is %v with the details %v; want %+v", c.err, s, s.Details(), c)
		}
		for _, d := range s.Details() {
			switch d := d.(type) {
			case *errdetails.ErrorInfo:
				if d.Reason != "NO_DECISION" || d.Domain != "penstock" || d.Metadata["may_be_charged"] != fmt.Sprint(c.mayBeCharged) {
					t.Errorf("%v: ErrorInfo is %v; want NO_DECISION, and may_be_charged %t", c.err, d, c.mayBeCharged)
				}
			case *errdetails.RetryInfo:
				if d.RetryDelay.AsDuration() != c.retryAfter || c.retryAfter == 0 {
					t.Errorf("%v: RetryInfo is %v; want %v", c.err, d, c.retryAfter)
				}
			}
		}
		w := httptest.NewRecorder()
		writeFailure(w, c.err)
		wantRetry := ""
		if c.retryAfter > 0 {
			wantRetry = "1"
		}
		answer := objectOf(t, w.Body.String())
		if w.Code != c.status || answer["status"] != float64(c.status) || answer["detail"] != c.text || answer["may_be_charged"] != c.mayBeCharged || w.Header().Get("Retry-After") != wantRetry {
			t.Errorf("%v: the response is %d %v %v; want %+v", c.err, w.Code, w.Header(), answer, c)
		}
		if length := w.Header().Get("Content-Length"); length != fmt.Sprint(w.Body.Len()) || w.Header().Get("Content-Type") != "application/problem+json" || answer["title"] != http.StatusText(c.status) {
			t.Errorf("%v: the response has %d bytes, the header %v and the title %v; want these described", c.err, w.Body.Len(), w.Header(), answer["title"])
		}
	}
}

// A hold cannot be renewed or released without the store. Its caller should send the call again.
func TestHoldsNeedTheStore(t *testing.T) {
	source := penstock.FromStore
	var fails error
	inner := memstore.New(memstore.Options{})
	store := penstock.StoreFunc(func(ctx context.Context, charges []penstock.Charge) (penstock.Decision, error) {
		if fails != nil {
			return penstock.Decision{}, fails
		}
		d, err := inner.Decide(ctx, charges)
		d.Source = source
		return d, err
	})
	s := newServiceOn(t, store, newClock())
	id := s.call("/v1/acquire", `{"check":{"rule":"jobs","key":"user:1"}}`)["id"].(string)
	for _, c := range []struct {
		source                penstock.Source
		err                   error
		renew, release, reset int // the statuses
	}{
		{source: penstock.FromStore, renew: 200, release: 200, reset: 200},
		{source: penstock.FromFallback, renew: 200, release: 503, reset: 503},
		{source: penstock.FromOpen, renew: 503, release: 503, reset: 503},
		{source: penstock.FromClosed, renew: 503, release: 503, reset: 503},
		{err: penstock.NewStoreError(penstock.ReasonUnreachable, nil), renew: 503, release: 503, reset: 503},
	} {
		source, fails = c.source, c.err
		for path, want := range map[string]int{"/v1/renew": c.renew, "/v1/release": c.release, "/v1/reset": c.reset} {
			body := `{"id":"` + id + `"}`
			if path == "/v1/reset" {
				body = `{"rule":"search","key":"user:1"}`
			}
			w := s.send(operatorToken, path, body)
			if w.Code != want || want == 503 && (!strings.Contains(w.Body.String(), "send the call again") || w.Header().Get("Retry-After") != "1") {
				t.Errorf("%s with the source %v and the error %v: %d %s; want status %d", path, c.source, c.err, w.Code, w.Body, want)
			}
		}
	}
}

// After a reload, the policy may not have the limits of a hold or a reservation any more.
func TestIDsOfRemovedLimits(t *testing.T) {
	s := newService(t)
	gone := idCharge{Rule: "gone", Limit: "hour", Key: "user:1", Cost: 1}
	unreadable := idCharge{Spec: &spec{Rate: "x"}, Key: "user:1", Cost: 1}
	moved := idCharge{Rule: "jobs", Limit: "in-flight", Variant: 7, Key: "user:1", Cost: 1, Holder: "a"}
	for name, c := range map[string]struct {
		charge         idCharge
		renew, release int
	}{
		"a limit of the policy": {gone, 409, 200}, "a caller limit": {unreadable, 409, 200}, "a removed variant": {moved, 200, 200},
	} {
		hold, err := s.idCipher.encrypt(holdKind, &idContent{Name: "a", Charges: []idCharge{c.charge}})
		if err != nil {
			t.Fatal(err)
		}
		if w := s.send(callerToken, "/v1/renew", `{"id":"`+hold+`"}`); w.Code != c.renew || w.Code == 409 && !strings.Contains(w.Body.String(), "acquire again") {
			t.Errorf("%s: Renew: %d %s; want %d", name, w.Code, w.Body, c.renew)
		}
		if w := s.send(callerToken, "/v1/release", `{"id":"`+hold+`"}`); w.Code != c.release {
			t.Errorf("%s: Release: %d %s; want %d", name, w.Code, w.Body, c.release)
		}
	}
	once, err := s.idCipher.encrypt(reservationKind, &idContent{Name: "once", TTL: 60_000, Expires: time.Now().Add(time.Minute).UnixMilli(), IsNameShared: true, Charges: []idCharge{gone}})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []bool{false, true} {
		if answer := s.call("/v1/settle", `{"id":"`+once+`","cancel":true}`); answer["is_repeat"] != want {
			t.Errorf("a Settle of a removed limit: %v; want is_repeat %t", answer, want)
		}
	}
	none, err := s.idCipher.encrypt(reservationKind, &idContent{Name: "none", TTL: 60_000, Expires: time.Now().Add(time.Minute).UnixMilli(), Charges: []idCharge{gone}})
	if err != nil {
		t.Fatal(err)
	}
	if answer := s.call("/v1/settle", `{"id":"`+none+`","cancel":true}`); answer["is_repeat"] != false {
		t.Errorf("a Settle without anything to correct: %v; want is_repeat false", answer)
	}
	for _, path := range []string{"/v1/renew", "/v1/release"} {
		if w := s.send(callerToken, path, `{"id":"x"}`); w.Code != 404 {
			t.Errorf("%s of an unreadable id: %d %s; want 404", path, w.Code, w.Body)
		}
	}
	other := base64.RawURLEncoding.EncodeToString(s.idCipher.aead.Seal(nil, nil, []byte("[]"), []byte(reservationKind)))
	if w := s.send(callerToken, "/v1/settle", `{"id":"`+other+`","cancel":true}`); w.Code != 404 || !strings.Contains(w.Body.String(), "it is of another version") {
		t.Errorf("an id of another version: %d %s; want 404", w.Code, w.Body)
	}
	if w := s.send(callerToken, "/v1/acquire", `{}`); w.Code != 400 || !strings.Contains(w.Body.String(), "check: it is missing") {
		t.Errorf("an Acquire without check: %d %s; want 400", w.Code, w.Body)
	}
}

// Corrections end after two seconds. They continue when their caller cancels.
func TestCorrectionsHaveTheirOwnTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner := memstore.New(memstore.Options{})
		isCorrection := false
		var deadlines []time.Duration
		store := penstock.StoreFunc(func(ctx context.Context, charges []penstock.Charge) (penstock.Decision, error) {
			if isCorrection {
				deadline, _ := ctx.Deadline()
				deadlines = append(deadlines, time.Until(deadline))
				if ctx.Err() != nil {
					t.Errorf("the context of a correction ended: %v; want that it ignores the caller's cancel", ctx.Err())
				}
			}
			return inner.Decide(ctx, charges)
		})
		s := newServiceOn(t, store, newClock())
		reservation := s.reserve(`{"check":{"rule":"search","key":"user:1"}}`)
		hold := s.call("/v1/acquire", `{"check":{"rule":"jobs","key":"user:1"}}`)["id"].(string)
		isCorrection = true
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, settled := s.Settle(ctx, &penstockv1.SettleRequest{Id: reservation, Cancel: true})
		_, released := s.Release(ctx, &penstockv1.ReleaseRequest{Id: hold})
		_, reset := s.Reset(ctx, &penstockv1.CheckRequest{Rule: "search", Key: "user:1"})
		if settled != nil || released != nil || reset != nil {
			t.Errorf("Settle, Release and Reset of a canceled call return %v, %v and %v; want no error", settled, released, reset)
		}
		if want := "[2s 2s 2s]"; fmt.Sprint(deadlines) != want {
			t.Errorf("the corrections may take %v; want %s", deadlines, want)
		}
	})
}

// The store remembers that a reservation was settled for its ttl and the difference of two clocks.
func TestSettledReservationsAreRememberedUntilNoProcessAcceptsThem(t *testing.T) {
	inner := memstore.New(memstore.Options{})
	var sent []penstock.Charge
	s := newServiceOn(t, penstock.StoreFunc(func(ctx context.Context, charges []penstock.Charge) (penstock.Decision, error) {
		sent = append([]penstock.Charge(nil), charges...)
		return inner.Decide(ctx, charges)
	}), newClock())
	for ttl, want := range map[string]time.Duration{"": 12 * time.Minute, `,"ttl_ms":90000`: 3*time.Minute + 30*time.Second} {
		id := s.reserve(`{"check":{"rule":"search","key":"user:1"}` + ttl + `}`)
		s.call("/v1/settle", `{"id":"`+id+`","cancel":true}`)
		if got := sent[0].Plan.Limit(); got.Period != want || got.Count != 1 || got.Burst != 1 || sent[0].Cost != 1 {
			t.Errorf("ttl %q: a Settle charges %d units of %+v; want 1 unit of 1 per %v", ttl, sent[0].Cost, got, want)
		}
	}
	now := time.Now()
	for by, want := range map[time.Duration]bool{0: true, time.Millisecond: true, -time.Millisecond: false} {
		made := idContent{Expires: now.UnixMilli()}
		if got := made.isExpired(now.Truncate(time.Millisecond).Add(by)); got != want {
			t.Errorf("%v after its expiry, a reservation is expired: %t; want %t", by, got, want)
		}
	}
	answer := s.call("/v1/reserve", `{"check":{"rule":"search","key":"user:2"}}`)
	if ms := answer["expires_in_ms"].(float64); ms != 600_000 {
		t.Errorf("a reservation without ttl_ms expires in %v ms; want 600000", ms)
	}
}

// Part of the time of a gRPC call is kept for the fallback and the response.
func TestStoreMustAnswerBeforeTheDeadlineOfAGRPCCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner := memstore.New(memstore.Options{})
		var left time.Duration
		store := penstock.Wrap(penstock.StoreFunc(func(ctx context.Context, charges []penstock.Charge) (penstock.Decision, error) {
			deadline, _ := ctx.Deadline()
			left = time.Until(deadline)
			return inner.Decide(ctx, charges)
		}), guard.Timeout(guard.TimeoutOptions{After: time.Minute}))
		s := newServiceOn(t, store, newClock(), func(o *Options) { o.AllowAnonymous = true })
		for before, want := range map[time.Duration]time.Duration{
			time.Second: 995 * time.Millisecond, 20 * time.Millisecond: 15 * time.Millisecond, 8 * time.Millisecond: 6 * time.Millisecond, time.Hour: time.Minute,
		} {
			ctx, cancel := context.WithTimeout(metadata.NewIncomingContext(t.Context(), nil), before)
			if _, err := (grpcServer{service: s.Service}).Check(ctx, &penstockv1.CheckRequest{Rule: "search", Key: "user:1"}); err != nil {
				t.Error(err)
			}
			cancel()
			if left != want {
				t.Errorf("%v before the deadline of a call, the store has %v; want %v", before, left, want)
			}
		}
	})
}

// Every call over gRPC fails without a token, also one with an error of the service.
func TestAllGRPCCallsNeedAToken(t *testing.T) {
	client := dial(t, newService(t).Service)
	ctx := t.Context()
	var all []error
	add := func(_ any, err error) { all = append(all, err) }
	add(client.Check(ctx, &penstockv1.CheckRequest{}))
	add(client.CheckBatch(ctx, &penstockv1.CheckBatchRequest{}))
	add(client.Reserve(ctx, &penstockv1.ReserveRequest{}))
	add(client.Settle(ctx, &penstockv1.SettleRequest{}))
	add(client.Acquire(ctx, &penstockv1.AcquireRequest{}))
	add(client.Renew(ctx, &penstockv1.RenewRequest{}))
	add(client.Release(ctx, &penstockv1.ReleaseRequest{}))
	add(client.Peek(ctx, &penstockv1.CheckRequest{}))
	add(client.Reset(ctx, &penstockv1.CheckRequest{}))
	add(client.Explain(ctx, &penstockv1.CheckRequest{}))
	for i, err := range all {
		if status.Code(err) != codes.Unauthenticated {
			t.Errorf("call %d without a token: %v; want UNAUTHENTICATED", i, err)
		}
	}
}

func TestNewServiceRefusesWrongOptions(t *testing.T) {
	store := memstore.New(memstore.Options{})
	controller, err := admission.New(store, rulesOf(t, rules), admission.Options{})
	if err != nil {
		t.Fatal(err)
	}
	longest := []byte(strings.Repeat("a", 4096))
	tooLong := append([]byte("a"), longest...)
	for name, c := range map[string]struct {
		options Options
		want    string // a part of the error; "": none
	}{
		"a long CallerToken":            {Options{CallerToken: tooLong}, "Options.CallerToken has 4097 bytes; at most 4096"},
		"a long OperatorToken":          {Options{OperatorToken: tooLong}, "Options.OperatorToken has 4097 bytes; at most 4096"},
		"the longest tokens":            {Options{CallerToken: longest, OperatorToken: longest}, ""},
		"without any field":             {Options{}, ""},
		"negative numbers mean default": {Options{Parallel: -1, MaxParallel: -1}, ""},
	} {
		s, err := New(store, controller, c.options)
		if c.want == "" {
			if err != nil || s.options.Parallel != 64 || s.options.MaxParallel != 1024 {
				t.Errorf("%s: New returns %+v, %v; want a Service with Parallel 64 and MaxParallel 1024", name, s, err)
			}
			continue
		}
		if !errors.Is(err, penstock.ErrInvalid) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: the error is %v; want ErrInvalid with %q", name, err, c.want)
		}
	}
	s, err := New(store, controller, Options{Parallel: 1, MaxParallel: 1})
	if err != nil || s.options.Parallel != 1 || s.options.MaxParallel != 1 {
		t.Errorf("New returns %+v, %v; want Parallel 1 and MaxParallel 1", s, err)
	}
}

// Two services without a Secret cannot open each other's ids.
func TestDefaultSecretsAreRandom(t *testing.T) {
	withoutSecret := func(o *Options) { o.Secret = nil }
	id := newService(t, withoutSecret).reserve(`{"check":{"rule":"search","key":"user:1"}}`)
	if w := newService(t, withoutSecret).send(callerToken, "/v1/settle", `{"id":"`+id+`","cancel":true}`); w.Code != 404 {
		t.Errorf("a Settle at another service: %d %s; want 404", w.Code, w.Body)
	}
}
