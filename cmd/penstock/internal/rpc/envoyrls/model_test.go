package envoyrls_test

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock/cmd/penstock/internal/rpc/envoyconfig"
	"github.com/penstock/penstock/cmd/penstock/internal/rpc/envoyrls"
	"github.com/penstock/penstock/internal/testing/effort"
	"github.com/penstock/penstock/memstore"
)

// A model is envoyproxy/ratelimit as its documentation describes it. The model has the counter of
// each window, and each hit increments the counter. The limit is exceeded while the counter is
// above the limit.
type model map[string]uint64

// modelLimits are the limits of the test by descriptor key: the count, and the period in seconds.
var modelLimits = map[string]struct{ count, period uint64 }{
	"second": {count: 3, period: 1},
	"minute": {count: 10, period: 60},
	"zero":   {count: 0, period: 3600},
	"big":    {count: 50, period: 86400},
}

// send decides a request, and returns the response in the form of responseText, without units.
func (m model) send(r *envoyrls.Request) string {
	now := uint64(time.Now().Unix())
	var all []string
	isOver := false
	for _, d := range r.Descriptors {
		e := d.Entries[0]
		l, ok := modelLimits[e.Key]
		if !ok {
			all = append(all, "none")
			continue
		}
		hits := uint64(max(r.Hits, 1))
		if d.HasHits {
			hits = d.Hits
		}
		key := fmt.Sprint(e.Key, e.Value, now/l.period)
		m[key] += hits
		reset := l.period - now%l.period
		if m[key] > l.count {
			isOver = true
			all = append(all, fmt.Sprintf("over %d 0 left %ds", l.count, reset))
		} else {
			all = append(all, fmt.Sprintf("ok %d %d left %ds", l.count, l.count-m[key], reset))
		}
	}
	overall := "ok: "
	if isOver {
		overall = "over: "
	}
	return overall + strings.Join(all, ", ")
}

func TestModeExactEqualsTheModel(t *testing.T) {
	seed := effort.Seed()
	const yaml = `
domain: d
descriptors:
- {key: second, rate_limit: {unit: second, requests_per_unit: 3}}
- {key: minute, rate_limit: {unit: minute, requests_per_unit: 10}}
- {key: zero, rate_limit: {unit: hour, requests_per_unit: 0}}
- {key: big, rate_limit: {unit: day, requests_per_unit: 50}}
`
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, memstore.New(memstore.Options{}), yaml, envoyrls.Options{Mode: envoyrls.Exact})
		m := make(model)
		random := rand.New(rand.NewPCG(seed, 0))
		keys := []string{"second", "minute", "zero", "big", "other"}
		for i := range 5000 {
			r := &envoyrls.Request{Domain: "d", Hits: uint32(max(random.IntN(6)-3, 0))}
			for range 1 + random.IntN(4) {
				d := envoyrls.Descriptor{Entries: []envoyconfig.Entry{{Key: keys[random.IntN(len(keys))], Value: strconv.Itoa(random.IntN(3))}}}
				if random.IntN(4) == 0 {
					d.HasHits, d.Hits = true, uint64(random.IntN(5))
				}
				r.Descriptors = append(r.Descriptors, d)
			}
			want := m.send(r)
			var to envoyrls.Response
			if err := f.Decide(t.Context(), r, &to); err != nil {
				t.Fatal(err)
			}
			got := strings.NewReplacer("/second", "", "/minute", "", "/hour", "", "/day", "").Replace(responseText(&to))
			if got != want {
				t.Fatalf("PENSTOCK_SEED=%d: the response to request %d, %+v, is\n%s; want\n%s", seed, i, r, got, want)
			}
			if random.IntN(3) == 0 {
				time.Sleep(time.Duration(random.IntN(900)) * time.Millisecond)
			}
			if random.IntN(500) == 0 {
				time.Sleep(time.Duration(random.IntN(7)) * time.Hour)
			}
		}
	})
}

// Of parallel requests, at most as many pass as the limits allow. Exactly the requests that pass
// are counted.
func TestModeAtomicCountsWhatPasses(t *testing.T) {
	f := newFixture(t, memstore.New(memstore.Options{}), "domain: d\ndescriptors: [{key: a, rate_limit: {unit: year, requests_per_unit: 100}}, {key: b, rate_limit: {unit: year, requests_per_unit: 70}}]", envoyrls.Options{})
	passed := make(chan string, 4000)
	ended := make(chan struct{})
	for worker := range 8 {
		go func() {
			defer func() { ended <- struct{}{} }()
			for i := range 100 {
				text := []string{"a", "b", "a,b", "b,a,other"}[(worker+i)%4]
				if strings.HasPrefix(f.send(text), "ok") {
					passed <- text
				}
			}
		}()
	}
	for range 8 {
		<-ended
	}
	close(passed)
	counts := make(map[string]int)
	for text := range passed {
		for part := range strings.SplitSeq(text, ",") {
			counts[part]++
		}
	}
	for key, limit := range map[string]int{"a": 100, "b": 70} {
		status := f.send(key + " +0") // such as "ok: ok 100/year 7 left 60s"
		if left := strings.Fields(status)[3]; counts[key] > limit || left != strconv.Itoa(limit-counts[key]) {
			t.Errorf("%d hits of %q passed, and the response to a check is %q; want that at most %d passed, and that the rest is left", counts[key], key, status, limit)
		}
	}
}
