package service

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/cmd/penstock/internal/console/adminapi"
	"github.com/penstock/penstock/cmd/penstock/internal/console/audit"
	"github.com/penstock/penstock/internal/testing/eventually"
	"github.com/penstock/penstock/internal/testing/redistest"
)

const twoPerDay = "rules: [{name: api, per: {key: header X-Key}, limits: [{rate: 2/d}]}]"

// getAdmin reads a path of the admin API, and returns the decoded body of the response.
func getAdmin[T any](r *testService, path string) (body T) {
	r.Helper()
	return readAdmin[T](r, path, "")
}

// readAdmin reads a path of the admin API with the operator token; "": without one.
func readAdmin[T any](r *testService, path, token string) (body T) {
	r.Helper()
	request, err := http.NewRequest("GET", "http://"+r.Admin+adminapi.Prefix+path, nil)
	if err != nil {
		r.Fatal(err)
	}
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	res, err := http.DefaultClient.Do(request)
	if err != nil {
		r.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != 200 {
		r.Fatalf("%s returns %d %s, %v; want 200", path, res.StatusCode, text, err)
	}
	if err := json.Unmarshal(text, &body); err != nil {
		r.Fatalf("the response of %s cannot be decoded: %v: %s", path, err, text)
	}
	return body
}

func TestEachInstanceShowsTheOffendersOfAnother(t *testing.T) {
	t.Parallel() // it waits most of the time
	redis := redistest.Start(t)
	const token = "a-token-of-operators"
	flags := limitedBy(t, twoPerDay, map[string]string{"store": redis.URL(), "operator-token": token})
	a := startWithoutLeakCheck(t, hello, flags)
	b := startWithoutLeakCheck(t, hello, flags)
	for range 5 {
		a.mustSend("GET", "/", "X-Key: customer-4711")
	}
	b.mustSend("GET", "/", "X-Key: customer-4711")
	var got adminapi.Offenders
	eventually.True(t, "each instance to show both instances", func() bool {
		got = getAdmin[adminapi.Offenders](b, "offenders")
		hasOffender := len(got.Offenders) == 1 && got.Offenders[0].Count == 4 // of the 6 requests, 2 were admitted
		return got.Instances == 2 && hasOffender && len(getAdmin[adminapi.Instances](a, "instances").Instances) == 2
	})
	offender := got.Offenders[0]
	if offender.Rule != "api" || offender.Limit != "day" || !offender.IsExact || !strings.HasPrefix(offender.Identity, "key:cu…11#") {
		t.Errorf("the offender is %+v; want the exact count of api.day, with a masked key", offender)
	}
	key := getAdmin[adminapi.Key](b, "key?ref="+offender.Ref)
	if len(key.DeniedBy) != 1 || key.DeniedBy[0] != "api.day" || key.Limits[0].Used != 2 || key.Limits[0].RetryMS < 1000 || key.Source == "" {
		t.Errorf("the key is %+v; want it denied by api.day, with 2 units used", key)
	}
	if state := getAdmin[adminapi.State](a, "state"); state.Health.Status != "ok" || state.Store.Name != redis.URL() || state.Fleet.Registered != 2 {
		t.Errorf("the state is %+v; want status ok, and 2 registered instances", state)
	}
	if report := readAdmin[struct{ Allowed *bool }](a, "explain?url=/&header=X-Key:%20customer-4711", token); report.Allowed == nil || *report.Allowed {
		t.Errorf("the explanation is %+v; want a denial", report)
	}
	redis.Kill()
	eventually.True(t, "the state to report that the store fails", func() bool {
		a.mustSend("GET", "/", "X-Key: another")
		state := getAdmin[adminapi.State](a, "state")
		isStoreFailing := state.Store.IsFailing && state.Store.Reason != "" && state.Store.Breakers["default"] != "closed"
		return isStoreFailing && state.Health.Status == "degraded" && state.Fleet.Problem != ""
	})
	if got := getAdmin[adminapi.Offenders](a, "offenders"); len(got.Offenders) == 0 || got.Instances != 1 {
		t.Errorf("without the store, the offenders are %+v; want those of this instance alone", got)
	}
}

func TestAdminAPINeedsATokenIfOtherMachinesCanReachIt(t *testing.T) {
	const token = "0123456789abcdef"
	for _, c := range []struct {
		flags  map[string]string
		header string
		status int // of the admin API
	}{
		{flags: nil, header: "", status: 200},
		{flags: map[string]string{"admin-listen": "0.0.0.0:0"}, header: "", status: 403},
		{flags: map[string]string{"admin-listen": "0.0.0.0:0", "operator-token": token}, header: "", status: 401},
		{flags: map[string]string{"admin-listen": "0.0.0.0:0", "operator-token": token}, header: "Authorization: Bearer " + token, status: 200},
		{flags: map[string]string{"operator-token": token}, header: "Authorization: Bearer wrong-wrong-wrong", status: 401},
	} {
		t.Run(fmt.Sprint(c.status), func(t *testing.T) {
			r := start(t, hello, c.flags)
			_, port, _ := net.SplitHostPort(r.Admin)
			for path, status := range map[string]int{"/api/v1/state": c.status, "/livez": 200, "/metrics": 200} {
				res, err := send("GET", "http://127.0.0.1:"+port+path, c.header)
				if err != nil || res.StatusCode != status {
					t.Errorf("with the flags %v and the header %q, %s got %v (error %v); want %d", c.flags, c.header, path, res, err, status)
				}
			}
			if strings.Contains(r.log.String(), token) {
				t.Error("the log shows the operator token")
			}
		})
	}
}

func TestAdminAddressMayBeASocket(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "admin.sock")
	r := start(t, hello, map[string]string{"admin-listen": "unix:" + socket})
	if len(r.log.Lines("listening", "admin_listen=unix:"+socket)) != 1 {
		t.Errorf("the line \"listening\" does not have the socket as --admin takes it: %s", r.log)
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}}}
	for _, path := range []string{"/livez", "/api/v1/state"} {
		res, err := client.Get("http://localhost" + path)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if res.StatusCode != 200 {
			t.Errorf("%s returned %d; want 200", path, res.StatusCode)
		}
	}
}

// A reader of events gets one snapshot a second. The service can stop while the reader is
// connected.
func TestReaderOfEventsDoesNotKeepTheServiceFromStopping(t *testing.T) {
	r := start(t, hello, nil)
	res, err := http.Get("http://" + r.Admin + "/api/v1/events")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	lines := bufio.NewScanner(res.Body)
	for snapshots := 0; snapshots < 2 && lines.Scan(); {
		if strings.HasPrefix(lines.Text(), "data: ") {
			snapshots++
		}
	}
	r.wait()
	for lines.Scan() { // until the end of the stream
	}
}

// A client that was denied at one instance is admitted again after a reset at another.
func TestResetAdmitsAgain(t *testing.T) {
	const token = "0123456789abcdef"
	redis := redistest.Start(t)
	flags := limitedBy(t, twoPerDay, map[string]string{"store": redis.URL(), "operator-token": token})
	a := start(t, hello, flags)
	b := startWithoutLeakCheck(t, hello, flags)
	awaitStatus := func(want int) {
		t.Helper()
		eventually.True(t, fmt.Sprintf("the status %d", want), func() bool { // instance a may cache the denial for a second
			return a.mustSend("GET", "/", "X-Key: customer-4711").StatusCode == want
		})
	}
	awaitStatus(200)
	awaitStatus(429)
	reset := func(header string) int {
		request, err := http.NewRequest("POST", "http://"+b.Admin+"/api/v1/key/reset", strings.NewReader(`{"key": "key:customer-4711", "reason": "support-99"}`))
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Content-Type", "application/json")
		request.Header.Set("Authorization", header)
		res, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		return res.StatusCode
	}
	began := time.Now()
	for range 3 {
		if status := reset("Bearer wrong-wrong-wrong"); status != 401 {
			t.Errorf("with a wrong token, the status is %d; want 401", status)
		}
	}
	if status := reset("Bearer " + token); status != 200 {
		t.Errorf("with the token, the status is %d; want 200", status)
	}
	awaitStatus(200)
	log := b.log.String()
	for _, want := range []string{"a key was reset by the admin API", "audit=true", "support-99", "api.day 2->0", "key:cu", "actor.kind=api", "a reset by the admin API was refused"} {
		if !strings.Contains(log, want) {
			t.Errorf("the log lacks %q: %s", want, log)
		}
	}
	if strings.Contains(log, "customer-4711") || strings.Contains(log, token) {
		t.Errorf("the log shows the identity or the token: %s", log)
	}
	took := time.Since(began)
	if n, most := strings.Count(log, "was refused or has failed"), 1+int(took/time.Second); n > most {
		t.Errorf("%d lines report the resets with a wrong token, which took at most %v; want at most one line a second: %s", n, took, log)
	}
}

// With a client certificate of the right authority, the API can be read without a token, and
// nothing can be written. Probes need no certificate.
func TestCertificatesLetOperatorsRead(t *testing.T) {
	a, stranger := newAuthority(t), newAuthority(t)
	operator, foreign := a.issue(3), stranger.issue(4)
	a.issue(2) // replaces the files with the certificate of the service
	r := start(t, hello, map[string]string{"admin-listen": "0.0.0.0:0", "admin-tls-cert": a.path("cert.pem"), "admin-tls-key": a.path("key.pem"), "admin-client-ca": a.path("ca.pem")})
	_, port, _ := net.SplitHostPort(r.Admin)
	for name, c := range map[string]struct {
		certificates []tls.Certificate
		want         map[string]int // status by method and path; 0: the connection fails
	}{
		"of nobody":            {nil, map[string]int{"GET /livez": 200, "GET /metrics": 200, "GET /api/v1/state": 403}},
		"of an operator":       {[]tls.Certificate{operator}, map[string]int{"GET /livez": 200, "GET /api/v1/state": 200, "POST /api/v1/key/reset": 403}},
		"of another authority": {[]tls.Certificate{foreign}, map[string]int{"GET /api/v1/state": 0}},
	} {
		config := &tls.Config{RootCAs: a.pool, GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			if c.certificates == nil {
				return new(tls.Certificate), nil
			}
			return &c.certificates[0], nil
		}}
		client := http.Client{Transport: &http.Transport{TLSClientConfig: config, DisableKeepAlives: true}, Timeout: patience}
		for call, status := range c.want {
			method, path, _ := strings.Cut(call, " ")
			request, err := http.NewRequest(method, "https://127.0.0.1:"+port+path, nil)
			if err != nil {
				t.Fatal(err)
			}
			got := 0
			if res, err := client.Do(request); err == nil {
				got = res.StatusCode
				res.Body.Close()
			}
			if got != status {
				t.Errorf("with the certificate %s, %s returned %d; want %d", name, call, got, status)
			}
		}
	}
}

// reset resets the key of the client customer-4711.
func (r *testService) reset(token string) (status int, answer string) {
	r.Helper()
	request, err := http.NewRequest("POST", "http://"+r.Admin+"/api/v1/key/reset", strings.NewReader(`{"key": "key:customer-4711", "reason": "support-99"}`))
	if err != nil {
		r.Fatal(err)
	}
	request.Header.Set("Authorization", "Bearer "+token)
	request.Header.Set("Content-Type", "application/json")
	res, err := http.DefaultClient.Do(request)
	if err != nil {
		r.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		r.Fatal(err)
	}
	return res.StatusCode, string(text)
}

// The audit file gets the same lines as the log, and before each reset its intent. If the file
// cannot be written, nothing is reset. The response, /readyz and the log report that. Requests are
// still served.
func TestAuditFileHasEachReset(t *testing.T) {
	file := filepath.Join(t.TempDir(), "audit.json")
	const token = "a-token-of-operators"
	const policy = "rules:\n  - {name: api, per: {key: header X-Key}, limits: [{rate: 10/d}]}\n"
	r := startLimited(t, hello, policy, map[string]string{"admin-listen": "127.0.0.1:0", "operator-token": token, "audit-file": file})
	reset := func() (status int, answer string) {
		r.mustSend("GET", "/", "X-Key: customer-4711")
		return r.reset(token)
	}
	readAuditFile := func() string {
		text, _ := os.ReadFile(file)
		return string(text)
	}
	if status, answer := reset(); status != 200 {
		t.Errorf("a reset returned %d %s; want 200", status, answer)
	}
	eventually.True(t, "the lines in the audit file", func() bool { return strings.Count(readAuditFile(), "\n") == 2 })
	_, last, _ := strings.Cut(readAuditFile(), "\n")
	var line audit.Line
	if err := json.Unmarshal([]byte(last), &line); err != nil || line.Result != audit.OK || line.Reason != "support-99" || line.Actor.Address == "" {
		t.Errorf("the line of the audit file is %s (error %v); want a successful reset with its reason and its actor", readAuditFile(), err)
	}
	if strings.Contains(readAuditFile(), "4711") {
		t.Errorf("the audit file shows the identity: %s", readAuditFile())
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(file, 0o700); err != nil {
		t.Fatal(err)
	}
	if status, answer := reset(); status != 500 || !strings.Contains(answer, "nothing was reset") || !strings.Contains(answer, "is a directory") {
		t.Errorf("without the audit file, a reset returned %d %s; want 500, and that nothing was reset", status, answer)
	}
	if key := readAdmin[adminapi.Key](r, "key?key=key:customer-4711", token); len(key.Limits) != 1 || key.Limits[0].Used != 1 {
		t.Errorf("the key is %+v; want one unit used, and no reset", key)
	}
	if answer := r.mustGet("http://"+r.Admin+"/readyz?verbose", 200); !strings.Contains(answer, "audit cannot be written, so no key is reset: ") || !strings.Contains(answer, file) {
		t.Errorf("/readyz?verbose is %s; want the audit file that cannot be written", answer)
	}
	eventually.True(t, "the error in the log", func() bool { return r.log.Lines("level=ERROR", "the audit file cannot be written") != nil })
}
