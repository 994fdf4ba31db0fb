package redisstore

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/penstock/penstock"
)

// A bunch is what goes together in a script: batches of one row in a script of rows.lua, or of any
// kind in one of many.lua. Those that ask the same are one ask.
type bunch struct {
	script  *script // of rows.lua; nil for many.lua
	asks    []ask
	strings map[group]int // in asks, where each string's begin
	recent  int           // of asks
	callers int
	effort  int

	bell     *bell     // nil when all have their answers
	earliest time.Time // of the deadlines that nobody but the bell tells of; zero: there is none
	latest   time.Time // of the callers' deadlines
	endless  bool      // if one has none
	left     int       // callers that have gone away while it is under way

	life    context.Context // of the script, from when it is under way
	abandon func()          // ends it
}

// The server's effort for a bunch is bounded: an ask takes it some 3 µs, and each batch that asks
// the same again, or further charge, less than 1 µs. Usually the same is decided at once, however
// often it is asked.
const (
	maxEffort = 256 // some 200 µs
	askEffort = 3   // and one for each of its charges
)

// An ask is a batch, and all who ask for it. It has charges of its own, as callers may leave and
// use theirs again.
type ask struct {
	charges []charge
	copies  []penstock.Charge
	callers []*waiting
	first   bool // that came, of its string
	next    int  // of its string; -1 behind the last
}

// A group is what batches have in common that follow each other: a string, and the places of their
// limits in it.
type group struct {
	key, name string
	tags      [maxRow]uint32
}

var bunches = sync.Pool{New: func() any { return &bunch{strings: make(map[group]int)} }}

// join takes a caller in, if the server's effort allows.
func (b *bunch) join(w *waiting, charges []charge) bool {
	if b.script == nil {
		return b.add(w, charges) >= 0
	}
	g := group{key: charges[0].Key, name: charges[0].plan.Limit.Group}
	for i := range charges {
		g.tags[i] = charges[i].plan.Tag
	}
	first, known := b.strings[g]
	if !known {
		i := b.add(w, charges)
		if i >= 0 {
			b.strings[g] = i
			b.asks[i].first = true
		}
		return i >= 0
	}
	last := first
	for i := first; i >= 0; i = b.asks[i].next {
		if sameCharges(b.asks[i].charges, charges) {
			return b.again(w, i)
		}
		last = i
	}
	i := b.add(w, charges)
	if i >= 0 {
		b.asks[last].next = i
	}
	return i >= 0
}

// hasRoom tells whether a caller may join whose trials need this effort, even if its own charges
// need the most.
func (b *bunch) hasRoom(beside int) bool {
	return beside == 0 || b.effort+askEffort+maxRow+beside <= maxEffort
}

// joinRecent takes a caller in if it asks what the last one asked.
func (b *bunch) joinRecent(w *waiting, charges []charge) bool {
	if b.script == nil || len(charges) != len(b.asks[b.recent].charges) {
		return false
	}
	for i, c := range b.asks[b.recent].charges {
		if c.plan != charges[i].plan || c.Key != charges[i].Key {
			return false
		}
	}
	return sameCharges(b.asks[b.recent].charges, charges) && b.again(w, b.recent)
}

// add takes in a caller with an ask of its own, and says which it is; -1 if there is no room.
func (b *bunch) add(w *waiting, charges []charge) int {
	effort := askEffort + len(charges)
	if len(b.asks) > 0 && b.effort+effort > maxEffort {
		return -1
	}
	i := len(b.asks)
	if i < cap(b.asks) {
		b.asks = b.asks[:i+1]
	} else {
		b.asks = append(b.asks, ask{})
	}
	a := &b.asks[i]
	for j := range charges {
		a.copies = append(a.copies, *charges[j].Charge)
	}
	for j := range charges {
		a.charges = append(a.charges, charge{&a.copies[j], charges[j].plan})
	}
	a.first, a.next = b.script == nil, -1
	b.take(w, i, effort)
	return i
}

// again takes in a caller with an ask that is there.
func (b *bunch) again(w *waiting, i int) bool {
	effort := len(b.asks[i].charges)
	if b.effort+effort > maxEffort {
		return false
	}
	b.take(w, i, effort)
	return true
}

func (b *bunch) take(w *waiting, i, effort int) {
	w.bunch = b
	b.asks[i].callers = append(b.asks[i].callers, w)
	b.recent = i
	b.callers++
	b.effort += effort
	if w.until.IsZero() {
		b.endless = true
	} else if w.until.After(b.latest) {
		b.latest = w.until
	}
	if w.lazy != nil {
		b.earliest = earlier(b.earliest, w.until)
	}
}

// begin gives the script a context that ends with abandon. Its deadline is the latest of the
// callers', and ends nothing.
func (b *bunch) begin() {
	b.life, b.abandon = context.WithCancel(context.Background())
	if !b.endless {
		b.life = dated{b.life, b.latest}
	}
}

// A dated context has a deadline that does not end it.
type dated struct {
	context.Context
	at time.Time
}

func (d dated) Deadline() (time.Time, bool) { return d.at, true }

// has tells whether a caller is there.
func (b *bunch) has(w *waiting) bool {
	return slices.ContainsFunc(b.asks, func(a ask) bool { return slices.Contains(a.callers, w) })
}

// leave takes a caller out, or says that it is not there.
func (b *bunch) leave(w *waiting) bool {
	for i := range b.asks {
		a := &b.asks[i]
		if j := slices.Index(a.callers, w); j >= 0 {
			a.callers = slices.Delete(a.callers, j, j+1)
			b.callers--
			return true
		}
	}
	return false
}

// inOrder goes through the asks as the script does, those of one string after the other, and says
// which is the first of its string.
func (b *bunch) inOrder(yield func(first bool, a *ask) bool) {
	for i := range b.asks {
		if !b.asks[i].first {
			continue
		}
		first := true
		for j := i; j >= 0; j = b.asks[j].next {
			if len(b.asks[j].callers) == 0 { // they left
				continue
			}
			if !yield(first, &b.asks[j]) {
				return
			}
			first = false
		}
	}
}

func (b *bunch) free() {
	for i := range b.asks {
		a := &b.asks[i]
		clear(a.charges)
		clear(a.copies)
		clear(a.callers)
		a.charges, a.copies, a.callers = a.charges[:0], a.copies[:0], a.callers[:0]
	}
	clear(b.strings)
	*b = bunch{asks: b.asks[:0], strings: b.strings}
	bunches.Put(b)
}

// sameCharges tells whether batches of one group ask the same.
func sameCharges(a, b []charge) bool {
	for i := range a {
		if a[i].Cost != b[i].Cost || a[i].Mode != b[i].Mode || a[i].Patience != b[i].Patience || a[i].Holder != b[i].Holder {
			return false
		}
		if p, q := a[i].plan, b[i].plan; p != q && (p.Limit.Algorithm.At != nil || q.Limit.Algorithm.At != nil || *p.Params(0) != *q.Params(0)) {
			return false
		}
	}
	return true
}
