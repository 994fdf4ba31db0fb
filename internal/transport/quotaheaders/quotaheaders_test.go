package quotaheaders

import (
	"context"
	"fmt"
	"math/big"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/dunglas/httpsfv"
	"github.com/penstock/penstock"
	"github.com/penstock/penstock/algorithm"
	"github.com/penstock/penstock/memstore"
	"pgregory.net/rapid"
)

var dialects = []string{Draft11, Draft07, Draft06, XRateLimit}

// A shownLimit is a limit in a response. A value that the dialect does not show is -1.
type shownLimit struct{ limit, remaining, reset int64 }

// parseLists reads the headers of draft-11 with a parser of RFC 9651. It returns the names of the
// items in their order, and the parameters of each item.
func parseLists(t testing.TB, h http.Header) (names []string, items map[string]map[string]any) {
	t.Helper()
	items = make(map[string]map[string]any)
	for _, header := range []string{"RateLimit-Policy", "RateLimit"} {
		list, err := httpsfv.UnmarshalList(h.Values(header))
		if err != nil {
			t.Fatalf("%s: %q: %v; want a list of RFC 9651", header, h.Values(header), err)
		}
		for i, member := range list {
			item, ok := member.(httpsfv.Item)
			if !ok {
				t.Fatalf("%s: %q: member %d is an inner list; want an item", header, h.Values(header), i)
			}
			name, ok := item.Value.(string)
			if !ok {
				t.Fatalf("%s: %q: the value of item %d is not a string; want the name of a limit", header, h.Values(header), i)
			}
			if header == "RateLimit-Policy" {
				names = append(names, name)
				items[name] = make(map[string]any)
			} else if i >= len(names) || names[i] != name {
				t.Fatalf("%s: %q: item %d has another name than in RateLimit-Policy; want the names %q", header, h.Values(header), i, names)
			}
			for _, param := range item.Params.Names() {
				items[name][param], _ = item.Params.Get(param)
			}
		}
		if len(list) != len(names) {
			t.Fatalf("%s: %q: %d items; want %d, as in RateLimit-Policy", header, h.Values(header), len(list), len(names))
		}
	}
	return names, items
}

// parseOld reads the headers of one of the older dialects.
func parseOld(t testing.TB, h http.Header, dialect string) shownLimit {
	t.Helper()
	number := func(header string) int64 {
		if h.Get(header) == "" {
			return -1
		}
		n, err := strconv.ParseInt(h.Get(header), 10, 64)
		if err != nil {
			t.Fatalf("%s: %v; want a number", header, err)
		}
		return n
	}
	switch dialect {
	case Draft07:
		dictionary, err := httpsfv.UnmarshalDictionary(h.Values("RateLimit"))
		if err != nil {
			t.Fatalf("RateLimit: %q: %v; want a dictionary of RFC 9651", h.Values("RateLimit"), err)
		}
		value := func(key string) int64 {
			member, ok := dictionary.Get(key)
			if !ok {
				return -1
			}
			return member.(httpsfv.Item).Value.(int64)
		}
		return shownLimit{value("limit"), value("remaining"), value("reset")}
	case Draft06:
		return shownLimit{number("RateLimit-Limit"), number("RateLimit-Remaining"), number("RateLimit-Reset")}
	}
	return shownLimit{number("X-RateLimit-Limit"), number("X-RateLimit-Remaining"), number("X-RateLimit-Reset")}
}

var anyAlgorithm = []*algorithm.Algorithm{
	nil, penstock.TokenBucket, penstock.LeakyBucket, penstock.FixedWindow, penstock.AnchoredWindow, penstock.SlidingWindow,
	penstock.SubWindow(10), penstock.SlidingLog, penstock.Concurrency, penstock.CalendarWindow(algorithm.Day, time.UTC),
}

// drawLimit draws a valid limit. The numbers of the limit are small, or anything up to the largest
// allowed.
func drawLimit(t *rapid.T) penstock.Limit {
	return rapid.Custom(func(t *rapid.T) penstock.Limit {
		magnitude := func(name string, most int64) int64 {
			return rapid.OneOf(rapid.Int64Range(1, min(20, most)), rapid.Int64Range(1, min(100_000, most)), rapid.Int64Range(1, most)).Draw(t, name)
		}
		period := time.Duration(magnitude("µs", algorithm.MaxPeriod)) * time.Microsecond
		if rapid.Bool().Draw(t, "whole seconds") {
			period = time.Duration(magnitude("seconds", 8*365*24*3600)) * time.Second
		}
		limit := penstock.Limit{
			Name:      rapid.StringMatching(`[a-z0-9_.-]{1,20}`).Draw(t, "name"),
			Algorithm: rapid.SampledFrom(anyAlgorithm).Draw(t, "algorithm"),
			Count:     magnitude("count", algorithm.Max/2),
			Period:    period,
		}
		if rapid.Bool().Draw(t, "burst") {
			limit.Burst = magnitude("burst", algorithm.Max/2)
		}
		return limit
	}).Filter(func(l penstock.Limit) bool { return l.Validate() == nil }).Draw(t, "limit")
}

func drawStatus(t *rapid.T) penstock.Status {
	micros := func(name string) time.Duration {
		return time.Microsecond * time.Duration(rapid.OneOf(rapid.Just(int64(0)), rapid.Int64Range(0, 5_000_000), rapid.Int64Range(0, algorithm.Max)).Draw(t, name))
	}
	status := penstock.Status{ResetAfter: micros("reset")}
	status.Remaining = rapid.OneOf(rapid.Int64Range(0, 3), rapid.Int64Range(0, algorithm.Max)).Draw(t, "remaining")
	switch rapid.IntRange(0, 5).Draw(t, "answer") {
	case 0, 1:
		status.RetryAfter = micros("retry")
	case 2:
		status.RetryAfter = penstock.Never
	}
	return status
}

// ceilRat returns x, rounded up.
func ceilRat(x *big.Rat) int64 {
	n := new(big.Int).Add(x.Num(), x.Denom())
	n.Sub(n, big.NewInt(1))
	return n.Div(n, x.Denom()).Int64()
}

// ratOf returns d in seconds.
func ratOf(d time.Duration) *big.Rat { return big.NewRat(int64(d), int64(time.Second)) }

// wantPolicy returns the parameters that a limit's policy must show, computed with fractions. A
// window of 0 is not shown.
func wantPolicy(limit penstock.Limit) (q, window int64, unit any, isBucket bool) {
	a := limit.Algorithm
	if a == nil {
		a = penstock.TokenBucket
	}
	burst := limit.Burst
	if burst == 0 {
		burst = limit.Count // the default
	}
	switch {
	case a.NeedsHolder():
		return burst, 0, "concurrent-requests", false
	case a.Name() == "tokenbucket" || a.Name() == "leakybucket":
		q = burst
		if a.Name() == "leakybucket" {
			q = limit.Burst + 1
		}
		fillTime := new(big.Rat).Mul(ratOf(limit.Period), big.NewRat(q, limit.Count))
		if fillTime.Cmp(big.NewRat(1, 1)) >= 0 {
			window = ceilRat(fillTime)
		}
		return q, window, nil, true
	case a.IsCalendar():
		const longestDay, longestWeek = 25 * time.Hour, 169 * time.Hour // when the clock is set back by an hour
		return limit.Count, map[time.Duration]int64{longestDay: 86400, longestWeek: 604800}[limit.Period], nil, false
	case limit.Period%time.Second == 0:
		return limit.Count, int64(limit.Period / time.Second), nil, false
	}
	return limit.Count, 0, nil, false
}

// wantReset returns the range of the time t that must be shown, in whole seconds, or -1 if there
// must be none. For a bucket, t may be late by a microsecond.
func wantReset(limit penstock.Limit, status penstock.Status) (least, most int64) {
	if status.RetryAfter == penstock.Never {
		return -1, -1
	}
	if status.RetryAfter > 0 {
		n := ceilRat(ratOf(status.RetryAfter))
		return n, n
	}
	q, _, _, isBucket := wantPolicy(limit)
	after := ratOf(status.ResetAfter)
	if !isBucket {
		n := ceilRat(after)
		return n, n
	}
	units := func(n int64) *big.Rat { return new(big.Rat).Mul(ratOf(limit.Period), big.NewRat(n, limit.Count)) }
	late := func(x *big.Rat) *big.Rat { return new(big.Rat).Add(x, ratOf(time.Microsecond)) }
	if status.Remaining >= q {
		return ceilRat(units(1)), ceilRat(late(units(1)))
	}
	next := new(big.Rat).Sub(after, units(q-status.Remaining-1))
	return max(ceilRat(next), 0), max(ceilRat(late(next)), 0)
}

// wantStrictest returns the index of the limit that the older dialects must show.
func wantStrictest(limits []penstock.Limit, statuses []penstock.Status) int {
	strictest := 0
	share := func(i int) *big.Rat {
		q, _, _, _ := wantPolicy(limits[i])
		return big.NewRat(statuses[i].Remaining, q)
	}
	for i := range limits {
		retry, strictestRetry := statuses[i].RetryAfter, statuses[strictest].RetryAfter
		isSmallerShare := share(i).Cmp(share(strictest)) < 0
		if retry > strictestRetry || retry == strictestRetry && isSmallerShare {
			strictest = i
		}
	}
	return strictest
}

// mostInteger is the largest Integer of RFC 9651.
const mostInteger = 999_999_999_999_999

// A response has random quotas, and the headers that a Writer has written for them.
type response struct {
	limits     []penstock.Limit
	statuses   []penstock.Status // of the limits
	isDenied   bool
	retryAfter time.Duration
	settings   Settings
	now        time.Time

	header   http.Header
	reported int64 // result of Write
}

func drawResponse(rt *rapid.T) *response {
	n := rapid.IntRange(1, 4).Draw(rt, "quotas")
	r := &response{header: make(http.Header)}
	var quotas []Quota
	for i := range n {
		limit, status := drawLimit(rt), drawStatus(rt)
		limit.Name = fmt.Sprintf("%s.%d", limit.Name, i)
		quotas = append(quotas, Quota{Policy: policyOf(limit.Name, limit), Status: status})
		r.limits, r.statuses = append(r.limits, limit), append(r.statuses, status)
		r.isDenied = r.isDenied || status.RetryAfter > 0
		r.retryAfter = max(r.retryAfter, status.RetryAfter)
	}
	r.settings.Dialects = []string{rapid.SampledFrom([]string{Draft11, Draft07}).Draw(rt, "RateLimit")}
	for _, d := range []string{Draft06, XRateLimit} {
		if rapid.Bool().Draw(rt, string(d)) {
			r.settings.Dialects = append(r.settings.Dialects, d)
		}
	}
	r.now = time.Unix(1_800_000_000, rapid.SampledFrom([]int64{0, 1, 999_999_999}).Draw(rt, "ns"))
	r.settings.Now = func() time.Time { return r.now }
	r.settings.IsResetInSeconds = rapid.Bool().Draw(rt, "reset in seconds")
	r.settings.Jitter = time.Duration(rapid.Int64Range(0, int64(3*time.Second)).Draw(rt, "jitter"))
	r.reported = New(r.settings).Write(r.header, quotas, r.isDenied, r.retryAfter)
	return r
}

func TestHeadersShowTheStatusAndDialectsAgree(t *testing.T) {
	responses, values := 0, 0
	rapid.Check(t, func(rt *rapid.T) {
		r := drawResponse(rt)
		responses++
		strictest := wantStrictest(r.limits, r.statuses)
		limit, status := r.limits[strictest], r.statuses[strictest]
		q, window, _, _ := wantPolicy(limit)
		least, most := wantReset(limit, status)
		want := shownLimit{min(q, mostInteger), min(status.Remaining, mostInteger), least}
		for _, dialect := range r.settings.Dialects {
			var shown shownLimit
			if dialect == Draft11 {
				shown = r.checkItems(t, rt, strictest)
				values += 4 * len(r.limits)
			} else {
				shown = r.shownBy(t, dialect)
			}
			values += 3
			if shown.limit != want.limit || shown.remaining != want.remaining || shown.reset < least || shown.reset > most {
				rt.Fatalf("%s shows %+v; want %+v (reset up to %d) for limit %v, status %+v: %v", dialect, shown, want, most, limit, status, r.header)
			}
			want.reset, least, most = shown.reset, shown.reset, shown.reset // the next dialect must show exactly the same
		}
		if !slices.Contains(r.settings.Dialects, Draft11) {
			field := ""
			if window > 0 {
				field = fmt.Sprintf("%d;w=%d", want.limit, window)
			}
			if got := r.header.Get("RateLimit-Policy"); got != field {
				rt.Fatalf("RateLimit-Policy: %q; want %q", got, field)
			}
		}
		r.checkRetryAfter(rt)
		for key := range r.header {
			if key != http.CanonicalHeaderKey(key) {
				rt.Fatalf("header %q; want the canonical form %q", key, http.CanonicalHeaderKey(key))
			}
		}
	})
	t.Logf("counted: %d random responses in all dialects (%d values compared)", responses, values)
}

// shownBy returns the limit that one of the older dialects shows. Its reset counts from now.
func (r *response) shownBy(t *testing.T, dialect string) shownLimit {
	shown := parseOld(t, r.header, dialect)
	if dialect == XRateLimit && !r.settings.IsResetInSeconds && shown.reset >= 0 {
		unixNow := r.now.Unix()
		if r.now.Nanosecond() > 0 {
			unixNow++
		}
		shown.reset -= unixNow
	}
	return shown
}

// checkItems checks the item of each limit in draft-11. It returns what the item of the limit at
// index shows.
func (r *response) checkItems(t *testing.T, rt *rapid.T, index int) shownLimit {
	names, items := parseLists(t, r.header)
	for i, limit := range r.limits {
		item := items[limit.Name]
		q, window, unit, _ := wantPolicy(limit)
		least, most := wantReset(limit, r.statuses[i])
		if names[i] != limit.Name || item["q"] != min(q, mostInteger) || item["r"] != min(r.statuses[i].Remaining, mostInteger) || item["qu"] != unit {
			rt.Fatalf("item %d is %q with %v; want q %d, qu %v and the remaining units as r, for the limit %v with the status %+v", i, names[i], item, q, unit, limit, r.statuses[i])
		}
		w, hasWindow := item["w"]
		if hasWindow != (window > 0) || hasWindow && w != window {
			rt.Fatalf("item %d has w %v; want %d (0: no w) for the limit %v", i, w, window, limit)
		}
		reset, hasReset := item["t"].(int64)
		isInRange := least <= reset && reset <= most
		if hasReset != (least >= 0) || hasReset && !isInRange {
			rt.Fatalf("item %d has t %v; want %d to %d (-1: no t) for the limit %v with the status %+v", i, item["t"], least, most, limit, r.statuses[i])
		}
	}
	item := items[r.limits[index].Name]
	shown := shownLimit{item["q"].(int64), item["r"].(int64), -1}
	if reset, ok := item["t"].(int64); ok {
		shown.reset = reset
	}
	return shown
}

// checkRetryAfter checks that Retry-After is the longest RetryAfter, plus at most the jitter.
func (r *response) checkRetryAfter(rt *rapid.T) {
	text := r.header.Get("Retry-After")
	if !r.isDenied || r.retryAfter == penstock.Never {
		if text != "" || r.reported != 0 {
			rt.Fatalf("Retry-After: %s, reported as %d; want none (denied %v, retry after %v)", text, r.reported, r.isDenied, r.retryAfter)
		}
		return
	}
	longest, jitter := ceilRat(ratOf(r.retryAfter)), ceilRat(ratOf(r.settings.Jitter))
	got, err := strconv.ParseInt(text, 10, 64)
	if err != nil || got != r.reported || got < max(longest, 1) || got > max(longest+jitter, 1) {
		rt.Fatalf("Retry-After: %q, reported as %d; want %d to %d", text, r.reported, longest, longest+jitter)
	}
}

// For each algorithm, a store decides two requests at the same moment. The table has the headers of
// both responses.
func TestHeadersOfEachAlgorithm(t *testing.T) {
	for _, c := range []struct {
		limit         penstock.Limit
		first, second int64  // costs of the two requests
		want          string // the headers of the first response, "then", and those of the second
	}{
		{limit: penstock.PerSecond(10).WithBurst(25), first: 1, second: 30, want: `
RateLimit-Policy: "x";q=25;w=3
RateLimit: "x";r=24;t=1
then
RateLimit-Policy: "x";q=25;w=3
RateLimit: "x";r=24`},
		{limit: penstock.PerMinute(60), first: 60, second: 1, want: `
RateLimit-Policy: "x";q=60;w=60
RateLimit: "x";r=0;t=1
then
RateLimit-Policy: "x";q=60;w=60
RateLimit: "x";r=0;t=1
Retry-After: 1`},
		{limit: penstock.PerMinute(60), first: 30, second: 35, want: `
RateLimit-Policy: "x";q=60;w=60
RateLimit: "x";r=30;t=1
then
RateLimit-Policy: "x";q=60;w=60
RateLimit: "x";r=30;t=5
Retry-After: 5`},
		{limit: penstock.PerSecond(10).WithBurst(5), first: 5, second: 5, want: `
RateLimit-Policy: "x";q=5
RateLimit: "x";r=0;t=1
then
RateLimit-Policy: "x";q=5
RateLimit: "x";r=0;t=1
Retry-After: 1`},
		{limit: penstock.PerSecond(10).With(penstock.LeakyBucket).WithBurst(19), first: 1, second: 1, want: `
RateLimit-Policy: "x";q=20;w=2
RateLimit: "x";r=19;t=1
then
RateLimit-Policy: "x";q=20;w=2
RateLimit: "x";r=19;t=1
Retry-After: 1`},
		{limit: penstock.PerMinute(3).With(penstock.FixedWindow), first: 2, second: 2, want: `
RateLimit-Policy: "x";q=3;w=60
RateLimit: "x";r=1;t=15
then
RateLimit-Policy: "x";q=3;w=60
RateLimit: "x";r=1;t=15
Retry-After: 15`},
		{limit: penstock.PerMinute(3).With(penstock.AnchoredWindow), first: 3, second: 1, want: `
RateLimit-Policy: "x";q=3;w=60
RateLimit: "x";r=0;t=60
then
RateLimit-Policy: "x";q=3;w=60
RateLimit: "x";r=0;t=60
Retry-After: 60`},
		{limit: penstock.PerDay(10_000).With(penstock.CalendarWindow(algorithm.Day, time.UTC)), first: 1, second: 1, want: `
RateLimit-Policy: "x";q=10000
RateLimit: "x";r=9999;t=43155
then
RateLimit-Policy: "x";q=10000
RateLimit: "x";r=9998;t=43155`},
		{limit: penstock.Limit{Count: 10_000, Period: algorithm.Day.Period(), Algorithm: penstock.CalendarWindow(algorithm.Day, time.UTC)}, first: 10_000, second: 1, want: `
RateLimit-Policy: "x";q=10000;w=86400
RateLimit: "x";r=0;t=43155
then
RateLimit-Policy: "x";q=10000;w=86400
RateLimit: "x";r=0;t=43155
Retry-After: 43155`},
		{limit: penstock.Limit{Count: 5, Period: algorithm.Month.Period(), Algorithm: penstock.CalendarWindow(algorithm.Month, time.UTC)}, first: 1, second: 9, want: `
RateLimit-Policy: "x";q=5
RateLimit: "x";r=4;t=2635155
then
RateLimit-Policy: "x";q=5
RateLimit: "x";r=4`},
		{limit: penstock.PerMinute(3).With(penstock.SlidingWindow), first: 1, second: 3, want: `
RateLimit-Policy: "x";q=3;w=60
RateLimit: "x";r=2;t=75
then
RateLimit-Policy: "x";q=3;w=60
RateLimit: "x";r=2;t=75
Retry-After: 75`},
		{limit: penstock.PerMinute(3).With(penstock.SubWindow(6)), first: 3, second: 1, want: `
RateLimit-Policy: "x";q=3;w=60
RateLimit: "x";r=0;t=65
then
RateLimit-Policy: "x";q=3;w=60
RateLimit: "x";r=0;t=65
Retry-After: 65`},
		{limit: penstock.PerMinute(3).With(penstock.SlidingLog), first: 3, second: 1, want: `
RateLimit-Policy: "x";q=3;w=60
RateLimit: "x";r=0;t=60
then
RateLimit-Policy: "x";q=3;w=60
RateLimit: "x";r=0;t=60
Retry-After: 60`},
		{limit: penstock.Every(100 * time.Millisecond).With(penstock.FixedWindow), first: 1, second: 1, want: `
RateLimit-Policy: "x";q=1
RateLimit: "x";r=0;t=1
then
RateLimit-Policy: "x";q=1
RateLimit: "x";r=0;t=1
Retry-After: 1`},
		{limit: penstock.Limit{Count: 1, Period: 1500 * time.Millisecond, Algorithm: penstock.SlidingLog}, first: 1, second: 1, want: `
RateLimit-Policy: "x";q=1
RateLimit: "x";r=0;t=2
then
RateLimit-Policy: "x";q=1
RateLimit: "x";r=0;t=2
Retry-After: 2`},
		{limit: penstock.InFlight(5, 30*time.Second), first: 5, second: 1, want: `
RateLimit-Policy: "x";q=5;qu="concurrent-requests"
RateLimit: "x";r=0;t=30
then
RateLimit-Policy: "x";q=5;qu="concurrent-requests"
RateLimit: "x";r=0;t=30
Retry-After: 30`},
	} {
		c.limit.Name = "x"
		now := time.Date(2026, 7, 1, 12, 0, 45, 0, time.UTC)
		store := memstore.New(memstore.Options{Now: func() time.Time { return now }})
		w := New(Settings{})
		var got []string
		for i, cost := range []int64{c.first, c.second} {
			charge := penstock.Charge{Key: "k", Plan: c.limit.MustCompile(), Cost: cost}
			if c.limit.Algorithm != nil && c.limit.Algorithm.NeedsHolder() {
				charge.Holder = fmt.Sprint("holder ", i)
			}
			d, err := store.Decide(context.Background(), []penstock.Charge{charge})
			if err != nil {
				t.Fatalf("%v: %v", c.limit, err)
			}
			h := make(http.Header)
			w.Write(h, []Quota{{Policy: policyOf("x", c.limit), Status: d.Status(0)}}, !d.Allowed, d.RetryAfter())
			var lines strings.Builder
			for _, name := range []string{"RateLimit-Policy", "RateLimit", "Retry-After"} {
				if h.Get(name) != "" {
					fmt.Fprintf(&lines, "\n%s: %s", name, h.Get(name))
				}
			}
			got = append(got, lines.String())
		}
		if text := strings.Join(got, "\nthen"); text != c.want {
			t.Errorf("%v, after requests of cost %d and %d:%s\nwant%s", c.limit, c.first, c.second, text, c.want)
		}
	}
}

func policyOf(name string, limit penstock.Limit) *Policy {
	plan, err := limit.WithName("l").Compile()
	if err != nil {
		panic(err)
	}
	return NewPolicy(name, plan)
}

// w is the time in which a bucket fills, rounded up to whole seconds. A bucket that fills in less
// than a second has no w.
func TestWindowsOfBucketsAreRoundedUp(t *testing.T) {
	for _, c := range []struct {
		limit penstock.Limit
		want  string
	}{
		{penstock.Limit{Count: 3, Period: 9_000_000 * time.Microsecond, Burst: 1}, `"x";q=1;w=3`},
		{penstock.Limit{Count: 3, Period: 9_000_001 * time.Microsecond, Burst: 1}, `"x";q=1;w=4`},
		{penstock.Limit{Count: 3, Period: 2_999_999 * time.Microsecond, Burst: 1}, `"x";q=1;w=1`}, // 999,999⅔ µs
		{penstock.Limit{Count: 3, Period: 2_999_997 * time.Microsecond, Burst: 1}, `"x";q=1`},
		{penstock.Limit{Count: 1, Period: time.Microsecond, Burst: 1 << 51}, `"x";q=999999999999999;w=2251799814`},
	} {
		if got := policyOf("x", c.limit).policyItem; got != c.want {
			t.Errorf("%v: the item of RateLimit-Policy is %s; want %s", c.limit, got, c.want)
		}
	}
}

func TestAllDialectsOfOneDenial(t *testing.T) {
	second := policyOf("search.second", penstock.PerSecond(10))
	day := policyOf("search.day", penstock.PerDay(10_000).With(penstock.FixedWindow))
	quotas := []Quota{
		{Policy: second, Status: penstock.Status{Remaining: 0, RetryAfter: 70 * time.Millisecond, ResetAfter: 970 * time.Millisecond}},
		{Policy: day, Status: penstock.Status{Remaining: 9120, ResetAfter: 40111200 * time.Millisecond}},
	}
	now := func() time.Time { return time.Unix(1_800_000_000, 1) }
	for _, c := range []struct {
		dialects         []string
		isResetInSeconds bool
		want             map[string]string // all headers but Retry-After
	}{
		{dialects: nil, isResetInSeconds: false, want: map[string]string{
			"RateLimit-Policy": `"search.second";q=10;w=1, "search.day";q=10000;w=86400`,
			"RateLimit":        `"search.second";r=0;t=1, "search.day";r=9120;t=40112`,
		}},
		{dialects: []string{Draft11, Draft06, XRateLimit}, isResetInSeconds: false, want: map[string]string{
			"RateLimit-Policy": `"search.second";q=10;w=1, "search.day";q=10000;w=86400`,
			"RateLimit":        `"search.second";r=0;t=1, "search.day";r=9120;t=40112`,
			"RateLimit-Limit":  "10", "RateLimit-Remaining": "0", "RateLimit-Reset": "1",
			"X-RateLimit-Limit": "10", "X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "1800000002",
		}},
		{dialects: []string{XRateLimit, Draft07, Draft06}, isResetInSeconds: true, want: map[string]string{
			"RateLimit-Policy": "10;w=1",
			"RateLimit":        "limit=10, remaining=0, reset=1",
			"RateLimit-Limit":  "10", "RateLimit-Remaining": "0", "RateLimit-Reset": "1",
			"X-RateLimit-Limit": "10", "X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "1",
		}},
		{dialects: []string{None}, isResetInSeconds: false, want: map[string]string{}},
	} {
		h := make(http.Header)
		New(Settings{Dialects: c.dialects, IsResetInSeconds: c.isResetInSeconds, Now: now}).Write(h, quotas, true, 70*time.Millisecond)
		c.want["Retry-After"] = "1"
		if len(h) != len(c.want) {
			t.Errorf("%v: wrote %v; want %v", c.dialects, h, c.want)
		}
		for key, value := range c.want {
			if got := h.Get(key); got != value {
				t.Errorf("%v: %s: %s; want %s", c.dialects, key, got, value)
			}
		}
	}
}

// A bucket of 20 that refills 10/s has 4 left. It has 5 in 70 ms, and 20 in 1,570 ms.
func TestXRateLimitResetIsWhenTheBucketIsFull(t *testing.T) {
	bucket := policyOf("ride.second", penstock.PerSecond(10).WithBurst(20))
	for _, c := range []struct {
		name      string
		status    penstock.Status
		inSeconds bool
		want      string // X-RateLimit-Reset
		wantNext  string // reset of draft-07, which stays the time of the next unit
	}{
		{"from now", penstock.Status{Remaining: 4, ResetAfter: 1570 * time.Millisecond}, true, "2", "limit=20, remaining=4, reset=1"},
		{"Unix time", penstock.Status{Remaining: 4, ResetAfter: 1570 * time.Millisecond}, false, "1800000002", "limit=20, remaining=4, reset=1"},
		{"denied", penstock.Status{RetryAfter: time.Millisecond, ResetAfter: 1901 * time.Millisecond}, true, "2", "limit=20, remaining=0, reset=1"},
		{"never granted", penstock.Status{Remaining: 4, RetryAfter: penstock.Never, ResetAfter: 1570 * time.Millisecond}, true, "2", "limit=20, remaining=4"},
		{"nothing is used", penstock.Status{Remaining: 20}, true, "0", "limit=20, remaining=20, reset=1"},
	} {
		h := make(http.Header)
		New(Settings{
			Dialects:         []string{XRateLimit, Draft07},
			IsResetInSeconds: c.inSeconds,
			IsResetWhenFull:  true,
			Now:              func() time.Time { return time.Unix(1_800_000_000, 0) },
		}).Write(h, []Quota{{Policy: bucket, Status: c.status}}, c.status.RetryAfter != 0, 0)
		if got, next := h.Get("X-RateLimit-Reset"), h.Get("RateLimit"); got != c.want || next != c.wantNext {
			t.Errorf("%s: X-RateLimit-Reset: %s, RateLimit: %s; want %s, %s", c.name, got, next, c.want, c.wantNext)
		}
	}
}

func TestRetryAfterIsNeverBeforeTheQuotaThatDeniesLongest(t *testing.T) {
	policy := policyOf("x", penstock.PerMinute(1))
	w := New(Settings{})
	for _, c := range []struct {
		retryAfter time.Duration
		statuses   []penstock.Status
		want       string
	}{
		{retryAfter: time.Nanosecond, want: "1"},
		{retryAfter: 0, want: "1"},
		{retryAfter: -time.Hour, want: "1"},
		{retryAfter: time.Second, want: "1"},
		{retryAfter: time.Second + 1, want: "2"},
		{retryAfter: penstock.Never, want: ""},
		{retryAfter: penstock.Never - 1, want: "9223372037"},
		{retryAfter: time.Second, statuses: []penstock.Status{{RetryAfter: 90 * time.Second}}, want: "90"},
		{retryAfter: time.Second, statuses: []penstock.Status{{RetryAfter: time.Second}, {ResetAfter: time.Hour}}, want: "1"}, // the hour did not deny
		{retryAfter: time.Second, statuses: []penstock.Status{{RetryAfter: time.Second}, {RetryAfter: penstock.Never}}, want: ""},
	} {
		var quotas []Quota
		for _, s := range c.statuses {
			quotas = append(quotas, Quota{Policy: policy, Status: s})
		}
		h := make(http.Header)
		n := w.Write(h, quotas, true, c.retryAfter)
		wantReported := c.want
		if c.want == "" {
			wantReported = "0"
		}
		if got := h.Get("Retry-After"); got != c.want || strconv.FormatInt(n, 10) != wantReported {
			t.Errorf("retry after %v, %+v: Retry-After %q, reported as %d; want %q", c.retryAfter, c.statuses, got, n, c.want)
		}
	}
}

func TestJitterSpreadsRetryAfterUpwards(t *testing.T) {
	w := New(Settings{Jitter: 5 * time.Second})
	seen := make(map[int64]int)
	for range 10_000 {
		seen[w.Write(make(http.Header), nil, true, 1500*time.Millisecond)]++
	}
	for n, times := range seen {
		if n < 2 || n > 7 {
			t.Errorf("Retry-After: %d, %d times; want 2 to 7", n, times)
		}
	}
	if len(seen) != 6 {
		t.Errorf("the values of Retry-After, with their numbers, are %v; want each of 2 to 7", seen)
	}
	const longest = 9223372037 // math.MaxInt64 ns in seconds: the sum with the jitter must not overflow
	if got := w.Write(make(http.Header), nil, true, penstock.Never-1); got != longest {
		t.Errorf("Retry-After: %d for the longest time; want %d", got, longest)
	}
}

// The draft's effective window is "the number of seconds within which the client can use no more
// than the available quota". A client that uses all of it has one more unit at the end of the
// window, and not earlier.
func TestEffectiveWindowEndsWhenTheLimitHasMore(t *testing.T) {
	compared := 0
	rapid.Check(t, func(rt *rapid.T) {
		limit := penstock.Limit{
			Name: "x", Count: rapid.Int64Range(1, 1000).Draw(rt, "count"), Burst: rapid.Int64Range(1, 1000).Draw(rt, "burst"),
			Period: time.Duration(rapid.Int64Range(1, 100_000_000).Draw(rt, "µs")) * time.Microsecond,
			Algorithm: rapid.SampledFrom([]*algorithm.Algorithm{penstock.TokenBucket, penstock.LeakyBucket, penstock.FixedWindow,
				penstock.AnchoredWindow}).Draw(rt, "algorithm"),
		}
		start := time.Unix(1_800_000_000, 0)
		now := start
		store := memstore.New(memstore.Options{Now: func() time.Time { return now }})
		decide := func(mode penstock.Mode, cost int64) penstock.Status {
			d, err := store.Decide(context.Background(), []penstock.Charge{{Key: "k", Plan: limit.MustCompile(), Cost: cost, Mode: mode}})
			if err != nil {
				rt.Fatal(err)
			}
			return d.Status(0)
		}
		q := Quota{Policy: policyOf("x", limit)}
		decide(penstock.Force, rapid.Int64Range(1, 3000).Draw(rt, "used"))
		now = now.Add(time.Duration(rapid.Int64Range(0, 1_000_000).Draw(rt, "later")) * time.Microsecond)
		q.Status = decide(penstock.Peek, 0)
		if !q.Policy.canRefill && q.Status.ResetAfter == 0 {
			return // the window is over, and the next one has not begun
		}
		compared++
		until, ok := q.untilReset()
		if !ok {
			rt.Fatalf("%v: %+v has no effective window", limit, q.Status)
		}
		decide(penstock.Force, q.Status.Remaining)
		end := now.Add(until)
		if until > 2*time.Microsecond { // the window may end a microsecond late
			now = end.Add(-2 * time.Microsecond)
			if s := decide(penstock.Peek, 0); s.Remaining > 0 {
				rt.Fatalf("%v: the limit has more units 2µs before its effective window of %v ends: %+v, then %+v; want 0", limit, until, q.Status, s)
			}
		}
		now = end
		if s := decide(penstock.Peek, 0); s.Remaining < 1 {
			rt.Fatalf("%v: the limit has no unit after its effective window of %v: %+v, then %+v; want at least 1", limit, until, q.Status, s)
		}
	})
	t.Logf("counted: %d effective windows compared with the store", compared)
}

// The writer, which is optimized, writes the same text as a library for RFC 9651.
func FuzzRateLimitIsAStructuredField(f *testing.F) {
	f.Add("search.second", int64(10), int64(9), int64(0), int64(1_000_000), int64(1_000_000), uint8(0))
	f.Add("x", int64(1)<<51, int64(1)<<51, int64(1), int64(1), int64(60_000_000), uint8(1))
	f.Add("-", int64(3), int64(-5), int64(-1), int64(1)<<52, int64(1), uint8(3))
	f.Fuzz(func(t *testing.T, name string, count, remaining, retry, reset, period int64, algorithmIndex uint8) {
		limit := penstock.Limit{
			Name: name, Count: count, Period: time.Duration(period) * time.Microsecond, Algorithm: anyAlgorithm[int(algorithmIndex)%len(anyAlgorithm)],
		}
		if limit.Period.Microseconds() != period || limit.Validate() != nil || reset < 0 || reset > algorithm.Max || retry > algorithm.Max {
			return
		}
		status := penstock.Status{
			Remaining: remaining, RetryAfter: time.Duration(retry) * time.Microsecond, ResetAfter: time.Duration(reset) * time.Microsecond,
		}
		if retry < 0 {
			status.RetryAfter = penstock.Never
		}
		q := Quota{Policy: policyOf(name, limit), Status: status}
		h := make(http.Header)
		New(Settings{}).Write(h, []Quota{q, q}, false, 0)

		size, window, unit, _ := wantPolicy(limit)
		policy := httpsfv.NewItem(name)
		policy.Params.Add("q", min(size, mostInteger))
		if unit != nil {
			policy.Params.Add("qu", unit)
		}
		if window > 0 {
			policy.Params.Add("w", window)
		}
		wantLine(t, h, "RateLimit-Policy", httpsfv.List{policy, policy})

		item := httpsfv.NewItem(name)
		item.Params.Add("r", min(max(remaining, 0), mostInteger))
		if until, ok := q.untilReset(); ok {
			item.Params.Add("t", ceilRat(ratOf(until)))
		}
		wantLine(t, h, "RateLimit", httpsfv.List{item, item})
	})
}

func wantLine(t *testing.T, h http.Header, name string, list httpsfv.List) {
	t.Helper()
	want, err := httpsfv.Marshal(list)
	if err != nil {
		t.Fatal(err)
	}
	if got := h.Values(name); len(got) != 1 || got[0] != want {
		t.Fatalf("%s: %q; want %q", name, got, want)
	}
}

func BenchmarkHeaders(b *testing.B) {
	quotas := []Quota{
		{Policy: policyOf("search.second", penstock.PerSecond(10)), Status: penstock.Status{Remaining: 9, ResetAfter: 100 * time.Millisecond}},
		{Policy: policyOf("search.day", penstock.PerDay(10_000)), Status: penstock.Status{Remaining: 9120, ResetAfter: 7 * time.Hour}},
		{Policy: policyOf("all.in-flight", penstock.InFlight(500, time.Minute)), Status: penstock.Status{Remaining: 499, ResetAfter: time.Minute}},
	}
	for _, c := range []struct {
		name     string
		quotas   int
		dialects []string
	}{{"1 quota", 1, nil}, {"3 quotas", 3, nil}, {"3 quotas in three dialects", 3, []string{Draft11, Draft06, XRateLimit}}} {
		b.Run(c.name, func(b *testing.B) {
			w := New(Settings{Dialects: c.dialects})
			h := make(http.Header)
			b.ReportAllocs()
			for b.Loop() {
				w.Write(h, quotas[:c.quotas], false, 0)
			}
		})
	}
}

// The metadata of gRPC has the same fields, with names in lower case.
func TestNamesCanBeInLowerCase(t *testing.T) {
	quotas := []Quota{{Policy: policyOf("x", penstock.PerSecond(10)), Status: penstock.Status{RetryAfter: time.Second}}}
	for _, chosen := range [][]string{{Draft11, Draft06, XRateLimit}, {Draft07, Draft06, XRateLimit}} {
		settings := Settings{Dialects: chosen, IsResetInSeconds: true}
		upper, lower, want := make(http.Header), make(map[string][]string), make(map[string][]string)
		New(settings).Write(upper, quotas, true, time.Second)
		settings.IsLowerCase = true
		New(settings).Write(lower, quotas, true, time.Second)
		for name, values := range upper {
			want[strings.ToLower(name)] = values
		}
		if !reflect.DeepEqual(lower, want) {
			t.Errorf("%v in lower case: %v; want %v", chosen, lower, want)
		}
	}
}
