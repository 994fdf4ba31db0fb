package dashboard

import (
	"fmt"
	"html/template"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/penstock/penstock/cmd/penstock/internal/console/adminapi"
	"github.com/penstock/penstock/cmd/penstock/internal/console/keylimits"
)

var functions = template.FuncMap{
	"after":     after,
	"ago":       ago,
	"bound":     boundOf,
	"breaker":   breaker,
	"bytes":     size,
	"clock":     clock,
	"count":     count,
	"counts":    countsOf,
	"deref":     deref,
	"list":      list,
	"mixed":     keylimits.IsMixed,
	"next":      func(i int) int { return i + 1 },
	"number":    number,
	"once":      once,
	"percent":   percent,
	"perSecond": perSecond,
	"share":     func(part, all uint64) string { return percent(share(part, all)) },
	"short":     short,
	"span":      spanText,
	"total":     total,
	"us":        microseconds,
	"until":     until,
	"value":     value,
	"width":     width,
}

// count writes a whole number, with thin spaces between thousands.
func count(n any) string {
	text := fmt.Sprint(n)
	digits := strings.TrimPrefix(text, "-")
	var b strings.Builder
	for i, r := range digits {
		if i > 0 && (len(digits)-i)%3 == 0 {
			b.WriteRune('\u202f')
		}
		b.WriteRune(r)
	}
	return text[:len(text)-len(digits)] + b.String()
}

// number writes a number with about three digits. The bounds are 9.995 and 99.95, because such
// numbers are rounded up to 10 and 100.
func number(v float64) string {
	switch {
	case v < 0: // not known
		return "–"
	case v == 0:
		return "0"
	case v >= 1000:
		return count(int64(math.Round(v)))
	case v >= 99.95:
		return strconv.FormatFloat(v, 'f', 0, 64)
	case v >= 9.995:
		return strconv.FormatFloat(v, 'f', 1, 64)
	case v < 0.005:
		return "<\u200a0.01"
	}
	return strconv.FormatFloat(v, 'f', 2, 64)
}

func value(v float64, unit string) string {
	if v < 0 {
		return "–"
	}
	if unit == "ms" {
		return number(v) + "\u00a0ms"
	}
	return number(v) + unit
}

func perSecond(last10 uint64) string { return number(float64(last10) / 10) }

func percent(v float64) string {
	switch {
	case v == 0:
		return "0\u00a0%"
	case v < 0.1:
		return "<\u200a0.1\u00a0%"
	case v < 9.95:
		return strconv.FormatFloat(v, 'f', 1, 64) + "\u00a0%"
	}
	return strconv.FormatFloat(v, 'f', 0, 64) + "\u00a0%"
}

// microseconds writes a time that is given in microseconds. The text is in milliseconds.
func microseconds(us int64) string {
	if us == 0 {
		return "–"
	}
	return number(float64(us)/1000) + "\u00a0ms"
}

// after writes a duration that is given in milliseconds, as in "5 min". -1 means never.
func after(ms int64) string {
	d := time.Duration(ms) * time.Millisecond
	switch {
	case ms < 0:
		return "never"
	case ms == 0:
		return "now"
	case d < time.Second:
		return fmt.Sprintf("%d\u00a0ms", ms)
	case d < 10*time.Second:
		return fmt.Sprintf("%.1f\u00a0s", d.Seconds())
	case d < 2*time.Minute:
		return fmt.Sprintf("%.0f\u00a0s", d.Seconds())
	case d < 2*time.Hour:
		return fmt.Sprintf("%d\u00a0min", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%d\u00a0h %d\u00a0min", int(d.Hours()), int(d.Minutes())%60)
	}
	return fmt.Sprintf("%d days", int(d.Hours())/24)
}

// until returns the time that is ms milliseconds from now.
func until(ms int64) time.Time {
	return time.Now().Add(time.Duration(ms) * time.Millisecond).UTC().Truncate(time.Second)
}

// clock writes a time, without its date if it is less than 20 hours away.
func clock(t time.Time) string {
	if d := time.Until(t); d.Abs() < 20*time.Hour {
		return t.UTC().Format("15:04:05") + " UTC"
	}
	return t.UTC().Format("2006-01-02 15:04") + " UTC"
}

func ago(t time.Time) string { return after(max(time.Since(t).Milliseconds(), 1)) }

// spanText writes how long ago a row of a chart's table ended.
func spanText(d time.Duration) string {
	if d == 0 {
		return "now"
	}
	return after(d.Milliseconds()) + " ago"
}

func size(n int64) string {
	const unit = 1024
	if n < unit {
		return fmt.Sprintf("%d\u00a0B", n)
	}
	value, names := float64(n)/unit, []string{"KB", "MB", "GB", "TB"}
	for len(names) > 1 && value >= unit {
		value, names = value/unit, names[1:]
	}
	return number(value) + "\u00a0" + names[0]
}

// list returns its arguments, for a template that passes several values to another.
func list(values ...any) []any { return values }

func short(digest string) string { return digest[:min(len(digest), 12)] }

func breaker(state string) string {
	switch state {
	case "closed":
		return "closed: the store is used"
	case "open":
		return "open: the store is not called, the fallback decides"
	case "half_open":
		return "half open: the store is probed"
	}
	return state
}

// width writes the width of a bar for a part of all, from 0 to 100.
func width(part, all any) string {
	p, _ := strconv.ParseFloat(fmt.Sprint(part), 64)
	a, _ := strconv.ParseFloat(fmt.Sprint(all), 64)
	if a <= 0 {
		return "0"
	}
	return strconv.FormatFloat(100*min(max(p, 0), a)/a, 'f', 1, 64)
}

// deref returns what a pointer points to, for comparisons.
func deref(p any) any { return reflect.ValueOf(p).Elem().Interface() }

// A limitCounts has the counts of a limit, a shadow or a candidate in the last minute.
type limitCounts struct {
	Label                         string
	Allowed, Denied, Near, Waited uint64
}

func countsOf(l adminapi.Limit) limitCounts {
	c := limitCounts{Label: map[string]string{keylimits.Enforced: "Enforced", keylimits.Shadow: "Shadow", keylimits.Candidate: "Candidate"}[l.Kind]}
	for _, n := range l.Counts {
		switch {
		case n.Name == "shadow_allowed", l.Kind == keylimits.Enforced && slices.Contains(passed, n.Name):
			c.Allowed += n.Last60
		case n.Name == "shadow_denied", l.Kind == keylimits.Enforced && slices.Contains(denied, n.Name):
			c.Denied += n.Last60
		case n.Name == "near_limit":
			c.Near += n.Last60
		case n.Name == "waited":
			c.Waited += n.Last60
		}
	}
	return c
}

// once returns the first entry of each limit. A limit with tiers has an entry for each tier.
func once(limits []keylimits.Limit) (all []*keylimits.Limit) {
	for i := range limits {
		l := &limits[i]
		if !slices.ContainsFunc(all, func(other *keylimits.Limit) bool { return other.Rule == l.Rule && other.Limit == l.Limit }) {
			all = append(all, l)
		}
	}
	return all
}

func total(l keylimits.Limit) int64 { return l.Used + l.Left }

// boundOf returns the text of the bound in one situation, or "no more" if there is none.
func boundOf(bounds []adminapi.Bound, when string) string {
	for _, b := range bounds {
		if b.When == when {
			return b.Text
		}
	}
	return "no more"
}
