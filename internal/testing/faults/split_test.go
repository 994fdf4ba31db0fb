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
	"github.com/penstock/penstock/internal/redisclient"
	"github.com/penstock/penstock/internal/testing/redistest"
	"github.com/redis/rueidis"
)

// minority is the source address of the first instance, which stays with the old primary.
const minority = "127.0.9.1"

// A primary and the first instance are cut off from the others. There are two primaries until the
// old primary stops serving. In a Cluster the old primary stops after the node timeout, because it
// sees no majority. In a Sentinel group the old primary stops only if it requires replicas. The new
// primary then requires replicas too, and has none, so it serves only after the end of the split.
var splits = []fault{
	{
		id: "F14", name: "two primaries", on: groups, canPartition: true, cycles: 1, rounds: inSoak,
		option: onBothSides,
		begin:  split, meanwhile: awaitBothSides, end: endSplit,
		decidedBy: byAnySource, mayHaveErrors: duringTakeover,
		dataLosses: 1, finally: checkOnlyUnreplicatedLost, // the second primary may admit the limit once more
	},
	{
		id: "F14", name: "two primaries that require replicas", on: []kind{sentinel}, canPartition: true, cycles: 1, rounds: inSoak,
		option: onBothSides,
		prepare: func(e *experiment) {
			e.onAll("CONFIG SET min-replicas-to-write 1", "CONFIG SET min-replicas-max-lag 2")
		},
		begin: split, meanwhile: awaitNoPrimary, end: endSplit,
		wantErrors: duringTakeover, isPartial: true,
		dataLosses: 1, finally: checkOnlyUnreplicatedLost,
	},
}

// onBothSides puts the first instance on the minority's side.
func onBothSides(e *experiment, instance int) rueidis.ClientOption {
	option, err := redisclient.ParseURL(e.target.url)
	e.must(err)
	if instance > 0 {
		return option
	}
	option.Dialer.LocalAddr = &net.TCPAddr{IP: net.ParseIP(minority)}
	if e.target.sentinel != nil {
		e.group.route = &sentinelRoute{sentinels: option.InitAddress}
		option.DialCtxFn = e.group.route.dial
	}
	return option
}

// A sentinelRoute makes the connections of the first instance to the Sentinels. The route can block
// these connections, because the Sentinels have no proxies that could.
type sentinelRoute struct {
	sentinels []string // addresses

	mu        sync.Mutex
	isBlocked bool
	conns     []net.Conn
}

func (r *sentinelRoute) dial(ctx context.Context, address string, dialer *net.Dialer, _ *tls.Config) (net.Conn, error) {
	if !slices.Contains(r.sentinels, address) {
		return dialer.DialContext(ctx, "tcp", address)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.isBlocked {
		return nil, errors.New("the route to the Sentinel is cut")
	}
	conn, err := dialer.DialContext(ctx, "tcp", address)
	if err == nil {
		r.conns = append(r.conns, conn)
	}
	return conn, err
}

func (r *sentinelRoute) set(isBlocked bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.isBlocked = isBlocked
	if isBlocked {
		for _, c := range r.conns {
			_ = c.Close()
		}
		r.conns = nil
	}
}

// split cuts off the primary and the first instance from all others.
func split(e *experiment) {
	g := e.chooseVictim()
	e.recordReplicated()
	if e.target.cluster != nil {
		e.target.cluster.Partition([]*redistest.Server{g.victim}, []string{minority}, []string{"127.0.0.1"})
		return
	}
	g.route.set(true)
	far := []string{"127.0.0.1", g.successor.Source}
	for _, s := range e.target.sentinel.Sentinels {
		far = append(far, s.Source)
	}
	e.target.sentinel.Proxy(g.victim).Block(far...)
}

// awaitBothSides waits until the majority's clients use the second primary. With Sentinel it also
// waits for decisions by the old primary, which has not noticed the split.
func awaitBothSides(e *experiment) {
	awaitSuccessor(e)
	e.load.enterPhase(during)
	firstInstance := 1 // instance 0 is on the side of the old primary
	if e.target.sentinel != nil {
		firstInstance = 0
	}
	e.await("the store to decide on each side", func() bool {
		return e.every(func(i, limit int) bool {
			return i < firstInstance || e.load.decisionsInPhase(i, limit, penstock.FromStore) >= enough
		})
	})
}

// awaitNoPrimary waits until neither primary grants anything.
func awaitNoPrimary(e *experiment) {
	awaitSuccessor(e)
	e.await("the old primary to miss its replica", func() bool {
		state, err := e.group.victim.Do("INFO", "replication")
		return err == nil && strings.Contains(fmt.Sprint(state), "min_slaves_good_slaves:0")
	})
	e.awaitRequests(200) // until all replies of the old primary have arrived
	e.recordUnreplicated()
	e.load.enterPhase(during)
}

// endSplit ends the split. The units that the old primary granted during the split are lost.
func endSplit(e *experiment) {
	if e.target.cluster != nil {
		e.target.cluster.Heal()
	} else {
		e.group.route.set(false)
		e.target.sentinel.Proxy(e.group.victim).Block()
		e.must(e.target.sentinel.Rejoin()) // without this, Sentinels demote the old primary only after 8 s
	}
	if e.fault.decidedBy == byAnySource {
		e.recordUnreplicated()
	}
}

// onAll runs commands on all servers of the group.
func (e *experiment) onAll(commands ...string) {
	e.Helper()
	for _, s := range e.target.servers {
		for _, c := range commands {
			_, err := s.Do(strings.Fields(c)...)
			e.must(err)
		}
	}
}
