package service

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/cmd/penstock/internal/testing/logbuffer"
	"github.com/penstock/penstock/grpclimit/penstockv1"
	"github.com/penstock/penstock/internal/testing/eventually"
)

// oncePerHour denies the second request of an address within an hour. Tests state the address in
// X-Forwarded-For.
const oncePerHour = `
http: {trusted_proxies: [127.0.0.1, unix]}
rules: [{name: api, match: {path: /api/**}, per: ip, limits: [{rate: 1/h}]}]
`

// forwardAuth sends the forward-auth call for a client's GET of a path, and returns the status.
func forwardAuth(t *testing.T, client *http.Client, base, address, path string) int {
	t.Helper()
	r, err := http.NewRequest("GET", base+"/auth/forward", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header = http.Header{
		"X-Forwarded-Method": {"GET"}, "X-Forwarded-Uri": {path}, "X-Forwarded-Host": {"example.com"}, "X-Forwarded-For": {address},
	}
	res, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	io.Copy(io.Discard, res.Body)
	return res.StatusCode
}

func TestServiceWithoutUpstreamServesCallers(t *testing.T) {
	onStores(t, func(t *testing.T, flags map[string]string) {
		all := map[string]string{"api": "127.0.0.1:0"}
		maps.Copy(all, flags)
		r := startLimited(t, nil, oncePerHour, all)
		if r.Listen != "" {
			t.Errorf("there is no upstream, but the proxy listens on %s", r.Listen)
		}
		base := "http://" + r.API
		for _, c := range []struct {
			address, path string
			status        int
		}{
			{address: "192.0.2.1", path: "/api/a", status: 200},
			{address: "192.0.2.1", path: "/api/b", status: 429},
			{address: "192.0.2.2", path: "/api/a", status: 200},
			{address: "192.0.2.1", path: "/other", status: 200},
		} {
			if status := forwardAuth(t, http.DefaultClient, base, c.address, c.path); status != c.status {
				t.Errorf("a request of %s for %s got %d; want %d", c.address, c.path, status, c.status)
			}
		}
		r.mustGet(base+"/nothing", 404)
		if n := r.metric(`rate_limiter_rejected_total{algorithm="token-bucket",limit="hour",rule="api"}`); n != "1" {
			t.Errorf("%q denials are counted; want 1", n)
		}
	})
}

func TestProxyAndCallersShareLimits(t *testing.T) {
	r := startLimited(t, hello, oncePerHour, map[string]string{"api": "127.0.0.1:0"})
	if res := r.mustSend("GET", "/api/a", "X-Forwarded-For: 192.0.2.1"); res.StatusCode != 200 {
		t.Fatalf("the proxy returned %d; want 200", res.StatusCode)
	}
	if status := forwardAuth(t, http.DefaultClient, "http://"+r.API, "192.0.2.1", "/api/a"); status != 429 {
		t.Errorf("after the proxy had used up the limit, forward-auth returned %d; want 429", status)
	}
}

func TestUnixSocketOfCallers(t *testing.T) {
	path := filepath.Join(t.TempDir(), "api.sock")
	abandoned, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	abandoned.SetUnlinkOnClose(false)
	abandoned.Close() // the file stays, as after a crash
	r := startLimited(t, nil, oncePerHour, map[string]string{"api": "unix:" + path})
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", path)
	}}}
	for _, want := range []int{200, 429} {
		if status := forwardAuth(t, client, "http://limiter", "192.0.2.1", "/api/a"); status != want {
			t.Errorf("through the socket, the status is %d; want %d", status, want)
		}
	}
	second := options(t, nil, limitedBy(t, oncePerHour, map[string]string{"api": "unix:" + path}))
	if err := Run(t.Context(), second); err == nil || !strings.Contains(err.Error(), "another process listens") {
		t.Errorf("with the socket of another service, Run returned %v; want an error that another process listens", err)
	}
	r.wait()
	if _, err := os.Stat(path); err == nil {
		t.Error("the file of the socket still exists after the service has ended")
	}

	file := filepath.Join(t.TempDir(), "file")
	replaceFile(t, file, "precious")
	if err := Run(t.Context(), options(t, nil, limitedBy(t, oncePerHour, map[string]string{"api": "unix:" + file}))); err == nil {
		t.Error("a service has started at the path of an ordinary file; want an error")
	}
	if text, err := os.ReadFile(file); err != nil || string(text) != "precious" {
		t.Errorf("the file is now %q (error %v); want it unchanged", text, err)
	}
}

// Rules that forward-auth cannot enforce are rejected at the start and by a reload.
func TestRulesThatForwardAuthCannotEnforceAreRejected(t *testing.T) {
	const unenforceable = "http: {trusted_proxies: [127.0.0.1]}\nrules: [{name: slots, match: {path: /**}, per: ip, limits: [{in_flight: 3}]}]\n"
	flags := limitedBy(t, unenforceable, map[string]string{"api": "127.0.0.1:0"})
	err := Run(t.Context(), options(t, nil, flags))
	if err == nil || !strings.Contains(err.Error(), "slots") || !strings.Contains(err.Error(), "in_flight") {
		t.Errorf("with an in_flight rule, Run returned %v; want an error that names the rule", err)
	}
	replaceFile(t, flags["config"], oncePerHour)
	r := start(t, nil, flags)
	replaceFile(t, flags["config"], unenforceable)
	eventually.True(t, "the reload to fail", func() bool { return strings.Contains(r.log.String(), "policy reload failed") })
	if status := forwardAuth(t, http.DefaultClient, "http://"+r.API, "192.0.2.1", "/api/a"); status != 200 {
		t.Errorf("after a failed reload, the first request got %d; want 200", status)
	}
	if status := forwardAuth(t, http.DefaultClient, "http://"+r.API, "192.0.2.1", "/api/a"); status != 429 {
		t.Errorf("after a failed reload, the second request got %d; want 429 by the old rules", status)
	}
}

func TestRuleNamedLikeCLThrottleIsRejected(t *testing.T) {
	const clash = "rules: [{name: cl.throttle, match: {path: /**}, per: ip, limits: [{name: cl.throttle, rate: 3/h}]}]\n"
	err := Run(t.Context(), options(t, nil, limitedBy(t, clash, map[string]string{"resp": "127.0.0.1:0"})))
	if err == nil || !strings.Contains(err.Error(), "rename the rule") {
		t.Errorf("with a rule that shares counters with CL.THROTTLE, Run returned %v; want an error", err)
	}
	// Without CL.THROTTLE, the name is allowed.
	start(t, nil, limitedBy(t, clash, map[string]string{"api": "127.0.0.1:0"}))
}

func TestCallersNeedACertificate(t *testing.T) {
	authority := newAuthority(t)
	certificate := authority.issue(1)
	r := startLimited(t, nil, oncePerHour, map[string]string{
		"api": "127.0.0.1:0", "caller-tls-cert": authority.path("cert.pem"), "caller-tls-key": authority.path("key.pem"),
		"caller-client-ca": authority.path("ca.pem"),
	})
	newClient := func(certificates ...tls.Certificate) *http.Client {
		return &http.Client{Transport: &http.Transport{
			DisableKeepAlives: true, TLSClientConfig: &tls.Config{RootCAs: authority.pool, Certificates: certificates},
		}}
	}
	if _, err := newClient().Get("https://" + r.API + "/auth/forward"); err == nil {
		t.Error("a caller without a certificate got a response; want a failed handshake")
	}
	if status := forwardAuth(t, newClient(certificate), "https://"+r.API, "192.0.2.1", "/api/a"); status != 200 {
		t.Errorf("a caller with a certificate got %d; want 200", status)
	}
}

// doRedis sends one command to the RESP listener and returns the reply as text.
func (r *testService) doRedis(args ...string) string {
	r.Helper()
	conn, err := net.Dial("tcp", r.RESP)
	if err != nil {
		r.Fatal(err)
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(patience))
	fmt.Fprintf(conn, "*%d\r\n", len(args))
	for _, arg := range args {
		fmt.Fprintf(conn, "$%d\r\n%s\r\n", len(arg), arg)
	}
	io.WriteString(conn, "QUIT\r\n")
	text, err := io.ReadAll(conn)
	if err != nil {
		r.Fatal(err)
	}
	reply, _ := strings.CutSuffix(string(text), "+OK\r\n") // the reply to QUIT
	return reply
}

func TestRedisClientsGetDecisions(t *testing.T) {
	onStores(t, func(t *testing.T, flags map[string]string) {
		all := map[string]string{"api": "127.0.0.1:0", "resp": "127.0.0.1:0"}
		maps.Copy(all, flags)
		r := startLimited(t, nil, oncePerHour, all)
		// The command is CL.THROTTLE key max_burst count period [quantity], with the period in seconds.
		// The reply has 0 or 1 (denied), the limit, the units left, and the seconds until a retry (-1:
		// none is needed) and until all units are back.
		for _, c := range []struct {
			command, reply string
		}{
			{"CL.THROTTLE user123 0 1 3600", "*5\r\n:0\r\n:1\r\n:0\r\n:-1\r\n:3600\r\n"},
			{"CL.THROTTLE user123 0 1 3600", "*5\r\n:1\r\n:1\r\n:0\r\n:3600\r\n:3600\r\n"},
			{"PING", "+PONG\r\n"},
		} {
			if reply := r.doRedis(strings.Fields(c.command)...); reply != c.reply {
				t.Errorf("the reply to %s is %q; want %q", c.command, reply, c.reply)
			}
		}
	})
}

func TestRedisClientsNeedNoPolicy(t *testing.T) {
	r := start(t, nil, map[string]string{"resp": "127.0.0.1:0"})
	if reply := r.doRedis("CL.THROTTLE", "user123", "15", "30", "60", "1"); reply != "*5\r\n:0\r\n:16\r\n:15\r\n:-1\r\n:2\r\n" {
		t.Errorf("the reply to redis-cell's example is %q; want 15 of 16 left", reply)
	}
	if reply := r.doRedis("PENSTOCK.CHECK", "search", "user123"); !strings.Contains(reply, "has no policy") {
		t.Errorf("PENSTOCK.CHECK without a policy replied %q; want an error", reply)
	}
}

func TestRedisClientsShareTheCountersOfOthers(t *testing.T) {
	r := startLimited(t, nil, `
http: {trusted_proxies: [127.0.0.1]}
rules:
  - {name: api, match: {path: /api/**}, per: ip, limits: [{rate: 1/h}]}
  - {name: both, match: {path: /x}, limits: [{name: a, rate: 1/h, per: ip}, {name: k, rate: 1/h, per: {key: header X-Key}}]}
`,
		map[string]string{"api": "127.0.0.1:0", "resp": "127.0.0.1:0"})
	if status := forwardAuth(t, http.DefaultClient, "http://"+r.API, "192.0.2.1", "/api/a"); status != 200 {
		t.Fatalf("forward-auth returned %d; want 200", status)
	}
	// After the five numbers of CL.THROTTLE, the reply has the outcome and the limit that denies.
	for _, c := range []struct{ rule, key, reply string }{
		{rule: "api", key: "ip:192.0.2.1", reply: "*7\r\n:1\r\n:1\r\n:0\r\n:3600\r\n:3600\r\n$6\r\ndenied\r\n$8\r\napi.hour\r\n"},
		{rule: "api", key: "192.0.2.1", reply: "-ERR the limit hour does not count under such a key; write one such as ip:42\r\n"},
		{rule: "api", key: "user:192.0.2.1", reply: "-ERR the limit hour does not count under such a key; write one such as ip:42\r\n"},
		{rule: "both", key: "ip:192.0.2.1", reply: "-ERR the limit k does not count under such a key; write one such as key:42\r\n"},
		{rule: "none", key: "ip:192.0.2.1", reply: "-ERR the policy has no rule of this name\r\n"},
	} {
		if reply := r.doRedis("PENSTOCK.CHECK", c.rule, c.key); reply != c.reply {
			t.Errorf("the reply to PENSTOCK.CHECK %s %s is %q; want %q", c.rule, c.key, reply, c.reply)
		}
	}
}

func TestRedisClientsNeedTheToken(t *testing.T) {
	const token = "0123456789abcdef"
	r := startLimited(t, nil, oncePerHour, map[string]string{"resp": "127.0.0.1:0", "caller-token": token})
	if reply := r.doRedis("CL.THROTTLE", "k", "1", "1", "60"); !strings.HasPrefix(reply, "-NOAUTH") {
		t.Errorf("without the token, the reply is %q; want NOAUTH", reply)
	}
	if reply := r.doRedis("AUTH", token); reply != "+OK\r\n" {
		t.Errorf("with the token, the reply is %q; want OK", reply)
	}
	if reply := r.doRedis("AUTH", token[1:]); !strings.HasPrefix(reply, "-WRONGPASS") {
		t.Errorf("with a wrong token, the reply is %q; want WRONGPASS", reply)
	}
	if text := r.log.String(); strings.Contains(text, token) {
		t.Errorf("the log shows the token: %s", text)
	}
}

// CL.THROTTLE has a series of its own, with a policy and without one. The series stays after a
// reload.
func TestCallsOfRedisClientsAreCounted(t *testing.T) {
	const series = `{algorithm="token-bucket",limit="cl.throttle",rule="cl.throttle"}`
	onStores(t, func(t *testing.T, flags map[string]string) {
		all := map[string]string{"resp": "127.0.0.1:0"}
		maps.Copy(all, flags)
		all = limitedBy(t, oncePerHour, all)
		r := start(t, nil, all)
		checkCounts := func(when string, counts map[string]string) {
			t.Helper()
			for name, want := range counts {
				if got := r.metric(name); got != want {
					t.Errorf("%s: %s is %q; want %s", when, name, got, want)
				}
			}
		}
		checkCounts("at the start", map[string]string{"rate_limiter_allowed_total" + series: "0", "rate_limiter_rejected_total" + series: "0"})
		for range 20 { // a max_burst of 13 admits 14 calls
			r.doRedis("CL.THROTTLE", "k", "13", "1", "3600")
		}
		r.doRedis("CL.THROTTLE", "k", "13", "1", "3600", "0") // reads, and charges nothing
		counts := map[string]string{
			"rate_limiter_allowed_total" + series: "14", "rate_limiter_rejected_total" + series: "6", "rate_limiter_latency_seconds_count" + series: "20",
			`rate_limiter_allowed_total{algorithm="other",limit="other",rule="other"}`:  "0",
			`rate_limiter_rejected_total{algorithm="other",limit="other",rule="other"}`: "0",
		}
		checkCounts("after 20 calls", counts)
		replaceFile(t, all["config"], noLimits)
		eventually.True(t, "the reload", func() bool { return strings.Contains(r.log.String(), "policy reloaded") })
		checkCounts("after a reload", counts)
		r.doRedis("THROTTLE", "k", "13", "1", "3600") // the command of throttlecrab
		checkCounts("after another call", map[string]string{"rate_limiter_rejected_total" + series: "7"})
	})
	r := start(t, nil, map[string]string{"resp": "127.0.0.1:0"})
	r.doRedis("CL.THROTTLE", "k", "13", "1", "3600")
	if n := r.metric("rate_limiter_allowed_total" + series); n != "1" {
		t.Errorf("without a policy, %q calls are counted; want 1", n)
	}
	r.wait()
	withoutRESP := start(t, nil, limitedBy(t, oncePerHour, map[string]string{"api": "127.0.0.1:0"}))
	if n := withoutRESP.metric("rate_limiter_allowed_total" + series); n != "" {
		t.Errorf("without a RESP listener, the series of CL.THROTTLE is %s; want none", n)
	}
}

func TestWrongPasswordsAreCountedAndLogged(t *testing.T) {
	const token, wrong = "0123456789abcdef", "a-wrong-password"
	for _, level := range []slog.Level{slog.LevelInfo, slog.LevelDebug} {
		log := new(logbuffer.Buffer)
		r := start(t, nil, limitedBy(t, oncePerHour, map[string]string{"resp": "127.0.0.1:0", "caller-token": token}), func(o *Options) {
			o.Log = slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: level}))
		})
		for range 5 {
			r.doRedis("AUTH", wrong)
		}
		r.doRedis("CL.THROTTLE", "k", "1", "1", "60")
		r.doRedis("AUTH", token)
		for reason, want := range map[string]string{"wrong_password": "5", "no_password": "1"} {
			if n := r.metric(`rate_limiter_resp_auth_failures_total{reason="` + reason + `"}`); n != want {
				t.Errorf("%q refusals are counted with reason %s; want %s", n, reason, want)
			}
			if lines := log.Lines("level=WARN", "a Redis client was refused", "reason="+reason); len(lines) != 1 || strings.Contains(lines[0], "client=") {
				t.Errorf("the lines about refusals with reason %s are %q; want one, without the client's address", reason, lines)
			}
		}
		want := 0
		if level == slog.LevelDebug {
			want = 6 // 5 with a wrong password, and 1 without
		}
		if lines := log.Lines("level=DEBUG", "client=127.0.0.1:"); len(lines) != want {
			t.Errorf("%d lines of level debug have an address; want %d", len(lines), want)
		}
		if text := log.String(); strings.Contains(text, token) || strings.Contains(text, wrong) {
			t.Errorf("the log shows a password: %s", text)
		}
		r.wait()
	}
}

func TestConnectedRedisClientsAreCounted(t *testing.T) {
	r := start(t, nil, map[string]string{"resp": "127.0.0.1:0"})
	const series = "rate_limiter_resp_connections"
	var conns []net.Conn
	for range 3 {
		conn, err := net.Dial("tcp", r.RESP)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		conns = append(conns, conn)
	}
	eventually.True(t, "3 clients to be counted", func() bool { return r.metric(series) == "3" })
	conns[0].Close()
	eventually.True(t, "only 2 clients to be connected", func() bool { return r.metric(series) == "2" })
}

// A service whose callers state their limits needs no policy. The migration page of gubernator
// shows how to start it, and a call.
func TestCallerLimitsNeedNoPolicy(t *testing.T) {
	page, err := os.ReadFile("../../../../../docs/migrate/gubernator.md")
	if err != nil {
		t.Fatal(err)
	}
	line := regexp.MustCompile("`penstock serve ([^`]*)`").FindStringSubmatch(string(page))
	pattern := regexp.MustCompile("(?s)<!-- check -->\n```json\n(.*?)```")
	call := pattern.FindStringSubmatch(string(page))
	tenants, err := os.ReadFile("../../../../../docs/howto/multi-tenant.md") // the call there has two limits
	if err != nil {
		t.Fatal(err)
	}
	callWithTwoLimits := pattern.FindStringSubmatch(string(tenants))
	if line == nil || call == nil || callWithTwoLimits == nil {
		t.Fatal("a page has no command or no call; want one command, and a call in each page")
	}
	arguments := strings.Fields(line[1])
	want := []string{"--api", "127.0.0.1:8090", "--allow-caller-limits"}
	if !slices.Equal(arguments, want) {
		t.Fatalf("the page has the arguments %q; want %q, which this test starts with another port", arguments, want)
	}
	for _, listener := range []string{"api", "grpc"} {
		t.Run(listener, func(t *testing.T) {
			r := start(t, nil, map[string]string{listener: "127.0.0.1:0", "allow-caller-limits": "true"})
			if listener == "grpc" {
				limit := &penstockv1.Limit{Rate: "1/h"}
				answer, err := penstockv1.NewLimitServiceClient(r.grpcClient(nil)).Check(callContext(t), &penstockv1.CheckRequest{Key: "a", Limits: []*penstockv1.Limit{limit}})
				if err != nil || !answer.Allowed {
					t.Errorf("a call with a caller limit returned %v (error %v); want it allowed", answer, err)
				}
				return
			}
			for n := 1; n <= 11; n++ {
				if answer := callCheckAPI(t, r, "", "/v1/check", call[1]); answer.status != 200 || answer.fields["allowed"] != true && n == 1 {
					t.Errorf("call %d of the page: %d %s; want it answered, and the first one allowed", n, answer.status, answer.text)
				}
			}
			if answer := callCheckAPI(t, r, "", "/v1/check", callWithTwoLimits[1]); answer.status != 200 || answer.fields["allowed"] != true {
				t.Errorf("the call of docs/howto/multi-tenant.md: %d %s; want it allowed", answer.status, answer.text)
			}
		})
	}
}
