package policyfile

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/algorithm"
	"github.com/penstock/penstock/internal/fieldvalues"
	"github.com/penstock/penstock/internal/wording"
)

func (p *tierTexts) isCalendar() bool {
	isInTier := func(e namedEntry[string]) bool { return calendarRate.MatchString(e.Value) }
	return calendarRate.MatchString(p.All) || slices.ContainsFunc(p.Tiers, isInTier)
}

const defaultSubWindows = 10

// reason returns the text of an error of package penstock in the words of the file. The limit's
// name is left out, because messages have a position.
func reason(err error) string {
	text := strings.TrimPrefix(err.Error(), penstock.ErrInvalid.Error()+": ")
	if rest, ok := strings.CutPrefix(text, "limit "); ok {
		if _, after, found := strings.Cut(rest, ": "); found {
			text = after
		}
	}
	text = strings.NewReplacer(
		"or use CalendarWindow with Month", "or 1000 per calendar month",
		"deny before the charge", "use deny",
	).Replace(text)
	if !strings.Contains(text, ";") {
		text += "; choose other numbers"
	}
	return text
}

func (c *compiler) compileVariant(s shape, tier string) (penstock.Limit, bool) {
	numbers := s.rate
	if s.inFlight.isSet() {
		numbers = s.inFlight
	}
	text, at, ok := numbers.textFor(tier)
	if !ok {
		c.fail(at, "there is no number for tier %s; add %s: or default:", tier, tier)
		return penstock.Limit{}, false
	}
	if s.inFlight.isSet() {
		return c.compileSlots(s, at, text)
	}
	limit, calendar, err := parseRate(text)
	if err != nil {
		c.fail(at, "%s", reason(err))
	}
	a, ok := c.compileAlgorithm(s, calendar)
	if err != nil || !ok {
		return limit, false
	}
	limit.Algorithm, limit.ShouldCountDenied = a, s.countsDenied
	if s.countsDenied && !a.CountsDenied() {
		c.fail(s.countsDeniedAt, "%s cannot count denied requests; remove count_denied, or use token-bucket, sub-window or another window", a.Title())
		return limit, false
	}
	switch s.across {
	case "exchange":
		limit.Algorithm = algorithm.Across(a)
	case "share":
		limit.Algorithm = algorithm.ShareAcross(a, 1) // package regions knows how many there are
	}
	return limit, c.setBurst(s, tier, &limit, at)
}

// setBurst sets the burst of a limit, in units. The place rateAt is where its rate was written. The
// rate may also contain the burst.
func (c *compiler) setBurst(s shape, tier string, limit *penstock.Limit, rateAt any) bool {
	text, at, ok := s.burst.textFor(tier)
	switch {
	case !s.burst.isSet() || !ok:
		if limit.Burst == 0 {
			return true // the default
		}
		at = rateAt // the rate contains the burst
	case limit.Burst != 0:
		c.fail(at, "the rate already has a burst; keep one of the two")
		return false
	default:
		if limit.Burst, ok = c.parseCount(at, "a burst", text); !ok {
			return false
		}
	}
	if a := limit.Algorithm; a.BurstUse() == algorithm.BurstUnused {
		c.fail(at, "%s has no burst; remove it, or use token-bucket", a.Title())
		return false
	}
	return true
}

func (c *compiler) compileSlots(s shape, at any, text string) (penstock.Limit, bool) {
	n, ok := c.parseCount(at, "a number of requests in flight", text)
	for p, isSet := range map[any]bool{
		s.burst: s.burst.isSet(), s.algorithm: *s.algorithm != "", s.subWindows: *s.subWindows != 0, s.timezone: *s.timezone != "", s.countsDeniedAt: s.countsDenied,
	} {
		if isSet {
			c.fail(p, "this needs a rate, and the limit has in_flight; remove it")
			ok = false
		}
	}
	if c.isWritten(s.ttl) && (*s.ttl < time.Millisecond || *s.ttl > 24*time.Hour) {
		c.fail(s.ttl, "ttl is %s; write a time from 1ms to 24h", wording.Period(*s.ttl))
		ok = false
	}
	return penstock.InFlight(n, cmp.Or(*s.ttl, time.Minute)), ok
}

// parseCount reads a count such as 50, 10_000 or 10k. The message of a mistake calls the count by
// its role.
func (c *compiler) parseCount(at any, role, text string) (int64, bool) {
	digits, factor := strings.NewReplacer("_", "", ",", "").Replace(text), int64(1)
	if number, ok := strings.CutSuffix(digits, "k"); ok {
		digits, factor = number, 1e3
	} else if number, ok := strings.CutSuffix(digits, "M"); ok {
		digits, factor = number, 1e6
	}
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || n < 1 || n > penstock.MaxCost/factor {
		c.fail(at, "%q cannot be %s; write a whole number from 1 to 2^51, such as 50 or 10k", wording.Clip(text), role)
		return 0, false
	}
	return n * factor, true
}

// calendarRate matches rates such as "1000 per calendar month". The groups are the count and the
// calendar period.
var calendarRate = regexp.MustCompile(`^\s*(.*?)\s*(?:/|\bper\b)\s*calendar[ -](day|week|month)\s*$`)

// parseRate reads a rate. For a rate such as "1000 per calendar month" it also returns the calendar
// period: day, week or month. For any other rate, calendar is "".
func parseRate(text string) (limit penstock.Limit, calendar string, err error) {
	m := calendarRate.FindStringSubmatch(text)
	if m == nil {
		limit, err := penstock.ParseRate(text)
		if err != nil && strings.Contains(text, "calendar") {
			err = fmt.Errorf("rate %q is not understood; write it as 1000 per calendar day, week or month", wording.Clip(text))
		}
		return limit, "", err
	}
	count, unit := m[1], m[2]
	limit, err = penstock.ParseRate(count + " per day") // the period is replaced below
	if err != nil {
		_, why, _ := strings.Cut(reason(err), ": ")
		err = fmt.Errorf("rate %q: %s", wording.Clip(text), why)
	}
	limit.Name, limit.Period = "calendar-"+unit, calendarUnits[unit].Period()
	return limit, unit, err
}

var calendarUnits = map[string]algorithm.CalendarUnit{"day": algorithm.Day, "week": algorithm.Week, "month": algorithm.Month}

// algorithms are the words that the field algorithm accepts. Slots have no word, because they are
// written as in_flight. The word sub-window has no Algorithm here, because compileAlgorithm makes
// one for the number of sub-windows.
var algorithms = func() map[string]*algorithm.Algorithm {
	words := map[string]*algorithm.Algorithm{"gcra": penstock.TokenBucket, "sub-window": nil}
	for _, a := range algorithm.All() {
		if !a.NeedsHolder() {
			words[a.Title()] = a
		}
	}
	return words
}()

// knownAlgorithms returns the built-in algorithms and the program's own ones, by their words.
func (c *compiler) knownAlgorithms(own []*algorithm.Algorithm) map[string]*algorithm.Algorithm {
	known := maps.Clone(algorithms)
	for _, a := range own {
		if a == nil {
			c.fail(c.config, "Options.Algorithms has a nil; remove it")
			continue
		}
		switch taken, isTaken := known[a.Title()]; {
		case taken != nil && taken.Title() != a.Title(): // gcra
			c.fail(c.config, "Options.Algorithms has an algorithm called %[1]q, which policies read as %[2]s; give it another title, such as my-%[1]s", a.Title(), taken.Title())
		case isTaken:
			c.fail(c.config, "Options.Algorithms has a second algorithm called %q; give it another title", a.Title())
		default:
			known[a.Title()] = a
		}
	}
	return known
}

// compileAlgorithm returns the algorithm of a limit. calendar is the calendar period of its rate,
// or "".
func (c *compiler) compileAlgorithm(s shape, calendar string) (*algorithm.Algorithm, bool) {
	if *s.timezone != "" && calendar == "" {
		c.fail(s.timezone, "timezone needs a calendar rate, such as 1000 per calendar month; remove it, or change the rate")
	}
	if c.isWritten(s.subWindows) && *s.algorithm != "sub-window" {
		c.fail(s.subWindows, "sub_windows belong to algorithm: sub-window; remove them, or change the algorithm")
	}
	if calendar != "" {
		return c.compileCalendar(s, calendar)
	}
	if *s.algorithm == "" {
		return penstock.TokenBucket, true
	}
	a, ok := c.algorithms[*s.algorithm]
	if !ok {
		c.fail(s.algorithm, "there is no algorithm %q; %s", wording.Clip(*s.algorithm), suggest(*s.algorithm, c.algorithms))
		return nil, false
	}
	if *s.algorithm != "sub-window" {
		return a, true
	}
	if c.isWritten(s.subWindows) && !c.unreadable[s.subWindows] && !fieldvalues.SubWindows.Has(int64(*s.subWindows)) {
		c.fail(s.subWindows, "a window cannot have %d sub-windows; write %v", *s.subWindows, fieldvalues.SubWindows)
		return nil, false
	}
	return penstock.SubWindow(cmp.Or(*s.subWindows, defaultSubWindows)), true
}

// compileCalendar returns the algorithm of a calendar rate. unit is day, week or month.
func (c *compiler) compileCalendar(s shape, unit string) (*algorithm.Algorithm, bool) {
	if *s.algorithm != "" {
		c.fail(s.algorithm, "a calendar rate has its own windows; remove algorithm, or write the period without calendar")
	}
	zone, err := time.LoadLocation(cmp.Or(*s.timezone, "UTC"))
	if err != nil || *s.timezone == "Local" {
		c.fail(s.timezone, "there is no time zone %q; write one such as Europe/Berlin or UTC", wording.Clip(*s.timezone))
		return nil, false
	}
	return penstock.CalendarWindow(calendarUnits[unit], zone), true
}
