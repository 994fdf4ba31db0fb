package httplimit

import (
	"fmt"
	"math"
	"math/bits"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/algorithm"
)

// A Dialect is a way to tell clients of limits in the headers of a response. All dialects of one
// response say the same.
type Dialect string

// The dialects. Draft11 lists every limit that was asked; the older ones know one limit only, and
// speak of the strictest: the one that denies for longest, or has the least share left. Draft11 and
// Draft07 write the same header in two forms, so a response can have one of them.
const (
	// Draft11 is draft-ietf-httpapi-ratelimit-headers-11:
	//	RateLimit-Policy: "search.second";q=10;w=1, "search.day";q=10000;w=86400
	//	RateLimit: "search.second";r=9;t=1, "search.day";r=9120;t=40112
	Draft11 Dialect = "draft-11"

	// Draft07 is its form of 2023:
	//	RateLimit-Policy: 10;w=1
	//	RateLimit: limit=10, remaining=9, reset=1
	Draft07 Dialect = "draft-07"

	// Draft06 has a header for each number: RateLimit-Limit, RateLimit-Remaining and RateLimit-Reset.
	// Unless Draft11 is there too, it has a RateLimit-Policy as Draft07.
	Draft06 Dialect = "draft-06"

	// XRateLimit has X-RateLimit-Limit, X-RateLimit-Remaining and X-RateLimit-Reset. Reset is Unix
	// time, or seconds from now by option.
	XRateLimit Dialect = "x-ratelimit"
)

// Dialects are all there are.
func Dialects() []Dialect { return []Dialect{Draft11, Draft07, Draft06, XRateLimit} }

// headers writes what a response says of its limits. Make one with newHeaders.
type headers struct {
	settings  headerSettings
	oldPolicy bool // there is a RateLimit-Policy in the form of drafts 06 and 07
}

type headerSettings struct {
	dialects     []Dialect        // nil: Draft11; empty: none, and denials have Retry-After only
	resetSeconds bool             // XRateLimit's Reset counts seconds from now; default: Unix time
	jitter       time.Duration    // Retry-After is up to this much later than need be
	now          func() time.Time // default: time.Now
}

const maxJitter = 24 * time.Hour

// newHeaders checks the settings.
func newHeaders(settings headerSettings) (*headers, error) {
	if settings.dialects == nil {
		settings.dialects = []Dialect{Draft11}
	}
	if settings.now == nil {
		settings.now = time.Now
	}
	has := func(d Dialect) bool { return slices.Contains(settings.dialects, d) }
	for i, d := range settings.dialects {
		if !slices.Contains(Dialects(), d) {
			return nil, fmt.Errorf("headers: there is no dialect %q; there are %s", d, dialectNames())
		}
		if slices.Contains(settings.dialects[:i], d) {
			return nil, fmt.Errorf("headers: %s stands there twice; write it once", d)
		}
	}
	if has(Draft11) && has(Draft07) {
		return nil, fmt.Errorf("headers: %s and %s both write RateLimit, in forms that no client can tell apart in one response; "+
			"choose one", Draft11, Draft07)
	}
	if settings.jitter < 0 || settings.jitter > maxJitter {
		return nil, fmt.Errorf("headers: the jitter of Retry-After is %v; it must be 0 to %v", settings.jitter, maxJitter)
	}
	return &headers{settings: settings, oldPolicy: !has(Draft11) && (has(Draft07) || has(Draft06))}, nil
}

// A quota is what one limit says of itself in one response.
type quota struct {
	policy *quotaPolicy
	status penstock.Status
	share  bool // the status is of a share of the limit, or of a ceiling instead of it
}

// A quotaPolicy is what a limit says of itself in every response. It is made once, by
// newQuotaPolicy.
type quotaPolicy struct {
	name    string // in public: "search.second"
	limit   int64  // units at once: q
	item    string // of RateLimit-Policy
	oldItem string // the same in drafts 06 and 07; empty if they have no words for it

	bucket bool  // it refills steadily,
	count  int64 // by so many units
	period int64 // in so many µs
}

// newQuotaPolicy prepares a limit for headers, under a name of a-z, 0-9, '_', '.' and '-'. q and w
// are
//
//	TokenBucket     the burst, and how long the bucket takes to fill
//	LeakyBucket     the places (the queue and the one that leaves), and how long they take to empty
//	windows, logs   the count and the period
//	Concurrency     the slots; it has no w, and qu="concurrent-requests"
//
// w is in whole seconds. A bucket's is rounded up; below a second, where rounding would tell a
// fraction of the true rate, it is left out. So it is for windows that do not last whole seconds,
// and for calendar months.
func newQuotaPolicy(name string, plan *penstock.Plan) *quotaPolicy {
	limit := plan.Limit
	p := &quotaPolicy{name: name, limit: plan.Capacity}
	a := limit.Algorithm
	window := int64(0)
	unit := ""
	switch {
	case a.Holds:
		unit = `;qu="concurrent-requests"`
	case a.Is(penstock.TokenBucket), a.Is(penstock.LeakyBucket):
		p.bucket, p.count, p.period = true, limit.Count, limit.Period.Microseconds()
		if whole, rest := p.refill(p.limit); whole+rest >= time.Second {
			window = ceilSeconds(whole + rest)
		}
	case a.At != nil:
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
		p.oldItem = fmt.Sprintf("%d;w=%d", min(p.limit, maxInteger), window)
	}
	p.item = string(item)
	return p
}

// calendarSeconds is how long a calendar window is said to last, given its longest length; 0 for
// months.
func calendarSeconds(period time.Duration) int64 {
	switch period {
	case algorithm.Day.Period():
		return 24 * 3600
	case algorithm.Week.Period():
		return 7 * 24 * 3600
	}
	return 0
}

// refill is how long a bucket takes to refill units, rounded down to a microsecond, and the
// microsecond that rounds it up.
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

// until is the draft's effective window: for how long no more than what remains can be used. It is
// false if the request can never be granted.
//
// A status says when a denied request would be granted, and when nothing is used any more. A bucket
// has its next unit before that; a window begins again then. Sliding windows, logs and shares of a
// bucket have more units before that too, but it is not known when. So they answer with a longer
// time than necessary, which the draft allows. An empty share is treated as an empty bucket, so
// that no client waits for a whole burst.
func (q *quota) until() (time.Duration, bool) {
	switch {
	case q.status.RetryAfter == penstock.Never:
		return 0, false
	case q.status.RetryAfter != 0:
		return q.status.RetryAfter, true
	case q.policy.bucket && (!q.share || q.status.Remaining <= 0):
		return q.nextUnit(), true
	}
	return q.status.ResetAfter, true
}

// nextUnit is when a bucket has one unit more. A full one begins to refill when a unit is used.
func (q *quota) nextUnit() time.Duration {
	missing := q.policy.limit - max(q.status.Remaining, 0)
	if missing <= 0 {
		down, up := q.policy.refill(1)
		return down + up
	}
	later, _ := q.policy.refill(missing - 1)
	return max(q.status.ResetAfter-later, 0)
}

// stricter tells which of two quotas an older dialect speaks of: the one that denies for longer, or
// has the smaller share left.
func (q *quota) stricter(than *quota) bool {
	if q.status.RetryAfter != than.status.RetryAfter {
		return q.status.RetryAfter > than.status.RetryAfter
	}
	// left/limit < than's left/limit
	hi, lo := bits.Mul64(q.left(), uint64(max(than.policy.limit, 1)))
	otherHi, otherLo := bits.Mul64(than.left(), uint64(max(q.policy.limit, 1)))
	return hi < otherHi || hi == otherHi && lo < otherLo
}

func (q *quota) left() uint64 { return uint64(max(q.status.Remaining, 0)) }

// write sets the headers that say what the quotas say, in place of those that are there. If the
// request was denied it sets Retry-After: whole seconds, rounded up, at least 1, and never before
// more quota is there of a limit that denied. There is none if the request can never be granted. It
// returns the seconds of Retry-After, or 0.
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
		if q := &quotas[i+1]; q.stricter(strictest) {
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
				text = append(appendComma(text, i), quotas[i].policy.item...)
			}
			f.end(text, headerPolicy)
			for i := range quotas {
				text = quotas[i].appendItem(appendComma(text, i))
			}
			f.end(text, headerLimits)
		case Draft07:
			text = appendInteger(append(text, "limit="...), limit)
			text = appendInteger(append(text, ", remaining="...), remaining)
			if resets {
				text = appendInteger(append(text, ", reset="...), seconds)
			}
			f.end(text, headerLimits)
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
	if h.oldPolicy && strictest.policy.oldItem != "" {
		text = append(text, strictest.policy.oldItem...)
		f.end(text, headerPolicy)
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

// The headers' names as http.Header holds them.
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

// fields are headers in the making: the values stand in one text, one after another. So all of them
// take two allocations.
type fields struct {
	n    int
	keys [maxFields]string
	ends [maxFields]int
}

const maxFields = 9 // of all dialects that may stand together, and Retry-After

// end makes what was appended to the text since the last end the value of a header.
func (f *fields) end(text []byte, key string) {
	f.keys[f.n], f.ends[f.n] = key, len(text)
	f.n++
}

func (f *fields) number(text []byte, key string, n int64) []byte {
	text = appendInteger(text, n)
	f.end(text, key)
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

// appendInteger appends n as an Integer of RFC 9651 that is not negative.
func appendInteger(b []byte, n int64) []byte {
	return strconv.AppendInt(b, min(max(n, 0), maxInteger), 10)
}

// ceilSeconds is d in whole seconds, rounded up; 0 if it is negative.
func ceilSeconds(d time.Duration) int64 {
	if d <= 0 {
		return 0
	}
	return int64((d-1)/time.Second) + 1
}

// ceilUnix is a time in seconds since the epoch, rounded up.
func ceilUnix(t time.Time) int64 {
	if t.Nanosecond() > 0 {
		return t.Unix() + 1
	}
	return t.Unix()
}

func dialectNames() string {
	var names []string
	for _, d := range Dialects() {
		names = append(names, string(d))
	}
	return strings.Join(names, ", ")
}
