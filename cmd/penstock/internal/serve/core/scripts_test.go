package core

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/cmd/penstock/internal/console/admin"
	"github.com/penstock/penstock/redisstore"
)

// A stuckClient is a Redis client whose Load waits for a value of answer, or for the end of its
// context. It records how many scripts each call has.
type stuckClient struct {
	redisstore.Client
	answer chan error

	mu    sync.Mutex
	calls []int // number of scripts of each call
}

func (c *stuckClient) Load(ctx context.Context, _ string, scripts []string) error {
	c.mu.Lock()
	c.calls = append(c.calls, len(scripts))
	c.mu.Unlock()
	select {
	case err := <-c.answer:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (c *stuckClient) Close() error { return nil }

// newStuckCore returns a core whose store makes decisions unless it is down. Loading scripts waits
// for the answer of the client.
func newStuckCore(t *testing.T, isDown *atomic.Bool) (*Core, *stuckClient) {
	client := &stuckClient{answer: make(chan error)}
	redis, err := redisstore.New(client, redisstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { redis.Close() })
	c := newCore(complete(Options{Log: slog.New(slog.DiscardHandler)}))
	c.backend.probe = func(context.Context) error {
		if isDown.Load() {
			return penstock.ErrUnavailable
		}
		return nil
	}
	c.Settings.StoreTimeout = time.Second
	c.scripts = &scriptLoader{Store: redis, log: c.Log, probe: c.probeNow}
	c.rules = new(rules)
	return c, client
}

// While a reload waits for scripts to be loaded, the store makes decisions, and the service is
// ready.
func TestServiceIsReadyWhileAReloadLoadsScripts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var isDown atomic.Bool
		c, _ := newStuckCore(t, &isDown)
		began := time.Now()
		loaded := make(chan struct{})
		go func() {
			c.scripts.load(t.Context(), []*penstock.Plan{penstock.PerDay(9).MustCompile()})
			close(loaded)
		}()
		synctest.Wait()
		for _, check := range c.Checks() {
			if state, text := check.Run(t.Context()); state != admin.OK {
				t.Errorf("during a reload, the check %s is %v with the detail %q; want %v", check.Name, state, text, admin.OK)
			}
		}
		if waited := time.Since(began); waited != 0 {
			t.Errorf("the readiness checks took %v; want no time", waited)
		}
		<-loaded
		if took := time.Since(began); took != scriptsTimeout {
			t.Errorf("the reload took %v; want %v", took, scriptsTimeout)
		}
	})
}

// The store is down at the start, and the policy takes long to load. Until the scripts of its
// limits are loaded, the store gets no batch.
func TestStoreGetsNoBatchBeforeThePolicyIsLoaded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var isDown atomic.Bool
		isDown.Store(true)
		c, client := newStuckCore(t, &isDown)
		ctx, end := context.WithCancel(t.Context())
		ended := make(chan struct{})
		c.scripts.storeDownAtStart(penstock.ErrUnavailable)
		go func() {
			c.scripts.retry(ctx)
			close(ended)
		}()
		time.Sleep(time.Second) // the policy is loaded meanwhile
		if !c.scripts.isRejecting.Load() {
			t.Error("before the policy is loaded, batches are sent to the store; want them rejected")
		}
		began := time.Now()
		c.scripts.load(ctx, []*penstock.Plan{penstock.PerDay(9).MustCompile()})
		if took := time.Since(began); took != 0 {
			t.Errorf("while the store is down, the start took %v; want no time", took)
		}
		isDown.Store(false)
		client.answer <- nil
		synctest.Wait()
		if c.scripts.isRejecting.Load() {
			t.Error("after the scripts are loaded, batches are rejected; want them sent to the store")
		}
		end()
		<-ended
	})
}

// While the store is down, a reload does not wait. Its scripts are loaded once the store is up
// again.
func TestReloadDoesNotWaitWhileTheStoreIsDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var isDown atomic.Bool
		isDown.Store(true)
		c, client := newStuckCore(t, &isDown)
		ctx, end := context.WithCancel(t.Context())
		ended := make(chan struct{})
		limits := []*penstock.Plan{penstock.PerDay(9).MustCompile()}
		c.scripts.load(ctx, limits) // notices that the store is down
		go func() {
			c.scripts.retry(ctx)
			close(ended)
		}()
		time.Sleep(time.Second) // an attempt is in progress
		began := time.Now()
		c.scripts.load(ctx, append(limits, penstock.PerDay(8).With(penstock.SlidingLog).MustCompile()))
		if took := time.Since(began); took != 0 {
			t.Errorf("while the store is down, the reload took %v; want no time", took)
		}
		isDown.Store(false)
		client.answer <- nil // the attempt with the old limits
		client.answer <- nil
		time.Sleep(time.Minute)
		synctest.Wait()
		client.mu.Lock()
		defer client.mu.Unlock()
		if n := len(client.calls); n != 3 || client.calls[2] <= client.calls[1] {
			t.Errorf("the calls loaded these numbers of scripts: %v; want a third call, with more scripts, after the reload", client.calls)
		}
		end()
		<-ended
	})
}
