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
)

// Node names the server that decides a batch: on a Cluster the address of the primary that keeps
// its key, as the Cluster said lately; those of a batch with several keys are joined by '+'. It is
// "" on a single server, and while the Cluster has not said. It never waits, so that a breaker can
// keep the nodes apart.
func (s *Store) Node(charges []penstock.Charge) string {
	if !s.where.sharded.Load() || len(charges) == 0 {
		return ""
	}
	l := s.where.layout.Load()
	if l == nil || time.Since(l.at) > layoutLife {
		s.where.wanted.Store(true)
		s.where.ask(s)
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

// topology is which server of a Cluster keeps which slot. It is asked for in the background, once
// somebody has wanted it: then, when it is old, and when a call has failed, which a failover makes
// happen.
type topology struct {
	sharded atomic.Bool // it is a Cluster
	layout  atomic.Pointer[layout]
	wanted  atomic.Bool
	asking  atomic.Bool
	begin   time.Time
	next    atomic.Int64 // when it may be asked for again, in ns since begin
}

const (
	layoutLife  = 10 * time.Second
	layoutGap   = time.Second / 2       // after one asking, before the next
	layoutRest  = time.Minute           // after an answer that will be the same for long
	layoutWait  = time.Second           // for all attempts of one asking
	layoutPause = 50 * time.Millisecond // after the first attempt, and twice as long after each further one
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

// doubt has the layout asked for again, if anybody wants it.
func (t *topology) doubt(s *Store) {
	if t.wanted.Load() {
		t.ask(s)
	}
}

// ask asks for the layout, unless that is being done, or was just now.
func (t *topology) ask(s *Store) {
	if int64(time.Since(t.begin)) < t.next.Load() || !t.asking.CompareAndSwap(false, true) {
		return
	}
	s.work.start(func(ctx context.Context) { // or never again: the store was closed
		rest := t.learn(ctx, s)
		t.next.Store(int64(time.Since(t.begin) + rest))
		t.asking.Store(false)
	})
}

// learn asks one server after the other, as the slots have it, for some may be dead. It returns
// after how long to ask again.
func (t *topology) learn(ctx context.Context, s *Store) time.Duration {
	ctx, cancel := context.WithTimeout(ctx, layoutWait)
	defer cancel()
	for pause := layoutPause; ; pause *= 2 {
		attempt, cancel := context.WithTimeout(ctx, layoutWait/4)
		text, err := s.askLayout(attempt)
		cancel()
		if err == nil {
			l, err := parseLayout(text)
			if err != nil {
				return layoutRest
			}
			t.layout.Store(l)
			return layoutGap
		}
		if _, replied := errors.AsType[ReplyError](err); replied {
			if c := classify(err); c == penstock.ReasonPermissionDenied || c == penstock.ReasonRejected { // no right to ask, or no Cluster: several servers that a client takes for one
				return layoutRest
			}
			return layoutGap
		}
		select {
		case <-ctx.Done():
			return layoutGap
		case <-time.After(pause):
		}
	}
}

// layoutLua says on a line for each range of slots: the first, the last, and the address of its
// primary.
const layoutLua = `local lines = {}
for i, range in ipairs(redis.call('CLUSTER', 'SLOTS')) do
  lines[i] = range[1] .. ' ' .. range[2] .. ' ' .. range[3][1] .. ':' .. range[3][2]
end
return table.concat(lines, '\n')`

func (s *Store) askLayout(ctx context.Context) (string, error) {
	key := fmt.Sprintf("%s{%%@%d}", s.prefix, rand.Uint32())
	return s.client.Eval(ctx, layoutLua, []string{key}, nil)
}

// keyOfEachServer returns, for the address of each primary of a Cluster, a key of the store's own
// that it keeps. Without a Cluster, or with several servers that a client takes for one, it returns
// one key, for the address "".
func (s *Store) keyOfEachServer(ctx context.Context, name string) (map[string]string, error) {
	one := map[string]string{"": s.prefix + "{%@}" + name}
	sharded, err := s.client.Sharded(ctx)
	if err != nil {
		return nil, err
	}
	if !sharded {
		return one, nil
	}
	text, err := s.askLayout(ctx)
	if _, replied := errors.AsType[ReplyError](err); replied && classify(err) == penstock.ReasonRejected {
		return one, nil
	}
	if err != nil {
		return nil, err
	}
	l, err := parseLayout(text)
	if err != nil {
		return nil, err
	}
	keys := make(map[string]string)
	for i := 0; len(keys) < len(l.servers) && i < 64*slots; i++ { // a server may have few slots
		key := fmt.Sprintf("%s{%%@%d}%s", s.prefix, i, name)
		if server := l.server(slotOf([]byte(key))); server != "" && keys[server] == "" {
			keys[server] = key
		}
	}
	return keys, nil
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
