//go:build checks

package recipes

import (
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/penstock/penstock/internal/testing/redistest"
	"github.com/penstock/penstock/scripts/internal/process"
)

// A rateLimitTrial runs Penstock as Envoy's rate limit service, with the recipe for that.
type rateLimitTrial struct {
	store    string // URL
	grpc     string // address of Penstock
	penstock *process.Service
	passing  *row // Envoy with failure_mode_deny: false
	denying  *row // Envoy with failure_mode_deny: true
}

func TestRateLimitServiceOfEnvoy(t *testing.T) {
	envoy, app, redis := programOf(t, "envoy"), startApp(t), redistest.Start(t)
	l := &rateLimitTrial{store: redis.URL(), grpc: process.FreeAddress(t)}
	l.startPenstock(t)
	l.passing, l.denying = l.startEnvoy(t, envoy, app, "false"), l.startEnvoy(t, envoy, app, "true")
	l.checkWhileUp(t)
	l.checkWithoutStore(t, redis)
	l.checkWithoutPenstock(t)
}

func (l *rateLimitTrial) startPenstock(t *testing.T) {
	l.penstock = process.Serve(t, "--grpc="+l.grpc, "--envoy-config="+recipesDir+"envoy-ratelimit", "--store="+l.store, "--store-timeout=50ms")
}

// startEnvoy starts Envoy with the configuration of the recipe, and with failure_mode_deny set to
// deny.
func (l *rateLimitTrial) startEnvoy(t *testing.T, program, app, deny string) *row {
	e := newRow(t, recipe{name: "Envoy with the rate limit service", program: "envoy"}, app, 200) // no other row has this number
	adapted := strings.Replace(process.ReadFile(t, recipesDir+"envoy-ratelimit.yaml"), "failure_mode_deny: false", "failure_mode_deny: "+deny, 1)
	for portInRecipe, address := range map[string]string{"8080": e.address, "3000": app, "8081": l.grpc} {
		adapted = strings.Replace(adapted, "port_value: "+portInRecipe, "port_value: "+portOf(address), 1)
	}
	file := t.TempDir() + "/envoy.yaml"
	process.WriteFile(t, file, adapted)
	e.proxy = start(t, "envoy-rls-"+deny, e.address, envoyCommand(program, file))
	await(t, "Envoy reaches Penstock", func() bool { return l.get(e, "/", "warm-"+deny).header.Get("X-Ratelimit-Limit") != "" })
	return e
}

// envoyCommand returns the command that runs Envoy with a configuration.
func envoyCommand(program, file string, args ...string) *exec.Cmd {
	return exec.Command(program, append([]string{"-c", file, "--disable-hot-restart", "--concurrency", "1", "--log-level", "error"}, args...)...)
}

// get sends a request with an API key.
func (l *rateLimitTrial) get(e *row, path, key string) answer {
	return e.send("GET", path, "shop.example", "X-Api-Key", key)
}

// expectStatus sends requests with one key, one for each wanted status.
func (l *rateLimitTrial) expectStatus(when string, e *row, key string, want ...string) {
	for i, status := range want {
		a := l.get(e, "/", key)
		l.passing.expect(a.status == status, "%s, request %d got status %s; want %s", when, i+1, a.status, status)
	}
}

func (l *rateLimitTrial) checkWhileUp(t *testing.T) {
	for _, wantRemaining := range []string{"2", "1", "0"} {
		a := l.get(l.passing, "/a", "k")
		l.passing.expect(a.status == "200" && a.body == "app GET /a ", "an allowed request got %+v; want 200 and the body of the application", a)
		limit, remaining, reset := a.header.Get("X-Ratelimit-Limit"), a.header.Get("X-Ratelimit-Remaining"), a.header.Get("X-Ratelimit-Reset")
		l.passing.expect(strings.HasPrefix(limit, "3, 3;w=3600"), "x-ratelimit-limit is %q; want 3, 3;w=3600", limit)
		l.passing.expect(remaining == wantRemaining, "x-ratelimit-remaining is %q; want %s", remaining, wantRemaining)
		l.passing.expect(reset != "" && reset != "0", "x-ratelimit-reset is %q; want more than 0", reset)
	}
	a := l.get(l.passing, "/a", "k")
	l.passing.expect(a.status == "429" && a.header.Get("X-Envoy-Ratelimited") == "true", "a request over the limit got %+v; want 429 with x-envoy-ratelimited: true", a)
	retryAfter, remaining := a.header.Get("Retry-After"), a.header.Get("X-Ratelimit-Remaining")
	l.passing.expect(retryAfter != "" && retryAfter != "0", "Retry-After is %q; want more than 0", retryAfter)
	l.passing.expect(remaining == "0", "x-ratelimit-remaining of a denial is %q; want 0", remaining)
	l.expectStatus("with the other Envoy, which uses the same counters", l.denying, "k", "429")
	l.expectStatus("with another key", l.passing, "k2", "200")

	// Each response has about 2,000 bytes, and the limit is 10,000.
	passed := 0
	await(t, "the bytes of responses are charged", func() bool {
		a := l.get(l.passing, "/download/"+strings.Repeat("x", 2000), "d")
		if a.status == "200" {
			passed++
		}
		return a.status == "429"
	})
	l.passing.expect(passed >= 5 && passed <= 20, "%d downloads passed; want 5 to 20: those within the limit, and those whose size Envoy had not reported yet", passed)
}

// checkWithoutStore checks that Envoy applies the decisions of Penstock's fallback while the store
// hangs or is down.
func (l *rateLimitTrial) checkWithoutStore(t *testing.T, redis *redistest.Server) {
	redis.Pause()
	l.expectStatus("while the store hangs", l.denying, "hangs", "200", "200", "200", "429")
	redis.Resume()
	// The key k is over its limit in the store, but not in Penstock's fallback.
	await(t, "the store decides again", func() bool { return l.get(l.denying, "/", "k").status == "429" })
	redis.Kill()
	l.expectStatus("while the store is down", l.denying, "killed", "200", "200", "200", "429")
	if err := redis.Restart(); err != nil {
		t.Fatal(err)
	}
}

// checkWithoutPenstock checks that failure_mode_deny decides while Penstock hangs or is down.
func (l *rateLimitTrial) checkWithoutPenstock(t *testing.T) {
	l.expectStatus("while Penstock answers", l.passing, "r", "200", "200", "200", "429")
	l.penstock.Signal(syscall.SIGSTOP)
	await(t, "Penstock no longer answers", func() bool { return l.get(l.denying, "/", "s").status != "200" })
	l.expectStatus("while Penstock hangs", l.passing, "r", "200")
	l.expectStatus("while Penstock hangs, with failure_mode_deny", l.denying, "r", "503")
	l.penstock.Signal(syscall.SIGCONT)
	await(t, "Penstock answers again", func() bool { return l.get(l.denying, "/", "r").status == "429" })
	l.penstock.End()
	l.expectStatus("while Penstock is down", l.passing, "r", "200")
	l.expectStatus("while Penstock is down, with failure_mode_deny", l.denying, "r", "503")
	l.startPenstock(t)
	await(t, "Penstock answers after a restart", func() bool {
		return l.get(l.denying, "/", "r").status == "429" && l.get(l.passing, "/", "r").status == "429"
	})
}
