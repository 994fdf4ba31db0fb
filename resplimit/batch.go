package resplimit

import (
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/batches"
	"github.com/penstock/penstock/internal/panicked"
)

// A batch has the replies to commands that arrived together, and the decisions that they need.
type batch struct {
	reply
	jobs      []job
	lastByKey map[string]int // the index of the last job of each key so far, while linkJobs runs
	ready     []int          // indexes of jobs that wait for no earlier job of their key, in the order of their decisions

	listed []batches.Batch  // of the jobs that are decided as a list
	list   []*batches.Batch // the same batches
}

type job struct {
	kind        kind
	key         string
	charges     []penstock.Charge // of a DEL with several keys; for other jobs single[:], which the decision sets
	single      [1]penstock.Charge
	replyNumber int64 // in the reply to a THROTTLE, the limit; to a DEL, the number of keys

	decision penstock.Decision
	err      error

	rule  string      // of a PENSTOCK.CHECK
	cost  int64       // of a PENSTOCK.CHECK
	check checkAnswer // of a PENSTOCK.CHECK

	next int // the index of the next job of the same key; 0: none
}

// A kind is the command of a job.
type kind uint8

const (
	cellThrottle kind = iota // CL.THROTTLE of redis-cell
	crabThrottle             // THROTTLE of throttlecrab
	deletion                 // DEL or UNLINK
	namedCheck               // PENSTOCK.CHECK
)

// maxKeptReplyBytes is the size in bytes of the largest buffer of replies whose memory is reused.
const maxKeptReplyBytes = 4 * maxReplyBytes

func (b *batch) release() {
	b.dropJobs()
	b.bytes = b.bytes[:0]
	if cap(b.bytes) > maxKeptReplyBytes {
		b.bytes = nil
	}
	batchPool.Put(b)
}

// add returns a new job. The job is valid until the next job is added.
func (b *batch) add(k kind, key string) *job {
	b.jobs = append(b.jobs, job{kind: k, key: key})
	return &b.jobs[len(b.jobs)-1]
}

func (b *batch) dropJobs() {
	clear(b.jobs)
	b.jobs = b.jobs[:0]
}

// decide decides all jobs, and writes their replies.
func (c *client) decide(b *batch) {
	if len(b.jobs) == 0 {
		return
	}
	s := c.server
	switch {
	case len(b.jobs) == 1 || s.options.Parallel == 1:
		for i := range b.jobs {
			s.decide(&b.jobs[i])
		}
	case s.decideStore == nil || slices.ContainsFunc(b.jobs, func(j job) bool { return j.kind == namedCheck }):
		s.decideInParallel(b)
	default:
		s.decideLists(b)
	}
	b.respVersion = c.respVersion
	for i := range b.jobs {
		b.jobs[i].answer(&b.reply)
	}
	b.dropJobs()
}

// decideLists decides the jobs in lists. Jobs of one key are decided one after another.
func (s *Server) decideLists(b *batch) {
	b.linkJobs()
	for begun := 0; begun < len(b.ready); {
		n := s.reserve(min(len(b.ready)-begun, s.options.Parallel))
		s.decideList(b, b.ready[begun:begun+n])
		s.extraJobs.Add(-(int64(n) - 1)) // subtract what reserve has added
		for range n {
			if next := b.jobs[b.ready[begun]].next; next > 0 {
				b.ready = append(b.ready, next)
			}
			begun++
		}
	}
}

// reserve returns how many of n jobs may be decided now as one list: at least one. It adds those
// after the first to extraJobs, which maxParallel bounds.
func (s *Server) reserve(n int) int {
	others := int64(n) - 1
	if over := min(s.extraJobs.Add(others)-int64(s.options.maxParallel), others); over > 0 {
		s.extraJobs.Add(-over)
		others -= over
	}
	return int(others) + 1
}

// decideList has the store decide jobs as one list. indexes are their places in b.jobs.
func (s *Server) decideList(b *batch, indexes []int) {
	b.listed, b.list = slices.Grow(b.listed[:0], len(indexes))[:len(indexes)], b.list[:0]
	for i, index := range indexes {
		j := &b.jobs[index]
		if j.charges == nil {
			j.charges = j.single[:]
		}
		b.listed[i] = batches.Batch{Charges: j.charges}
		b.list = append(b.list, &b.listed[i])
	}
	start := time.Now()
	batches.Try(s.ctx, s.decideStore, b.list)
	latency := time.Since(start)
	for i, index := range indexes {
		j := &b.jobs[index]
		j.decision, j.err = b.listed[i].Decision, b.listed[i].Err
		if s.isObserved(j) {
			s.observe(j, latency)
		}
	}
	clear(b.listed)
	clear(b.list)
}

// decideInParallel decides the jobs in several goroutines. Jobs of one key are decided one after
// another. The store gets jobs of different keys at the same time, and can decide them together.
func (s *Server) decideInParallel(b *batch) {
	b.linkJobs()
	var (
		begun   atomic.Int64
		helpers sync.WaitGroup
	)
	work := func() {
		for {
			i := int(begun.Add(1)) - 1
			if i >= len(b.ready) {
				return
			}
			j := &b.jobs[b.ready[i]]
			s.decide(j)
			for j.next != 0 {
				j = &b.jobs[j.next]
				s.decide(j)
			}
		}
	}
	help := func() {
		defer helpers.Done()
		work()
	}
	for range min(len(b.ready), s.options.Parallel) - 1 {
		helpers.Add(1)
		if !s.workers.Start(help) {
			helpers.Done()
			break
		}
	}
	work()
	helpers.Wait()
}

// linkJobs links the jobs of each key in their order.
func (b *batch) linkJobs() {
	clear(b.lastByKey)
	b.ready = b.ready[:0]
	for i := range b.jobs {
		key := b.jobs[i].key
		if last, ok := b.lastByKey[key]; ok {
			b.jobs[last].next = i
		} else {
			b.ready = append(b.ready, i)
		}
		b.lastByKey[key] = i
	}
	clear(b.lastByKey) // so that the pooled batch keeps no keys
}

// decide has the store or the policy decide a job. A panic there becomes an error.
func (s *Server) decide(j *job) {
	if j.kind == namedCheck {
		j.err = errPanic
		defer panicked.Recover("a rule is called by its name")
		s.check(j)
		return
	}
	if j.charges == nil {
		j.charges = j.single[:]
	}
	if !s.isObserved(j) {
		j.decision, j.err = panicked.Decide(s.ctx, s.store, j.charges)
		return
	}
	start := time.Now()
	j.decision, j.err = panicked.Decide(s.ctx, s.store, j.charges)
	s.observe(j, time.Since(start))
}

// errPanic is the error of a PENSTOCK.CHECK whose decision panicked.
var errPanic = errors.New("resplimit: a panic ended the decision")
