package envoyrls_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/admission"
	"github.com/penstock/penstock/cmd/penstock/internal/rpc/envoyconfig"
	"github.com/penstock/penstock/cmd/penstock/internal/rpc/envoyrls"
	"github.com/penstock/penstock/guard"
	"github.com/penstock/penstock/memstore"
	"github.com/penstock/penstock/policy"
)

// limits is the configuration of most tests.
const limits = `
domain: d
descriptors:
- key: small
  rate_limit: {unit: minute, requests_per_unit: 3, name: small}
- key: large
  rate_limit: {unit: hour, requests_per_unit: 10}
- key: zero
  rate_limit: {unit: day, requests_per_unit: 0}
- key: free
  rate_limit: {unlimited: true, replaces: [{name: small}]}
- key: better
  rate_limit: {unit: week, requests_per_unit: 5, name: better, replaces: [{name: small}, {name: none}]}
- key: shadow
  shadow_mode: true
  rate_limit: {unit: month, requests_per_unit: 1}
- key: quota1
  quota_mode: true
  rate_limit: {unit: year, requests_per_unit: 1}
- key: quota2
  quota_mode: true
  rate_limit: {unit: second, requests_per_unit: 2}
- key: shared
  value: s*
  share_threshold: true
  rate_limit: {unit: day, requests_per_unit: 2}
- key: no_limit
`

// A fixture is an engine that records its events.
type fixture struct {
	*envoyrls.Engine

	mu     sync.Mutex
	events []string // rule, limit and outcome
}

func newFixture(t testing.TB, store penstock.Store, yaml string, o envoyrls.Options) *fixture {
	t.Helper()
	rules, err := policy.New(policy.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	f := &fixture{}
	o.Algorithm = cmp.Or(o.Algorithm, penstock.FixedWindow)
	observe := func(e *admission.Event) {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.events = append(f.events, fmt.Sprint(e.Rule, " ", e.Limit, " ", e.Outcome))
	}
	controller, err := admission.New(store, rules, admission.Options{Settings: o.Settings, Observe: observe})
	if err != nil {
		t.Fatal(err)
	}
	if f.Engine, err = envoyrls.New(controller, o); err != nil {
		t.Fatal(err)
	}
	config, err := envoyconfig.Load([]envoyconfig.File{{Name: "limits.yaml", Content: []byte(yaml)}}, envoyconfig.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := f.SetConfig(config); err != nil {
		t.Fatal(err)
	}
	return f
}

// request parses a request of domain d. In "2: small +1,large=x", small and large=x are entries of
// two descriptors. Commas separate descriptors, and blanks separate entries. A descriptor may end
// with +2 for 2 hits, with -2 for 2 negative hits, or with an override. The override @5/1 is 5 in
// unit 1, and @5/1*30 is 5 in 30 times unit 1. The units are 1 SECOND, 2 MINUTE, 3 HOUR, 4 DAY, 5
// MONTH and 6 YEAR. A prefix such as "2: " sets the hits of the request.
func request(text string) *envoyrls.Request {
	r := &envoyrls.Request{Domain: "d"}
	if hits, rest, ok := strings.Cut(text, ": "); ok {
		fmt.Sscan(hits, &r.Hits)
		text = rest
	}
	for part := range strings.SplitSeq(text, ",") {
		var d envoyrls.Descriptor
		for field := range strings.FieldsSeq(part) {
			switch field[0] {
			case '+', '-':
				d.HasHits, d.IsNegative = true, field[0] == '-'
				fmt.Sscan(field[1:], &d.Hits)
			case '@':
				d.Override = new(envoyrls.Override)
				fmt.Sscanf(field, "@%d/%d*%d", &d.Override.RequestsPerUnit, &d.Override.Unit, &d.Override.UnitMultiplier)
			default:
				key, value, _ := strings.Cut(field, "=")
				d.Entries = append(d.Entries, envoyconfig.Entry{Key: key, Value: value})
			}
		}
		r.Descriptors = append(r.Descriptors, d)
	}
	return r
}

// send decides a request and returns the response as text, such as "over: ok 3/minute 2 left 60s,
// over 10/hour 0 left 3600s". A status without a limit is "none".
func (f *fixture) send(text string) string {
	var to envoyrls.Response
	if err := f.Decide(context.Background(), request(text), &to); err != nil {
		return err.Error()
	}
	return responseText(&to)
}

// responseText returns a response as send does.
func responseText(r *envoyrls.Response) string {
	code := map[bool]string{true: "over", false: "ok"}
	var all []string
	for i := range r.Statuses {
		s := &r.Statuses[i]
		text := code[s.IsOver]
		switch {
		case s.Limit != nil:
			text += fmt.Sprintf(" %d/%v %d left %ds", s.Limit.RequestsPerUnit, strings.ToLower(s.Limit.Unit.String()), s.Remaining, s.Reset)
			if s.Limit.UnitMultiplier > 0 {
				text += fmt.Sprintf(" x%d", s.Limit.UnitMultiplier)
			}
		case s.Remaining > 0:
			text = fmt.Sprint("unlimited ", s.Remaining)
		default:
			text = "none"
		}
		all = append(all, text)
	}
	return code[r.IsOver] + ": " + strings.Join(all, ", ")
}

// A conversation is a sequence of requests and their expected responses.
type conversation struct {
	name  string
	lines string // each is "request -> response", as the functions request and send write them, or a pause such as "wait 10s"; the first request is sent at midnight
}

// run sends the requests to a new engine, and compares the responses.
func (c *conversation) run(t *testing.T, yaml string, o envoyrls.Options) {
	t.Helper()
	t.Run(fmt.Sprint("mode ", o.Mode)+", "+c.name, func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			f := newFixture(t, memstore.New(memstore.Options{}), yaml, o)
			for line := range strings.Lines(c.lines) {
				line = strings.TrimSpace(line)
				if pause, ok := strings.CutPrefix(line, "wait "); ok {
					d, err := time.ParseDuration(pause)
					if err != nil {
						t.Fatal(err)
					}
					time.Sleep(d)
					continue
				}
				if line == "" {
					continue
				}
				sent, want, _ := strings.Cut(line, " -> ")
				if got := f.send(sent); got != want {
					t.Errorf("the response to %q is\n%s; want\n%s", sent, got, want)
				}
			}
		})
	})
}

// The clock of synctest begins at midnight, 2000-01-01 UTC. Windows are counted from 1970. So the
// week ends 432,000 s after the beginning, the month (30 days) 1,987,200 s, and the year (365 days)
// 30,931,200 s.
func TestModeExactCountsLikeEnvoysService(t *testing.T) {
	for _, c := range []conversation{
		{"hits beyond the limit are counted", `
			small -> ok: ok 3/minute 2 left 60s
			wait 1500ms
			small -> ok: ok 3/minute 1 left 59s
			2: small -> over: over 3/minute 0 left 59s
			small -> over: over 3/minute 0 left 59s
			wait 58s
			small -> over: over 3/minute 0 left 1s
			wait 500ms
			small -> ok: ok 3/minute 2 left 60s`},
		{"each descriptor is counted separately", `
			3: small,large -> ok: ok 3/minute 0 left 60s, ok 10/hour 7 left 3600s
			small,large -> over: over 3/minute 0 left 60s, ok 10/hour 6 left 3600s
			large -> ok: ok 10/hour 5 left 3600s`},
		{"the same descriptor twice counts twice, in order", `
			small,small -> ok: ok 3/minute 2 left 60s, ok 3/minute 1 left 60s
			small,small -> over: ok 3/minute 0 left 60s, over 3/minute 0 left 60s`},
		{"hits of 0 only check", `
			small +0 -> ok: ok 3/minute 3 left 60s
			small +3 -> ok: ok 3/minute 0 left 60s
			small +0 -> ok: ok 3/minute 0 left 60s
			small +50 -> over: over 3/minute 0 left 60s
			small +0 -> over: over 3/minute 0 left 60s`},
		{"hits of 0 check in the order of the request", `
			small +0,small +1,small +0 -> ok: ok 3/minute 3 left 60s, ok 3/minute 2 left 60s, ok 3/minute 2 left 60s`},
		{"negative hits are returned, at most all", `
			small +3 -> ok: ok 3/minute 0 left 60s
			small -1 -> ok: ok 3/minute 1 left 60s
			small -9 -> ok: ok 3/minute 3 left 60s
			small -> ok: ok 3/minute 2 left 60s`},
		{"hits of a descriptor replace hits of the request", `
			5: small +2,large -> ok: ok 3/minute 1 left 60s, ok 10/hour 5 left 3600s`},
		{"each value has a counter", `
			3: small=a -> ok: ok 3/minute 0 left 60s
			3: small=b -> ok: ok 3/minute 0 left 60s
			small=a -> over: over 3/minute 0 left 60s`},
		{"values share a counter by share_threshold", `
			shared=s1 -> ok: ok 2/day 1 left 86400s
			shared=s2 -> ok: ok 2/day 0 left 86400s
			shared=s3 -> over: over 2/day 0 left 86400s`},
		{"a limit of 0 denies", `
			zero -> over: over 0/day 0 left 86400s
			zero=x +0 -> ok: ok 0/day 0 left 86400s`},
		{"no limit", `
			other -> ok: none
			no_limit -> ok: none
			small more -> ok: none`},
		{"unlimited and replaced", `
			free -> ok: unlimited 4294967295
			9: small,free -> ok: none, unlimited 4294967295
			9: better,small -> over: over 5/week 0 left 432000s, none
			small -> ok: ok 3/minute 2 left 60s`},
		{"shadow_mode", `
			shadow,small -> ok: ok 1/month 0 left 1987200s, ok 3/minute 2 left 60s
			shadow,small -> ok: ok 1/month 0 left 1987200s, ok 3/minute 1 left 60s`},
		{"quota_mode denies when all quotas are over", `
			quota1,quota2 -> ok: ok 1/year 0 left 30931200s, ok 2/second 1 left 1s
			quota1,quota2 -> ok: over 1/year 0 left 30931200s, ok 2/second 0 left 1s
			quota1,quota2 -> over: over 1/year 0 left 30931200s, over 2/second 0 left 1s`},
		{"overrides", `
			small @2/2 -> ok: ok 2/minute 1 left 60s
			small -> ok: ok 3/minute 1 left 60s
			small @2/2 -> over: over 2/minute 0 left 60s
			new=x @1/4 -> ok: ok 1/day 0 left 86400s
			new=x @5/1*30 -> ok: ok 5/second 4 left 30s x30
			new=y @5/1*60 -> ok: ok 5/minute 4 left 60s
			new=z @0/1 -> over: over 0/second 0 left 1s
			shadow @1/5 -> ok: ok 1/month 0 left 1987200s
			shadow @1/5 -> over: over 1/month 0 left 1987200s`},
		{"hostile requests", `
			small @2/0 -> the limit of a descriptor has the unit UNKNOWN; send SECOND, MINUTE, HOUR, DAY, WEEK, MONTH or YEAR
			small @2/99 -> the limit of a descriptor has the unit Unit(99); send SECOND, MINUTE, HOUR, DAY, WEEK, MONTH or YEAR
			small +9223372036854775808 -> hits_addend is 9223372036854775808; the largest is 2251799813685248
			small -> ok: ok 3/minute 2 left 60s`},
	} {
		c.run(t, limits, envoyrls.Options{Mode: envoyrls.Exact})
	}
}

func TestModeAtomicChargesNothingForADenial(t *testing.T) {
	for _, c := range []conversation{
		{"a denial charges nothing", `
			2: small -> ok: ok 3/minute 1 left 60s
			2: small -> over: over 3/minute 1 left 60s
			small -> ok: ok 3/minute 0 left 60s
			small -> over: over 3/minute 0 left 60s`},
		{"the other descriptors show what is left", `
			3: small,large -> ok: ok 3/minute 0 left 60s, ok 10/hour 7 left 3600s
			small,large -> over: over 3/minute 0 left 60s, ok 10/hour 7 left 3600s
			large -> ok: ok 10/hour 6 left 3600s`},
		{"the same descriptor twice is one charge", `
			small,small -> ok: ok 3/minute 1 left 60s, ok 3/minute 1 left 60s
			small,small -> over: over 3/minute 1 left 60s, over 3/minute 1 left 60s
			small -> ok: ok 3/minute 0 left 60s`},
		{"a report is charged even if it does not fit", `
			small +50 -> over: over 3/minute 0 left 60s
			small +0 -> over: over 3/minute 0 left 60s
			small -> over: over 3/minute 0 left 60s`},
		{"a check at the limit passes", `
			small +3 -> ok: ok 3/minute 0 left 60s
			small +0 -> ok: ok 3/minute 0 left 60s`},
		{"a check beyond the limit denies, and nothing else is charged", `
			small +4 -> over: over 3/minute 0 left 60s
			small +0,large -> over: over 3/minute 0 left 60s, ok 10/hour 10 left 3600s`},
		{"a report is charged although another descriptor is over", `
			3: small -> ok: ok 3/minute 0 left 60s
			small,large +4,large=x -> over: over 3/minute 0 left 60s, ok 10/hour 6 left 3600s, ok 10/hour 10 left 3600s
			large +0 -> ok: ok 10/hour 6 left 3600s`},
		{"a refund is made although another descriptor is over", `
			3: small -> ok: ok 3/minute 0 left 60s
			large +9 -> ok: ok 10/hour 1 left 3600s
			small,large -4 -> over: over 3/minute 0 left 60s, ok 10/hour 5 left 3600s`},
		{"one counter, charged in two ways", `
			small,small +1 -> ok: ok 3/minute 2 left 60s, ok 3/minute 1 left 60s
			2: small,small +1 -> over: over 3/minute 1 left 60s, ok 3/minute 0 left 60s`},
		{"one counter, charged in two ways, and another descriptor is over", `
			10: large -> ok: ok 10/hour 0 left 3600s
			small +1,small,large -> over: ok 3/minute 2 left 60s, ok 3/minute 3 left 60s, over 10/hour 0 left 3600s
			small +0 -> ok: ok 3/minute 2 left 60s`},
		{"a limit of 0 denies all", `
			zero,small -> over: over 0/day 0 left 86400s, ok 3/minute 3 left 60s
			zero +0,small -> ok: ok 0/day 0 left 86400s, ok 3/minute 2 left 60s`},
		{"shadow_mode", `
			shadow,small -> ok: ok 1/month 0 left 1987200s, ok 3/minute 2 left 60s
			shadow,small -> ok: ok 1/month 0 left 1987200s, ok 3/minute 1 left 60s
			shadow -> ok: ok 1/month 0 left 1987200s`},
		{"quota_mode", `
			quota1,quota2 -> ok: ok 1/year 0 left 30931200s, ok 2/second 1 left 1s
			quota1,quota2 -> ok: over 1/year 0 left 30931200s, ok 2/second 0 left 1s
			quota1,quota2 -> over: over 1/year 0 left 30931200s, over 2/second 0 left 1s`},
		{"unlimited and replaced", `
			9: small,free -> ok: none, unlimited 4294967295
			9: better,small -> over: over 5/week 5 left 432000s, none`},
		{"overrides", `
			3: small @2/2 -> over: over 2/minute 2 left 60s
			new=x @5/1*604800 -> ok: ok 5/week 4 left 432000s
			small @2/6*9 -> the limit of a descriptor cannot be enforced: penstock: invalid: the period of 9 × YEAR is out of range; the longest is 8 years`},
	} {
		c.run(t, limits, envoyrls.Options{})
	}
	spends := conversation{"reports are charged only if they fit", `
		small +50 -> over: over 3/minute 3 left 60s
		small +3 -> ok: ok 3/minute 0 left 60s`}
	spends.run(t, limits, envoyrls.Options{DeniesReports: true})
	quota := conversation{"all limits are quotas", `
		3: small,large -> ok: ok 3/minute 0 left 60s, ok 10/hour 7 left 3600s
		8: small,large -> over: over 3/minute 0 left 60s, over 10/hour 7 left 3600s
		8: small @9/4,large -> ok: ok 9/day 1 left 86400s, over 10/hour 7 left 3600s
		8: large -> over: over 10/hour 7 left 3600s
		8: large,other -> ok: over 10/hour 7 left 3600s, none
		8: large,free -> over: over 10/hour 7 left 3600s, unlimited 4294967295
		8: large,shadow -> ok: over 10/hour 7 left 3600s, ok 1/month 1 left 1987200s`}
	quota.run(t, limits, envoyrls.Options{QuotaMode: true})
}

// With SHADOW_MODE, statuses show what would have been enforced, and every request passes.
func TestShadowModeDeniesNothing(t *testing.T) {
	for _, mode := range []envoyrls.Mode{envoyrls.Atomic, envoyrls.Exact} {
		c := conversation{"SHADOW_MODE", `
			3: small,large -> ok: ok 3/minute 0 left 60s, ok 10/hour 7 left 3600s
			small -> ok: over 3/minute 0 left 60s`}
		c.run(t, limits, envoyrls.Options{Mode: mode, ShadowMode: true})
	}
}

// A report may exceed a limit of any algorithm. The limit then denies until it has room again.
func TestLimitsRunOnOtherAlgorithms(t *testing.T) {
	bucket := conversation{"token bucket", `
		3: small -> ok: ok 3/minute 0 left 60s
		small -> over: over 3/minute 0 left 20s
		small +0 -> ok: ok 3/minute 0 left 60s
		wait 20s
		small -> ok: ok 3/minute 0 left 60s
		small +1 -> over: over 3/minute 0 left 80s
		small +0 -> over: over 3/minute 0 left 20s
		wait 20s
		small +0 -> ok: ok 3/minute 0 left 60s
		wait 1h
		small +0 -> ok: ok 3/minute 3 left 1s
		zero -> over: over 0/day 0 left 1s`}
	bucket.run(t, limits, envoyrls.Options{Algorithm: penstock.TokenBucket})
	for _, o := range []envoyrls.Options{{Algorithm: penstock.SlidingWindow}, {Algorithm: penstock.SlidingLog}} {
		synctest.Test(t, func(t *testing.T) {
			f := newFixture(t, memstore.New(memstore.Options{}), limits, o)
			for _, row := range []struct{ request, want string }{
				{"3: small", "ok: ok 3/minute 0"},
				{"small", "over: over 3/minute 0"},
				{"small +0", "ok: ok 3/minute 0"},
				{"small +1", "over: over 3/minute 0"},
				{"small +0", "over: over 3/minute 0"},
			} {
				if got := f.send(row.request); !strings.HasPrefix(got, row.want) {
					t.Errorf("with algorithm %s, the response to %q is %q; want one that begins with %q", o.Algorithm.Title(), row.request, got, row.want)
				}
			}
		})
	}
	rules, _ := policy.New(policy.Spec{})
	controller, err := admission.New(memstore.New(memstore.Options{}), rules, admission.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range []envoyrls.Options{{Algorithm: penstock.Concurrency}, {Algorithm: penstock.LeakyBucket}, {Mode: envoyrls.Exact, Algorithm: penstock.TokenBucket}} {
		if _, err := envoyrls.New(controller, o); !errors.Is(err, penstock.ErrInvalid) {
			t.Errorf("New with %+v: the error is %v; want ErrInvalid", o, err)
		}
	}
}

func TestInvalidRequestsAreRefused(t *testing.T) {
	f := newFixture(t, memstore.New(memstore.Options{}), limits, envoyrls.Options{})
	many := make([]envoyrls.Descriptor, envoyrls.MaxDescriptors+1)
	for _, row := range []struct {
		request envoyrls.Request
		want    string // the text of the error
	}{
		{envoyrls.Request{Descriptors: many[:1]}, "rate limit domain must not be empty"},
		{envoyrls.Request{Domain: "d"}, "rate limit descriptor list must not be empty"},
		{envoyrls.Request{Domain: "d", Descriptors: many}, "the request has 65 descriptors; send at most 64"},
	} {
		var to envoyrls.Response
		err := f.Decide(context.Background(), &row.request, &to)
		if e, ok := errors.AsType[*envoyrls.Error](err); !ok || e.Code != envoyrls.InvalidArgument || e.Text != row.want {
			t.Errorf("the error for %+v is %v; want InvalidArgument with the text %q", row.request, err, row.want)
		}
	}
	var to envoyrls.Response
	for _, r := range []envoyrls.Request{{Domain: "d", Descriptors: many[:64]}, {Domain: "unknown", Descriptors: many[:1]}} {
		if err := f.Decide(context.Background(), &r, &to); err != nil || to.IsOver || len(to.Statuses) != len(r.Descriptors) || to.Statuses[0] != (envoyrls.Status{}) {
			t.Errorf("the response to %v is %+v, %v; want OK without a limit", r, to, err)
		}
	}
}

// Envoy's service gives some of these descriptors the same key.
func TestDifferentDescriptorsHaveDifferentCounters(t *testing.T) {
	f := newFixture(t, memstore.New(memstore.Options{}), "domain: d\ndescriptors: [{key: '*', rate_limit: {unit: day, requests_per_unit: 1}, descriptors: [{key: '*', rate_limit: {unit: day, requests_per_unit: 1}}]}]", envoyrls.Options{})
	for _, text := range []string{"a=b_c", "a_b=c", "a=b c=d", "a=b|c=d", "a=b=c", "a==b", "a=~1", "a=|"} {
		if got := f.send(text); !strings.HasPrefix(got, "ok") {
			t.Errorf("the response to the first %q is %q; want ok", text, got)
		}
		if got := f.send(text); !strings.HasPrefix(got, "over") {
			t.Errorf("the response to the second %q is %q; want over", text, got)
		}
	}
	for _, e := range []envoyconfig.Entry{{Key: "k=1", Value: "2"}, {Key: "k", Value: "1=2"}, {Key: "k|l", Value: ""}, {Key: "k~2", Value: "1"}} {
		var to envoyrls.Response
		r := &envoyrls.Request{Domain: "d", Descriptors: []envoyrls.Descriptor{{Entries: []envoyconfig.Entry{e}}}}
		if err := f.Decide(context.Background(), r, &to); err != nil || to.IsOver {
			t.Errorf("the response to the first %q is %q, %v; want ok", e, responseText(&to), err)
		}
	}
}

func TestEachRequestHasItsEvents(t *testing.T) {
	f := newFixture(t, memstore.New(memstore.Options{}), limits+`
- key: metric
  value_to_metric: true
  rate_limit: {unit: hour, requests_per_unit: 1}
`, envoyrls.Options{})
	for _, text := range []string{"small,large", "4: small,large", "large +20", "other", "new @1/1", "metric=v", "shadow", "shadow"} {
		f.send(text)
	}
	want := []string{
		"d.small minute allowed", "d.small minute denied", "d.large hour denied", "  unlimited", "d override allowed", "d.metric_v hour allowed",
		"d.shadow month shadow_allowed", "  unlimited", "d.shadow month shadow_denied", "  unlimited",
	}
	// A shadow is decided in another goroutine, so its event may come earlier or later.
	for _, event := range want {
		isFound := false
		for i, got := range f.events {
			if got == event {
				f.events[i], isFound = "", true
				break
			}
		}
		if !isFound {
			t.Errorf("the event %q is missing; the other events are %q", event, f.events)
		}
	}
	if left := strings.Join(f.events, ""); left != "" {
		t.Errorf("there are the events %q besides those that are wanted", f.events)
	}
}

func TestOnFailureDecidesWhileTheStoreFails(t *testing.T) {
	broken := penstock.StoreFunc(func(context.Context, []penstock.Charge) (penstock.Decision, error) {
		return penstock.Decision{}, penstock.ErrUnavailable
	})
	for _, row := range []struct {
		mode          envoyrls.Mode
		onFailure     envoyrls.Failure
		request, want string
	}{
		{mode: envoyrls.Atomic, onFailure: envoyrls.FailOpen, request: "9: small,shadow", want: "ok: ok 3/minute 3 left 60s, ok 1/month 1 left 1987200s"},
		{mode: envoyrls.Atomic, onFailure: envoyrls.FailOpen, request: "small +9", want: "ok: ok 3/minute 3 left 60s"},
		{mode: envoyrls.Atomic, onFailure: envoyrls.FailClosed, request: "small,quota1", want: "over: over 3/minute 0 left 1s, ok 1/year 1 left 30931200s"},
		{mode: envoyrls.Atomic, onFailure: envoyrls.FailClosed, request: "small +1", want: "over: over 3/minute 0 left 1s"},
		{mode: envoyrls.Atomic, onFailure: envoyrls.FailClosed, request: "small +0", want: "over: over 3/minute 0 left 1s"},
		{mode: envoyrls.Atomic, onFailure: envoyrls.FailError, request: "small", want: "the store gives no answer, and on_failure is error"},
		{mode: envoyrls.Atomic, onFailure: envoyrls.FailError, request: "shadow", want: "ok: ok 1/month 1 left 1987200s"},
		{mode: envoyrls.Atomic, onFailure: envoyrls.FailDefault, request: "2: small", want: "ok: ok 3/minute 1 left 60s"},
		{mode: envoyrls.Atomic, onFailure: envoyrls.FailDefault, request: "4: small", want: "over: over 3/minute 3 left 60s"},
		{mode: envoyrls.Exact, onFailure: envoyrls.FailDefault, request: "small", want: "the store gives no answer, and on_failure is error"},
		{mode: envoyrls.Exact, onFailure: envoyrls.FailOpen, request: "small", want: "ok: ok 3/minute 3 left 60s"},
		{mode: envoyrls.Exact, onFailure: envoyrls.FailLocal, request: "4: small", want: "over: over 3/minute 0 left 60s"},
		{mode: envoyrls.Exact, onFailure: envoyrls.FailClosed, request: "small", want: "over: over 3/minute 0 left 1s"},
	} {
		synctest.Test(t, func(t *testing.T) {
			f := newFixture(t, broken, limits, envoyrls.Options{Mode: row.mode, OnFailure: row.onFailure})
			if got := f.send(row.request); got != row.want {
				t.Errorf("mode %v, on_failure %v: the response to %q is\n%s; want\n%s", row.mode, row.onFailure, row.request, got, row.want)
			}
		})
	}
}

// Envoy waits 20 ms by default. If the store hangs, the fallback decides before Envoy's deadline.
func TestFallbackAnswersBeforeEnvoyGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := envoyrls.Options{OnFailure: envoyrls.FailOpen}
		hangs := penstock.StoreFunc(func(ctx context.Context, _ []penstock.Charge) (penstock.Decision, error) {
			<-ctx.Done()
			return penstock.Decision{}, penstock.NewStoreError(penstock.ReasonTimeout, ctx.Err())
		})
		g, err := guard.Standard(hangs, guard.Options{Instances: 1, Limits: o.Settings})
		if err != nil {
			t.Fatal(err)
		}
		defer g.Close()
		f := newFixture(t, g, limits, o)
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer cancel()
		start := time.Now()
		var to envoyrls.Response
		err = f.Decide(ctx, request("small"), &to)
		const want = 16 * time.Millisecond // a fifth of the time is kept for sending the response
		if took := time.Since(start); err != nil || to.IsOver || took != want {
			t.Errorf("after %v the response is %v, %v; want OK after %v", took, responseText(&to), err, want)
		}
	})
}

func TestHeadersHaveThreeDialects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, memstore.New(memstore.Options{}), limits, envoyrls.Options{Headers: []envoyrls.Dialect{envoyrls.DialectPlain, envoyrls.DialectDraft03, envoyrls.DialectDraft11}})
		for _, row := range []struct {
			request string
			want    string
		}{
			{"small,large", `RateLimit-Limit: 3|RateLimit-Remaining: 2|RateLimit-Reset: 60|X-RateLimit-Limit: 3, 3;w=60;name="small", 10;w=3600|X-RateLimit-Remaining: 2|X-RateLimit-Reset: 60|` +
				`RateLimit-Policy: "small";q=3;w=60, "2";q=10;w=3600|RateLimit: "small";r=2;t=60, "2";r=9;t=3600`},
			{"10: large", `RateLimit-Limit: 10|RateLimit-Remaining: 9|RateLimit-Reset: 3600|X-RateLimit-Limit: 10, 10;w=3600|X-RateLimit-Remaining: 9|X-RateLimit-Reset: 3600|` +
				`RateLimit-Policy: "1";q=10;w=3600|RateLimit: "1";r=9;t=3600`},
			{"other,free", ""},
		} {
			var to envoyrls.Response
			if err := f.Decide(t.Context(), request(row.request), &to); err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, h := range to.Headers {
				got = append(got, h.Name+": "+h.Value)
			}
			if strings.Join(got, "|") != row.want {
				t.Errorf("the response to %q has the headers\n%s\nwant\n%s", row.request, strings.Join(got, "|"), row.want)
			}
		}
	})
}

func TestMetadataShowTheRequest(t *testing.T) {
	f := newFixture(t, memstore.New(memstore.Options{}), limits, envoyrls.Options{HasMetadata: true})
	var to envoyrls.Response
	if err := f.Decide(context.Background(), request("2: quota1=x,small @2/1*3 +1,large +0"), &to); err != nil {
		t.Fatal(err)
	}
	want := "map[descriptors:[map[entries:[quota1=x]] map[entries:[small=] hitsAddend:1 limit:requests_per_unit:2 unit:SECOND unit_multiplier:{value:3}] map[entries:[large=] hitsAddend:0]] " +
		"domain:d hitsAddend:2]"
	if got := fmt.Sprint(to.Metadata); got != want {
		t.Errorf("the metadata are\n%s\nwant\n%s", got, want)
	}
}

// The response has the metadata of the limits that are not over. If two limits have the same field,
// the first one has precedence, and maps are merged.
func TestMetadataOfTheFirstLimitThatIsNotOverWin(t *testing.T) {
	for _, mode := range []envoyrls.Mode{envoyrls.Atomic, envoyrls.Exact} {
		f := newFixture(t, memstore.New(memstore.Options{}), `
domain: d
descriptors:
- {key: s1, quota_mode: true, rate_limit: {unit: day, requests_per_unit: 1}, metadata: {service: {name: s1, tags: {a: 1}}, m: 1}}
- {key: s2, quota_mode: true, rate_limit: {unit: day, requests_per_unit: 2}, metadata: {service: {name: s2, tags: {b: 2}}, m: {x: 1}, last: s2}}
- {key: shadow, shadow_mode: true, rate_limit: {unit: day, requests_per_unit: 0}, metadata: {shadow: passes}}
`, envoyrls.Options{HasMetadata: true, Mode: mode})
		for _, row := range []struct{ request, want string }{
			{"s1 +0,s2 +0", "map[last:s2 m:1 service:map[name:s1 tags:map[a:1 b:2]]]"},
			{"s2 +0,s1 +0", "map[last:s2 m:map[x:1] service:map[name:s2 tags:map[a:1 b:2]]]"},
			{"s1 +2", "<nil>"},
			{"s1 +0,s2 +0,shadow", "map[last:s2 m:map[x:1] service:map[name:s2 tags:map[b:2]] shadow:passes]"},
			{"s2 +3", "<nil>"},
			{"s1 +0,s2 +0", "<nil>"},
		} {
			var to envoyrls.Response
			if err := f.Decide(context.Background(), request(row.request), &to); err != nil {
				t.Fatal(err)
			}
			if got := fmt.Sprint(to.Metadata["metadata"]); got != row.want {
				t.Errorf("in mode %v, the metadata for %q are %s; want %s", mode, row.request, got, row.want)
			}
		}
	}
}

// Counters stay as they are when the configuration changes.
func TestSetConfigKeepsCounters(t *testing.T) {
	f := newFixture(t, memstore.New(memstore.Options{}), limits, envoyrls.Options{})
	f.send("2: small")
	config, err := envoyconfig.Load([]envoyconfig.File{{Name: "a", Content: []byte("domain: d\ndescriptors: [{key: small, rate_limit: {unit: minute, requests_per_unit: 9}}]")}}, envoyconfig.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := f.SetConfig(config); err != nil || f.Config() != config {
		t.Fatalf("SetConfig: %v, and the configuration is %v; want the new one", err, f.Config())
	}
	if got := f.send("small,large"); !strings.HasPrefix(got, "ok: ok 9/minute 6 left") || !strings.HasSuffix(got, ", none") {
		t.Errorf("the response is %s; want the new limits, with the usage from before", got)
	}
}
