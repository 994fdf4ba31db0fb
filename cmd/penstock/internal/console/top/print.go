package top

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/admission"
	"github.com/penstock/penstock/cmd/penstock/internal/console/activity"
	"github.com/penstock/penstock/cmd/penstock/internal/console/adminapi"
	"github.com/penstock/penstock/cmd/penstock/internal/console/keylimits"
	"github.com/penstock/penstock/cmd/penstock/internal/text/printable"
	"github.com/penstock/penstock/guard"
)

type View struct {
	Width  int    // columns, at which lines are cut; 0: no line is cut
	Height int    // number of lines; 0: all
	IsBold bool   // whether important lines are bold, by ANSI sequences
	Notice string // the first line, such as why the numbers are old
}

// Widths in columns. Tables are at least minWidth wide. A View without a width gets tables of
// usualWidth, whose columns grow to their longest text.
const minWidth, usualWidth = 72, 80

// Print returns the snapshot as lines without a newline. No line is wider than the view.
func (s *Snapshot) Print(v View) []string {
	p := &printer{View: v, snapshot: s, maxLine: max(v.Width, 1)}
	if v.Width == 0 {
		p.showsAll, p.Width, p.maxLine = true, usualWidth, math.MaxInt
	}
	p.Width = max(p.Width, minWidth)
	if v.Notice != "" {
		p.printStrong("%s", printable.Line(v.Notice))
	}
	self, uptime := s.self()
	p.printLine("penstock %s on %s, up %s, policy %s, %s", printable.Line(self.Version), printable.Line(cmp.Or(self.Host, "this machine")), uptime.Truncate(time.Second),
		printable.Line(cmp.Or(self.Digest, "none")), s.State.Time.Local().Format(time.TimeOnly))
	p.printStore()
	p.printRules()
	p.printOffenders()
	p.printInstances()
	if v.Height > 0 && len(p.lines) > v.Height {
		p.lines = p.lines[:v.Height]
	}
	return p.lines
}

type printer struct {
	View     // with the Width of tables, which is at least minWidth, even if maxLine is smaller
	snapshot *Snapshot
	maxLine  int  // the width at which lines are cut, in columns
	showsAll bool // whether no line is cut
	lines    []string
}

// columnWidth returns the width of a column: width, or that of the longest text if no line is cut.
func (p *printer) columnWidth(width int, texts ...string) int {
	for _, text := range texts {
		if p.showsAll {
			width = max(width, len([]rune(printable.Line(text)))+1)
		}
	}
	return width
}

func (p *printer) printLine(format string, args ...any) {
	p.lines = append(p.lines, fit(fmt.Sprintf(format, args...), p.maxLine))
}

// printStrong prints a text that operators must not miss, in bold if the view allows that. The text
// may break into several lines.
func (p *printer) printStrong(format string, args ...any) {
	first := len(p.lines)
	p.printWrapped(fmt.Sprintf(format, args...))
	for i := first; p.IsBold && i < len(p.lines); i++ {
		p.lines[i] = "\x1b[1m" + p.lines[i] + "\x1b[0m"
	}
}

// printStore prints whether the store decides. If the store fails, printStore also prints how much
// the limits may admit.
func (p *printer) printStore() {
	s := &p.snapshot.State
	o := p.snapshot.outage()
	switch {
	case o.isRecovering:
		p.printStrong("store      %s recovering: its breaker was open within the last 2 s: %s", printable.Line(s.Store.Name), printable.Line(o.reason))
	case o.isFailing:
		p.printStrong("store      %s FAILING: %s", printable.Line(s.Store.Name), printable.Line(o.reason))
	case s.Store.IsFailing:
		p.printStrong("store      %s decides again; it failed within the last 10 s: %s", printable.Line(s.Store.Name), printable.Line(o.reason))
	default:
		p.printLine("store      %s ok", printable.Line(s.Store.Name))
	}
	for _, node := range slices.Sorted(maps.Keys(s.Store.Breakers)) {
		switch state := s.Store.Breakers[node]; state {
		case guard.StateClosed.String():
			if len(s.Store.Breakers) == 1 { // of several breakers, only those that are not closed are shown
				p.printLine("breaker    closed")
			}
		case guard.StateOpen.String():
			p.printStrong("breaker    %s open: the server is not called", printable.Line(node))
		default:
			p.printStrong("breaker    %s %s: a few requests test the server", printable.Line(node), strings.ReplaceAll(printable.Line(state), "_", " "))
		}
	}
	if m := s.Store.Memory; m != nil && m.CanEvict {
		p.printStrong("memory     the server may delete counters: maxmemory-policy is %s", printable.Line(m.Policy))
	}
	p.printWrapped("answers    " + p.snapshot.answers())
	for _, c := range s.Health.Checks {
		switch {
		case c.Status != "ok":
			p.printWrapped(fmt.Sprintf("health     %s: %s %s", printable.Line(s.Health.Status), printable.Line(c.Name), printable.Line(c.Detail)))
		case c.Detail != "": // such as a failed reload: the instance is healthy, but has the old rules
			p.printStrong("%-10s %s", printable.Line(c.Name), printable.Line(c.Detail))
		}
	}
	if o.isFailing {
		p.printExcess(s.Store.Instances)
	}
}

const maxExcess = 8

// printExcess prints how much more than their limits the instances may admit while the store fails,
// and when it returns.
func (p *printer) printExcess(instances int) {
	p.printLine("")
	p.printStrong("WITHOUT THE STORE, %s may admit beyond the limits:", counted(instances, "instance"))
	named := 0
	for _, r := range p.snapshot.Rules.Rules {
		for _, l := range r.Limits {
			if l.Kind != keylimits.Enforced {
				continue
			}
			named++
			if named > maxExcess {
				continue
			}
			for _, b := range l.Bounds {
				if b.When == storeFails || b.When == storeReturns {
					when := strings.Replace(b.When, "store ", "while it ", 1)
					p.printWrapped(fmt.Sprintf("  %s, %s: %s", printable.Line(r.Name+"."+l.Name), when, printable.Line(b.Text)))
				}
			}
		}
	}
	if named > maxExcess {
		p.printLine("  and %d more limits; penstock explain shows their bounds", named-maxExcess)
	}
}

// The values of adminapi.Bound.When for an outage.
const storeFails, storeReturns = "store fails", "store returns"

// printWrapped prints a text, and breaks it between words into lines of p.Width. It indents all
// lines but the first. Spaces between words are kept.
func (p *printer) printWrapped(text string) {
	const indent = "    "
	rest := []rune(strings.TrimRight(text, " "))
	for len(rest) > p.Width {
		end := p.Width
		for end > len(indent) && rest[end] != ' ' {
			end--
		}
		if end == len(indent) || strings.TrimSpace(string(rest[:end])) == "" { // a word longer than the line
			break
		}
		p.printLine("%s", string(rest[:end]))
		rest = []rune(indent + strings.TrimLeft(string(rest[end:]), " "))
	}
	p.printLine("%s", string(rest))
}

const (
	rateWidth   = 16 // RATE, with a space after it
	numberWidth = 10 // all columns with numbers
	failsWidth  = 12 // STORE FAILS, and STORE of an instance
)

func (p *printer) printRules() {
	const spaces = 2 // before the last column
	titleWidth := p.Width - rateWidth - 3*numberWidth - spaces - failsWidth
	ratesWidth := rateWidth - 1
	for _, r := range p.snapshot.Rules.Rules {
		titleWidth = p.columnWidth(titleWidth, r.Name)
		for _, l := range r.Limits {
			for one := &l; one != nil; one = one.Candidate {
				titleWidth = p.columnWidth(titleWidth, titleOf(r.Name, one))
				for _, r := range one.Rates {
					titleWidth, ratesWidth = p.columnWidth(titleWidth, tierTitle(r)), p.columnWidth(ratesWidth, r.Text)
				}
			}
		}
	}
	printRow := func(limit, rate, allowed, denied, near, fails string) {
		if p.snapshot.State.Store.Name == memoryStore { // it cannot fail
			fails = ""
		}
		p.printLine("%s %s%s%s%s  %s", pad(limit, titleWidth), pad(rate, ratesWidth), alignRight(allowed, numberWidth), alignRight(denied, numberWidth), alignRight(near, numberWidth), fails)
	}
	p.printLine("")
	printRow("LIMIT", "RATE", "ALLOWED/s", "DENIED/s", "NEAR/s", "STORE FAILS")
	rates := p.snapshot.rates()
	for _, r := range p.snapshot.Rules.Rules {
		if len(r.Limits) == 0 {
			printRow(printable.Line(r.Name), "unlimited", "", "", "", "")
		}
		for _, l := range r.Limits {
			for _, one := range []*adminapi.Limit{&l, l.Candidate} {
				if one == nil {
					continue
				}
				n, rate := rates[limitName{r.Name, one.Name}], "by tier"
				if len(one.Rates) == 1 {
					rate = one.Rates[0].Text
				}
				printRow(printable.Line(titleOf(r.Name, one)), printable.Line(rate), n.allowed.String(), n.denied.String(), n.near.String(), failureOf(one))
				for _, r := range one.Rates {
					if r.Tier != "" {
						printRow(printable.Line(tierTitle(r)), printable.Line(r.Text), "", "", "", "")
					}
				}
			}
		}
	}
	p.printWrapped("All limits that apply charge a request, and one counts it: the one that denies it, or has least left.")
}

func tierTitle(r adminapi.Rate) string { return "  tier " + r.Tier }

// memoryStore is the name of the store in the instance's memory.
const memoryStore = "memory"

func titleOf(rule string, l *adminapi.Limit) string {
	if l.Kind == keylimits.Shadow {
		return rule + "." + l.Name + " (shadow)"
	}
	return rule + "." + l.Name
}

// failureOf describes what a limit does while the store fails, such as "local +2": its fallback,
// and the most units that it then admits beyond the limit. "any" is an unlimited number of units.
// With a ceiling, this number is not known.
func failureOf(l *adminapi.Limit) string {
	if l.Kind != keylimits.Enforced {
		return "-"
	}
	for _, b := range l.Bounds {
		switch {
		case b.When != storeFails:
		case l.Ceiling != "":
			return l.OnFailure + " ceiling"
		case b.Over == nil:
			return l.OnFailure + " any"
		default:
			return fmt.Sprintf("%s +%d", l.OnFailure, *b.Over)
		}
	}
	return l.OnFailure
}

func (p *printer) printOffenders() {
	o := &p.snapshot.Offenders
	p.printLine("")
	p.printLine("DENIED MOST in %s, of %s", printable.Line(o.Window), counted(max(o.Instances, 1), "instance"))
	if o.Identities == adminapi.ShowOff {
		p.printLine("shown_identities is off")
		return
	}
	if len(o.Offenders) == 0 {
		p.printLine("nobody")
		return
	}
	const maxShown = 10
	shown := o.Offenders[:min(len(o.Offenders), maxShown)]
	const spaces = 2 // after the key, and at the end
	limitWidth := (p.Width - 2*numberWidth - spaces) / 2
	keyWidth := p.Width - limitWidth - 2*numberWidth - spaces
	for _, one := range shown {
		limitWidth, keyWidth = p.columnWidth(limitWidth, one.Rule+"."+one.Limit), p.columnWidth(keyWidth, one.Identity)
	}
	p.printLine("%s %s%s%s", pad("KEY", keyWidth), pad("LIMIT", limitWidth), alignRight("AT LEAST", numberWidth), alignRight("AT MOST", numberWidth))
	for _, one := range shown {
		p.printLine("%s %s%s%s", pad(printable.Line(one.Identity), keyWidth), pad(printable.Line(one.Rule+"."+one.Limit), limitWidth),
			alignRight(fmt.Sprint(one.AtLeast), numberWidth), alignRight(fmt.Sprint(one.AtMost), numberWidth))
	}
	if d := o.Distinct; d != nil && d.Count > maxShown {
		p.printLine("about %d different keys were denied", d.Count)
	}
}

func (p *printer) printInstances() {
	i := &p.snapshot.Instances
	p.printLine("")
	p.printLine("INSTANCES %d shown, %d registered", len(i.Instances), i.Registered)
	if i.Problem != "" {
		p.printLine("only this one is shown: %s", printable.Line(i.Problem))
	}
	versionWidth, policyWidth := 13, 14 // enough for most versions, and for the 12 digits of a digest
	hostWidth := p.Width - versionWidth - policyWidth - 2*numberWidth - failsWidth - 3
	names := namesOf(i.Instances)
	for n, one := range i.Instances {
		hostWidth = p.columnWidth(hostWidth, names[n])
		versionWidth = p.columnWidth(versionWidth, one.Version)
		policyWidth = p.columnWidth(policyWidth, one.Digest)
	}
	p.printLine("%s %s%s%s%s  %s", pad("HOST", hostWidth), pad("VERSION", versionWidth), pad("POLICY", policyWidth), alignRight("UP", numberWidth), alignRight("DENIED/s", numberWidth), "STORE")
	for n, one := range i.Instances {
		denied := rate(0)
		for _, c := range one.Counts {
			if isDenied(c.Name) {
				denied += perSecond(c)
			}
		}
		p.printLine("%s %s%s%s%s  %s", pad(printable.Line(names[n]), hostWidth), pad(printable.Line(one.Version), versionWidth), pad(printable.Line(one.Digest), policyWidth),
			alignRight(uptimeOf(p.snapshot.State.Time.Sub(one.Started)), numberWidth), alignRight(denied.String(), numberWidth), printable.Line(cmp.Or(one.Reason, "ok")))
	}
}

// namesOf returns the names of the instances: their hosts. Instances on one host also have their
// process ID in the name. '*' marks the instance that sent the snapshot.
func namesOf(all []adminapi.Instance) []string {
	onHost := make(map[string]int)
	for _, one := range all {
		onHost[one.Host]++
	}
	var names []string
	for _, one := range all {
		name := cmp.Or(one.Host, one.Name)
		if onHost[one.Host] > 1 && one.PID > 0 {
			name += fmt.Sprintf(" pid %d", one.PID)
		}
		if one.IsSelf {
			name = "*" + name
		}
		names = append(names, name)
	}
	return names
}

func uptimeOf(d time.Duration) string {
	switch {
	case d >= 48*time.Hour:
		return fmt.Sprintf("%dd", d/(24*time.Hour))
	case d >= time.Hour:
		return strings.TrimSuffix(d.Truncate(time.Minute).String(), "0s")
	}
	return d.Truncate(time.Second).String()
}

// An outage is the state of the store: whether it fails now, and why.
type outage struct {
	isFailing    bool
	isRecovering bool // the store works again; all breakers are closed, and one was open in the last seconds
	reason       string
}

// outage returns whether the store fails. The breakers and the health check are not enough: after
// an outage, the check reports for ten more seconds that the store fails. So outage also counts by
// which source the latest requests were decided.
func (s *Snapshot) outage() (o outage) {
	o.reason = s.State.Store.Reason
	isEachBreakerClosed := len(s.State.Store.Breakers) > 0
	for _, state := range s.State.Store.Breakers {
		o.isFailing = o.isFailing || state == guard.StateOpen.String()
		isEachBreakerClosed = isEachBreakerClosed && state == guard.StateClosed.String()
	}
	byFallback, byStore := uint64(0), uint64(0)
	for source, n := range s.sources() {
		switch source {
		case penstock.FromFallback.String(), penstock.FromOpen.String(), penstock.FromClosed.String():
			byFallback += n
		case penstock.FromStore.String():
			byStore += n
		}
	}
	isDegraded := false
	for _, c := range s.State.Health.Checks {
		if c.Name == "store" && c.Status != "ok" {
			isDegraded = true
			o.reason = cmp.Or(o.reason, strings.TrimPrefix(c.Detail, "degraded: "))
			break
		}
	}
	if isDegraded && isEachBreakerClosed && byFallback > 0 && s.wasBreakerOpen() {
		o.isRecovering = true
		return o
	}
	isStoreUsed := byStore > 0 && byFallback == 0
	o.isFailing = o.isFailing || isDegraded && !isStoreUsed
	o.reason = cmp.Or(o.reason, "it gives no answer")
	return o
}

// wasBreakerOpen reports whether an open breaker rejected calls in the older of the last two
// seconds. The newer second does not count: the state may be a second old, so an error in that
// second may belong to an outage that has just begun.
func (s *Snapshot) wasBreakerOpen() bool {
	breakerOpen := activity.ErrorPrefix + penstock.ReasonBreakerOpen.String()
	for _, l := range s.Now.Lines {
		if l.Rule == "" && l.Name == breakerOpen && len(l.Counts) > 1 && l.Counts[0] > 0 { // Counts begins with the oldest second
			return true
		}
	}
	return false
}

// sources returns how many requests were decided by each source in the last seconds.
func (s *Snapshot) sources() map[string]uint64 {
	requests := make(map[string]uint64)
	for _, l := range s.Now.Lines {
		if source, ok := strings.CutPrefix(l.Name, activity.SourcePrefix); ok && l.Rule == "" {
			requests[source] += sum(l.Counts)
		}
	}
	return requests
}

// uncounted returns how many requests passed in the last seconds although a limit that fails open
// did not count them. Another limit may have decided them by the local share.
func (s *Snapshot) uncounted() (n uint64) {
	for _, l := range s.Now.Lines {
		if l.Rule == "" && l.Name == activity.Uncounted {
			n += sum(l.Counts)
		}
	}
	return n
}

func sum(counts []uint32) (total uint64) {
	for _, n := range counts {
		total += uint64(n)
	}
	return total
}

// answers describes by which sources this instance decides its requests, with a rate for each.
func (s *Snapshot) answers() string {
	meanings := map[string]string{
		penstock.FromFallback.String(): "local, by this instance's share", penstock.FromOpen.String(): "admitted uncounted", penstock.FromClosed.String(): "rejected",
		penstock.FromDenyCache.String(): "deny cache",
	}
	var parts []string
	sources := s.sources()
	if n := s.uncounted(); n > sources[penstock.FromOpen.String()] {
		parts = append(parts, fmt.Sprintf("uncounted by a limit that fails open %s/s", rate(n)/nowSeconds))
	}
	// The worst source is printed first. Index returns -1 for the sources that are not bad.
	fromBadToWorst := []string{penstock.FromFallback.String(), penstock.FromClosed.String(), penstock.FromOpen.String()}
	worstFirst := slices.SortedFunc(maps.Keys(sources), func(a, b string) int {
		return cmp.Or(slices.Index(fromBadToWorst, b)-slices.Index(fromBadToWorst, a), cmp.Compare(a, b))
	})
	for _, source := range worstFirst {
		if n := sources[source]; n > 0 {
			parts = append(parts, fmt.Sprintf("%s %s/s", cmp.Or(meanings[source], printable.Line(source)), rate(n)/nowSeconds))
		}
	}
	for _, l := range s.State.Recent.Lines {
		if l.Rule != "" || l.Name != admission.Unlimited.String() {
			continue
		}
		if n := sum(l.Counts[max(len(l.Counts)-nowSeconds, 0):]); n > 0 {
			parts = append(parts, fmt.Sprintf("no limit applies %s/s", rate(n)/nowSeconds))
		}
	}
	if parts == nil {
		return "no requests in the last seconds"
	}
	return strings.Join(parts, ", ")
}

type limitRates struct{ allowed, denied, near rate }

type limitName struct{ rule, limit string }

func (s *Snapshot) rates() map[limitName]limitRates {
	rates := make(map[limitName]limitRates)
	for _, c := range s.State.FleetCounts {
		r := rates[limitName{c.Rule, c.Limit}]
		switch {
		case c.Name == "allowed", c.Name == "failed_open", c.Name == "shadow_allowed":
			r.allowed += perSecond(c)
		case isDenied(c.Name), c.Name == "shadow_denied":
			r.denied += perSecond(c)
		case c.Name == "near_limit":
			r.near += perSecond(c)
		}
		rates[limitName{c.Rule, c.Limit}] = r
	}
	return rates
}

func perSecond(c adminapi.Count) rate { return rate(c.Last10) / 10 }

func isDenied(outcome string) bool {
	return outcome == "denied" || outcome == "failed_closed" || outcome == "denied_new_identity"
}

type rate float64

func (r rate) String() string {
	switch {
	case r == 0:
		return "0"
	case r < 100:
		return fmt.Sprintf("%.1f", float64(r))
	}
	return fmt.Sprintf("%.0f", float64(r))
}

// counted returns a number with its noun, such as "2 instances".
func counted(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// fit cuts a text to a width. Each character counts as one column; those of two are rare.
func fit(text string, width int) string {
	characters := []rune(text)
	if len(characters) <= width {
		return strings.TrimRight(text, " ")
	}
	return string(characters[:width-1]) + "…"
}

// pad cuts a text to a width, or fills it with spaces up to the width.
func pad(text string, width int) string {
	text = fit(text, width)
	return text + strings.Repeat(" ", max(width-len([]rune(text)), 0))
}

// alignRight puts a number at the right end of a column.
func alignRight(text string, width int) string {
	text = fit(text, width-1)
	return strings.Repeat(" ", max(width-len([]rune(text)), 0)) + text
}
