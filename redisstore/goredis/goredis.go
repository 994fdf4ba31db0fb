// Package goredis lets a redisstore.Store use the go-redis client that a program already has.
package goredis

import (
	"context"
	"errors"
	"strings"

	"github.com/penstock/penstock/redisstore"
	"github.com/redis/go-redis/v9"
)

// New makes a Client of a go-redis client of the user's own: *redis.Client, *redis.ClusterClient, a failover client or a
// *redis.Ring. The user closes it. Scripts are sent once whatever the client's MaxRetries and MaxRedirects say; its
// timeouts, pools and hooks are its own.
//
// Set ContextTimeoutEnabled in the client's options: without it go-redis does not watch a context while it waits for a server, and every
// call whose context can end needs a goroutine of its own here.
func New(client redis.UniversalClient) redisstore.Client {
	return adapter{client: client, watches: watchesContext(client)}
}

type adapter struct {
	client  redis.UniversalClient
	watches bool // whether calls end with their context
}

func watchesContext(client redis.UniversalClient) bool {
	switch c := client.(type) {
	case *redis.Client:
		return c.Options().ContextTimeoutEnabled
	case *redis.ClusterClient:
		return c.Options().ContextTimeoutEnabled
	}
	return false
}

func (a adapter) EvalSha(ctx context.Context, digest string, keys, args []string) (string, error) {
	return a.once(ctx, "evalsha", digest, keys, args)
}

func (a adapter) Eval(ctx context.Context, script string, keys, args []string) (string, error) {
	return a.once(ctx, "eval", script, keys, args)
}

// unrepeated is a command that go-redis sends once. By default it would send a script up to four times when an answer is lost,
// the cluster client even with MaxRetries -1, and each may run and charge.
type unrepeated struct{ *redis.Cmd }

func (unrepeated) NoRetry() bool { return true }

func (a adapter) once(ctx context.Context, command, script string, keys, args []string) (string, error) {
	words := make([]any, 0, 3+len(keys)+len(args))
	words = append(words, command, script, len(keys))
	// The store uses the memory of keys and arguments again; hooks of the user's may keep a command for longer.
	for _, key := range keys {
		words = append(words, strings.Clone(key))
	}
	for _, arg := range args {
		words = append(words, strings.Clone(arg))
	}
	cmd := unrepeated{redis.NewCmd(ctx, words...)}
	cmd.SetFirstKeyPos(3)
	if err := a.process(ctx, cmd); err != nil {
		err = reply(err)
		a.doubt(ctx, err)
		return "", err
	}
	return cmd.Text()
}

// doubt has a Cluster's client ask who keeps what, in the background, where a call has failed and no answer says why. go-redis does so when it sends
// a command once more, which scripts are not, and would stay with a dead primary for as long as its ClusterStateReloadInterval says.
func (a adapter) doubt(ctx context.Context, err error) {
	if _, replied := err.(redisstore.ReplyError); replied {
		return
	}
	if c, ok := a.client.(*redis.ClusterClient); ok {
		c.ReloadState(ctx)
	}
}

// process sends a command and ends with ctx at the latest. A command that is left behind ends with the client's own timeouts.
func (a adapter) process(ctx context.Context, cmd redis.Cmder) error {
	if a.watches || ctx.Done() == nil {
		return a.client.Process(ctx, cmd)
	}
	done := make(chan error, 1)
	go func() { done <- a.client.Process(ctx, cmd) }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (a adapter) Sharded(context.Context) (bool, error) {
	switch a.client.(type) {
	case *redis.ClusterClient, *redis.Ring:
		return true, nil
	}
	return false, nil
}

func (a adapter) Ping(ctx context.Context) error {
	return reply(a.process(ctx, redis.NewStatusCmd(ctx, "ping")))
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
