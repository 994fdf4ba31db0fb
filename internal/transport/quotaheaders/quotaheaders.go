// Package quotaheaders writes the fields that show clients their limits: headers of HTTP, or
// metadata of gRPC.
package quotaheaders

import (
	"fmt"
	"math"
	"math/bits"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/admission"
	"github.com/penstock/penstock/algorithm"
	"github.com/penstock/penstock/policy"
)

// The dialects: sets of fields and their format. All dialects of a response show the same values,
// except with Settings.IsResetWhenFull. docs/http-headers.md has examples.
const (
	Draft11    = "draft-11"
	Draft07    = "draft-07"
	Draft06    = "draft-06"
	XRateLimit = "x-ratelimit"

	None = "none" // without other dialects: no fields, so denials have Retry-After only
)

// FieldNames returns the names of the fields of a dialect, as its specification writes them.
func FieldNames(dialect string) []string {
	switch dialect {
	case Draft11, Draft07:
		return []string{"RateLimit", "RateLimit-Policy"}
	case Draft06:
		return []string{"RateLimit-Limit", "RateLimit-Remaining", "RateLimit-Reset", "RateLimit-Policy"}
	case XRateLimit:
		return []string{"X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset"}
	}
	return nil
}

// A Writer writes the fields about limits. Make one with New.
type Writer struct {
	settings         Settings
	hasDraft07Policy bool // it writes RateLimit-Policy in the format of drafts 06 and 07
	fieldNames       *[fieldCount]string
}

// Settings configures a Writer. The zero value is useful.
type Settings struct {
	Dialects         []string         // default: Draft11
	IsResetInSeconds bool             // X-RateLimit-Reset is in seconds from now; default: Unix time
	IsResetWhenFull  bool             // X-RateLimit-Reset is when nothing is used any more; default: as t of Draft11
	Jitter           time.Duration    // a random time up to this is added to Retry-After
	Now              func() time.Time // default: time.Now
	IsLowerCase      bool             // the names of fields are in lower case, as in gRPC; default: as in http.Header
}

// New makes a Writer. Draft11 and Draft07 exclude each other, because they use the same fields.
func New(settings Settings) *Writer {
	if len(settings.Dialects) == 0 {
		settings.Dialects = []string{Draft11}
	}
	if settings.Now == nil {
		settings.Now = time.Now
	}
	names := &canonicalNames
	if settings.IsLowerCase {
		names = &lowerNames
	}
	has := func(d string) bool { return slices.Contains(settings.Dialects, d) }
	return &Writer{settings: settings, hasDraft07Policy: !has(Draft11) && (has(Draft07) || has(Draft06)), fieldNames: names}
}

// A Quota is the state of one limit in one response.
type Quota struct {
	Policy  *Policy
	Status  penstock.Status
	IsShare bool // a fallback decided: Status is about this instance's share of the limit, or its ceiling
}

// A Policy, as in RateLimit-Policy, is the part of the fields that is the same in every response
// about a limit.
type Policy struct {
	name              string // as clients see it, such as "search.second"
	capacity          int64  // the most units that can be left: the parameter q
	policyItem        string // the item of RateLimit-Policy
	draft07PolicyItem string // the same in drafts 06 and 07; empty if they cannot express it

	// canRefill is true if the limit refills steadily: count units in each period.
	canRefill    bool
	count        int64
	periodMicros int64
}

// NewPolicy prepares a limit for headers. The name consists of a-z, 0-9, '_', '.' and '-'. The
// parameters q and w are
//
//	TokenBucket     the burst, and the time in which the bucket fills
//	LeakyBucket     the length of the queue plus 1, and the time in which that many requests leave
//	windows, logs   the count and the period
//	Concurrency     the slots; it has no w, and qu="concurrent-requests"
//
// w is in whole seconds. For a bucket it is rounded up. Calendar months have no w, and windows have
// none unless they last whole seconds. A bucket that fills in less than a second has no w either:
// rounded up to a second, w would show a fraction of the true rate.
func NewPolicy(name string, plan *penstock.Plan) *Policy {
	limit := plan.Limit()
	p := &Policy{name: name, capacity: plan.Capacity()}
	a := limit.Algorithm
	window, unit := int64(0), "" // the parameters w and qu; 0 and "": none
	switch {
	case a.NeedsHolder():
		unit = `;qu="concurrent-requests"`
	case a.RefillsSteadily():
		p.canRefill, p.count, p.periodMicros = true, limit.Count, limit.Period.Microseconds()
		if _, ceiling := p.refillTime(p.capacity); ceiling >= time.Second {
			window = CeilSeconds(ceiling)
		}
	case a.IsCalendar():
		window = calendarSeconds(limit.Period)
	case limit.Period%time.Second == 0:
		window = int64(limit.Period / time.Second)
	}

	quota := min(p.capacity, maxInteger)
	p.policyItem = fmt.Sprintf(`"%s";q=%d%s`, name, quota, unit)
	if window > 0 {
		p.policyItem += fmt.Sprintf(";w=%d", window)
		p.draft07PolicyItem = fmt.Sprintf("%d;w=%d", quota, window)
	}
	return p
}

type Policies map[*penstock.Plan]*Policy

func PoliciesOf(rules *policy.Rules) Policies {
	all := make(Policies)
	for _, rule := range rules.Spec().Rules {
		for _, limit := range rule.Limits {
			for _, plan := range limit.Variants {
				all[plan] = NewPolicy(limit.FullName, plan)
			}
		}
	}
	return all
}

// Quota returns the state of a limit after a decision, as a response shows it.
func (p Policies) Quota(s *admission.LimitStatus) Quota {
	known := p[s.Plan]
	if known == nil { // a Plan that is not in the rules
		known = NewPolicy(s.Limit.FullName, s.Plan)
	}
	q := Quota{Policy: known, Status: s.Status, IsShare: s.IsLocal}
	q.Status.Remaining = min(q.Status.Remaining, known.capacity) // a ceiling may be larger than its limit
	return q
}

// calendarSeconds returns w of a calendar window, or 0 for months. longest is the longest length of
// the window, such as 25 hours for a day.
func calendarSeconds(longest time.Duration) int64 {
	switch longest {
	case algorithm.Day.Period():
		return 24 * 3600
	case algorithm.Week.Period():
		return 7 * 24 * 3600
	}
	return 0
}

// refillTime returns the time in which a bucket refills some units: rounded down to a microsecond,
// and rounded up.
func (p *Policy) refillTime(units int64) (floor, ceiling time.Duration) {
	hi, lo := bits.Mul64(uint64(max(units, 0)), uint64(max(p.periodMicros, 0))) // the product may exceed 64 bits
	count := uint64(max(p.count, 1))
	if hi >= count {
		return maxRefill, maxRefill
	}
	micros, rest := bits.Div64(hi, lo, count)
	if micros >= uint64(maxRefill/time.Microsecond) {
		return maxRefill, maxRefill
	}
	floor, ceiling = time.Duration(micros)*time.Microsecond, time.Duration(micros)*time.Microsecond
	if rest > 0 {
		ceiling += time.Microsecond
	}
	return floor, ceiling
}

// maxRefill is the result of refillTime for values that no valid limit has. A valid limit needs at
// most 2^51 µs.
const maxRefill time.Duration = 1 << 62

// untilReset returns the parameter t of the draft: the time during which at most the remaining
// units can be used. The bool is false if the request can never be granted.
//
// If the limit denied, t is RetryAfter. If a bucket granted, t is the time until the next unit. If
// any other limit granted, t is ResetAfter, the time until all units are free. This time is exact
// for windows. Sliding windows, logs and shares of a bucket get a unit earlier, but the time of
// that is not known; the draft allows a longer t. An empty share counts as an empty bucket. If it
// did not, its clients would wait for a whole burst.
func (q *Quota) untilReset() (time.Duration, bool) {
	switch {
	case q.Status.RetryAfter == penstock.Never:
		return 0, false
	case q.Status.RetryAfter != 0:
		return q.Status.RetryAfter, true
	case q.Policy.canRefill && (!q.IsShare || q.Status.Remaining <= 0):
		return q.nextUnit(), true
	}
	return q.Status.ResetAfter, true
}

// nextUnit returns the time until a bucket has one more unit. A full bucket begins to refill only
// when a unit is used.
func (q *Quota) nextUnit() time.Duration {
	missing := q.Policy.capacity - max(q.Status.Remaining, 0)
	if missing <= 0 {
		_, ceiling := q.Policy.refillTime(1)
		return ceiling
	}
	afterNext, _ := q.Policy.refillTime(missing - 1) // the time in which the units after the next one come
	return max(q.Status.ResetAfter-afterNext, 0)
}

// isStricter reports whether q denies for longer than the other quota, or has a smaller part left.
// The older dialects show only the strictest quota.
func (q *Quota) isStricter(than *Quota) bool {
	if q.Status.RetryAfter != than.Status.RetryAfter {
		return q.Status.RetryAfter > than.Status.RetryAfter
	}
	// Compare the parts that are left, left()/capacity, without a division. Products have up to 128
	// bits.
	hi, lo := bits.Mul64(q.left(), uint64(max(than.Policy.capacity, 1)))
	otherHi, otherLo := bits.Mul64(than.left(), uint64(max(q.Policy.capacity, 1)))
	return hi < otherHi || hi == otherHi && lo < otherLo
}

func (q *Quota) left() uint64 { return uint64(max(q.Status.Remaining, 0)) }

// Write sets the fields about the quotas. If the request was denied, it also sets Retry-After, and
// returns its value, in whole seconds. The value is at least 1, and at least retryAfter and the
// RetryAfter of each quota. If the request can never be granted, there is no Retry-After, and Write
// returns 0.
func (w *Writer) Write(to map[string][]string, quotas []Quota, isDenied bool, retryAfter time.Duration) (retrySeconds int64) {
	var buffer [512]byte // enough for the fields of most responses; a longer text is allocated
	var f fields
	text := buffer[:0]
	if len(quotas) > 0 {
		text = w.appendQuotas(text, &f, quotas)
	}
	if isDenied {
		if retrySeconds = w.retrySeconds(quotas, retryAfter); retrySeconds > 0 {
			text = f.appendNumber(text, fieldRetryAfter, retrySeconds)
		}
	}
	f.set(to, w.fieldNames, string(text))
	return retrySeconds
}

func (w *Writer) appendQuotas(text []byte, f *fields, quotas []Quota) []byte {
	strictest := &quotas[0]
	for i := range quotas[1:] {
		if q := &quotas[i+1]; q.isStricter(strictest) {
			strictest = q
		}
	}
	limit, remaining := strictest.Policy.capacity, strictest.Status.Remaining
	reset, hasReset := strictest.untilReset()
	seconds := CeilSeconds(reset)

	for _, dialect := range w.settings.Dialects {
		switch dialect {
		case Draft11:
			for i := range quotas {
				text = append(appendComma(text, i), quotas[i].Policy.policyItem...)
			}
			f.finish(text, fieldPolicy)
			for i := range quotas {
				text = quotas[i].appendItem(appendComma(text, i))
			}
			f.finish(text, fieldRateLimit)
		case Draft07:
			text = appendInteger(append(text, "limit="...), limit)
			text = appendInteger(append(text, ", remaining="...), remaining)
			if hasReset {
				text = appendInteger(append(text, ", reset="...), seconds)
			}
			f.finish(text, fieldRateLimit)
		case Draft06:
			text = f.appendNumber(text, fieldLimit, limit)
			text = f.appendNumber(text, fieldRemaining, remaining)
			if hasReset {
				text = f.appendNumber(text, fieldReset, seconds)
			}
		case XRateLimit:
			text = f.appendNumber(text, fieldXLimit, limit)
			text = f.appendNumber(text, fieldXRemaining, remaining)
			until, hasUntil := seconds, hasReset
			if w.settings.IsResetWhenFull {
				until, hasUntil = CeilSeconds(strictest.Status.ResetAfter), true
			}
			if hasUntil && !w.settings.IsResetInSeconds {
				until += w.settings.Now().Add(time.Second - 1).Unix() // rounded up
			}
			if hasUntil {
				text = f.appendNumber(text, fieldXReset, until)
			}
		}
	}
	if w.hasDraft07Policy && strictest.Policy.draft07PolicyItem != "" {
		text = append(text, strictest.Policy.draft07PolicyItem...)
		f.finish(text, fieldPolicy)
	}
	return text
}

func (q *Quota) appendItem(b []byte) []byte {
	b = append(append(append(b, '"'), q.Policy.name...), `";r=`...)
	b = appendInteger(b, q.Status.Remaining)
	if until, ok := q.untilReset(); ok {
		b = appendInteger(append(b, ";t="...), CeilSeconds(until))
	}
	return b
}

func (w *Writer) retrySeconds(quotas []Quota, retryAfter time.Duration) int64 {
	if retryAfter == penstock.Never {
		return 0
	}
	for i := range quotas {
		if quotas[i].Status.RetryAfter == penstock.Never {
			return 0
		}
		retryAfter = max(retryAfter, quotas[i].Status.RetryAfter)
	}
	if w.settings.Jitter > 0 {
		retryAfter += min(rand.N(w.settings.Jitter+1), math.MaxInt64-retryAfter)
	}
	return max(CeilSeconds(retryAfter), 1)
}

type field uint8

const (
	fieldPolicy field = iota
	fieldRateLimit
	fieldLimit
	fieldRemaining
	fieldReset
	fieldXLimit
	fieldXRemaining
	fieldXReset
	fieldRetryAfter
	fieldCount
)

// The names of the fields in the form of http.Header, and in the form of gRPC.
var (
	canonicalNames = [fieldCount]string{
		"Ratelimit-Policy", "Ratelimit", "Ratelimit-Limit", "Ratelimit-Remaining", "Ratelimit-Reset", "X-Ratelimit-Limit", "X-Ratelimit-Remaining",
		"X-Ratelimit-Reset", "Retry-After",
	}
	lowerNames = [fieldCount]string{
		"ratelimit-policy", "ratelimit", "ratelimit-limit", "ratelimit-remaining", "ratelimit-reset", "x-ratelimit-limit", "x-ratelimit-remaining",
		"x-ratelimit-reset", "retry-after",
	}
)

// fields collects the values of fields. All values are parts of one text, so that they take only
// two allocations together.
type fields struct {
	count int
	keys  [fieldCount]field // each field occurs at most once
	ends  [fieldCount]int   // where each value ends in the text
}

// finish makes the text that was appended since the last call the value of a field.
func (f *fields) finish(text []byte, key field) {
	f.keys[f.count], f.ends[f.count] = key, len(text)
	f.count++
}

func (f *fields) appendNumber(text []byte, key field, n int64) []byte {
	text = appendInteger(text, n)
	f.finish(text, key)
	return text
}

func (f *fields) set(to map[string][]string, names *[fieldCount]string, text string) {
	values, start := make([]string, f.count), 0
	for i := range f.count {
		values[i] = text[start:f.ends[i]]
		to[names[f.keys[i]]] = values[i : i+1 : i+1]
		start = f.ends[i]
	}
}

// appendComma appends the comma before the item at index i of a list.
func appendComma(b []byte, i int) []byte {
	if i > 0 {
		return append(b, ", "...)
	}
	return b
}

// maxInteger is the largest Integer of RFC 9651.
const maxInteger = 999_999_999_999_999

// appendInteger appends n as an Integer of RFC 9651, between 0 and maxInteger.
func appendInteger(b []byte, n int64) []byte {
	return strconv.AppendInt(b, min(max(n, 0), maxInteger), 10)
}

// CeilSeconds returns d in whole seconds, rounded up; 0 if d is negative.
func CeilSeconds(d time.Duration) int64 {
	if d <= 0 {
		return 0
	}
	return int64((d-1)/time.Second) + 1
}
