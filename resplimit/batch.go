package resplimit

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/panicked"
	"github.com/penstock/penstock/policy"
)

// A batch has the replies to commands that arrived together, and the decisions that they need.
type batch struct {
	reply
	jobs  []job
	last  map[string]int // the last job of each key
	heads []int          // the first job of each key
}

// A job is a command that needs a decision.
type job struct {
	kind    kind
	key     string
	charges []penstock.Charge // those of one, or of several keys of a DEL
	one     [1]penstock.Charge
	limit   int64 // as the reply has it

	decision penstock.Decision
	err      error

	named policy.NamedCall // of a PENSTOCK.CHECK
	check checkAnswer

	next int // the next job of the same key; 0: none
}

// A kind is the command that a job answers.
type kind uint8

const (
	cell   kind = iota // CL.THROTTLE
	crab               // THROTTLE
	forget             // DEL
	named              // PENSTOCK.CHECK
)

// maxKept is how many bytes of replies a batch keeps for its next user.
const maxKept = 4 * maxReply

func (b *batch) release() {
	b.dropJobs()
	if b.bytes = b.bytes[:0]; cap(b.bytes) > maxKept {
		b.bytes = nil
	}
	batches.Put(b)
}

// add returns a new job. It is valid until the next one is added.
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
	if s := c.server; len(b.jobs) == 1 || s.options.Parallel == 1 {
		for i := range b.jobs {
			s.decide(&b.jobs[i])
		}
	} else {
		s.decideTogether(b)
	}
	b.proto = c.proto
	for i := range b.jobs {
		b.jobs[i].answer(&b.reply)
	}
	b.dropJobs()
}

// decideTogether decides the jobs in parallel, and those of one key one after another. The store
// sees them at the same time and can decide them together.
func (s *Server) decideTogether(b *batch) {
	b.link()
	var (
		begun   atomic.Int64
		helpers sync.WaitGroup
	)
	work := func() {
		for {
			i := int(begun.Add(1)) - 1
			if i >= len(b.heads) {
				return
			}
			for at := b.heads[i]; ; {
				j := &b.jobs[at]
				s.decide(j)
				if at = j.next; at == 0 {
					break
				}
			}
		}
	}
	help := func() {
		defer helpers.Done()
		work()
	}
	for range min(len(b.heads), s.options.Parallel) - 1 {
		helpers.Add(1)
		if !s.workers.Start(help) {
			helpers.Done()
			break
		}
	}
	work()
	helpers.Wait()
}

// link links the jobs of each key in their order.
func (b *batch) link() {
	clear(b.last)
	b.heads = b.heads[:0]
	for i := range b.jobs {
		key := b.jobs[i].key
		if before, ok := b.last[key]; ok {
			b.jobs[before].next = i
		} else {
			b.heads = append(b.heads, i)
		}
		b.last[key] = i
	}
	clear(b.last) // it must not keep the keys
}

// decide has the store or the policy decide a job. A panic there becomes an error.
func (s *Server) decide(j *job) {
	if j.kind == named {
		j.err = errPanic
		defer panicked.Recover("a rule is called by its name")
		s.check(j)
		return
	}
	if j.charges == nil {
		j.charges = j.one[:]
	}
	if !s.isObserved(j) {
		j.decision, j.err = panicked.Decide(s.ctx, s.store, j.charges)
		return
	}
	start := time.Now()
	j.decision, j.err = panicked.Decide(s.ctx, s.store, j.charges)
	s.observe(j, time.Since(start))
}

var errPanic = errors.New("resplimit: a panic ended the decision")
