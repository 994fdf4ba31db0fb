package httplimit_test

import (
	"fmt"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/penstock/penstock/admission"
	"github.com/penstock/penstock/httplimit"
	"github.com/penstock/penstock/internal/testing/effort"
	"github.com/penstock/penstock/internal/testing/eventually"
	"github.com/penstock/penstock/memstore"
	"github.com/penstock/penstock/policy"
	"github.com/penstock/penstock/policy/policyfile"
)

// Under load, a file changes, and every other version is invalid. Each request is decided by the
// rules of one version.
func TestReloadIsNeverAMixture(t *testing.T) {
	file := filepath.Join(t.TempDir(), "rules.yaml")
	replace := func(text string) {
		t.Helper()
		if err := os.WriteFile(file+".new", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(file+".new", file); err != nil {
			t.Fatal(err)
		}
	}
	// Two files with different names and rates differ in each part of a response.
	valid := func(name string, rate int) string {
		return fmt.Sprintf(`
rules:
  - name: %[1]s
    per: {%[1]s: header X-API-Key}
    limits: [{name: one, rate: %[2]d/h}, {name: two, rate: %[2]d/h}]
  - {name: %[1]s-always, always: true, per: ip, limits: [{rate: %[2]d/h}]}
`, name, rate)
	}
	const rateA, rateB = 1_000_000, 2_000_000
	policyHeaderOf := func(name string, rate int) string {
		return fmt.Sprintf(`"%[1]s.one";q=%[2]d;w=3600, "%[1]s.two";q=%[2]d;w=3600, "%[1]s-always.hour";q=%[2]d;w=3600`, name, rate)
	}
	files := []string{valid("a", rateA), "rules: [", valid("b", rateB), "rules:\n  - {name: x, per: nobody, limits: [{rate: 1/h}]}\n"}
	replace(files[0])

	var loaded, invalid atomic.Int64
	watcher, err := policyfile.Watch(file, policyfile.WatchOptions{Options: sections, Notify: func(err error) {
		if err == nil {
			loaded.Add(1)
		} else {
			invalid.Add(1)
		}
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer watcher.Close()
	h := gateOn(t, controllerOf(t, memstore.New(memstore.Options{}), watcher, admission.Options{})).Middleware(respond(200))

	var load sync.WaitGroup
	var stop atomic.Bool
	var sawA, sawB atomic.Int64
	for range 4 {
		load.Go(func() {
			for !stop.Load() {
				w := send(h, "GET", "/", "X-API-Key", "k")
				switch got := w.Header().Get("RateLimit-Policy"); {
				case w.Code != 200:
					t.Errorf("status %d while the file changes; want 200", w.Code)
					return
				case got == policyHeaderOf("a", rateA):
					sawA.Add(1)
				case got == policyHeaderOf("b", rateB):
					sawB.Add(1)
				default:
					t.Errorf("RateLimit-Policy is %s; want the limits of one file", got)
					return
				}
			}
		})
	}
	changes := effort.Of(20, 150)
	for i := range changes {
		next := files[(i+1)%len(files)]
		before := loaded.Load() + invalid.Load()
		replace(next)
		eventually.True(t, "the watcher reports the new file", func() bool { return loaded.Load()+invalid.Load() > before })
		switch next {
		case valid("a", rateA):
			waitForMore(t, "a request is decided by file a", &sawA)
		case valid("b", rateB):
			waitForMore(t, "a request is decided by file b", &sawB)
		}
	}
	stop.Store(true)
	load.Wait()
	t.Logf("counted: %d requests while their policy changed (%d files loaded, %d invalid ones rejected)", sawA.Load()+sawB.Load(), loaded.Load(), invalid.Load())
}

// waitForMore waits until the count rises.
func waitForMore(t *testing.T, event string, count *atomic.Int64) {
	t.Helper()
	before := count.Load()
	eventually.True(t, event, func() bool { return count.Load() > before || t.Failed() })
}

// Rules that cannot be used are compiled once, and not for each request.
func TestUnusableRulesAreCompiledOnce(t *testing.T) {
	effort.SkipUnderRace(t)
	good := rulesOf(t, "rules: [{name: a, per: ip, limits: [{rate: 1/h}]}]")
	spec := good.Spec()
	spec.Sections = []any{&httplimit.Config{Headers: []string{"draft-99"}}}
	bad, err := policy.New(spec)
	if err != nil {
		t.Fatal(err)
	}
	inForce := new(changingRules)
	inForce.Store(good)
	gate := gateOn(t, controllerOf(t, memstore.New(memstore.Options{}), inForce, admission.Options{}))
	r := httptest.NewRequest("GET", "/", nil)
	before := testing.AllocsPerRun(100, func() { gate.IsTrustedProxy(r) })
	inForce.Store(bad)
	if after := testing.AllocsPerRun(100, func() { gate.IsTrustedProxy(r) }); after > before {
		t.Errorf("with rules that cannot be used, a call makes %v allocations; want %v, as before", after, before)
	}
	if w := send(gate.Middleware(respond(200)), "GET", "/"); w.Header().Get("RateLimit-Policy") == "" {
		t.Errorf("the response has the headers %v; want RateLimit-Policy, because the old rules stay", w.Header())
	}
}
