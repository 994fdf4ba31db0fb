package outbound

import (
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/dunglas/httpsfv"
)

// pauseOf returns the pause, 0 or longer, that a response demands by its status and header. ok is
// false if the response gives no time.
func pauseOf(status int, h http.Header, now time.Time) (pause time.Duration, ok bool) {
	if date, ok := parseDate(h.Get("Date")); ok {
		now = date // the server's own clock
	}
	if status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable {
		if pause, ok = parseRetryAfter(h.Get(headerRetryAfter), now); ok {
			return pause, true
		}
	}
	if age := h.Get("Age"); age != "" && age != "0" {
		return 0, false
	}
	if pause, ok = parseRateLimit(h[headerLimits]); ok {
		return pause, true
	}
	if pause, ok = parseRemaining(h.Get(headerRemaining), h.Get(headerReset), now); ok {
		return pause, true
	}
	return parseRemaining(h.Get(headerXRemaining), h.Get(headerXReset), now)
}

// parseRetryAfter parses seconds or a date.
func parseRetryAfter(value string, now time.Time) (time.Duration, bool) {
	value = strings.Trim(value, " \t")
	if n, ok := parseDigits(value); ok {
		return seconds(n), true
	}
	if date, ok := parseDate(value); ok {
		return max(date.Sub(now), 0), true
	}
	return 0, false
}

// parseRateLimit parses RateLimit as draft-11 defines it, or else as draft-07 does.
func parseRateLimit(lines []string) (pause time.Duration, hasTime bool) {
	length := 0
	for _, line := range lines {
		length += len(line)
	}
	if length == 0 || length > maxRateLimitBytes {
		return 0, false
	}
	if list, err := httpsfv.UnmarshalList(lines); err == nil {
		return longestPause(list)
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
	return pauseIfUsedUp(value("remaining"), value("reset"))
}

// longestPause returns the longest pause of the limits of draft-11 that have nothing left.
func longestPause(limits httpsfv.List) (pause time.Duration, hasTime bool) {
	for _, member := range limits {
		item, ok := member.(httpsfv.Item)
		if !ok {
			continue
		}
		if _, isString := item.Value.(string); !isString { // the name of a limit is a string
			continue
		}
		remaining, _ := item.Params.Get("r")
		reset, _ := item.Params.Get("t")
		if wait, ok := pauseIfUsedUp(remaining, reset); ok {
			pause, hasTime = max(pause, wait), true
		}
	}
	return pause, hasTime
}

// maxRateLimitBytes is how many bytes a RateLimit may have. A longer one is ignored.
const maxRateLimitBytes = 4 << 10

// pauseIfUsedUp returns the pause if remaining is 0 and reset is a number of seconds.
func pauseIfUsedUp(remaining, reset any) (time.Duration, bool) {
	units, hasUnits := remaining.(int64)
	wait, hasWait := reset.(int64)
	if !hasUnits || !hasWait || units != 0 || wait < 0 {
		return 0, false
	}
	return seconds(wait), true
}

// parseRemaining parses the two headers of older dialects. Servers do not agree about the unit of
// Reset, so the size of the number decides.
func parseRemaining(remaining, reset string, now time.Time) (time.Duration, bool) {
	if n, ok := parseDigits(strings.Trim(remaining, " \t")); !ok || n != 0 {
		return 0, false
	}
	reset = strings.Trim(reset, " \t")
	n, ok := parseDigits(reset)
	switch {
	case !ok:
		date, ok := parseDate(reset)
		return max(date.Sub(now), 0), ok
	case n > maxUnixSeconds:
		return max(time.UnixMilli(n).Sub(now), 0), true
	case n > maxSecondsFromNow:
		return max(time.Unix(n, 0).Sub(now), 0), true
	}
	return seconds(n), true
}

// How parseRemaining reads the number in Reset.
const (
	maxSecondsFromNow = 10 * 365 * 24 * 3600 // ten years; a larger number is a Unix time
	maxUnixSeconds    = 100_000_000_000      // the year 5138; a larger number is a Unix time in milliseconds
)

// maxValueBytes is how many bytes a number or a date may have. A longer one is ignored.
const maxValueBytes = 64

// parseDigits parses a number of digits only. A number that is too large becomes the largest int64.
func parseDigits(s string) (int64, bool) {
	if s == "" || len(s) > maxValueBytes || strings.Trim(s, "0123456789") != "" {
		return 0, false
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		return math.MaxInt64, true
	}
	return n, true
}

// parseDate parses an HTTP-date. UTC counts as GMT, because some servers write it.
func parseDate(s string) (time.Time, bool) {
	if s = strings.Trim(s, " \t"); s == "" || len(s) > maxValueBytes {
		return time.Time{}, false
	}
	if rest, ok := strings.CutSuffix(s, " UTC"); ok {
		s = rest + " GMT"
	}
	date, err := http.ParseTime(s)
	return date, err == nil
}

func seconds(n int64) time.Duration {
	return time.Duration(min(n, math.MaxInt64/int64(time.Second))) * time.Second
}

// The headers' names as http.Header holds them.
const (
	headerLimits     = "Ratelimit"
	headerRemaining  = "Ratelimit-Remaining"
	headerReset      = "Ratelimit-Reset"
	headerXRemaining = "X-Ratelimit-Remaining"
	headerXReset     = "X-Ratelimit-Reset"
	headerRetryAfter = "Retry-After"
)
