package service

import (
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/penstock/penstock/cmd/penstock/internal/console/adminapi"
	"github.com/penstock/penstock/cmd/penstock/internal/rpc/envoyrls"
	"github.com/penstock/penstock/internal/testing/eventually"
	"github.com/penstock/penstock/internal/testing/redistest"
)

const envoyLimits = `domain: web
descriptors:
- key: remote_address
  rate_limit: {unit: day, requests_per_unit: 2}
`

// envoyRequest makes a request with one descriptor, for a remote address.
func envoyRequest(value string) *rlsv3.RateLimitRequest {
	return &rlsv3.RateLimitRequest{Domain: "web", Descriptors: []*ratelimitv3.RateLimitDescriptor{
		{Entries: []*ratelimitv3.RateLimitDescriptor_Entry{{Key: "remote_address", Value: value}}},
	}}
}

// envoyFolder makes a folder with one file of Envoy's limits, and returns its path.
func envoyFolder(t *testing.T, content string) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "web.yaml"), []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestEnvoyGetsDecisionsByGRPCAndJSON(t *testing.T) {
	for name, store := range map[string]string{"memory": "memory", "redis": redistest.Start(t).URL()} {
		t.Run(name, func(t *testing.T) {
			testEnvoyGetsDecisions(t, map[string]string{"store": store})
		})
	}
}

func testEnvoyGetsDecisions(t *testing.T, more map[string]string) {
	store := more["store"]
	flags := map[string]string{"grpc": "127.0.0.1:0", "api": "127.0.0.1:0", "envoy-config": envoyFolder(t, envoyLimits)}
	maps.Copy(flags, more)
	r := start(t, nil, flags)
	conn := r.grpcClient(nil)
	client := rlsv3.NewRateLimitServiceClient(conn)
	for i, want := range []rlsv3.RateLimitResponse_Code{rlsv3.RateLimitResponse_OK, rlsv3.RateLimitResponse_OK, rlsv3.RateLimitResponse_OVER_LIMIT} {
		answer, err := client.ShouldRateLimit(callContext(t), envoyRequest("192.0.2.1"))
		if err != nil || answer.OverallCode != want {
			t.Fatalf("with %s, call %d is %v (error %v); want %v", store, i, answer, err, want)
		}
	}
	for _, name := range []string{"", "ratelimit"} {
		if answer, err := healthpb.NewHealthClient(conn).Check(callContext(t), &healthpb.HealthCheckRequest{Service: name}); err != nil || answer.Status != healthpb.HealthCheckResponse_SERVING {
			t.Errorf("health of %q is %v (error %v); want serving", name, answer, err)
		}
	}
	postJSON := func(body string) (code int, answer string) {
		response, err := http.Post("http://"+r.API+"/json", "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		text, _ := io.ReadAll(response.Body)
		return response.StatusCode, string(text)
	}
	if code, text := postJSON(`{"domain": "web", "descriptors": [{"entries": [{"key": "remote_address", "value": "192.0.2.1"}]}]}`); code != 429 {
		t.Errorf("/json returned %d %s; want 429 by the same counter", code, text)
	}
	if code, text := postJSON(`{"domain": "web"}`); code != 400 {
		t.Errorf("without descriptors, /json returned %d %s; want 400", code, text)
	}
	r.mustGet("http://"+r.API+"/healthcheck", 200)
	for _, path := range []string{"/json", "/rlconfig"} { // a browser adds Origin to requests of a web page
		request, _ := http.NewRequestWithContext(callContext(t), "GET", "http://"+r.API+path, nil)
		request.Header.Set("Origin", "http://example.com")
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		if response.Body.Close(); response.StatusCode != 401 {
			t.Errorf("a request with an Origin for %s got %d; want 401", path, response.StatusCode)
		}
	}
	http.DefaultClient.CloseIdleConnections()
	if text := r.mustGet("http://"+r.API+"/rlconfig", 200); text != "web.remote_address: unit=DAY requests_per_unit=2, shadow_mode: false, quota_mode: false\n" {
		t.Errorf("/rlconfig is %s; want the limit of the file", text)
	}
	page := r.mustGet("http://"+r.Admin+"/metrics", 200)
	for _, want := range []string{
		`rate_limiter_requests_total{algorithm="fixed-window",limit="day",outcome="allowed",rule="web.remote_address"} 2`,
		`rate_limiter_requests_total{algorithm="fixed-window",limit="day",outcome="denied",rule="web.remote_address"} 2`,
	} {
		if !strings.Contains(page, want) {
			t.Errorf("the metrics lack %s", want)
		}
	}
}

func TestEnvoysLimitsReload(t *testing.T) {
	reload := make(chan os.Signal)
	dir := envoyFolder(t, envoyLimits)
	r := start(t, nil, map[string]string{"grpc": "127.0.0.1:0", "envoy-config": dir}, reloadOn(reload))
	awaitLog := func(text string) {
		t.Helper()
		eventually.True(t, text, func() bool { return strings.Contains(r.log.String(), text) })
	}
	client := rlsv3.NewRateLimitServiceClient(r.grpcClient(nil))
	replaceFile(t, filepath.Join(dir, "web.yaml"), "domain: web\nfoo: 1\n")
	reload <- syscall.SIGHUP
	awaitLog("reload of Envoy's rate limits failed")
	awaitLog("web.yaml:2: unknown key 'foo'")
	if answer, err := client.ShouldRateLimit(callContext(t), envoyRequest("a")); err != nil || answer.Statuses[0].CurrentLimit == nil {
		t.Errorf("after a broken file the decision is %v (error %v); want the old limits", answer, err)
	}
	// The new file has a limit of 9, and a key in the wrong place, which causes a warning.
	replaceFile(t, filepath.Join(dir, "web.yaml"), strings.Replace(envoyLimits, "2}", "9}\n  shadow_mode: true\n  unit: day", 1))
	awaitLog("unit has no effect in a descriptor")
	answer, err := client.ShouldRateLimit(callContext(t), envoyRequest("b"))
	if err != nil || answer.Statuses[0].CurrentLimit.GetRequestsPerUnit() != 9 {
		t.Errorf("after a change the decision is %v (error %v); want the new limits", answer, err)
	}
	if strings.Contains(r.log.String(), "has no limits") {
		t.Errorf("the log reports a folder without limits, but it has some:\n%s", r.log.String())
	}
	replaceFile(t, filepath.Join(dir, "web.yaml"), "domain: web\n")
	awaitLog("the folder of envoy-config has no limits")
}

func TestEnvoyNeedsTheToken(t *testing.T) {
	const token = "0123456789abcdef"
	r := start(t, nil, map[string]string{"grpc": "127.0.0.1:0", "api": "127.0.0.1:0", "caller-token": token, "envoy-config": envoyFolder(t, envoyLimits)})
	client := rlsv3.NewRateLimitServiceClient(r.grpcClient(nil))
	if _, err := client.ShouldRateLimit(callContext(t), envoyRequest("a")); status.Code(err) != codes.Unauthenticated {
		t.Errorf("without a token the error is %v; want Unauthenticated", err)
	}
	if answer, err := client.ShouldRateLimit(metadata.AppendToOutgoingContext(callContext(t), "authorization", "Bearer "+token), envoyRequest("a")); err != nil || answer.Statuses[0].LimitRemaining != 1 {
		t.Errorf("with the token the decision is %v (error %v); want 1 left", answer, err)
	}
	// With the token, the status is 400, because the body has no domain.
	for authorization, want := range map[string]int{"": 401, "Bearer x": 401, "Basic " + token: 401, "Bearer " + token: 400} {
		request, _ := http.NewRequestWithContext(callContext(t), "POST", "http://"+r.API+"/json", strings.NewReader("{}"))
		if authorization != "" {
			request.Header.Set("Authorization", authorization)
		}
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		if response.Body.Close(); response.StatusCode != want {
			t.Errorf("/json with the authorization %q returned %d; want %d", authorization, response.StatusCode, want)
		}
	}
	r.mustGet("http://"+r.API+"/healthcheck", 200)
	http.DefaultClient.CloseIdleConnections()
}

// The example of docs/envoy-ratelimit.md behaves as described: five requests pass, and the sixth is
// denied.
func TestEnvoyExampleOfTheDocsIsTrue(t *testing.T) {
	page, err := os.ReadFile("../../../../../docs/envoy-ratelimit.md")
	if err != nil {
		t.Fatal(err)
	}
	call := regexp.MustCompile(`curl -s localhost:8084(/json) -d '(.*)'`).FindStringSubmatch(string(page))
	if call == nil {
		t.Fatal("docs/envoy-ratelimit.md has no call of /json")
	}
	path, body := call[1], call[2]
	r := start(t, nil, map[string]string{"api": "127.0.0.1:0", "envoy-config": "../../../../../examples/envoy"})
	for client := 1; ; client++ { // a new client for each try
		minute := time.Now().Unix() / 60
		statuses := ""
		for range 6 {
			bodyOfClient := strings.Replace(body, "192.0.2.7", fmt.Sprint("192.0.2.", client), 1)
			response, err := http.Post("http://"+r.API+path, "", strings.NewReader(bodyOfClient))
			if err != nil {
				t.Fatal(err)
			}
			response.Body.Close()
			statuses += fmt.Sprint(response.StatusCode, " ")
		}
		if time.Now().Unix()/60 != minute {
			continue // the minute changed between the calls, and so did the window
		}
		if statuses != "200 200 200 200 200 429 " {
			t.Errorf("the statuses of six calls are %s; want five of 200, then 429", statuses)
		}
		break
	}
	eventually.True(t, "the denied descriptor among the offenders", func() bool {
		got := getAdmin[adminapi.Offenders](r, "offenders").Offenders
		return len(got) > 0 && got[0].Rule == envoyrls.Group() // all limits of the files have this group as their rule
	})
	if text := r.log.String(); strings.Contains(text, "level=WARN") {
		t.Errorf("the example of the docs causes a warning: %s", text)
	}
	http.DefaultClient.CloseIdleConnections()
}

// The policy decides for domains that no file of envoy-config has. Here, there are no files at all.
func TestPolicyDecidesForDomainsWithoutAFile(t *testing.T) {
	config := filepath.Join(t.TempDir(), "rules.yaml")
	replaceFile(t, config, `rules: [{name: addresses, match: {descriptor remote_address: "*"}, per: ip, limits: [{name: day, rate: 1/day}]}]`)
	r := start(t, nil, map[string]string{"grpc": "127.0.0.1:0", "config": config})
	client := rlsv3.NewRateLimitServiceClient(r.grpcClient(nil))
	for i, want := range []rlsv3.RateLimitResponse_Code{rlsv3.RateLimitResponse_OK, rlsv3.RateLimitResponse_OVER_LIMIT} {
		answer, err := client.ShouldRateLimit(callContext(t), envoyRequest("192.0.2.1"))
		if err != nil || answer.OverallCode != want || answer.Statuses[0].CurrentLimit.GetName() != "addresses.day" {
			t.Errorf("call %d is %v (error %v); want %v by the policy", i, answer, err, want)
		}
	}
}

// Callers of the check API report the end of a request, and Envoy does not. So such a rule is
// refused if Envoy's limits are configured. Otherwise only Envoy's calls to which it applies fail.
func TestRulesWithDescriptorsAndSlotsAreForTheCheckAPI(t *testing.T) {
	const slots = `
http: {trusted_proxies: [127.0.0.1]}
rules:
- {name: jobs, match: {descriptor remote_address: "*"}, per: ip, limits: [{in_flight: 1, ttl: 1h}]}
- {name: logins, match: {descriptor login: "*"}, per: {login: descriptor login}, limits: [{name: day, rate: 5/day, on_status: 401}]}
`
	config := filepath.Join(t.TempDir(), "rules.yaml")
	replaceFile(t, config, slots)
	r := start(t, nil, map[string]string{"api": "127.0.0.1:0", "grpc": "127.0.0.1:0", "config": config})
	const job = `{"attributes":{"descriptors":{"remote_address":"192.0.2.1"},"address":"192.0.2.1"}}`
	if answer := callCheckAPI(t, r, "", "/v1/acquire", `{"check":`+job+`}`); answer.status != 200 || answer.fields["id"] == "" {
		t.Errorf("an acquire by a rule with a descriptor: %d %s; want a hold", answer.status, answer.text)
	}
	if answer := callCheckAPI(t, r, "", "/v1/reserve", `{"check":{"attributes":{"descriptors":{"login":"a"}}}}`); answer.status != 200 || answer.fields["id"] == "" {
		t.Errorf("a reserve by a rule with a descriptor and on_status: %d %s; want a reservation", answer.status, answer.text)
	}
	_, err := rlsv3.NewRateLimitServiceClient(r.grpcClient(nil)).ShouldRateLimit(callContext(t), envoyRequest("192.0.2.2"))
	if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), "Envoy does not report the end of a request") {
		t.Errorf("Envoy's call for an in_flight limit returned the error %v; want INVALID_ARGUMENT with the reason", err)
	}
	forEnvoy := options(t, nil, map[string]string{"grpc": "127.0.0.1:0", "config": config, "envoy-config": envoyFolder(t, envoyLimits)})
	forEnvoy.Log = r.log.Logger()
	if err := Run(t.Context(), forEnvoy); err == nil || !strings.Contains(err.Error(), "rule jobs") || !strings.Contains(err.Error(), "Envoy does not report the end of a request") {
		t.Errorf("with envoy-config, Run returned %v; want an error that names the rule jobs", err)
	}
}

// A descriptor with hits_addend may report units that were already used. With envoy-reports=force,
// the default, such a report is charged even if it exceeds the limit. With spend, it is not.
func TestReportsAreForcedUnlessEnvoyReportsIsSpend(t *testing.T) {
	for setting, want := range map[string]uint32{"force": 0, "spend": 2} {
		t.Run(setting, func(t *testing.T) {
			r := start(t, nil, map[string]string{"grpc": "127.0.0.1:0", "envoy-config": envoyFolder(t, envoyLimits), "envoy-reports": setting})
			client := rlsv3.NewRateLimitServiceClient(r.grpcClient(nil))
			report := envoyRequest("a")
			report.Descriptors[0].HitsAddend = wrapperspb.UInt64(50)
			if answer, err := client.ShouldRateLimit(callContext(t), report); err != nil || answer.OverallCode != rlsv3.RateLimitResponse_OVER_LIMIT {
				t.Errorf("a report of 50 units got %v (error %v); want OVER_LIMIT", answer, err)
			}
			report.Descriptors[0].HitsAddend = wrapperspb.UInt64(0)
			if answer, err := client.ShouldRateLimit(callContext(t), report); err != nil || answer.Statuses[0].LimitRemaining != want {
				t.Errorf("after the report, the decision is %v (error %v); want %d left", answer, err, want)
			}
		})
	}
}
