package redisstore

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/algorithm"
	"github.com/penstock/penstock/internal/hashslot"
	"github.com/penstock/penstock/internal/lazy"
	"github.com/penstock/penstock/internal/luagen"
	"github.com/penstock/penstock/internal/redisclient"
)

// Load loads every script that the limits can need into the servers:
//
//   - scripts for each limit alone;
//   - scripts for the limits of one Group;
//   - uniform scripts, for batches of several callers with one sequence of algorithms;
//   - mixed scripts, for all other batches of these limits.
//
// The scripts go to each server that the Client knows of. The Client of Open also finds replicas
// that may be promoted: on a Cluster always, elsewhere if its user has the right to INFO.
//
// Call Load with all limits in use, in the order of their charges, before the first decision and
// before new limits are used. Decide works without it: then the first caller that needs a script
// loads it, and other callers wait until it is loaded.
//
// After an error, some servers may lack some scripts, and Decide loads those when it needs them. If
// the user lacks the right to SCRIPT LOAD, the reason is ReasonPermissionDenied, and Decide sends
// scripts by EVAL. Load returns when ctx ends.
func (s *Store) Load(ctx context.Context, plans ...*penstock.Plan) error {
	if slices.Contains(plans, nil) {
		return fmt.Errorf("%w: redisstore: a limit has no Plan; make one with Limit.Compile", penstock.ErrInvalid)
	}
	for _, p := range plans {
		if err := checkTwin(p); err != nil {
			return err
		}
	}
	var wanted []string
	for _, script := range s.scripts.forLimits(plans) {
		wanted = append(wanted, script.text)
		script.isUsed.Store(true)
	}
	if len(wanted) == 0 {
		return nil
	}
	err := s.client.Load(ctx, "", wanted)
	s.loads.recordRight(err)
	if err != nil {
		return s.unavailable(ctx, err)
	}
	s.loads.loaded.Add(int64(len(wanted)))
	return nil
}

// Scripts returns how often scripts were missing, loaded, or sent as text since the Store was made.
// missing counts NOSCRIPT replies. loaded counts scripts that were loaded, each once for all
// servers. evals counts decisions sent by EVAL, with the script's text. After Load, missing and
// evals grow only if a server is new or has lost its scripts.
func (s *Store) Scripts() (missing, loaded, evals int64) {
	return s.loads.missing.Load(), s.loads.loaded.Load(), s.loads.evals.Load()
}

// maxSequences bounds for how many sequences of algorithms Load loads single and uniform scripts.
const maxSequences = 64

// forLimits returns all scripts that limits can need. Scripts that are new are generated.
func (l *scriptCache) forLimits(plans []*penstock.Plan) []*script {
	if len(plans) == 0 {
		return nil
	}
	var compact [][]*algorithm.Algorithm   // for single and uniform scripts: the sequence of each
	var mixedSets [][]*algorithm.Algorithm // for mixed scripts: the algorithms of each
	var all []*algorithm.Algorithm
	for i, p := range plans {
		all = addAlgorithm(all, p.Algorithm())
		if slices.ContainsFunc(plans[:i], func(other *penstock.Plan) bool { return other.Group() == p.Group() }) {
			continue
		}
		group := limitsOfGroup(plans[i:], p.Group())
		compact = addSequences(compact, group.simple)
		if group.count > 1 {
			mixedSets = append(mixedSets, group.set)
		}
	}
	for _, p := range plans {
		if !isSimple(p) { // it may be charged by itself, for example when a hold is released
			mixedSets = append(mixedSets, []*algorithm.Algorithm{p.Algorithm()})
		}
	}
	var scripts []*script
	l.mu.Lock()
	defer l.mu.Unlock()
	want := func(s *script) {
		if !slices.Contains(scripts, s) {
			scripts = append(scripts, s)
		}
	}
	for _, sequence := range compact {
		want(l.makeLocked(single, sequence))
		want(l.makeLocked(uniform, sequence))
	}
	for _, p := range plans {
		if hasSingleSet(p) {
			want(l.makeLocked(single, []*algorithm.Algorithm{p.Algorithm()}))
		}
	}
	for _, set := range append(mixedSets, all) {
		want(l.makeLocked(mixed, set))
	}
	return scripts
}

type groupLimits struct {
	count  int                    // of limits
	set    []*algorithm.Algorithm // each once
	simple []*algorithm.Algorithm // of each limit that single and uniform scripts can decide, in order
}

func limitsOfGroup(plans []*penstock.Plan, group string) (limits groupLimits) {
	known := make(map[uint32]bool) // plans may have a limit more than once, with other parameters
	for _, p := range plans {
		if p.Group() != group || known[p.Tag()] {
			continue
		}
		known[p.Tag()] = true
		limits.count++
		limits.set = addAlgorithm(limits.set, p.Algorithm())
		if isSimple(p) {
			limits.simple = append(limits.simple, p.Algorithm())
		}
	}
	return limits
}

// addSequences adds, for each subset of a group's limits, the algorithms of those limits in their
// order. These subsets are the compact batches that charges of the group can form. When known has
// maxSequences sequences, no more are added.
func addSequences(known [][]*algorithm.Algorithm, group []*algorithm.Algorithm) [][]*algorithm.Algorithm {
	ofGroup := [][]*algorithm.Algorithm{nil} // grows: each algorithm is added to all sequences so far
	for _, a := range group {
		for _, sequence := range ofGroup {
			if len(sequence) == luagen.MaxCharges || len(known) >= maxSequences {
				continue
			}
			longer := append(slices.Clip(sequence), a)
			if !hasSequence(ofGroup, longer) {
				ofGroup = append(ofGroup, longer)
			}
			if !hasSequence(known, longer) {
				known = append(known, longer)
			}
		}
	}
	return known
}

func hasSequence(sequences [][]*algorithm.Algorithm, sequence []*algorithm.Algorithm) bool {
	return slices.ContainsFunc(sequences, func(other []*algorithm.Algorithm) bool { return slices.EqualFunc(other, sequence, haveSameStep) })
}

// addAlgorithm adds an algorithm, unless one with the same step is already in the list.
func addAlgorithm(all []*algorithm.Algorithm, a *algorithm.Algorithm) []*algorithm.Algorithm {
	if indexOf(all, a) >= 0 {
		return all
	}
	return append(all, a)
}

// scriptLoads counts loads. It also has the loads in progress after a NOSCRIPT reply. One caller
// loads a script into a server, and the others wait for this load.
type scriptLoads struct {
	missing, loaded, evals atomic.Int64 // see Scripts

	isForbidden atomic.Bool // the user has no right to SCRIPT LOAD

	mu       sync.Mutex
	inFlight map[string]*pendingLoad // by name: the script's digest and the server's name
}

// A pendingLoad is a load of one script into one server. The load has ended when done is closed.
type pendingLoad struct {
	done chan struct{}
	err  error // valid once done is closed
}

func (l *scriptLoads) recordRight(err error) {
	switch {
	case err == nil:
		l.isForbidden.Store(false)
	case classify(err) == penstock.ReasonPermissionDenied:
		l.isForbidden.Store(true)
	}
}

// begin returns the pending load of a name, and whether the caller must do this load.
func (l *scriptLoads) begin(name string) (pending *pendingLoad, isMine bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if other, ok := l.inFlight[name]; ok {
		return other, false
	}
	if l.inFlight == nil {
		l.inFlight = make(map[string]*pendingLoad)
	}
	pending = &pendingLoad{done: make(chan struct{})}
	l.inFlight[name] = pending
	return pending, true
}

func (l *scriptLoads) end(name string, pending *pendingLoad, err error) {
	l.mu.Lock()
	delete(l.inFlight, name)
	l.mu.Unlock()
	pending.err = err
	close(pending.done)
}

const (
	loadTimeout     = 2 * time.Second // for one script on one server
	maxLoadsPerCall = 3               // loads that a call waits for before it sends the text: servers may lose scripts, and slots may move
)

// send runs a script, and loads it first if the server does not know it. The call is sent again
// only after NOSCRIPT, which proves that nothing ran. A script that is sent for the first time is
// loaded at the same time. If the server is far away, that saves the time to find out that the
// script is missing.
func (s *Store) send(ctx context.Context, c *call, script *script) (string, error) {
	var early *pendingLoad // began before the script was sent
	if !script.isUsed.Load() && script.isUsed.CompareAndSwap(false, true) {
		name := script.digest + " " + s.serverOf(c.keys[0])
		var isMine bool
		if early, isMine = s.loads.begin(name); isMine {
			s.startLoading(name, early, script, c.keys[0])
		}
	}
	loadsBefore := script.loads.Load()
	for tries := 0; ; tries++ {
		reply, err := s.client.EvalSha(ctx, script.digest, c.keys, c.args)
		if err == nil {
			return redisclient.CutStamp(reply, c.stamp)
		}
		if !isNoScript(err) {
			return "", script.explain(err)
		}
		if tries == maxLoadsPerCall {
			s.loads.missing.Add(1)
			return s.sendText(ctx, c, script)
		}
		if tries == 0 && script.loads.Load() != loadsBefore { // loaded while this call was in flight
			s.loads.missing.Add(1)
			early = nil
			continue
		}
		name, pending, isMine := "", early, false
		early = nil
		if pending == nil {
			name = script.digest + " " + s.serverOf(c.keys[0])
			pending, isMine = s.loads.begin(name)
		}
		s.loads.missing.Add(1) // only now, so that each counted caller loads the script or waits for it: tests rely on it
		if isMine && s.loads.isForbidden.Load() {
			reply, err := s.sendText(ctx, c, script)
			s.loads.end(name, pending, nil)
			return reply, err
		}
		if isMine {
			s.startLoading(name, pending, script, c.keys[0])
		}
		if err := lazy.Await(ctx, pending.done, nil); err != nil {
			return "", redisclient.TooLate(err)
		}
		// If loads are forbidden, the next try sends the text.
		if err := pending.err; err != nil && !s.loads.isForbidden.Load() {
			return "", redisclient.NotSent(fmt.Errorf("load the script: %w", script.explain(err)))
		}
	}
}

// sendText runs a script by its text. Afterwards the server also knows it by its digest.
func (s *Store) sendText(ctx context.Context, c *call, script *script) (string, error) {
	s.loads.evals.Add(1)
	reply, err := s.client.Eval(ctx, script.text, c.keys, c.args)
	if err != nil {
		return "", script.explain(err)
	}
	return redisclient.CutStamp(reply, c.stamp)
}

// startLoading loads a script into the server of a key. The load runs in the background, because
// others may need the script after the caller has left.
func (s *Store) startLoading(name string, pending *pendingLoad, script *script, key string) {
	key = strings.Clone(key)
	if !s.work.Start(func(ctx context.Context) {
		ctx, cancel := context.WithTimeout(ctx, loadTimeout)
		defer cancel()
		err := s.client.Load(ctx, key, []string{script.text})
		s.loads.recordRight(err)
		if err == nil {
			s.loads.loaded.Add(1)
			script.loads.Add(1)
		}
		s.loads.end(name, pending, err)
	}) {
		s.loads.end(name, pending, redisclient.ErrClosed)
	}
}

func (s *Store) serverOf(key string) string {
	if !s.topology.isCluster.Load() {
		return ""
	}
	l := s.topology.layout.Load()
	if l == nil {
		s.topology.isNeeded.Store(true)
		s.topology.startRefresh(s)
		return ""
	}
	return l.server(hashslot.Of([]byte(key)))
}
