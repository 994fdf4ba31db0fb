package redisstore

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock"
)

// Shard names the server that decides a batch: on a Cluster the address of the primary that keeps its key, as the Cluster said lately; those of
// a batch with several keys are joined by '+'. It is "" on a single server, and while the Cluster has not said. It never waits, so that a
// breaker can keep the shards apart.
func (s *Store) Shard(charges []penstock.Charge) string {
	if !s.where.matters.Load() || len(charges) == 0 {
		return ""
	}
	l := s.where.layout.Load()
	if l == nil || time.Since(l.at) > layoutLife {
		s.where.doubt(s)
	}
	if l == nil {
		return ""
	}
	name := l.server(s.slotOfKey(charges[0].Key))
	if !spread(charges) {
		return name
	}
	names := []string{name}
	for i := range charges {
		if other := l.server(s.slotOfKey(charges[i].Key)); !slices.Contains(names, other) {
			names = append(names, other)
		}
	}
	slices.Sort(names)
	return strings.Join(names, "+")
}

// slotOfKey is the slot of all that a key pays.
func (s *Store) slotOfKey(key string) uint16 {
	var room [256]byte
	return slotOf(s.appendTagged(room[:0], key))
}

// topology is which server of a Cluster keeps which slot. It is asked for in the background: when it is first wanted, when it is old, and when
// a call has failed, which a failover makes happen.
type topology struct {
	matters atomic.Bool // it is a Cluster
	layout  atomic.Pointer[layout]
	asked   atomic.Int64 // when, in ns of the process
}

const (
	layoutLife = 10 * time.Second
	layoutGap  = time.Second / 2 // between two questions
	layoutWait = time.Second     // for the answer
)

// A layout is what the Cluster said.
type layout struct {
	at      time.Time
	servers []string
	of      [slots]uint16 // by slot: a server's number plus 1
}

func (l *layout) server(slot uint16) string {
	if i := l.of[slot]; i > 0 {
		return l.servers[i-1]
	}
	return ""
}

var begin = time.Now()

// doubt has the layout asked for again, unless it was just now.
func (t *topology) doubt(s *Store) {
	if !t.matters.Load() {
		return
	}
	now, last := int64(time.Since(begin)), t.asked.Load()
	if last != 0 && now-last < int64(layoutGap) || !t.asked.CompareAndSwap(last, now) {
		return
	}
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), layoutWait)
		defer cancel()
		for ctx.Err() == nil { // one server after the other, as the slots have it: some may be dead
			if l, err := s.askLayout(ctx); err == nil {
				t.layout.Store(l)
				return
			}
		}
	}()
}

// layoutLua says on a line for each range of slots: the first, the last, and the address of its primary.
const layoutLua = `local lines = {}
for i, range in ipairs(redis.call('CLUSTER', 'SLOTS')) do
  lines[i] = range[1] .. ' ' .. range[2] .. ' ' .. range[3][1] .. ':' .. range[3][2]
end
return table.concat(lines, '\n')`

func (s *Store) askLayout(ctx context.Context) (*layout, error) {
	ctx, cancel := context.WithTimeout(ctx, layoutWait/4)
	defer cancel()
	key := fmt.Sprintf("%s{%%@%d}", s.prefix, rand.Uint32())
	text, err := s.client.Eval(ctx, layoutLua, []string{key}, nil)
	if err != nil {
		return nil, err
	}
	return parseLayout(text)
}

func parseLayout(text string) (*layout, error) {
	l := &layout{at: time.Now()}
	for line := range strings.Lines(text) {
		words := strings.Fields(line)
		if len(words) != 3 {
			return nil, fmt.Errorf("the Cluster's layout has the line %q", line)
		}
		first, err1 := strconv.ParseUint(words[0], 10, 14)
		last, err2 := strconv.ParseUint(words[1], 10, 14)
		if err1 != nil || err2 != nil || first > last {
			return nil, fmt.Errorf("the Cluster's layout has the line %q", line)
		}
		i := slices.Index(l.servers, words[2])
		if i < 0 {
			i = len(l.servers)
			l.servers = append(l.servers, words[2])
		}
		for slot := first; slot <= last; slot++ {
			l.of[slot] = uint16(i + 1)
		}
	}
	return l, nil
}
