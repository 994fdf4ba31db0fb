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
)

// A Script is a Lua script that a Client loads into servers.
type Script struct {
	Text   string
	Digest string // the SHA-1 of Text, in hexadecimal digits
}

// Check compares what a server answered to SCRIPT LOAD with the digest.
func (s Script) Check(answer string) error {
	if answer == s.Digest {
		return nil
	}
	return fmt.Errorf("the server answered SCRIPT LOAD with %.60q; the script's SHA-1 is %s", answer, s.Digest)
}

// Load loads every script that the limits can need into the servers: for each limit alone, for
// those of one Group together, for callers that are decided together, and for batches of any of the
// limits. The scripts go to each server that the Client knows of. The Client of Open also finds
// replicas that may be promoted: on a Cluster always, elsewhere if its user has the right to INFO.
// Call Load with all limits in use, in the order of their charges, before the first decision and
// before new limits are used. Decide works without it: then the first caller that needs a script
// loads it, and others wait for that.
//
// After an *Error some server may lack some script, and Decide loads it when it is needed. The
// class of the error is Refused if the user lacks the right to SCRIPT LOAD: then Decide sends
// scripts by EVAL. Load returns when ctx ends.
func (s *Store) Load(ctx context.Context, limits ...penstock.Limit) error {
	plans := make([]*penstock.Plan, len(limits))
	for i := range limits {
		var err error
		if plans[i], err = limits[i].Plan(); err != nil {
			return err
		}
	}
	var wanted []Script
	for _, script := range s.scripts.forLimits(plans) {
		wanted = append(wanted, script.Script)
	}
	if len(wanted) == 0 {
		return nil
	}
	err := s.client.Load(ctx, "", wanted)
	s.loads.note(err)
	if err != nil {
		return s.unavailable(ctx, err)
	}
	s.loads.loaded.Add(int64(len(wanted)))
	return nil
}

// ScriptStats count what a Store has sent besides EVALSHA. After Load, Missing and Evals do not
// grow unless a server is new or has lost its scripts.
type ScriptStats struct {
	Missing int64 // answers NOSCRIPT
	Loaded  int64 // scripts that were loaded, each counted once for all servers
	Evals   int64 // decisions sent by EVAL, with the script's text
}

// Scripts counts how scripts were sent.
func (s *Store) Scripts() ScriptStats {
	return ScriptStats{Missing: s.loads.missing.Load(), Loaded: s.loads.loaded.Load(), Evals: s.loads.evals.Load()}
}

// maxSequences bounds the rows that Load prepares for.
const maxSequences = 64

// forLimits composes the scripts that limits can need, as far as they are not known, and returns
// them all.
func (l *library) forLimits(plans []*penstock.Plan) []*script {
	if len(plans) == 0 {
		return nil
	}
	var rowsOf, sets [][]*algorithm.Algorithm
	var all []*algorithm.Algorithm
	for i, p := range plans {
		all = add(all, p.Limit.Algorithm)
		if slices.ContainsFunc(plans[:i], func(other *penstock.Plan) bool { return other.Limit.Group == p.Limit.Group }) {
			continue
		}
		var inRow, set []*algorithm.Algorithm
		known := make(map[uint32]bool) // a limit may be here more than once, with other numbers
		for _, other := range plans[i:] {
			if other.Limit.Group != p.Limit.Group || known[other.Tag] {
				continue
			}
			known[other.Tag] = true
			set = add(set, other.Limit.Algorithm)
			if fitsRow(other) {
				inRow = append(inRow, other.Limit.Algorithm)
			}
		}
		rowsOf = sequences(rowsOf, inRow)
		if len(known) > 1 {
			sets = append(sets, set)
		}
	}
	for _, p := range plans {
		if !fitsRow(p) { // it may be alone: a hold that is released
			sets = append(sets, []*algorithm.Algorithm{p.Limit.Algorithm})
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
	for _, sequence := range rowsOf {
		want(l.makeLocked(row, sequence))
		want(l.makeLocked(rows, sequence))
	}
	for _, set := range append(sets, all) {
		want(l.makeLocked(many, set))
	}
	return scripts
}

// sequences adds the algorithms of every row that charges of a group can form: those of any of its
// limits, in their order. It stops at maxSequences in all.
func sequences(known [][]*algorithm.Algorithm, group []*algorithm.Algorithm) [][]*algorithm.Algorithm {
	same := func(a, b *algorithm.Algorithm) bool { return a.Is(b) }
	last := [][]*algorithm.Algorithm{nil}
	for _, a := range group {
		for _, before := range last {
			if len(before) == maxRow || len(known) >= maxSequences {
				continue
			}
			next := append(slices.Clip(before), a)
			if !slices.ContainsFunc(last, func(s []*algorithm.Algorithm) bool { return slices.EqualFunc(s, next, same) }) {
				last = append(last, next)
			}
			if !slices.ContainsFunc(known, func(s []*algorithm.Algorithm) bool { return slices.EqualFunc(s, next, same) }) {
				known = append(known, next)
			}
		}
	}
	return known
}

func add(all []*algorithm.Algorithm, a *algorithm.Algorithm) []*algorithm.Algorithm {
	if slices.ContainsFunc(all, a.Is) {
		return all
	}
	return append(all, a)
}

// loads are the scripts that are being loaded since a server has answered NOSCRIPT. For each script
// and server one caller loads it, and the others wait.
type loads struct {
	missing, loaded, evals atomic.Int64

	refused atomic.Bool // the user may not SCRIPT LOAD

	mu  sync.Mutex
	now map[string]*loading // by the script's digest and the server's name
}

// A loading is under way until done is closed.
type loading struct {
	done chan struct{}
	err  error // to be read after that
}

// note remembers whether the user may load scripts.
func (l *loads) note(err error) {
	switch {
	case err == nil:
		l.refused.Store(false)
	case classify(err) == penstock.ReasonPermissionDenied:
		l.refused.Store(true)
	}
}

// begin returns the loading of a name, and whether it is the caller who must end it.
func (l *loads) begin(name string) (*loading, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if under, ok := l.now[name]; ok {
		return under, false
	}
	if l.now == nil {
		l.now = make(map[string]*loading)
	}
	mine := &loading{done: make(chan struct{})}
	l.now[name] = mine
	return mine, true
}

func (l *loads) end(name string, of *loading, err error) {
	l.mu.Lock()
	delete(l.now, name)
	l.mu.Unlock()
	of.err = err
	close(of.done)
}

const (
	loadTimeout = 2 * time.Second // for one script on one server
	maxLoads    = 3               // that a caller waits for: a server may lose the script again, or another may take its slot
)

// send runs a script, and loads it first if the server does not know it. The call is sent again
// only after NOSCRIPT, which proves that nothing ran.
func (s *Store) send(ctx context.Context, c *call, script *script) (string, error) {
	for tries := 0; ; tries++ {
		reply, err := s.client.EvalSha(ctx, script.Digest, c.keys, c.args)
		if err == nil {
			return reply, nil
		}
		if !isNoScript(err) {
			return "", explain(script.Text, err)
		}
		s.loads.missing.Add(1)
		if tries == maxLoads {
			return s.sendText(ctx, c, script)
		}
		name := script.Digest + " " + s.serverOf(c.keys[0])
		loading, mine := s.loads.begin(name)
		if mine && s.loads.refused.Load() {
			reply, err := s.sendText(ctx, c, script)
			s.loads.end(name, loading, nil)
			return reply, err
		}
		if mine {
			s.startLoading(name, loading, script, c.keys[0])
		}
		if err := wait(ctx, loading.done, nil); err != nil {
			return "", tooLate(err)
		}
		if err := loading.err; err != nil && !s.loads.refused.Load() {
			return "", notSent(fmt.Errorf("load the script: %w", err))
		}
	}
}

// sendText runs a script by its text. After that, the server knows it too.
func (s *Store) sendText(ctx context.Context, c *call, script *script) (string, error) {
	s.loads.evals.Add(1)
	reply, err := s.client.Eval(ctx, script.Text, c.keys, c.args)
	if err != nil {
		return "", explain(script.Text, err)
	}
	return reply, nil
}

// startLoading loads a script into the server of a key, in the background: if its caller goes away,
// others still need it.
func (s *Store) startLoading(name string, of *loading, script *script, key string) {
	key = strings.Clone(key)
	if !s.work.start(func(ctx context.Context) {
		ctx, cancel := context.WithTimeout(ctx, loadTimeout)
		defer cancel()
		err := s.client.Load(ctx, key, []Script{script.Script})
		s.loads.note(err)
		if err == nil {
			s.loads.loaded.Add(1)
		}
		s.loads.end(name, of, err)
	}) {
		s.loads.end(name, of, errClosed)
	}
}

// serverOf names the server that has a key, as far as is known: "" is any.
func (s *Store) serverOf(key string) string {
	if !s.where.sharded.Load() {
		return ""
	}
	l := s.where.layout.Load()
	if l == nil {
		s.where.wanted.Store(true)
		s.where.ask(s)
		return ""
	}
	return l.server(slotOf([]byte(key)))
}
