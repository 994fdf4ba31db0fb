package service

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/cmd/penstock/internal/serve/settings"
	"github.com/penstock/penstock/internal/testing/effort"
	"github.com/penstock/penstock/internal/testing/eventually"
	"github.com/penstock/penstock/internal/testing/redistest"
)

func TestStartLogsOneLineThatDescribesTheService(t *testing.T) {
	const policy = `
rules:
  - {name: a, match: {path: /a}, per: global, limits: [{rate: 1/s, on_failure: open}, {rate: 9/d, on_failure: open}]}
  - {name: b, per: global, limits: [{rate: 1/s}]}
`
	flags := limitedBy(t, policy, map[string]string{"store": "redis://user:hunter2@127.0.0.1:1/0?dial_timeout=1s"})
	r := start(t, nil, flags)
	lines := r.log.Lines("listening")
	if len(lines) != 1 {
		t.Fatalf("%d lines contain \"listening\"; want 1: %s", len(lines), r.log)
	}
	for _, want := range []string{"listen=" + r.Listen, "admin_listen=" + r.Admin, "tls=false", "upstream=http://127.0.0.1:", "store=redis://127.0.0.1:1/0 ",
		"rules=2", "policy=" + flags["config"], `on_store_failure="1 limit local, 2 limits open"`} {
		if !strings.Contains(lines[0], want) {
			t.Errorf("the line lacks %s: %s", want, lines[0])
		}
	}
	r.wait()
	if strings.Contains(r.log.String(), "hunter2") {
		t.Errorf("the log shows the password: %s", r.log)
	}
}

// The memory store is never unreachable. So the line "listening" shows what happens when memory is
// full, and not the failure modes of on_failure.
func TestStartLogsWhatAFullMemoryStoreDoes(t *testing.T) {
	r := startLimited(t, nil, "rules: [{name: all, per: global, limits: [{rate: 1/s}]}]\n", nil)
	const want = `counters="in this process, not shared; at 10000000 counters, new clients are rejected unless on_failure is open"`
	if len(r.log.Lines("listening", want)) != 1 || len(r.log.Lines("on_store_failure")) != 0 {
		t.Errorf("no line has %s, or a line has on_store_failure: %s", want, r.log)
	}
}

// The line "listening" also describes the limits of Envoy's files, and what REDIS_PORT alone does.
func TestStartLogsTheLimitsOfEnvoyAndALonePort(t *testing.T) {
	dir := envoyFolder(t, envoyLimits)
	for _, row := range []struct{ mode, onFailure, want string }{
		{"atomic", "open", "open"}, {"atomic", "default", "local"}, {"exact", "default", "error"},
	} {
		r := start(t, nil, map[string]string{"grpc": "127.0.0.1:0", "envoy-config": dir, "envoy-mode": row.mode, "envoy-on-failure": row.onFailure,
			"store": "redis://127.0.0.1:1/0?dial_timeout=1s"})
		want := fmt.Sprintf("on_store_failure=%q", "limits of Envoy "+row.want)
		if len(r.log.Lines("listening", "rules=0", "envoy_limits="+dir, want)) != 1 {
			t.Errorf("mode %s, on_failure %s: the line \"listening\" lacks the limits of Envoy, or %s: %s", row.mode, row.onFailure, want, r.log)
		}
		if len(r.log.Lines("REDIS_PORT")) != 0 {
			t.Errorf("the log names REDIS_PORT, which is not set: %s", r.log)
		}
		r.wait()
	}
	r := start(t, hello, nil, func(o *Options) { o.Settings.HasLonePort = true })
	if len(r.log.Lines("level=INFO", "REDIS_PORT has no effect without REDIS_HOST")) != 1 {
		t.Errorf("the log does not say that REDIS_PORT has no effect: %s", r.log)
	}
}

func TestAllowedRequestsAreNotLogged(t *testing.T) {
	r := start(t, hello, nil)
	before := r.log.String()
	for range 10 {
		if body := r.mustGet("http://"+r.Listen+"/x", 200); body != "hello /x" {
			t.Errorf("an allowed request got %q; want the upstream's response", body)
		}
	}
	if after := r.log.String(); after != before {
		t.Errorf("allowed requests were logged: %s", strings.TrimPrefix(after, before))
	}
}

func TestAdminAddressIsLocalByDefault(t *testing.T) {
	if s, err := settings.Load(settings.Sources{Flags: map[string]string{"demo": "true"}}); err != nil || !strings.HasPrefix(s.AdminListen, "127.0.0.1:") {
		t.Fatalf("the default admin address is %s (error %v); want one on 127.0.0.1", s.AdminListen, err)
	}
	r := start(t, hello, nil)
	for _, path := range []string{"/livez", "/readyz", "/healthz", "/metrics"} {
		r.mustGet("http://"+r.Admin+path, 200)
		if body := r.mustGet("http://"+r.Listen+path, 200); body != "hello "+path {
			t.Errorf("on the listener of clients, %s responds %.60q; want the upstream's response", path, body)
		}
	}
	_, port, _ := net.SplitHostPort(r.Admin)
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	tried := 0
	for _, a := range addresses {
		ip := a.(*net.IPNet).IP
		if ip.IsLoopback() || ip.IsLinkLocalUnicast() {
			continue
		}
		if conn, err := net.DialTimeout("tcp", net.JoinHostPort(ip.String(), port), time.Second); err == nil {
			conn.Close()
			t.Errorf("the admin server also listens on %s; want only 127.0.0.1", ip)
		}
		tried++
	}
	t.Logf("counted: %d other addresses without a listener", tried)
}

func TestAdminCanBeOff(t *testing.T) {
	r := start(t, hello, map[string]string{"admin-listen": "off"})
	if r.Admin != "" {
		t.Errorf("the admin server listens on %s; want none", r.Admin)
	}
	r.mustGet("http://"+r.Listen, 200)
}

func TestDeniedRequestsDoNotReachTheUpstream(t *testing.T) {
	const policy = "rules: [{name: one, match: {path: /denied}, per: global, limits: [{rate: 1/d}]}]\n"
	var served []string
	upstream := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { served = append(served, r.URL.Path) })
	r := startLimited(t, upstream, policy, nil)
	r.mustGet("http://"+r.Listen+"/denied", 200)
	r.mustGet("http://"+r.Listen+"/denied", 429)
	r.mustGet("http://"+r.Listen+"/x", 200)
	r.wait()
	if fmt.Sprint(served) != "[/denied /x]" {
		t.Errorf("the upstream served %v; want only the allowed requests", served)
	}
}

func TestDrainCompletesRequestsAndAcceptsNoNewOnes(t *testing.T) {
	arrived, release := make(chan struct{}), make(chan struct{})
	r := start(t, http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.URL.Path == "/slow" {
			arrived <- struct{}{}
			<-release
		}
		io.WriteString(w, "done")
	}), map[string]string{"drain-delay": "300ms", "drain-timeout": "20s"})
	const slow = 20 // requests in flight
	answers := make(chan string, slow)
	for range slow {
		go func() {
			status, body, err := get("http://" + r.Listen + "/slow")
			answers <- fmt.Sprintf("%d %s %v", status, body, err)
		}()
		<-arrived
	}
	r.stop()
	eventually.True(t, "readiness to fail", func() bool {
		status, body, _ := get("http://" + r.Admin + "/readyz")
		return status == 503 && body == "down: service\n"
	})
	if status, _, err := get("http://" + r.Admin + "/livez"); status != 200 {
		t.Errorf("during the drain, /livez is %d (error %v); want 200", status, err)
	}
	eventually.True(t, "new connections to be refused", func() bool {
		conn, err := net.Dial("tcp", r.Listen)
		if err == nil {
			conn.Close()
		}
		return err != nil
	})
	select {
	case err := <-r.ended:
		t.Fatalf("the service ended before its requests in flight: %v", err)
	default:
	}
	close(release)
	for range slow {
		if answer := <-answers; answer != "200 done <nil>" {
			t.Errorf("a request in flight got %q; want 200, the body \"done\" and no error", answer)
		}
	}
	r.wait()
	if r.log.Lines("cut off") != nil {
		t.Errorf("the log reports requests that were cut off, but all completed: %s", r.log)
	}
	t.Logf("counted: %d requests in flight that completed", slow)
}

func TestRequestsAreServedDuringTheDrainDelay(t *testing.T) {
	t.Parallel()
	r := startWithoutLeakCheck(t, hello, map[string]string{"drain-delay": "5s"}) // long enough for a request on a busy machine
	r.stop()
	eventually.True(t, "readiness to fail", func() bool {
		status, _, _ := get("http://" + r.Admin + "/readyz")
		return status == 503
	})
	response, err := http.Get("http://" + r.Listen)
	if err != nil {
		t.Fatalf("a request during the drain delay failed: %v", err)
	}
	response.Body.Close()
	if response.StatusCode != 200 || !response.Close {
		t.Errorf("during the drain delay, the status is %d, and Close is %t; want 200 and true", response.StatusCode, response.Close)
	}
}

func TestDrainCutsOffRequestsAtItsTimeout(t *testing.T) {
	var handlers sync.WaitGroup
	upstream := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		handlers.Add(1)
		defer handlers.Done()
		if r.Header.Get("Upgrade") != "" {
			conn, _, err := http.NewResponseController(w).Hijack()
			if err != nil {
				return
			}
			defer conn.Close()
			io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
			io.Copy(io.Discard, conn)
			return
		}
		io.WriteString(w, "begins")
		http.NewResponseController(w).Flush()
		<-r.Context().Done()
	})
	r := start(t, upstream, map[string]string{"drain-timeout": "100ms"})
	socket, stream := r.dial(), r.dial()
	io.WriteString(socket, "GET / HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
	io.WriteString(stream, "GET / HTTP/1.1\r\nHost: h\r\n\r\n")
	for _, conn := range []net.Conn{socket, stream} {
		if _, err := conn.Read(make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
	}
	r.wait()
	handlers.Wait()
	for name, conn := range map[string]net.Conn{"WebSocket": socket, "stream": stream} {
		text, err := io.ReadAll(conn)
		isComplete := strings.Contains(string(text), "\r\n0\r\n") // the last chunk of a response
		if isTimeout(err) || isComplete {
			t.Errorf("the %s was not cut off: its client read %q, and the error %v", name, text, err)
		}
	}
	if r.log.Lines("cut off", "requests=2") == nil {
		t.Errorf("the log does not report that 2 requests were cut off: %s", r.log)
	}
}

func TestServiceFindsAStoreThatStartsLater(t *testing.T) {
	effort.SkipUnderRace(t)
	server := redistest.Start(t)
	server.Kill()
	r := start(t, hello, map[string]string{"store": server.URL(), "store-timeout": "1s"})
	r.mustGet("http://"+r.Listen, 200)
	if body := r.mustGet("http://"+r.Admin+"/readyz", 200); body != "degraded: store\n" {
		t.Errorf("without its store, /readyz is %q; want degraded: store", body)
	}
	if n := len(r.log.Lines("level=WARN", "the store makes no decision")); n != 1 {
		t.Errorf("%d lines report a start without the store; want 1: %s", n, r.log)
	}
	if err := server.Restart(); err != nil {
		t.Fatal(err)
	}
	eventually.True(t, "the store to be found", func() bool {
		_, body, _ := get("http://" + r.Admin + "/readyz?verbose")
		return body == "service ok\nstore ok\npolicy ok\nok\n"
	})
	// No request was sent since, so the self-test has noticed the end of the outage.
	if n := len(r.log.Lines("level=INFO", "the store decides again")); n != 1 {
		t.Errorf("%d lines report that the store decides again; want 1: %s", n, r.log)
	}
	server.Pause()
	defer server.Resume()
	if body := r.mustGet("http://"+r.Admin+"/readyz", 200); body != "degraded: store\n" {
		t.Errorf("with a store that hangs, /readyz is %q; want degraded: store", body)
	}
}

func TestFailedStartLeavesNothingRunning(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	for _, c := range []struct {
		name  string
		flags map[string]string
		want  error  // what the error wraps; nil: not checked
		text  string // a part of the error
	}{
		{name: "port is taken", flags: map[string]string{"listen": taken.Addr().String()}, want: nil, text: "listen (--listen): listen tcp"},
		{name: "admin port is taken", flags: map[string]string{"admin-listen": taken.Addr().String()}, want: nil, text: "admin-listen (--admin-listen): listen tcp"},
		{name: "store is required", flags: map[string]string{"store": "redis://u:hunter2@127.0.0.1:1", "require-store": "true"}, want: penstock.ErrUnavailable, text: "store redis://127.0.0.1:1 (--store): "},
		{name: "certificate is missing", flags: map[string]string{"tls-cert": "/none.pem", "tls-key": "/none.pem"}, want: settings.ErrInvalid, text: "tls-cert (--tls-cert)"},
		{name: "policy is missing", flags: map[string]string{"config": "/none.yaml"}, want: os.ErrNotExist, text: "/none.yaml"},
	} {
		o := options(t, nil, c.flags)
		err := Run(t.Context(), o)
		if err == nil || c.want != nil && !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: Run returned %v; want an error with the text %q, that wraps %v if this is not nil", c.name, err, c.text, c.want)
		} else if strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: the error shows the password: %v", c.name, err)
		}
		awaitNoGoroutines(t)
	}
}
