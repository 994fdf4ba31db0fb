// Package goredis lets a redisstore.Store use the go-redis client that a program already has.
package goredis

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/penstock/penstock/redisstore"
	"github.com/redis/go-redis/v9"
)

// New makes a Client of a go-redis client of the user's own: *redis.Client, *redis.ClusterClient, a
// failover client or a *redis.Ring. The user closes it. Scripts are sent once whatever the client's
// MaxRetries and MaxRedirects say; its timeouts, pools and hooks are its own.
//
// A call that its caller has given up goes on until the client's own timeouts end it (DialTimeout,
// ReadTimeout, PoolTimeout), and holds a connection of the pool for as long. ReadTimeout is 3 s by
// default; 1 s is enough for these scripts.
func New(client redis.UniversalClient) redisstore.Client { return adapter{client} }

type adapter struct{ client redis.UniversalClient }

func (a adapter) EvalSha(ctx context.Context, digest string, keys, args []string) (string, error) {
	return a.once(ctx, "evalsha", digest, keys, args)
}

func (a adapter) Eval(ctx context.Context, script string, keys, args []string) (string, error) {
	return a.once(ctx, "eval", script, keys, args)
}

// unrepeated is a command that go-redis sends once. By default it would send a script up to four
// times when an answer is lost, the cluster client even with MaxRetries -1, and each may run and
// charge.
type unrepeated struct{ *redis.Cmd }

func (unrepeated) NoRetry() bool { return true }

func (a adapter) once(ctx context.Context, command, script string, keys, args []string) (string, error) {
	words := make([]any, 0, 3+len(keys)+len(args))
	words = append(words, command, script, len(keys))
	// The store uses the memory of keys and arguments again; hooks of the user's may keep a command
	// for longer.
	for _, key := range keys {
		words = append(words, strings.Clone(key))
	}
	for _, arg := range args {
		words = append(words, strings.Clone(arg))
	}
	cmd := unrepeated{redis.NewCmd(ctx, words...)}
	cmd.SetFirstKeyPos(3)
	defer a.doubtLater(ctx)()
	if err := a.client.Process(ctx, cmd); err != nil {
		err = reply(err)
		a.doubt(ctx, err)
		return "", err
	}
	return cmd.Text()
}

// doubt has a Cluster's client ask who keeps what, in the background, where a call has failed and
// no answer says why. go-redis does so when it sends a command once more, which scripts are not,
// and would stay with a dead primary for as long as its ClusterStateReloadInterval says.
func (a adapter) doubt(ctx context.Context, err error) {
	if _, replied := err.(redisstore.ReplyError); replied {
		return
	}
	if c, ok := a.client.(*redis.ClusterClient); ok {
		c.ReloadState(ctx)
	}
}

// doubtAfter is how long a call takes before somebody else is asked who keeps what, as when it
// fails.
const doubtAfter = 200 * time.Millisecond

func (a adapter) doubtLater(ctx context.Context) (stop func() bool) {
	if _, ok := a.client.(*redis.ClusterClient); !ok {
		return func() bool { return true }
	}
	return time.AfterFunc(doubtAfter, func() { a.doubt(ctx, nil) }).Stop
}

func (a adapter) Sharded(context.Context) (bool, error) {
	switch a.client.(type) {
	case *redis.ClusterClient, *redis.Ring:
		return true, nil
	}
	return false, nil
}

func (a adapter) Ping(ctx context.Context) error {
	return reply(a.client.Process(ctx, redis.NewStatusCmd(ctx, "ping")))
}

func (adapter) Close() error { return nil }

// reply makes a ReplyError of what Redis answered, and leaves other errors as they are.
func reply(err error) error {
	var answered redis.Error
	if errors.As(err, &answered) {
		return redisstore.ReplyError(answered.Error())
	}
	return err
}

// Load reaches every node of a Cluster or Ring, and one server otherwise: go-redis does not tell of
// the replicas behind Sentinel.
func (a adapter) Load(ctx context.Context, key string, scripts []redisstore.Script) error {
	on := func(ctx context.Context, node redis.Scripter) error {
		for _, script := range scripts {
			digest, err := node.ScriptLoad(ctx, script.Text).Result()
			if err != nil {
				return reply(err)
			}
			if err := script.Check(digest); err != nil {
				return err
			}
		}
		return nil
	}
	var mu sync.Mutex
	var all []error
	each := func(ctx context.Context, node *redis.Client) error { // the error would hide those of others
		err := on(ctx, node)
		mu.Lock()
		defer mu.Unlock()
		all = append(all, err)
		return nil
	}
	var err error
	switch c := a.client.(type) {
	case *redis.ClusterClient:
		if key != "" {
			node, err := c.MasterForKey(ctx, key)
			if err != nil {
				return reply(err)
			}
			return on(ctx, node)
		}
		err = c.ForEachShard(ctx, each)
	case *redis.Ring:
		err = c.ForEachShard(ctx, each)
	default:
		return on(ctx, a.client)
	}
	if err != nil {
		err = reply(err)
	}
	return errors.Join(append(all, err)...)
}
