package redisstore_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/testing/clienttest"
	"github.com/penstock/penstock/internal/testing/effort"
	"github.com/penstock/penstock/internal/testing/eventually"
	"github.com/penstock/penstock/internal/testing/redistest"
	"github.com/penstock/penstock/redisstore"
)

func TestLoadReachesReplicasThatMayBePromoted(t *testing.T) {
	effort.SkipUnderRace(t)
	t.Parallel()
	sentinel := redistest.StartSentinel(t)
	client := &clienttest.CountingClient{Client: dial("redis+sentinel://" + strings.Join(sentinel.Addrs(), ",") + "/" + redistest.MasterName)(t)}
	s := newStore(t, client, redisstore.Options{Prefix: newPrefix()})
	if err := s.Load(t.Context(), clienttest.VariousLimits()...); err != nil {
		t.Fatal(err)
	}
	clienttest.WantScripts(t, sentinel.Primary, client.Scripts)
	clienttest.WantScripts(t, sentinel.Replica, client.Scripts)

	promoted := sentinel.Replica
	if err := sentinel.Failover(); err != nil {
		t.Fatal(err)
	}
	eventually.True(t, "the promoted replica decides", func() bool {
		_, err := s.Decide(t.Context(), []penstock.Charge{spend("k", slowRefill("l", 10), 1)})
		info := must(t, promoted, "INFO", "replication").(string)
		return err == nil && strings.Contains(info, "role:master")
	})
	clienttest.WantLoadedOnly(t, s)
}

// A caller that leaves while a script is loaded has charged nothing, and its error has the
// reason late. Other callers then use the script.
func TestCallerLeavesWhileItsScriptIsLoaded(t *testing.T) {
	t.Parallel()
	client := &clienttest.CountingClient{Client: dial(redistest.Start(t).URL())(t), Proceed: make(chan struct{})}
	s := newStore(t, client, redisstore.Options{Prefix: newPrefix()})
	ctx, leave := context.WithDeadline(t.Context(), time.Now().Add(time.Second))
	defer leave()
	_, err := s.Decide(ctx, []penstock.Charge{spend("k", slowRefill("l", 10), 1)})
	var failure *penstock.StoreError
	if !errors.As(err, &failure) || failure.Reason != penstock.ReasonLate {
		t.Errorf("a caller whose deadline passed: %v; want the reason late", err)
	}
	close(client.Proceed)
	eventually.True(t, "the script is loaded", func() bool {
		_, loaded, _ := s.Scripts()
		return loaded == 1
	})
	if left := remaining(t, s, "k", slowRefill("l", 10)); left != 10 {
		t.Errorf("%d of 10 units are left; want all", left)
	}
	if loads, evals := client.Loads.Load(), client.Evals.Load(); loads != 1 || evals != 0 {
		t.Errorf("%d loads and %d EVALs; want 1 and 0", loads, evals)
	}
}

// A forgetfulClient has a server that forgets each script before it can be called by its digest.
type forgetfulClient struct{ redisstore.Client }

func (forgetfulClient) EvalSha(context.Context, string, []string, []string) (string, error) {
	return "", redisstore.ReplyError("NOSCRIPT No matching script.")
}

func TestServerThatForgetsIsSentTheText(t *testing.T) {
	t.Parallel()
	s := newStore(t, forgetfulClient{dial(redistest.Start(t).URL())(t)}, redisstore.Options{Prefix: newPrefix()})
	if d, err := s.Decide(t.Context(), []penstock.Charge{spend("k", slowRefill("l", 10), 1)}); err != nil || !d.Allowed {
		t.Errorf("Decide returned %v, %v; want a grant", d, err)
	}
	if _, _, evals := s.Scripts(); evals != 1 {
		t.Errorf("%d texts of scripts were sent; want one EVAL", evals)
	}
}

func TestLoadRefusesAMissingPlan(t *testing.T) {
	t.Parallel()
	s := newStore(t, &clienttest.CountingClient{Client: emptyClient{}}, redisstore.Options{})
	if err := s.Load(t.Context(), nil); !errors.Is(err, penstock.ErrInvalid) {
		t.Errorf("Load of a nil plan: %v; want an ErrInvalid", err)
	}
	if err := s.Load(t.Context()); err != nil {
		t.Errorf("Load without limits: %v; want no error", err)
	}
}
