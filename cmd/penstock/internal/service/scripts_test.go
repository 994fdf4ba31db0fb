package service

import (
	"context"
	"log/slog"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/cmd/penstock/internal/admin"
	"github.com/penstock/penstock/internal/redistest"
	"github.com/penstock/penstock/redisstore"
)

const bucketPolicy = "rules: [{name: all, per: everyone, limits: [{rate: 1000/d}]}]\n"

func (r *running) scripts(event string) string {
	return r.metric(`rate_limiter_scripts_total{event="` + event + `"}`)
}

// A store that was down at the start is sent no decision before it has the scripts.
func TestStoreThatWasDownGetsItsScriptsBeforeDecisions(t *testing.T) {
	redis := redistest.Start(t)
	redis.Kill()
	r := startLimited(t, hello, bucketPolicy, map[string]string{"store": redis.URL(), "store-timeout": "2s"})
	r.mustSend("GET", "/")
	if got := r.metric(`rate_limiter_decisions_total{source="fallback"}`); got != "1" {
		t.Errorf("%s decisions by the fallback, want 1", got)
	}
	if err := redis.Restart(); err != nil {
		t.Fatal(err)
	}
	await(t, "a decision by the store", func() bool {
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
	r := start(t, hello, flags, limitsOf(t, flags, reload))
	r.mustSend("GET", "/")
	before := r.scripts("noscript")
	replaceFile(t, flags["config"], strings.ReplaceAll(bucketPolicy, "1000/d", "1000/d, algorithm: sliding-log}, {rate: 900/m, algorithm: sliding-window}, {rate: 800/h, algorithm: fixed-window"))
	reload <- os.Interrupt
	await(t, "the reload", func() bool { return len(r.log.lines("the policy file was taken up")) > 0 })
	for range 3 {
		r.mustSend("GET", "/")
	}
	if after := r.scripts("noscript"); after != before {
		t.Errorf("%s scripts were missing after the reload, %s before", after, before)
	}
}

func TestMissingRightToLoadIsToldOnce(t *testing.T) {
	redis := redistest.Start(t)
	if _, err := redis.Do("ACL", "SETUSER", "default", "-script|load"); err != nil {
		t.Fatal(err)
	}
	flags := limitedBy(t, bucketPolicy, map[string]string{"store": redis.URL()})
	reload := make(chan os.Signal)
	r := start(t, hello, flags, limitsOf(t, flags, reload))
	for range 2 {
		reload <- os.Interrupt
		r.mustSend("GET", "/")
	}
	await(t, "the reloads", func() bool { return len(r.log.lines("the policy file was taken up")) == 2 })
	if lines := r.log.lines("level=WARN", "scripts could not be loaded", "needs=+script|load"); len(lines) != 1 {
		t.Errorf("told %d times: %s", len(lines), r.log)
	}
	if got := r.metric(`rate_limiter_decisions_total{source="store"}`); got != "2" {
		t.Errorf("%s decisions by the store, want 2", got)
	}
	if evals := r.scripts("eval"); evals == "0" {
		t.Error("no script was sent with a decision")
	}
}

// A stuckLoad is a client that is told to load scripts, and does not answer. It notes how many.
type stuckLoad struct {
	redisstore.Client
	answer chan error

	mu    sync.Mutex
	asked []int
}

func (c *stuckLoad) Load(ctx context.Context, _ string, scripts []redisstore.Script) error {
	c.mu.Lock()
	c.asked = append(c.asked, len(scripts))
	c.mu.Unlock()
	select {
	case err := <-c.answer:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (c *stuckLoad) Close() error { return nil }

// stuck is a service whose store decides unless it is down, and is slow to load scripts.
func stuck(t *testing.T, down *atomic.Bool) (*service, *stuckLoad) {
	client := &stuckLoad{answer: make(chan error)}
	redis, err := redisstore.New(client, redisstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { redis.Close() })
	s := &service{store: store{decides: func(context.Context) error {
		if down.Load() {
			return penstock.ErrUnavailable
		}
		return nil
	}}}
	s.Settings.StoreTimeout = time.Second
	s.scripts = &scripts{Store: redis, log: slog.New(slog.DiscardHandler), decides: s.decidesNow}
	return s, client
}

// While a reload waits for scripts to be loaded, the store decides, and the gate is ready.
func TestGateIsReadyWhileAReloadLoadsScripts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var down atomic.Bool
		s, _ := stuck(t, &down)
		began, loaded := time.Now(), make(chan struct{})
		go func() {
			s.load(t.Context(), []penstock.Limit{penstock.PerDay(9)})
			close(loaded)
		}()
		synctest.Wait()
		for _, check := range s.checks() {
			if state, text := check.Run(t.Context()); state != admin.OK {
				t.Errorf("%s is %v during a reload: %s", check.Name, state, text)
			}
		}
		if waited := time.Since(began); waited != 0 {
			t.Errorf("to tell whether the gate is ready took %v", waited)
		}
		<-loaded
		if took := time.Since(began); took != scriptsPatience {
			t.Errorf("the reload took %v", took)
		}
	})
}

// While the store is down, a reload waits for nobody, and its scripts are loaded once the store is
// back.
func TestReloadDoesNotWaitForAStoreThatIsDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var down atomic.Bool
		down.Store(true)
		s, client := stuck(t, &down)
		life, end := context.WithCancel(t.Context())
		ended := make(chan struct{})
		limits := []penstock.Limit{penstock.PerDay(9)}
		s.load(life, limits) // notices that the store is down
		go func() {
			s.scripts.retry(life)
			close(ended)
		}()
		time.Sleep(time.Second) // an attempt is under way
		began := time.Now()
		s.load(life, append(limits, penstock.PerDay(8).With(penstock.SlidingLog)))
		if took := time.Since(began); took != 0 {
			t.Errorf("the reload took %v", took)
		}
		down.Store(false)
		client.answer <- nil // the attempt, with the former limits
		client.answer <- nil
		time.Sleep(time.Minute)
		synctest.Wait()
		client.mu.Lock()
		defer client.mu.Unlock()
		if n := len(client.asked); n != 3 || client.asked[2] <= client.asked[1] {
			t.Errorf("loaded these numbers of scripts: %v; want once more, and more, after the reload", client.asked)
		}
		end()
		<-ended
	})
}
