package service

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/cmd/penstock/internal/settings"
	"github.com/penstock/penstock/httplimit"
	"github.com/penstock/penstock/internal/redistest"
)

func TestServiceSaysInOneLineWhatItDoes(t *testing.T) {
	r := start(t, nil, map[string]string{"store": "redis://user:hunter2@127.0.0.1:1/0?dial_timeout=1s"},
		func(context.Context, Deps) (Gate, Policy, error) {
			rules := []Rule{{Name: "a", Algorithm: "x"}, {Name: "a", Algorithm: "y"}, {Name: "b", Algorithm: "x"}}
			return noRules{}, Policy{File: "p.yaml", OnFailure: "requests pass", Rules: rules}, nil
		})
	line := r.log.lines("the gate is open")
	if len(line) != 1 {
		t.Fatalf("logged %s", r.log)
	}
	for _, want := range []string{"listen=" + r.Listen, "admin=" + r.Admin, "tls=false", "upstream=http://127.0.0.1:", "store=redis://127.0.0.1:1/0 ",
		"rules=2", "policy=p.yaml", `if_store_fails="requests pass"`} {
		if !strings.Contains(line[0], want) {
			t.Errorf("the line lacks %s: %s", want, line[0])
		}
	}
	r.wait()
	if strings.Contains(r.log.String(), "hunter2") {
		t.Errorf("the log shows the password: %s", r.log)
	}
}

// Memory is never unreachable: what on_failure says for that does not belong into its line.
func TestMemorySaysWhatHappensWhenItIsFull(t *testing.T) {
	r := startLimited(t, nil, "rules: [{name: all, per: everyone, limits: [{rate: 1/s}]}]\n", nil)
	const want = `counters="in this process, shared with no other; at 10 million, new clients are denied except where on_failure is open"`
	if len(r.log.lines("the gate is open", want)) != 1 || len(r.log.lines("if_store_fails")) != 0 {
		t.Errorf("no line says %s, or one says what memory does not do: %s", want, r.log)
	}
}

func TestRequestsPassAndAreNotLogged(t *testing.T) {
	r := start(t, hello, nil, nil)
	before := r.log.String()
	for range 10 {
		if body := r.mustGet("http://"+r.Listen+"/x", 200); body != "hello /x" {
			t.Errorf("got %q", body)
		}
	}
	if after := r.log.String(); after != before {
		t.Errorf("logged %s", strings.TrimPrefix(after, before))
	}
}

func TestHealthAndMetricsAreForThisMachineOnly(t *testing.T) {
	if s, err := settings.Load(settings.Sources{Flags: map[string]string{"demo": "true"}}); err != nil || !strings.HasPrefix(s.Admin, "127.0.0.1:") {
		t.Fatalf("by default the admin address is %s, %v", s.Admin, err)
	}
	r := start(t, hello, nil, nil)
	for _, path := range []string{"/livez", "/readyz", "/healthz", "/metrics"} {
		r.mustGet("http://"+r.Admin+path, 200)
		if body := r.mustGet("http://"+r.Listen+path, 200); body != "hello "+path {
			t.Errorf("where requests come in, %s answers %.60q", path, body)
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
			t.Errorf("the admin port is open on %s", ip)
		}
		tried++
	}
	t.Logf("counted: %d other addresses where nobody answers", tried)
}

func TestAdminCanBeOff(t *testing.T) {
	r := start(t, hello, map[string]string{"admin": "off"}, nil)
	if r.Admin != "" {
		t.Errorf("it listens on %s", r.Admin)
	}
	r.mustGet("http://"+r.Listen, 200)
}

// A watcher is a gate that counts, and turns away what asks for it.
type watcher struct {
	mu     sync.Mutex
	passed []string
	closed int
}

func (g *watcher) Trusts(*http.Request) bool { return false }

func (g *watcher) AllowOrigin(http.Header, *http.Request) {}

func (g *watcher) Middleware(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/denied") {
			w.WriteHeader(http.StatusTooManyRequests)
			return
		}
		g.mu.Lock()
		g.passed = append(g.passed, r.Method+" "+r.URL.Path)
		g.mu.Unlock()
		next.ServeHTTP(w, r)
	})
}

func (g *watcher) Close() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed++
	return nil
}

func TestGateIsPassedFirstAndClosedLast(t *testing.T) {
	gate := new(watcher)
	r := start(t, hello, nil, with(gate))
	r.mustGet("http://"+r.Listen+"/denied", 429)
	r.mustGet("http://"+r.Listen+"/x", 200)
	if gate.closed != 0 {
		t.Error("the gate was closed before the service")
	}
	r.wait()
	if fmt.Sprint(gate.passed) != "[GET /x]" || gate.closed != 1 {
		t.Errorf("%v passed; closed %d times", gate.passed, gate.closed)
	}
}

func TestDrainLetsRequestsEndAndNoneBegin(t *testing.T) {
	came, goOn := make(chan struct{}), make(chan struct{})
	r := start(t, http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.URL.Path == "/slow" {
			came <- struct{}{}
			<-goOn
		}
		io.WriteString(w, "done")
	}), map[string]string{"drain-delay": "300ms", "drain-timeout": "20s"}, nil)
	const slow = 20
	answers := make(chan string, slow)
	for range slow {
		go func() {
			status, body, err := get("http://" + r.Listen + "/slow")
			answers <- fmt.Sprint(status, body, err)
		}()
		<-came
	}
	r.stop()
	await(t, "readiness to fail", func() bool {
		status, body, _ := get("http://" + r.Admin + "/readyz")
		return status == 503 && body == "down: gate\n"
	})
	if status, _, err := get("http://" + r.Admin + "/livez"); status != 200 {
		t.Errorf("a gate that drains is alive: %d, %v", status, err)
	}
	await(t, "new connections to be refused", func() bool {
		conn, err := net.Dial("tcp", r.Listen)
		if err == nil {
			conn.Close()
		}
		return err != nil
	})
	select {
	case err := <-r.ended:
		t.Fatalf("it ended before its requests: %v", err)
	default:
	}
	close(goOn)
	for range slow {
		if answer := <-answers; answer != "200done<nil>" {
			t.Errorf("a request under way got %s", answer)
		}
	}
	r.wait()
	if r.log.lines("cut off") != nil {
		t.Errorf("logged %s", r.log)
	}
	t.Logf("counted: %d requests under way that ended well", slow)
}

func TestDrainDelayStillServes(t *testing.T) {
	r := start(t, hello, map[string]string{"drain-delay": "1s"}, nil)
	r.stop()
	await(t, "readiness to fail", func() bool {
		status, _, _ := get("http://" + r.Admin + "/readyz")
		return status == 503
	})
	if status, _, err := get("http://" + r.Listen); status != 200 || err != nil {
		t.Errorf("while load balancers have not noticed: %d, %v", status, err)
	}
}

func TestDrainEndsInTimeWhateverIsUnderWay(t *testing.T) {
	var gone sync.WaitGroup
	upstream := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		gone.Add(1)
		defer gone.Done()
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
	r := start(t, upstream, map[string]string{"drain-timeout": "100ms"}, nil)
	socket, stream := r.dial(), r.dial()
	io.WriteString(socket, "GET / HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
	io.WriteString(stream, "GET / HTTP/1.1\r\nHost: h\r\n\r\n")
	for _, conn := range []net.Conn{socket, stream} {
		if _, err := conn.Read(make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
	}
	r.wait()
	gone.Wait()
	for name, conn := range map[string]net.Conn{"WebSocket": socket, "stream": stream} {
		text, err := io.ReadAll(conn)
		if ne := net.Error(nil); errors.As(err, &ne) && ne.Timeout() || strings.Contains(string(text), "\r\n0\r\n") {
			t.Errorf("the %s did not break off: %q, %v", name, text, err)
		}
	}
	if r.log.lines("cut off", "requests=2") == nil {
		t.Errorf("logged %s", r.log)
	}
}

func TestStoreMayComeUpLater(t *testing.T) {
	server := redistest.Start(t)
	server.Kill()
	r := start(t, hello, map[string]string{"store": server.URL(), "store-timeout": "1s"}, nil)
	r.mustGet("http://"+r.Listen, 200)
	if body := r.mustGet("http://"+r.Admin+"/readyz", 200); body != "degraded: store\n" {
		t.Errorf("without its store the gate says %q", body)
	}
	if len(r.log.lines("level=WARN", "the store makes no decision")) != 1 {
		t.Errorf("logged %s", r.log)
	}
	if err := server.Restart(); err != nil {
		t.Fatal(err)
	}
	await(t, "the store to be found", func() bool {
		_, body, _ := get("http://" + r.Admin + "/readyz?verbose")
		return body == "gate ok\nstore ok\npolicy ok\nok\n"
	})
	if len(r.log.lines("level=INFO", "the store decides again")) != 1 { // though no request came
		t.Errorf("logged %s", r.log)
	}
	server.Pause()
	defer server.Resume()
	if body := r.mustGet("http://"+r.Admin+"/readyz", 200); body != "degraded: store\n" {
		t.Errorf("with a store that hangs the gate says %q", body)
	}
}

func TestWhatCannotStartLeavesNothingBehind(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	closed := new(watcher)
	for _, c := range []struct {
		name  string
		flags map[string]string
		gate  Builder
		want  error
		text  string
	}{
		{"port is taken", map[string]string{"listen": taken.Addr().String()}, nil, nil, "listen (--listen): listen tcp"},
		{"admin port is taken", map[string]string{"admin": taken.Addr().String()}, nil, nil, "admin (--admin): listen tcp"},
		{"store is required", map[string]string{"store": "redis://u:hunter2@127.0.0.1:1", "require-store": "true"}, nil, penstock.ErrUnavailable, "store redis://127.0.0.1:1 (--store): "},
		{"certificate is missing", map[string]string{"tls-cert": "/none.pem", "tls-key": "/none.pem"}, nil, settings.ErrInvalid, "tls-cert (--tls-cert)"},
		{"gate fails", nil, func(context.Context, Deps) (Gate, Policy, error) { return nil, Policy{}, penstock.ErrInvalid }, penstock.ErrInvalid, ""},
		{"gate is closed", map[string]string{"listen": taken.Addr().String()},
			func(context.Context, Deps) (Gate, Policy, error) { return closed, Policy{}, nil }, nil, "listen"},
	} {
		o := options(t, nil, c.flags)
		o.Gate = c.gate
		err := Run(t.Context(), o)
		if err == nil || c.want != nil && !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.text) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %v; want … %s", c.name, err, c.text)
		}
		noGoroutineIsLeft(t)
	}
	if closed.closed != 1 {
		t.Errorf("the gate was closed %d times", closed.closed)
	}
}

func TestChecksOfTheGateAreCounted(t *testing.T) {
	full := penstock.NewStoreError(penstock.ReasonOutOfMemory, errors.New("memory is full"))
	var deps Deps
	r := start(t, nil, nil, func(_ context.Context, d Deps) (Gate, Policy, error) {
		deps = d
		return noRules{}, Policy{Rules: []Rule{{Name: "a", Algorithm: "x"}}}, nil
	})
	for _, c := range []struct {
		event httplimit.Event
		want  string
	}{
		{httplimit.Event{Outcome: httplimit.Allowed, Latency: 1}, `outcome="allowed",rule="a"} 1`},
		{httplimit.Event{Outcome: httplimit.Denied}, `outcome="denied",rule="a"} 1`},
		{httplimit.Event{Outcome: httplimit.ShadowDenied}, `rate_limiter_shadow_rejected_total{algorithm="x",limit="",rule="a"} 1`},
		{httplimit.Event{Outcome: httplimit.ShadowAllowed}, `rate_limiter_shadow_allowed_total{algorithm="x",limit="",rule="a"} 1`},
		{httplimit.Event{Outcome: httplimit.Refused}, `rate_limiter_rejected_total{algorithm="x",limit="",rule="a"} 2`},
		{httplimit.Event{Outcome: httplimit.Exempt}, `rate_limiter_allowed_total{algorithm="x",limit="",rule="a"} 2`},
		{httplimit.Event{Outcome: httplimit.Allowed, Source: penstock.FromLease}, `rate_limiter_decisions_total{source="lease"} 1`},
		{httplimit.Event{Outcome: httplimit.FailedOpen, Source: penstock.FromOpen, Err: full}, `outcome="failed_open",rule="a"} 1`},
		{httplimit.Event{Outcome: httplimit.FailedClosed, Source: penstock.FromClosed, Err: full}, `rate_limiter_decisions_total{source="closed"} 1`},
		{httplimit.Event{Outcome: httplimit.FailedClosed, Err: full}, `outcome="failed_closed",rule="a"} 2`},
		{httplimit.Event{Outcome: httplimit.FailedClosed, Err: penstock.ErrInvalid}, `rate_limiter_errors_total{reason="invalid"} 1`},
		{httplimit.Event{Outcome: httplimit.Abandoned, Err: context.Canceled}, `rate_limiter_decisions_total{source="store"} 4`},
	} {
		c.event.Rule, c.event.Algorithm = "a", "x"
		deps.Observe(c.event)
		if page := r.mustGet("http://"+r.Admin+"/metrics", 200); !strings.Contains(page, c.want) {
			t.Errorf("after %+v the page lacks %s", c.event, c.want)
		}
	}
	if body := r.mustGet("http://"+r.Admin+"/readyz", 200); body != "degraded: store\n" {
		t.Errorf("while the store fails the gate says %q", body)
	}
	if n := r.metric(`rate_limiter_errors_total{reason="out_of_memory"}`); n != "3" {
		t.Errorf("what memory did not decide is counted %s times; want 3", n)
	}
	deps.Reloaded(Policy{}, errors.New("line 3: no"))
	deps.Reloaded(Policy{Rules: []Rule{{Name: "b", Algorithm: "x"}}}, nil)
	page := r.mustGet("http://"+r.Admin+"/metrics", 200)
	if !strings.Contains(page, `rule="b"} 0`) || strings.Contains(page, `rule="a"`) || !strings.Contains(page, `reloads_total{outcome="failure"} 1`) {
		t.Error("the page does not follow the rules")
	}
}
