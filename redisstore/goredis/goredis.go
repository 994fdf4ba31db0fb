// Package goredis lets a redisstore.Store use the go-redis client that a program already has.
package goredis

import (
	"context"
	"errors"

	"github.com/penstock/penstock/redisstore"
	"github.com/redis/go-redis/v9"
)

// New makes a Client of a go-redis client of the user's own: *redis.Client, *redis.ClusterClient, a failover client or a
// *redis.Ring. The user closes it. Scripts are sent once whatever the client's MaxRetries and MaxRedirects say; its
// timeouts, pools and hooks are its own.
func New(client redis.UniversalClient) redisstore.Client { return adapter{client} }

type adapter struct{ client redis.UniversalClient }

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
	for _, key := range keys {
		words = append(words, key)
	}
	for _, arg := range args {
		words = append(words, arg)
	}
	cmd := unrepeated{redis.NewCmd(ctx, words...)}
	cmd.SetFirstKeyPos(3)
	if err := a.client.Process(ctx, cmd); err != nil {
		return "", reply(err)
	}
	return cmd.Text()
}

func (a adapter) Sharded(context.Context) (bool, error) {
	switch a.client.(type) {
	case *redis.ClusterClient, *redis.Ring:
		return true, nil
	}
	return false, nil
}

func (a adapter) Ping(ctx context.Context) error {
	return reply(a.client.Ping(ctx).Err())
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
