package service

import (
	"os"
	"strings"
	"testing"

	"github.com/penstock/penstock/internal/testing/effort"
	"github.com/penstock/penstock/internal/testing/eventually"
	"github.com/penstock/penstock/internal/testing/redistest"
)

const bucketPolicy = "rules: [{name: all, per: global, limits: [{rate: 1000/d}]}]\n"

// scripts returns how many scripts the metrics count for an event.
func (r *testService) scripts(event string) string {
	return r.metric(`rate_limiter_scripts_total{event="` + event + `"}`)
}

// If the store was down at the start, it gets the scripts before the first decision.
func TestStoreThatWasDownGetsItsScriptsBeforeDecisions(t *testing.T) {
	effort.SkipUnderRace(t)
	redis := redistest.Start(t)
	redis.Kill()
	r := startLimited(t, hello, bucketPolicy, map[string]string{"store": redis.URL(), "store-timeout": "2s"})
	r.mustSend("GET", "/")
	if got := r.metric(`rate_limiter_decisions_total{source="fallback"}`); got != "1" {
		t.Errorf("the fallback made %s decisions; want 1", got)
	}
	if err := redis.Restart(); err != nil {
		t.Fatal(err)
	}
	eventually.True(t, "a decision by the store", func() bool {
		r.mustSend("GET", "/")
		return r.metric(`rate_limiter_decisions_total{source="store"}`) != "0"
	})
	if missing, loaded := r.scripts("noscript"), r.scripts("load"); missing != "0" || loaded == "0" {
		t.Errorf("%s scripts were missing and %s loaded; want none and some", missing, loaded)
	}
}

func TestReloadLoadsScriptsBeforeItTakesEffect(t *testing.T) {
	flags := limitedBy(t, bucketPolicy, map[string]string{"store": redistest.Start(t).URL()})
	reload := make(chan os.Signal)
	r := start(t, hello, flags, reloadOn(reload))
	r.mustSend("GET", "/")
	before := r.scripts("noscript")
	// The new policy has three more limits, each with another algorithm.
	replaceFile(t, flags["config"], strings.ReplaceAll(bucketPolicy, "1000/d", "1000/d, algorithm: sliding-log}, {rate: 900/m, algorithm: sliding-window}, {rate: 800/h, algorithm: fixed-window"))
	reload <- os.Interrupt
	eventually.True(t, "the reload", func() bool { return len(r.log.Lines("policy reloaded")) > 0 })
	for range 3 {
		r.mustSend("GET", "/")
	}
	if after := r.scripts("noscript"); after != before {
		t.Errorf("%s scripts were missing after the reload; want %s, as before", after, before)
	}
}

func TestMissingRightToLoadScriptsIsLoggedOnce(t *testing.T) {
	redis := redistest.Start(t)
	if _, err := redis.Do("ACL", "SETUSER", "default", "-script|load"); err != nil {
		t.Fatal(err)
	}
	flags := limitedBy(t, bucketPolicy, map[string]string{"store": redis.URL()})
	reload := make(chan os.Signal)
	r := start(t, hello, flags, reloadOn(reload))
	for range 2 {
		reload <- os.Interrupt
		r.mustSend("GET", "/")
	}
	eventually.True(t, "the reloads", func() bool { return len(r.log.Lines("policy reloaded")) == 2 })
	if lines := r.log.Lines("level=WARN", "scripts could not be loaded", "needs=+script|load"); len(lines) != 1 {
		t.Errorf("the missing right is logged %d times; want once: %s", len(lines), r.log)
	}
	if got := r.metric(`rate_limiter_decisions_total{source="store"}`); got != "2" {
		t.Errorf("the store made %s decisions; want 2", got)
	}
	if evals := r.scripts("eval"); evals == "0" {
		t.Error("the metric has 0 scripts that were sent with a decision; want some")
	}
}
