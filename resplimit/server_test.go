package resplimit

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/guard"
	"github.com/penstock/penstock/internal/batches"
	"github.com/penstock/penstock/internal/testing/effort"
	"github.com/penstock/penstock/internal/testing/eventually"
	"github.com/penstock/penstock/internal/testing/redistest"
	"github.com/penstock/penstock/memstore"
	"github.com/penstock/penstock/redisstore"
)

func TestUnsafeOptionsAreErrors(t *testing.T) {
	for _, o := range []Options{{}, {Credentials: []Credential{{User: "a"}}}, {AllowAnonymous: true, LimitName: "No Name"}} {
		if _, err := New(memstore.New(memstore.Options{}), nil, o); !errors.Is(err, penstock.ErrInvalid) {
			t.Errorf("the error for the options %+v is %v; want one that wraps ErrInvalid", o, err)
		}
	}
}

// The test sends every command before and after AUTH.
func TestThereIsNoDecisionWithoutACredential(t *testing.T) {
	var decisions atomic.Int64
	memory := memstore.New(memstore.Options{})
	store := penstock.StoreFunc(func(ctx context.Context, charges []penstock.Charge) (penstock.Decision, error) {
		decisions.Add(1)
		return memory.Decide(ctx, charges)
	})
	credentials := []Credential{{"ann", "secret"}, {"default", "other"}, {"", "token"}} // a token is for any user
	_, addr := serve(t, store, controllerOf(t, store, guard.FailClosed, penstock.PerSecond(10)), Options{Credentials: credentials})
	lines := []string{"CL.THROTTLE a 1 1 1", "THROTTLE a 1 1 1", "PENSTOCK.CHECK search a", "DEL a", "UNLINK a b", "PING", "ECHO a", "INFO", "CLIENT ID", "CLIENT SETNAME a",
		"COMMAND", "CONFIG GET save", "SELECT 0", "CLUSTER INFO", "NONESUCH"}
	client := connect(t, addr)
	for _, line := range lines {
		client.expect(line, "-NOAUTH Authentication required.")
	}
	for _, line := range []string{"AUTH wrong", "AUTH ann other", "AUTH other secret", "AUTH ann", "HELLO 3 AUTH ann token2", "AUTH ann secre", "AUTH ann secrets"} {
		client.expect(line, "-"+errWrongPass)
	}
	client.expect("HELLO 3", "-"+errNoAuth)
	client.expect("PING", "-NOAUTH Authentication required.")
	if n := decisions.Load(); n != 0 {
		t.Fatalf("%d decisions were made without a credential; want none", n)
	}
	for _, line := range []string{"AUTH ann secret", "AUTH default other", "AUTH other", "AUTH token", "AUTH anyone token"} {
		client.expect("RESET", "+RESET")
		client.expect("PING", "-NOAUTH Authentication required.")
		client.expect(line, "+OK")
		client.expect("PING", "+PONG")
	}
	client.expect("CL.THROTTLE a 1 1 1", "[0 2 1 -1 1]")
	client.expect("AUTH wrong", "-"+errWrongPass)
	client.expect("PING", "+PONG") // as in Redis, the client stays authenticated
	client.expect("RESET", "+RESET")
	client.expect("HELLO 3 AUTH ann secret SETNAME me", "{server:penstock version:7.0.0 proto:3 id:1 mode:standalone role:master modules:[]}")
	client.expect("CLIENT GETNAME", "me")
}

func TestAConnectionMayTryFewPasswords(t *testing.T) {
	_, addr := serve(t, memstore.New(memstore.Options{}), nil, Options{Credentials: []Credential{{"", "token"}}, ReadTimeout: 2 * testTimeout})
	for _, line := range []string{"AUTH wrong", "HELLO 3 AUTH default wrong"} {
		client := connect(t, addr)
		for range maxWrongPasswords {
			client.expect(line, "-"+errWrongPass)
		}
		client.expectEnd()
	}
}

func TestVersionThreeHasItsOwnTypes(t *testing.T) {
	_, addr := serve(t, memstore.New(memstore.Options{}), nil, Options{})
	client := connect(t, addr)
	client.expect("HELLO", "[server penstock version 7.0.0 proto 2 id 1 mode standalone role master modules []]")
	client.expect("CONFIG GET save", "[]")
	client.expect("HELLO 3", "{server:penstock version:7.0.0 proto:3 id:1 mode:standalone role:master modules:[]}")
	client.expect("CONFIG GET save", "{}")
	client.expect("CLIENT ID", "1")
	client.expect("COMMAND DOCS", "{}")
	client.expect("COMMAND", "[]")
	client.expect("COMMAND COUNT", "0")
	client.expect("CLIENT GETNAME", "nil")
	for _, line := range []string{"CLIENT SETINFO LIB-NAME a", "CLIENT TRACKING ON OPTIN", "CLIENT NO-EVICT on", "CLIENT NO-TOUCH on"} {
		client.expect(line, "+OK")
	}
	client.expect("CLIENT MAINT_NOTIFICATIONS ON", "-ERR unknown subcommand 'MAINT_NOTIFICATIONS'. Try CLIENT HELP.")
	if got := client.do("INFO"); !strings.Contains(got, "loading:0\r\n") || !strings.Contains(got, "connected_clients:1\r\n") || !strings.HasPrefix(got, "txt:") {
		t.Errorf("the reply to INFO is %q; want a verbatim text with loading:0 and one client", got)
	}
	if got := client.do("CLIENT INFO"); !strings.Contains(got, "resp=3") {
		t.Errorf("the reply to CLIENT INFO is %q; want one with resp=3", got)
	}
	client.expect("QUIT", "+OK")
	client.expectEnd()
}

// A gatheringStore decides nothing until the awaited number of calls is in flight, or until the
// test closes release.
type gatheringStore struct {
	penstock.Store
	awaited  int64         // if this is more than can be in flight, only the test ends the wait
	inFlight atomic.Int64  // calls that are in flight now
	most     atomic.Int64  // the largest value of inFlight so far
	release  chan struct{} // closed when the awaited number of calls is in flight
	once     sync.Once     // closes release
}

func (g *gatheringStore) Decide(ctx context.Context, charges []penstock.Charge) (penstock.Decision, error) {
	inFlight := g.inFlight.Add(1)
	defer g.inFlight.Add(-1)
	for most := g.most.Load(); inFlight > most && !g.most.CompareAndSwap(most, inFlight); most = g.most.Load() {
	}
	if inFlight == g.awaited {
		g.once.Do(func() { close(g.release) })
	}
	select {
	case <-g.release:
	case <-time.After(testTimeout):
	case <-ctx.Done():
		return penstock.Decision{}, ctx.Err()
	}
	return g.Store.Decide(ctx, charges)
}

// inLists returns a store that decides lists.
func inLists(s penstock.Store) penstock.Store { return batches.Of(s) }

func TestAPipelineIsDecidedTogether(t *testing.T) {
	const n = 32
	for _, parallel := range []int{n, 2 * n} {
		store := &gatheringStore{Store: memstore.New(memstore.Options{}), awaited: n, release: make(chan struct{})}
		_, addr := serve(t, store, nil, Options{Parallel: parallel})
		client := connect(t, addr)
		var pipeline strings.Builder
		for i := range n {
			pipeline.WriteString(encode("CL.THROTTLE", fmt.Sprint("key", i), fmt.Sprint(i), "1", "60"))
		}
		client.send(pipeline.String() + encode("ECHO", "end"))
		for i := range n {
			if got, want := client.reply(), fmt.Sprintf("[0 %d %d -1 60]", i+1, i); got != want {
				t.Errorf("reply %d is %s; want %s", i, got, want)
			}
		}
		if got := client.reply(); got != "end" {
			t.Errorf("the last reply is %q; want that of ECHO", got)
		}
	}
}

func TestParallelDecisionsAreBounded(t *testing.T) {
	store := &gatheringStore{Store: memstore.New(memstore.Options{}), awaited: 6, release: make(chan struct{})}
	s, addr := serve(t, store, nil, Options{Parallel: 64, maxParallel: 4}) // 5 goroutines decide: 4, and that of the connection
	client := connect(t, addr)
	var pipeline strings.Builder
	for i := range 40 {
		pipeline.WriteString(encode("CL.THROTTLE", fmt.Sprint("key", i), "1", "1", "60"))
	}
	client.send(pipeline.String())
	eventually.True(t, "decisions are in flight", func() bool { return store.inFlight.Load() >= 5 })
	if n := s.workers.Running(); n != 4 {
		t.Errorf("besides the goroutine of the connection, %d goroutines decide; want 4", n)
	}
	store.once.Do(func() { close(store.release) })
	for range 40 {
		if got := client.reply(); got != "[0 2 1 -1 60]" {
			t.Errorf("the reply is %q; want [0 2 1 -1 60]", got)
		}
	}
	if n := store.most.Load(); n != 5 {
		t.Errorf("at most %d decisions were in flight at the same time; want 5", n)
	}
}

func TestParallelDecisionsOfListsAreBounded(t *testing.T) {
	store := &gatheringStore{Store: memstore.New(memstore.Options{}), awaited: 6, release: make(chan struct{})}
	s, addr := serve(t, inLists(store), nil, Options{Parallel: 64, maxParallel: 4}) // a list has 5 jobs: its first, and 4 others
	client := connect(t, addr)
	var pipeline strings.Builder
	for i := range 40 {
		pipeline.WriteString(encode("CL.THROTTLE", fmt.Sprint("key", i%20), "1", "1", "60"))
	}
	client.send(pipeline.String())
	eventually.True(t, "decisions are in flight", func() bool { return store.inFlight.Load() >= 5 })
	store.once.Do(func() { close(store.release) })
	for i := range 40 {
		if got, want := client.reply(), fmt.Sprintf("[0 2 %d -1 %d]", 1-i/20, 60+i/20*60); got != want {
			t.Errorf("reply %d is %q; want %q", i, got, want)
		}
	}
	if n := store.most.Load(); n != 5 {
		t.Errorf("at most %d decisions were in flight at the same time; want 5", n)
	}
	eventually.True(t, "no job counts for the bound", func() bool { return s.extraJobs.Load() == 0 })
}

// A panic in a store that decides lists gives each command an error.
func TestPanicOfAListIsContained(t *testing.T) {
	expectPanic(t, "for the test")
	store := batches.Func(func(_ context.Context, list []*batches.Batch) {
		list[0].Err = nil // as if the first batch were decided
		panic("for the test")
	})
	_, addr := serve(t, store, nil, Options{})
	client := connect(t, addr)
	client.send(encode("CL.THROTTLE", "a", "1", "1", "60") + encode("CL.THROTTLE", "b", "1", "1", "60") + encode("ECHO", "end"))
	for range 2 {
		if got := client.reply(); !strings.Contains(got, "UNAVAILABLE") {
			t.Errorf("the reply is %q; want an error with UNAVAILABLE", got)
		}
	}
	if got := client.reply(); got != "end" {
		t.Errorf("the last reply is %q; want that of ECHO", got)
	}
}

// An exclusiveStore fails the test if two decisions of one key overlap.
type exclusiveStore struct {
	penstock.Store
	t    *testing.T
	busy sync.Map
}

func (e *exclusiveStore) Decide(ctx context.Context, charges []penstock.Charge) (penstock.Decision, error) {
	for i := range charges {
		if _, isBusy := e.busy.LoadOrStore(charges[i].Key, true); isBusy {
			e.t.Errorf("two decisions of %q overlap; want one after the other", charges[i].Key)
		}
		defer e.busy.Delete(charges[i].Key)
	}
	for range 20 {
		runtime.Gosched() // so that another decision of the key could begin
	}
	return e.Store.Decide(ctx, charges)
}

func TestCommandsOfOneKeyKeepTheirOrder(t *testing.T) {
	for _, wrap := range []func(penstock.Store) penstock.Store{
		func(s penstock.Store) penstock.Store { return s },
		inLists,
	} {
		testOrder(t, wrap(&exclusiveStore{Store: memstore.New(memstore.Options{Now: newClock().Now}), t: t}))
	}
}

// testOrder sends a pipeline of commands for seven keys, and compares the replies with those that
// their order demands.
func testOrder(t *testing.T, store penstock.Store) {
	_, addr := serve(t, store, nil, Options{})
	client := connect(t, addr)
	var pipeline strings.Builder
	var want []string
	used := map[string]int{} // units by key
	// Every 90th command deletes a key, and every 25th deletes three keys. The others spend a unit.
	for i := range 3 * maxJobs {
		key := fmt.Sprint("key", i%7)
		if i%90 == 89 {
			pipeline.WriteString(encode("DEL", key))
			used[key] = 0
			want = append(want, "1")
			continue
		}
		if i%25 == 24 {
			keys := []string{"DEL"}
			for k := range 3 {
				keys = append(keys, fmt.Sprint("key", (i+k)%7))
				used[keys[k+1]] = 0
			}
			pipeline.WriteString(encode(keys...))
			want = append(want, "3")
			continue
		}
		used[key]++
		pipeline.WriteString(encode("CL.THROTTLE", key, "999", "1", "3600"))
		want = append(want, fmt.Sprintf("[0 1000 %d -1 %d]", 1000-used[key], 3600*used[key]))
	}
	go client.send(pipeline.String())
	for i := range want {
		if got := client.reply(); got != want[i] {
			t.Fatalf("reply %d is %s; want %s", i, got, want[i])
		}
	}
}

func TestAPipelineTakesFewScriptsOfRedis(t *testing.T) {
	server := redistest.Start(t)
	store, err := redisstore.Open(server.URL(), redisstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	_, addr := serve(t, store, nil, Options{})
	client := connect(t, addr)
	client.do("CL.THROTTLE first 1 1 60") // loads a script
	before, _, err := server.CommandStats("evalsha")
	if err != nil {
		t.Fatal(err)
	}
	const rounds, n = 20, 60
	for round := range rounds {
		var pipeline strings.Builder
		for i := range n {
			pipeline.WriteString(encode("CL.THROTTLE", fmt.Sprintf("key:%d:%d", round, i), "1", "1", "60"))
		}
		client.send(pipeline.String())
		for range n {
			if got := client.reply(); got != "[0 2 1 -1 60]" {
				t.Fatalf("the reply is %s; want [0 2 1 -1 60]", got)
			}
		}
	}
	after, _, err := server.CommandStats("evalsha")
	if err != nil {
		t.Fatal(err)
	}
	scripts := after - before
	t.Logf("%d commands took %d scripts", rounds*n, scripts)
	if scripts > rounds*n/3 {
		t.Errorf("%d commands took %d scripts; want at most %d", rounds*n, scripts, rounds*n/3)
	}
}

func TestFailingStoreGivesAnErrorOrTheFallback(t *testing.T) {
	expectPanic(t, "a bug in a store")
	fallback := func(mode guard.FailureMode) penstock.Store {
		return penstock.Wrap(newFailingStore(penstock.ReasonTimeout), guard.Fallback(guard.FallbackOptions{OnFailure: mode}))
	}
	panics := penstock.StoreFunc(func(context.Context, []penstock.Charge) (penstock.Decision, error) { panic("a bug in a store") })
	const (
		timeout     = "-UNAVAILABLE timeout: the store gave no decision; the charge may have been made"
		unreachable = "-UNAVAILABLE unreachable: the store gave no decision; nothing was charged"
		unknown     = "-UNAVAILABLE unknown: the store gave no decision; the charge may have been made"
	)
	for _, c := range []struct {
		name          string
		store         penstock.Store
		throttle, del string // the replies to CL.THROTTLE and DEL
	}{
		{name: "timeout", store: newFailingStore(penstock.ReasonTimeout), throttle: timeout, del: timeout},
		{name: "unreachable", store: newFailingStore(penstock.ReasonUnreachable), throttle: unreachable, del: unreachable},
		{name: "panic", store: panics, throttle: unknown, del: unknown},
		{name: "local", store: fallback(guard.FailLocal), throttle: "[0 16 15 -1 20]", del: "1"},
		{name: "open", store: fallback(guard.FailOpen), throttle: "[0 16 16 -1 0]", del: "1"},
		{name: "closed", store: fallback(guard.FailClosed), throttle: "[1 16 0 1 0]", del: timeout},
	} {
		_, addr := serve(t, c.store, nil, Options{})
		client := connect(t, addr)
		client.send(encode("CL.THROTTLE", "a", "15", "3", "60") + encode("CL.THROTTLE", "b", "15", "3", "60") + encode("DEL", "a") + encode("PING"))
		for i, want := range []string{c.throttle, c.throttle, c.del, "+PONG"} {
			if got := client.reply(); got != want {
				t.Errorf("%s: reply %d is %q; want %q", c.name, i, got, want)
			}
		}
	}
	day := penstock.PerDay(100).WithBurst(16)
	for mode, want := range map[guard.FailureMode]string{
		guard.FailLocal:  "[0 16 15 -1 864 allowed search.day]",
		guard.FailOpen:   "[0 16 16 -1 0 failed_open search.day]",
		guard.FailClosed: "[1 16 0 1 0 failed_closed search.day]",
	} {
		_, addr := serve(t, nil, controllerOf(t, newFailingStore(penstock.ReasonTimeout), mode, day), Options{})
		connect(t, addr).expect("PENSTOCK.CHECK search user:1", want)
	}
}

func TestPanicOfANamedRuleIsContained(t *testing.T) {
	expectPanic(t, "for the test")
	store := penstock.StoreFunc(func(context.Context, []penstock.Charge) (penstock.Decision, error) { panic("for the test") })
	_, addr := serve(t, nil, controllerOf(t, store, guard.FailOpen, penstock.PerMinute(60)), Options{})
	client := connect(t, addr)
	if got := client.do("PENSTOCK.CHECK search user:1"); !strings.HasPrefix(got, "-") {
		t.Errorf("the reply is %q; want an error", got)
	}
	client.expect("PING", "+PONG")
}

func TestRuleIsCalledByItsName(t *testing.T) {
	store := memstore.New(memstore.Options{Now: newClock().Now})
	c := controllerOf(t, store, guard.FailClosed, penstock.PerMinute(60).WithBurst(3), penstock.PerDay(1000))
	_, addr := serve(t, nil, c, Options{})
	client := connect(t, addr)
	client.expect("PENSTOCK.CHECK search user:1", "[0 3 2 -1 1 allowed search.minute]")
	client.expect("PENSTOCK.CHECK search user:1 2", "[0 3 0 -1 3 allowed search.minute]")
	client.expect("penstock.check search user:1", "[1 3 0 1 3 denied search.minute]")
	client.expect("PENSTOCK.CHECK search user:1 0", "[0 3 0 -1 3 allowed search.minute]")
	client.expect("PENSTOCK.CHECK search user:2 4", "[1 3 3 -1 0 denied search.minute]")
	client.expect("PENSTOCK.CHECK free user:2", "[0 -1 -1 -1 0 unlimited ]")
	for line, want := range map[string]string{
		"PENSTOCK.CHECK none a": "no rule of this name", "PENSTOCK.CHECK search a -1": "cost", "PENSTOCK.CHECK search a x": "not an integer",
		"PENSTOCK.CHECK search": "wrong number", "CL.THROTTLE a 1 1 1": "no store", "DEL a": "no store",
	} {
		if got := client.do(line); !strings.HasPrefix(got, "-ERR ") || !strings.Contains(got, want) {
			t.Errorf("%s: the reply is %q; want an error that contains %q", line, got, want)
		}
	}
}

func TestShutdownAnswersCommandsInFlight(t *testing.T) {
	store := &gatheringStore{Store: memstore.New(memstore.Options{}), awaited: 2, release: make(chan struct{})}
	s, addr := serve(t, store, nil, Options{})
	idle, busy := connect(t, addr), connect(t, addr)
	idle.expect("PING", "+PONG")
	busy.send(encode("CL.THROTTLE", "a", "1", "1", "60"))
	eventually.True(t, "a decision is in flight", func() bool { return store.inFlight.Load() == 1 })

	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := s.Shutdown(ctx); err != context.Canceled {
		t.Errorf("Shutdown with a canceled context returns %v; want context.Canceled", err)
	}
	idle.expectEnd()
	if _, err := net.Dial("tcp", addr); err == nil {
		t.Error("after Shutdown a client can connect; want an error")
	}
	close(store.release)
	if got := busy.reply(); got != "[0 2 1 -1 60]" {
		t.Errorf("the reply to the command in flight is %q; want [0 2 1 -1 60]", got)
	}
	busy.expectEnd()
	if err := s.Shutdown(context.Background()); err != nil || s.Connections() != 0 {
		t.Errorf("Shutdown returns %v, and %d clients are connected; want nil and 0", err, s.Connections())
	}
	if err := s.Serve(closedListener{}); !errors.Is(err, ErrServerClosed) {
		t.Errorf("Serve after Shutdown returns %v; want ErrServerClosed", err)
	}
}

// closedListener is a listener of which only Close may be called.
type closedListener struct{ net.Listener }

func (closedListener) Close() error { return nil }

func TestCloseEndsDecisionsInFlight(t *testing.T) {
	store := &gatheringStore{Store: memstore.New(memstore.Options{}), awaited: 2, release: make(chan struct{})}
	s, addr := serve(t, store, nil, Options{})
	client := connect(t, addr)
	client.send(encode("CL.THROTTLE", "a", "1", "1", "60"))
	eventually.True(t, "a decision is in flight", func() bool { return store.inFlight.Load() == 1 })
	s.Close()
	if n := store.inFlight.Load(); n != 0 || s.Connections() != 0 {
		t.Errorf("after Close, %d decisions are in flight and %d clients are connected; want 0 of both", n, s.Connections())
	}
	client.expectEnd()
}

func TestConnectionsAreBounded(t *testing.T) {
	s, addr := serve(t, memstore.New(memstore.Options{}), nil, Options{MaxConnections: 2})
	first, second := connect(t, addr), connect(t, addr)
	first.expect("PING", "+PONG")
	second.expect("PING", "+PONG")
	third := connect(t, addr)
	if got := third.reply(); got != "-ERR max number of clients reached" {
		t.Errorf("the reply to the third client is %q; want that the maximum is reached", got)
	}
	third.expectEnd()
	first.Close()
	eventually.True(t, "one client is connected", func() bool { return s.Connections() == 1 })
	connect(t, addr).expect("PING", "+PONG")
}

func TestSlowClientsAreDisconnected(t *testing.T) {
	short := Options{IdleTimeout: 50 * time.Millisecond, ReadTimeout: 50 * time.Millisecond, writeTimeout: 50 * time.Millisecond}
	long := Options{IdleTimeout: testTimeout, ReadTimeout: 50 * time.Millisecond, writeTimeout: 50 * time.Millisecond}
	authenticated := long
	authenticated.Credentials = []Credential{{"", "token"}}
	for name, c := range map[string]struct {
		options Options
		act     func(client *testClient)
	}{
		"silent":                                {short, func(*testClient) {}},
		"silent after a command":                {short, func(client *testClient) { client.send(encode("PING")) }},
		"part of a command":                     {long, func(client *testClient) { client.send(encode("PING") + "*1\r\n$4") }},
		"part of a line":                        {long, func(client *testClient) { client.send("PING") }},
		"never authenticated":                   {authenticated, func(*testClient) {}},
		"sends commands without authentication": {authenticated, func(client *testClient) { repeat(client, encode("PING")) }},
		"resets before AUTH":                    {authenticated, func(client *testClient) { repeat(client, encode("RESET")) }},
		"a byte now and then":                   {long, func(client *testClient) { repeat(client, "a") }},
		"does not read its reply": {long, func(client *testClient) {
			repeat(client, strings.Repeat(encode("ECHO", strings.Repeat("a", maxBulk)), 16))
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, addr := serve(t, memstore.New(memstore.Options{}), nil, c.options)
			client := connect(t, addr)
			eventually.True(t, "the client is connected", func() bool { return s.lastID.Load() == 1 })
			c.act(client)
			eventually.True(t, "the client is disconnected", func() bool { return s.Connections() == 0 })
		})
	}
}

// A TLS handshake gets the time of a command, and not the longer time of an idle client.
func TestHandshakesThatDoNotEndAreDisconnected(t *testing.T) {
	s, err := New(memstore.New(memstore.Options{}), nil, Options{AllowAnonymous: true, IdleTimeout: testTimeout, ReadTimeout: 50 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := tls.NewListener(tcp, &tls.Config{GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
		return nil, errors.New("the handshake must not get here")
	}})
	go s.Serve(l)
	defer s.Close()
	for i, part := range []string{"", "\x16\x03\x01"} { // nothing, and the beginning of a handshake
		conn, err := net.Dial("tcp", tcp.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		io.WriteString(conn, part)
		eventually.True(t, "the client is connected", func() bool { return s.lastID.Load() == int64(i+1) })
		eventually.True(t, "the client is disconnected", func() bool { return s.Connections() == 0 })
	}
}

// A scriptedConn returns one of its parts in each read, and records the deadlines of the reads.
type scriptedConn struct {
	net.Conn
	parts     []string // those that were not read yet
	deadlines []time.Time
}

func (c *scriptedConn) Read(p []byte) (int, error) {
	if len(c.parts) == 0 {
		return 0, io.EOF
	}
	n := copy(p, c.parts[0])
	c.parts = c.parts[1:]
	return n, nil
}

func (c *scriptedConn) Write(p []byte) (int, error)      { return len(p), nil }
func (c *scriptedConn) SetWriteDeadline(time.Time) error { return nil }
func (c *scriptedConn) SetReadDeadline(at time.Time) error {
	c.deadlines = append(c.deadlines, at)
	return nil
}

func TestDeadlinesDoNotMoveWhileACommandArrives(t *testing.T) {
	const idle, read = time.Hour, time.Minute
	for _, c := range []struct {
		name        string
		credentials []Credential
		parts       []string
		isSame      []bool // for each read, whether its deadline is that of the read before
		isIdle      []bool // for each read, whether its deadline is that of an idle client
	}{
		{
			name:   "anonymous",
			parts:  []string{"PI", "NG", "\r\nPI", "NG\r", "\n"},
			isSame: []bool{false, false, true, false, true, false},
			isIdle: []bool{true, false, false, false, false, true},
		},
		{
			name:        "before AUTH",
			credentials: []Credential{{"", "token"}},
			parts:       []string{"PI", "NG\r\n", "RESET\r\n", "AUTH token\r\n"},
			isSame:      []bool{false, true, true, true, false},
			isIdle:      []bool{false, false, false, false, true},
		},
	} {
		s, err := New(memstore.New(memstore.Options{}), nil, Options{Credentials: c.credentials, AllowAnonymous: c.credentials == nil, IdleTimeout: idle, ReadTimeout: read})
		if err != nil {
			t.Fatal(err)
		}
		conn := &scriptedConn{parts: c.parts}
		newClient(s, conn).serve()
		if len(conn.deadlines) != len(c.isSame) {
			t.Fatalf("%s: there were %d deadlines; want %d", c.name, len(conn.deadlines), len(c.isSame))
		}
		for i, at := range conn.deadlines {
			if isIdle := time.Until(at) > 2*read; isIdle != c.isIdle[i] {
				t.Errorf("%s: read %d has the deadline of an idle client: %v; want %v", c.name, i, isIdle, c.isIdle[i])
			}
			if i == 0 {
				continue
			}
			if isSame := at.Equal(conn.deadlines[i-1]); isSame != c.isSame[i] {
				t.Errorf("%s: read %d has the same deadline as the read before: %v; want %v", c.name, i, isSame, c.isSame[i])
			}
		}
	}
}

// repeat sends a text until the server closes the connection. It fails the test if the server still
// reads after testTimeout.
func repeat(client *testClient, text string) {
	for {
		if _, err := io.WriteString(client, text); errors.Is(err, os.ErrDeadlineExceeded) {
			client.t.Errorf("the server still reads after %v; want that it closes the connection", testTimeout)
			return
		} else if err != nil {
			return
		}
		if len(text) == 1 { // a byte now and then
			time.Sleep(5 * time.Millisecond)
		}
	}
}

// A memoryListener accepts connections that need no file descriptors.
type memoryListener struct {
	conns chan net.Conn
	end   chan struct{}
	once  sync.Once
}

func newMemoryListener() *memoryListener {
	return &memoryListener{conns: make(chan net.Conn), end: make(chan struct{})}
}

func (l *memoryListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.end:
		return nil, net.ErrClosed
	}
}
func (l *memoryListener) Close() error   { l.once.Do(func() { close(l.end) }); return nil }
func (l *memoryListener) Addr() net.Addr { return &net.TCPAddr{} }

func (l *memoryListener) dial() net.Conn {
	client, server := net.Pipe()
	l.conns <- server
	return client
}

// memoryInUse returns how many bytes the heap and the stacks of this process use.
func memoryInUse() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapInuse + m.StackInuse
}

func TestTenThousandConnectionsComeAndGo(t *testing.T) {
	effort.SkipUnderRace(t)
	s, err := New(memstore.New(memstore.Options{}), nil, Options{AllowAnonymous: true})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	l := newMemoryListener()
	go s.Serve(l)
	goroutines, before := runtime.NumGoroutine(), memoryInUse()
	const n = 10_000
	conns := make([]net.Conn, 0, n)
	command := []byte(encode("CL.THROTTLE", "a", "1", "1", "60"))
	reply := make([]byte, 256)
	for i := range n {
		c := l.dial()
		conns = append(conns, c)
		if i%10 == 0 { // the others never send anything
			if _, err := c.Write(command); err != nil {
				t.Fatal(err)
			}
			if _, err := c.Read(reply); err != nil {
				t.Fatal(err)
			}
		}
	}
	eventually.True(t, "all clients are connected", func() bool { return s.Connections() == n })
	bytesOfEach := (memoryInUse() - before) / n
	t.Logf("an idle connection takes %d bytes, in the server and the client together", bytesOfEach)
	if bytesOfEach > 16<<10 {
		t.Errorf("an idle connection takes %d bytes, in the server and the client together; want at most 16 KB", bytesOfEach)
	}
	for _, c := range conns {
		c.Close()
	}
	eventually.True(t, "no client is connected, and their goroutines have ended", func() bool { return s.Connections() == 0 && runtime.NumGoroutine() <= goroutines+5 })
}

// The test's clients send as much as they may without completing a command.
func TestMemoryOfHostileConnectionsIsBounded(t *testing.T) {
	effort.SkipUnderRace(t)
	s, err := New(memstore.New(memstore.Options{}), nil, Options{AllowAnonymous: true, ReadTimeout: testTimeout})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	l := newMemoryListener()
	go s.Serve(l)
	argument := fmt.Sprintf("$%d\r\n%s\r\n", maxBulk, strings.Repeat("a", maxBulk))
	inputs := []string{strings.Repeat("a", maxInline), "*16\r\n" + strings.Repeat(argument, 15) + "$4096\r\n" + strings.Repeat("a", maxBulk)}
	const n = 300
	before := memoryInUse()
	var conns []net.Conn
	for i := range n {
		c := l.dial()
		conns = append(conns, c)
		if _, err := io.WriteString(c, inputs[i%2]); err != nil {
			t.Fatal(err)
		}
	}
	bytesOfEach := (memoryInUse() - before) / n
	t.Logf("a connection that sends as much as it may takes %d bytes", bytesOfEach)
	if bytesOfEach > 200<<10 {
		t.Errorf("a connection that sends as much as it may takes %d bytes; want at most 200 KB", bytesOfEach)
	}
	if !slices.ContainsFunc(conns, func(c net.Conn) bool { _, err := c.Write([]byte("a")); return err == nil }) {
		t.Error("all connections have ended before their memory was measured; want one open")
	}
	for _, c := range conns {
		c.Close()
	}
}
