package adminapi

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"math"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/admission"
	"github.com/penstock/penstock/cmd/penstock/internal/console/activity"
	"github.com/penstock/penstock/cmd/penstock/internal/console/audit"
	"github.com/penstock/penstock/cmd/penstock/internal/console/denials"
	"github.com/penstock/penstock/cmd/penstock/internal/console/keylimits"
	"github.com/penstock/penstock/cmd/penstock/internal/rpc/envoyrls"
	"github.com/penstock/penstock/policy"
	"github.com/penstock/penstock/policy/policyfile"
)

// withRules replaces the policy of a fixture.
func withRules(t testing.TB, text string) func(*Options) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "rules.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	p, err := policyfile.Load(file, policyfile.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return func(o *Options) { o.Policy = p.Rules }
}

// manyLimits returns a policy with n limits per address.
func manyLimits(n int) string {
	text := "rules:\n"
	for first := 0; first < n; first += 50 {
		var limits []string
		for i := range min(50, n-first) {
			limits = append(limits, fmt.Sprintf("{name: l%03d, rate: 9/h}", first+i))
		}
		text += fmt.Sprintf("- {name: r%03d, match: {path: /r%d/**}, per: ip, limits: [%s]}\n", first, first, strings.Join(limits, ", "))
	}
	return text
}

// Each bound of a parameter accepts the largest value, and rejects the next one.
func TestBoundsOfParametersAreExact(t *testing.T) {
	f := newFixture(t, nil)
	repeated := func(n int) string { return strings.Repeat("&header=A:b", n) }
	for accepted, rejected := range map[string]string{
		"offenders?limit=1":                         "offenders?limit=0",
		"offenders?limit=100":                       "offenders?limit=101",
		"timings?last=1":                            "timings?last=0",
		"timings?last=600":                          "timings?last=601",
		"history?last=1":                            "history?last=-1",
		"history?last=600":                          "history?last=601",
		"history?span=minutes&last=1440":            "history?span=minutes&last=1441",
		"explain?url=/" + repeated(100):             "explain?url=/" + repeated(101),
		"explain?url=/&size=-1":                     "explain?url=/&size=-2",
		"explain?url=/&size=0":                      "explain?url=",
		"history?rule=" + strings.Repeat("r", 4096): "history?rule=" + strings.Repeat("r", 4097),
	} {
		if w := f.get(accepted); w.Code != 200 {
			t.Errorf("%.40s returns %d %s; want 200", accepted, w.Code, w.Body)
		}
		if w := f.get(rejected); w.Code != 400 {
			t.Errorf("%.40s returns %d; want 400", rejected, w.Code)
		}
	}
	if got := read[Timings](f, "timings"); len(got.Store.Calls) != 60 {
		t.Errorf("without last, the timings have %d seconds; want 60", len(got.Store.Calls))
	}
	for i := range 21 {
		f.spend("api.hour", fmt.Sprint("key:", i), 11)
	}
	if got := read[Offenders](f, "offenders"); len(got.Offenders) != 20 || got.OthersAtMost != 1 {
		t.Errorf("without limit, there are %d offenders, and at most %d denials of others; want 20 and 1", len(got.Offenders), got.OthersAtMost)
	}
	if w := f.get("nothing"); w.Code != 404 || !strings.Contains(w.Body.String(), `"title":"Not Found","status":404`) {
		t.Errorf("an unknown path returns %d %s; want a Problem with its title", w.Code, w.Body)
	}
	for _, c := range []struct{ method, path, allow string }{
		{"POST", "state", "GET"}, {"GET", resetPath, "POST"}, {"HEAD", resetPath, "POST"}, {"PUT", resetPath, "POST"}, {"PUT", "nothing", "GET"},
	} {
		if w := f.send(c.method, c.path); w.Code != 405 || w.Header().Get("Allow") != c.allow {
			t.Errorf("%s %s returns %d with Allow: %s; want 405 with %s", c.method, c.path, w.Code, w.Header().Get("Allow"), c.allow)
		}
	}
	for _, path := range []string{"state", "nothing"} {
		if w := f.send("HEAD", path); w.Code != map[string]int{"state": 200, "nothing": 404}[path] {
			t.Errorf("HEAD %s returns %d; want the status of a GET", path, w.Code)
		}
	}
}

// A history has at most 200 lines, and says if it is cut.
func TestHistoryIsCut(t *testing.T) {
	for n, isCut := range map[int]bool{200: false, 201: true} {
		f := newFixture(t, nil)
		f.options.Recorder.Tick(time.Second, func(add func(activity.Series, uint64)) {
			for i := range n {
				add(activity.Series{Name: fmt.Sprintf("n%03d", i)}, 1)
			}
		})
		got := read[History](f, "history?last=1")
		if len(got.Lines) != 200 || got.IsCut != isCut {
			t.Errorf("of %d lines, the history has %d, and is cut: %t; want 200, cut: %t", n, len(got.Lines), got.IsCut, isCut)
		}
	}
}

func TestSumsOfRulesDoNotOverflow(t *testing.T) {
	series := func(rule, limit string) activity.Series {
		return activity.Series{Rule: rule, Limit: limit, Name: "denied"}
	}
	got := sumRules([]activity.Line{
		{Series: series("b", "y"), Counts: []uint32{math.MaxUint32, 1}},
		{Series: series("b", "x"), Counts: []uint32{1, 2}},
		{Series: series("a", "x"), Counts: []uint32{5, 6}},
	})
	want := []activity.Line{
		{Series: series("", ""), Counts: []uint32{math.MaxUint32, 9}},
		{Series: series("a", ""), Counts: []uint32{5, 6}},
		{Series: series("b", ""), Counts: []uint32{math.MaxUint32, 3}},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("the sums are %v; want %v", got, want)
	}
}

// If a second begins during a read, the read is repeated.
func TestReadIsRepeatedIfASecondBegins(t *testing.T) {
	second, reads := int64(7), 0
	got := readWithinASecond(func() int64 { return second }, func() {
		if reads++; reads < 3 {
			second++
		}
	})
	if got != 9 || reads != 3 {
		t.Errorf("readWithinASecond returns %d after %d reads; want 9 after 3", got, reads)
	}
}

// While the store fails, the state lists the bounds of 50 limits, and counts the others.
func TestBoundsOfAFailingStoreAreCut(t *testing.T) {
	for n, skipped := range map[int]int{50: 0, 51: 1, 53: 3} {
		f := newFixture(t, func(o *Options) {
			withRules(t, manyLimits(n))(o)
			o.StoreInfo = func(context.Context) StoreState { return StoreState{IsFailing: true} }
		})
		if got := read[StoreState](f, "store"); got.Over == nil || len(got.Over.Limits) != 50 || got.Over.Skipped != skipped {
			t.Errorf("of %d limits, the bounds are those of %+v; want 50, and %d skipped", n, got.Over, skipped)
		}
	}
}

// The bounds of limits are those of all instances. A store that counts none has one.
func TestBoundsCountTheInstances(t *testing.T) {
	over := func(instances int) (fails, rules int64) {
		f := newFixture(t, func(o *Options) {
			o.StoreInfo = func(context.Context) StoreState { return StoreState{IsFailing: true, Instances: instances} }
		})
		limit := read[Rules](f, "rules").Rules[0].Limits[1]
		i := slices.IndexFunc(limit.Bounds, func(b Bound) bool { return b.When == "store returns" })
		return *read[StoreState](f, "store").Over.Limits[1].Bounds[1].Over, *limit.Bounds[i].Over
	}
	none, noneOfRules := over(0)
	one, oneOfRules := over(1)
	seven, sevenOfRules := over(7)
	if none != one || noneOfRules != oneOfRules || seven <= one || sevenOfRules <= oneOfRules || one != oneOfRules || seven != sevenOfRules {
		t.Errorf("the bounds of 0, 1 and 7 instances are %d, %d and %d, and in the rules %d, %d and %d; want those of 1 twice, and larger ones", none, one, seven, noneOfRules, oneOfRules, sevenOfRules)
	}
}

// A reset has a bound of its limits, of its body and of its key.
func TestBoundsOfResetsAreExact(t *testing.T) {
	pad := func(n int) string { return resetAllBody + strings.Repeat(" ", n-len(resetAllBody)) }
	keyOf := func(n int) string { return `{"key":"key:` + strings.Repeat("x", n-4) + `","reason":"r"}` }
	for _, c := range []struct {
		body   string
		status int
	}{{pad(16 << 10), 200}, {pad(16<<10 + 1), 400}, {keyOf(4096), 200}, {keyOf(4097), 400}} {
		f := newFixture(t, nil)
		if w := f.post(c.body, operatorHeader); w.Code != c.status {
			t.Errorf("a body of %d bytes returns %d %s; want %d", len(c.body), w.Code, w.Body, c.status)
		}
	}
	for n, status := range map[int]int{256: 200, 257: 409} {
		f := newFixture(t, withRules(t, manyLimits(n)))
		w := f.post(`{"key":"ip:192.0.2.1","reason":"r"}`, operatorHeader)
		if w.Code != status || status == 409 && !strings.Contains(w.Body.String(), "there are more than 256 limits") {
			t.Errorf("a reset of %d limits returns %d %s; want %d", n, w.Code, w.Body, status)
		}
		if got := read[Key](f, "key?key=ip:192.0.2.1&all=true", operatorHeader); len(got.Limits) != 256 || got.Skipped != n-256 {
			t.Errorf("of %d limits, the key has %d, and %d are skipped; want 256, and the others skipped", n, len(got.Limits), got.Skipped)
		}
	}
}

// The line of a reset is on the disk before anything is reset. Otherwise nothing is reset.
func TestIntentOfAResetIsWrittenFirst(t *testing.T) {
	var intents []Audit
	var fails error
	var f *fixture
	f = newFixture(t, func(o *Options) {
		o.AuditIntent = func(a Audit) error {
			if f.used("hour") == 0 && len(a.Limits) > 0 {
				t.Error("the key was reset before its intent was written")
			}
			intents = append(intents, a)
			return fails
		}
	})
	f.spend("api.hour", "key:customer-4711", 12)
	if w := f.post(`{"key":"key:unused","reason":"r"}`, operatorHeader); w.Code != 200 || len(intents) != 0 {
		t.Errorf("a reset of an unused key returns %d, and writes %v; want 200, and nothing written", w.Code, intents)
	}
	fails = errors.New("the disk is full")
	if w := f.post(resetAllBody, operatorHeader); w.Code != 500 || f.used("hour") != 10 || !strings.Contains(w.Body.String(), "nothing was reset: the disk is full") {
		t.Errorf("a reset whose intent cannot be written returns %d %s, and %d units are used; want 500 and 10 units", w.Code, w.Body, f.used("hour"))
	}
	fails = nil
	if w := f.post(resetAllBody, operatorHeader); w.Code != 200 || f.used("hour") != 0 || len(intents) != 2 || len(intents[1].Limits) != 1 {
		t.Errorf("a reset returns %d %s, after the intents %+v; want 200, after one with one limit", w.Code, w.Body, intents)
	}
}

// A reset that the store does not make is not refused: its outcome is unknown.
func TestResetThatTheStoreDoesNotMake(t *testing.T) {
	f := newFixture(t, func(o *Options) {
		inner := o.Store
		o.Store = penstock.StoreFunc(func(ctx context.Context, charges []penstock.Charge) (penstock.Decision, error) {
			if charges[0].Mode == penstock.Reset {
				return penstock.Decision{}, penstock.NewStoreError(penstock.ReasonTimeout, errors.New("key:customer-4711"))
			}
			return inner.Decide(ctx, charges)
		})
	})
	f.spend("api.hour", "key:customer-4711", 12)
	w := f.post(resetAllBody, operatorHeader)
	if w.Code != 503 || strings.Contains(w.Body.String(), "4711") || len(f.audits) != 1 || f.audits[0].Result == audit.OK || f.audits[0].Result == audit.Refused {
		t.Errorf("the response is %d %s, and the audit lines are %+v; want 503 without the key, and a result that is neither ok nor refused", w.Code, w.Body, f.audits)
	}
}

func TestErrorsOfTheStoreHaveAStatus(t *testing.T) {
	failing := newFixture(t, func(o *Options) {
		o.StoreInfo = func(context.Context) StoreState { return StoreState{Reason: "unreachable"} }
	})
	for _, c := range []struct {
		err    error
		status int
		text   string
	}{
		{penstock.NewStoreError(penstock.ReasonUnreachable, errors.New("secret")), 503, "the store gives no answer: unreachable"},
		{fmt.Errorf("%w: secret", penstock.ErrUnavailable), 503, "the store gives no answer: unreachable"},
		{penstock.NewStoreError(penstock.ReasonTimeout, errors.New("secret")), 503, "the store gives no answer: timeout"},
		{fmt.Errorf("secret: %w", context.DeadlineExceeded), 503, "the store gives no answer in time"},
		{errors.New("secret"), 400, "the store rejects this key"},
	} {
		if err := failing.storeFailed(t.Context(), c.err); StatusOf(err) != c.status || err.Error() != c.text {
			t.Errorf("%v: the refusal is %d %v; want %d %s", c.err, StatusOf(err), err, c.status, c.text)
		}
	}
	other := errors.New("another error")
	w := httptest.NewRecorder()
	if failWith(w, other); StatusOf(other) != 500 || w.Code != 500 || !strings.Contains(w.Body.String(), "another error") {
		t.Errorf("another error has the status %d, and the response is %d %s; want 500 with its text", StatusOf(other), w.Code, w.Body)
	}
	f := newFixture(t, nil)
	if _, err := Read[State](t.Context(), f.Handler, Viewer{}, "health", nil); StatusOf(err) != 500 || err.Error() != "health has no body of the type adminapi.State" {
		t.Errorf("Read of a wrong type returns %v; want an error with the status 500", err)
	}
	if got, err := Read[Health](t.Context(), f.Handler, Viewer{}, "health", nil); err != nil || got.Status != "ok" {
		t.Errorf("the health is %+v, %v; want ok", got, err)
	}
	if _, err := Read[Offenders](t.Context(), f.Handler, Viewer{}, "offenders", url.Values{"limit": {"x"}}); StatusOf(err) != 400 {
		t.Errorf("Read of offenders with a wrong number returns %v; want an error with the status 400", err)
	}
}

// A ref names a key only while the store has the key itself.
func TestRefsOfHashedAndForgottenKeys(t *testing.T) {
	f := newFixture(t, nil)
	f.spend("api.hour", "key:abc", 12)
	ref := read[Offenders](f, "offenders").Offenders[0].Ref
	f.Options.Policy = rulesWithoutKeys(t)
	if w := f.get("key?ref=" + ref); w.Code != 404 || !strings.Contains(w.Body.String(), "no limit counts under this key any more") || strings.Contains(w.Body.String(), "abc") {
		t.Errorf("the ref of a key without limits returns %d %s; want 404 without the key", w.Code, w.Body)
	}
	f.Options.Policy = f.options.Policy
	f.Options.Key = func(string) (string, bool) { return "", false }
	if w := f.get("key?ref=" + ref); w.Code != 409 || !strings.Contains(w.Body.String(), "only the hash of this key") {
		t.Errorf("the ref of a hash returns %d %s; want 409", w.Code, w.Body)
	}
	if w := f.get("denials?ref=" + ref); w.Code != 409 {
		t.Errorf("the denials of a hash return %d %s; want 409", w.Code, w.Body)
	}
}

func rulesWithoutKeys(t *testing.T) *policy.Rules {
	var o Options
	withRules(t, "rules: [{name: all, per: global, limits: [{rate: 9/h}]}]")(&o)
	return o.Policy.Rules()
}

// A key has the global limits beside its own, and limits of Envoy's files.
func TestKeyHasGlobalAndEnvoyLimits(t *testing.T) {
	plan := penstock.Limit{Group: "rides", Name: "minute", Count: 5, Period: time.Minute}.MustCompile()
	f := newFixture(t, func(o *Options) {
		withRules(t, `
allow: {ip: 10.0.0.0/8}
rules:
- {name: api, per: ip, limits: [{name: hour, rate: 10/h}, {name: total, rate: 1000/h, per: global}]}
- {name: other, match: {path: /other}, per: {key: header X-Key}, limits: [{name: hour, rate: 10/h}]}
`)(o)
		o.EnvoyLimits = func(key string) []envoyrls.KeyLimit {
			if key != "rides|user=1" {
				return nil
			}
			return []envoyrls.KeyLimit{{Rule: "rides", Limit: "minute", Key: key, Plan: plan}}
		}
	})
	f.spend("api.hour", "ip:192.0.2.1", 2)
	f.spend("api.total", "global", 3)
	f.spend("other.hour", "key:abc", 2)
	for query, want := range map[string]string{
		"key=ip:192.0.2.1":          "[api.hour] [api.total]",
		"key=ip:192.0.2.2":          "[] [api.total]",
		"key=ip:192.0.2.2&all=true": "[api.hour] [api.total]",
		"key=key:abc":               "[other.hour] []",
		"key=global":                "[api.total] []",
		"ref=" + f.ref("global"):    "[api.total] []",
		"key=rides|user=1":          "[] []",
		"key=rides|user=1&all=true": "[rides.minute] []",
	} {
		got := read[Key](f, "key?"+query, operatorHeader)
		names := func(limits []keylimits.Limit) (all []string) {
			for _, l := range limits {
				all = append(all, l.Rule+"."+l.Limit)
			}
			return all
		}
		if text := fmt.Sprint(names(got.Limits), names(got.Global)); text != want || got.List != "" {
			t.Errorf("%s has the limits %s and is on the list %q; want %s, and no list", query, text, got.List, want)
		}
	}
	if got := read[Key](f, "key?key=ip:10.1.2.3", operatorHeader); got.List != "allow" {
		t.Errorf("an address of the allow list is on the list %q; want allow", got.List)
	}
}

// An operator's certificate is enough to read, and not to write.
func TestClientCertificateMayRead(t *testing.T) {
	f := newFixture(t, func(o *Options) { o.IsLocal = false })
	for _, c := range []struct {
		state  *tls.ConnectionState
		status int
	}{{nil, 401}, {&tls.ConnectionState{}, 401}, {&tls.ConnectionState{VerifiedChains: [][]*x509.Certificate{{}}}, 200}} {
		q := httptest.NewRequest("GET", "https://127.0.0.1:9180"+Prefix+"state", nil)
		q.TLS = c.state
		w := httptest.NewRecorder()
		if f.ServeHTTP(w, q); w.Code != c.status {
			t.Errorf("with the TLS state %+v, a read returns %d; want %d", c.state, w.Code, c.status)
		}
		if v, err := f.ViewerOf(q); v.IsOperator() || (err == nil) != (c.status == 200) {
			t.Errorf("with the TLS state %+v, the viewer is %+v, %v; want no operator", c.state, v, err)
		}
	}
	if v, err := f.ViewerOfToken(token); err != nil || !v.IsOperator() {
		t.Errorf("the viewer with the token is %+v, %v; want an operator", v, err)
	}
}

// Headers of browsers decide whether a page of another origin sends a request.
func TestOriginsOfRequests(t *testing.T) {
	for _, c := range []struct {
		site, mode, origin string
		isForeign          bool
	}{
		{}, {origin: "http://127.0.0.1:9180"}, {origin: "https://127.0.0.1:9180"}, {origin: "http://127.0.0.1", isForeign: true}, {origin: "http://[", isForeign: true}, {origin: "null", isForeign: true},
		{site: "same-origin", origin: "http://other"}, {site: "none", origin: "http://other"}, {site: "cross-site", isForeign: true}, {site: "same-site", isForeign: true},
		{site: "cross-site", mode: "navigate"}, {site: "same-site", mode: "navigate"}, {site: "cross-site", mode: "cors", isForeign: true}, {site: "unknown", origin: "http://other", isForeign: true},
	} {
		q := httptest.NewRequest("GET", "http://127.0.0.1:9180/", nil)
		for name, value := range map[string]string{"Sec-Fetch-Site": c.site, "Sec-Fetch-Mode": c.mode, "Origin": c.origin} {
			if value != "" {
				q.Header.Set(name, value)
			}
		}
		if got := isForeign(q); got != c.isForeign {
			t.Errorf("a request with %+v is foreign: %t; want %t", c, got, c.isForeign)
		}
	}
}

// Whatever a response needs may take five seconds in all.
func TestResponsesHaveFiveSeconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var left []time.Duration
		f := newFixture(t, func(o *Options) {
			note := func(ctx context.Context) {
				deadline, _ := ctx.Deadline()
				left = append(left, time.Until(deadline))
			}
			health, fleet, store := o.Health, o.Fleet, o.Store
			o.Health = func(ctx context.Context) Health { note(ctx); return health(ctx) }
			o.Fleet = func(ctx context.Context) *activity.Fleet { note(ctx); return fleet(ctx) }
			o.Store = penstock.StoreFunc(func(ctx context.Context, charges []penstock.Charge) (penstock.Decision, error) {
				note(ctx)
				return store.Decide(ctx, charges)
			})
		})
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		f.state(ended) // for other readers too, so it continues
		f.get("instances")
		f.post(resetAllBody, operatorHeader)
		if _, err := Read[Health](t.Context(), f.Handler, Viewer{}, "health", nil); err != nil {
			t.Error(err)
		}
		q := httptest.NewRequest("POST", "/reset", nil)
		if _, err := f.Reset(q, token, ResetRequest{Key: "key:a", Reason: "r"}); err != nil {
			t.Error(err)
		}
		if len(left) < 6 || slices.Min(left) != 5*time.Second || slices.Max(left) != 5*time.Second {
			t.Errorf("the times that are left are %v; want 5 s, six times or more", left)
		}
	})
}

// A state is at most a second old. Times that change every second do not change its ETag.
func TestStateIsMadeOnceASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, nil)
		first := f.ReadState(t.Context())
		time.Sleep(time.Second - 1)
		if again := f.ReadState(t.Context()); again != first {
			t.Error("within a second, the state is made again; want the same")
		}
		time.Sleep(time.Nanosecond)
		tag := f.stateCache.latest.tag
		again := f.ReadState(t.Context())
		if again == first || f.stateCache.latest.tag != tag || len(tag) != 26 || again.Time != time.Now().UTC() {
			t.Errorf("after a second, the state is of %v with the ETag %s; want a new one of now with the ETag %s of 12 bytes", again.Time, f.stateCache.latest.tag, tag)
		}
	})
}

// A session lasts twelve hours, and not a second longer.
func TestSessionEndsAfterTwelveHours(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, func(o *Options) { o.IsLocal = false })
		c, err := f.LogIn(token, httptest.NewRequest("POST", "http://127.0.0.1:9180/login", nil))
		if err != nil || c.MaxAge != 43_200 {
			t.Fatalf("LogIn returns %+v, %v; want a cookie for 43200 s", c, err)
		}
		status := func() int { return f.get("state", "Cookie: "+sessionCookie+"="+c.Value).Code }
		time.Sleep(12*time.Hour - time.Nanosecond)
		if got := status(); got != 200 {
			t.Errorf("just before its end, the session gets %d; want 200", got)
		}
		time.Sleep(time.Nanosecond)
		if got := status(); got != 401 {
			t.Errorf("at its end, the session gets %d; want 401", got)
		}
	})
}

// A wrong token waits 100 ms, and eight responses wait at most.
func TestDelaysOfWrongTokens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, nil)
		f.delays.each = wrongTokenDelay
		var ended atomic.Int64
		for range 9 {
			go func() {
				_ = f.rejectToken()
				ended.Add(1)
			}()
		}
		synctest.Wait()
		if ended.Load() != 1 {
			t.Errorf("of 9 wrong tokens, %d are answered at once; want 1", ended.Load())
		}
		time.Sleep(100*time.Millisecond - 1)
		synctest.Wait()
		if ended.Load() != 1 {
			t.Errorf("before 100 ms, %d wrong tokens are answered; want 1", ended.Load())
		}
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		if ended.Load() != 9 || f.delays.waiting.Load() != 0 {
			t.Errorf("after 100 ms, %d wrong tokens are answered, and %d wait; want 9 and none", ended.Load(), f.delays.waiting.Load())
		}
	})
	if o := New(Options{}); o.delays.each != 100*time.Millisecond {
		t.Errorf("a Handler has a delay of %v; want 100 ms", o.delays.each)
	}
}

// A stream begins with the pause of browsers. It has a state each second, and a comment each 15 s.
func TestTimesOfAStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := startLive(t, newFixture(t, nil))
		conn, response := s.open(t, "events")
		defer conn.Close()
		if response.Header.Get("X-Accel-Buffering") != "no" {
			t.Errorf("the header is %v; want that nginx does not buffer", response.Header)
		}
		began := time.Now()
		var states, comments []time.Duration
		text := ""
		for buffer := make([]byte, 1<<16); time.Since(began) < 31*time.Second; {
			n, err := response.Body.Read(buffer)
			if err != nil {
				t.Fatal(err)
			}
			if text == "" && string(buffer[:n]) != "retry: 3000\n\n" {
				t.Errorf("the stream begins with %q; want the pause of browsers", buffer[:n])
			}
			text += string(buffer[:n])
			switch at := time.Since(began); {
			case strings.HasPrefix(string(buffer[:n]), "event: state\nid: \""):
				states = append(states, at)
			case string(buffer[:n]) == ": still here\n\n":
				comments = append(comments, at)
			}
		}
		if fmt.Sprint(comments) != "[15s 30s]" {
			t.Errorf("the comments came after %v; want 15 s and 30 s", comments)
		}
		for i, at := range states {
			if at != time.Duration(i)*time.Second {
				t.Errorf("state %d came after %v; want one each second", i, at)
			}
		}
	})
}

// A reader that takes nothing is dropped after five seconds.
func TestSlowReaderIsDroppedAfterFiveSeconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := startLive(t, newFixture(t, nil))
		conn, _ := s.open(t, "events") // reads the headers, and nothing more
		defer conn.Close()
		time.Sleep(5*time.Second - 1)
		synctest.Wait()
		if n := s.readers.count(); n != 1 {
			t.Errorf("before five seconds, %d readers are connected; want 1", n)
		}
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		if n := s.readers.count(); n != 0 {
			t.Errorf("after five seconds, %d readers are connected; want none", n)
		}
	})
}

// A reader gets 50 denials in a second, and 40 of them for one limit.
func TestRateOfDenials(t *testing.T) {
	for limits, want := range map[int]int{1: 40, 3: 50} {
		synctest.Test(t, func(t *testing.T) {
			f := newFixture(t, withDenials)
			s := startLive(t, f)
			conn, response := s.open(t, "denials")
			defer conn.Close()
			got := make(chan string, 1000)
			go func() {
				for buffer := make([]byte, 1<<16); ; {
					n, err := response.Body.Read(buffer)
					if err != nil {
						return
					}
					if text := string(buffer[:n]); strings.HasPrefix(text, "event: denial\ndata: {") {
						got <- text
					}
				}
			}()
			synctest.Wait()
			for i := range 120 {
				charges := []penstock.Charge{{Key: "key:a", Plan: f.options.Policy.Rules().Plans()[i%limits], Cost: 1}}
				d := penstock.Single(penstock.Status{})
				f.options.Denials.Observe(&admission.Event{Rule: "api", Limit: "l", Key: "key:a", Outcome: admission.Denied, Charges: charges, Decision: &d})
				synctest.Wait()
			}
			if len(got) != want {
				t.Errorf("of 120 denials by %d limits, a reader gets %d; want %d", limits, len(got), want)
			}
		})
	}
}

// A reader of denials waits for a place if those of displaced readers are not free yet.
func TestDenialsWithoutAPlaceAreUnavailable(t *testing.T) {
	f := newFixture(t, withDenials)
	for f.options.Denials.Join(denials.Filter{}, denials.Rate{PerSecond: 1}) != nil {
	}
	if w := f.get("denials"); w.Code != 503 || w.Header().Get("Retry-After") != "5" || f.readers.count() != 0 {
		t.Errorf("without a place, the response is %d %v, and %d places are taken; want 503 with Retry-After: 5, and none", w.Code, w.Header(), f.readers.count())
	}
}

// The instances of a fleet, and their counts, are added up and sorted.
func TestInstancesAndTheirCounts(t *testing.T) {
	series := func(rule, limit, name string) activity.Series {
		return activity.Series{Rule: rule, Limit: limit, Name: name}
	}
	counts := func(n uint64, all ...activity.Series) (list []activity.Count) {
		for _, s := range all {
			list = append(list, activity.Count{Series: s, Last10: n, Last60: 10 * n})
		}
		return list
	}
	f := newFixture(t, func(o *Options) {
		fleet := o.Fleet
		o.Fleet = func(ctx context.Context) *activity.Fleet {
			all := fleet(ctx)
			all.Registered, all.Problem, all.Ignored = 5, "a problem", activity.Ignored{OtherVersion: 1, Corrupt: 2, OtherSecret: 3}
			one, two := *all.Instances[0].Summary, *all.Instances[0].Summary
			one.Counts = counts(1, series("b", "x", "n"), series("a", "y", "n"), series("a", "x", "z"), series("a", "x", "n"))
			two.Counts = counts(2, series("a", "x", "n"))
			all.Instances = []activity.Instance{{Name: "a", IsSelf: true, Summary: &one}, {Name: "b", Summary: &two}}
			return all
		}
	})
	got := read[Instances](f, "instances")
	if got.Registered != 5 || got.Problem != "a problem" || got.Ignored != (Ignored{OtherVersion: 1, Corrupt: 2, OtherSecret: 3}) || len(got.Instances) != 2 || !got.Instances[0].IsSelf || got.Instances[1].IsSelf {
		t.Errorf("the instances are %+v; want two of five, a problem, and what was ignored", got)
	}
	want := []Count{{"a", "x", "n", 1, 10}, {"a", "x", "z", 1, 10}, {"a", "y", "n", 1, 10}, {"b", "x", "n", 1, 10}}
	if !slices.Equal(got.Instances[0].Counts, want) {
		t.Errorf("the counts of an instance are %v; want %v", got.Instances[0].Counts, want)
	}
	want[0] = Count{"a", "x", "n", 3, 30}
	state := read[State](f, "state")
	if !slices.Equal(state.FleetCounts, want) || state.Fleet != (FleetState{Shown: 2, Registered: 5, Problem: "a problem"}) {
		t.Errorf("the counts of the fleet %+v are %v; want %v", state.Fleet, state.FleetCounts, want)
	}
	if w := f.get("offenders"); !strings.Contains(w.Body.String(), `"problem":"a problem"`) || !strings.Contains(w.Body.String(), `"instances":2`) {
		t.Errorf("the offenders of the fleet are %s; want two instances and the problem", w.Body)
	}
}

// The counts of an instance are those of the last 10 and 60 seconds.
func TestCountsOfTheLastSeconds(t *testing.T) {
	f := newFixture(t, nil)
	total := uint64(0)
	for second := range 100 {
		total += uint64(second)
		f.options.Recorder.Tick(time.Duration(second)*time.Second, func(add func(activity.Series, uint64)) {
			add(activity.Series{Name: "source:store"}, total)
		})
	}
	sum := func(from int) (n uint64) {
		for second := from; second < 100; second++ {
			n += uint64(second)
		}
		return n
	}
	if got, want := f.counts(), []Count{{Name: "source:store", Last10: sum(90), Last60: sum(40)}}; !slices.Equal(got, want) {
		t.Errorf("the counts are %v; want %v", got, want)
	}
}

func TestDistinctKeysAreSorted(t *testing.T) {
	f := newFixture(t, nil)
	for i := range 3 {
		f.spend("api.hour", fmt.Sprint("key:", i), 11)
	}
	f.spend("api.day", "key:0", 1001)
	got := read[Offenders](f, "offenders").Distinct
	want := []DistinctLimit{{"api", "hour", 3, 0}, {"api", "day", 1, 0}}
	if got.Count != 4 || got.Deviation != 0 || !slices.Equal(got.ByLimit, want) {
		t.Errorf("the distinct keys are %+v; want 4 in %v", got, want)
	}
}

func TestRatesHaveTheirTier(t *testing.T) {
	for want, r := range map[string]Rate{"9 per 1s": {Text: "9 per 1s"}, "gold 9 per 1s": {Tier: "gold", Text: "9 per 1s"}} {
		if got := r.String(); got != want {
			t.Errorf("the rate is %q; want %q", got, want)
		}
	}
}

// TestNeedsAreThoseOfTheAlgorithm: a token bucket needs a burst, a window needs a count, and slots
// need nothing. A window longer than a sample has no needs.
func TestNeedsAreThoseOfTheAlgorithm(t *testing.T) {
	var n activity.Needs
	for i := range n.P99 {
		n.P95[i], n.P99[i] = int64(30-i), int64(40-i)
	}
	n.Clients, n.Length = 200, 3*time.Hour
	for _, c := range []struct {
		limit penstock.Limit
		want  string
	}{
		{penstock.Per(50, time.Minute).WithBurst(9), "burst at 30/min: 22, 32; rate: 2/min, burst: 80"},
		{penstock.Per(1, 24*time.Hour).WithBurst(9), "burst at 1/h: 30, 40; rate: 2/min, burst: 80"},
		{penstock.Per(7, time.Minute).With(penstock.FixedWindow), "count in any 1m: 28, 38; rate: 80/min, algorithm: fixed-window"},
		{penstock.Per(7, time.Second).With(penstock.SlidingLog), "count in any 1s: 22, 32; rate: 50/s, algorithm: sliding-log"},
		{penstock.Per(7, 2*time.Hour).With(penstock.FixedWindow), "none"},
		{penstock.InFlight(7, time.Minute), "none"},
	} {
		c.limit.Name = "x"
		plan, err := c.limit.Compile()
		if err != nil {
			t.Fatal(err)
		}
		got := "none"
		if found := needsOf(n, plan); found != nil {
			got = fmt.Sprintf("%s: %d, %d; %s", found.Of, found.P95, found.P99, found.Suggested)
		}
		if got != c.want {
			t.Errorf("the needs for %v are %q; want %q", c.limit, got, c.want)
		}
	}
	if found := needsOf(activity.Needs{}, nil); found != nil {
		t.Errorf("without clients, the needs are %+v", found)
	}
}
