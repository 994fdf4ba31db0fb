package redisstore

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/hashslot"
	"github.com/penstock/penstock/internal/redisclient"
)

// A scriptedClient replies to Eval as the test says.
type scriptedClient struct {
	isSharded bool
	shardErr  error
	reply     func(script string, keys, args []string) (string, error)
	asked     []string // the scripts, keys and arguments of Eval
	deadlines []time.Duration
}

func (c *scriptedClient) EvalSha(context.Context, string, []string, []string) (string, error) {
	return "", errors.New("no script is known")
}

func (c *scriptedClient) Eval(ctx context.Context, script string, keys, args []string) (string, error) {
	c.asked = append(c.asked, fmt.Sprint(keys, args))
	if at, ok := ctx.Deadline(); ok {
		c.deadlines = append(c.deadlines, time.Until(at))
	}
	return c.reply(script, keys, args)
}

func (c *scriptedClient) Load(context.Context, string, []string) error { return nil }
func (c *scriptedClient) Sharded(context.Context) (bool, error)        { return c.isSharded, c.shardErr }
func (c *scriptedClient) Ping(context.Context) error                   { return nil }
func (c *scriptedClient) Close() error                                 { return nil }
func replying(reply string, err error) func(string, []string, []string) (string, error) {
	return func(string, []string, []string) (string, error) { return reply, err }
}

func newScripted(t *testing.T, c *scriptedClient) *Store {
	t.Helper()
	s, err := New(c, Options{})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestStoreNeedsAClientAndAPlan(t *testing.T) {
	if _, err := New(nil, Options{}); !errors.Is(err, penstock.ErrInvalid) || !strings.Contains(err.Error(), "the client is nil") {
		t.Errorf("a Store without a client: %v; want ErrInvalid", err)
	}
	if _, err := New(&scriptedClient{}, Options{Prefix: " "}); !errors.Is(err, penstock.ErrInvalid) {
		t.Errorf("a Store with a wrong prefix: %v; want ErrInvalid", err)
	}
	plan := penstock.PerSecond(1).MustCompile()
	for name, c := range map[string]struct {
		charge  penstock.Charge
		options Options
		isValid bool
	}{
		"valid": {penstock.Charge{Key: "k", Plan: plan}, Options{}, true}, "no plan": {penstock.Charge{Key: "k"}, Options{}, false}, "a wrong prefix": {penstock.Charge{Key: "k", Plan: plan}, Options{Prefix: "é"}, false},
	} {
		key, err := KeyOf(c.charge, c.options)
		if (err == nil) != c.isValid || (key != "") != c.isValid || err != nil && !errors.Is(err, penstock.ErrInvalid) {
			t.Errorf("%s: the key is %q, %v; want ErrInvalid if it is not valid", name, key, err)
		}
	}
	for n, isValid := range map[int]bool{maxPrefixBytes: true, maxPrefixBytes + 1: false} {
		if err := (Options{Prefix: strings.Repeat("p", n)}).Validate(); (err == nil) != isValid {
			t.Errorf("a prefix of %d bytes: %v; want it valid: %t", n, err, isValid)
		}
	}
}

// The layout of a Cluster has the primary of each slot.
func TestLayoutIsParsed(t *testing.T) {
	l, err := parseLayout("0 0 a:1\n1 99 b:2\n101 16383 a:1\n")
	if err != nil || len(l.servers) != 2 {
		t.Fatalf("the layout has the servers %v, %v; want a:1 and b:2", l, err)
	}
	for slot, want := range map[uint16]string{0: "a:1", 1: "b:2", 99: "b:2", 100: "", 101: "a:1", 16383: "a:1"} {
		if got := l.server(slot); got != want {
			t.Errorf("slot %d is on %q; want %q", slot, got, want)
		}
	}
	if l, err := parseLayout(""); err != nil || len(l.servers) != 0 || l.server(7) != "" {
		t.Errorf("an empty layout is %v, %v; want no server", l, err)
	}
	for _, wrong := range []string{"0 1", "0 1 a:1 b:2", "x 1 a:1", "0 x a:1", "0 16384 a:1", "-1 1 a:1", "2 1 a:1", "0 1 a:1\nx"} {
		if _, err := parseLayout(wrong); err == nil {
			t.Errorf("the layout %q is accepted; want an error", wrong)
		}
	}
}

// A query of the layout is repeated within a second. An answer that will not change soon pauses the
// queries for a minute.
func TestLayoutIsFetchedAgain(t *testing.T) {
	lost := errors.New("the connection was lost")
	for name, c := range map[string]struct {
		err     error
		reply   string
		queries int
		took    time.Duration
		pause   time.Duration
	}{
		"a layout":      {reply: "0 16383 a:1", queries: 1, pause: 500 * time.Millisecond},
		"not a layout":  {reply: "x", queries: 1, pause: time.Minute},
		"no right":      {err: ReplyError("NOPERM no"), queries: 1, pause: time.Minute},
		"no Cluster":    {err: ReplyError("ERR This instance has cluster support disabled"), queries: 1, pause: time.Minute},
		"a busy server": {err: ReplyError("BUSY wait"), queries: 1, pause: 500 * time.Millisecond},
		"a lost query":  {err: lost, queries: 5, took: time.Second, pause: 500 * time.Millisecond}, // after 0, 50, 150, 350 and 750 ms
	} {
		synctest.Test(t, func(t *testing.T) {
			fake := &scriptedClient{isSharded: true, reply: replying(c.reply, c.err)}
			s := newScripted(t, fake)
			defer s.Close()
			began := time.Now()
			pause := s.topology.fetchLayout(t.Context(), s)
			if len(fake.asked) != c.queries || time.Since(began) != c.took || pause != c.pause || (s.topology.layout.Load() != nil) != (name == "a layout") {
				t.Errorf("%s: %d queries in %v, and a pause of %v; want %d in %v, and %v", name, len(fake.asked), time.Since(began), pause, c.queries, c.took, c.pause)
			}
			for i, left := range fake.deadlines {
				const want = 250*time.Millisecond + time.Second // the client may read late replies for a second
				if left != want {
					t.Errorf("%s: query %d has %v; want %v", name, i, left, want)
				}
			}
		})
	}
	synctest.Test(t, func(t *testing.T) {
		fake := &scriptedClient{isSharded: true, reply: replying("0 16383 a:1", nil)}
		s := newScripted(t, fake)
		defer s.Close()
		charges := []penstock.Charge{{Key: "k", Plan: penstock.PerSecond(1).MustCompile(), Cost: 1}}
		if s.topology.requestRefresh(s); len(fake.asked) != 0 {
			t.Error("the layout is fetched although nobody needs it; want no query")
		}
		if name := s.Node(charges); name != "" || len(fake.asked) != 0 {
			t.Errorf("before a Cluster is found, the node is %q after %d queries; want none", name, len(fake.asked))
		}
		s.topology.isCluster.Store(true)
		for i, step := range []struct {
			after   time.Duration
			name    string
			queries int
		}{{0, "", 1}, {0, "a:1", 1}, {10 * time.Second, "a:1", 1}, {1, "a:1", 2}, {0, "a:1", 2}} {
			time.Sleep(step.after)
			name := s.Node(charges)
			synctest.Wait()
			if name != step.name || len(fake.asked) != step.queries {
				t.Errorf("step %d: the node is %q after %d queries; want %q after %d", i, name, len(fake.asked), step.name, step.queries)
			}
		}
		for i, step := range []struct {
			after   time.Duration
			queries int
		}{{500*time.Millisecond - 1, 2}, {1, 3}, {0, 3}} {
			time.Sleep(step.after)
			s.topology.requestRefresh(s)
			synctest.Wait()
			if len(fake.asked) != step.queries {
				t.Errorf("request %d: %d queries; want %d", i, len(fake.asked), step.queries)
			}
		}
		if name := s.Node(nil); name != "" {
			t.Errorf("the node of no charges is %q; want none", name)
		}
	})
}

// Each server of a Cluster has a key that it owns. Other servers have one key.
func TestEachServerHasAKey(t *testing.T) {
	for name, c := range map[string]struct {
		client *scriptedClient
		want   []string // the addresses; nil: an error
	}{
		"a single server": {&scriptedClient{reply: replying("", nil)}, []string{""}},
		"a Cluster":       {&scriptedClient{isSharded: true, reply: replying("0 8000 a:1\n8001 16382 b:2\n16383 16383 c:3", nil)}, []string{"a:1", "b:2", "c:3"}},
		"no Cluster":      {&scriptedClient{isSharded: true, reply: replying("", ReplyError("ERR unknown"))}, []string{""}},
		"no right":        {&scriptedClient{isSharded: true, reply: replying("", ReplyError("NOPERM no"))}, nil},
		"a lost query":    {&scriptedClient{isSharded: true, reply: replying("", errors.New("lost"))}, nil},
		"not a layout":    {&scriptedClient{isSharded: true, reply: replying("x", nil)}, nil},
		"no connection":   {&scriptedClient{shardErr: errors.New("lost"), reply: replying("", nil)}, nil},
	} {
		s := newScripted(t, c.client)
		keys, err := s.keyOfEachServer(t.Context(), "n")
		if (err != nil) != (c.want == nil) || len(keys) != len(c.want) {
			t.Errorf("%s: the keys are %v, %v; want those of %q", name, keys, err, c.want)
		}
		l, _ := parseLayout("0 8000 a:1\n8001 16382 b:2\n16383 16383 c:3")
		for _, address := range c.want {
			key := keys[address]
			if !strings.HasPrefix(key, "ps1{%@") || !strings.HasSuffix(key, "}n") || address != "" && l.server(hashslot.Of([]byte(key))) != address {
				t.Errorf("%s: the key of %q is %q; want one that it owns", name, address, key)
			}
		}
		reject := func(_, reply string) error { return fmt.Errorf("the reply is %q", reply) }
		if err := s.EvalOnEach(t.Context(), "return ''", "n", nil, reject); err == nil || penstock.AsStoreError(err) == nil {
			t.Errorf("%s: EvalOnEach returns %v; want a StoreError, since no reply is accepted", name, err)
		}
		s.Close()
	}
}

// A reply of a wrong form is an error of the store, and not of the caller.
func TestRepliesOfOtherScriptsAreChecked(t *testing.T) {
	for reply, want := range map[string]int{"7 1700000000 5 e": 7, "": -1, "x": -1, "7": -1, "7 1": -1, "7 1 x": -1, "7 1700000000 5": -1} {
		s := newScripted(t, &scriptedClient{reply: replying(reply, nil)})
		n, err := s.Heartbeat(t.Context(), "i", time.Second)
		if want >= 0 && (n != want || err != nil) || want < 0 && (n != 0 || penstock.AsStoreError(err) == nil) {
			t.Errorf("the reply %q: %d instances, %v; want %d, or a StoreError if that is negative", reply, n, err, want)
		}
		if got := s.clock.last.server; want >= 0 && !got.Equal(time.Unix(1_700_000_000, 5000)) {
			t.Errorf("the server's clock is read as %v; want 5 µs after the second", got)
		}
		s.Close()
	}
}

// A jump of the server's clock is more than 100 ms, and 0.1 % of the time between two readings.
func TestJumpsOfTheClock(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	at := func(sent, answered, server time.Duration) reading {
		return reading{sent: now.Add(sent), answered: now.Add(answered), server: now.Add(server)}
	}
	const s, ms = time.Second, time.Millisecond
	for _, c := range []struct {
		server        time.Duration // at a reading from 10 s to 11 s, after one from 0 s to 1 s that showed 0 s
		back, forward int64
	}{{10 * s, 0, 0}, {11*s + 111*ms, 0, 0}, {11*s + 111*ms + 1, 0, 1}, {9*s - 111*ms, 0, 0}, {9*s - 111*ms - 1, 1, 0}, {-time.Hour, 1, 0}, {time.Hour, 0, 1}} {
		var clock clock
		clock.addReading(at(0, s, 0))
		clock.addReading(at(10*s, 11*s, c.server))
		if clock.back != c.back || clock.forward != c.forward {
			t.Errorf("a clock that shows %v: %d jumps back and %d forward; want %d and %d", c.server, clock.back, clock.forward, c.back, c.forward)
		}
	}
}

// Only errors before the first command prove that nothing was sent.
func TestErrorsBeforeAnyCommand(t *testing.T) {
	for _, c := range []struct {
		err    error
		reason penstock.Reason
	}{
		{&net.OpError{Op: "dial", Err: errors.New("refused")}, penstock.ReasonUnreachable}, {&net.OpError{Op: "read", Err: errors.New("reset")}, penstock.ReasonUnknown},
		{&tls.CertificateVerificationError{Err: errors.New("wrong")}, penstock.ReasonUnreachable}, {redisclient.NotSent(errors.New("x")), penstock.ReasonUnreachable},
		{redisclient.TooLate(errors.New("x")), penstock.ReasonLate}, {context.DeadlineExceeded, penstock.ReasonTimeout}, {errors.New("x"), penstock.ReasonUnknown},
		{tls.AlertError(42), penstock.ReasonUnreachable}, {tls.AlertError(46), penstock.ReasonUnreachable}, {tls.AlertError(48), penstock.ReasonUnreachable}, {tls.AlertError(49), penstock.ReasonUnreachable},
		{tls.AlertError(116), penstock.ReasonUnreachable}, {tls.AlertError(43), penstock.ReasonUnreachable}, {tls.AlertError(44), penstock.ReasonUnreachable}, {tls.AlertError(45), penstock.ReasonUnreachable},
		{tls.AlertError(41), penstock.ReasonUnknown}, {tls.AlertError(47), penstock.ReasonUnknown}, {tls.AlertError(50), penstock.ReasonUnknown}, {tls.AlertError(80), penstock.ReasonUnknown}, {tls.AlertError(117), penstock.ReasonUnknown},
		{errors.Join(ReplyError("ERR x"), ReplyError("NOPERM no")), penstock.ReasonPermissionDenied}, {errors.Join(ReplyError("BUSY x"), ReplyError("OOM x")), penstock.ReasonOutOfMemory},
		{fmt.Errorf("load: %w", ReplyError("LOADING x")), penstock.ReasonNotReady},
	} {
		if got := classify(c.err); got != c.reason {
			t.Errorf("%v (%T) has the reason %v; want %v", c.err, c.err, got, c.reason)
		}
	}
	for n, isCut := range map[int]bool{200: false, 201: true} {
		text := ReplyError(strings.Repeat("x", n)).Error()
		if strings.HasSuffix(text, "…") != isCut || strings.Count(text, "x") != 200 {
			t.Errorf("an error of %d bytes is shown as %s; want 200 of them, cut: %t", n, text, isCut)
		}
	}
	if text := ReplyError(strings.Repeat("x", 199) + "é").Error(); text != strings.Repeat("x", 199)+"…" {
		t.Errorf("an error that is cut in a letter is shown as %s; want it without the half of the letter", text)
	}
}
