package httplimit

import (
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/dunglas/httpsfv"
)

// serverSays is how long a server wants no more requests, by the status and headers of its answer:
// 0 or more. It is false if the server did not say.
func serverSays(status int, h http.Header, now time.Time) (pause time.Duration, said bool) {
	if date, ok := parseDate(h.Get("Date")); ok {
		now = date // by its own clock, so that ours may differ
	}
	if status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable {
		if pause, said = retryAfterSays(h.Get(headerRetryAfter), now); said {
			return pause, true
		}
	}
	if age := h.Get("Age"); age != "" && age != "0" {
		return 0, false
	}
	if pause, said = rateLimitSays(h[headerLimits]); said {
		return pause, true
	}
	if pause, said = remainingSays(h.Get(headerRemaining), h.Get(headerReset), now); said {
		return pause, true
	}
	return remainingSays(h.Get(headerXRemaining), h.Get(headerXReset), now)
}

// retryAfterSays reads seconds or a date.
func retryAfterSays(value string, now time.Time) (time.Duration, bool) {
	value = strings.Trim(value, " \t")
	if n, ok := parseDigits(value); ok {
		return seconds(n), true
	}
	if date, ok := parseDate(value); ok {
		return max(date.Sub(now), 0), true
	}
	return 0, false
}

// rateLimitSays reads the RateLimit of draft-11, or else of draft-07. Of several limits with
// nothing left, the longest counts.
func rateLimitSays(lines []string) (pause time.Duration, said bool) {
	length := 0
	for _, line := range lines {
		length += len(line)
	}
	if length == 0 || length > maxRateLimit {
		return 0, false
	}
	if list, err := httpsfv.UnmarshalList(lines); err == nil {
		for _, member := range list {
			item, ok := member.(httpsfv.Item)
			if !ok {
				continue
			}
			if _, ok := item.Value.(string); !ok {
				continue
			}
			r, _ := item.Params.Get("r")
			t, _ := item.Params.Get("t")
			if wait, ok := nothingLeft(r, t); ok {
				pause, said = max(pause, wait), true
			}
		}
		return pause, said
	}
	dictionary, err := httpsfv.UnmarshalDictionary(lines)
	if err != nil {
		return 0, false
	}
	value := func(key string) any {
		member, _ := dictionary.Get(key)
		item, _ := member.(httpsfv.Item)
		return item.Value
	}
	return nothingLeft(value("remaining"), value("reset"))
}

// maxRateLimit is how long a RateLimit may be that is read, in bytes.
const maxRateLimit = 4 << 10

// nothingLeft is how long to wait if remaining is 0 and reset a number of seconds.
func nothingLeft(remaining, reset any) (time.Duration, bool) {
	r, ok := remaining.(int64)
	t, alsoOK := reset.(int64)
	if !ok || !alsoOK || r != 0 || t < 0 {
		return 0, false
	}
	return seconds(t), true
}

// remainingSays reads the two headers of the older dialects: nothing left until a Reset that has no
// common meaning. More than ten years are no time to wait but a Unix time, and if that lies more
// than three thousand years ahead it is in milliseconds.
func remainingSays(remaining, reset string, now time.Time) (time.Duration, bool) {
	if n, ok := parseDigits(strings.Trim(remaining, " \t")); !ok || n != 0 {
		return 0, false
	}
	reset = strings.Trim(reset, " \t")
	n, ok := parseDigits(reset)
	switch {
	case !ok:
		date, ok := parseDate(reset)
		return max(date.Sub(now), 0), ok
	case n > 100_000_000_000:
		return max(time.UnixMilli(n).Sub(now), 0), true
	case n > 10*365*24*3600:
		return max(time.Unix(n, 0).Sub(now), 0), true
	}
	return seconds(n), true
}

// parseDigits reads a number that is written in digits only. One that is too large is the largest.
func parseDigits(s string) (int64, bool) {
	if s == "" || len(s) > 64 || strings.Trim(s, "0123456789") != "" {
		return 0, false
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		return math.MaxInt64, true
	}
	return n, true
}

// parseDate reads an HTTP-date. UTC is taken for GMT: there are servers that write it so.
func parseDate(s string) (time.Time, bool) {
	if s = strings.Trim(s, " \t"); s == "" || len(s) > 64 {
		return time.Time{}, false
	}
	if rest, ok := strings.CutSuffix(s, " UTC"); ok {
		s = rest + " GMT"
	}
	date, err := http.ParseTime(s)
	return date, err == nil
}

// seconds are n seconds, or the longest duration there is.
func seconds(n int64) time.Duration {
	return time.Duration(min(n, math.MaxInt64/int64(time.Second))) * time.Second
}
