package service

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/cmd/penstock/internal/serve/settings"
	"github.com/penstock/penstock/cmd/penstock/internal/testing/logbuffer"
	"github.com/penstock/penstock/internal/testing/redistest"
)

// patience is the longest time that a test waits.
const patience = time.Minute

// A testService is a service that runs in a test.
type testService struct {
	*testing.T
	Addresses
	log   *logbuffer.Buffer
	stop  context.CancelFunc // starts the drain
	ended chan error         // what Run returned
}

// start runs a service with settings as flags. Addresses that are not given are free ports. A nil
// upstream stands for the demo's, or for none if api, grpc or resp is set. The default policy is
// noLimits. When the test ends, the service must stop without an error and leave no goroutine
// running.
func start(t *testing.T, upstream http.Handler, flags map[string]string, more ...func(*Options)) *testService {
	t.Helper()
	t.Cleanup(func() { awaitNoGoroutines(t) })
	return startWithoutLeakCheck(t, upstream, flags, more...)
}

// startWithoutLeakCheck is like start, but does not check that no goroutine is left. It is for
// parallel tests, and for a second service in one test: a goroutine may be the other service's.
func startWithoutLeakCheck(t *testing.T, upstream http.Handler, flags map[string]string, more ...func(*Options)) *testService {
	t.Helper()
	o := options(t, upstream, flags)
	r := &testService{T: t, log: new(logbuffer.Buffer), ended: make(chan error, 1)}
	ctx, stop := context.WithCancel(t.Context())
	r.stop = stop
	o.Log = r.log.Logger()
	started := make(chan Addresses, 1)
	o.Started = func(a Addresses) { started <- a }
	for _, set := range more {
		set(&o)
	}
	go func() { r.ended <- Run(ctx, o) }()
	select {
	case r.Addresses = <-started:
	case err := <-r.ended:
		t.Fatalf("the service did not start: %v", err)
	case <-time.After(patience):
		t.Fatalf("the service did not start within %v", patience)
	}
	t.Cleanup(r.wait)
	return r
}

// reloadOn makes each value of reload reload the policy file.
func reloadOn(reload <-chan os.Signal) func(*Options) {
	return func(o *Options) { o.Reload = reload }
}

// reloadAndWait reloads the policy file and returns when that has ended. It sends two values: the
// channel has no buffer, so the service receives the second one only after the first reload.
func reloadAndWait(reload chan<- os.Signal) {
	reload <- nil
	reload <- nil
}

// noLimits is a policy that limits no request of a test.
const noLimits = "rules: [{name: none, match: {path: /no/test/requests/this}, per: global, limits: [{rate: 1/s}]}]\n"

// options returns the Options with which start runs a service.
func options(t *testing.T, upstream http.Handler, flags map[string]string) Options {
	t.Helper()
	all := map[string]string{"listen": "127.0.0.1:0", "admin-listen": "127.0.0.1:0"}
	maps.Copy(all, flags)
	switch {
	case all["upstream"] != "":
		// The test has an upstream of its own.
	case upstream == nil && (all["api"] != "" || all["grpc"] != "" || all["resp"] != ""):
		delete(all, "listen")
	case upstream == nil:
		all["demo"] = "true"
	default:
		server := httptest.NewServer(upstream)
		t.Cleanup(server.Close)
		all["upstream"] = server.URL
	}
	hasRules := all["config"] != "" || all["demo"] != "" || all["envoy-config"] != "" || all["envoy-xds"] != ""
	hasRESPWithoutGRPC := all["resp"] != "" && all["grpc"] == "" // such a service needs no policy
	if !hasRules && !hasRESPWithoutGRPC && all["allow-caller-limits"] == "" {
		all["config"] = filepath.Join(t.TempDir(), "rules.yaml")
		replaceFile(t, all["config"], noLimits)
	}
	s, err := settings.Load(settings.Sources{Flags: all})
	if err != nil {
		t.Fatal(err)
	}
	return Options{Settings: s, Log: slog.New(slog.DiscardHandler)}
}

// wait stops the service, and waits until it has ended.
func (r *testService) wait() {
	r.Helper()
	r.stop()
	select {
	case err := <-r.ended:
		r.ended <- err
		if err != nil {
			r.Errorf("the service ended with the error %v; want none", err)
		}
	case <-time.After(patience):
		r.Errorf("the service did not end within %v", patience)
	}
}

func (r *testService) dial() net.Conn {
	r.Helper()
	conn, err := net.Dial("tcp", r.Listen)
	if err != nil {
		r.Fatal(err)
	}
	r.Cleanup(func() { conn.Close() })
	conn.SetDeadline(time.Now().Add(patience))
	return conn
}

// get requests a URL on a new connection.
func get(url string) (status int, body string, err error) {
	// Under the race detector, compressing the metrics would take most of the time of a request.
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DisableCompression: true}, Timeout: patience}
	res, err := client.Get(url)
	if err != nil {
		return 0, "", err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	return res.StatusCode, string(text), err
}

// mustGet requests a URL, and fails the test unless the response has the status.
func (r *testService) mustGet(url string, status int) string {
	r.Helper()
	got, body, err := get(url)
	if err != nil || got != status {
		r.Fatalf("GET %s returned %d %s (error %v); want %d", url, got, body, err, status)
	}
	return body
}

// readResponse reads a response from a connection.
func readResponse(conn net.Conn) (status int, body string, err error) {
	res, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return 0, "", err
	}
	text, err := io.ReadAll(res.Body)
	return res.StatusCode, string(text), err
}

// isTimeout reports whether an error is that of a deadline of a connection.
func isTimeout(err error) bool {
	timeout, isNet := errors.AsType[net.Error](err)
	return isNet && timeout.Timeout()
}

// ourPackages are parts of the names of packages whose goroutines must end with the service.
var ourPackages = []string{"penstock/cmd", "net/http", "rueidis", "google.golang.org/grpc"}

// awaitNoGoroutines waits until no goroutine of ourPackages is left, except those that run tests.
func awaitNoGoroutines(t *testing.T) {
	t.Helper()
	http.DefaultTransport.(*http.Transport).CloseIdleConnections()
	for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		stacks := make([]byte, 1<<20)
		var left []string
		for stack := range strings.SplitSeq(string(stacks[:runtime.Stack(stacks, true)]), "\n\n") {
			isOurs := slices.ContainsFunc(ourPackages, func(name string) bool { return strings.Contains(stack, name) })
			if isOurs && !strings.Contains(stack, "testing.tRunner") {
				left = append(left, stack)
			}
		}
		if left == nil {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%d goroutines of the service are left:\n%s", len(left), strings.Join(left, "\n\n"))
		}
	}
}

// hello is an upstream that responds with the path.
var hello = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprintf(w, "hello %s", r.URL.Path) })

// startLimited is start with a policy, and with a store timeout that suits busy machines.
func startLimited(t *testing.T, upstream http.Handler, policy string, flags map[string]string) *testService {
	t.Helper()
	flags = limitedBy(t, policy, flags)
	return start(t, upstream, flags)
}

// limitedBy adds a policy to flags.
func limitedBy(t *testing.T, policy string, flags map[string]string) map[string]string {
	t.Helper()
	all := map[string]string{"config": filepath.Join(t.TempDir(), "rules.yaml"), "store-timeout": "20s"}
	replaceFile(t, all["config"], policy)
	maps.Copy(all, flags)
	return all
}

// replaceFile replaces a file by renaming a new one to its name, as editors do.
func replaceFile(t *testing.T, name, text string) {
	t.Helper()
	if err := os.WriteFile(name+"~", []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(name+"~", name); err != nil {
		t.Fatal(err)
	}
}

// onStores runs a test with the memory store and with a Redis server.
func onStores(t *testing.T, test func(t *testing.T, flags map[string]string)) {
	t.Run("memory", func(t *testing.T) { test(t, nil) })
	t.Run("redis", func(t *testing.T) { test(t, map[string]string{"store": redistest.Start(t).URL()}) })
}

// send sends a request without a body. A header has the form "Name: value".
func send(method, url string, headers ...string) (*http.Response, error) {
	r, err := http.NewRequest(method, url, nil)
	if err != nil {
		return nil, err
	}
	for _, line := range headers {
		if name, value, ok := strings.Cut(line, ": "); ok {
			r.Header.Add(name, value)
		}
	}
	res, err := http.DefaultClient.Do(r)
	if err == nil {
		io.Copy(io.Discard, res.Body)
		res.Body.Close()
	}
	return res, err
}

// mustSend sends a request to the proxy.
func (r *testService) mustSend(method, path string, headers ...string) *http.Response {
	r.Helper()
	res, err := send(method, "http://"+r.Listen+path, headers...)
	if err != nil {
		r.Fatal(err)
	}
	return res
}

// metric returns the value of a series, or "" if it does not exist.
func (r *testService) metric(series string) string {
	r.Helper()
	for line := range strings.Lines(r.mustGet("http://"+r.Admin+"/metrics", 200)) {
		if value, ok := strings.CutPrefix(line, series+" "); ok {
			return strings.TrimSpace(value)
		}
	}
	return ""
}
