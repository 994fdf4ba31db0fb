package adminapi

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/admission"
	"github.com/penstock/penstock/cmd/penstock/internal/console/activity"
	"github.com/penstock/penstock/cmd/penstock/internal/console/denials"
	"github.com/penstock/penstock/cmd/penstock/internal/console/explain"
	"github.com/penstock/penstock/cmd/penstock/internal/console/keylimits"
	"github.com/penstock/penstock/cmd/penstock/internal/rpc/envoyrls"
	"github.com/penstock/penstock/cmd/penstock/internal/text/redact"
	"github.com/penstock/penstock/guard"
	"github.com/penstock/penstock/internal/rediskeys"
	"github.com/penstock/penstock/internal/regions"
	"github.com/penstock/penstock/memstore"
	"github.com/penstock/penstock/policy/policyfile"
	"github.com/penstock/penstock/redisstore"
)

var update = flag.Bool("update", false, "write docs/openapi.json")

const testPolicy = `
tiers: {premium: {header X-Plan: premium}, free: default}
allow: {ip: 10.0.0.0/8}
deny: {header X-Key: evil}
rules:
  - name: api
    per: {key: header X-Key}
    new_identities: 9/min, burst 20
    limits: [{rate: {premium: 100/h, free: 10/h}, candidate: {rate: {premium: 50/h, free: 5/h}}}, {name: day, rate: 1000/d}]
  - {name: address, always: true, per: ip, limits: [{rate: 1000/h, shadow: true}]}
  - {name: all, always: true, per: global, limits: [{rate: 100000/h}]}
`

const token = "0123456789abcdef"

// A fixture is a Handler with a store in memory.
type fixture struct {
	*Handler
	t       testing.TB
	options Options
	audits  []Audit
}

const maxReaders = 32 // of events and denials

func newFixture(t testing.TB, change func(*Options)) *fixture {
	t.Helper()
	file := filepath.Join(t.TempDir(), "rules.yaml")
	if err := os.WriteFile(file, []byte(testPolicy), 0o600); err != nil {
		t.Fatal(err)
	}
	p, err := policyfile.Load(file, policyfile.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	names := redisstore.Options{}
	store := memstore.New(memstore.Options{})
	recorder := activity.New(activity.Options{Names: func() func([]byte, string) []byte { return rediskeys.NewNames(names.Secret).Append }, MeasuresNeeds: true})
	recorder.SetLimits(p.Rules.Plans())
	o := Options{
		Token: []byte(token), IsLocal: true, Identities: ShowMasked, MaskSecret: []byte("m"), Store: store, Policy: p.Rules,
		Digest: func() string { return p.Digest }, Recorder: recorder,
		Fleet: func(context.Context) *activity.Fleet {
			f := &activity.Fleet{Instances: []activity.Instance{{Name: "a", IsSelf: true, Summary: recorder.Summary()}}, Registered: 1}
			for _, w := range activity.Windows() {
				f.Activity = append(f.Activity, recorder.Activity(w))
			}
			return f
		},
		Waiting: func() int { return 3 }, Upstream: func() string { return "http://127.0.0.1:3000" },
		Health: func(context.Context) Health { return Health{"ok", []Check{{Name: "store", Status: "ok"}}} },
		StoreInfo: func(context.Context) StoreState {
			return StoreState{Name: "memory", Breakers: map[string]string{}, Instances: 1}
		},
		Explain: func(r *http.Request, descriptor map[string][]string) (*explain.Report, []penstock.Charge, error) {
			return explain.Explain(p.Rules, r, descriptor, names, 1, regions.Setup{})
		},
		Regions: func() regions.Setup { return regions.Setup{} }, RegionsNow: func() []regions.Status { return nil },
		EnvoyLimits: func(string) []envoyrls.KeyLimit { return nil }, AuditIntent: func(Audit) error { return nil },
		Name: func(key string) string { return string(rediskeys.NewNames(names.Secret).Append(nil, key)) }, Key: rediskeys.KeyOf,
	}
	if change != nil {
		change(&o)
	}
	f := &fixture{t: t}
	o.Audit = func(a Audit) { f.audits = append(f.audits, a) }
	o.Denials, o.Reader, o.MaxReaders = cmp.Or(o.Denials, denials.New(denials.Options{})), cmp.Or(o.Reader, &keylimits.Reader{Store: o.Store}), cmp.Or(o.MaxReaders, maxReaders)
	if o.AuthFailed == nil {
		o.AuthFailed = func(string) {}
	}
	f.Handler, f.options = New(o), o
	f.delays.each = 0
	return f
}

// spend charges a key n times, and passes the events to the recorder.
func (f *fixture) spend(limit, key string, n int) {
	f.t.Helper()
	var plan *penstock.Plan // of the last tier
	for _, p := range f.options.Policy.Rules().Plans() {
		if p.Group()+"."+p.Name() == limit {
			plan = p
		}
	}
	for range n {
		charges := []penstock.Charge{{Key: key, Plan: plan, Cost: 1}}
		d, err := f.options.Store.Decide(context.Background(), charges)
		if err != nil {
			f.t.Fatal(err)
		}
		e := admission.Event{Rule: plan.Group(), Limit: plan.Name(), Key: key, Decision: &d, Charges: charges}
		if !d.Allowed {
			e.Outcome = admission.Denied
		}
		f.options.Recorder.Observe(&e)
	}
	f.options.Recorder.Tick(time.Second, func(add func(activity.Series, uint64)) {
		add(activity.Series{Rule: "api", Limit: "hour", Name: "allowed"}, 7)
		add(activity.Series{Name: "source:store"}, 9)
	})
}

// get requests a path below the prefix.
func (f *fixture) get(path string, headers ...string) *httptest.ResponseRecorder {
	return f.send("GET", path, headers...)
}

func (f *fixture) send(method, path string, headers ...string) *httptest.ResponseRecorder {
	q := httptest.NewRequest(method, "http://127.0.0.1:9180"+Prefix+path, nil)
	for _, line := range headers {
		name, value, _ := strings.Cut(line, ": ")
		q.Header.Add(name, value)
	}
	w := httptest.NewRecorder()
	f.ServeHTTP(w, q)
	return w
}

// read decodes a response with status 200. The test fails if the response has fields that the type
// lacks.
func read[T any](f *fixture, path string, headers ...string) (body T) {
	f.t.Helper()
	w := f.get(path, headers...)
	decoder := json.NewDecoder(w.Body)
	decoder.DisallowUnknownFields()
	if w.Code != 200 || w.Header().Get("Content-Type") != "application/json" {
		f.t.Fatalf("%s returns %d %s; want 200 with JSON", path, w.Code, w.Body)
	}
	if err := decoder.Decode(&body); err != nil {
		f.t.Fatalf("%s: the body cannot be decoded: %v", path, err)
	}
	return body
}

const operatorHeader = "Authorization: Bearer " + token

func TestReadsNeedTheTokenUnlessLocal(t *testing.T) {
	local, remote := newFixture(t, nil), newFixture(t, func(o *Options) { o.IsLocal = false })
	locked := newFixture(t, func(o *Options) { o.IsLocal, o.Token = false, nil })
	tried := 0
	for _, c := range []struct {
		f      *fixture
		header string
		status int
	}{
		{f: local, status: 200},
		{f: local, header: operatorHeader, status: 200},
		{f: local, header: operatorHeader + "0", status: 401},
		{f: local, header: "Authorization: Basic x", status: 401},
		{f: local, header: "Authorization: Bearer ", status: 401},
		{f: remote, status: 401},
		{f: remote, header: operatorHeader, status: 200},
		{f: remote, header: "Authorization: Bearer 0123456789abcdeF", status: 401},
		{f: remote, header: "Authorization: bearer", status: 401},
		{f: remote, header: "Cookie: token=" + token, status: 401},
		{f: locked, status: 403},
		{f: locked, header: "Authorization: Bearer ", status: 403},
		{f: locked, header: operatorHeader, status: 403},
		{f: local, header: "Origin: http://127.0.0.1:9180", status: 200},
		{f: local, header: "Origin: http://evil.example", status: 403},
		{f: local, header: "Origin: null", status: 403},
		{f: local, header: "Origin: http://127.0.0.1:8080", status: 403},
		{f: local, header: "Sec-Fetch-Site: same-origin", status: 200},
		{f: local, header: "Sec-Fetch-Site: none", status: 200},
		{f: local, header: "Sec-Fetch-Site: cross-site", status: 403},
		{f: local, header: "Sec-Fetch-Site: same-site", status: 403},
	} {
		for _, path := range []string{"state", "health", "store", "instances", "rules", "history", "timings", "timeline", "offenders", "explain?url=/", "openapi.json"} {
			tried++
			w := c.f.get(path, c.header)
			if w.Code != c.status {
				t.Errorf("%s with %q, local %v: the status is %d, want %d: %s", path, c.header, c.f.options.IsLocal, w.Code, c.status, w.Body)
			}
			if hint := w.Header().Get("WWW-Authenticate"); (hint != "") != (c.status == 401) {
				t.Errorf("%s with %q: WWW-Authenticate is %q; want it only with a 401", path, c.header, hint)
			}
		}
	}
	for _, f := range []*fixture{local, remote} {
		for _, method := range []string{"POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "PROPFIND"} {
			for _, path := range []string{"state", "key?key=a", "nothing"} {
				tried++
				if w := f.send(method, path, operatorHeader); w.Code != 405 {
					t.Errorf("%s %s: status %d; want 405", method, path, w.Code)
				}
			}
		}
	}
	if w := local.get("nothing"); w.Code != 404 {
		t.Errorf("a path that does not exist returns %d; want 404", w.Code)
	}
	t.Logf("counted: %d requests", tried)
}

func TestMalformedParametersAreRejected(t *testing.T) {
	f := newFixture(t, nil)
	for path, want := range map[string]string{
		"offenders?kind=x":                           "the value of kind is unknown; write denied or shadow_denied or near_limit or units",
		"offenders?limit=0":                          "limit is not a number from 1 to 100",
		"offenders?limit=9999":                       "limit is not a number from 1 to 100",
		"offenders?knd=denied":                       `unknown parameter "knd"; the parameters are: kind, window, scope, limit`,
		"offenders?kind=units&kind=denied":           "kind is given 2 times; the most is 1",
		"timings?last=x":                             "last is not a number from 1 to 600",
		"timings?last=0":                             "last is not a number from 1 to 600",
		"timings?span=minutes&last=1441":             "last is not a number from 1 to 1440",
		"timings?span=hours":                         "the value of span is unknown",
		"history?last=x":                             "last is not a number from 1 to 600",
		"history?last=601":                           "last is not a number from 1 to 600",
		"history?span=minutes&last=1441":             "last is not a number from 1 to 1440",
		"key":                                        "name one key",
		"key?key=a&ref=b":                            "name one key",
		"key?key=" + strings.Repeat("x", maxValue+1): "key is longer than 4096 bytes",
		"explain":                                    "url is missing",
		"explain?url=x":                              "neither a path nor a URL",
		"explain?url=/&size=x":                       "size is not a number of bytes",
		"explain?url=/&from=x":                       "is not an address",
		"explain?url=/&descriptor=x":                 "descriptor",
		"explain?url=/&header=x":                     "has no colon",
		"state?x=1":                                  "the parameters are: none",
		"state?a;b":                                  "the query cannot be read",
		"events?x=1":                                 "events have no parameters",
	} {
		w := f.get(path)
		var p Problem
		if err := json.Unmarshal(w.Body.Bytes(), &p); err != nil || w.Code != 400 || p.Status != 400 || !strings.Contains(p.Detail, want) || w.Header().Get("Content-Type") != "application/problem+json" {
			t.Errorf("%.40s returns %d %s; want 400 with %q", path, w.Code, w.Body, want)
		}
	}
	for path, want := range map[string]string{
		"key?key=key:a&rule=nothing": "the policy has no rule of this name; /api/v1/rules",
		"key?key=key:a&rule=apii":    "did you mean api?",
		"key?key=key:a&rule=address": "write ip:…",
		"key?ref=0123456789abcdef":   "no offender",
		"key?key=gold-1":             `no limit counts under a key such as \"gold-1\"; write key:gold-1`,
		"key?key=user:gold-1":        "write one of: key:…, ip:…, global",
	} {
		if w := f.get(path, operatorHeader); w.Code != 404 || !strings.Contains(w.Body.String(), want) {
			t.Errorf("%s returns %d %s; want 404 with %q", path, w.Code, w.Body, want)
		}
	}
}

func TestOffendersAreMaskedUnlessTheTokenAllowsMore(t *testing.T) {
	const name = "customer-4711-alice"
	for _, c := range []struct{ identities, header, shown, identity string }{
		{identities: ShowMasked, shown: ShowMasked, identity: "key:cu…ce#"},
		{identities: ShowMasked, header: operatorHeader, shown: ShowMasked, identity: "key:cu…ce#"},
		{identities: ShowFull, shown: ShowMasked, identity: "key:cu…ce#"},
		{identities: ShowFull, header: operatorHeader, shown: ShowFull, identity: "key:" + name},
		{identities: ShowOff, header: operatorHeader, shown: ShowOff},
	} {
		f := newFixture(t, func(o *Options) { o.Identities = c.identities })
		f.spend("api.hour", "key:"+name, 14)
		got := read[Offenders](f, "offenders?kind=denied&window=1h", c.header)
		if len(got.Offenders) != 1 || got.Identities != c.shown || got.Distinct.Count != 1 || got.Distinct.ByLimit[0] != (DistinctLimit{"api", "hour", 1, 0}) {
			t.Fatalf("%s with %q: the offenders are %+v; want one, shown as %v", c.identities, c.header, got, c.shown)
		}
		one := got.Offenders[0]
		if !strings.HasPrefix(one.Identity, c.identity) || (c.identity == "") != (one.Identity == "") || one.Count != 4 || one.AtLeast != 4 || one.AtMost != 4 || !one.IsExact {
			t.Errorf("%s with %q: the offender is %+v; want %q with exactly 4 denials", c.identities, c.header, one, c.identity)
		}
		w := f.get("key?ref="+one.Ref, c.header)
		if isFull := c.shown == ShowFull; w.Code != 200 || strings.Contains(w.Body.String(), "r-4711-a") != isFull {
			t.Errorf("%s with %q: the response about the key is %d %s; want 200, with the full key: %v", c.identities, c.header, w.Code, w.Body, isFull)
		}
		for _, path := range []string{"state", "rules", "instances", "history", "offenders?scope=instance", "offenders?kind=units", "offenders?kind=near_limit"} {
			body := f.get(path, c.header).Body.String()
			hasOffender := strings.HasPrefix(path, "offenders") && !strings.Contains(body, `"offenders":[]`)
			if strings.Contains(body, "r-4711-a") != (hasOffender && c.shown == ShowFull) {
				t.Errorf("%s with %q: %s is %s; want the identity only in full lists of offenders", c.identities, c.header, path, body)
			}
		}
	}
}

// A list with a parameter limit bounds the counts of the keys that it leaves out.
func TestShortListsOfOffendersBoundTheOthers(t *testing.T) {
	f := newFixture(t, nil)
	for i, n := range []int{16, 14, 12} {
		f.spend("api.hour", fmt.Sprint("key:", i), n)
	}
	for limit, want := range map[int]uint64{1: 4, 2: 2, 3: 0} {
		got := read[Offenders](f, fmt.Sprint("offenders?kind=denied&window=1h&limit=", limit), "")
		if len(got.Offenders) != limit || got.OthersAtMost != want || got.Offenders[0].AtMost != 6 {
			t.Errorf("limit %d: the offenders are %+v; want %d offenders, and at most %d for each other key", limit, got, limit, want)
		}
	}
}

// The scope fleet has the offenders of all instances, and the scope instance only those of this
// one.
func TestOffendersHaveTheirScope(t *testing.T) {
	f := newFixture(t, func(o *Options) {
		other := activity.New(activity.Options{Names: func() func([]byte, string) []byte { return rediskeys.NewNames(nil).Append }})
		o.Fleet = func(context.Context) *activity.Fleet { // only the other instance, which denied nobody
			fleet := &activity.Fleet{Instances: []activity.Instance{{Name: "b", Summary: other.Summary()}, {Name: "c", Summary: other.Summary()}}, Registered: 2}
			for _, w := range activity.Windows() {
				fleet.Activity = append(fleet.Activity, other.Activity(w))
			}
			return fleet
		}
	})
	f.spend("api.hour", "key:abc", 12)
	if got := read[Offenders](f, "offenders?scope=instance"); len(got.Offenders) != 1 || got.Total != 2 || got.Instances != 1 {
		t.Errorf("the offenders of the instance are %+v; want one with 2 denials, of 1 instance", got)
	}
	for _, query := range []string{"", "?scope=fleet"} {
		if got := read[Offenders](f, "offenders"+query); len(got.Offenders) != 0 || got.Total != 0 || got.Instances != 2 {
			t.Errorf("the offenders of all instances are %+v; want none, of 2 instances", got)
		}
	}
}

// Events that were not counted may have been of any key, so they widen all upper bounds.
func TestMissedEventsWidenTheBounds(t *testing.T) {
	f := newFixture(t, nil)
	fleet := f.Fleet
	f.Fleet = func(ctx context.Context) *activity.Fleet {
		all := fleet(ctx)
		all.Activity[0].Tops[activity.Denied] = &activity.Top{Items: []activity.Item{{Rule: "api", Limit: "hour", Name: "a", Weight: 9, Error: 2}}, Total: 20, Floor: 5, Missed: 3}
		return all
	}
	got := read[Offenders](f, "offenders")
	if got.Total != 20 || got.OthersAtMost != 8 || got.Missed != 3 || len(got.Offenders) != 1 || got.Offenders[0].AtLeast != 7 || got.Offenders[0].AtMost != 12 || !got.Offenders[0].IsExact {
		t.Errorf("with 3 missed events, the offenders are %+v; want one with 7 to 12 denials, and at most 8 for others", got)
	}
}

func TestMasksHideTheIdentity(t *testing.T) {
	for key, want := range map[string]string{
		"ip:192.0.2.77": "ip:192.0.2.0/24", "ip:192.0.2.0/28": "ip:192.0.2.0/24", "ip:10.0.0.0/8": "ip:10.0.0.0/8", "ip:2001:db8:1:2::/64": "ip:2001:db8:1::/48", "ip:2001:db8::1": "ip:2001:db8::/48",
		"ip:::ffff:192.0.2.77": "ip:192.0.2.0/24", "key:secret": "key:…", "key:0123456789ab": "key:01…ab", "org:7,user:customer-4711": "org:…,user:cu…11", "unknown": "…", "": "…",
		"key:äöüäöüäöüäöü": "key:äö…öü", "key:\xff\xfe0123456789abcd": "key:…", "justalongkeywithoutkind": "ju…nd", "user:": "user:…", "key:a:b:192.0.2.1:x": "key:a:…:x",
		strings.Repeat("k", 30) + ":v": "kk…:v",
	} {
		if got := redact.Mask(key); got != want {
			t.Errorf("%q is masked as %q, want %q", key, got, want)
		}
	}
	f := newFixture(t, nil)
	hashed := newFixture(t, func(o *Options) {
		o.Name = func(key string) string {
			return string(rediskeys.NewNames([]byte("s")).Append(nil, key))
		}
	})
	a, b := f.identity(Viewer{}, "key:0123456789ab"), f.identity(Viewer{}, "key:01aaaaaaaaab")
	if a == b || a != f.identity(Viewer{}, "key:0123456789ab") {
		t.Errorf("the masked identities are %s and %s; want different digits after #", a, b)
	}
	name := hashed.Name("key:abc")
	if got := hashed.identity(Viewer{isOperator: true}, name); got != name {
		t.Errorf("an operator sees %s for a key that the store has as a hash; want the hash %s", got, name)
	}
	if got := hashed.identity(Viewer{}, name); strings.Contains(name, got) || !strings.HasPrefix(got, "%#") {
		t.Errorf("others see %s for a key that the store has as the hash %s; want other digits", got, name)
	}
}

func TestKeyListsAllLimitsAndChargesNothing(t *testing.T) {
	f := newFixture(t, nil)
	f.spend("api.hour", "key:abc", 12)
	f.spend("api.day", "key:abc", 3)
	for range 3 { // reading changes nothing
		got := read[Key](f, "key?key=key:abc", operatorHeader)
		if got.Source != "store" || got.Identity != "key:abc" || len(got.DeniedBy) != 0 || got.Skipped != 0 {
			t.Fatalf("the key is %+v; want key:abc from the store, and no denial for all tiers", got)
		}
		if v := got.Results; len(v) != 2 || v[0].Tier != "premium" || len(v[0].DeniedBy) != 0 || v[1].Tier != "free" || !slices.Equal(v[1].DeniedBy, []string{"api.hour"}) || v[1].RetryMS < 1000 {
			t.Fatalf("the results are %+v; want the tier premium allowed, and the tier free denied by api.hour", v)
		}
		byTier := make(map[string]keylimits.Limit)
		for _, l := range got.Limits {
			byTier[strings.TrimSpace(l.Limit+" "+l.Tier)] = l
		}
		hour, day := byTier["hour free"], byTier["day"]
		if hour.Used != 10 || hour.Left != 0 || !hour.IsDenied || hour.Kind != "enforced" || hour.Rate == "" {
			t.Errorf("the limit hour is %+v; want an enforced one with a rate, 10 used, none left, and denied", hour)
		}
		if hour.RetryMS < 1000 || hour.RetryMS > 360_000 || hour.ResetMS <= hour.RetryMS {
			t.Errorf("the limit hour has a unit left after %d ms, and is unused after %d ms; want 1 s to 6 min, and more", hour.RetryMS, hour.ResetMS)
		}
		if day.Used != 3 || day.Left != 997 || day.IsDenied || day.RetryMS != 0 {
			t.Errorf("the limit day is %+v; want 3 used and 997 left", day)
		}
		if premium := byTier["hour premium"]; premium.IsDenied || premium.Left == 0 {
			t.Errorf("the limit for tier premium is %+v; want units left", premium)
		}
	}
	all := read[Key](f, "key?key=key:abc&all=true", operatorHeader)
	var names []string
	for _, l := range all.Limits {
		names = append(names, strings.TrimSpace(l.Rule+"."+l.Limit+" "+l.Kind+" "+l.Tier))
	}
	want := []string{"api.hour enforced premium", "api.hour enforced free", "api.hour.candidate candidate premium", "api.hour.candidate candidate free", "api.day enforced"}
	if !slices.Equal(names, want) {
		t.Errorf("the limits are %q, want %q", names, want)
	}
	if got := read[Key](f, "key?key=ip:192.0.2.1&all=true", operatorHeader); len(got.Limits) != 1 || got.Limits[0].Kind != "shadow" {
		t.Errorf("an address has the limits %+v; want one shadow", got.Limits)
	}
	if got := read[Key](f, "key?key=ip:2001:db8::1", operatorHeader); got.Identity != "ip:2001:db8::/64" {
		t.Errorf("an IPv6 address is counted as %s; want its /64 network", got.Identity)
	}
	if got := read[Key](f, "key?key=key:fresh", operatorHeader); len(got.Limits) != 0 || len(got.DeniedBy) != 0 {
		t.Errorf("an unused key has the limits %+v; want none", got)
	}
}

func TestKeyReportsThatTheStoreFails(t *testing.T) {
	failing := penstock.StoreFunc(func(context.Context, []penstock.Charge) (penstock.Decision, error) {
		return penstock.Decision{}, penstock.NewStoreError(penstock.ReasonTimeout, fmt.Errorf("key:abc did not answer"))
	})
	f := newFixture(t, func(o *Options) { o.Store = failing })
	if w := f.get("key?key=key:abc", operatorHeader); w.Code != 503 || !strings.Contains(w.Body.String(), "timeout") || strings.Contains(w.Body.String(), "abc") {
		t.Errorf("the response is %d %s; want 503 with the reason and without the key", w.Code, w.Body)
	}
	fallback := penstock.Wrap(failing, guard.Fallback(guard.FallbackOptions{OnFailure: guard.FailClosed, Instances: func() int { return 1 }}))
	f = newFixture(t, func(o *Options) { o.Store = fallback })
	if got := read[Key](f, "key?key=key:abc", operatorHeader); got.Source == "store" {
		t.Errorf("while the store fails, the key is %+v; want the fallback as its source", got)
	}
}

func TestRulesHaveLimitsBoundsAndCandidates(t *testing.T) {
	f := newFixture(t, nil)
	f.spend("api.hour", "key:abc", 1)
	got := read[Rules](f, "rules")
	if len(got.Rules) != 3 || got.Digest == "" {
		t.Fatalf("the rules are %+v; want 3 with a digest", got)
	}
	hour := got.Rules[0].Limits[0]
	if want := []Rate{{"premium", "100 per 1h, burst 100"}, {"free", "10 per 1h, burst 10"}}; !slices.Equal(hour.Rates, want) {
		t.Errorf("the rates are %+v; want %+v", hour.Rates, want)
	}
	if want := []Rate{{"", "1000 per 24h, burst 1000"}}; !slices.Equal(got.Rules[0].Limits[1].Rates, want) {
		t.Errorf("the rates of a limit without tiers are %+v; want %+v", got.Rules[0].Limits[1].Rates, want)
	}
	tiers := []Tier{{"premium", "header X-Plan is a value that is not shown"}, {"free", "all other clients"}}
	allow, deny := []string{"ip is 10.0.0.0/8"}, []string{"header X-Key is a value that is not shown"}
	if !slices.Equal(got.Tiers, tiers) || !slices.Equal(got.Allow, allow) || !slices.Equal(got.Deny, deny) {
		t.Errorf("the tiers are %q, allowed are %q, and denied are %q; want %q, %q and %q", got.Tiers, got.Allow, got.Deny, tiers, allow, deny)
	}
	if hour.Kind != "enforced" || len(hour.Bounds) < 2 || hour.Candidate == nil || hour.Candidate.Kind != "candidate" || hour.Identity == "" || hour.Ceiling != "" {
		t.Errorf("the limit is %+v; want an enforced one with bounds, a candidate, an identity and no ceiling", hour)
	}
	if want := []Count{{Rule: "api", Limit: "hour", Name: "allowed", Last10: 7, Last60: 7}}; !slices.Equal(hour.Counts, want) {
		t.Errorf("the counts are %+v; want %+v", hour.Counts, want)
	}
	if got.Rules[0].NewIdentities != "9 per 1m, burst 20" || got.Rules[1].NewIdentities != "" {
		t.Errorf("the new identities are %q and %q; want 9 per minute with a burst of 20, and none", got.Rules[0].NewIdentities, got.Rules[1].NewIdentities)
	}
	if got.Rules[1].Limits[0].Kind != "shadow" {
		t.Errorf("the rule is %+v; want a shadow", got.Rules[1])
	}
}

func TestUnchangedStateIsNotSentAgain(t *testing.T) {
	f := newFixture(t, nil)
	f.spend("api.hour", "key:abc", 1)
	first := f.get("state")
	tag := first.Header().Get("ETag")
	if first.Code != 200 || tag == "" {
		t.Fatalf("the response is %d with the ETag %q; want 200 with an ETag", first.Code, tag)
	}
	for _, c := range []struct {
		tag    string
		status int
	}{{tag, 304}, {`"x", W/` + tag, 304}, {"*", 304}, {`"x"`, 200}, {"", 200}} {
		if w := f.get("state", "If-None-Match: "+c.tag); w.Code != c.status || (w.Body.Len() > 0) != (c.status == 200) {
			t.Errorf("If-None-Match %s: the status is %d with %d bytes; want %d, and a body only with 200", c.tag, w.Code, w.Body.Len(), c.status)
		}
	}
	f.stateCache.made = time.Time{} // so that the cached state is too old
	if again := f.get("state"); again.Header().Get("ETag") != tag {
		t.Errorf("the ETag of an equal state is %s; want %s", again.Header().Get("ETag"), tag)
	}
	f.options.Recorder.Tick(2*time.Second, func(add func(activity.Series, uint64)) { add(activity.Series{Name: "source:store"}, 99) })
	f.stateCache.made = time.Time{}
	if again := f.get("state", "If-None-Match: "+tag); again.Code != 200 || again.Header().Get("ETag") == tag {
		t.Errorf("a changed state gets %d with the ETag %s; want 200 with another one", again.Code, again.Header().Get("ETag"))
	}
}

// checkSchema returns an error if a value does not have the form of a schema.
func checkSchema(where string, schema, schemas object, value any) error {
	if ref, ok := schema["$ref"].(string); ok {
		return checkSchema(where, schemas[strings.TrimPrefix(ref, "#/components/schemas/")].(object), schemas, value)
	}
	if choices, ok := schema["anyOf"].([]any); ok {
		if value == nil {
			return nil
		}
		return checkSchema(where, choices[0].(object), schemas, value)
	}
	var ok bool
	switch v := value.(type) {
	case string:
		ok = schema["type"] == "string"
	case bool:
		ok = schema["type"] == "boolean"
	case float64:
		ok = schema["type"] == "integer" && v == math.Trunc(v) && (schema["minimum"] == nil || v >= 0)
	case []any:
		ok = schema["type"] == "array"
		for i := 0; ok && i < len(v); i++ {
			if err := checkSchema(fmt.Sprint(where, "[", i, "]"), schema["items"].(object), schemas, v[i]); err != nil {
				return err
			}
		}
	case map[string]any:
		ok = schema["type"] == "object"
		properties, _ := schema["properties"].(object)
		required, _ := schema["required"].([]any)
		for _, name := range required {
			if _, has := v[name.(string)]; !has {
				return fmt.Errorf("%s lacks %s", where, name)
			}
		}
		for name, one := range v {
			property, known := properties[name].(object)
			if !known {
				property, known = schema["additionalProperties"].(object)
			}
			if !known {
				return fmt.Errorf("%s has %s, which the schema lacks", where, name)
			}
			if err := checkSchema(where+"."+name, property, schemas, one); err != nil {
				return err
			}
		}
	}
	if !ok {
		return fmt.Errorf("%s is %T %v; the schema has %v", where, value, value, schema["type"])
	}
	return nil
}

func TestOpenAPIDescribesWhatIsServed(t *testing.T) {
	const file = "../../../../../docs/openapi.json"
	if *update {
		if err := os.WriteFile(file, OpenAPI(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(file)
	if err != nil || !bytes.Equal(text, OpenAPI()) {
		t.Errorf("docs/openapi.json is not what the API serves (%v); write it by: go test ./cmd/penstock/internal/console/adminapi -run OpenAPI -update", err)
	}
	f := newFixture(t, nil)
	f.spend("api.hour", "key:abc", 14)
	if served := f.get("openapi.json"); !bytes.Equal(served.Body.Bytes(), text) {
		t.Error("the served document differs from docs/openapi.json")
	}
	var doc struct {
		OpenAPI    string
		Paths      map[string]struct{ Get object }
		Components struct{ Schemas object }
	}
	if err := json.Unmarshal(text, &doc); err != nil || !strings.HasPrefix(doc.OpenAPI, "3.1.") {
		t.Fatalf("the version of OpenAPI is %q, %v; want 3.1", doc.OpenAPI, err)
	}
	checked := 0
	for path, at := range doc.Paths {
		if at.Get == nil || strings.HasSuffix(path, "/events") || strings.HasSuffix(path, "/denials") || strings.HasSuffix(path, "/openapi.json") {
			continue
		}
		query := url.Values{}
		parameters, _ := at.Get["parameters"].([]any)
		for _, p := range parameters {
			if p := p.(object); p["required"] == true {
				query.Set(p["name"].(string), "/")
			}
		}
		if strings.HasSuffix(path, "/key") {
			query.Set("key", "key:abc")
		}
		w := f.get(strings.TrimPrefix(path, Prefix)+"?"+query.Encode(), operatorHeader)
		var body any
		if err := json.Unmarshal(w.Body.Bytes(), &body); err != nil || w.Code != 200 {
			t.Fatalf("%s returns %d %s; want 200 with JSON", path, w.Code, w.Body)
		}
		response := at.Get["responses"].(object)["200"].(object)["content"].(object)["application/json"].(object)
		if err := checkSchema(path, response["schema"].(object), doc.Components.Schemas, body); err != nil {
			t.Error(err)
		}
		checked++
	}
	if checked != len(routes) {
		t.Errorf("the document has %d paths; want %d, one for each route", checked, len(routes))
	}
	for name, schema := range doc.Components.Schemas {
		if properties := schema.(object)["properties"]; reflect.ValueOf(properties).Len() == 0 {
			t.Errorf("the schema %s is empty", name)
		}
	}
	t.Logf("counted: %d paths, %d schemas", len(doc.Paths), len(doc.Components.Schemas))
}

func FuzzRequests(f *testing.F) {
	x := newFixture(f, nil)
	x.spend("api.hour", "key:abc", 14)
	for _, r := range routes {
		f.Add(r.path + "?key=a&url=/&last=1")
	}
	f.Add("key?key=%00%ff&all=true")
	f.Add("explain?url=//x&header=a:b&method=%20")
	f.Fuzz(func(t *testing.T, path string) {
		q := httptest.NewRequest("GET", "http://127.0.0.1"+Prefix, nil)
		path, q.URL.RawQuery, _ = strings.Cut(path, "?")
		if strings.HasPrefix(path, "events") || strings.HasPrefix(path, "denials") {
			return
		}
		q.URL.Path = Prefix + path
		w := httptest.NewRecorder()
		x.ServeHTTP(w, q)
		if w.Code >= 500 {
			t.Errorf("%q returns %d %s; want a status below 500", path, w.Code, w.Body)
		}
	})
}

// Each request that is rejected for its token is counted once. No other request is counted.
func TestRefusedTokensAreCounted(t *testing.T) {
	for _, c := range []struct {
		isReset bool
		header  string
		want    string // the reasons of the calls of AuthFailed
	}{
		{want: "no_token"},
		{header: "Authorization: Bearer guess", want: "wrong_token"},
		{header: "Authorization: Basic x", want: "wrong_token"},
		{header: operatorHeader},
		{isReset: true, want: "no_token"},
		{isReset: true, header: "Authorization: Bearer guess", want: "wrong_token"},
		{isReset: true, header: operatorHeader},
	} {
		var got []string
		f := newFixture(t, func(o *Options) {
			o.IsLocal = false
			o.AuthFailed = func(reason string) { got = append(got, reason) }
		})
		headers := []string{c.header}
		if c.header == "" {
			headers = nil
		}
		if c.isReset {
			f.post(resetAllBody, headers...)
		} else {
			f.get("rules", headers...)
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%+v: counted %q; want %q", c, got, c.want)
		}
	}
}
