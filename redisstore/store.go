// Package redisstore keeps the state of limits in Redis or Valkey: a single server, Sentinel or
// Cluster. Each batch is decided there by one atomic script in one round trip, so any number of
// processes share its limits exactly.
//
// Redis 7.0 and Valkey 7.2 are the oldest servers supported.
package redisstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/algorithm"
	"github.com/penstock/penstock/internal/trial"
)

// Options of a Store. The zero value is useful.
type Options struct {
	// Prefix begins the name of every key: up to 64 letters, digits and -_.: only. Default: "ps". All
	// stores that share limits need the same.
	Prefix string

	// Secret, if set, makes keys stand in Redis as their HMAC-SHA-256 (128 bits of it), so that no
	// identity can be read there and nobody can choose a key's slot. All stores that share limits need
	// the same; another secret is another set of counters.
	Secret []byte

	// Apart, if set, sends each batch in a script of its own, even where many wait. Default: those
	// that wait while two scripts are under way go together in the next.
	Apart bool

	// Now, if set, is the time by which everything is decided, instead of the server's. It is for
	// tests, replay and simulation only: clocks of several processes differ. It must show times
	// from 1970 to 2112: at others, charges are refused with ErrInvalid. Keys live for an hour
	// longer than they need.
	Now func() time.Time
}

// Validate tells what is wrong with the options, as an error that wraps penstock.ErrInvalid.
func (o Options) Validate() error {
	if len(o.Prefix) > maxPrefix {
		return fmt.Errorf("%w: redisstore: the prefix has %d bytes; the longest has %d", penstock.ErrInvalid, len(o.Prefix), maxPrefix)
	}
	for i, c := range []byte(o.Prefix) {
		if !letter(c) && !strings.ContainsRune("-_.:", rune(c)) {
			return fmt.Errorf("%w: redisstore: the prefix has %q at position %d; use letters, digits and -_.:", penstock.ErrInvalid, c, i+1)
		}
	}
	return nil
}

// A Store is a penstock.Store on Redis.
type Store struct {
	client  Client
	prefix  string
	secret  []byte
	now     func() time.Time
	scripts library
	loads   loads
	calls   sync.Pool

	apart bool
	whole gatherer  // of a single server
	parts gatherers // of a Cluster
	where topology  // of a Cluster
	clock clock     // the server's

	work       *background  // what outlasts calls
	givingBack atomic.Int64 // batches, there
}

// New makes a Store of a Client. It does not connect: Ping does. An error wraps
// penstock.ErrInvalid.
func New(client Client, o Options) (*Store, error) {
	if client == nil {
		return nil, fmt.Errorf("%w: redisstore: the client is nil; Open makes one from a URL", penstock.ErrInvalid)
	}
	s, err := newStore(o)
	if err != nil {
		return nil, err
	}
	s.client, s.work = &detached{next: client, calls: newBackground()}, newBackground()
	s.where.begin = time.Now()
	s.calls.New = func() any { return new(call) }
	return s, nil
}

// newStore is a Store without a client.
func newStore(o Options) (*Store, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	o.Prefix = cmp.Or(o.Prefix, "ps")
	s := &Store{prefix: o.Prefix + schemaVersion, secret: o.Secret, now: o.Now, apart: o.Apart}
	s.whole.store = s
	return s, nil
}

// Open makes a Store for the server or servers that a URL names; see ParseURL for its forms. It
// does not wait for a connection: servers may come up later, and Ping tells whether they are there.
// Close ends it.
func Open(url string, o Options) (*Store, error) {
	option, err := ParseURL(url)
	if err != nil {
		return nil, err
	}
	return New(Dial(option), o)
}

// Ping asks whether the server answers. Programs that must not start without it call it first.
func (s *Store) Ping(ctx context.Context) error {
	if err := s.client.Ping(ctx); err != nil {
		return s.unavailable(ctx, err)
	}
	return nil
}

// Close ends what the store does in the background, and the connections that Open made, and waits
// until they have ended: for a second or so where a server hangs. Scripts that callers have left
// behind on a client of the user's own may take longer: they end with that client's timeouts.
func (s *Store) Close() error {
	s.work.end()
	err := s.client.Close()
	s.work.wait()
	return err
}

// Decide implements penstock.Store. An *Error wraps what went wrong and says whether the charges
// may have been made; nothing but a script that the server did not know is ever sent twice.
//
// On a Cluster, charges with different Keys are decided by one script for each Key. First all Keys
// are asked, by dry runs; if all would grant, all are charged. So a denial takes one round trip and
// a grant two, however many Keys there are; charges that cannot be denied come last, and take one
// more. If others charge a Key between the two, it may deny after all, and what the other Keys were
// charged is given back: such a batch never admits more than it should, and may for a round trip
// keep others from units that it then gives back. A hold that was renewed meanwhile stays renewed.
// What is to be given back when ctx ends is given back in the background, within a second, for up
// to 256 batches at once; the error is of Unknown then.
func (s *Store) Decide(ctx context.Context, charges []penstock.Charge) (penstock.Decision, error) {
	c := s.calls.Get().(*call)
	d, err := s.decide(ctx, c, charges)
	if err != nil {
		s.where.doubt(s)
	}
	if err == nil || errors.Is(err, penstock.ErrInvalid) {
		c.forget()
		s.calls.Put(c) // after a failure, the client may still hold what is left of it
	}
	return d, err
}

func (s *Store) decide(ctx context.Context, c *call, charges []penstock.Charge) (penstock.Decision, error) {
	var err error
	if c.plans, err = penstock.Prepare(charges, c.plans[:0]); err != nil {
		return penstock.Decision{}, err
	}
	if err := ctx.Err(); err != nil {
		return penstock.Decision{}, s.unavailable(ctx, tooLate(err))
	}
	if s.now != nil {
		if err := algorithm.CheckTime(s.given()); err != nil {
			return penstock.Decision{}, fmt.Errorf("%w: redisstore: Options.Now: %w", penstock.ErrInvalid, err)
		}
	}
	if spread(charges) {
		sharded, err := s.client.Sharded(ctx)
		if err != nil {
			return penstock.Decision{}, s.unavailable(ctx, err)
		}
		if sharded {
			return s.decideSpread(ctx, c.plans, charges)
		}
	}
	c.charges = c.charges[:0]
	for i := range charges {
		c.charges = append(c.charges, charge{&charges[i], c.plans[i]})
	}
	if offered := trial.Offered(ctx, charges); len(offered) > 0 {
		return s.runWithTrials(ctx, c, offered)
	}
	return s.run(ctx, c)
}

// run decides the call's charges as one batch, in one script.
func (s *Store) run(ctx context.Context, c *call) (penstock.Decision, error) {
	g, err := s.gatherer(ctx, c)
	if err != nil {
		return penstock.Decision{}, s.unavailable(ctx, err)
	}
	if g == nil {
		return s.alone(ctx, c)
	}
	return g.decide(ctx, c)
}

// alone decides the call's charges in a script of their own.
func (s *Store) alone(ctx context.Context, c *call) (penstock.Decision, error) {
	kind := many
	if isRow(c.charges) {
		kind = row
	}
	c.batches = append(c.batches[:0], len(c.charges))
	reply, err := s.eval(ctx, c, s.scripts.find(kind, c.charges))
	if err != nil {
		return penstock.Decision{}, s.unavailable(ctx, err)
	}
	return decode(reply, c.charges), nil
}

// eval decides the call's batches in one script and returns its reply: a status per charge.
func (s *Store) eval(ctx context.Context, c *call, script *script) (string, error) {
	c.encode(s, s.given(), script)
	reply, err := s.send(ctx, c, script)
	if err == nil && len(reply) != statusSize*len(c.charges) && len(reply) != plainSize*len(c.charges) {
		err = fmt.Errorf("the script replied %d bytes for %d charges", len(reply), len(c.charges))
	}
	return reply, err
}

// given is the time by which a script decides in µs, or 0 for the server's own.
func (s *Store) given() int64 {
	if s.now == nil {
		return 0
	}
	return s.now().UnixMicro()
}

// forget lets go of what the caller passed in.
func (c *call) forget() {
	clear(c.plans)
	clear(c.charges)
	clear(c.args)
	for i := range c.trials {
		c.trials[i].forget()
	}
	c.trials = c.trials[:0]
}
