// Package redisguard opens a store on Redis or Valkey with all guards around it: the usual store of
// a Go service.
package redisguard

import (
	"context"
	"fmt"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/guard"
	"github.com/penstock/penstock/internal/batches"
	"github.com/penstock/penstock/redisstore"
)

// Options of a Store. The zero value suits production.
type Options struct {
	Redis redisstore.Options

	// Guard configures the guards. Guard.Server must be nil, because New sets it to the Redis store.
	Guard guard.Options
}

// A Store is a penstock.Store on Redis that also decides while Redis gives no answer, as
// Options.Guard.OnFailure says. It suits httplimit.PerKey and httplimit.NewSimple as it is. For
// admission.New, set Options.Guard.Limits to the method Settings of the policy.Rules.
type Store struct {
	*guard.Guarded
	listDecider
	redis *redisstore.Store
}

// A listDecider lets other packages of this module have lists of batches decided. The name is
// unexported, so that the documentation of Store does not show it.
type listDecider = batches.ListDecider

// Open makes a Store for the server or servers that a URL names; see redisstore.Open for its
// forms. It does not wait for a connection: until Redis answers, each limit is decided by its
// fallback. An error wraps penstock.ErrInvalid. Close ends the Store.
func Open(url string, o Options) (*Store, error) {
	client, err := redisstore.Dial(url)
	if err != nil {
		return nil, err
	}
	s, err := New(client, o)
	if err != nil {
		_ = client.Close()
	}
	return s, err
}

// New makes a Store of a client, such as one of package redisstore/goredis. After an error, the
// caller still owns the client.
func New(client redisstore.Client, o Options) (*Store, error) {
	if o.Guard.Server != nil {
		return nil, fmt.Errorf("%w: redisguard: Options.Guard has a Server; leave it nil, because New sets it to the Redis store", penstock.ErrInvalid)
	}
	redis, err := redisstore.New(client, o.Redis)
	if err != nil {
		return nil, err
	}
	o.Guard.Server = redis
	guarded, err := guard.Standard(redis, o.Guard)
	if err != nil {
		return nil, err
	}
	s := &Store{Guarded: guarded, redis: redis}
	s.listDecider = batches.NewListDecider(s, batches.Of(guarded))
	return s, nil
}

// Ping returns nil if Redis answers. A program that must not start without Redis calls Ping first.
func (s *Store) Ping(ctx context.Context) error { return s.redis.Ping(ctx) }

// Load loads the scripts of limits into Redis, so that the first decisions are as fast as later
// ones. See (*redisstore.Store).Load.
func (s *Store) Load(ctx context.Context, plans ...*penstock.Plan) error {
	return s.redis.Load(ctx, plans...)
}

// Close returns leased units, ends all work in the background, and closes the connections that Open
// has made. It takes at most about three seconds.
func (s *Store) Close() error {
	s.Guarded.Close()
	return s.redis.Close()
}
