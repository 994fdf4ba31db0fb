package redisstore

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/algorithm"
	"github.com/penstock/penstock/internal/luagen"
)

// A script decides charges with some algorithms:
//
//   - single: one batch, with exactly one charge for each of the algorithms, in that order; or one
//     charge whose state is a set
//   - uniform: several such batches, for several callers
//   - mixed: any number of batches, with any number of charges of any of the algorithms
type script struct {
	text       string
	digest     string // as luagen.Digest returns it
	algorithms []*algorithm.Algorithm
	kind       kind
	isUsed     atomic.Bool  // it was loaded, or sent for the first time
	loads      atomic.Int64 // how often it was loaded after a call had been sent
}

// A kind of script is named after its harness, a template in package luagen.
type kind uint8

const (
	mixed kind = iota
	single
	uniform
	kindCount
)

// number returns the number of an algorithm in a script of the kind mixed.
func (s *script) number(a *algorithm.Algorithm) byte {
	i := indexOf(s.algorithms, a)
	if a.IsCollection() {
		i += luagen.FirstCollection
	}
	return byte(i)
}

// checkTwins returns an error if a charge has an algorithm without Lua.
func checkTwins(charges []penstock.Charge) error {
	for i := range charges {
		if err := checkTwin(charges[i].Plan); err != nil {
			return err
		}
	}
	return nil
}

// checkTwin returns an error if the limit's algorithm has no Lua.
func checkTwin(plan *penstock.Plan) error {
	if a := plan.Algorithm(); a.Lua() == "" {
		return fmt.Errorf("%w: redisstore: limit %q: algorithm %s has no Lua, so only memstore can use it; give algorithm.Define its Lua twin",
			penstock.ErrInvalid, plan.Name(), a.Title())
	}
	return nil
}

// nameMissingRight adds to an error the name of the right that the script's user lacks. Redis 7.0
// only names the line of the script that needs the right.
func nameMissingRight(script string, err error) error {
	reply, ok := errors.AsType[ReplyError](err)
	if !ok || !strings.Contains(string(reply), "can't run this command") {
		return err
	}
	_, where, _ := strings.Cut(string(reply), "on @user_script:")
	digits := len(where) - len(strings.TrimLeft(where, "0123456789"))
	lineNumber, _ := strconv.Atoi(where[:digits]) // from 1
	current := 0
	for line := range strings.Lines(script) {
		current++
		if current != lineNumber {
			continue
		}
		for command := range luagen.Commands(line) {
			return &missingRight{err, strings.ToLower(command)}
		}
	}
	return err
}

// explain adds to an error of the script what the server's reply does not say: the right that the
// user lacks, or the custom algorithms whose Lua is probably at fault.
func (s *script) explain(err error) error {
	reply, ok := errors.AsType[ReplyError](err)
	if !ok || classifyReply(reply) != penstock.ReasonRejected || !strings.Contains(string(reply), "user_script") {
		return nameMissingRight(s.text, err)
	}
	var titles []string
	for _, a := range s.algorithms {
		if a.IsCustom() {
			titles = append(titles, a.Title())
		}
	}
	if len(titles) == 0 {
		return err
	}
	return fmt.Errorf("the Lua of algorithm %s is probably at fault: %w", strings.Join(titles, " or "), err)
}

type scriptCache struct {
	mu    sync.Mutex                                   // held while scripts are added
	lists [kindCount][luagen.MaxCharges + 1]scriptList // by kind and number of charges; 0 for mixed
}

// find returns the script of a kind that decides charges. It generates the script if there is none.
func (l *scriptCache) find(kind kind, charges []penstock.Charge) *script {
	if found := l.known(kind, charges); found != nil {
		return found
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if found := l.known(kind, charges); found != nil {
		return found
	}
	var algorithms []*algorithm.Algorithm
	for i := range charges {
		a := charges[i].Plan.Algorithm()
		if kind == mixed {
			algorithms = addAlgorithm(algorithms, a)
		} else {
			algorithms = append(algorithms, a)
		}
	}
	return l.makeLocked(kind, algorithms)
}

// known returns a generated script of a kind that decides charges, or nil. If there are several, it
// returns the one with the fewest algorithms.
func (l *scriptCache) known(kind kind, charges []penstock.Charge) (best *script) {
	for _, s := range l.list(kind, len(charges)).all() {
		if !s.canDecide(charges) {
			continue
		}
		if kind != mixed {
			return s
		}
		if best == nil || len(s.algorithms) < len(best.algorithms) {
			best = s
		}
	}
	return best
}

// makeLocked returns the script of a kind for exactly these algorithms. It generates the script if
// there is none.
func (l *scriptCache) makeLocked(kind kind, algorithms []*algorithm.Algorithm) *script {
	list := l.list(kind, len(algorithms))
	for _, s := range list.all() {
		if slices.EqualFunc(s.algorithms, algorithms, haveSameStep) {
			return s
		}
	}
	s := &script{kind: kind, algorithms: algorithms}
	switch kind {
	case single:
		s.text = luagen.Single(algorithms)
	case uniform:
		s.text = luagen.Uniform(algorithms)
	default:
		s.text = luagen.Mixed(algorithms)
	}
	s.digest = luagen.Digest(s.text)
	list.add(s)
	return s
}

// A scriptList has scripts of one kind. For the kinds single and uniform, all of them are for one
// number of charges.
type scriptList struct{ scripts atomic.Pointer[[]*script] }

func (l *scriptCache) list(kind kind, chargeCount int) *scriptList {
	if kind == mixed {
		chargeCount = 0
	}
	return &l.lists[kind][chargeCount]
}

func (l *scriptList) all() []*script {
	if scripts := l.scripts.Load(); scripts != nil {
		return *scripts
	}
	return nil
}

func (l *scriptList) add(s *script) {
	scripts := append(slices.Clone(l.all()), s)
	l.scripts.Store(&scripts)
}

// canDecide reports whether the script can decide these charges. A script of the kind mixed must
// have all of their algorithms. The others must have exactly these algorithms, in the charges'
// order.
func (s *script) canDecide(charges []penstock.Charge) bool {
	if s.kind != mixed && len(charges) != len(s.algorithms) {
		return false
	}
	for i := range charges {
		a := charges[i].Plan.Algorithm()
		isAmong := s.kind == mixed && indexOf(s.algorithms, a) >= 0
		isInPlace := s.kind != mixed && haveSameStep(a, s.algorithms[i])
		if !isAmong && !isInPlace {
			return false
		}
	}
	return true
}

// haveSameStep reports whether both algorithms have the same function in scripts.
func haveSameStep(a, b *algorithm.Algorithm) bool { return a.Name() == b.Name() }

// indexOf finds the algorithm that has the step of a, or returns -1.
func indexOf(algorithms []*algorithm.Algorithm, a *algorithm.Algorithm) int {
	return slices.IndexFunc(algorithms, func(b *algorithm.Algorithm) bool { return haveSameStep(a, b) })
}

// isCompact reports whether the kinds single and uniform can decide a batch: it has few charges of
// simple limits, whose state is in one string.
func isCompact(charges []penstock.Charge) bool {
	if len(charges) > luagen.MaxCharges {
		return false
	}
	for i := range charges {
		plan := charges[i].Plan
		if !isSimple(plan) || plan.Group() != charges[0].Plan.Group() || charges[i].Key != charges[0].Key {
			return false
		}
	}
	return true
}

// hasSingleSet reports whether a script of the kind single decides one charge of a limit whose
// state is a set.
func hasSingleSet(plan *penstock.Plan) bool {
	return plan.Algorithm().IsCollection() && !plan.CountsDenied()
}

// isSimple reports whether the kinds single and uniform can decide a limit: its state is few
// numbers, and it does not count denied requests.
func isSimple(plan *penstock.Plan) bool {
	a := plan.Algorithm()
	return !a.IsCollection() && a.Numbers() <= luagen.MaxNumbers && !plan.CountsDenied()
}
