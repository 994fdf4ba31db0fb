package checkapi

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/admission"
	"github.com/penstock/penstock/guard"
	"github.com/penstock/penstock/internal/testing/redistest"
	"github.com/penstock/penstock/memstore"
	"github.com/penstock/penstock/redisstore"
)

// reserve makes a reservation, and returns its id.
func (s *testService) reserve(body string) string {
	s.Helper()
	answer := s.call("/v1/reserve", body)
	id, _ := answer["id"].(string)
	if id == "" || answer.object("decision")["allowed"] != true || answer["expires_in_ms"].(float64) <= 0 {
		s.Fatalf("%s: %v; want a reservation", body, answer)
	}
	return id
}

// left returns how many units are left of a limit that applies to a check.
func (s *testService) left(check, limit string) int64 {
	s.Helper()
	return s.call("/v1/peek", check).remaining(s, limit)
}

func TestSettleCorrectsAReservationOnce(t *testing.T) {
	const tokens = `{"attributes":{"path":"/tokens","headers":{"X-User":"1"}}}`
	const login = `{"attributes":{"path":"/login","address":"192.0.2.7"}}`
	const search = `{"rule":"search","key":"user:1","cost":2}`
	const callerLimit = `{"key":"a","limits":[{"rate":"100/h"}],"cost":40}`
	for _, c := range []struct {
		check, settle     string
		limit             string
		reserved, settled int64 // units left of the limit after the Reserve, and after the Settle
	}{
		{check: tokens, settle: `"actual":10`, limit: "tokens.tokens", reserved: 60, settled: 90},
		{check: tokens, settle: `"actual":75`, limit: "tokens.tokens", reserved: 60, settled: 25},
		{check: tokens, settle: `"actual":150`, limit: "tokens.tokens", reserved: 60, settled: 0}, // charged even if it does not fit
		{check: tokens, settle: `"actual":0`, limit: "tokens.calls", reserved: 8, settled: 8},     // the actual cost is only for limits with cost.actual
		{check: tokens, settle: `"cancel":true`, limit: "tokens.calls", reserved: 8, settled: 9},
		{check: tokens, settle: `"status":200`, limit: "tokens.tokens", reserved: 60, settled: 60},
		{check: login, settle: `"status":401`, limit: "login.hour", reserved: 4, settled: 4},
		{check: login, settle: `"status":200`, limit: "login.hour", reserved: 4, settled: 5},
		{check: search, settle: `"actual":1`, limit: "search.minute", reserved: 1, settled: 2},
		{check: search, settle: `"actual":1`, limit: "search.day", reserved: 8, settled: 9},
		{check: search, settle: `"cancel":true`, limit: "search.day", reserved: 8, settled: 10},
		{check: callerLimit, settle: `"actual":1`, limit: "hour", reserved: 60, settled: 99},
		{check: callerLimit, settle: `"cancel":true`, limit: "hour", reserved: 60, settled: 100},
	} {
		s := newService(t)
		id := s.reserve(`{"check":` + c.check + `}`)
		if n := s.left(c.check, c.limit); n != c.reserved {
			t.Errorf("%s reserved: limit %s has %d units left; want %d", c.check, c.limit, n, c.reserved)
		}
		for i, settle := range []string{c.settle, c.settle, `"actual":3`, `"cancel":true`} {
			answer := s.call("/v1/settle", `{"id":"`+id+`",`+settle+`}`)
			if answer["is_repeat"] != (i > 0) {
				t.Errorf("%s settled by %s: %v; want is_repeat %t", c.check, settle, answer, i > 0)
			}
			if n := s.left(c.check, c.limit); n != c.settled {
				t.Errorf("%s settled by %s: limit %s has %d units left; want %d", c.check, settle, c.limit, n, c.settled)
			}
		}
	}
}

// 95 of the 100 reserved units are refilled and spent by others. So 5 return, and 100 pass in this
// moment.
func TestLateCancelReturnsNoRefilledUnits(t *testing.T) {
	const reserved = `{"key":"a","limits":[{"rate":"50/s","burst":100}],"cost":100}`
	const check = `{"key":"a","limits":[{"rate":"50/s","burst":100}],"cost":95}`
	s := newService(t)
	id := s.reserve(`{"check":` + reserved + `}`)
	s.clock.advance(1900 * time.Millisecond)
	if answer := s.call("/v1/check", check); answer["allowed"] != true {
		t.Fatalf("a check of 95 units: %v; want it allowed", answer)
	}
	s.call("/v1/settle", `{"id":"`+id+`","cancel":true}`)
	if left := s.left(check, "second"); left != 5 {
		t.Errorf("%d units are left; want 5", left)
	}
}

// Others keep a bucket nearly empty, so the surplus of a long request still counts when it is
// settled. A repeat of the reservation can settle it too.
func TestLateSettleReturnsTheSurplus(t *testing.T) {
	const limits = `"key":"a","limits":[{"rate":"100k/min"}]`
	for _, settlesRepeat := range []bool{false, true} {
		s := newService(t)
		s.call("/v1/check", `{`+limits+`,"cost":80000}`)
		reservation := `{"check":{` + limits + `,"cost":16000,"request_id":"r1"}}`
		id := s.reserve(reservation)
		for range 60 {
			s.clock.advance(time.Second)
			s.call("/v1/check", `{`+limits+`,"cost":1666}`)
		}
		if settlesRepeat {
			id = s.reserve(reservation)
		}
		before := s.left(`{`+limits+`,"cost":1}`, "minute")
		s.call("/v1/settle", `{"id":"`+id+`","actual":100}`)
		if back := s.left(`{`+limits+`,"cost":1}`, "minute") - before; back != 15_900 {
			t.Errorf("settled by a repeat %t: %d units came back; want 15900", settlesRepeat, back)
		}
	}
}

// twoInstances makes two services that share one Redis and one secret.
func twoInstances(t *testing.T) (all [2]*testService) {
	t.Helper()
	server := redistest.Start(t)
	for i := range all {
		store, err := redisstore.Open(server.URL(), redisstore.Options{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { store.Close() })
		all[i] = newServiceOn(t, store, nil)
	}
	return all
}

func TestParallelSettlesCorrectOnce(t *testing.T) {
	two := twoInstances(t)
	for round := range 5 {
		check := fmt.Sprintf(`{"key":"user:%d","limits":[{"name":"one","rate":"1000/w"},{"name":"two","rate":"9000/w"}],"cost":500}`, round)
		id := two[0].reserve(`{"check":` + check + `}`)
		var all sync.WaitGroup
		var mu sync.Mutex
		notRepeats := 0
		for i := range 50 {
			all.Go(func() {
				answer := two[i%2].call("/v1/settle", fmt.Sprintf(`{"id":"%s","actual":%d}`, id, 300))
				mu.Lock()
				defer mu.Unlock()
				if answer["is_repeat"] == false {
					notRepeats++
				}
			})
		}
		all.Wait()
		if one, other := two[1].left(check, "one"), two[1].left(check, "two"); notRepeats != 1 || one != 700 || other != 8700 {
			t.Errorf("%d calls are not repeats, and %d and %d units are left; want 1 call, 700 and 8700 units", notRepeats, one, other)
		}
	}
}

// An instance with the same secret can settle a reservation of another instance, even if it started
// after the reservation was made.
func TestAnotherProcessCanSettleAReservation(t *testing.T) {
	two := twoInstances(t)
	id := two[0].reserve(`{"check":{"rule":"search","key":"user:1","cost":3,"request_id":"a"}}`)
	again := two[1].call("/v1/reserve", `{"check":{"rule":"search","key":"user:1","cost":3,"request_id":"a"}}`)
	if again.object("decision")["is_repeat"] != true || again["id"] == "" {
		t.Fatalf("a repeated Reserve at another instance: %v; want is_repeat true and an id", again)
	}
	third := newServiceOn(t, two[1].Service.store, nil)
	if answer := third.call("/v1/settle", `{"id":"`+id+`","actual":1}`); answer["is_repeat"] != false {
		t.Errorf("a Settle at an instance that started later: %v; want is_repeat false", answer)
	}
	if answer := two[0].call("/v1/settle", `{"id":"`+again["id"].(string)+`","actual":0}`); answer["is_repeat"] != true {
		t.Errorf("a Settle with the id from the repeated Reserve: %v; want is_repeat true", answer)
	}
	if n := third.left(`{"rule":"search","key":"user:1"}`, "search.minute"); n != 2 {
		t.Errorf("%d units are left; want 2", n)
	}
}

// Each region has its own store, so another region does not know whether a reservation was settled.
func TestAnotherRegionRefusesReservationsAndHolds(t *testing.T) {
	in := func(region string) *testService { return newService(t, func(o *Options) { o.Region = region }) }
	eu, us, none := in("eu"), in("us"), in("")
	const check = `{"rule":"search","key":"user:1","cost":2}`
	reservation := eu.reserve(`{"check":` + check + `}`)
	hold := eu.call("/v1/acquire", `{"check":{"rule":"jobs","key":"user:1"}}`)["id"].(string)
	us.reserve(`{"check":` + check + `}`)
	for path, body := range map[string]string{
		"/v1/settle":  `{"id":"` + reservation + `","actual":0}`,
		"/v1/renew":   `{"id":"` + hold + `"}`,
		"/v1/release": `{"id":"` + hold + `"}`,
	} {
		if w := us.send(callerToken, path, body); w.Code != 409 || !strings.Contains(w.Body.String(), "belongs to region eu, and this is region us; send the call to region eu") {
			t.Errorf("%s in another region: %d %s; want 409, and the region to call", path, w.Code, w.Body)
		}
	}
	if n, slots := us.left(check, "search.minute"), us.left(`{"rule":"jobs","key":"user:1"}`, "jobs.in-flight"); n != 1 || slots != 2 {
		t.Errorf("after calls with ids of another region, %d units and %d slots are left; want 1 and 2", n, slots)
	}
	if answer := eu.call("/v1/settle", `{"id":"`+reservation+`","actual":0}`); answer["is_repeat"] != false {
		t.Errorf("a Settle in the region of the reservation: %v; want is_repeat false", answer)
	}
	if n := eu.left(check, "search.minute"); n != 3 {
		t.Errorf("after a Settle in the region of the reservation, %d units are left; want 3", n)
	}
	// An id without a region is from before the regions had names.
	old := none.reserve(`{"check":` + check + `}`)
	if answer := us.call("/v1/settle", `{"id":"`+old+`","actual":0}`); answer["is_repeat"] != false {
		t.Errorf("a Settle of a reservation without a region: %v; want is_repeat false", answer)
	}
}

// The store remembers a Settle for about the ttl of its reservation. So a Reserve with another ttl
// is not a repeat, and makes another reservation.
func TestReserveWithAnotherTTLIsNotARepeat(t *testing.T) {
	s := newService(t)
	reserve := func(ttl string) object {
		return s.call("/v1/reserve", `{"check":{"rule":"search","key":"user:1","request_id":"a"},"ttl_ms":`+ttl+`}`)
	}
	long := reserve("86400000")
	for i, row := range []struct {
		ttl      string
		isRepeat bool
	}{{"86400000", true}, {"2000", false}, {"2000", true}} {
		if d := reserve(row.ttl).object("decision"); d["is_repeat"] != row.isRepeat {
			t.Errorf("Reserve %d, with ttl_ms %s: %v; want is_repeat %t", i, row.ttl, d, row.isRepeat)
		}
	}
	if answer := s.call("/v1/settle", `{"id":"`+long["id"].(string)+`","cancel":true}`); answer["is_repeat"] != false {
		t.Errorf("the first Settle: %v; want is_repeat false", answer)
	}
	if n := s.left(`{"rule":"search","key":"user:1"}`, "search.minute"); n != 2 {
		t.Errorf("%d units are left; want 2, because one of two reservations was canceled", n)
	}
}

func TestInvalidReservationIDsAreRefused(t *testing.T) {
	s := newService(t)
	id := s.reserve(`{"check":{"rule":"search","key":"user:secret","cost":2}}`)
	if strings.Contains(id, "secret") || len(id) > 600 {
		t.Errorf("the id %s has %d bytes; want at most 600, and no key in it", id, len(id))
	}
	hold := s.call("/v1/acquire", `{"check":{"rule":"jobs","key":"user:1"}}`)["id"].(string)
	old, err := s.idCipher.encrypt(reservationKind, &idContent{Name: "a", Expires: time.Now().Add(-time.Second).UnixMilli()})
	if err != nil {
		t.Fatal(err)
	}
	other := newService(t, func(o *Options) { o.Secret = []byte("another secret") })
	forged := []byte(id)
	forged[len(forged)/2] ^= 1 // one character differs
	for body, want := range map[string]string{
		`{}`:                              "id: it has 0 bytes",
		`{"id":"x"}`:                      "id: it is malformed",
		`{"id":"` + string(forged) + `"}`: "id: it is",
		`{"id":"` + hold + `"}`:           "id: it is not of this service",
		`{"id":"` + strings.Repeat("a", maxIDLength+1) + `"}`: "id: it has 786433 bytes",
		`{"id":"` + id + `"}`:                          "actual: write how the request ended",
		`{"id":"` + id + `","cancel":false}`:           "actual: write how the request ended",
		`{"id":"` + id + `","actual":-1}`:              "actual: write 0 to",
		`{"id":"` + id + `","status":99}`:              "status: write the status",
		`{"id":"` + id + `","status":99999999999}`:     "status: it is out of range",
		`{"id":"` + id + `","cancel":true,"actual":1}`: "cancel: a request that was not served",
	} {
		if w := s.send(callerToken, "/v1/settle", body); w.Code != 400 && w.Code != 404 || !strings.Contains(w.Body.String(), want) {
			t.Errorf("a Settle with %.100s: %d %s; want status 400 or 404 with %q", body, w.Code, w.Body, want)
		}
	}
	if w := s.send(callerToken, "/v1/settle", `{"id":"`+old+`","actual":0}`); w.Code != 409 || !strings.Contains(w.Body.String(), "has expired") {
		t.Errorf("a Settle of an old reservation: %d %s; want 409, and that the reservation has expired", w.Code, w.Body)
	}
	if w := other.send(callerToken, "/v1/settle", `{"id":"`+id+`","actual":0}`); w.Code != 404 {
		t.Errorf("a Settle at a service with another secret: %d %s; want 404", w.Code, w.Body)
	}
	for body, want := range map[string]string{
		`{}`: "check: it is missing",
		`{"check":{"rule":"search","key":"user:1"},"ttl_ms":999}`:              "ttl_ms: write 1000 to 86400000",
		`{"check":{"rule":"search","key":"user:1"},"ttl_ms":9007199254740991}`: "ttl_ms: write 1000 to 86400000",
		`{"check":{"rule":"search","cost":-1}}`:                                "check.cost: write 0",
		`{"check":{"attributes":{"path":"x"}}}`:                                "check.attributes.path: ",
	} {
		if w := s.send(callerToken, "/v1/reserve", body); w.Code != 400 || !strings.Contains(w.Body.String(), want) {
			t.Errorf("a Reserve with %s: %d %s; want status 400 with %q", body, w.Code, w.Body, want)
		}
	}
	if answer := s.call("/v1/reserve", `{"check":{"rule":"search","key":"user:secret","cost":2}}`); answer["id"] != "" || answer.object("decision")["allowed"] != false {
		t.Errorf("a Reserve of more units than are left: %v; want a denial without an id", answer)
	}
}

// The id contains the key once for each limit. JSON escapes each "<" in it by six bytes.
func TestIDsOfLongKeysAreAccepted(t *testing.T) {
	s := newService(t)
	limits := []string{`{"in_flight":1}`}
	for i := range maxCallerLimits - 1 {
		limits = append(limits, fmt.Sprintf(`{"name":"limit-%d","rate":"9/h"}`, i))
	}
	check := `{"check":{"key":"` + strings.Repeat("<", maxKey) + `","limits":[` + strings.Join(limits, ",") + `]}`
	id := s.reserve(check + `}`)
	s.call("/v1/settle", `{"id":"`+id+`","cancel":true}`)
	hold := s.call("/v1/acquire", check+`,"holder":"`+strings.Repeat("<", maxHolder)+`"}`)
	s.call("/v1/release", `{"id":"`+hold["id"].(string)+`"}`)
}

// A Settle that fails in an outage can be repeated. The correction then happens exactly once.
func TestSettleCanBeRepeatedAfterAnOutage(t *testing.T) {
	inner := memstore.New(memstore.Options{})
	var isDown, isReplyLost bool
	store := penstock.StoreFunc(func(ctx context.Context, charges []penstock.Charge) (penstock.Decision, error) {
		if isDown {
			return penstock.Decision{}, penstock.NewStoreError(penstock.ReasonUnreachable, nil)
		}
		d, err := inner.Decide(ctx, charges)
		if isReplyLost && err == nil {
			return penstock.Decision{}, penstock.NewStoreError(penstock.ReasonTimeout, nil)
		}
		return d, err
	})
	s := newServiceOf(t, rules, store)
	const check = `{"rule":"search","key":"user:1","cost":3}`
	id := s.reserve(`{"check":` + check + `}`)
	settle := func(want int) {
		t.Helper()
		w := s.send(callerToken, "/v1/settle", `{"id":"`+id+`","actual":1}`)
		if w.Code != want || want == 503 && (!strings.Contains(w.Body.String(), "send the call again") || w.Header().Get("Retry-After") != "1") {
			t.Errorf("a Settle: %d %s; want status %d, and for 503 a remedy and Retry-After: 1", w.Code, w.Body, want)
		}
	}
	isDown = true
	settle(503)
	settle(503)
	isDown, isReplyLost = false, true
	settle(503) // the correction was made, and the reply was lost
	isReplyLost = false
	settle(200)
	if n := s.left(check, "search.minute"); n != 2 {
		t.Errorf("%d units are left; want 2, because the correction is made once", n)
	}
}

// An Acquire or a Renew fails at one instance, and another instance has granted the slot. The first
// instance then returns nothing, although the store has got its charges.
func TestHolderThatChangesTheInstanceKeepsItsSlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		memory := memstore.New(memstore.Options{})
		var isReplyLost atomic.Bool
		lossy := penstock.StoreFunc(func(ctx context.Context, charges []penstock.Charge) (penstock.Decision, error) {
			d, err := memory.Decide(ctx, charges)
			if isReplyLost.Load() && err == nil {
				return penstock.Decision{}, penstock.NewStoreError(penstock.ReasonTimeout, nil)
			}
			return d, err
		})
		guarded, err := guard.Standard(lossy, guard.Options{Instances: 1, OnFailure: guard.FailClosed, DenyCacheTTL: -1})
		if err != nil {
			t.Fatal(err)
		}
		defer guarded.Close()
		first, second := newServiceOn(t, guarded, newClock()), newServiceOn(t, memory, newClock())
		const check = `{"rule":"jobs","key":"user:1"}`
		const acquire = `{"check":` + check + `,"holder":"job-1"}`
		isReplyLost.Store(true)
		if denied := first.call("/v1/acquire", acquire); denied["id"] != "" {
			t.Fatalf("an Acquire without an answer of the store: %v; want a denial", denied)
		}
		time.Sleep(time.Millisecond)
		id := `{"id":"` + second.call("/v1/acquire", acquire)["id"].(string) + `"}`
		wantFree := func(want int64, when string) {
			t.Helper()
			isReplyLost.Store(false)
			time.Sleep(time.Minute / 2)
			if n, unreturned := second.left(check, "jobs.in-flight"), guarded.Stats().HoldsUnreturned; n != want || unreturned != 0 {
				t.Errorf("%s: %d of 2 slots are free and %d are unreturned; want %d and none", when, n, unreturned, want)
			}
		}
		wantFree(1, "after an Acquire that failed")
		isReplyLost.Store(true)
		if w := first.send(callerToken, "/v1/renew", id); w.Code != 503 {
			t.Fatalf("a Renew without an answer of the store: %d %s; want 503", w.Code, w.Body)
		}
		wantFree(1, "after a Renew that failed")
		second.call("/v1/release", id)
		wantFree(2, "after the Release")
	})
}

func TestSlotsAreHeldUntilTheyAreReleased(t *testing.T) {
	s := newService(t)
	const jobs = `{"check":{"rule":"jobs","key":"user:1"}`
	acquire := func(more string) object { return s.call("/v1/acquire", jobs+more+"}") }
	first, second := acquire(""), acquire(`,"holder":"job-2"`)
	if first["id"] == "" || second["id"] == "" || first["expires_in_ms"] != 60_000.0 {
		t.Fatalf("%v, %v; want two holds of a minute", first, second)
	}
	if again := acquire(`,"holder":"job-2"`); again["id"] == "" || again.object("decision")["allowed"] != true {
		t.Errorf("a second Acquire of the holder job-2: %v; want that it is allowed, with the slot that job-2 has", again)
	}
	if third := acquire(""); third["id"] != "" || third.object("decision")["allowed"] != false || third.object("decision")["retry_after_ms"] != 1000.0 {
		t.Errorf("a third hold: %v; want a denial with a retry after 1 s", third)
	}
	renew := func(hold object, want bool) {
		t.Helper()
		if answer := s.call("/v1/renew", `{"id":"`+hold["id"].(string)+`"}`); answer["is_held"] != want {
			t.Errorf("Renew: %v; want is_held %t", answer, want)
		}
	}
	s.clock.advance(40 * time.Second)
	renew(first, true)
	s.clock.advance(40 * time.Second) // the second hold, which was not renewed, has expired
	third := acquire("")
	renew(first, true)
	renew(second, false)
	for range 2 {
		s.call("/v1/release", `{"id":"`+third["id"].(string)+`"}`)
	}
	renew(second, true) // the renewal takes the slot that the third hold returned
	if fourth := acquire(""); fourth["id"] != "" {
		t.Errorf("a fourth hold: %v; want a denial, because the two releases returned one slot", fourth)
	}
	for body, want := range map[string]string{
		`{"check":{"rule":"search","key":"user:1"}}`:                                           "no in_flight limit applies",
		`{"check":{"rule":"jobs","key":"user:1","request_id":"a"}}`:                            "check.request_id: write a holder instead",
		`{"check":{"rule":"jobs","key":"user:1"},"holder":"` + strings.Repeat("a", 129) + `"}`: "holder: it is longer than 128 characters",
		`{"check":{"rule":"jobs","key":"user:1","cost":0}}`:                                    "check.cost: the cost is the number of slots",
		`{"check":{"attributes":{"path":"/free"}}}`:                                            "no in_flight limit applies",
	} {
		if w := s.send(callerToken, "/v1/acquire", body); w.Code != 400 && w.Code != 409 || !strings.Contains(w.Body.String(), want) {
			t.Errorf("an Acquire with %.100s: %d %s; want status 400 or 409 with %q", body, w.Code, w.Body, want)
		}
	}
	callerLimit := s.call("/v1/acquire", `{"check":{"key":"b","limits":[{"in_flight":1,"ttl_ms":5000},{"rate":"9/h"}]}}`)
	if callerLimit["expires_in_ms"] != 5000.0 {
		t.Errorf("a hold of a caller limit: %v; want that it expires in 5 s", callerLimit)
	}
	s.call("/v1/release", `{"id":"`+callerLimit["id"].(string)+`"}`)
	if n := s.left(`{"key":"b","limits":[{"in_flight":1,"ttl_ms":5000}]}`, "in-flight"); n != 1 {
		t.Errorf("%d slots are free after the release; want 1", n)
	}
	if n := s.left(`{"key":"b","limits":[{"rate":"9/h"}]}`, "hour"); n != 8 {
		t.Errorf("%d units of the rate are left after the release; want 8, because a release does not refund them", n)
	}
}

// A Settle returns the slots of its reservation.
func TestSettleReturnsTheSlotsOfAReservation(t *testing.T) {
	s := newService(t)
	const check = `{"key":"b","limits":[{"in_flight":1},{"rate":"9/h"}]}`
	id := s.reserve(`{"check":` + check + `}`)
	if w := s.send(callerToken, "/v1/reserve", `{"check":`+check+`}`); !strings.Contains(w.Body.String(), `"denied_by":["in-flight"]`) {
		t.Errorf("a second reservation: %s; want a denial by in-flight", w.Body)
	}
	s.call("/v1/settle", `{"id":"`+id+`","actual":2}`)
	if slots, units := s.left(check, "in-flight"), s.left(check, "hour"); slots != 1 || units != 7 {
		t.Errorf("%d slots and %d units are left; want 1 and 7", slots, units)
	}
}

func TestResetClearsUsage(t *testing.T) {
	s := newService(t)
	s.call("/v1/check", `{"rule":"search","key":"user:1","cost":3}`)
	s.call("/v1/check", `{"rule":"search","key":"user:2","cost":3}`)
	for _, token := range []string{"", callerToken} {
		if w := s.send(token, "/v1/reset", `{"rule":"search","key":"user:1"}`); w.Code != http.StatusUnauthorized && w.Code != http.StatusForbidden {
			t.Errorf("a Reset with token %q: %d %s; want 401 or 403", token, w.Code, w.Body)
		}
	}
	s.call("/v1/reset", `{"attributes":{"path":"/search","headers":{"X-User":"1"}}}`)
	if one, two := s.left(`{"rule":"search","key":"user:1"}`, "search.day"), s.left(`{"rule":"search","key":"user:2"}`, "search.day"); one != 10 || two != 7 {
		t.Errorf("user:1 has %d units left and user:2 has %d; want 10 and 7", one, two)
	}
	if w := s.send(operatorToken, "/v1/reset", `{"attributes":{"path":"/free"}}`); w.Code != 409 || !strings.Contains(w.Body.String(), "no limit applies") {
		t.Errorf("a Reset of a request without limits: %d %s; want 409", w.Code, w.Body)
	}
	outage := newServiceOf(t, rules, failingStore(penstock.ReasonTimeout))
	if w := outage.send(operatorToken, "/v1/reset", `{"rule":"search","key":"user:1"}`); w.Code != 503 {
		t.Errorf("a Reset while the store fails: %d %s; want 503", w.Code, w.Body)
	}
}

func TestExplainListsChargesWithoutCharging(t *testing.T) {
	s := newService(t)
	answer := s.call("/v1/explain", `{"attributes":{"path":"/search","headers":{"X-User":"1"}}}`)
	if rules := answer.list("rules"); len(rules) != 1 || rules[0]["name"] != "search" || rules[0]["applies"] != true {
		t.Errorf("the rules are %v; want search, which applies", rules)
	}
	charges := answer.list("charges")
	if len(charges) != 2 || charges[1]["limit"] != "search.day" || charges[1]["key"] != "user:1" || charges[1]["cost"] != 1.0 || charges[1]["on_failure"] != "local" {
		t.Errorf("the charges are %v; want two, the second of 1 unit for search.day under user:1", charges)
	}
	if answer := s.call("/v1/explain", `{"attributes":{"path":"/search","address":"192.0.2.66"}}`); answer["list"] != "deny" || len(answer.list("charges")) != 0 {
		t.Errorf("a client on the deny list: %v; want list deny, and no charges", answer)
	}
	if answer := s.call("/v1/explain", `{"rule":"jobs","key":"user:1"}`); len(answer.list("charges")) != 1 {
		t.Errorf("a request that names a rule: %v; want one charge", answer)
	}
	if n := s.left(`{"rule":"search","key":"user:1"}`, "search.day"); n != 10 || len(s.events) != 0 {
		t.Errorf("%d units are left, and there are %d events; want 10 units and no event", n, len(s.events))
	}
}

// A reservation with several keys is corrected once under each key, also on a Cluster, where the
// keys are in several hash slots.
func TestAReservationOfSeveralKeysIsCorrectedOnce(t *testing.T) {
	const text = `
rules:
- name: tokens
  per: {user: header X-User}
  limits: [{name: mine, rate: 1000/w, cost: {units: 500, actual: X-Cost}}, {name: all, per: ip, rate: 9000/w, cost: {units: 500, actual: X-Cost}}]
`
	stores := map[string]string{"single": redistest.Start(t).URL(), "cluster": "redis+cluster://" + strings.Join(redistest.StartCluster(t).Addrs(), ",")}
	for name, url := range stores {
		t.Run(name, func(t *testing.T) {
			var two [2]*testService
			for i := range two {
				store, err := redisstore.Open(url, redisstore.Options{})
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { store.Close() })
				two[i] = newServiceOf(t, text, store)
			}
			const check = `{"attributes":{"address":"192.0.2.7","headers":{"X-User":"1"}}}`
			reserve := `{"check":` + strings.TrimSuffix(check, "}") + `,"request_id":"a"}}`
			id := two[0].reserve(reserve)
			two[0].reserve(reserve) // a repeat
			var all sync.WaitGroup
			for i := range 50 {
				all.Go(func() { two[i%2].call("/v1/settle", `{"id":"`+id+`","actual":300}`) })
			}
			all.Wait()
			if mine, global := two[1].left(check, "tokens.mine"), two[1].left(check, "tokens.all"); mine != 700 || global != 8700 {
				t.Errorf("%d and %d units are left; want 700 and 8700", mine, global)
			}
		})
	}
}

// A settle corrects once, even with the guards of penstock serve: leases, split counters and the
// deny cache.
func TestSettleCorrectsOnceWithGuards(t *testing.T) {
	for _, settings := range []string{"", ", lease: 50", ", split_into: 4"} { // of the limit
		compiled := rulesOf(t, `rules: [{name: tokens, per: {user: header X-User}, limits: [{name: hour, rate: 1000/h`+settings+`}]}]`)
		store, err := guard.Standard(memstore.New(memstore.Options{Now: newClock().Now}), guard.Options{Limits: compiled.Settings, Instances: 1})
		if err != nil {
			t.Fatal(err)
		}
		defer store.Close()
		controller, err := admission.New(store, compiled, admission.Options{})
		if err != nil {
			t.Fatal(err)
		}
		service, err := New(store, controller, Options{OperatorToken: []byte(operatorToken)})
		if err != nil {
			t.Fatal(err)
		}
		s := &testService{TB: t, Service: service}
		const check = `{"rule":"tokens","key":"user:1","cost":200}`
		id := s.reserve(`{"check":` + check + `}`)
		s.call("/v1/check", `{"rule":"tokens","key":"user:1","cost":2000}`) // a denial that the deny cache keeps
		var all sync.WaitGroup
		for range 20 {
			all.Go(func() { s.call("/v1/settle", `{"id":"`+id+`","actual":150}`) })
		}
		all.Wait()
		if n := s.left(check, "tokens.hour"); n != 850 {
			t.Errorf("with the settings %q, %d units are left; want 850", settings, n)
		}
		for i, want := range []bool{false, true, true} {
			if answer := s.call("/v1/check", `{"rule":"tokens","key":"user:1","cost":50,"request_id":"a"}`); answer["is_repeat"] != want {
				t.Errorf("with the settings %q, call %d: %v; want is_repeat %t", settings, i, answer, want)
			}
		}
		if n := s.left(check, "tokens.hour"); n != 800 {
			t.Errorf("with the settings %q, %d units are left after the repeats; want 800", settings, n)
		}
	}
}
