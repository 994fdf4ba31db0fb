package redisstore

import "context"

// A Client is the small part of a Redis client that a Store needs. This package makes one from a
// URL (Open) or from a rueidis.Client (NewRueidis); package redisstore/goredis makes one from a
// go-redis client.
//
// A Client must send every script once, whatever befalls the answer: a lost answer may belong to a
// script that ran, and running it again charges twice. Following a redirection (MOVED, ASK) is
// allowed, because that proves that nothing ran.
//
// A Store calls its Client on goroutines of their own, and lets its callers go at their deadlines,
// so a Client may dial, and wait. The contexts that it is given end 5 s after the caller has gone,
// and when the Store is closed. Their Err tells that the caller has gone: then nothing need be sent
// any more.
type Client interface {
	// EvalSha runs a script that the server knows by its SHA-1 digest, on the server that owns
	// keys[0]. An error reply of Redis is returned as a ReplyError. Neither the slices nor the strings
	// may be used after a nil error was returned.
	EvalSha(ctx context.Context, digest string, keys, args []string) (string, error)

	// Eval runs a script by its text.
	Eval(ctx context.Context, script string, keys, args []string) (string, error)

	// Load loads scripts by SCRIPT LOAD: into the server that owns key or, if key is "", into each
	// server that the client knows of, replicas that may be promoted included. If one server fails
	// it goes on with the others, and returns all errors. An answer other than the script's digest
	// is an error.
	Load(ctx context.Context, key string, scripts []Script) error

	// Sharded tells whether keys are spread over several servers, so that a script may only touch keys
	// of one hash tag.
	Sharded(ctx context.Context) (bool, error)

	// Ping asks a server whether it is there.
	Ping(ctx context.Context) error

	// Close ends the client's connections, if the client was made by this module.
	Close() error
}

// A ReplyError is an error that Redis answered with: "OOM command not allowed …".
type ReplyError string

func (e ReplyError) Error() string { return string(e) }
