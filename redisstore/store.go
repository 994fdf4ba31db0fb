// Package redisstore keeps the state of limits in Redis or Valkey: a single server, Sentinel or
// Cluster. A script in the server decides a batch atomically, in one round trip. So any number of
// processes can share limits exactly.
//
// Redis 7.0 and Valkey 7.2 are the oldest servers supported.
package redisstore

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/algorithm"
	"github.com/penstock/penstock/internal/background"
	"github.com/penstock/penstock/internal/batches"
	"github.com/penstock/penstock/internal/redisclient"
	"github.com/penstock/penstock/internal/rediskeys"
	"github.com/penstock/penstock/internal/syntax"
	"github.com/penstock/penstock/redisstore/internal/coalesce"
)

// Options of a Store. The zero value is useful.
type Options struct {
	// Prefix begins the name of every key. It has at most 64 bytes: letters, digits and the marks '-',
	// '_', '.' and ':'. Default: "ps". All stores that share limits need the same prefix.
	Prefix string

	// Secret, if set, replaces keys in Redis by 128 bits of their HMAC-SHA-256. With a Secret, no
	// identity can be read in Redis, and no client can choose the slot of its key. All stores that
	// share limits need the same Secret: stores with different Secrets have separate counters.
	Secret []byte

	// Now, if set, replaces the server's clock. Now is for tests, replay and simulation only, because
	// clocks of several processes differ. Now must return times from 1970 to 2112. For other times,
	// Decide returns ErrInvalid. Keys live for an hour longer than they need, because TTLs run by the
	// server's clock.
	Now func() time.Time
}

const maxPrefixBytes = 64 // bytes of Options.Prefix

// Validate returns what is wrong with the options. The error wraps penstock.ErrInvalid.
func (o Options) Validate() error {
	if len(o.Prefix) > maxPrefixBytes {
		return fmt.Errorf("%w: redisstore: the prefix has %d bytes; the longest has %d", penstock.ErrInvalid, len(o.Prefix), maxPrefixBytes)
	}
	for i, c := range []byte(o.Prefix) {
		if !syntax.IsAlphanumeric(rune(c)) && !strings.ContainsRune("-_.:", rune(c)) {
			return fmt.Errorf("%w: redisstore: the prefix has %q at position %d; use letters, digits, '-', '_', '.' and ':'", penstock.ErrInvalid, c, i+1)
		}
	}
	return nil
}

// A Store is a penstock.Store on Redis.
type Store struct {
	listDecider
	client  Client
	keys    rediskeys.Scheme
	now     func() time.Time
	scripts scriptCache
	loads   scriptLoads
	calls   sync.Pool     // of *call
	stamps  atomic.Uint32 // the number of the last call's stamp

	isUncoalesced bool // for tests: each batch is sent in a script of its own

	serverCoalescer *coalesce.Coalescer // of a single server
	slotCoalescers  *coalesce.Slots     // of a Cluster
	topology        topology            // of a Cluster
	clock           clock               // observes the server's clock
	epochs          epochs              // observes whether the server lost its keys

	work      *background.Group // work that outlasts calls
	outliving atomic.Int64      // batches of decideMultiSlot in flight whose callers have left
}

// A listDecider lets other packages of this module have lists of batches decided. The name is
// unexported, so that the documentation of Store does not show it.
type listDecider = batches.ListDecider

// New makes a Store that uses a Client. New does not wait for a connection. Call Ping to check that
// the server answers. An error wraps penstock.ErrInvalid.
func New(c Client, o Options) (*Store, error) {
	if c == nil {
		return nil, fmt.Errorf("%w: redisstore: the client is nil; Open makes one from a URL", penstock.ErrInvalid)
	}
	if err := o.Validate(); err != nil {
		return nil, err
	}
	s := &Store{client: redisclient.Detach(c), keys: o.keys(), now: o.Now, work: background.New()}
	s.topology.madeAt = time.Now()
	s.calls.New = func() any { return new(call) }
	s.listDecider = batches.NewListDecider(s, s.decide)
	s.stamps.Store(rand.Uint32()) // other than that of a second store with the same client
	s.serverCoalescer, s.slotCoalescers = coalesce.New(decider{s}), coalesce.NewSlots(decider{s})
	return s, nil
}

// Open makes a Store for the server or servers that a URL names. Open does not wait for a
// connection: servers may start later. Call Ping to check that the servers answer, and Close when
// the Store is no longer needed. A URL has one of these forms:
//
//	redis://[user:password@]host[:port][/db]                 one server, or a Cluster
//	redis+cluster://host1:port,host2:port                    a Cluster, by several of its nodes
//	redis+sentinel://[user:password@]host1:port,…/name[/db]  the primary that Sentinels call name
//	unix:///path/to/socket[?db=n]                            one server, by its socket
//
// In each form valkey may replace redis. rediss and valkeys mean TLS (1.2 or later), also in
// rediss+cluster and rediss+sentinel. The port defaults to 6379, for Sentinels to 26379. Options
// follow as ?name=value&…; defaults are in parentheses:
//
//	db                      the database number
//	password_file           a file with the password
//	dial_timeout            how long connecting may take (1s)
//	ca, cert, key           PEM files: the servers' CA, and the client's certificate and key
//	server_name             the name in all certificates (each server's host or address)
//	insecure_skip_verify    true accepts any certificate: for tests only
//	sentinel_username, sentinel_password, sentinel_password_file
//
// The files password_file, sentinel_password_file, cert and key are read again for each new
// connection. An error wraps penstock.ErrInvalid and never shows the password.
func Open(url string, o Options) (*Store, error) {
	c, err := Dial(url)
	if err != nil {
		return nil, err
	}
	return New(c, o)
}

// Dial makes the Client of Open. It connects in the background. If it cannot connect, it tries
// again when it is used. Programs that wrap a Client call Dial and New; all others call Open.
func Dial(url string) (Client, error) {
	option, err := redisclient.ParseURL(url)
	if err != nil {
		return nil, err
	}
	return redisclient.Dial(option, func(text string) error { return ReplyError(text) }), nil
}

// Ping returns nil if the server answers. Programs that must not start without a server call Ping
// first.
func (s *Store) Ping(ctx context.Context) error {
	if err := s.client.Ping(ctx); err != nil {
		return s.unavailable(ctx, err)
	}
	return nil
}

// Close ends the store's background work and closes the connections that Open has made. Close waits
// until the work and the connections have ended, which takes about a second if a server hangs.
// Scripts in flight on a client that the user passed to New may take longer: until that client's
// timeouts end them. A caller whose context never ends waits as long.
func (s *Store) Close() error {
	s.work.Cancel()
	err := s.client.Close()
	s.work.Wait()
	return err
}

// Decide implements penstock.Store. A *penstock.StoreError shows whether the charges may have been
// made. Decide never sends a call twice, except after NOSCRIPT, which proves that nothing ran.
//
// On a Cluster, charges with different Keys are decided by one script for each Key. The first round
// sends dry runs to all Keys. If all would grant, the second round charges all Keys. So a denial
// takes one round trip and a grant takes two, for any number of Keys. Charges that cannot be denied
// are made last, in one more round trip. If a limit counts denied requests, a denial takes a second
// round trip, which counts them. If that one fails, the denial stands, and may not be counted.
//
// If other callers charge a Key between the two rounds, the second round may deny the batch. If it
// does, Decide refunds the other Keys. Such a batch never admits too much. For one round trip,
// other callers may lack the units that Decide then refunds. A hold that the batch renewed stays
// renewed.
//
// If the deadline passes before all charges are made or refunded, Decide returns an error with
// ReasonUnknown. If the caller has left, it returns context.Canceled. In both cases, the batch is
// refunded in the background, within a second. Up to 256 batches can be refunded in this way at the
// same time.
func (s *Store) Decide(ctx context.Context, charges []penstock.Charge) (penstock.Decision, error) {
	return batches.Func(s.decide).Decide(ctx, charges)
}

func (s *Store) decide(ctx context.Context, list []*batches.Batch) {
	c := s.calls.Get().(*call)
	for _, b := range list {
		if b.Err = penstock.Check(b.Charges); b.Err == nil {
			b.Err = checkTwins(b.Charges)
		}
		if b.Err == nil {
			c.batches = append(c.batches, b)
		}
	}
	if len(c.batches) > 0 {
		s.decideValid(ctx, c)
	}
	for _, b := range c.batches {
		if b.Err != nil {
			s.topology.requestRefresh(s)
			return // the client may still read the call's memory, so it is not reused
		}
	}
	c.forget()
	s.calls.Put(c)
}

// decideValid decides the call's batches. On a single server, they share scripts.
func (s *Store) decideValid(ctx context.Context, c *call) {
	first := c.batches[0]
	switch isSharded, err := s.checkReady(ctx); {
	case err != nil:
		batches.Fail(c.batches, err)
	case len(c.batches) > 1 && (isSharded || s.isUncoalesced):
		batches.Each(ctx, s.decide, c.batches)
	case isSharded && hasSeveralKeys(first.Charges):
		first.Decision, first.Err = s.decideMultiSlot(ctx, first.Charges)
	default:
		s.run(ctx, c, isSharded)
	}
}

// checkReady returns an error if nothing can be decided now. isSharded is true on a Cluster.
func (s *Store) checkReady(ctx context.Context) (isSharded bool, err error) {
	if err := ctx.Err(); err != nil {
		return false, s.unavailable(ctx, redisclient.TooLate(err))
	}
	if s.now != nil {
		if err := algorithm.CheckTime(s.fixedNow()); err != nil {
			return false, fmt.Errorf("%w: redisstore: Options.Now: %w", penstock.ErrInvalid, err)
		}
	}
	if isSharded, err = s.client.Sharded(ctx); err != nil {
		return false, s.unavailable(ctx, err)
	}
	if isSharded {
		s.topology.isCluster.Store(true)
	}
	return isSharded, nil
}

// eval decides the call's batches in one script. It returns the script's reply: a status per
// charge.
func (s *Store) eval(ctx context.Context, c *call, script *script) (string, error) {
	c.encode(s, s.fixedNow(), script)
	reply, err := s.send(ctx, c, script)
	n := len(c.charges)
	sizes := [...]int{plainSize * n, deniedSize * n, statusSize * n, (statusSize + receiptSize) * n}
	if err == nil && !slices.Contains(sizes[:], len(reply)) {
		err = fmt.Errorf("the script replied %d bytes for %d charges; expected one of %d", len(reply), n, sizes)
	}
	return reply, err
}

// fixedNow returns the time of Options.Now in µs, or 0 if the server's clock counts.
func (s *Store) fixedNow() int64 {
	if s.now == nil {
		return 0
	}
	return s.now().UnixMicro()
}

// forget drops the references to the caller's values.
func (c *call) forget() {
	clear(c.ownCharges)
	clear(c.args)
	clear(c.batches)
	c.charges, c.batches = nil, c.batches[:0]
	for i := range c.waiters {
		c.waiters[i].Reset()
	}
}
