package adminapi

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
)

func TestSessionReplacesTheToken(t *testing.T) {
	local, remote := newFixture(t, nil), newFixture(t, func(o *Options) { o.IsLocal = false })
	otherToken := newFixture(t, func(o *Options) { o.IsLocal, o.Token = false, []byte("fedcba9876543210") })
	noToken := newFixture(t, func(o *Options) { o.IsLocal, o.Token = false, nil })
	q := httptest.NewRequest("POST", "http://127.0.0.1:9180/login", nil)
	for f, status := range map[*fixture]int{local: 401, remote: 401, noToken: 403} {
		for _, wrong := range []string{"", "0123456789abcdeF", token + "0"} {
			if c, err := f.LogIn(wrong, q); err == nil || StatusOf(err) != status {
				t.Errorf("LogIn with the wrong token %q returns %v, %v; want an error with the status %d", wrong, c, err, status)
			}
		}
	}
	c, err := remote.LogIn(token, q)
	if err != nil {
		t.Fatalf("LogIn returns %v; want a cookie", err)
	}
	if !c.HttpOnly || c.SameSite != http.SameSiteStrictMode || c.Secure || c.Path != "" || c.MaxAge <= 0 {
		t.Errorf("the cookie is %+v; want a strict HttpOnly one with a MaxAge, without Secure and without a path", c)
	}
	if strings.Contains(c.Value, token) {
		t.Errorf("the cookie has the value %s; want it without the token", c.Value)
	}
	q.Header.Set("Origin", "https://ops.example")
	if c, _ := remote.LogIn(token, q); !c.Secure {
		t.Errorf("the cookie of a page with TLS is %+v; want it Secure", c)
	}
	end, signature, _ := strings.Cut(c.Value, ".")
	old := strconv.FormatInt(time.Now().Add(-time.Second).Unix(), 10)
	later := strconv.FormatInt(time.Now().Add(20*time.Hour).Unix(), 10)
	for _, at := range []struct {
		f     *fixture
		value string // of the cookie
		read  int    // status of a read
		write int    // status of a write
	}{
		{f: remote, value: c.Value, read: 200, write: 200},
		{f: local, value: c.Value, read: 200, write: 200},
		{f: otherToken, value: c.Value, read: 401, write: 401},
		{f: noToken, value: c.Value, read: 403, write: 403},
		{f: remote, value: end + "." + signature[1:], read: 401, write: 401},
		{f: remote, value: later + "." + signature, read: 401, write: 401},
		{f: local, value: later + "." + signature, read: 200, write: 401},
		{f: remote, value: old + "." + remote.signSession(old), read: 401, write: 401},
		{f: remote, value: "x." + remote.signSession("x"), read: 401, write: 401},
		{f: remote, read: 401, write: 401},
		{f: noToken, value: end + "." + noToken.signSession(end), read: 403, write: 403},
	} {
		cookie := "Cookie: " + sessionCookie + "=" + at.value
		if w := at.f.get("state", cookie); w.Code != at.read {
			t.Errorf("with %s, a read returns %d; want %d", cookie, w.Code, at.read)
		}
		if w := at.f.post(resetAllBody, cookie); w.Code != at.write {
			t.Errorf("with %s, a write returns %d; want %d", cookie, w.Code, at.write)
		}
	}
	cookie := "Cookie: " + sessionCookie + "=" + c.Value
	for _, header := range []string{"Origin: http://evil.example", "Origin: http://127.0.0.1:8080", "Sec-Fetch-Site: cross-site", "Sec-Fetch-Site: same-site"} {
		if w := remote.post(resetAllBody, cookie, header); w.Code != 403 {
			t.Errorf("with %s, a reset by a page of another origin gets %d; want 403", header, w.Code)
		}
		if w := remote.get("state", cookie, header); w.Code != 403 {
			t.Errorf("with %s, a read by a page of another origin gets %d; want 403", header, w.Code)
		}
	}
	if w := remote.get("state", cookie, "Authorization: Bearer wrong"); w.Code != 401 {
		t.Errorf("a wrong token with a valid session gets %d; want 401", w.Code)
	}
	if c := LogOut(q); c.MaxAge >= 0 || c.Value != "" || c.Name != sessionCookie {
		t.Errorf("the cookie of LogOut is %+v; want an empty one that has expired", c)
	}
}

func TestPagesResetLikeTheAPI(t *testing.T) {
	f := newFixture(t, nil)
	f.spend("api.hour", "key:customer-4711", 12)
	wanted := ResetRequest{Key: "key:customer-4711", Reason: "support-4711"}
	q := httptest.NewRequest("POST", "/reset", nil)
	q.RemoteAddr = "192.0.2.9:1"
	for _, wrong := range []string{"", "wrong"} {
		if done, err := f.Reset(q, wrong, wanted); err == nil || done != nil || StatusOf(err) != 401 || f.used("hour") != 10 {
			t.Errorf("with the wrong token %q, Reset returns %v, %v; want 401, and no reset", wrong, done, err)
		}
	}
	if _, err := f.Reset(q, token, ResetRequest{Key: wanted.Key}); StatusOf(err) != 400 || f.used("hour") != 10 {
		t.Errorf("without a reason, Reset returns %v; want 400", err)
	}
	if done, err := f.Reset(q, token, wanted); err != nil || len(done.Reset) != 1 || f.used("hour") != 0 {
		t.Errorf("Reset returns %+v, %v; want one reset limit", done, err)
	}
	if n := len(f.audits); n != 4 {
		t.Fatalf("the audit has %d lines: %+v; want 4", n, f.audits)
	}
	refused, last := f.audits[1], f.audits[3]
	if refused.Problem == "" || last.Problem != "" {
		t.Errorf("the lines of a refused and of a good reset are %+v and %+v; want a problem in the first only", refused, last)
	}
	if last.Actor.Address != q.RemoteAddr || last.Reason != wanted.Reason || strings.Contains(last.Key, "4711") {
		t.Errorf("the last line is %+v; want the address and the reason, and the key masked", last)
	}
}

func TestReadReturnsWhatTheAPIServes(t *testing.T) {
	f := newFixture(t, nil)
	f.spend("api.hour", "key:customer-4711", 12)
	got, err := Read[Offenders](t.Context(), f.Handler, Viewer{}, "offenders", nil)
	if err != nil || len(got.Offenders) != 1 || got.Offenders[0] != read[Offenders](f, "offenders").Offenders[0] {
		t.Errorf("Read returns %+v, %v; want the offender that the API returns", got, err)
	}
	if _, err := Read[Offenders](t.Context(), f.Handler, Viewer{}, "offenders", map[string][]string{"kind": {"x"}}); StatusOf(err) != 400 {
		t.Errorf("with a wrong parameter, Read returns %v; want an error with the status 400", err)
	}
	text, _ := json.Marshal(f.ReadState(t.Context()))
	f.stateCache.made = time.Now().Add(time.Hour) // so that the state is not made again, even on a busy machine
	if served := strings.TrimSpace(f.get("state").Body.String()); served != string(text) {
		t.Errorf("ReadState returns\n%s\nand the API serves\n%s\nwant the same", text, served)
	}
}

func TestProfilesAreForReadersOfTheAPI(t *testing.T) {
	local, remote := newFixture(t, nil), newFixture(t, func(o *Options) { o.IsLocal = false })
	for _, c := range []struct {
		f      *fixture
		header string
		status int
	}{
		{f: local, status: 200},
		{f: remote, status: 401},
		{f: remote, header: operatorHeader, status: 200},
		{f: remote, header: "Authorization: Bearer wrong", status: 401},
		{f: local, header: "Sec-Fetch-Site: same-origin", status: 200},
		{f: local, header: "Sec-Fetch-Site: cross-site", status: 403},
		{f: local, header: "Sec-Fetch-Site: same-site", status: 403},
		{f: local, header: "Origin: http://evil.example", status: 403},
	} {
		q := httptest.NewRequest("GET", "http://127.0.0.1:9180/debug/pprof/", nil)
		if name, value, ok := strings.Cut(c.header, ": "); ok {
			q.Header.Set(name, value)
			q.Header.Set("Sec-Fetch-Mode", "navigate")
		}
		w := httptest.NewRecorder()
		c.f.Protect(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {})).ServeHTTP(w, q)
		if w.Code != c.status {
			t.Errorf("local %v, with %q: the status is %d; want %d", c.f.IsLocal, c.header, w.Code, c.status)
		}
	}
}

// A wrong token is answered after a delay. A right one is answered at once, whatever else happens.
func TestWrongTokensWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, nil)
		f.delays.each = wrongTokenDelay
		timeOf := func(header string) time.Duration {
			began := time.Now()
			f.get("state", header)
			return time.Since(began)
		}
		for header, want := range map[string]time.Duration{operatorHeader: 0, operatorHeader + "x": wrongTokenDelay, "Authorization: Basic x": wrongTokenDelay} {
			if took := timeOf(header); took != want {
				t.Errorf("with %q, the response took %v; want %v", header, took, want)
			}
		}
		q := httptest.NewRequest("POST", "http://127.0.0.1:9180/login", nil)
		began := time.Now()
		if _, err := f.LogIn("wrong", q); err == nil || time.Since(began) != wrongTokenDelay {
			t.Errorf("a login with a wrong token returns %v after %v; want an error after %v", err, time.Since(began), wrongTokenDelay)
		}
		for range maxDelays {
			go f.get("state", operatorHeader+"x")
		}
		synctest.Wait()
		if wrong, right := timeOf(operatorHeader+"x"), timeOf(operatorHeader); wrong != 0 || right != 0 {
			t.Errorf("beside %d responses that wait, a wrong token took %v and a right one %v; want no wait", maxDelays, wrong, right)
		}
		time.Sleep(wrongTokenDelay)
		synctest.Wait()
	})
}

func TestGuessedKeysCannotBeComparedWithMaskedOnes(t *testing.T) {
	for _, show := range []string{ShowOff, ShowMasked, ShowFull} {
		reads := 0
		f := newFixture(t, func(o *Options) {
			withDenials(o)
			store := o.Store
			o.Identities, o.Store = show, penstock.StoreFunc(func(ctx context.Context, charges []penstock.Charge) (penstock.Decision, error) {
				reads++ // a read takes more time if the key exists
				return store.Decide(ctx, charges)
			})
		})
		f.spend("api.hour", "key:customer-4711", 12)
		reads = 0
		if used, unused := f.get("key?key=key:customer-4711"), f.get("key?key=key:customer-4712"); used.Code != 401 || used.Body.String() != unused.Body.String() {
			t.Errorf("%s: without the token, a used key returns %d %s, and an unused one %s; want 401 for both", show, used.Code, used.Body, unused.Body)
		}
		const explain = "explain?url=/api/x&header=X-Key:%20customer-4711"
		used := f.get(explain).Body.String()
		unused := strings.ReplaceAll(f.get(strings.ReplaceAll(explain, "4711", "4712")).Body.String(), "4712", "4711")
		if used != unused || !strings.Contains(used, `"limit":"hour"`) {
			t.Errorf("%s: without the token, the report of a used key is\n%s\nand of an unused one\n%s\nwant the same limits, without numbers of the store", show, used, unused)
		}
		if reads > 0 {
			t.Errorf("%s: without the token, %d calls read the store; want none", show, reads)
		}
		if report := f.get(explain, operatorHeader).Body.String(); !strings.Contains(report, `"allowed":false`) || !strings.Contains(report, `"remaining":0`) {
			t.Errorf("%s: with the token, the report is %s; want a denial with 0 left", show, report)
		}
		if body := f.get("key?key=key:customer-4711", operatorHeader).Body.String(); !strings.Contains(body, `"ref":"`+f.ref("key:customer-4711")) {
			t.Errorf("%s: with the token, the body is %s; want one with a ref", show, body)
		}
		if w := f.get("denials?key=key:customer-4711"); w.Code != 401 || !strings.Contains(w.Body.String(), "needs the operator token") {
			t.Errorf("%s: without the token, the denials of a key return %d %s; want 401", show, w.Code, w.Body)
		}
	}
}
