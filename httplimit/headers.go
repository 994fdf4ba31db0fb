package httplimit

import (
	"fmt"
	"math"
	"math/bits"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/algorithm"
)

// A Dialect is a form of the header fields about limits. All dialects of a response agree.
type Dialect string

// The dialects. Draft11 lists every limit. The older ones have room for one limit, the strictest:
// the one that denies for longest, or has the least share left. Draft11 and Draft07 write the same
// field in two forms, so a response can have only one of them.
const (
	// Draft11 is draft-ietf-httpapi-ratelimit-headers-11:
	//	RateLimit-Policy: "search.second";q=10;w=1, "search.day";q=10000;w=86400
	//	RateLimit: "search.second";r=9;t=1, "search.day";r=9120;t=40112
	Draft11 Dialect = "draft-11"

	// Draft07 is the draft of 2023:
	//	RateLimit-Policy: 10;w=1
	//	RateLimit: limit=10, remaining=9, reset=1
	Draft07 Dialect = "draft-07"

	// Draft06 has a field for each number: RateLimit-Limit, RateLimit-Remaining and RateLimit-Reset.
	// Without Draft11 beside it, it also has the RateLimit-Policy of Draft07.
	Draft06 Dialect = "draft-06"

	// XRateLimit has X-RateLimit-Limit, X-RateLimit-Remaining and X-RateLimit-Reset. Reset is a Unix
	// time, or seconds from now.
	XRateLimit Dialect = "x-ratelimit"
)

// noDialect is the only value of Config.Headers that is not a Dialect.
const noDialect = "none"

// HeaderValues returns the values that Config.Headers may have: the names of the dialects, and
// "none".
func HeaderValues() []string {
	return []string{string(Draft11), string(Draft07), string(Draft06), string(XRateLimit), noDialect}
}

// fieldNames returns the names of the fields of a dialect, as its specification writes them.
func (d Dialect) fieldNames() []string {
	switch d {
	case Draft11, Draft07:
		return []string{"RateLimit", "RateLimit-Policy"}
	case Draft06:
		return []string{"RateLimit-Limit", "RateLimit-Remaining", "RateLimit-Reset", "RateLimit-Policy"}
	case XRateLimit:
		return []string{"X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset"}
	}
	return nil
}

// headers writes the header fields about limits. Make one with newHeaders.
type headers struct {
	settings         headerSettings
	hasDraft07Policy bool // write RateLimit-Policy in the form of drafts 06 and 07
}

type headerSettings struct {
	dialects     []Dialect        // nil: Draft11; empty: none, so denials have Retry-After only
	resetSeconds bool             // Reset of XRateLimit is in seconds from now; default: Unix time
	jitter       time.Duration    // Retry-After is longer than necessary by up to this
	now          func() time.Time // default: time.Now
}

// newHeaders prepares settings that a Config has checked.
func newHeaders(settings headerSettings) *headers {
	if settings.dialects == nil {
		settings.dialects = []Dialect{Draft11}
	}
	if settings.now == nil {
		settings.now = time.Now
	}
	has := func(d Dialect) bool { return slices.Contains(settings.dialects, d) }
	return &headers{settings: settings, hasDraft07Policy: !has(Draft11) && (has(Draft07) || has(Draft06))}
}

// A quota is the state of one limit in one response.
type quota struct {
	policy  *quotaPolicy
	status  penstock.Status
	isShare bool // the status is about this process' share of the limit, or about its ceiling
}

// A quotaPolicy is what every response says about a limit. newQuotaPolicy makes it once.
type quotaPolicy struct {
	name              string // public, such as "search.second"
	limit             int64  // units at once: q
	policyItem        string // of RateLimit-Policy
	draft07PolicyItem string // the same in drafts 06 and 07; empty if they cannot express it

	canRefill bool  // steadily: count units in period µs
	count     int64 // units
	period    int64 // µs
}

// newQuotaPolicy prepares a limit for headers. The name consists of a-z, 0-9, '_', '.' and '-'. The
// parameters q and w are
//
//	TokenBucket     the burst, and the time in which the bucket fills
//	LeakyBucket     the length of the queue plus 1, and the time in which they empty
//	windows, logs   the count and the period
//	Concurrency     the slots; it has no w, and qu="concurrent-requests"
//
// w is in whole seconds. For a bucket it is rounded up. It is left out for a bucket that fills in
// less than a second, where rounding would show a fraction of the true rate, for windows that do
// not last whole seconds, and for calendar months.
func newQuotaPolicy(name string, plan *penstock.Plan) *quotaPolicy {
	limit := plan.Limit()
	p := &quotaPolicy{name: name, limit: plan.Capacity()}
	a := limit.Algorithm
	window := int64(0)
	unit := ""
	switch {
	case a.NeedsHolder():
		unit = `;qu="concurrent-requests"`
	case a.RefillsSteadily():
		p.canRefill, p.count, p.period = true, limit.Count, limit.Period.Microseconds()
		if whole, rest := p.refill(p.limit); whole+rest >= time.Second {
			window = ceilSeconds(whole + rest)
		}
	case a.IsCalendar():
		window = calendarSeconds(limit.Period)
	case limit.Period%time.Second == 0:
		window = int64(limit.Period / time.Second)
	}

	item := append([]byte{'"'}, name...)
	item = append(item, `";q=`...)
	item = appendInteger(item, p.limit)
	item = append(item, unit...)
	if window > 0 {
		item = append(item, ";w="...)
		item = appendInteger(item, window)
		p.draft07PolicyItem = fmt.Sprintf("%d;w=%d", min(p.limit, maxInteger), window)
	}
	p.policyItem = string(item)
	return p
}

// calendarSeconds returns w of a calendar window, given its longest length; 0 for months.
func calendarSeconds(period time.Duration) int64 {
	switch period {
	case algorithm.Day.Period():
		return 24 * 3600
	case algorithm.Week.Period():
		return 7 * 24 * 3600
	}
	return 0
}

// refill returns the time in which a bucket refills units, rounded down to a microsecond, and what
// to add to round it up: 0 or 1 µs.
func (p *quotaPolicy) refill(units int64) (down, up time.Duration) {
	hi, lo := bits.Mul64(uint64(max(units, 0)), uint64(max(p.period, 0)))
	count := uint64(max(p.count, 1))
	if hi >= count {
		return maxRefill, 0
	}
	micros, rest := bits.Div64(hi, lo, count)
	if micros >= uint64(maxRefill/time.Microsecond) {
		return maxRefill, 0
	}
	if rest > 0 {
		up = time.Microsecond
	}
	return time.Duration(micros) * time.Microsecond, up
}

// maxRefill is more than the 2^51 µs that a valid limit needs at most.
const maxRefill time.Duration = 1 << 62

// until returns t of the draft: the time in which no more than the remaining units can be used. The
// bool is false if the request can never be granted.
//
// A limit that denied: RetryAfter. A bucket: the time of its next unit. Otherwise: ResetAfter, the
// time when nothing is used any more. For windows that is exact. Sliding windows, logs and shares
// of a bucket have more units before, at a time that is not known; the draft allows a longer t. An
// empty share counts as an empty bucket, so that no client waits for a whole burst.
func (q *quota) until() (time.Duration, bool) {
	switch {
	case q.status.RetryAfter == penstock.Never:
		return 0, false
	case q.status.RetryAfter != 0:
		return q.status.RetryAfter, true
	case q.policy.canRefill && (!q.isShare || q.status.Remaining <= 0):
		return q.nextUnit(), true
	}
	return q.status.ResetAfter, true
}

// nextUnit returns when a bucket has one more unit. A full bucket begins to refill when a unit is
// used.
func (q *quota) nextUnit() time.Duration {
	missing := q.policy.limit - max(q.status.Remaining, 0)
	if missing <= 0 {
		down, up := q.policy.refill(1)
		return down + up
	}
	later, _ := q.policy.refill(missing - 1)
	return max(q.status.ResetAfter-later, 0)
}

// isStricter tells whether older dialects show q rather than another quota: q denies for longer, or
// has a smaller share left.
func (q *quota) isStricter(than *quota) bool {
	if q.status.RetryAfter != than.status.RetryAfter {
		return q.status.RetryAfter > than.status.RetryAfter
	}
	// left/limit < than's left/limit
	hi, lo := bits.Mul64(q.left(), uint64(max(than.policy.limit, 1)))
	otherHi, otherLo := bits.Mul64(than.left(), uint64(max(q.policy.limit, 1)))
	return hi < otherHi || hi == otherHi && lo < otherLo
}

func (q *quota) left() uint64 { return uint64(max(q.status.Remaining, 0)) }

// write sets the header fields about the quotas. If the request was denied, it sets Retry-After: in
// whole seconds, rounded up, at least 1, and at least the RetryAfter of each limit that denied.
// There is no Retry-After if the request can never be granted. It returns the seconds of
// Retry-After, or 0.
func (h *headers) write(to http.Header, quotas []quota, denied bool, retryAfter time.Duration) (retrySeconds int64) {
	var room [512]byte
	var f fields
	text := room[:0]
	if len(quotas) > 0 {
		text = h.appendQuotas(text, &f, quotas)
	}
	if denied {
		if retrySeconds = h.retrySeconds(quotas, retryAfter); retrySeconds > 0 {
			text = f.number(text, headerRetryAfter, retrySeconds)
		}
	}
	f.set(to, string(text))
	return retrySeconds
}

func (h *headers) appendQuotas(text []byte, f *fields, quotas []quota) []byte {
	strictest := &quotas[0]
	for i := range quotas[1:] {
		if q := &quotas[i+1]; q.isStricter(strictest) {
			strictest = q
		}
	}
	limit, remaining := strictest.policy.limit, strictest.status.Remaining
	reset, resets := strictest.until()
	seconds := ceilSeconds(reset)

	for _, dialect := range h.settings.dialects {
		switch dialect {
		case Draft11:
			for i := range quotas {
				text = append(appendComma(text, i), quotas[i].policy.policyItem...)
			}
			f.finish(text, headerPolicy)
			for i := range quotas {
				text = quotas[i].appendItem(appendComma(text, i))
			}
			f.finish(text, headerLimits)
		case Draft07:
			text = appendInteger(append(text, "limit="...), limit)
			text = appendInteger(append(text, ", remaining="...), remaining)
			if resets {
				text = appendInteger(append(text, ", reset="...), seconds)
			}
			f.finish(text, headerLimits)
		case Draft06:
			text = f.number(text, headerLimit, limit)
			text = f.number(text, headerRemaining, remaining)
			if resets {
				text = f.number(text, headerReset, seconds)
			}
		case XRateLimit:
			text = f.number(text, headerXLimit, limit)
			text = f.number(text, headerXRemaining, remaining)
			if resets && h.settings.resetSeconds {
				text = f.number(text, headerXReset, seconds)
			} else if resets {
				text = f.number(text, headerXReset, ceilUnix(h.settings.now())+seconds)
			}
		}
	}
	if h.hasDraft07Policy && strictest.policy.draft07PolicyItem != "" {
		text = append(text, strictest.policy.draft07PolicyItem...)
		f.finish(text, headerPolicy)
	}
	return text
}

// appendItem appends the quota's item of RateLimit.
func (q *quota) appendItem(b []byte) []byte {
	b = append(append(append(b, '"'), q.policy.name...), `";r=`...)
	b = appendInteger(b, q.status.Remaining)
	if until, ok := q.until(); ok {
		b = appendInteger(append(b, ";t="...), ceilSeconds(until))
	}
	return b
}

func (h *headers) retrySeconds(quotas []quota, retryAfter time.Duration) int64 {
	if retryAfter == penstock.Never {
		return 0
	}
	for i := range quotas {
		if quotas[i].status.RetryAfter == penstock.Never {
			return 0
		}
		retryAfter = max(retryAfter, quotas[i].status.RetryAfter)
	}
	if h.settings.jitter > 0 {
		retryAfter += min(rand.N(h.settings.jitter+1), math.MaxInt64-retryAfter)
	}
	return max(ceilSeconds(retryAfter), 1)
}

// The names of the fields as http.Header has them.
const (
	headerPolicy     = "Ratelimit-Policy"
	headerLimits     = "Ratelimit"
	headerLimit      = "Ratelimit-Limit"
	headerRemaining  = "Ratelimit-Remaining"
	headerReset      = "Ratelimit-Reset"
	headerXLimit     = "X-Ratelimit-Limit"
	headerXRemaining = "X-Ratelimit-Remaining"
	headerXReset     = "X-Ratelimit-Reset"
	headerRetryAfter = "Retry-After"
)

// fields collects header fields. Their values are parts of one text, so that all of them take two
// allocations.
type fields struct {
	n    int
	keys [maxFields]string
	ends [maxFields]int
}

const maxFields = 9 // of all dialects that may stand together, and Retry-After

// finish makes the text appended since the last call the value of a field.
func (f *fields) finish(text []byte, key string) {
	f.keys[f.n], f.ends[f.n] = key, len(text)
	f.n++
}

func (f *fields) number(text []byte, key string, n int64) []byte {
	text = appendInteger(text, n)
	f.finish(text, key)
	return text
}

func (f *fields) set(to http.Header, text string) {
	values, start := make([]string, f.n), 0
	for i := range f.n {
		values[i] = text[start:f.ends[i]]
		to[f.keys[i]] = values[i : i+1 : i+1]
		start = f.ends[i]
	}
}

func appendComma(b []byte, i int) []byte {
	if i > 0 {
		return append(b, ", "...)
	}
	return b
}

// maxInteger is the largest Integer of RFC 9651.
const maxInteger = 999_999_999_999_999

// appendInteger appends n as an Integer of RFC 9651, at least 0.
func appendInteger(b []byte, n int64) []byte {
	return strconv.AppendInt(b, min(max(n, 0), maxInteger), 10)
}

// ceilSeconds returns d in whole seconds, rounded up; 0 if d is negative.
func ceilSeconds(d time.Duration) int64 {
	if d <= 0 {
		return 0
	}
	return int64((d-1)/time.Second) + 1
}

// ceilUnix returns t in seconds since the epoch, rounded up.
func ceilUnix(t time.Time) int64 {
	if t.Nanosecond() > 0 {
		return t.Unix() + 1
	}
	return t.Unix()
}
