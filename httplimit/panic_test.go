package httplimit_test

import (
	"context"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/admission"
	"github.com/penstock/penstock/memstore"
)

// If the decision about a shadow panics, the request continues, and is limited.
func TestPanicsOfShadowsAreIgnored(t *testing.T) {
	for _, text := range []string{looserShadows, otherAlgorithms} {
		memory := memstore.New(memstore.Options{})
		gate, _ := gateWith(t, penstock.StoreFunc(func(ctx context.Context, charges []penstock.Charge) (penstock.Decision, error) {
			if isShadow(charges) {
				panic("a bug in a decorator")
			}
			return memory.Decide(ctx, charges)
		}), text)
		for i, want := range []int{200, 200, 429} {
			if w := send(gate.Middleware(respond(200)), "GET", "/"); w.Code != want {
				t.Errorf("request %d: status %d; want %d", i+1, w.Code, want)
			}
		}
	}
}

func TestPanicOfAnObserverDoesNotEndTheProcess(t *testing.T) {
	gate := gateOn(t, controllerOf(t, memstore.New(memstore.Options{}), rulesOf(t, otherAlgorithms), admission.Options{Observe: func(e *admission.Event) {
		if e.Outcome == admission.ShadowAllowed {
			panic("a bug in an observer")
		}
	}}))
	if w := send(gate.Middleware(respond(200)), "GET", "/"); w.Code != 200 {
		t.Errorf("status %d; want 200", w.Code)
	}
}

// Goroutines of the Gate renew and return slots. A panic in such a goroutine must not end the
// process.
func TestPanicsInTheBackgroundDoNotEndTheProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		memory, calls := memstore.New(memstore.Options{}), 0
		gate, _ := gateWith(t, penstock.StoreFunc(func(ctx context.Context, charges []penstock.Charge) (penstock.Decision, error) {
			calls++
			if calls > 1 {
				panic("a bug in a decorator")
			}
			return memory.Decide(ctx, charges)
		}), "rules: [{name: a, per: global, limits: [{name: slots, in_flight: 1}]}]")
		h := gate.Middleware(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { time.Sleep(10 * time.Minute) }))
		if w := send(h, "GET", "/"); w.Code != 200 || calls < 3 {
			t.Errorf("status %d after %d calls; want 200, and at least 3 calls: to take, renew and return the slot", w.Code, calls)
		}
	})
}

// Guards also call the store in the background, with the request's context. Guards may use this
// context after the request has ended.
func TestContextMayBeUsedAfterTheRequest(t *testing.T) {
	memory := memstore.New(memstore.Options{})
	var background sync.WaitGroup
	gate, _ := gateWith(t, penstock.StoreFunc(func(ctx context.Context, charges []penstock.Charge) (penstock.Decision, error) {
		background.Go(func() { _, _ = ctx.Err(), ctx.Value(0) })
		return memory.Decide(ctx, charges)
	}), `
tokens: {secret: "0123456789abcdef0123456789abcdef", audience: a, issuer: i}
rules:
  - {name: first, before_auth: true, per: global, limits: [{rate: 1000/h}]}
  - {name: claim, per: {sub: claim sub}, limits: [{rate: 1000/h}]}
  - {name: a, always: true, per: global, limits: [{rate: 1000/h, candidate: {rate: 500/h}}]}
`)
	for range 100 {
		send(gate.Middleware(respond(200)), "GET", "/", "Authorization", "Bearer x")
	}
	background.Wait()
}
