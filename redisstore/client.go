package redisstore

import (
	"context"
	"strings"
)

// A Client is the small part of a Redis client that a Store needs. Open and Dial make one from a
// URL, and package redisstore/goredis makes one from a go-redis client.
//
// A Client must not send a script again, even if the reply is lost. The script may have run, and a
// second run would charge twice. A Client may follow a redirection (MOVED, ASK), which proves that
// nothing ran.
//
// The callers of a Store return at their deadlines, because the Store calls its Client on other
// goroutines. So all methods but Sharded and Close may dial and wait. A caller whose context never
// ends calls the Client itself, and returns when the Client does. The contexts that the Store
// passes are special. Err returns an error as soon as the caller has left, and from then on the
// Client need not send the command. Done is closed at most 5 s after the caller has left, or when
// the Store is closed.
type Client interface {
	// EvalSha runs a script that the server knows by its SHA-1 digest, on the server that owns
	// keys[0]. An error reply of Redis is returned as a ReplyError. If EvalSha returns no error, the
	// Client must not use the slices or their strings after the call.
	EvalSha(ctx context.Context, digest string, keys, args []string) (string, error)

	// Eval runs a script by its text.
	Eval(ctx context.Context, script string, keys, args []string) (string, error)

	// Load loads scripts by SCRIPT LOAD into the server that owns key. If key is "", it loads them
	// into each server that the client knows of, also into replicas that may be promoted. If one
	// server fails, Load continues with the others, and returns all errors. A reply other than the
	// script's SHA-1, in hexadecimal digits, is an error.
	Load(ctx context.Context, key string, scripts []string) error

	// Sharded reports whether keys are spread over several servers. Then a script may only use keys of
	// one hash tag. The caller of the Store waits for Sharded, so it must return when ctx ends.
	Sharded(ctx context.Context) (bool, error)

	// Ping returns nil if a server answers.
	Ping(ctx context.Context) error

	// Close closes the connections of a client that Dial made. A client that the user passed to
	// goredis.New stays open.
	Close() error
}

// A ReplyError is the text of an error reply of Redis, such as "OOM command not allowed …".
type ReplyError string

// maxErrorText is how many bytes of a ReplyError are shown. The longest replies of Redis and of the
// scripts have about 150.
const maxErrorText = 200

// Error returns the text, cut off after 200 bytes.
func (e ReplyError) Error() string {
	if len(e) > maxErrorText {
		return strings.ToValidUTF8(string(e[:maxErrorText]), "") + "…"
	}
	return string(e)
}
