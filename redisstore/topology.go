package redisstore

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/hashslot"
	"github.com/penstock/penstock/internal/rediskeys"
)

// Node names the server that decides a batch. On a Cluster, the name is the address of the primary
// that has the batch's key, as far as is known. The addresses for a batch with several keys are
// joined by '+'. Node returns "" on a single server, and while the Cluster's layout is not known.
// Node never waits. Breakers have a state for each of these names.
func (s *Store) Node(charges []penstock.Charge) string {
	if !s.topology.isCluster.Load() || len(charges) == 0 {
		return ""
	}
	l := s.topology.layout.Load()
	if l == nil || time.Since(l.readAt) > layoutMaxAge {
		s.topology.isNeeded.Store(true)
		s.topology.startRefresh(s)
	}
	if l == nil {
		return ""
	}
	name := l.server(s.keys.Slot(charges[0].Key))
	if !hasSeveralKeys(charges) {
		return name
	}
	names := []string{name}
	for i := range charges {
		if other := l.server(s.keys.Slot(charges[i].Key)); !slices.Contains(names, other) {
			names = append(names, other)
		}
	}
	slices.Sort(names)
	return strings.Join(names, "+")
}

// A topology knows which server of a Cluster has which slot. The layout is first fetched when Node
// or a script load needs it. The layout is fetched again when it is older than layoutMaxAge, and
// after a call has failed, because a failover may be the cause. Every fetch runs in the background.
type topology struct {
	isCluster    atomic.Bool
	layout       atomic.Pointer[layout] // nil until it is known
	isNeeded     atomic.Bool            // a caller has needed the layout
	isRefreshing atomic.Bool
	madeAt       time.Time    // when the store was made
	nextRefresh  atomic.Int64 // the earliest time of the next refresh, in ns since madeAt
}

const (
	layoutMaxAge        = 10 * time.Second
	minRefreshInterval  = time.Second / 2       // between two refreshes
	retryAfterRejection = time.Minute           // after a reply that will not change soon
	refreshTimeout      = time.Second           // for all attempts of one refresh
	attemptTimeout      = refreshTimeout / 4    // for one attempt
	firstRetryDelay     = 50 * time.Millisecond // after the first attempt; it doubles after each further one
)

// A layout is a reply of CLUSTER SLOTS.
type layout struct {
	readAt       time.Time              // when it was read
	servers      []string               // the addresses of the primaries
	numberBySlot [hashslot.Slots]uint16 // the index in servers plus 1; 0: no server has the slot
}

func (l *layout) server(slot uint16) string {
	if number := l.numberBySlot[slot]; number > 0 {
		return l.servers[number-1]
	}
	return ""
}

// requestRefresh starts a refresh, if a caller has needed the layout before.
func (t *topology) requestRefresh(s *Store) {
	if t.isNeeded.Load() {
		t.startRefresh(s)
	}
}

// startRefresh fetches the layout in the background, unless a refresh is in progress or the next
// one is not due yet.
func (t *topology) startRefresh(s *Store) {
	if !t.isRefreshDue() || !t.isRefreshing.CompareAndSwap(false, true) {
		return
	}
	if !t.isRefreshDue() { // another refresh began and ended between the two conditions above
		t.isRefreshing.Store(false)
		return
	}
	s.work.Start(func(ctx context.Context) { // starts nothing if the store was closed
		pause := t.fetchLayout(ctx, s)
		t.nextRefresh.Store(int64(time.Since(t.madeAt) + pause))
		t.isRefreshing.Store(false)
	})
}

func (t *topology) isRefreshDue() bool {
	return int64(time.Since(t.madeAt)) >= t.nextRefresh.Load()
}

// fetchLayout sends the query to random slots, because some servers may be dead. It returns the
// shortest time until the next refresh.
func (t *topology) fetchLayout(ctx context.Context, s *Store) time.Duration {
	ctx, cancel := context.WithTimeout(ctx, refreshTimeout)
	defer cancel()
	for pause := firstRetryDelay; ; pause *= 2 {
		attemptCtx, cancel := context.WithTimeout(ctx, attemptTimeout)
		text, err := s.queryLayout(attemptCtx)
		cancel()
		if err == nil {
			l, err := parseLayout(text)
			if err != nil {
				return retryAfterRejection
			}
			t.layout.Store(l)
			return minRefreshInterval
		}
		if _, hasReplied := errors.AsType[ReplyError](err); hasReplied {
			if c := classify(err); c == penstock.ReasonPermissionDenied || c == penstock.ReasonRejected {
				return retryAfterRejection // no right to the command, or several servers that are not a Cluster
			}
			return minRefreshInterval
		}
		select {
		case <-ctx.Done():
			return minRefreshInterval
		case <-time.After(pause):
		}
	}
}

// layoutLua replies a line for each range of slots: the first slot, the last, and the address of
// the primary.
const layoutLua = `local lines = {}
for i, range in ipairs(redis.call('CLUSTER', 'SLOTS')) do
  lines[i] = range[1] .. ' ' .. range[2] .. ' ' .. range[3][1] .. ':' .. range[3][2]
end
return table.concat(lines, '\n')`

func (s *Store) queryLayout(ctx context.Context) (string, error) {
	key := fmt.Sprintf("%s{%%@%d}", s.keys.Base, rand.Uint32())
	return s.client.Eval(ctx, layoutLua, []string{key}, nil)
}

// keyOfEachServer returns, for each primary of a Cluster, a key that the primary owns and that ends
// in name. The map's keys are the primaries' addresses. Without a Cluster it returns one key, for
// the address "", even if there are several servers.
func (s *Store) keyOfEachServer(ctx context.Context, name string) (map[string]string, error) {
	one := map[string]string{"": rediskeys.StoreKey(s.keys.Base, name)}
	isSharded, err := s.client.Sharded(ctx)
	if err != nil {
		return nil, err
	}
	if !isSharded {
		return one, nil
	}
	text, err := s.queryLayout(ctx)
	if _, hasReplied := errors.AsType[ReplyError](err); hasReplied && classify(err) == penstock.ReasonRejected {
		return one, nil // several servers that are not a Cluster
	}
	if err != nil {
		return nil, err
	}
	l, err := parseLayout(text)
	if err != nil {
		return nil, err
	}
	keys := make(map[string]string)
	// A server may have few slots, so many keys are tried: on average 64 for each slot.
	for i := 0; len(keys) < len(l.servers) && i < 64*hashslot.Slots; i++ {
		key := fmt.Sprintf("%s{%%@%d}%s", s.keys.Base, i, name)
		if server := l.server(hashslot.Of([]byte(key))); server != "" && keys[server] == "" {
			keys[server] = key
		}
	}
	return keys, nil
}

func parseLayout(text string) (*layout, error) {
	const slotBits = 14 // slots are below 2^14
	l := &layout{readAt: time.Now()}
	for line := range strings.Lines(text) {
		words := strings.Fields(line)
		if len(words) != 3 {
			return nil, fmt.Errorf("the Cluster's layout has the line %q; expected the first slot, the last slot and an address", line)
		}
		first, err1 := strconv.ParseUint(words[0], 10, slotBits)
		last, err2 := strconv.ParseUint(words[1], 10, slotBits)
		if err1 != nil || err2 != nil || first > last {
			return nil, fmt.Errorf("the Cluster's layout has the line %q; expected two slots in ascending order", line)
		}
		address := words[2]
		i := slices.Index(l.servers, address)
		if i < 0 {
			i = len(l.servers)
			l.servers = append(l.servers, address)
		}
		for slot := first; slot <= last; slot++ {
			l.numberBySlot[slot] = uint16(i + 1)
		}
	}
	return l, nil
}
