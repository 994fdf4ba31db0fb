// Package goredis lets a redisstore.Store use the go-redis client that a program already has.
package goredis

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/penstock/penstock/internal/luagen"
	"github.com/penstock/penstock/redisstore"
	"github.com/redis/go-redis/v9"
)

// New makes a Client that uses the user's own go-redis client: *redis.Client, *redis.ClusterClient,
// a failover client or a *redis.Ring. The user must close that client. Scripts are sent once,
// whatever the client's MaxRetries and MaxRedirects are. The timeouts, pools and hooks of the
// client stay as they are.
//
// If a caller leaves, its call continues until a timeout of the client ends it (DialTimeout,
// ReadTimeout, PoolTimeout). Until then, the call uses a connection of the pool. ReadTimeout is 3 s
// by default; 1 s is enough for these scripts.
func New(client redis.UniversalClient) redisstore.Client { return adapter{client} }

type adapter struct{ client redis.UniversalClient }

func (a adapter) EvalSha(ctx context.Context, digest string, keys, args []string) (string, error) {
	return a.processOnce(ctx, "evalsha", digest, keys, args)
}

func (a adapter) Eval(ctx context.Context, script string, keys, args []string) (string, error) {
	return a.processOnce(ctx, "eval", script, keys, args)
}

// A singleCmd is a command that go-redis sends once. By default go-redis would send a script up to
// four times when a reply is lost. A cluster client would do so even with MaxRetries -1. Each
// copy may run and charge. The reply must be a string: for an array, go-redis would allocate
// memory of the announced length before the elements come.
type singleCmd struct{ *redis.StringCmd }

func (singleCmd) NoRetry() bool { return true }

func (a adapter) processOnce(ctx context.Context, command, script string, keys, args []string) (string, error) {
	words := make([]any, 0, 3+len(keys)+len(args))
	words = append(words, command, script, len(keys))
	// The store reuses the memory of keys and arguments. The user's hooks may keep a command for
	// longer.
	for _, key := range keys {
		words = append(words, strings.Clone(key))
	}
	for _, arg := range args {
		words = append(words, strings.Clone(arg))
	}
	cmd := singleCmd{redis.NewStringCmd(ctx, words...)}
	const firstKey = 3 // the index in words: the command, the script and the number of keys come first
	cmd.SetFirstKeyPos(firstKey)
	defer a.reloadLater(ctx)()
	if err := a.client.Process(ctx, cmd); err != nil {
		err = asReplyError(err)
		a.reloadAfter(ctx, err)
		return "", err
	}
	return cmd.Result()
}

// reloadAfter makes the client of a Cluster reload the map of slots in the background, unless err
// is a reply of Redis. go-redis reloads it by itself only when it retries a command. Scripts are
// not retried, so without reloadAfter the client would use a dead primary until
// ClusterStateReloadInterval has passed.
func (a adapter) reloadAfter(ctx context.Context, err error) {
	if _, hasReplied := err.(redisstore.ReplyError); hasReplied {
		return
	}
	if c, ok := a.client.(*redis.ClusterClient); ok {
		c.ReloadState(ctx)
	}
}

// reloadDelay is how long a call may take. After that, the map of slots is reloaded, as after a
// call that failed.
const reloadDelay = 200 * time.Millisecond

// reloadLater reloads the map of slots after reloadDelay, unless stop is called earlier.
func (a adapter) reloadLater(ctx context.Context) (stop func() bool) {
	if _, ok := a.client.(*redis.ClusterClient); !ok {
		return func() bool { return true }
	}
	return time.AfterFunc(reloadDelay, func() { a.reloadAfter(ctx, nil) }).Stop
}

func (a adapter) Sharded(context.Context) (bool, error) {
	switch a.client.(type) {
	case *redis.ClusterClient, *redis.Ring:
		return true, nil
	}
	return false, nil
}

func (a adapter) Ping(ctx context.Context) error {
	return asReplyError(a.client.Process(ctx, redis.NewStatusCmd(ctx, "ping")))
}

func (adapter) Close() error { return nil }

func asReplyError(err error) error {
	var answered redis.Error
	if errors.As(err, &answered) {
		return redisstore.ReplyError(answered.Error())
	}
	return err
}

// Load without a key reaches every node of a Cluster or Ring. With any other client it reaches one
// server, because go-redis does not know the replicas behind Sentinel.
func (a adapter) Load(ctx context.Context, key string, scripts []string) error {
	loadOn := func(ctx context.Context, node redis.Scripter) error {
		for _, script := range scripts {
			digest, err := node.ScriptLoad(ctx, script).Result()
			if err != nil {
				return asReplyError(err)
			}
			if err := luagen.CheckLoaded(script, digest); err != nil {
				return err
			}
		}
		return nil
	}
	var mu sync.Mutex
	var errs []error
	loadOnNode := func(ctx context.Context, node *redis.Client) error {
		err := loadOn(ctx, node)
		mu.Lock()
		defer mu.Unlock()
		errs = append(errs, err)
		return nil // an error would hide those of other nodes
	}
	var err error
	switch c := a.client.(type) {
	case *redis.ClusterClient:
		if key != "" {
			node, err := c.MasterForKey(ctx, key)
			if err != nil {
				return asReplyError(err)
			}
			return loadOn(ctx, node)
		}
		err = c.ForEachShard(ctx, loadOnNode)
	case *redis.Ring:
		err = c.ForEachShard(ctx, loadOnNode)
	default:
		return loadOn(ctx, a.client)
	}
	if err != nil {
		err = asReplyError(err)
	}
	return errors.Join(append(errs, err)...)
}
