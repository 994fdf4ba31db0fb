package redisstore

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/luagen"
	"github.com/penstock/penstock/internal/redisclient"
	"github.com/penstock/penstock/redisstore/internal/coalesce"
)

// A forgetfulClient is of a server that knows a script only for some calls after each load.
type forgetfulClient struct {
	scriptedClient
	mu      sync.Mutex
	knows   int // calls by digest that find the script after a load
	left    int // of these
	loadErr error
	hangs   bool // a load lasts until its context ends
	log     []string
	text    string // the reply of each script
	loadFor []time.Duration
}

func (c *forgetfulClient) EvalSha(_ context.Context, _ string, _, args []string) (string, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.left > 0 {
		c.left--
		c.log = append(c.log, "run")
		return stampNumberOf(args) + c.text, nil
	}
	c.log = append(c.log, "missing")
	return "", ReplyError("NOSCRIPT no matching script")
}

func (c *forgetfulClient) Eval(_ context.Context, _ string, _, args []string) (string, error) {
	c.log = append(c.log, "text")
	return stampNumberOf(args) + c.text, nil
}

// stampNumberOf returns the number of the stamp in the arguments of a decision, with which the
// reply begins.
func stampNumberOf(args []string) string {
	const size = 2
	return args[0][stampedSize-size : stampedSize]
}

func (c *forgetfulClient) Load(ctx context.Context, _ string, scripts []string) error {
	c.mu.Lock()
	at, _ := ctx.Deadline()
	c.loadFor = append(c.loadFor, time.Until(at))
	c.log = append(c.log, fmt.Sprint("load ", len(scripts)))
	hangs := c.hangs
	c.mu.Unlock()
	if hangs {
		<-ctx.Done()
		return ctx.Err()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.left = c.knows
	return c.loadErr
}

func oneCharge() []penstock.Charge {
	return []penstock.Charge{{Key: "k", Plan: penstock.PerSecond(9).MustCompile(), Cost: 1}}
}

// replyOf returns the numbers of a reply.
func replyOf(numbers ...int64) string {
	var b []byte
	for _, n := range numbers {
		b = appendNumber(b, n)
	}
	return string(b)
}

// useScripts makes a store assume that the script of one charge was sent before.
func useScripts(s *Store, charges []penstock.Charge) {
	for _, script := range s.scripts.forLimits([]*penstock.Plan{charges[0].Plan}) {
		script.isUsed.Store(true)
	}
}

// A script that a server does not know is loaded, three times at most. Then its text is sent.
func TestScriptsAreLoadedAFewTimes(t *testing.T) {
	for name, c := range map[string]struct {
		client *forgetfulClient
		log    string // of two decisions
		stats  string // the results of Scripts
		errs   string // a part of both errors; "": none
	}{
		"a server that remembers": {client: &forgetfulClient{knows: 9}, log: "[missing load 1 run run]", stats: "1 1 0"},
		"a server that forgets each script": {client: &forgetfulClient{}, stats: "8 6 2",
			log: "[missing load 1 missing load 1 missing load 1 missing text missing load 1 missing load 1 missing load 1 missing text]"},
		"a load that fails":  {client: &forgetfulClient{loadErr: errors.New("lost")}, log: "[missing load 1 missing load 1]", stats: "2 0 0", errs: "load the script: lost"},
		"no right to a load": {client: &forgetfulClient{loadErr: ReplyError("NOPERM no")}, log: "[missing load 1 missing text missing text]", stats: "3 0 2"},
	} {
		synctest.Test(t, func(t *testing.T) {
			c.client.text = replyOf(8, 1)
			s, err := New(c.client, Options{})
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			useScripts(s, oneCharge())
			for range 2 {
				d, err := s.Decide(t.Context(), oneCharge())
				if c.errs == "" && (err != nil || !d.Allowed || d.Status(0).Remaining != 8) {
					t.Errorf("%s: %+v, %v; want it allowed with 8 units left", name, d, err)
				}
				if e := penstock.AsStoreError(err); c.errs != "" && (e == nil || e.MayBeCharged || !strings.Contains(err.Error(), c.errs)) {
					t.Errorf("%s: %v; want an error with %q, and nothing charged", name, err, c.errs)
				}
			}
			if got, stats := fmt.Sprint(c.client.log), fmt.Sprint(s.Scripts()); got != c.log || stats != c.stats {
				t.Errorf("%s: the calls are %s, and the counts %s; want %s and %s", name, got, stats, c.log, c.stats)
			}
			for _, left := range c.client.loadFor {
				if left != 3*time.Second { // the client may read late replies for a second
					t.Errorf("%s: a load may take %v; want 2 s and a second", name, left)
				}
			}
			// A right that was given later is noticed by Load.
			if c.client.loadErr = nil; s.Load(t.Context(), oneCharge()[0].Plan) != nil || s.loads.isForbidden.Load() {
				t.Errorf("%s: after a load that succeeded, loads are forbidden; want that they are not", name)
			}
		})
	}
}

// A farClient is of a server without scripts. A command takes one trip to the server and one back.
type farClient struct {
	scriptedClient
	trip     time.Duration // one of the two times
	isLoaded atomic.Bool
	loads    atomic.Int64
}

func (c *farClient) EvalSha(_ context.Context, _ string, _, args []string) (string, error) {
	time.Sleep(c.trip)
	isLoaded := c.isLoaded.Load()
	time.Sleep(c.trip)
	if !isLoaded {
		return "", ReplyError("NOSCRIPT no matching script")
	}
	return stampNumberOf(args) + replyOf(8, 1), nil
}

func (c *farClient) Load(context.Context, string, []string) error {
	time.Sleep(c.trip)
	c.isLoaded.Store(true)
	c.loads.Add(1)
	time.Sleep(c.trip)
	return nil
}

// The first decision takes two round trips at most, although the server lacks the script: the load
// does not wait for the reply that the script is missing.
func TestFirstDecisionLoadsItsScriptAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &farClient{trip: 25 * time.Millisecond}
		s, err := New(c, Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		for _, most := range []time.Duration{4 * c.trip, 2 * c.trip} {
			began := time.Now()
			if d, err := s.Decide(t.Context(), oneCharge()); err != nil || !d.Allowed {
				t.Errorf("%+v, %v; want it allowed", d, err)
			}
			if took := time.Since(began); took > most {
				t.Errorf("a decision takes %v; want at most %v", took, most)
			}
		}
		if n := c.loads.Load(); n != 1 {
			t.Errorf("%d loads; want 1", n)
		}
	})
}

// A caller leaves at its deadline. The load continues for others, within two seconds.
func TestLoadThatHangsEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &forgetfulClient{hangs: true}
		s, err := New(c, Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		useScripts(s, oneCharge())
		began := time.Now()
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		errs := make(chan error, 1)
		var ended time.Duration
		go func() {
			_, err := s.Decide(t.Context(), oneCharge())
			ended = time.Since(began)
			errs <- err
		}()
		synctest.Wait()
		if _, err := s.Decide(short, oneCharge()); time.Since(began) != time.Second || penstock.AsStoreError(err) == nil || penstock.AsStoreError(err).Reason != penstock.ReasonLate {
			t.Errorf("a caller with a second gets %v after %v; want ReasonLate after a second", err, time.Since(began))
		}
		if err := <-errs; err == nil || ended != 2*time.Second || penstock.AsStoreError(err).MayBeCharged {
			t.Errorf("a caller without a deadline gets %v after %v; want an error after 2 s, and nothing charged", err, ended)
		}
		if len(c.loadFor) != 1 || len(s.loads.inFlight) != 0 {
			t.Errorf("there were %d loads, and %d are in flight; want one that both callers shared, and none", len(c.loadFor), len(s.loads.inFlight))
		}
		s.work.Cancel()
		pending, isMine := s.loads.begin("m")
		s.startLoading("m", pending, new(script), "k")
		if <-pending.done; !isMine || pending.err != redisclient.ErrClosed {
			t.Errorf("after Close, a load ends with %v; want ErrClosed", pending.err)
		}
	})
}

// The size of a reply is that of all charges, in one of four forms.
func TestRepliesOfAWrongSizeAreErrors(t *testing.T) {
	for reply, isValid := range map[string]bool{
		replyOf(8, 1): true, replyOf(1, 8, 0, 1, 0): true, replyOf(1, 8, 0, 1, 0, 77): true, replyOf(8, 0, 1): true, "": false, replyOf(8): false, replyOf(8, 1, 0, 0): false,
		replyOf(1, 8, 0, 1, 0, 7, 8): false, replyOf(8, 1) + "x": false,
	} {
		c := &forgetfulClient{knows: 9, left: 9, text: reply}
		s, err := New(c, Options{})
		if err != nil {
			t.Fatal(err)
		}
		d, err := s.Decide(t.Context(), oneCharge())
		if (err == nil) != isValid || isValid && d.Status(0).Remaining != 8 {
			t.Errorf("a reply of %d bytes: %+v, %v; want it valid: %t", len(reply), d, err, isValid)
		}
		s.Close()
	}
}

// A reader of replies finds the results of each batch, and replies that are too short.
func TestRepliesOfUniformScripts(t *testing.T) {
	charges := []penstock.Charge{{Key: "k", Plan: penstock.PerSecond(9).MustCompile(), Cost: 2}, {Key: "k", Plan: penstock.PerHour(9).MustCompile(), Cost: 2}}
	read := func(text string, n int, charges []penstock.Charge) (results string, r *replyReader) {
		r = &replyReader{text: text}
		for range n {
			var w coalesce.Waiter
			r.next(charges, &w)
			if w.Err != nil {
				results += "error "
				continue
			}
			for i := range charges {
				s := w.Decision.Status(i)
				results += fmt.Sprint(s.Granted, "/", s.Remaining, "/", s.ResetAfter.Microseconds(), "/", s.Receipt, " ")
			}
		}
		return strings.TrimSpace(results), r
	}
	for _, c := range []struct {
		text        string
		n           int
		want        string
		isTruncated bool
	}{
		{replyOf(7, 10, 6, 20), 1, "2/7/10/0 2/6/20/0", false},
		{replyOf(7, 10, 6, 20, luagen.ReplyRepeat, 2, 2, 3, 4, 5), 3, "2/7/10/0 2/6/20/0 2/5/13/0 2/2/25/0 2/3/16/0 2/-2/30/0", false},
		{replyOf(luagen.ReplyReceipts, 7, 10, 70, 6, 20, 60), 1, "2/7/10/70 2/6/20/60", false},
		{replyOf(luagen.ReplyFull, 1, 7, 0, 10, 0, 5, 2, 6, 0, 20, 0, 6), 1, "1/7/10/5 2/6/20/6", false},
		{replyOf(luagen.ReplyCorrupt, 7, 10, 6, 20), 2, "error 2/7/10/0 2/6/20/0", false},
		{replyOf(7, 10, 6), 1, "", true},
		{replyOf(-9, 7, 10, 6, 20), 1, "", true},
		{replyOf(luagen.ReplyDenied, 7, 1, 10, 6, 2, 20), 1, "0/7/10/0 0/6/20/0", false},
		{"", 1, "", true},
		{replyOf(7, 10, 6, 20, luagen.ReplyRepeat, 2, 2, 3, 4), 1, "", true},
	} {
		got, r := read(c.text, c.n, charges)
		if r.isTruncated != c.isTruncated || !c.isTruncated && (got != c.want || r.text != "") {
			t.Errorf("%d batches of %d bytes are %q, too short: %t, with %d bytes left; want %q, too short: %t", c.n, len(c.text), got, r.isTruncated, len(r.text), c.want, c.isTruncated)
		}
	}
}

// A batch of several keys is charged so that all of it can be refunded.
func TestRefundsOfABatch(t *testing.T) {
	plan, queue := penstock.PerSecond(9).MustCompile(), penstock.PerSecond(9).With(penstock.LeakyBucket).WithBurst(9).MustCompile()
	charges := []penstock.Charge{
		{Key: "a", Plan: plan, Cost: 2}, {Key: "b", Plan: plan, Mode: penstock.Refund, Cost: 1}, {Key: "a", Plan: queue, Cost: 2, Patience: time.Second}, {Key: "c", Plan: plan, Mode: penstock.Peek},
		{Key: "b", Plan: plan, Mode: penstock.Draw, Cost: 5}, {Key: "c", Plan: plan, Mode: penstock.Force, Cost: 1}, {Key: "d", Plan: queue, Cost: 1, Holder: "h"},
	}
	refundable := toRefundable(charges)
	for i, want := range []bool{true, false, true, false, true, true, true} {
		c := refundable[i]
		isOwn := want && c.Plan.Algorithm().OwnsRefunds()
		if c.IsRefundable != want || (c.Holder != "") != isOwn || charges[i].Holder != "" && c.Holder != charges[i].Holder || charges[i].IsRefundable {
			t.Errorf("charge %d becomes %+v; want it refundable: %t, with a holder if its algorithm needs one", i, c, want)
		}
	}
	deniable, undeniable := groupByKey(charges)
	if got, want := fmt.Sprint(deniable, undeniable), "[[0 2] [3] [4] [6]] [[1] [5]]"; got != want {
		t.Errorf("the groups are %s; want %s", got, want)
	}
	refunds := refundsOf(charges, []penstock.Status{{Granted: 2, Receipt: 7}, {Granted: 1}, {Granted: 2}, {}, {Granted: 3}, {}, {}})
	var got []string
	for _, r := range refunds {
		got = append(got, fmt.Sprintf("%s %t %d %v %d", r.Key, r.Mode == penstock.Refund, r.Cost, r.Patience, r.Receipt))
	}
	if want := "[a true 2 0s 7 a true 2 0s 0 b true 3 0s 0]"; fmt.Sprint(got) != want {
		t.Errorf("the refunds are %v; want %s", got, want)
	}
	for _, c := range []struct {
		err  error
		want bool
	}{{nil, false}, {errors.New("x"), true}, {penstock.NewStoreError(penstock.ReasonTimeout, nil), true}, {penstock.NewStoreError(penstock.ReasonUnreachable, nil), false}} {
		if mayBeCharged(c.err) != c.want {
			t.Errorf("after %v, charges may have been made: %t; want %t", c.err, !c.want, c.want)
		}
	}
	for _, c := range []struct {
		statuses []penstock.Status
		want     bool
	}{{nil, false}, {[]penstock.Status{{}, {}}, false}, {[]penstock.Status{{}, {RetryAfter: 1}}, true}} {
		if isDenied(c.statuses) != c.want {
			t.Errorf("the statuses %v are of a denial: %t; want %t", c.statuses, !c.want, c.want)
		}
	}
}

// The memory of a call that failed is not reused, because the client may still read it.
func TestMemoryOfAFailedCallIsNotReused(t *testing.T) {
	s, err := New(&forgetfulClient{knows: 99, left: 99, text: "not a reply"}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	made := 0
	s.calls.New = func() any {
		made++
		return new(call)
	}
	for range 9 {
		if _, err := s.Decide(t.Context(), oneCharge()); err == nil {
			t.Error("a reply that is malformed is a decision; want an error")
		}
	}
	if made != 9 {
		t.Errorf("9 calls that failed had the memory of %d; want 9", made)
	}
}
