// Package denials samples denied requests, for the log and for operators who watch them live. No
// request waits for the samples, and their memory is bounded.
package denials

import (
	"cmp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/admission"
)

type Denial struct {
	Time        time.Time
	Rule, Limit string
	Key         string // the identity as the request named it, which may be a secret
	Outcome     admission.Outcome
	Source      penstock.Source
	RetryAfter  time.Duration // 0: not known
	TraceID     string        // "": none
	Skipped     int64         // denials before this one that the reader did not get, because there were too many
}

// DecidedBy returns what decided: the name of Source, or "instance" for new_identities, because
// each instance counts them in its own memory.
func (d *Denial) DecidedBy() string {
	if d.Outcome == admission.DeniedNewIdentity {
		return "instance"
	}
	return d.Source.String()
}

// A Filter selects denials. An empty field selects all.
type Filter struct{ Rule, Key string }

func (f *Filter) matches(e *admission.Event) bool {
	return (f.Rule == "" || f.Rule == e.Rule) && (f.Key == "" || f.Key == e.Key)
}

type Options struct {
	// TraceID returns the trace id of an event's request, or "". Default: no request has one.
	TraceID func(*admission.Event) string
}

// A Recorder passes samples of denials to readers. Many goroutines may use it at the same time.
type Recorder struct {
	options Options
	readers atomic.Pointer[[]*Reader]

	mu sync.Mutex // held while readers join and leave
}

// New makes a Recorder. Tick must be called about once a second.
func New(o Options) *Recorder {
	r := &Recorder{options: o}
	r.readers.Store(new([]*Reader))
	return r
}

// Rate bounds how many denials a reader gets.
type Rate struct {
	PerSecond int32 // of all limits
	PerLimit  int32 // of one limit in a second, so that it does not hide the others; 0: PerSecond
}

// limitCounters is how many counters a Reader has for Rate.PerLimit. Limits with equal hashes share
// a counter.
const limitCounters = 64

// maxQueued is the most denials that wait for a reader.
const maxQueued = 64

// MaxReaders is how many readers there may be: 32 of the admin API, as many that are being
// replaced, the log, and one in reserve.
const MaxReaders = 66

// A Reader gets samples of denials on C until it leaves. Those that it takes too late are skipped.
type Reader struct {
	C chan Denial

	filter   Filter
	rate     Rate
	left     atomic.Int32                // denials that the reader may still get in this second
	perLimit [limitCounters]atomic.Int32 // denials in this second, by a hash of the limit
	skipped  atomic.Int64                // denials since the last one that the reader got
}

// Join adds a reader. It returns nil if there are too many.
func (r *Recorder) Join(f Filter, rate Rate) *Reader {
	r.mu.Lock()
	defer r.mu.Unlock()
	old := *r.readers.Load()
	if len(old) >= MaxReaders {
		return nil
	}
	rate.PerLimit = cmp.Or(rate.PerLimit, rate.PerSecond)
	reader := &Reader{C: make(chan Denial, maxQueued), filter: f, rate: rate}
	reader.left.Store(rate.PerSecond)
	all := append(slices.Clone(old), reader)
	r.readers.Store(&all)
	return reader
}

func (r *Recorder) Leave(reader *Reader) {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := slices.DeleteFunc(slices.Clone(*r.readers.Load()), func(one *Reader) bool { return one == reader })
	r.readers.Store(&all)
}

// Tick begins a second.
func (r *Recorder) Tick() {
	for _, reader := range *r.readers.Load() {
		for i := range reader.perLimit {
			reader.perLimit[i].Store(0)
		}
		reader.left.Store(reader.rate.PerSecond)
	}
}

// Observe passes an event to the readers, if it is a denial.
func (r *Recorder) Observe(e *admission.Event) {
	switch e.Outcome {
	case admission.Denied, admission.DeniedNewIdentity, admission.FailedClosed:
	default:
		return
	}
	for _, reader := range *r.readers.Load() {
		if reader.filter.matches(e) && reader.countDenial(e) {
			reader.offer(r.denialOf(e))
		}
	}
}

// countDenial counts a denial, and reports whether the reader may get it in this second.
func (r *Reader) countDenial(e *admission.Event) bool {
	counter := uint64(0)
	if e.Decision != nil && e.Decision.Len() == len(e.Charges) {
		counter = e.Charges[e.Decision.Strictest()].Plan.ID()[0] % limitCounters
	}
	// Most denials of a flood end at these two reads, which cost less than the additions below.
	isUsedUp := r.left.Load() <= 0 || r.perLimit[counter].Load() >= r.rate.PerLimit
	if isUsedUp || r.perLimit[counter].Add(1) > r.rate.PerLimit || r.left.Add(-1) < 0 {
		r.skipped.Add(1)
		return false
	}
	return true
}

// offer gives the reader a denial, or skips the denial if C is full.
func (r *Reader) offer(d Denial) {
	d.Skipped = r.skipped.Swap(0)
	select {
	case r.C <- d:
	default:
		r.skipped.Add(d.Skipped + 1)
	}
}

// denialOf makes a Denial from an event. It copies the key, whose memory may be reused.
func (r *Recorder) denialOf(e *admission.Event) Denial {
	d := Denial{Time: time.Now(), Rule: e.Rule, Limit: e.Limit, Key: strings.Clone(e.Key), Outcome: e.Outcome, Source: e.Source}
	if e.Decision != nil {
		d.RetryAfter = e.Decision.RetryAfter()
	}
	if r.options.TraceID != nil {
		d.TraceID = r.options.TraceID(e)
	}
	return d
}
