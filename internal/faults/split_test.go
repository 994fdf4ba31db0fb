package faults

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/redistest"
	"github.com/penstock/penstock/redisstore"
	"github.com/redis/rueidis"
)

// minority is the address from which the instance speaks that stays with the old primary.
const minority = "127.0.9.1"

// A primary is parted from the others, and the first instance with it: there are two primaries
// until it notices. A Cluster's does, after its node timeout, since it sees no majority. A
// Sentinel's does not, unless it wants replicas: then the new one, which has none either, does not
// serve before the split is over.
var splits = []row{
	{
		id: "F14", name: "two primaries", on: groups, parted: true, cycles: 1, rounds: inSoak,
		option: onBothSides,
		begin:  split, lasts: servedOnBothSides, end: healed,
		answered: byAnybody, may: inBetween,
		forgets: 1, also: losesNoMoreThanMayBe, // the limit once more for the second primary
	},
	{
		id: "F14", name: "two primaries that want replicas", on: []kind{sentinel}, parted: true, cycles: 1, rounds: inSoak,
		option:  onBothSides,
		prepare: func(l *lab) { l.onAll("CONFIG SET min-replicas-to-write 1", "CONFIG SET min-replicas-max-lag 2") },
		begin:   split, lasts: nobodyServes, end: healed,
		sees: inBetween, partial: true,
		forgets: 1, also: losesNoMoreThanMayBe,
	},
}

// onBothSides has the first instance speak from the minority's side.
func onBothSides(l *lab, instance int) rueidis.ClientOption {
	option, err := redisstore.ParseURL(l.to.url)
	l.check(err)
	if instance > 0 {
		return option
	}
	option.Dialer.LocalAddr = &net.TCPAddr{IP: net.ParseIP(minority)}
	if l.to.sentinel != nil {
		l.group.way = &way0{to: option.InitAddress}
		option.DialCtxFn = l.group.way.dial
	}
	return option
}

// A way0 is how the first instance reaches Sentinels, which stand behind no proxy.
type way0 struct {
	to []string

	mu    sync.Mutex
	shut  bool
	conns []net.Conn
}

func (w *way0) dial(ctx context.Context, address string, dialer *net.Dialer, _ *tls.Config) (net.Conn, error) {
	if !slices.Contains(w.to, address) {
		return dialer.DialContext(ctx, "tcp", address)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.shut {
		return nil, errors.New("no way to the sentinel")
	}
	conn, err := dialer.DialContext(ctx, "tcp", address)
	if err == nil {
		w.conns = append(w.conns, conn)
	}
	return conn, err
}

func (w *way0) set(shut bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.shut = shut
	if shut {
		for _, c := range w.conns {
			_ = c.Close()
		}
		w.conns = nil
	}
}

// split parts the primary and the first instance from all others.
func split(l *lab) {
	g := l.fork()
	if l.to.cluster != nil {
		l.to.cluster.Part([]*redistest.Server{g.victim}, []string{minority}, []string{"127.0.0.1"})
		return
	}
	g.way.set(true)
	far := []string{"127.0.0.1", g.heir.Source}
	for _, watcher := range l.to.sentinel.Sentinels {
		far = append(far, watcher.Source)
	}
	l.to.sentinel.Proxy(g.victim).Part(far...)
}

// servedOnBothSides waits until the majority's clients have the second primary. Those of a
// Sentinel's first one have not noticed.
func servedOnBothSides(l *lab) {
	takenOver(l)
	l.load.begin(during)
	from := 1
	if l.to.sentinel != nil {
		from = 0
	}
	l.await("the store decides on each side", func() bool {
		return l.every(func(i, p int) bool { return i < from || l.load.since(i, p, penstock.FromStore) >= enough })
	})
}

// nobodyServes waits until neither primary grants anything.
func nobodyServes(l *lab) {
	takenOver(l)
	l.await("the old primary misses its replica", func() bool {
		state, err := l.group.victim.Do("INFO", "replication")
		return err == nil && strings.Contains(fmt.Sprint(state), "min_slaves_good_slaves:0")
	})
	l.asksFor(200) // so that all its answers have come
	l.mayLose()
	l.load.begin(during)
}

// healed ends the split. What the old primary has granted meanwhile is lost.
func healed(l *lab) {
	if l.to.cluster != nil {
		l.to.cluster.Heal()
	} else {
		l.group.way.set(false)
		l.to.sentinel.Proxy(l.group.victim).Part()
		l.check(l.to.sentinel.Rejoin()) // by themselves, sentinels let 8 s pass before they demote it
	}
	if l.row.answered == byAnybody {
		l.mayLose()
	}
}

// onAll has all servers of the group run commands.
func (l *lab) onAll(commands ...string) {
	l.Helper()
	for _, s := range l.to.servers {
		for _, c := range commands {
			_, err := s.Do(strings.Fields(c)...)
			l.check(err)
		}
	}
}
