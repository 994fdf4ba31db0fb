// Package replay decides the requests of access logs by a policy, and reports whom it would have
// denied.
package replay

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"golang.org/x/net/http/httpguts"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/admission"
	"github.com/penstock/penstock/cmd/penstock/internal/text/redact"
	"github.com/penstock/penstock/cmd/penstock/internal/tools/accesslog"
	"github.com/penstock/penstock/internal/wording"
	"github.com/penstock/penstock/policy"
)

// The bounds of a replay.
const (
	maxIdentities = 1_000_000
	maxListed     = 20 // identities in a report
	maxRetries    = 3  // of one request
)

// Options configure Run.
type Options struct {
	Log *accesslog.Reader

	// Rules are the policy. Old is another one to compare with, or nil.
	Rules, Old *policy.Rules

	// ShouldRetry sends a denied request again after its RetryAfter, at most three times. By default
	// the request is gone.
	ShouldRetry bool

	// Headers are added to each request. Default: none.
	Headers []Header

	// ShowsIdentities shows the keys in full. By default they are masked.
	ShowsIdentities bool
}

// A Header is a header of each request: either a fixed value, or that of the user in the log.
type Header struct {
	Name, Value string
	IsUser      bool
}

// A Report is what a replay found.
type Report struct {
	Log          accesslog.Stats `json:"log"`
	Denied429    int64           `json:"status_429"` // requests that the log says were denied
	Policy       *Result         `json:"policy"`
	Old          *Result         `json:"old_policy,omitempty"`
	OnlyOld      int64           `json:"denied_only_by_old_policy,omitempty"` // requests that only the old policy denied
	OnlyNew      int64           `json:"denied_only_by_policy,omitempty"`     // requests that the old policy did not deny
	Differences  []Difference    `json:"differences,omitempty"`               // the identities with the most requests that only one policy denied
	NeedsHeaders []Need          `json:"needs_headers"`                       // that no line has
	Undecided    []Need          `json:"undecided"`                           // limits that need a duration or a status, which no line has

	// WithoutAddress is how many requests have no address in the log. They count as those of one
	// client.
	WithoutAddress int64 `json:"without_address"`
}

// A Difference counts the requests of one identity that only one of the policies denied. The
// identity is that of the rule that denied.
type Difference struct {
	Rule    string `json:"rule"`
	Key     string `json:"key"`
	OnlyOld int64  `json:"denied_only_by_old_policy"`
	OnlyNew int64  `json:"denied_only_by_policy"`
}

// A Need is a part of requests that a rule reads and no line of the log has.
type Need struct {
	Rule   string `json:"rule"`
	Limit  string `json:"limit,omitempty"`
	Source string `json:"source"` // as policy files write it, or what of the response is missing
}

// A Result counts what one policy decided.
type Result struct {
	Requests int64            `json:"requests"` // without retries
	Outcomes map[string]int64 `json:"outcomes"` // of the first tries
	Retries  int64            `json:"retries"`
	Later    int64            `json:"admitted_by_retry"` // denied requests that a retry admitted
	Denied   int64            `json:"denied"`            // first tries

	// DeniedIfSpread is Denied if each client spread its requests over the second of their time stamp.
	// It is nil if the log has finer time stamps, and with retries.
	DeniedIfSpread *int64 `json:"denied_if_spread,omitempty"`

	Identities       int64            `json:"identities"` // each counts once, however many rules have it
	DeniedIdentities int64            `json:"denied_identities"`
	Merged           int64            `json:"requests_without_identity"` // beyond the first million identities of rules
	LongestWait      float64          `json:"longest_wait"`              // seconds
	Demand           accesslog.Demand `json:"demand"`                    // of the first tries
	Rules            []Rule           `json:"rules"`
	Limits           []Limit          `json:"limits"`      // that have decided requests
	Top              []Identity       `json:"most_denied"` // the most denied identities first
}

// A Rule counts the requests for which a limit of the rule mattered most: it denied the request, or
// has the least left.
type Rule struct {
	Name             string    `json:"name"`
	Requests         int64     `json:"requests"`
	Denied           int64     `json:"denied"`
	Identities       int64     `json:"identities"`
	DeniedIdentities int64     `json:"denied_identities"`
	FirstDenied      time.Time `json:"first_denied,omitzero"`
	WorstMinute      time.Time `json:"worst_minute,omitzero"`
	WorstDenied      int64     `json:"worst_minute_denied"`
	ShadowDenied     int64     `json:"shadow_denied"` // requests that a shadow or candidate would deny

	minute       time.Time
	minuteDenied int64
}

// A Limit counts the requests for which it mattered most. A shadow or a candidate counts all that
// it decided. The dashboard reads the JSON.
type Limit struct {
	Rule             string `json:"rule"`
	Limit            string `json:"limit"`
	Requests         int64  `json:"requests"`
	Denied           int64  `json:"denied"`
	DeniedIdentities int64  `json:"denied_identities"`
}

// An Identity counts the requests of one key of a rule.
type Identity struct {
	Rule     string    `json:"rule"`
	Key      string    `json:"key"`
	Requests int64     `json:"requests"`
	Denied   int64     `json:"denied"`
	First    time.Time `json:"first_denied,omitzero"`
	Longest  float64   `json:"longest_denied"` // the longest series of denials without a grant, in seconds

	since time.Time // the first denial after the last grant
}

// Run decides all requests of a log.
func Run(ctx context.Context, o Options) (*Report, error) {
	r := &replayer{options: o, headers: make(map[string]bool), differences: make(map[identityKey]*Difference)}
	var err error
	for _, rules := range []*policy.Rules{o.Rules, o.Old} {
		if rules == nil {
			continue
		}
		t, err := newTally(rules, o.ShouldRetry)
		if err != nil {
			return nil, err
		}
		r.tallies = append(r.tallies, t)
	}
	if r.spreadDecider, err = newDecider(o.Rules); err != nil {
		return nil, err
	}
	for {
		e, err := o.Log.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err = cmp.Or(err, ctx.Err()); err != nil {
			return nil, err
		}
		r.add(e)
	}
	r.decideSpread()
	return r.finish(), nil
}

// A replayer runs one replay.
type replayer struct {
	options     Options
	report      Report
	tallies     []*tally        // of the policy, and of the old one
	headers     map[string]bool // the names of the headers that requests had
	rejected    int64           // entries whose target is no path
	differences map[identityKey]*Difference

	// If the log has whole seconds only, spreadDecider decides all requests again. Then the requests
	// of a client are spread over their second.
	spreadDecider *decider
	sameSecond    []*accesslog.Entry // the latest requests, which have one time stamp
	spreadDenied  int64              // how many requests spreadDecider has denied
}

func (r *replayer) add(e *accesslog.Entry) {
	for _, h := range r.options.Headers {
		value := h.Value
		if h.IsUser {
			value = e.User
		}
		if value != "" {
			e.Headers = append(e.Headers, accesslog.Header{Name: h.Name, Value: value})
		}
	}
	for _, h := range e.Headers {
		r.headers[h.Name] = true
	}
	if e.Status == http.StatusTooManyRequests {
		r.report.Denied429++
	}
	if newRequest(e) == nil {
		r.rejected++
		return
	}
	if !e.Address.IsValid() {
		r.report.WithoutAddress++
	}
	seen := r.tallies[0].first(e)
	if len(r.tallies) > 1 {
		r.compare(seen, r.tallies[1].first(e))
	}
	if len(r.sameSecond) > 0 && !r.sameSecond[0].Time.Equal(e.Time) {
		r.decideSpread()
	}
	if r.isCoarse() {
		r.sameSecond = append(r.sameSecond, e)
	}
}

// compare counts a request that only one of the policies denied.
func (r *replayer) compare(policy, old decision) {
	of := func(d decision) *Difference {
		return counted(r.differences, identityKey{d.rule, d.key}, Difference{Rule: d.rule, Key: d.key})
	}
	switch isOld := isDenial(old.outcome); {
	case isDenial(policy.outcome) == isOld:
	case isOld:
		r.report.OnlyOld++
		of(old).OnlyOld++
	default:
		r.report.OnlyNew++
		of(policy).OnlyNew++
	}
}

// counted returns the counts of a key. If there are too many keys, it returns counts that are
// dropped.
func counted[K comparable, V any](all map[K]*V, key K, zero V) *V {
	if count := all[key]; count != nil {
		return count
	}
	count := zero
	if len(all) < maxIdentities {
		all[key] = &count
	}
	return &count
}

// isCoarse reports whether spreadDecider decides the requests too: all times of the log are whole
// seconds, and no request is sent again.
func (r *replayer) isCoarse() bool {
	return !r.options.ShouldRetry && r.options.Log.Stats().Resolution >= time.Second
}

// decideSpread lets spreadDecider decide the requests of sameSecond. The requests of one client are
// spread over the second with equal gaps.
func (r *replayer) decideSpread() {
	count, sent := make(map[string]int), make(map[string]int)
	for _, e := range r.sameSecond {
		count[clientOf(e)]++
	}
	type timed struct {
		at time.Time
		e  *accesslog.Entry
	}
	var all []timed
	for _, e := range r.sameSecond {
		c := clientOf(e)
		all = append(all, timed{e.Time.Add(time.Second * time.Duration(sent[c]) / time.Duration(count[c])), e})
		sent[c]++
	}
	slices.SortStableFunc(all, func(a, b timed) int { return a.at.Compare(b.at) })
	for _, one := range all {
		r.spreadDecider.clock.Advance(one.at)
		if isDenial(r.spreadDecider.send(newRequest(one.e), one.e).outcome) {
			r.spreadDenied++
		}
	}
	r.sameSecond = r.sameSecond[:0]
}

// clientOf returns a text that differs between clients.
func clientOf(e *accesslog.Entry) string { return e.Address.String() + " " + e.User }

// isDenial reports whether limits denied a request.
func isDenial(o admission.Outcome) bool {
	return o == admission.Denied || o == admission.DeniedNewIdentity
}

func (r *replayer) finish() *Report {
	report := &r.report
	report.Log, report.NeedsHeaders, report.Undecided = r.options.Log.Stats(), []Need{}, []Need{}
	report.Log.Rejected += r.rejected
	report.Log.Requests -= r.rejected
	report.Policy = r.tallies[0].finish(r.options.ShowsIdentities)
	if r.isCoarse() {
		report.Policy.DeniedIfSpread = &r.spreadDenied
	}
	if len(r.tallies) > 1 {
		report.Old = r.tallies[1].finish(r.options.ShowsIdentities)
		report.Differences = r.listDifferences()
	}
	for _, rule := range r.options.Rules.Spec().Rules {
		seen := make(map[string]bool)
		for _, l := range rule.Limits {
			switch {
			case l.Variants[0].Algorithm().NeedsHolder() && !report.Log.Durations:
				report.Undecided = append(report.Undecided, Need{rule.Name, l.Name, "duration"})
			case l.Status != nil && !report.Log.Statuses:
				report.Undecided = append(report.Undecided, Need{rule.Name, l.Name, "status"})
			}
			for _, source := range sourcesOf(l.Key) {
				text := source.String()
				isMissing := source.Kind == policy.KindClaim || source.Kind == policy.KindCookie && !r.headers["Cookie"] ||
					source.Kind == policy.KindHeader && !r.headers[http.CanonicalHeaderKey(source.Name)]
				if isMissing && !seen[text] {
					seen[text] = true
					report.NeedsHeaders = append(report.NeedsHeaders, Need{Rule: rule.Name, Source: text})
				}
			}
		}
	}
	return report
}

// listDifferences returns the identities with the most requests that only one policy denied.
func (r *replayer) listDifferences() (all []Difference) {
	for _, d := range r.differences {
		all = append(all, *d)
	}
	slices.SortFunc(all, func(a, b Difference) int {
		return cmp.Or(cmp.Compare(b.OnlyOld+b.OnlyNew, a.OnlyOld+a.OnlyNew), cmp.Compare(a.Rule, b.Rule), cmp.Compare(a.Key, b.Key))
	})
	all = all[:min(len(all), maxListed)]
	for i := range all {
		all[i].Key = shown(all[i].Key, r.options.ShowsIdentities)
	}
	return all
}

// sourcesOf returns all sources of an identity.
func sourcesOf(id *policy.Identity) (all []policy.Source) {
	if id.Source.Kind != policy.KindNone {
		all = append(all, id.Source)
	}
	for _, part := range slices.Concat(id.FirstOf, id.AllOf) {
		all = append(all, sourcesOf(part)...)
	}
	return all
}

// A tally decides requests by one policy, and counts.
type tally struct {
	decider     *decider
	rules       *policy.Rules
	shouldRetry bool
	result      Result
	byRule      map[string]*Rule
	byKey       map[identityKey]*Identity
	byLimit     map[limitKey]*Limit
	hit         map[hit]bool // at most maxIdentities
}

type limitKey struct{ rule, limit string }

// A hit is an identity that a limit has denied.
type hit struct {
	limitKey
	key string
}

type identityKey struct{ rule, key string }

func newTally(rules *policy.Rules, shouldRetry bool) (*tally, error) {
	d, err := newDecider(rules)
	t := &tally{decider: d, rules: rules, shouldRetry: shouldRetry, byRule: make(map[string]*Rule), byKey: make(map[identityKey]*Identity),
		byLimit: make(map[limitKey]*Limit), hit: make(map[hit]bool)}
	t.result.Outcomes = make(map[string]int64)
	return t, err
}

// first decides the first try of a request.
func (t *tally) first(e *accesslog.Entry) decision {
	t.decider.clock.Advance(e.Time)
	t.result.Requests++
	seen := t.send(e, 0)
	t.result.Outcomes[seen.outcome.String()]++
	t.result.Demand.Add(t.decider.clock.Now(), isDenial(seen.outcome))
	if isDenial(seen.outcome) {
		t.result.Denied++
	}
	return seen.decision
}

// send decides one try of a request.
func (t *tally) send(e *accesslog.Entry, retries int) observation {
	seen := t.decider.send(newRequest(e), e)
	t.count(&seen)
	if t.shouldRetry && isDenial(seen.outcome) && retries < maxRetries && seen.retryAfter > 0 && seen.retryAfter != penstock.Never {
		t.decider.clock.Schedule(t.decider.clock.Now().Add(seen.retryAfter), func() {
			t.result.Retries++
			if !isDenial(t.send(e, retries+1).outcome) {
				t.result.Later++
			}
		})
	}
	return seen
}

func (t *tally) count(seen *observation) {
	t.result.LongestWait = max(t.result.LongestWait, seen.wait.Seconds())
	for i := range seen.shadows {
		d := &seen.shadows[i]
		t.countLimit(d)
		if d.outcome == admission.ShadowDenied {
			t.rule(d.rule).ShadowDenied++
		}
	}
	if seen.rule == "" {
		return
	}
	t.countLimit(&seen.decision)
	now, isDenied := t.decider.clock.Now(), isDenial(seen.outcome)
	rule := t.rule(seen.rule)
	rule.Requests++
	if isDenied {
		rule.deny(now)
	}
	k := identityKey{seen.rule, seen.key}
	id := counted(t.byKey, k, Identity{Rule: k.rule, Key: k.key})
	if t.byKey[k] != id {
		t.result.Merged++
		return
	}
	if id.Requests++; id.Requests == 1 {
		rule.Identities++
	}
	if !isDenied {
		id.since = time.Time{}
		return
	}
	if id.Denied++; id.Denied == 1 {
		id.First = now
		rule.DeniedIdentities++
	}
	if id.since.IsZero() {
		id.since = now
	}
	id.Longest = max(id.Longest, now.Sub(id.since).Seconds())
}

func (t *tally) countLimit(d *decision) {
	k := limitKey{d.rule, d.limit}
	l := counted(t.byLimit, k, Limit{Rule: d.rule, Limit: d.limit})
	l.Requests++
	if !isDenial(d.outcome) && d.outcome != admission.ShadowDenied {
		return
	}
	l.Denied++
	if h := (hit{k, d.key}); !t.hit[h] && len(t.hit) < maxIdentities {
		t.hit[h] = true
		l.DeniedIdentities++
	}
}

func (t *tally) rule(name string) *Rule { return counted(t.byRule, name, Rule{Name: name}) }

func (r *Rule) deny(now time.Time) {
	if r.Denied++; r.Denied == 1 {
		r.FirstDenied = now
	}
	if minute := now.Truncate(time.Minute); !minute.Equal(r.minute) {
		r.minute, r.minuteDenied = minute, 0
	}
	if r.minuteDenied++; r.minuteDenied > r.WorstDenied {
		r.WorstMinute, r.WorstDenied = r.minute, r.minuteDenied
	}
}

// finish lets the last requests and retries end, and returns the result.
func (t *tally) finish(showsIdentities bool) *Result {
	for t.decider.clock.Next() {
	}
	r := &t.result
	r.Rules, r.Limits, r.Top = []Rule{}, []Limit{}, []Identity{}
	for _, rule := range t.rules.Spec().Rules {
		if counted := t.byRule[rule.Name]; counted != nil {
			r.Rules = append(r.Rules, *counted)
		} else if !rule.Unlimited {
			r.Rules = append(r.Rules, Rule{Name: rule.Name})
		}
	}
	isDenied := make(map[string]bool) // by key: several rules may have the same identities
	for _, id := range t.byKey {
		isDenied[id.Key] = isDenied[id.Key] || id.Denied > 0
		if id.Denied > 0 {
			r.Top = append(r.Top, *id)
		}
	}
	r.Identities = int64(len(isDenied))
	for _, is := range isDenied {
		if is {
			r.DeniedIdentities++
		}
	}
	slices.SortFunc(r.Top, func(a, b Identity) int {
		return cmp.Or(cmp.Compare(b.Denied, a.Denied), cmp.Compare(a.Rule, b.Rule), cmp.Compare(a.Key, b.Key))
	})
	r.Top = r.Top[:min(len(r.Top), maxListed)]
	for i := range r.Top {
		r.Top[i].Key = shown(r.Top[i].Key, showsIdentities)
	}
	for _, l := range t.byLimit {
		r.Limits = append(r.Limits, *l)
	}
	slices.SortFunc(r.Limits, func(a, b Limit) int {
		return cmp.Or(cmp.Compare(a.Rule, b.Rule), cmp.Compare(a.Limit, b.Limit))
	})
	return r
}

// shown returns a key as a report shows it.
func shown(key string, isFull bool) string {
	switch {
	case key == "ip:"+unknownAddress.String():
		return "(no address)"
	case isFull:
		return key
	}
	return redact.Mask(key)
}

// ParseHeader reads a header that is added to each request: Name: value, or Name: $remote_user.
func ParseHeader(text string) (Header, error) {
	name, value, ok := strings.Cut(text, ":")
	value = strings.TrimSpace(value)
	switch isUser := value == "$remote_user"; {
	case !ok || !httpguts.ValidHeaderFieldName(name) || !httpguts.ValidHeaderFieldValue(value) || value == "":
		return Header{}, fmt.Errorf("%q is no header; write a name and a value, as in 'X-API-Key: $remote_user'", wording.Clip(text))
	case strings.Contains(value, "$") && !isUser:
		return Header{}, fmt.Errorf("the header %q has a variable that is not known; only $remote_user is, as the whole value. Headers that the log has need no --header: write --format with $http_x_api_key", wording.Clip(text))
	}
	return Header{http.CanonicalHeaderKey(name), value, value == "$remote_user"}, nil
}
