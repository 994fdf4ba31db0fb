package goredis_test

import (
	"context"
	"errors"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/testing/redistest"
	"github.com/penstock/penstock/redisstore"
	"github.com/penstock/penstock/redisstore/goredis"
	"github.com/redis/go-redis/v9"
)

// A scriptCounter counts the scripts that a client sends.
type scriptCounter struct {
	sent  atomic.Int64
	words atomic.Pointer[[]any] // of the last command that sent a script
}

func (c *scriptCounter) DialHook(next redis.DialHook) redis.DialHook { return next }

func (c *scriptCounter) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (c *scriptCounter) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if strings.HasPrefix(cmd.Name(), "eval") {
			c.sent.Add(1)
			words := cmd.Args()
			c.words.Store(&words)
		}
		return next(ctx, cmd)
	}
}

func start(t *testing.T) (*redistest.Server, *redis.Client) {
	t.Helper()
	s := redistest.Start(t)
	c := redis.NewClient(&redis.Options{Addr: s.Addr})
	t.Cleanup(func() { _ = c.Close() })
	return s, c
}

func TestScriptsGetTheirKeysAndArguments(t *testing.T) {
	t.Parallel()
	_, c := start(t)
	client := goredis.New(c)
	const script = "return KEYS[1] .. KEYS[2] .. ARGV[1] .. ARGV[2]"
	keys, args := []string{"{k}1", "{k}2"}, []string{"a\x00b", ""}
	if got, err := client.Eval(t.Context(), script, keys, args); got != "{k}1{k}2a\x00b" || err != nil {
		t.Errorf("Eval: %q, %v; want the keys and arguments in their order", got, err)
	}
	digest := redis.NewScript(script).Hash()
	if got, err := client.EvalSha(t.Context(), digest, keys, args); got != "{k}1{k}2a\x00b" || err != nil {
		t.Errorf("EvalSha: %q, %v; want the keys and arguments in their order", got, err)
	}
}

func TestErrorsOfRedisAreReplyErrors(t *testing.T) {
	t.Parallel()
	_, c := start(t)
	client := goredis.New(c)
	var reply redisstore.ReplyError
	_, err := client.EvalSha(t.Context(), strings.Repeat("0", 40), []string{"k"}, nil)
	if !errors.As(err, &reply) || !strings.HasPrefix(string(reply), "NOSCRIPT") {
		t.Errorf("an unknown script: %v; want a ReplyError that begins with NOSCRIPT", err)
	}
	_, err = client.Eval(t.Context(), "return redis.error_reply('ODD thing')", []string{"k"}, nil)
	if !errors.As(err, &reply) || !strings.HasPrefix(string(reply), "ODD thing") {
		t.Errorf("a script's error: %v; want a ReplyError with the script's text", err)
	}
	_, err = goredis.New(redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", DialerRetries: 1})).Eval(t.Context(), "return 1", []string{"k"}, nil)
	var op *net.OpError
	if errors.As(err, &reply) || !errors.As(err, &op) {
		t.Errorf("without a server: %v; want a net.OpError that is not a ReplyError", err)
	}
}

func TestShardedIsTrueForSeveralServers(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name      string
		client    redis.UniversalClient
		isSharded bool
	}{
		{name: "client", client: redis.NewClient(&redis.Options{}), isSharded: false},
		{name: "failover client", client: redis.NewFailoverClient(&redis.FailoverOptions{MasterName: "m", SentinelAddrs: []string{"127.0.0.1:1"}}), isSharded: false},
		{name: "universal client", client: redis.NewUniversalClient(&redis.UniversalOptions{Addrs: []string{"127.0.0.1:1"}}), isSharded: false},
		{name: "cluster client", client: redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"127.0.0.1:1"}}), isSharded: true},
		{name: "failover cluster client", client: redis.NewFailoverClusterClient(&redis.FailoverOptions{MasterName: "m", SentinelAddrs: []string{"127.0.0.1:1"}}), isSharded: true},
		{name: "ring", client: redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": "127.0.0.1:1"}}), isSharded: true},
	} {
		if got, err := goredis.New(row.client).Sharded(t.Context()); got != row.isSharded || err != nil {
			t.Errorf("%s: Sharded returned %t, %v; want %t", row.name, got, err, row.isSharded)
		}
		_ = row.client.Close()
	}
}

func TestUsersClientStaysOpenAndItsHooksSeeScripts(t *testing.T) {
	t.Parallel()
	_, c := start(t)
	hook := new(scriptCounter)
	c.AddHook(hook)
	store, err := redisstore.New(goredis.New(c), redisstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	charge := []penstock.Charge{{Key: "k", Plan: penstock.PerHour(10).MustCompile(), Cost: 1}}
	for range 3 {
		if _, err := store.Decide(t.Context(), charge); err != nil {
			t.Fatal(err)
		}
	}
	if n := hook.sent.Load(); n < 3 || n > 4 { // the first is sent twice if it overtakes the load of its script
		t.Errorf("3 decisions took %d scripts; want 3 or 4", n)
	}
	if words := *hook.words.Load(); words[0] != "evalsha" || words[3] != "ps1{k}hour" || slices.Contains(words, nil) {
		t.Errorf("a decision is sent as %q; want evalsha with the key ps1{k}hour, and no nil", words)
	}
	if err := store.Close(); err != nil {
		t.Errorf("Close: %v; want no error", err)
	}
	if err := c.Ping(t.Context()).Err(); err != nil {
		t.Errorf("a ping by the user's client after Close of the store: %v; want no error, because the client stays open", err)
	}
}

// By default, go-redis keeps reading after the end of a context, until its ReadTimeout. Callers of
// the store do not wait for that timeout, which is an hour in this test.
func TestCallersReturnAtTheirDeadlines(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	clients := map[string]redis.UniversalClient{
		"plain":                      redis.NewClient(&redis.Options{Addr: s.Addr, ReadTimeout: time.Hour}),
		"with ContextTimeoutEnabled": redis.NewClient(&redis.Options{Addr: s.Addr, ReadTimeout: time.Hour, ContextTimeoutEnabled: true}),
		"cluster": redis.NewClusterClient(&redis.ClusterOptions{ReadTimeout: time.Hour, ClusterSlots: func(context.Context) ([]redis.ClusterSlot, error) {
			return []redis.ClusterSlot{{End: 16383, Nodes: []redis.ClusterNode{{Addr: s.Addr}}}}, nil
		}}),
	}
	stores := make(map[string]*redisstore.Store)
	for name, c := range clients {
		defer c.Close()
		if err := c.Ping(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
		store, err := redisstore.New(goredis.New(c), redisstore.Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer store.Close()
		stores[name] = store
	}
	s.Pause()
	defer s.Resume()
	for name, store := range stores {
		for what, call := range map[string]func(context.Context) error{
			"a decision": func(ctx context.Context) error {
				_, err := store.Decide(ctx, []penstock.Charge{{Key: "k", Plan: penstock.PerHour(10).MustCompile(), Cost: 1}})
				return err
			},
			"a ping": store.Ping,
		} {
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			if err := call(ctx); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%s: %s with a deadline in 50 ms: %v; want DeadlineExceeded", name, what, err)
			}
			cancel()
		}
	}
}

// The length of an array is no reason to allocate, because a script replies with a string.
func TestHugeArrayIsAnError(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	proxy, err := redistest.NewProxy("unix", server.Socket)
	if err != nil {
		t.Fatal(err)
	}
	defer proxy.Close()
	c := redis.NewClient(&redis.Options{Addr: proxy.Addr()})
	defer c.Close()
	client := goredis.New(c)
	proxy.Only("eval")
	for _, reply := range []string{"*2000000000\r\n", "%1000000000\r\n", "*-5\r\n", "$-2\r\n"} {
		proxy.ReplaceReply(reply)
		if got, err := client.Eval(t.Context(), "return 'a'", []string{"k"}, nil); err == nil {
			t.Errorf("the reply %q is %q; want an error", reply, got)
		}
		if got, err := client.Eval(t.Context(), "return 'a'", []string{"k"}, nil); got != "a" || err != nil {
			t.Errorf("after the reply %q: %q, %v; want \"a\" and no error", reply, got, err)
		}
	}
}
