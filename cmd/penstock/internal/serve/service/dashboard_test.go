package service

import (
	"io"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"github.com/penstock/penstock/cmd/penstock/internal/console/adminapi"
	"github.com/penstock/penstock/cmd/penstock/internal/serve/demotraffic"
	"github.com/penstock/penstock/internal/testing/eventually"
)

// The demo sends requests to itself. The dashboard shows its offender, which is denied. The
// offender can be reset with the token in the log.
func TestDemoHasTrafficAndAnOffenderThatCanBeReset(t *testing.T) {
	r := start(t, nil, map[string]string{"demo": "true", "demo-traffic": "true"})
	requestExport := func() (status int) {
		return r.mustSend("POST", "/api/receipts/export", "X-API-Key: "+demotraffic.Offender).StatusCode
	}
	for range 20 {
		requestExport()
	}
	if status := requestExport(); status != http.StatusTooManyRequests {
		t.Fatalf("the offender got %d; want 429", status)
	}
	var top adminapi.Offenders
	eventually.True(t, "other clients, and the offender on top", func() bool {
		top = getAdmin[adminapi.Offenders](r, "offenders")
		state := getAdmin[adminapi.State](r, "state")
		hasOthers := len(state.Counts) > 3 // the offender alone has fewer series
		hasUpstream := state.Upstream != nil && state.Upstream.Latency.Calls > 0
		return len(top.Offenders) > 0 && hasOthers && hasUpstream
	})
	page := r.mustGet("http://"+r.Admin+"/key?ref="+top.Offenders[0].Ref, 200)
	if !strings.Contains(page, "Denied now") || !strings.Contains(page, "receipt-export.hour") || strings.Contains(page, demotraffic.Offender) {
		t.Errorf("the page of the offender is %s; want its denial, without the identity", page)
	}
	token := regexp.MustCompile(`operator_token=(\w{20,})`).FindStringSubmatch(r.log.String())
	if token == nil {
		t.Fatalf("the log has no operator_token: %s", r.log)
	}
	for _, c := range []struct {
		token  string
		status int // of the reset
		next   int // status of the next request
	}{
		{token: "wrong", status: http.StatusUnauthorized, next: http.StatusTooManyRequests},
		{token: token[1], status: http.StatusOK, next: http.StatusOK},
	} {
		res, err := http.PostForm("http://"+r.Admin+"/reset", url.Values{"ref": {top.Offenders[0].Ref}, "reason": {"test"}, "token": {c.token}})
		if err != nil {
			t.Fatal(err)
		}
		text, _ := io.ReadAll(res.Body)
		res.Body.Close()
		if next := requestExport(); res.StatusCode != c.status || next != c.next {
			t.Errorf("with the token %q, the reset got %d, and the next request %d: %s; want %d and %d", c.token, res.StatusCode, next, text, c.status, c.next)
		}
	}
}

func TestDemoLogsTheSchemeOfTheDashboard(t *testing.T) {
	a := newAuthority(t)
	a.issue(1)
	r := start(t, nil, map[string]string{"demo": "true", "demo-traffic": "true", "admin-tls-cert": a.path("cert.pem"), "admin-tls-key": a.path("key.pem")})
	want := "dashboard=https://" + r.Admin + "/"
	eventually.True(t, "a line with "+want, func() bool { return len(r.log.Lines("the demo sends requests", want)) == 1 })
}

func TestDashboardIsOnTheAdminAddress(t *testing.T) {
	r := start(t, hello, nil)
	for _, path := range []string{"/", "/dashboard", "/rules", "/offenders", "/key", "/explain", "/health"} {
		if page := r.mustGet("http://"+r.Admin+path, 200); !strings.Contains(page, "<h1>") {
			t.Errorf("the page %s is %s; want one with a heading", path, page)
		}
	}
	if status, text, _ := get("http://" + r.Admin + "/nothing"); status != 404 || strings.Contains(text, "<") {
		t.Errorf("a page that does not exist got %d %s; want 404, in plain text", status, text)
	}
	request, _ := http.NewRequest("GET", "http://"+r.Admin+"/dashboard", nil)
	request.Host = "evil.example"
	if res, err := http.DefaultClient.Do(request); err != nil || res.StatusCode != http.StatusMisdirectedRequest {
		t.Errorf("a request with a foreign Host got %v (error %v); want 421", res, err)
	} else {
		res.Body.Close()
	}
	remote := startWithoutLeakCheck(t, hello, map[string]string{"admin-listen": "0.0.0.0:0"})
	_, port, err := net.SplitHostPort(remote.Admin)
	if err != nil {
		t.Fatal(err)
	}
	if status, text, err := get("http://127.0.0.1:" + port + "/"); status != http.StatusForbidden || !strings.Contains(text, "set operator_token") {
		t.Errorf("without a token at 0.0.0.0, the dashboard returned %d %s (error %v); want 403", status, text, err)
	}
}
