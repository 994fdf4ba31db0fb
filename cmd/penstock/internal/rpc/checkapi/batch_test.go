package checkapi

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/memstore"
)

func TestRequestsOfABatchAreDecidedSeparately(t *testing.T) {
	s := newService(t)
	answer := s.call("/v1/check-batch", `{"checks":[{"rule":"search","key":"user:1","cost":3},{"rule":"search","key":"user:2","cost":4},
		{"attributes":{"path":"/search","headers":{"X-User":"3"}}},{"rule":"nothing"},{"rule":"jobs","key":"user:1"}]}`)
	answers := answer.list("answers")
	if answer["allowed"] != false || len(answers) != 5 {
		t.Fatalf("the response is %v; want five answers, and allowed false", answer)
	}
	for i, want := range []string{"allowed", "denied", "allowed"} {
		if d := answers[i].object("decision"); d["outcome"] != want || answers[i]["error"] != nil {
			t.Errorf("request %d: %v; want the outcome %s", i, answers[i], want)
		}
	}
	for i, want := range map[int]struct{ code, text string }{3: {"not_found", "no rule of this name"}, 4: {"failed_precondition", "limit jobs.in-flight"}} {
		e := answers[i].object("error")
		if answers[i]["decision"] != nil || e["code"] != want.code || !strings.Contains(e["message"].(string), want.text) {
			t.Errorf("request %d: %v; want the error %+v", i, answers[i], want)
		}
	}
}

func TestABatchIsAllOrNothing(t *testing.T) {
	s := newService(t)
	const body = `{"all_or_nothing":true,"checks":[{"rule":"search","key":"user:1","cost":2},{"rule":"search","key":"user:2"},{"key":"a","limits":[{"rate":"2/h"}]}]}`
	first := s.call("/v1/check-batch", body)
	if first["allowed"] != true || first.list("answers")[2].object("decision").remaining(t, "hour") != 1 {
		t.Errorf("the first batch: %v; want that it is allowed, and 1 unit left of limit hour", first)
	}
	second := s.call("/v1/check-batch", body) // user:1 has 1 unit left
	if second["allowed"] != false {
		t.Fatalf("the second batch: %v; want that it is denied", second)
	}
	for i, want := range []struct {
		deniedBy, limit string
		remaining       int64
	}{
		{deniedBy: "[search.minute]", limit: "search.minute", remaining: 1},
		{deniedBy: "[]", limit: "search.minute", remaining: 2},
		{deniedBy: "[]", limit: "hour", remaining: 1},
	} {
		d := second.list("answers")[i].object("decision")
		if d["allowed"] != false || fmt.Sprint(d["denied_by"]) != want.deniedBy || d.remaining(t, want.limit) != want.remaining || d["retry_after_ms"] != 20_000.0 {
			t.Errorf("request %d: %v; want %+v, and a retry after 20 s", i, d, want)
		}
	}
	repeated := `{"all_or_nothing":true,"request_id":"a","checks":[{"rule":"search","key":"user:7"},{"rule":"search","key":"user:8"}]}`
	for _, want := range []bool{false, true} {
		d := s.call("/v1/check-batch", repeated).list("answers")[1].object("decision")
		if d["is_repeat"] != want || d.remaining(t, "search.minute") != 2 {
			t.Errorf("the decision for user:8 is %v; want is_repeat %t, and 2 units left", d, want)
		}
	}
}

func TestInvalidBatchesChargeNothing(t *testing.T) {
	s := newService(t)
	one := `{"rule":"search","key":"user:1"}`
	for body, want := range map[string]string{
		`{"checks":[` + one + `,{"key":"a","limits":[{"rate":"x"}]}]}`: "checks[1].limits[0].rate: ",
		`{}`:            "checks: there are 0; write 1 to 1000",
		`{"checks":[]}`: "checks: there are 0; write 1 to 1000",
		`{"checks":[` + strings.Repeat(one+",", 1000) + one + `]}`:                     "checks: it has more than 1000 elements",
		`{"checks":[` + one + `],"request_id":"a"}`:                                    "request_id: requests that are decided separately",
		`{"all_or_nothing":true,"checks":[` + one + `,` + one + `]}`:                   "are for one limit",
		`{"all_or_nothing":true,"checks":[` + strings.Repeat(one+",", 64) + one + `]}`: "checks: there are 65; with all_or_nothing, write at most 64",
		`{"all_or_nothing":true,"checks":[` + strings.Repeat(one+",", 32) + one + `]}`: "checks: together they have 66 charges; at most 64 are allowed",
		`{"all_or_nothing":true,"checks":[{"attributes":{}}]}`:                         "checks[0].attributes: with all_or_nothing",
		`{"all_or_nothing":true,"checks":[{"rule":"jobs","key":"user:1"}]}`:            "checks[0]: limit jobs.in-flight",
		`{"all_or_nothing":true,"checks":[{"rule":"search"}]}`:                         "checks[0]: ",
		`{"all_or_nothing":true,"checks":[{"rule":"search","request_id":"a"}]}`:        "checks[0].request_id: a batch that is all or nothing has one request_id",
		`{"all_or_nothing":true,"checks":[{}]}`:                                        "checks[0]: it has nothing to check",
	} {
		w := s.send(callerToken, "/v1/check-batch", body)
		if w.Code != 400 && w.Code != 409 || !strings.Contains(w.Body.String(), want) {
			t.Errorf("%.100s: %d %s; want status 400 or 409 with %q", body, w.Code, w.Body, want)
		}
	}
	if answer := s.call("/v1/peek", one); answer.remaining(t, "search.minute") != 3 {
		t.Errorf("after the invalid batches: %v; want 3 units left, so nothing charged", answer)
	}
}

// Parallel bounds the goroutines of one batch, and MaxParallel those of all batches at two
// listeners. Each decision takes a millisecond, so that all goroutines that may decide do so at the
// same time.
func TestGoroutinesOfBatchesHaveABound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner := memstore.New(memstore.Options{})
		var mu sync.Mutex
		inFlight, maxInFlight, decisions := 0, 0, 0
		store := penstock.StoreFunc(func(ctx context.Context, charges []penstock.Charge) (penstock.Decision, error) {
			mu.Lock()
			inFlight++
			maxInFlight = max(maxInFlight, inFlight)
			decisions++
			mu.Unlock()
			time.Sleep(time.Millisecond)
			defer func() {
				mu.Lock()
				inFlight--
				mu.Unlock()
			}()
			return inner.Decide(ctx, charges)
		})
		s := newServiceOn(t, store, newClock(), func(o *Options) { o.Parallel, o.MaxParallel = 8, 10 })
		listeners := []*testService{s, {TB: t, clock: s.clock, Service: s.WithAnonymous(true)}}
		var checks []string
		for i := range 200 {
			checks = append(checks, fmt.Sprintf(`{"rule":"search","key":"user:%d"}`, i))
		}
		// send sends a number of batches in parallel, and returns how many decisions were in flight at
		// most.
		send := func(batches int) int {
			maxInFlight = 0
			var calls sync.WaitGroup
			for i := range batches {
				calls.Go(func() {
					if w := listeners[i%2].send(callerToken, "/v1/check-batch", `{"checks":[`+strings.Join(checks, ",")+`]}`); w.Code != 200 || strings.Contains(w.Body.String(), `"error"`) {
						t.Errorf("a batch: %d %.300s; want 200 and no error", w.Code, w.Body)
					}
				})
			}
			calls.Wait()
			return maxInFlight
		}
		if n := send(1); n != 8 {
			t.Errorf("one batch made up to %d decisions at the same time; want 8, as Parallel", n)
		}
		if n := send(3); n != 13 || decisions != 800 {
			t.Errorf("three batches made up to %d decisions at the same time, and all batches made %d; want 13, MaxParallel and one for each batch, and 800", n, decisions)
		}
		if n := s.parallel.Load(); n != 0 {
			t.Errorf("after the batches, %d goroutines are still counted; want 0", n)
		}
	})
}
