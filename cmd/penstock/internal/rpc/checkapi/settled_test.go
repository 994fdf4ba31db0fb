package checkapi

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/admission"
	"github.com/penstock/penstock/guard"
	"github.com/penstock/penstock/internal/testing/redistest"
	"github.com/penstock/penstock/memstore"
	"github.com/penstock/penstock/redisstore"
)

const tokenRules = `rules: [{name: tokens, per: {user: header X-User}, limits: [{rate: 1000/h}]}]`

// guardedServices makes two services with the guards of penstock serve, as two instances have them.
// newStore returns the store of one instance.
func guardedServices(t *testing.T, newStore func() penstock.Store) (two [2]*testService) {
	t.Helper()
	compiled := rulesOf(t, tokenRules)
	for i := range two {
		store, err := guard.Standard(newStore(), guard.Options{Limits: compiled.Settings, Instances: 2, Timeout: guard.TimeoutOptions{After: time.Minute}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(store.Close)
		controller, err := admission.New(store, compiled, admission.Options{})
		if err != nil {
			t.Fatal(err)
		}
		service, err := New(store, controller, Options{OperatorToken: []byte(operatorToken), Secret: []byte("secret of all instances")})
		if err != nil {
			t.Fatal(err)
		}
		two[i] = &testService{TB: t, Service: service}
	}
	return two
}

// A settled reservation would be free for ever if it could be repeated: nothing is charged for the
// repeat, and nothing is corrected.
func TestSettledReservationIsRefused(t *testing.T) {
	stores := map[string]func() func() penstock.Store{
		"memory": func() func() penstock.Store {
			store := memstore.New(memstore.Options{})
			return func() penstock.Store { return store }
		},
		"redis": func() func() penstock.Store {
			server := redistest.Start(t)
			return func() penstock.Store {
				store, err := redisstore.Open(server.URL(), redisstore.Options{})
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { store.Close() })
				return store
			}
		},
	}
	const reserve = `{"check":{"rule":"tokens","key":"user:1","cost":1000}}`
	const withID = `{"check":{"rule":"tokens","key":"user:1","cost":1000,"request_id":"a"}}`
	for name, newStore := range stores {
		for _, settle := range []string{`"actual":0`, `"cancel":true`, `"actual":1000`, `"status":200`} {
			t.Run(name+"/"+settle, func(t *testing.T) {
				two := guardedServices(t, newStore())
				id := two[0].reserve(withID)
				two[1].reserve(withID) // a repeat, which no guard may remember after the Settle
				two[0].call("/v1/settle", `{"id":"`+id+`",`+settle+`}`)
				for i := range 40 {
					w := two[i%2].send(operatorToken, "/v1/reserve", withID)
					if w.Code != 409 || !strings.Contains(w.Body.String(), `"failed_precondition"`) || !strings.Contains(w.Body.String(), "was settled; reserve with a new id") {
						t.Fatalf("a Reserve with the id of a settled reservation: %d %s; want 409 failed_precondition", w.Code, w.Body)
					}
					w = two[i%2].send(operatorToken, "/v1/reserve", reserve, "Idempotency-Key: a")
					if w.Code != 409 {
						t.Fatalf("a Reserve with the id of a settled reservation as Idempotency-Key: %d %s; want 409", w.Code, w.Body)
					}
				}
				want := int64(1000)
				if strings.Contains(settle, "1000") || strings.Contains(settle, "200") {
					want = 0
				}
				if n := two[1].left(`{"rule":"tokens","key":"user:1"}`, "tokens.hour"); n != want {
					t.Errorf("%d units are left; want %d", n, want)
				}
			})
		}
	}
}

// Reserves and settles of one id race. Whatever their order, one reservation is made.
func TestParallelReservesAndSettlesOfOneIDMakeOneReservation(t *testing.T) {
	server := redistest.Start(t)
	two := guardedServices(t, func() penstock.Store {
		store, err := redisstore.Open(server.URL(), redisstore.Options{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { store.Close() })
		return store
	})
	const reserve = `{"check":{"rule":"tokens","key":"user:1","cost":1000,"request_id":"a"}}`
	var granted, settled, refused atomic.Int64
	var all sync.WaitGroup
	for i := range 200 {
		all.Go(func() {
			service := two[i%2]
			isSettledBefore := settled.Load() > 0
			w := service.send(operatorToken, "/v1/reserve", reserve)
			if w.Code == 409 {
				refused.Add(1)
				return
			}
			answer := objectOf(t, w.Body.String())
			if isSettledBefore {
				t.Errorf("a Reserve after the Settle: %v; want 409", answer)
			}
			if answer.object("decision")["is_repeat"] == false {
				granted.Add(1)
			}
			id, _ := answer["id"].(string)
			if w := service.send(operatorToken, "/v1/settle", fmt.Sprintf(`{"id":"%s","actual":0}`, id)); w.Code != 200 {
				t.Errorf("a Settle: %d %s; want 200", w.Code, w.Body)
			}
			settled.Add(1)
		})
	}
	all.Wait()
	w := two[0].send(operatorToken, "/v1/reserve", reserve)
	if granted.Load() != 1 || w.Code != 409 {
		t.Errorf("%d reservations of 1000 units were made, %d were refused, and one after them: %d %s; want 1 made, and 409", granted.Load(), refused.Load(), w.Code, w.Body)
	}
}

// If a reservation could be made anew before the id of an earlier one has expired, both would have
// the same name, and only one would be corrected.
func TestRepeatsAreFreeUntilTheReservationExpires(t *testing.T) {
	s := newService(t)
	const reserve = `{"check":{"rule":"search","key":"user:1","request_id":"a"},"ttl_ms":86400000}`
	s.reserve(reserve)
	for range 5 {
		s.clock.advance(4 * time.Hour)
		if d := s.call("/v1/reserve", reserve).object("decision"); d["is_repeat"] != true {
			t.Errorf("a Reserve with the same id before the reservation has expired: %v; want is_repeat true", d)
		}
	}
	s.clock.advance(4*time.Hour + 2*maxClockDifference)
	if d := s.call("/v1/reserve", reserve).object("decision"); d["is_repeat"] != false {
		t.Errorf("a Reserve with the same id after the reservation has expired: %v; want is_repeat false", d)
	}
}

// A reservation that the fallback has granted is not the one that the store grants later, although
// both have the same id.
func TestReservationOfTheFallbackIsSettledApart(t *testing.T) {
	const text = `rules: [{name: jobs, per: {user: header X-User}, limits: [{name: hour, rate: 1000/h}, {in_flight: 5, ttl: 1m}]}]`
	const reserve = `{"check":{"rule":"jobs","key":"user:1","request_id":"a"}}`
	var isDown atomic.Bool
	inner, outage := memstore.New(memstore.Options{}), failingStore(penstock.ReasonTimeout)
	s := newServiceOf(t, text, penstock.StoreFunc(func(ctx context.Context, charges []penstock.Charge) (penstock.Decision, error) {
		if isDown.Load() {
			return outage.Decide(ctx, charges)
		}
		return inner.Decide(ctx, charges)
	}))
	isDown.Store(true)
	alone := s.reserve(reserve)
	isDown.Store(false)
	inStore := s.reserve(reserve)
	s.call("/v1/settle", `{"id":"`+alone+`","actual":600}`)
	if answer := s.call("/v1/settle", `{"id":"`+inStore+`","actual":600}`); answer["is_repeat"] != false {
		t.Errorf("the Settle of the store's reservation: %v; want is_repeat false", answer)
	}
	if n := s.left(`{"rule":"jobs","key":"user:1"}`, "jobs.hour"); n != 400 {
		t.Errorf("%d units are left; want 400", n)
	}
}

// The record of a Settle is under the first key of the reservation, even if the policy has lost the
// limit of this key since.
func TestSettledReservationIsRefusedAfterItsFirstLimitIsGone(t *testing.T) {
	const old = `rules: [{name: a, per: {user: header X-User}, limits: [{name: mine, rate: 1000/h}, {name: all, per: global, rate: 9000/h}]}]`
	const changed = `rules: [{name: a, per: {user: header X-User}, limits: [{name: all, per: global, rate: 9000/h}]}]`
	store := memstore.New(memstore.Options{})
	before, after := newServiceOf(t, old, store), newServiceOf(t, changed, store)
	const reserve = `{"check":{"attributes":{"headers":{"X-User":"1"}},"request_id":"a"}}`
	id := before.reserve(reserve)
	after.call("/v1/settle", `{"id":"`+id+`","actual":0}`)
	if w := before.send(operatorToken, "/v1/reserve", reserve); w.Code != 409 {
		t.Errorf("a Reserve with the id of a reservation that a changed policy has settled: %d %s; want 409", w.Code, w.Body)
	}
}
