package dashboard

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"html"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/admission"
	"github.com/penstock/penstock/cmd/penstock/internal/console/activity"
	"github.com/penstock/penstock/cmd/penstock/internal/console/adminapi"
	"github.com/penstock/penstock/cmd/penstock/internal/console/denials"
	"github.com/penstock/penstock/cmd/penstock/internal/console/explain"
	"github.com/penstock/penstock/cmd/penstock/internal/console/keylimits"
	"github.com/penstock/penstock/cmd/penstock/internal/rpc/envoyrls"
	"github.com/penstock/penstock/internal/rediskeys"
	"github.com/penstock/penstock/internal/regions"
	"github.com/penstock/penstock/memstore"
	"github.com/penstock/penstock/policy/policyfile"
	"github.com/penstock/penstock/redisstore"
)

const testPolicy = `
tiers: {premium: {header X-Plan: premium}, free: default}
rules:
  - name: api
    match: {path: /api/**}
    per: {key: header X-Key}
    limits: [{rate: {premium: 100/h, free: 10/h}, candidate: {rate: {premium: 50/h, free: 5/h}}}, {name: day, rate: 1000/d, max_wait: 2s}]
  - {name: odd.rule, always: true, per: ip, limits: [{rate: 1000/h, shadow: true}]}
`

const token = "0123456789abcdef"

// A site is a dashboard of an instance in memory.
type site struct {
	testing.TB
	*Handler
	options adminapi.Options
	audits  []adminapi.Audit
	cookie  string // of the browser
}

func newSite(t testing.TB, change func(*adminapi.Options)) *site {
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
	storeOptions, store := redisstore.Options{}, memstore.New(memstore.Options{})
	// The activity records the names that keys would have in a redisstore.
	newAppendName := func() func(b []byte, key string) []byte { return rediskeys.NewNames(storeOptions.Secret).Append }
	recorder := activity.New(activity.Options{Names: newAppendName, MeasuresNeeds: true})
	recorder.SetLimits(p.Rules.Plans())
	s := &site{TB: t}
	s.options = adminapi.Options{
		Token: []byte(token), IsLocal: true, Identities: adminapi.ShowMasked, MaskSecret: []byte("m"), Store: store, Policy: p.Rules,
		Digest: func() string { return p.Digest }, Recorder: recorder, Waiting: func() int { return 7 }, Upstream: func() string { return "http://127.0.0.1:3000" },
		Fleet: func(context.Context) *activity.Fleet {
			f := &activity.Fleet{Instances: []activity.Instance{{Name: "a", IsSelf: true, Summary: recorder.Summary()}}, Registered: 1}
			for _, w := range activity.Windows() {
				f.Activity = append(f.Activity, recorder.Activity(w))
			}
			return f
		},
		Health: func(context.Context) adminapi.Health {
			return adminapi.Health{Status: "ok", Checks: []adminapi.Check{{Name: "store", Status: "ok"}}}
		},
		StoreInfo: func(context.Context) adminapi.StoreState {
			return adminapi.StoreState{Name: "memory", Breakers: map[string]string{"default": "closed"}, Instances: 1}
		},
		Explain: func(r *http.Request, descriptor map[string][]string) (*explain.Report, []penstock.Charge, error) {
			return explain.Explain(p.Rules, r, descriptor, storeOptions, 1, regions.Setup{})
		},
		Regions: func() regions.Setup { return regions.Setup{} }, RegionsNow: func() []regions.Status { return nil },
		EnvoyLimits: func(string) []envoyrls.KeyLimit { return nil }, AuditIntent: func(adminapi.Audit) error { return nil },
		Audit: func(a adminapi.Audit) { s.audits = append(s.audits, a) },
		Name:  func(key string) string { return string(newAppendName()(nil, key)) }, Key: rediskeys.KeyOf,
	}
	if change != nil {
		change(&s.options)
	}
	s.options.Denials, s.options.Reader = cmp.Or(s.options.Denials, denials.New(denials.Options{})), cmp.Or(s.options.Reader, &keylimits.Reader{Store: s.options.Store})
	s.options.MaxReaders, s.options.AuthFailed = 32, func(string) {}
	s.Handler = New(Options{API: adminapi.New(s.options), Version: "v1.2.3"})
	return s
}

// spend charges a key of the tier free with n requests.
func (s *site) spend(key string, n int) {
	s.Helper()
	var plan *penstock.Plan
	for _, p := range s.options.Policy.Rules().Plans() {
		if p.Group() == "api" && p.Name() == "hour" {
			plan = p
		}
	}
	for range n {
		charges := []penstock.Charge{{Key: key, Plan: plan, Cost: 1}}
		d, err := s.options.Store.Decide(s.Context(), charges)
		if err != nil {
			s.Fatal(err)
		}
		e := admission.Event{Rule: "api", Limit: "hour", Key: key, Decision: &d, Charges: charges}
		if !d.Allowed {
			e.Outcome = admission.Denied
		}
		s.options.Recorder.Observe(&e)
	}
	s.options.Recorder.Store.Observe(3 * time.Millisecond)
	s.options.Recorder.Tick(time.Second, func(add func(activity.Series, uint64)) {
		add(activity.Series{Rule: "api", Limit: "hour", Name: "allowed"}, 120)
		add(activity.Series{Rule: "api", Limit: "hour", Name: "denied"}, 1230)
		add(activity.Series{Rule: "api", Limit: "hour.candidate", Name: "shadow_denied"}, 777)
		add(activity.Series{Name: "source:store"}, 1350)
		add(activity.Series{Name: activity.Uncounted}, 40)
	})
}

func (s *site) send(method, path, form string, headers ...string) *httptest.ResponseRecorder {
	q := httptest.NewRequest(method, "http://127.0.0.1:9180/"+path, strings.NewReader(form))
	if form != "" {
		q.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	if s.cookie != "" {
		q.Header.Set("Cookie", s.cookie)
	}
	for _, line := range headers {
		name, value, _ := strings.Cut(line, ": ")
		q.Header.Set(name, value)
	}
	w := httptest.NewRecorder()
	s.ServeHTTP(w, q)
	return w
}

// text returns the body of a page, with a space in place of each tag.
func (s *site) text(path string, status int, headers ...string) string {
	s.Helper()
	w := s.send("GET", path, "", headers...)
	if w.Code != status {
		s.Fatalf("%s returns %d %s; want %d", path, w.Code, w.Body, status)
	}
	return plain(w)
}

var tags = regexp.MustCompile(`<[^>]*>`)

func plain(w *httptest.ResponseRecorder) string {
	_, body, _ := strings.Cut(w.Body.String(), "<body>")
	return strings.Join(strings.Fields(html.UnescapeString(tags.ReplaceAllString(body, " "))), " ")
}

func (s *site) mustHave(text string, all ...string) {
	s.Helper()
	for _, want := range all {
		want = strings.Join(strings.Fields(want), " ") // all spaces are equal
		if !strings.Contains(text, want) {
			s.Errorf("the page lacks %q: %s", want, text)
		}
	}
}

const operator = "Authorization: Bearer " + token

const thin = "\u202f" // between thousands

func TestPagesShowWhatTheAPIHas(t *testing.T) {
	s := newSite(t, nil)
	s.spend("key:customer-4711", 14)
	for _, path := range []string{"", "dashboard", "dashboard?span=minutes", "dashboard?rule=api"} {
		s.mustHave(s.text(path, 200), "Allowed 12.0 /s", "Denied 123 /s 91\u00a0% of requests of all instances", "all instances, last 10 s; 4.00/s uncounted by a limit that fails open", "Denied by rule, this instance", "Store latency, this instance", "Limits in the last minute, all instances",
			"one of them counts it here", "Waiting now 7", "Store, 99 % 3.07 ms", "Breaker closed", "api .hour 120 1"+thin+"230", "v1.2.3", "this one", "Forwarded requests, and upstream errors")
	}
	rules := s.text("rules", 200)
	s.mustHave(rules, "2 rules in force", "path /api/**", "tier premium 100 per 1h, burst 100 tier free 10 per 1h, burst 10", "up to 2.0\u00a0s", "Enforced 120 1"+thin+"230", "Candidate: premium 50 per 1h, burst 50; free 5 per 1h, burst 5 0 777", "odd.rule", "shadow", "store forgets", "each instance enforces its share")
	if found := s.text("rules?find=odd", 200); strings.Contains(found, "/api/**") || !strings.Contains(found, "odd.rule") {
		t.Errorf("the rules with odd in their names are %s; want only odd.rule", found)
	}
	s.mustHave(s.text("rules?find=nothing", 200), "No rule has such a name")
	s.mustHave(s.text("offenders", 200), "1 different keys were denied", "key:cu…11#", "Accuracy", "api .hour 4 exact 100\u00a0%", "Identities are masked. To see them in full, set shown_identities to full and log in.")
	full := newSite(t, func(o *adminapi.Options) { o.Identities = adminapi.ShowFull })
	full.spend("key:customer-4711", 14)
	s.mustHave(full.text("offenders", 200), "Identities are masked. Log in to see them in full.")
	noToken := newSite(t, func(o *adminapi.Options) { o.Token = nil })
	noToken.spend("key:customer-4711", 14)
	s.mustHave(noToken.text("offenders", 200), "set shown_identities to full , set operator_token , and log in.")
	s.mustHave(s.text("offenders?kind=units", 200), "10 units were charged in all.")
	s.mustHave(s.text("offenders?kind=near_limit&window=1h&scope=instance", 200), "near their limit most, in the last hour, at this instance")
	s.mustHave(s.text("health", 200), "store ok", "memory", "closed: the store is used", "3.07 ms")
	report := s.text("explain?url=/api/x&header=X-Key:%20customer-4711%0D%0A%0D%0AX-Plan:%20free", 200, operator)
	s.mustHave(report, "It would be denied now", "All 2 limits must allow", "api.hour denies", "Left 0", "ps1{key:customer-4711}api", "the most specific match", "candidate")
	s.mustHave(s.text("explain?url=/api/x", 200), "These limits apply. What they would decide is shown to operators")
	s.mustHave(s.text("explain?url=/other", 200), "Not limited. No limit applies")
	s.mustHave(s.text("explain", 200), "Path or URL")
	s.mustHave(s.text("explain?url=x", 400), "neither a path nor a URL", "Path or URL")
}

func TestKeyPageShowsWhichLimitDeniesAndUntilWhen(t *testing.T) {
	s := newSite(t, nil)
	s.spend("key:customer-4711", 14)
	denied := s.text("key?key=key:customer-4711", 200, operator)
	if !regexp.MustCompile(`The tier decides\. .* allowed if the tier is premium denied if the tier is free , by api\.hour , for [56] min, until \d\d:\d\d:\d\d UTC`).MatchString(denied) {
		t.Errorf("the page lacks a result for each tier, the limit that denies the key, or the time: %s", denied)
	}
	if strings.Contains(denied, "Denied now") || strings.Contains(denied, "Admitted now") {
		t.Errorf("the page says more than is known, because the tier is not known: %s", denied)
	}
	s.mustHave(denied, "api .hour tier free 10 per 1h, burst 10 10 0")
	if strings.Index(denied, "tier free") > strings.Index(denied, "tier premium") {
		t.Errorf("the limit of tier premium is listed before that of tier free; want the one that denies first: %s", denied)
	}
	s.mustHave(s.text("key?key=key:fresh", 200, operator), "Admitted now. No limit of this key would deny")
	unknown := s.text("key?key=nothing", 404, operator)
	s.mustHave(unknown, `no limit counts under a key such as "nothing"; write key:nothing`, "Look up")
	if strings.Contains(unknown, "Admitted") {
		t.Errorf("the page of a key without limits is %s; want nothing about admitting it", unknown)
	}
	s.mustHave(s.text("key?key="+url.QueryEscape("key:cu…11#1f3681e1"), 400), "this key is masked", "use its ref", "Look up")
	s.mustHave(s.text("key", 200), "Look up")
	s.mustHave(s.text("key?ref=0123456789abcdef", 404), "no offender of the last hour has this ref", "Look up")
	if page := s.text(linkToKey(s), 200); strings.Contains(page, "4711") || !strings.Contains(page, "key:cu…11#") || !strings.Contains(page, "denied if the tier is free , by api.hour") {
		t.Errorf("the page of a key by its ref is %s; want the masked key, denied by api.hour if its tier is free", page)
	}
}

// The page shows the numbers of one tier if the key tells the tier.
func TestKeyPageKnowsTheTierOfAListedKey(t *testing.T) {
	file := filepath.Join(t.TempDir(), "rules.yaml")
	const text = `
tiers: {gold: {header X-Key: [gold-1]}, free: default}
allow: {header X-Key: [friend]}
deny: {header X-Key: [foe]}
rules:
  - {name: api, per: {key: header X-Key}, limits: [{rate: {gold: 100/h, free: 10/h}}, {name: day, rate: 900/d}]}
  - {name: page, always: true, per: {user: header X-User}, new_identities: 9/min, limits: [{rate: 5/h}]}
  - {name: vip, match: {path: /vip}, per: {vip: {header X-Vip: [v1]}}, limits: [{rate: 5/h}]}
`
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	p, err := policyfile.Load(file, policyfile.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	s := newSite(t, func(o *adminapi.Options) { o.Policy = p.Rules })
	s.spend("key:gold-1", 10) // of the tier free, as another instance with an older policy may have counted
	s.spend("key:other", 10)
	gold, other := s.text("key?key=key:gold-1", 200, operator), s.text("key?key=key:other", 200, operator)
	s.mustHave(gold, "Admitted now by the limits that were read. Not read: page.hour . They may count the client under another key", "api .hour tier gold 100 per 1h, burst 100 10 90")
	s.mustHave(other, "Denied now by api.hour , for", "api .hour tier free 10 per 1h, burst 10 10 0")
	if strings.Contains(gold, "tier free") || strings.Contains(other, "tier gold") {
		t.Errorf("a page has the numbers of another tier:\n%s\n%s", gold, other)
	}
	s.spend("key:friend", 10)
	friend := s.text("key?key=key:friend", 200, operator)
	s.mustHave(friend, "Never limited. The client is on the allow list.", "The limits that are reset start again at zero.")
	if strings.Contains(friend, "denied") {
		t.Errorf("the page of a client that is never limited is %s; want no limit to deny it", friend)
	}
	s.spend("key:foe", 10)
	foe := s.text("key?key=key:foe", 200, operator)
	s.mustHave(foe, "Always rejected. The client is on the deny list.", "The deny list rejects the client even after a reset.")
	if rejected := strings.Count(foe, " rejected "); strings.Contains(foe, "passes") || strings.Contains(foe, "admitted") || rejected != 2 { // one in each limit's row
		t.Errorf("the page of a denied client is %s; want each limit to reject its request", foe)
	}
	s.mustHave(s.text("key?key=vip:v1", 200, operator), "Admitted now by")
	if page := s.text("key?key=vip:v2", 200, operator); strings.Contains(page, "Admitted") || !strings.Contains(page, "No request counts under this key.") || !strings.Contains(page, "now not counted") {
		t.Errorf("the page of a key that the policy does not list is %s; want it neither admitted nor denied", page)
	}
	if body := s.send("GET", "key?key=ip:198.51.100.1", "", operator).Body.String(); strings.Contains(body, "Admitted") || !strings.Contains(body, `decision mixed`) {
		t.Errorf("the page of an address with new identities only is %s; want it neither admitted nor denied", body)
	}
	s.mustHave(s.text("key?key=ip:198.51.100.1", 200, operator), "No limit of this key was read", "page.new-identities . Each instance counts")
	rules := s.text("rules", 200)
	s.mustHave(rules, "On the deny list: always rejected header X-Key is a value that is not shown", "On the allow list: never limited header X-Key is a value that is not shown",
		"Tier gold header X-Key is a value that is not shown", "Tier free all other clients", "tier gold 100 per 1h, burst 100 tier free 10 per 1h, burst 10",
		"one of them counts it here: the one that denies it, or the one that has least left. So a limit with 0 may be in use.")
	s.mustHave(rules, "New identities 9 per 1m, burst 9 for each address, at each instance")
	if strings.Contains(rules, "gold-1") || strings.Contains(rules, "foe") {
		t.Errorf("the page of the rules shows a key: %s", rules)
	}
}

// linkToKey returns the link to the key of an offender.
func linkToKey(s *site) string {
	s.Helper()
	link := regexp.MustCompile(`href="(key\?ref=[0-9a-f]+)"`).FindStringSubmatch(s.send("GET", "offenders", "").Body.String())
	if link == nil {
		s.Fatal("no offender has a link to its key")
	}
	return link[1]
}

// Without a login, a guessed key could be compared with masked ones.
func TestKeysByNameNeedALogin(t *testing.T) {
	s := newSite(t, nil)
	s.spend("key:customer-4711", 14)
	w := s.send("GET", "key?key=key:customer-4711", "")
	if got := plain(w); w.Code != 401 || strings.Contains(got, "denied") || !strings.Contains(w.Body.String(), `name="next" value="key?key=key:customer-4711"`) {
		t.Errorf("without a login, the page is %d %s; want the form to log in, which returns to the page", w.Code, got)
	}
	withoutToken := newSite(t, func(o *adminapi.Options) { o.Token = nil })
	withoutToken.mustHave(withoutToken.text("key?key=key:customer-4711", 403), "set operator_token")
}

// used returns the units that a key has used of the limit that spend charges.
func (s *site) used(key string) int64 {
	s.Helper()
	q := url.Values{"key": {key}, "all": {"true"}}
	v, err := s.API.ViewerOfToken(token)
	if err != nil {
		s.Fatal(err)
	}
	k, err := adminapi.Read[adminapi.Key](s.Context(), s.API, v, "key", q)
	if err != nil {
		s.Fatal(err)
	}
	for _, l := range k.Limits {
		if l.Limit == "hour" && l.Tier == "free" {
			return l.Used
		}
	}
	s.Fatalf("the key %s has no limit hour of the tier free", key)
	return 0
}

func TestResetNeedsTheTokenAndAReason(t *testing.T) {
	const key = "key:customer-4711"
	form := func(more string) string { return "key=" + key + "&" + more }
	for _, c := range []struct {
		form, header string
		status       int
		want         string
	}{
		{form: form("reason=r&token=" + token), status: 200, want: "Reset. api.hour is unused again"},
		{form: form("reason=r&token=" + token + "&limit=api%09hour"), header: "Sec-Fetch-Site: same-origin", status: 200, want: "Reset. api.hour is unused again"},
		{form: form("reason=r&token=" + token + "&limit=api%09day"), status: 200, want: "Nothing to reset"},
		{form: form("reason=r"), header: "Authorization: Bearer " + token, status: 200, want: "Reset. api.hour is unused again"},
		{form: form("reason=r"), status: 401, want: "a reset needs the operator token at every address"},
		{form: form("reason=r&token=wrong"), status: 401, want: "the token is wrong"},
		{form: form("token=" + token), status: 400, want: "the reason must have 1 to 200 letters"},
		{form: form("reason=r&limit=api%09nothing&token=" + token), status: 404, want: "no such limit"},
		{form: "reason=r&token=" + token, status: 400, want: "name one key"},
		{form: form("reason=r&token=" + token), header: "Origin: http://evil.example", status: 403, want: "another origin"},
		{form: form("reason=r&token=" + token), header: "Sec-Fetch-Site: cross-site", status: 403, want: "another origin"},
		// A form that cannot be read has no token.
		{form: form("reason=r&token=" + token), header: "Content-Type: text/plain", status: 401, want: "a reset needs the operator token at every address"},
		{form: form("reason=" + strings.Repeat("r", maxForm) + "&token=" + token), status: 401, want: "a reset needs the operator token at every address"},
	} {
		s := newSite(t, nil)
		s.spend(key, 14)
		w := s.send("POST", "reset", c.form, c.header)
		isReset := strings.HasPrefix(c.want, "Reset.")
		got := plain(w)
		if w.Code != c.status || !strings.Contains(got, c.want) {
			t.Errorf("%.60s with %q gets %d %s; want %d with %q", c.form, c.header, w.Code, got, c.status, c.want)
		}
		if used := s.used(key); (used == 0) != isReset {
			t.Errorf("%.60s with %q: %d units are used; want a reset: %v", c.form, c.header, used, isReset)
		}
		if c.status != 403 && len(s.audits) != 1 {
			t.Errorf("%.60s: the audit has %d lines; want 1", c.form, len(s.audits))
		}
	}
	withoutToken := newSite(t, func(o *adminapi.Options) { o.Token = nil })
	withoutToken.spend(key, 14)
	w := withoutToken.send("GET", linkToKey(withoutToken), "")
	body := w.Body.String()
	if !strings.Contains(plain(w), "has no operator_token") || !strings.Contains(body, `action="reset"`) || strings.Contains(body, `name="reason"`) {
		t.Errorf("without a token, the page is %s; want a note in place of the field for the reason", plain(w))
	}
}

func TestRemoteViewersMustLogIn(t *testing.T) {
	s := newSite(t, func(o *adminapi.Options) { o.IsLocal, o.Identities = false, adminapi.ShowFull })
	s.spend("key:customer-4711", 14)
	for _, p := range pages {
		if got := s.text(p.path+"?kind=denied&x=1", 401); strings.Contains(got, "4711") || strings.Contains(got, "api") || !strings.Contains(got, "Operator token") {
			t.Errorf("without a token, %s is %s; want the form to log in", p.path, got)
		}
	}
	if w := s.send("GET", "offenders?window=1h", ""); !strings.Contains(w.Body.String(), `name="next" value="offenders?window=1h"`) {
		t.Errorf("the form to log in is %s; want the requested page as next", w.Body)
	}
	if w := s.send("POST", "login", "token=wrong&next=rules"); w.Code != 401 || w.Header().Get("Set-Cookie") != "" || !strings.Contains(plain(w), "not the operator token") {
		t.Errorf("the login with a wrong token returns %d %s; want 401 without a cookie", w.Code, plain(w))
	}
	if w := s.send("POST", "login", "token="+token, "Sec-Fetch-Site: cross-site"); w.Code != 403 || w.Header().Get("Set-Cookie") != "" {
		t.Errorf("a login by a page of another origin returns %d with the cookie %q; want 403 and none", w.Code, w.Header().Get("Set-Cookie"))
	}
	for next, want := range map[string]string{
		"rules": "rules", "offenders?window=1h": "offenders?window=1h", "": "dashboard", "https://evil.example": "dashboard", "//evil.example": "dashboard",
		"/rules": "dashboard", "rules/../../x": "dashboard", `\evil`: "dashboard", "login": "dashboard",
	} {
		w := s.send("POST", "login", "token="+token+"&next="+url.QueryEscape(next))
		if w.Code != 303 || w.Header().Get("Location") != want || !strings.Contains(w.Header().Get("Set-Cookie"), "HttpOnly; SameSite=Strict") {
			t.Errorf("the login with next %q returns %d to %q; want 303 to %q, with a cookie", next, w.Code, w.Header().Get("Location"), want)
		}
		s.cookie, _, _ = strings.Cut(w.Header().Get("Set-Cookie"), ";")
	}
	s.mustHave(s.text("offenders", 200), "key:customer-4711", "Log out")
	if w := s.send("POST", "reset", "key=key:customer-4711&reason=r"); w.Code != 200 || s.used("key:customer-4711") != 0 {
		t.Errorf("after the login, a reset returns %d, and %d units are used; want 200 and none", w.Code, s.used("key:customer-4711"))
	}
	if w := s.send("POST", "logout", ""); w.Code != 303 || !strings.Contains(w.Header().Get("Set-Cookie"), "Max-Age=0") {
		t.Errorf("the logout returns %d with the cookie %q; want 303 with Max-Age=0", w.Code, w.Header().Get("Set-Cookie"))
	}
	s.cookie = ""
	s.mustHave(s.text("dashboard", 401, "Authorization: Bearer wrong"), "the token is wrong")
	locked := newSite(t, func(o *adminapi.Options) { o.IsLocal, o.Token = false, nil })
	locked.mustHave(locked.text("dashboard", 403), "set operator_token or admin_client_ca")
}

func TestPagesRejectOtherPathsMethodsAndParameters(t *testing.T) {
	s := newSite(t, nil)
	for _, c := range []struct {
		method, path string
		status       int
	}{
		{method: "GET", path: "nothing", status: 404},
		{method: "POST", path: "dashboard", status: 405},
		{method: "DELETE", path: "key", status: 405},
		{method: "GET", path: "reset", status: 405},
		{method: "GET", path: "logout", status: 405},
		{method: "GET", path: "assets/", status: 404},
		{method: "GET", path: "assets/..%2fdashboard.go", status: 404},
		{method: "GET", path: "dashboard?span=x", status: 400},
		{method: "GET", path: "offenders?kind=x", status: 400},
		{method: "GET", path: "key?key=" + strings.Repeat("k", 5000), status: 400},
		{method: "GET", path: "rules?%zz", status: 400},
		{method: "GET", path: "favicon.ico", status: 200},
		{method: "HEAD", path: "dashboard", status: 200},
	} {
		if w := s.send(c.method, c.path, ""); w.Code != c.status {
			t.Errorf("%s %.40s: the status is %d; want %d", c.method, c.path, w.Code, c.status)
		}
	}
	if w := s.send("GET", "dashboard/", ""); w.Code != 303 || w.Header().Get("Location") != "../dashboard" {
		t.Errorf("/dashboard/ returns %d to %q; want 303 to ../dashboard", w.Code, w.Header().Get("Location"))
	}
	evil := url.QueryEscape(`"><script>alert(1)</script>`)
	for _, path := range []string{"key?key=" + evil, "explain?url=/" + evil, "explain?url=" + evil + "&header=" + evil, "timeline?at=" + evil, "rules?find=" + evil, "dashboard?rule=" + evil, "login?next=" + evil, "key?ref=" + evil, "offenders?kind=" + evil} {
		if body := s.send("GET", path, "").Body.String(); strings.Contains(body, "<script>alert") {
			t.Errorf("the page of %s contains the script; want it escaped", path)
		}
	}
}

// A page works under a prefix only if all its links are relative. A strict policy allows no styles
// and no scripts in the page.
func TestPagesNameOnlyTheirFolderAndHaveNoInlineCode(t *testing.T) {
	s := newSite(t, nil)
	s.spend("key:customer-4711", 14)
	links := regexp.MustCompile(`(?:href|src|action)="([^"]*)"`)
	for _, path := range []string{"", "dashboard", "rules", "timeline", "timeline?at=14:05", "offenders", "key?key=key:customer-4711", "explain?url=/api/x", "health", "login", "nothing?", "key?ref=x"} {
		w := s.send("GET", path, "", operator)
		body := w.Body.String()
		for _, link := range links.FindAllStringSubmatch(body, -1) {
			if u, err := url.Parse(link[1]); err != nil || u.IsAbs() || u.Host != "" || strings.HasPrefix(u.Path, "/") || strings.Contains(u.Path, "..") {
				t.Errorf("%s has the link %s; want a relative one", path, link[0])
			}
		}
		if found := regexp.MustCompile(`<style|\sstyle=|<script>|\son[a-z]+=|javascript:`).FindString(body); found != "" {
			t.Errorf("%s has the inline code %s; want none", path, found)
		}
		if got := w.Header().Get("Content-Security-Policy"); !strings.HasPrefix(got, "default-src 'none'; script-src 'self'; style-src 'self'") || strings.Contains(got, "unsafe") {
			t.Errorf("%s has the content security policy %q; want a strict one", path, got)
		}
		if strings.Count(body, "<main") != 1 && path != "nothing?" || strings.Contains(body, "ZgotmplZ") {
			t.Errorf("the page %s has no single main element, or an unsafe value: %s", path, body)
		}
	}
}

func TestPagesShowThatTheStoreFails(t *testing.T) {
	s := newSite(t, func(o *adminapi.Options) {
		o.StoreInfo = func(context.Context) adminapi.StoreState {
			return adminapi.StoreState{Name: "redis://a", IsFailing: true, Reason: "timeout", Breakers: map[string]string{"default": "open"}, Instances: 3}
		}
		o.Health = func(context.Context) adminapi.Health {
			return adminapi.Health{Status: "degraded", Checks: []adminapi.Check{{Name: "store", Status: "degraded", Detail: "degraded: timeout"}}}
		}
	})
	for _, p := range pages {
		s.mustHave(s.text(p.path, 200), "The store is failing", "What may be admitted meanwhile", "Breaker default is open")
	}
	s.mustHave(s.text("health", 200), "fails: timeout", "open: the store is not called, the fallback decides", "api .hour local 3 instances with a share each", "units more around the end")
	s.mustHave(s.text("dashboard", 200), "Breaker open store fails: timeout")
}

func TestPagesShowThatAReloadFailed(t *testing.T) {
	const detail = "reload failed: the rules of 2026-01-31T11:00:00Z stay in force"
	s := newSite(t, func(o *adminapi.Options) {
		o.Health = func(context.Context) adminapi.Health {
			return adminapi.Health{Status: "ok", Checks: []adminapi.Check{{Name: "policy", Status: "ok", Detail: detail}}}
		}
	})
	for _, p := range pages {
		s.mustHave(s.text(p.path, 200), "Check policy : "+detail)
	}
}

func TestChartsAndTheirTablesHaveTheSameNumbers(t *testing.T) {
	const allRules = ""
	counts := make([]uint32, maxSeconds) // 0 a second in the oldest 30 s, then 1, and 19 in the latest
	for i := range counts {
		counts[i] = uint32(i / 30)
	}
	history := adminapi.History{Span: "seconds", Last: 5000, Lines: []adminapi.Line{{Name: "allowed", Counts: counts}, {Rule: "a", Name: "denied", Counts: counts}, {Rule: "b", Name: "denied", Counts: counts}}}
	timesOf := func(n int) adminapi.Times {
		return adminapi.Times{Calls: make([]uint64, n), Failed: make([]uint64, n), P50: make([]int64, n), P95: make([]int64, n), P99: make([]int64, n)}
	}
	times := timesOf(maxSeconds)
	times.Calls[maxSeconds-1], times.P50[maxSeconds-1] = 1, 2500
	charts := makeCharts(allRules, history, adminapi.Timings{Store: times}, nil)
	requests, deniedBy, store := charts[0], charts[1], charts[3]
	if len(requests.Rows) != tableRows || requests.Most != 20 {
		t.Fatalf("the table has %d rows, and the axis ends at %v; want %d rows, and 20", len(requests.Rows), requests.Most, tableRows)
	}
	latest, oldest := requests.Rows[0], requests.Rows[tableRows-1]
	if latest.Ago != 0 || latest.Values[0] != 19 || oldest.Ago != 570*time.Second || oldest.Values[0] != 0 {
		t.Errorf("the latest row is %+v, and the oldest %+v; want 19 requests now, and none 570 s ago", latest, oldest)
	}
	if path := requests.Path(requests.Lines[0]); !strings.HasPrefix(path, "M0 160.0L10 160.0") || !strings.HasSuffix(path, "L600 8.0") {
		t.Errorf("the path of the picture is %s; want it from the first to the last minute", path)
	}
	if len(deniedBy.Lines) != 2 || deniedBy.Lines[0].Label != "a" || deniedBy.Rows[0].Values[1] != 19 {
		t.Errorf("the chart of denials is %+v; want 2 lines, the first of rule a", deniedBy)
	}
	if store.Rows[0].Values[0] != 2.5 || store.Rows[1].Values[0] != -1 || store.Path(store.Lines[0]) != "M600 26.7" {
		t.Errorf("the chart of the store is %+v with the path %s; want 2.5 ms, then no value", store.Rows, store.Path(store.Lines[0]))
	}
	young := makeCharts(allRules, adminapi.History{Span: "seconds", Last: 30, Lines: []adminapi.Line{{Name: "allowed", Counts: counts}}}, adminapi.Timings{Store: times}, nil)[0]
	if young.Step != time.Second || young.Rows[tableRows-1].Ago != 57*time.Second {
		t.Errorf("half a minute after the start, a chart shows %v in steps of %v; want 57s in steps of 1s", young.Rows[tableRows-1].Ago, young.Step)
	}
	perMinute := []adminapi.Line{{Name: "allowed", Counts: slices.Repeat([]uint32{120}, maxMinutes)}}
	day := makeCharts(allRules, adminapi.History{Span: "minutes", Last: 9999, Lines: perMinute}, adminapi.Timings{Store: timesOf(maxMinutes)}, nil)[0]
	if day.Rows[0].Values[0] != 2 || day.Step != 24*time.Minute {
		t.Errorf("the chart of a day has %+v in steps of %v; want 2 a second in steps of 24m", day.Rows[0], day.Step)
	}
}

// The ticks of an axis are 3 to 5 round numbers, and the highest is at least the number.
func TestTicksAreRoundNumbers(t *testing.T) {
	for most, want := range map[float64]string{
		0: "1 0.5 0", 0.004: "0.01 0", 0.05: "0.06 0.04 0.02 0", 0.2: "0.2 0.15 0.1 0.05 0", 1: "1 0.5 0", 3: "3 2 1 0", 4.1: "6 4 2 0", 7: "8 6 4 2 0", 9: "10 5 0", 101: "150 100 50 0", 130: "150 100 50 0", 1234: "1500 1000 500 0", 5e6: "6000000 4000000 2000000 0",
	} {
		if got := strings.Join(chart{Most: axisEnd(most)}.Ticks(), " "); got != want {
			t.Errorf("the ticks of an axis for %v are %s; want %s", most, got, want)
		}
	}
	for most := 0.02; most < 1e6; most *= 1.013 {
		end := axisEnd(most)
		if n := len(chart{Most: end}.Ticks()); n < 3 || n > 5 || end < most || end > 1.51*most {
			t.Errorf("the axis for %v ends at %v, with %d ticks; want an end from there to 1.5 times that, and 3 to 5 ticks", most, end, n)
		}
	}
}

func TestAxesHaveUnits(t *testing.T) {
	s := newSite(t, nil)
	s.spend("key:abc", 1)
	text := s.text("dashboard", 200)
	for unit, want := range map[string]int{"requests/s time in UTC": 4, "ms time in UTC": 2} {
		if n := strings.Count(text, " "+unit); n != want {
			t.Errorf("%d charts have the units %q; want %d: %s", n, unit, want, text)
		}
	}
	s.mustHave(text, "requests/s time in UTC 1500 1000 500 0", "ms time in UTC 4 3 2 1 0", "Means, in requests per second", "Means, in milliseconds")
}

// withEvents adds events of this instance.
func withEvents(events ...activity.Event) func(*adminapi.Options) {
	return func(o *adminapi.Options) {
		next := o.Fleet
		o.Fleet = func(ctx context.Context) *activity.Fleet {
			f := next(ctx)
			f.Instances[0].Events = events
			return f
		}
	}
}

// The charts mark the events of the period that they show. The list has these events with their
// exact times.
func TestTimelineShowsWhatHappened(t *testing.T) {
	now := time.Now().UTC()
	at := now.Add(-3 * time.Hour)
	s := newSite(t, withEvents(
		activity.Event{Time: at.Add(-50 * time.Minute), Kind: activity.Started, Text: "listening"},
		activity.Event{Time: at, Kind: activity.Reloaded, Text: "policy reloaded", Details: map[string]string{"changed": "rule <script>alert(1)</script>", "policy": "rules.yaml"}},
		activity.Event{Time: at.Add(10 * time.Minute), Kind: activity.BreakerOpen, Text: "circuit breaker open"},
		activity.Event{Time: now.Add(-5 * time.Second), Kind: activity.StoreWorks, Text: "the store decides again"},
	))
	s.spend("key:abc", 1)
	rowOf := func(t time.Time, text string) string { return t.Format("2006-01-02 15:04:05") + " " + text }
	all := s.text("timeline", 200)
	s.mustHave(all, rowOf(at, "policy reloaded changed rule <script>alert(1)</script>"), "circuit breaker open", "the store decides again", "listening", "Who has reset a key, and why, is shown to operators")
	if strings.Contains(all, "rules.yaml") || strings.Contains(all, "requests/s") {
		t.Errorf("the page shows the file to viewers without the token, or has charts without a chosen time: %s", all)
	}
	s.mustHave(s.text("timeline", 200, operator), "rules.yaml")
	for _, path := range []string{"timeline?at=" + at.Format("15:04"), "timeline?at=" + at.Format("2006-01-02T15:04:05Z"), "timeline?at=" + url.QueryEscape(at.Format("2006-01-02 15:04"))} {
		body := s.send("GET", path, "").Body.String()
		if strings.Contains(body, "<script>alert") || strings.Count(body, `<time datetime`) != 2 || !strings.Contains(body, "policy reloaded") || !strings.Contains(body, "circuit breaker open") {
			t.Errorf("%s does not show exactly the two events around that time, escaped: %s", path, body)
		}
		marks := regexp.MustCompile(`<path d="(M[0-9.]+ 0V160)?" class="mark( bad)?"/>`).FindAllStringSubmatch(body, -1)
		if len(marks) != 12 || marks[0][1] == "" || marks[1][1] == "" || marks[1][2] != " bad" {
			t.Errorf("%s has the marks %q; want one of the reload and a bad one of the breaker in each of 6 charts", path, marks)
		}
		if !strings.Contains(body, `data-span="minutes"`) || !strings.Contains(body, `data-to="`) {
			t.Errorf("%s has no charts of the past", path)
		}
	}
	recent := s.send("GET", "timeline?at="+url.QueryEscape(now.Format(time.RFC3339)), "").Body.String()
	if !strings.Contains(recent, `data-span="seconds"`) || strings.Contains(recent, "data-to") || !strings.Contains(recent, "the store decides again") || strings.Contains(recent, "policy reloaded") {
		t.Errorf("the page of the present time has no live charts, or shows other events than the latest: %s", recent)
	}
	s.mustHave(s.text("dashboard", 200), "the store decides again")
	s.mustHave(s.text("dashboard?span=minutes", 200), "policy reloaded")
	s.mustHave(s.text("timeline?at=noon", 400), `"noon" is not a time; write 14:05`, "Timeline")
	s.mustHave(s.text("timeline?at=0000-01-31+14:05", 400), "is not a time; write 14:05")
	s.mustHave(s.text("timeline?at=2999-01-31+14:05", 200), "From 2999-01-31 13:35:00 to 14:35:00 . The charts go back 24 hours.", "No events of this time are known")
	s.mustHave(s.text("timeline?at=2020-01-31+14:05", 200), "From 2020-01-31 13:35:00 to 14:35:00 . The charts go back 24 hours.", "No events of this time are known")
}

// The charts of a past moment have the minutes around it.
func TestChartsOfTheTimelineHaveTheMinutesAroundAMoment(t *testing.T) {
	end := time.Date(2026, 1, 31, 14, 0, 30, 0, time.UTC)
	counts, calls, zeros := make([]uint32, maxMinutes), make([]uint64, maxMinutes), make([]int64, maxMinutes)
	for i := range counts {
		counts[i], calls[i] = uint32(i), uint64(i)
	}
	for _, latest := range []int{0, 100, maxMinutes - chartPoints} {
		times := adminapi.Times{Calls: calls, Failed: calls, P50: zeros, P95: zeros, P99: zeros}
		history := adminapi.History{Span: "minutes", End: end, Last: 9999, Lines: []adminapi.Line{{Name: "allowed", Counts: counts}}}
		timings := adminapi.Timings{Store: times, Upstream: &times}
		keepHour(&history, &timings, latest)
		if want := end.Add(-time.Duration(latest) * time.Minute); !history.End.Equal(want) {
			t.Errorf("without the latest %d minutes, the end is %v; want %v", latest, history.End, want)
		}
		first, last := uint32(maxMinutes-latest-chartPoints), uint32(maxMinutes-latest-1)
		if c := history.Lines[0].Counts; len(c) != chartPoints || c[0] != first || c[len(c)-1] != last || timings.Upstream.Calls[0] != uint64(first) {
			t.Errorf("without the latest %d minutes, the counts are %v; want those from %d to %d", latest, c, first, last)
		}
		c := makeCharts("", history, timings, nil)[0]
		if got := strings.Join(c.Times(), " "); latest == 0 && got != "13:01 13:31 14:00" {
			t.Errorf("the time axis has the labels %s; want those of its start, middle and end", got)
		}
	}
}

func TestNumbersAreShort(t *testing.T) {
	for got, want := range map[string]string{
		number(0): "0", number(0.004): "<\u200a0.01", number(1.234): "1.23", number(12.34): "12.3", number(123.4): "123", number(12345): "12" + thin + "345", number(-1): "–",
		count(uint64(1234567)): "1" + thin + "234" + thin + "567", count(-1234): "-1" + thin + "234", after(-1): "never", after(0): "now", after(12): "12\u00a0ms", after(1500): "1.5\u00a0s", after(90_000): "90\u00a0s",
		after(3600_000): "60\u00a0min", after(26 * 3600_000): "26\u00a0h 0\u00a0min", after(100 * 3600_000): "4 days", percent(0.05): "<\u200a0.1\u00a0%", percent(5): "5.0\u00a0%", percent(50): "50\u00a0%",
		width(uint64(1), uint64(3)): "33.3", width(5, 0): "0", width(7, 5): "100.0", size(1536): "1.50\u00a0KB", size(10): "10\u00a0B", fmt.Sprint(axisEnd(0), axisEnd(3), axisEnd(21), axisEnd(501)): "1 3 30 600",
	} {
		if got != want {
			t.Errorf("a number is written as %q; want %q", got, want)
		}
	}
}

// The chart library is the file of its release, byte for byte.
func TestVendoredFilesAreUnchanged(t *testing.T) {
	record, err := fs.ReadFile(os.DirFS("."), "VENDORED")
	if err != nil {
		t.Fatal(err)
	}
	checked := 0
	for line := range strings.Lines(string(record)) {
		fields := strings.Fields(line)
		if len(fields) != 2 || len(fields[0]) != 64 {
			continue
		}
		text, err := files.ReadFile(fields[1])
		sum := sha256.Sum256(text)
		if err != nil || hex.EncodeToString(sum[:]) != fields[0] {
			t.Errorf("%s is not the file of the release (%v)", fields[1], err)
		}
		checked++
	}
	if checked != 3 {
		t.Errorf("%d files are recorded; want 3", checked)
	}
}

func FuzzPages(f *testing.F) {
	for _, p := range pages {
		f.Add("GET", p.path+"?key=key:abc&url=/api/x&header=a:b&find=x&kind=denied&span=seconds&rule=api", "")
	}
	f.Add("POST", "reset", "key=key:abc&limit=api%09hour&reason=r&token="+token)
	f.Add("POST", "login", "token="+token+"&next=rules%3Ffind=x")
	f.Add("GET", "key?key=%00%ff&ref=%22", "")
	f.Add("GET", "assets/../dashboard.go", "")
	s := newSite(f, nil)
	s.spend("key:abc", 14)
	f.Fuzz(func(t *testing.T, method, path, form string) {
		q := httptest.NewRequest("GET", "http://127.0.0.1:9180/", strings.NewReader(form))
		path, q.URL.RawQuery, _ = strings.Cut(path, "?")
		q.URL.Path = "/" + path
		if method == "POST" {
			q.Method = method
			q.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		}
		w := httptest.NewRecorder()
		s.Handler.ServeHTTP(w, q)
		if w.Code >= 500 {
			t.Errorf("%s %q with %q gets %d %s; want a status below 500", method, path, form, w.Code, w.Body)
		}
		if to := w.Header().Get("Location"); strings.Contains(to, "//") && !strings.Contains(to, "?") && w.Code == 303 {
			t.Errorf("%s %q with %q leads to %q; want a page of this site", method, path, form, to)
		}
	})
}

// TestRulesPageSaysWhatClientsNeed: after a minute with enough clients, the page compares their
// needs with the limit, and suggests another.
func TestRulesPageSaysWhatClientsNeed(t *testing.T) {
	s := newSite(t, nil)
	for i := range 30 {
		s.spend(fmt.Sprint("key:", i), 4)
	}
	const none = "clients: 95 %"
	if page := s.text("rules", 200, operator); strings.Contains(page, none) {
		t.Errorf("in the first minute, the page has needs:\n%s", page)
	}
	s.options.Recorder.Tick(time.Minute, func(func(activity.Series, uint64)) {})
	page := s.text("rules", 200, operator)
	s.mustHave(page, "Traffic of the last 1 min at this instance, in samples of up to 30 clients an hour: 95 % of them need a burst at 1/min of at most 4, 99 % of at most 4",
		"The limit is premium 100 per 1h, burst 100; free 10 per 1h, burst 10", "limits: [{rate: 8/min, burst: 8}]", "30/min 4 4")
}

// TestReplayStandsBesideLiveTraffic: the page takes the report of a replay, and shows both shares.
// It shows no report to those who may not read.
func TestReplayStandsBesideLiveTraffic(t *testing.T) {
	s := newSite(t, nil)
	s.spend("key:a", 1)
	send := func(report string, headers ...string) (int, string) {
		const boundary = "xxx"
		form := "--" + boundary + "\r\nContent-Disposition: form-data; name=\"report\"; filename=\"r.json\"\r\n\r\n" + report + "\r\n--" + boundary + "--\r\n"
		w := s.send("POST", "rules", form, append(headers, "Content-Type: multipart/form-data; boundary="+boundary)...)
		return w.Code, plain(w)
	}
	const report = `{"policy":{"limits":[{"rule":"api","limit":"hour","requests":1000,"denied":125,"denied_identities":7},
		{"rule":"api","limit":"hour.candidate","requests":1000,"denied":500,"denied_identities":9},{"rule":"<gone>","limit":"x","requests":2,"denied":1,"denied_identities":1}]}}`
	status, page := send(report, operator)
	if status != 200 {
		t.Errorf("the page has status %d", status)
	}
	s.mustHave(page, "api .hour 12 % of 1"+thin+"000 7 91 % of 1"+thin+"350", "api .hour.candidate 50 % of 1"+thin+"000 9 100 % of 777", "<gone> .x 50 % of 2 1 no requests")
	for _, wrong := range []string{"{}", "no JSON", `{"policy":{"limits":[{"requests":-1}]}}`, `{"x":"` + strings.Repeat("x", maxReplay) + `"}`} {
		if status, page := send(wrong, operator); status != 400 || !strings.Contains(page, "is no report of a replay") {
			t.Errorf("%.60s gets %d %s; want 400", wrong, status, page)
		}
	}
	if status, _ := send(report, operator, "Sec-Fetch-Site: cross-site"); status != 403 {
		t.Errorf("from another site, the status is %d; want 403", status)
	}
	s = newSite(t, func(o *adminapi.Options) { o.IsLocal = false })
	if status, page := send(report); status != 401 || strings.Contains(page, "12 %") {
		t.Errorf("without a token: %d %s; want 401", status, page)
	}
}
