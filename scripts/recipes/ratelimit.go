package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/penstock/penstock/internal/redistest"
)

// runRateLimit runs the recipe for Penstock as Envoy's rate limit service. It starts two Envoys.
// While Penstock does not answer, the first Envoy lets requests pass, and the second denies them.
func runRateLimit(dir, recipesDir, proxiesDir string) error {
	envoy, err := filepath.Abs(filepath.Join(proxiesDir, "envoy"))
	if err != nil {
		return err
	}
	if _, err := os.Stat(envoy); err != nil {
		return nil // scripts/proxies has reported it
	}
	redis, err := redistest.Launch()
	if err != nil {
		return err
	}
	defer redis.Close()
	app, err := startApp()
	if err != nil {
		return err
	}
	l := &rateLimitTrial{dir: dir, recipesDir: recipesDir, store: redis.URL(), grpc: freeAddress()}
	defer func() {
		if l.penstock != nil { // nil after a failed start
			l.penstock.end()
		}
	}()
	if err := l.startPenstock(); err != nil {
		return err
	}
	for _, deny := range []string{"false", "true"} {
		e, err := l.startEnvoy(envoy, app.address, deny)
		if err != nil {
			return err
		}
		defer e.proxy.end()
		if deny == "true" {
			l.denying = e
		} else {
			l.passing = e
		}
	}
	for _, check := range []func(*redistest.Server) error{l.checkWhileUp, l.checkWithoutStore, l.checkWithoutPenstock} {
		if err := check(redis); err != nil {
			return err
		}
	}
	fmt.Printf("\nEnvoy with the rate limit service: made %d checks\n", l.checks)
	if len(l.failures) > 0 {
		return fmt.Errorf("%d checks failed:\n%s", len(l.failures), strings.Join(l.failures, "\n"))
	}
	return errors.Join(runQuotas(dir, envoy, "atomic"), runQuotas(dir, envoy, "exact"))
}

// A rateLimitTrial runs Penstock as Envoy's rate limit service.
type rateLimitTrial struct {
	dir, recipesDir string
	store           string // URL
	grpc            string // address of Penstock
	penstock        *process
	passing         *row     // Envoy with failure_mode_deny: false
	denying         *row     // Envoy with failure_mode_deny: true
	checks          int      // number of checks made
	failures        []string // of checks
}

func (l *rateLimitTrial) startPenstock() (err error) {
	program := filepath.Join(l.dir, "penstock")
	cmd := exec.Command(program, "serve", "--grpc", l.grpc, "--admin-listen", "off",
		"--envoy-config", filepath.Join(l.recipesDir, "envoy-ratelimit"), "--store", l.store, "--store-timeout", "50ms")
	l.penstock, err = start(l.dir, "penstock-rls", l.grpc, cmd)
	return err
}

// startEnvoy starts Envoy with the configuration of the recipe, and with failure_mode_deny set to
// deny.
func (l *rateLimitTrial) startEnvoy(program, app, deny string) (*row, error) {
	ownDir := filepath.Join(l.dir, "envoy-rls-"+deny)
	if err := os.Mkdir(ownDir, 0o777); err != nil {
		return nil, err
	}
	text, err := os.ReadFile(filepath.Join(l.recipesDir, "envoy-ratelimit.yaml"))
	if err != nil {
		return nil, err
	}
	e := &row{recipe: recipe{program: "envoy"}, address: freeAddress(), number: 200} // no other row has this number
	e.client = e.clientOf(usualClient)
	adapted := strings.Replace(string(text), "failure_mode_deny: false", "failure_mode_deny: "+deny, 1)
	for portInRecipe, address := range map[string]string{"8080": e.address, "3000": app, "8081": l.grpc} {
		_, port, err := net.SplitHostPort(address)
		if err != nil {
			return nil, err
		}
		adapted = strings.Replace(adapted, "port_value: "+portInRecipe, "port_value: "+port, 1)
	}
	file := filepath.Join(ownDir, "envoy.yaml")
	if err := os.WriteFile(file, []byte(adapted), 0o644); err != nil {
		return nil, err
	}
	e.proxy, err = start(l.dir, "envoy-rls-"+deny, e.address, exec.Command(program, "-c", file, "--disable-hot-restart", "--concurrency", "1", "--log-level", "error"))
	if err != nil {
		return nil, err
	}
	return e, await("Envoy does not reach Penstock", func() bool { return l.get(e, "/", "warm-"+deny).header.Get("X-Ratelimit-Limit") != "" })
}

// get sends a request with an API key.
func (l *rateLimitTrial) get(e *row, path, key string) answer {
	return e.send("GET", path, "shop.example", "X-Api-Key", key)
}

// expect counts a check, and records a failure if it is not true.
func (l *rateLimitTrial) expect(isTrue bool, format string, args ...any) {
	l.checks++
	if !isTrue {
		l.failures = append(l.failures, "Envoy with the rate limit service: "+fmt.Sprintf(format, args...))
	}
}

// expectStatus sends requests with one key, one for each wanted status.
func (l *rateLimitTrial) expectStatus(when string, e *row, key string, want ...string) {
	for i, status := range want {
		a := l.get(e, "/", key)
		l.expect(a.status == status, "%s, request %d got status %s; want %s", when, i+1, a.status, status)
	}
}

func (l *rateLimitTrial) checkWhileUp(*redistest.Server) error {
	for _, wantRemaining := range []string{"2", "1", "0"} {
		a := l.get(l.passing, "/a", "k")
		l.expect(a.status == "200" && a.body == "app GET /a ", "an allowed request got %+v; want 200 and the body of the application", a)
		limit, remaining, reset := a.header.Get("X-Ratelimit-Limit"), a.header.Get("X-Ratelimit-Remaining"), a.header.Get("X-Ratelimit-Reset")
		l.expect(strings.HasPrefix(limit, "3, 3;w=3600"), "x-ratelimit-limit is %q; want 3, 3;w=3600", limit)
		l.expect(remaining == wantRemaining, "x-ratelimit-remaining is %q; want %s", remaining, wantRemaining)
		l.expect(reset != "" && reset != "0", "x-ratelimit-reset is %q; want more than 0", reset)
	}
	a := l.get(l.passing, "/a", "k")
	l.expect(a.status == "429" && a.header.Get("X-Envoy-Ratelimited") == "true", "a request over the limit got %+v; want 429 with x-envoy-ratelimited: true", a)
	retryAfter, remaining := a.header.Get("Retry-After"), a.header.Get("X-Ratelimit-Remaining")
	l.expect(retryAfter != "" && retryAfter != "0", "Retry-After is %q; want more than 0", retryAfter)
	l.expect(remaining == "0", "x-ratelimit-remaining of a denial is %q; want 0", remaining)
	l.expectStatus("with the other Envoy, which uses the same counters", l.denying, "k", "429")
	l.expectStatus("with another key", l.passing, "k2", "200")

	// Each response has about 2,000 bytes, and the limit is 10,000.
	passed := 0
	err := await("the bytes of responses are not charged", func() bool {
		a := l.get(l.passing, "/download/"+strings.Repeat("x", 2000), "d")
		if a.status == "200" {
			passed++
		}
		return a.status == "429"
	})
	l.expect(passed >= 5 && passed <= 20, "%d downloads passed; want 5 to 20: those within the limit, and those whose size Envoy had not reported yet", passed)
	return err
}

// checkWithoutStore checks that Envoy applies the decisions of Penstock's fallback while the store
// hangs or is down.
func (l *rateLimitTrial) checkWithoutStore(redis *redistest.Server) error {
	redis.Pause()
	l.expectStatus("while the store hangs", l.denying, "hangs", "200", "200", "200", "429")
	redis.Resume()
	if err := l.awaitStore(); err != nil {
		return err
	}
	redis.Kill()
	l.expectStatus("while the store is down", l.denying, "killed", "200", "200", "200", "429")
	return redis.Restart()
}

// awaitStore waits until the store decides again. The key k is over its limit in the store, but not
// in Penstock's fallback.
func (l *rateLimitTrial) awaitStore() error {
	return await("the store does not decide again", func() bool { return l.get(l.denying, "/", "k").status == "429" })
}

// checkWithoutPenstock checks that failure_mode_deny decides while Penstock hangs or is down.
func (l *rateLimitTrial) checkWithoutPenstock(*redistest.Server) error {
	l.expectStatus("while Penstock answers", l.passing, "r", "200", "200", "200", "429")
	l.penstock.cmd.Process.Signal(syscall.SIGSTOP)
	if err := await("Penstock answers although it was stopped", func() bool { return l.get(l.denying, "/", "s").status != "200" }); err != nil {
		return err
	}
	l.expectStatus("while Penstock hangs", l.passing, "r", "200")
	l.expectStatus("while Penstock hangs, with failure_mode_deny", l.denying, "r", "503")
	l.penstock.cmd.Process.Signal(syscall.SIGCONT)
	if err := await("Penstock does not answer again", func() bool { return l.get(l.denying, "/", "r").status == "429" }); err != nil {
		return err
	}
	l.penstock.end()
	l.expectStatus("while Penstock is down", l.passing, "r", "200")
	l.expectStatus("while Penstock is down, with failure_mode_deny", l.denying, "r", "503")
	if err := l.startPenstock(); err != nil {
		return err
	}
	return await("Penstock does not answer after a restart", func() bool {
		return l.get(l.denying, "/", "r").status == "429" && l.get(l.passing, "/", "r").status == "429"
	})
}
