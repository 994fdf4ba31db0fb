package admin

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func TestReadinessIsTheStateOfTheWorstCheck(t *testing.T) {
	for _, c := range []struct {
		store, service State
		path           string
		status         int
		body           string
	}{
		{store: OK, service: OK, path: "/readyz", status: 200, body: "ok\n"},
		{store: OK, service: OK, path: "/readyz?verbose", status: 200, body: "store ok\nservice ok\nok\n"},
		{store: Degraded, service: OK, path: "/readyz", status: 200, body: "degraded: store\n"},
		{store: Degraded, service: Degraded, path: "/healthz", status: 200, body: "degraded: store, service\n"},
		{store: Degraded, service: Down, path: "/readyz?verbose=1", status: 503, body: "store degraded\nservice down\ndown: service\n"},
		{store: Down, service: Down, path: "/livez", status: 200, body: "ok\n"},
	} {
		handler := New(Options{Checks: []Check{
			{"store", func(context.Context) (State, string) { return c.store, "" }},
			{"service", func(context.Context) (State, string) { return c.service, "" }},
		}})
		recorder := httptest.NewRecorder()
		handler.ServeHTTP(recorder, httptest.NewRequest("GET", c.path, nil))
		if recorder.Code != c.status || recorder.Body.String() != c.body {
			t.Errorf("with store %v and service %v, %s returns %d %q; want %d %q", c.store, c.service, c.path, recorder.Code, recorder.Body, c.status, c.body)
		}
	}
}

func TestVerboseShowsTheTextOfACheck(t *testing.T) {
	for path, want := range map[string]string{"/readyz": "ok\n", "/readyz?verbose": "policy reload failed\nok\n"} {
		handler := New(Options{Checks: []Check{
			{"policy", func(context.Context) (State, string) { return OK, "reload failed" }},
		}})
		recorder := httptest.NewRecorder()
		handler.ServeHTTP(recorder, httptest.NewRequest("GET", path, nil))
		if recorder.Code != 200 || recorder.Body.String() != want {
			t.Errorf("%s returns %d %q; want 200 %q", path, recorder.Code, recorder.Body, want)
		}
	}
}

func TestOnlyConfiguredPathsAreServed(t *testing.T) {
	metrics := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "m") })
	paths := []string{"/", "/debug/pprof/", "/debug/pprof/heap", "/debug/pprof/cmdline", "/debug/pprof/profile", "/debug/pprof/trace", "/debug/vars", "/config", "/metrics/"}
	for _, path := range paths {
		recorder := httptest.NewRecorder()
		New(Options{Metrics: metrics}).ServeHTTP(recorder, httptest.NewRequest("GET", path, nil))
		if recorder.Code != http.StatusNotFound {
			t.Errorf("%s returns %d; want 404", path, recorder.Code)
		}
	}
	for _, method := range []string{"POST", "PUT", "DELETE", "PATCH"} {
		recorder := httptest.NewRecorder()
		New(Options{Metrics: metrics}).ServeHTTP(recorder, httptest.NewRequest(method, "/metrics", nil))
		if recorder.Code != http.StatusMethodNotAllowed {
			t.Errorf("%s /metrics returns %d; want 405", method, recorder.Code)
		}
	}
	checked := 0
	countChecks := func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { checked++; next.ServeHTTP(w, r) })
	}
	for path, want := range map[string]int{"/debug/pprof/": 200, "/debug/pprof/symbol": 200, "/debug/pprof/goroutine": 200, "/debug/pprof/cmdline": 404} {
		recorder := httptest.NewRecorder()
		New(Options{Pprof: countChecks}).ServeHTTP(recorder, httptest.NewRequest("GET", path, nil))
		if recorder.Code != want {
			t.Errorf("with Pprof, %s returns %d; want %d", path, recorder.Code, want)
		}
	}
	if checked != 4 {
		t.Errorf("%d requests for profiles are checked; want 4", checked)
	}
	t.Logf("counted: %d paths that are not served", len(paths))
}

// A web page could read responses if its own host name led to this address (DNS rebinding). So only
// local names are served, except to health checks. The headers keep browsers from caching or
// interpreting the responses.
func TestBrowsersCannotUseResponses(t *testing.T) {
	server := httptest.NewServer(New(Options{Metrics: http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})}))
	defer server.Close()
	for request, want := range map[string]string{
		"GET /readyz HTTP/1.0\r\n\r\n":                         "HTTP/1.0 200", // as HAProxy sends it
		"GET /readyz HTTP/1.1\r\nHost: evil.example\r\n\r\n":   "HTTP/1.1 200",
		"GET /metrics HTTP/1.0\r\n\r\n":                        "HTTP/1.0 200",
		"GET /metrics HTTP/1.0\r\nHost: evil.example\r\n\r\n":  "HTTP/1.0 421",
		"GET //metrics HTTP/1.1\r\nHost: evil.example\r\n\r\n": "HTTP/1.1 421",
	} {
		conn, err := net.Dial("tcp", server.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		io.WriteString(conn, request)
		got, err := bufio.NewReader(conn).ReadString('\n')
		conn.Close()
		if err != nil || !strings.HasPrefix(got, want) {
			t.Errorf("%q got %q (error %v); want %s", request, got, err, want)
		}
	}
	for _, c := range []struct {
		host   string
		status int
	}{
		{"", 200}, {"localhost", 200}, {"localhost:9180", 200}, {"a.localhost", 200}, {"127.0.0.1", 200}, {"[::1]:9180", 200}, {"[::1]", 200},
		{"evil.example", 421}, {"evil.example:9180", 421}, {"127.0.0.1.evil.example", 421}, {"localhost.evil.example", 421},
	} {
		request, _ := http.NewRequest("GET", server.URL+"/metrics", nil)
		request.Host = c.host
		res, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if res.StatusCode != c.status {
			t.Errorf("with the Host %q, the status is %d; want %d", c.host, res.StatusCode, c.status)
		}
		for name, want := range map[string]string{"X-Content-Type-Options": "nosniff", "Cache-Control": "no-store",
			"Content-Security-Policy": "default-src 'none'", "Content-Type": "text/plain"} {
			if got := res.Header.Get(name); !strings.HasPrefix(got, want) {
				t.Errorf("with the Host %q, %s is %q; want %q", c.host, name, got, want)
			}
		}
	}
}

func TestStatesHaveNames(t *testing.T) {
	for state, want := range map[State]string{OK: "ok", Degraded: "degraded", Down: "down", Down + 1: "unknown"} {
		if got := state.String(); got != want {
			t.Errorf("the state %d has the name %q; want %q", uint8(state), got, want)
		}
	}
}
