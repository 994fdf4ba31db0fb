package policy

import (
	"cmp"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/algorithm"
)

// calendar tells whether a rate goes by the calendar.
func (p *PerTier) calendar() bool {
	if calendarRate.MatchString(p.All) {
		return true
	}
	for _, e := range p.Tiers {
		if calendarRate.MatchString(e.Value) {
			return true
		}
	}
	return false
}

// defaultParts is how many parts a sub-window has if nothing else is said.
const defaultParts = 10

// reason is what an error of the core says, without what the position tells already, and in the
// words of the file.
func reason(err error) string {
	text := strings.TrimPrefix(err.Error(), penstock.ErrInvalid.Error()+": ")
	if rest, ok := strings.CutPrefix(text, "limit "); ok {
		if _, after, found := strings.Cut(rest, ": "); found {
			text = after
		}
	}
	text = strings.NewReplacer(
		"or use CalendarWindow with Month", "or 1000 per calendar month",
		"deny before asking", "use deny",
	).Replace(text)
	if !strings.Contains(text, ";") {
		text += "; choose other numbers"
	}
	return text
}

// form is a limit for one tier.
func (c *compiler) form(s shape, tier string) (penstock.Limit, bool) {
	what := s.rate
	if s.inFlight.set() {
		what = s.inFlight
	}
	text, at, ok := what.of(tier)
	if !ok {
		c.fail(at, "there is no number for tier %s; add %s: or otherwise:", tier, tier)
		return penstock.Limit{}, false
	}
	if s.inFlight.set() {
		return c.slots(s, at, text)
	}
	limit, calendar, err := parseRate(text)
	if err != nil {
		c.fail(at, "%s", reason(err))
	}
	a, ok := c.algorithm(s, calendar)
	if err != nil || !ok {
		return limit, false
	}
	limit.Algorithm = a
	return limit, c.burst(s, tier, &limit, at)
}

// burst sets how much a limit admits at once. rate is where its rate was written, which may say it,
// too.
func (c *compiler) burst(s shape, tier string, limit *penstock.Limit, rate any) bool {
	text, at, ok := s.burst.of(tier)
	switch {
	case !s.burst.set() || !ok:
		if at = rate; limit.Burst == 0 {
			return true // the default
		}
	case limit.Burst != 0:
		c.fail(at, "the rate has a burst already; keep one of the two")
		return false
	default:
		if limit.Burst, ok = c.count(at, "a burst", text); !ok {
			return false
		}
	}
	if !limit.Algorithm.Is(penstock.TokenBucket) && !limit.Algorithm.Is(penstock.LeakyBucket) {
		c.fail(at, "a window has no burst, since it admits its whole count at once; remove it, or use token-bucket")
		return false
	}
	return true
}

func (c *compiler) slots(s shape, at any, text string) (penstock.Limit, bool) {
	n, ok := c.count(at, "a number of requests in flight", text)
	for p, set := range map[any]bool{s.burst: s.burst.set(), s.algorithm: *s.algorithm != "", s.parts: *s.parts != 0, s.zone: *s.zone != ""} {
		if set {
			c.fail(p, "this belongs to a rate, and here is in_flight; remove it")
			ok = false
		}
	}
	if c.written(s.expires) && (*s.expires < time.Millisecond || *s.expires > 24*time.Hour) {
		c.fail(s.expires, "expires is %s; write a time from 1ms to 24h", period(*s.expires))
		ok = false
	}
	return penstock.InFlight(n, cmp.Or(*s.expires, time.Minute)), ok
}

func (c *compiler) count(at any, what, text string) (int64, bool) {
	digits, by := strings.NewReplacer("_", "", ",", "").Replace(text), int64(1)
	if number, ok := strings.CutSuffix(digits, "k"); ok {
		digits, by = number, 1e3
	} else if number, ok := strings.CutSuffix(digits, "M"); ok {
		digits, by = number, 1e6
	}
	const most = penstock.MaxCost
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || n < 1 || n > most/by {
		c.fail(at, "%q cannot be %s; write a whole number from 1 to 2^51, as 50 or 10k", clip(text), what)
		return 0, false
	}
	return n * by, true
}

// period is a duration as people write it: 24h, not 24h0m0s.
func period(d time.Duration) string {
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}

var calendarRate = regexp.MustCompile(`^\s*(.*?)\s*(?:/|\bper\b)\s*calendar[ -](day|week|month)\s*$`)

// parseRate reads a rate, which may go by the calendar: "1000 per calendar month".
func parseRate(text string) (penstock.Limit, string, error) {
	m := calendarRate.FindStringSubmatch(text)
	if m == nil {
		limit, err := penstock.ParseRate(text)
		if err != nil && strings.Contains(text, "calendar") {
			err = fmt.Errorf("rate %q is not understood; write it as 1000 per calendar day, week or month", clip(text))
		}
		return limit, "", err
	}
	limit, err := penstock.ParseRate(m[1] + " per day")
	if err != nil {
		_, why, _ := strings.Cut(reason(err), ": ")
		err = fmt.Errorf("rate %q: %s", clip(text), why)
	}
	limit.Name, limit.Period = "calendar-"+m[2], calendarUnits[m[2]].Period()
	return limit, m[2], err
}

var calendarUnits = map[string]algorithm.CalendarUnit{"day": algorithm.Day, "week": algorithm.Week, "month": algorithm.Month}

var algorithms = map[string]*algorithm.Algorithm{
	"token-bucket": penstock.TokenBucket, "gcra": penstock.GCRA, "leaky-bucket": penstock.LeakyBucket,
	"fixed-window": penstock.FixedWindow, "anchored-window": penstock.AnchoredWindow,
	"sliding-window": penstock.SlidingWindow, "sub-window": nil, "sliding-log": penstock.SlidingLog,
}

func (c *compiler) algorithm(s shape, calendar string) (*algorithm.Algorithm, bool) {
	if *s.zone != "" && calendar == "" {
		c.fail(s.zone, "a zone belongs to a calendar rate, as in 1000 per calendar month; remove it, or change the rate")
	}
	if c.written(s.parts) && *s.algorithm != "sub-window" {
		c.fail(s.parts, "parts belong to algorithm: sub-window; remove them, or change the algorithm")
	}
	if calendar != "" {
		return c.calendar(s, calendar)
	}
	if *s.algorithm == "" {
		return penstock.TokenBucket, true
	}
	a, ok := algorithms[*s.algorithm]
	if !ok {
		c.fail(s.algorithm, "there is no algorithm %q; %s", clip(*s.algorithm), suggest(*s.algorithm, algorithms))
		return nil, false
	}
	if *s.algorithm != "sub-window" {
		return a, true
	}
	if c.written(s.parts) && !c.broken[s.parts] && (*s.parts < 1 || *s.parts > algorithm.MaxParts) {
		c.fail(s.parts, "a window of %d parts is not possible; write 1 to %d", *s.parts, algorithm.MaxParts)
		return nil, false
	}
	return penstock.SubWindow(cmp.Or(*s.parts, defaultParts)), true
}

func (c *compiler) calendar(s shape, unit string) (*algorithm.Algorithm, bool) {
	if *s.algorithm != "" {
		c.fail(s.algorithm, "a calendar rate has its own windows; remove algorithm, or write the period without calendar")
	}
	zone, err := time.LoadLocation(cmp.Or(*s.zone, "UTC"))
	if err != nil || *s.zone == "Local" {
		c.fail(s.zone, "there is no time zone %q; write one as Europe/Berlin or UTC", clip(*s.zone))
		return nil, false
	}
	return penstock.CalendarWindow(calendarUnits[unit], zone), true
}

// givesBack tells whether what was charged can be taken back later.
func givesBack(a *algorithm.Algorithm) bool { return !a.Holds && !a.Is(penstock.LeakyBucket) }
