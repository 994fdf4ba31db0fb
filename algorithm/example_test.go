package algorithm_test

import (
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/penstock/penstock/algorithm"
)

// Steps are pure, so a few lines replay a limit: 2 per second, with a request every 200 ms.
func ExampleAlgorithm() {
	bucket := algorithm.TokenBucket
	params, err := bucket.Prepare(algorithm.Limit{Count: 2, Period: time.Second.Microseconds()})
	if err != nil {
		log.Fatal(err)
	}
	states := bucket.NewStates()
	state := states.Add() // fresh
	var out algorithm.Outcome
	for ms := int64(0); ms <= 800; ms += 200 {
		states.Step(state, &params, &algorithm.Request{Cost: 1}, ms*1000, true, &out)
		fmt.Printf("%3d ms: %v, %d left, retry after %d ms\n", ms, out.OK(), out.Remaining, out.RetryAfter/1000)
	}
	// Output:
	//   0 ms: true, 1 left, retry after 0 ms
	// 200 ms: true, 0 left, retry after 0 ms
	// 400 ms: false, 0 left, retry after 100 ms
	// 600 ms: true, 0 left, retry after 0 ms
	// 800 ms: false, 0 left, retry after 200 ms
}

// Fixed windows admit twice their count across a boundary; a sub-window never does.
func ExampleSubWindow() {
	const second = 1_000_000
	for _, a := range []*algorithm.Algorithm{algorithm.FixedWindow, algorithm.SlidingWindow, algorithm.SubWindow(6)} {
		params, err := a.Prepare(algorithm.Limit{Count: 100, Period: 60 * second})
		if err != nil {
			log.Fatal(err)
		}
		states := a.NewStates()
		state := states.Add()
		var out algorithm.Outcome
		admitted := int64(0)
		for _, now := range []int64{59 * second, 60 * second} {
			states.Step(state, &params, &algorithm.Request{Mode: algorithm.Draw, Cost: 100}, now, true, &out)
			admitted += out.Granted
		}
		fmt.Printf("%-13s admits %d within a second\n", a.Name(), admitted)
	}
	// Output:
	// fixedwindow   admits 200 within a second
	// slidingwindow admits 100 within a second
	// subwindow     admits 100 within a second
}

// The algorithm barrier admits a request, and the next request only after Period. A complete
// algorithm, with its Lua twin and a test that compares the two, is examples/backoff.
func ExampleDefine() {
	type barrier struct{ Opens, Uses int64 }
	step := func(s barrier, p algorithm.Params, r algorithm.Request, now int64) (algorithm.Outcome, barrier) {
		switch {
		case r.Mode == algorithm.Reset:
			return algorithm.Outcome{Remaining: 1}, barrier{}
		case r.Mode != algorithm.Spend || r.Cost != 1:
			return algorithm.Outcome{RetryAfter: algorithm.Never, Keep: algorithm.Unchanged}, s
		case now < s.Opens:
			return algorithm.Outcome{RetryAfter: s.Opens - now, ResetAfter: s.Opens - now, Keep: algorithm.Unchanged}, s
		}
		return algorithm.Outcome{Granted: 1, ResetAfter: p[0], Keep: p[0]}, barrier{now + p[0], 1}
	}
	prepare := func(l algorithm.Limit) (algorithm.Params, error) {
		if l.Count != 1 {
			return algorithm.Params{}, errors.New("a barrier admits one request at a time; set the count to 1")
		}
		return algorithm.Params{l.Period}, nil
	}
	a := algorithm.Define("barrier", "", step, prepare) // without Lua it serves package memstore only
	params, err := a.Prepare(algorithm.Limit{Count: 1, Period: 500})
	if err != nil {
		log.Fatal(err)
	}
	states := a.NewStates()
	state := states.Add()
	var out algorithm.Outcome
	for now := int64(0); now <= 600; now += 200 {
		states.Step(state, &params, &algorithm.Request{Cost: 1}, now, true, &out)
		fmt.Println(now, out.RetryAfter)
	}
	// Output:
	// 0 0
	// 200 300
	// 400 100
	// 600 0
}
