package dashboard

import (
	"cmp"
	"context"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/penstock/penstock/cmd/penstock/internal/console/activity"
	"github.com/penstock/penstock/cmd/penstock/internal/console/adminapi"
	"github.com/penstock/penstock/cmd/penstock/internal/console/explain"
	"github.com/penstock/penstock/cmd/penstock/internal/console/keylimits"
)

// A page has one path. If make returns a body and an error, the page shows both.
type page struct {
	path, Title, template string
	make                  func(h *Handler, ctx context.Context, v adminapi.Viewer, q url.Values) (any, error)
}

func (p page) Path() string { return p.path }

const overviewPath = "dashboard"

// pages are in the order of the navigation. init sets them. An initializer would be a cycle,
// because the functions of pages refer to this variable.
var pages []page

func init() {
	pages = []page{
		{path: overviewPath, Title: "Overview", template: "overview", make: (*Handler).overview},
		{path: "rules", Title: "Rules", template: "rules", make: (*Handler).rules},
		{path: "timeline", Title: "Timeline", template: "timeline", make: (*Handler).timeline},
		{path: "offenders", Title: "Offenders", template: "offenders", make: (*Handler).offenders},
		{path: "key", Title: "Key", template: "key", make: (*Handler).key},
		{path: "explain", Title: "Explain", template: "explain", make: (*Handler).explain},
		{path: "health", Title: "Health", template: "health", make: (*Handler).health},
	}
}

type overview struct {
	Span       string   // seconds or minutes
	Rule       string   // only this rule in the chart of requests; "": all
	RuleNames  []string // to choose from
	Rates      counts   // of all instances, in the last 10 seconds
	Charts     []chart
	Events     []adminapi.TimelineEvent // in the time of the charts
	Limits     []limitRow
	MoreLimits int
	Instances  adminapi.Instances
}

// The most limits and rules that a page lists. If the URL names another rule, it is listed too.
const (
	maxLimitRows = 15
	maxRules     = 200
)

func (h *Handler) overview(ctx context.Context, v adminapi.Viewer, q url.Values) (any, error) {
	state := h.API.ReadState(ctx)
	o := overview{Span: cmp.Or(q.Get("span"), "seconds"), Rule: q.Get("rule")}
	for _, c := range state.FleetCounts {
		o.Rates.add(c.Name, c.Last10)
	}
	for _, r := range h.API.Policy.Rules().Spec().Rules {
		if len(o.RuleNames) < maxRules || r.Name == o.Rule {
			o.RuleNames = append(o.RuleNames, r.Name)
		}
	}
	history, timings, err := h.readHistory(ctx, v, o.Span)
	if err != nil {
		return nil, err
	}
	if o.Rule != "" { // the history may lack the rule, because the number of lines is bounded
		last := strconv.Itoa(len(timings.Store.Calls))
		ofRule, err := adminapi.Read[adminapi.History](ctx, h.API, v, "history", url.Values{"span": {o.Span}, "last": {last}, "sum": {"rules"}, "rule": {o.Rule}})
		if err != nil {
			return nil, err
		}
		hasLine := func(l adminapi.Line) bool {
			return slices.ContainsFunc(history.Lines, func(other adminapi.Line) bool { return other.Rule == l.Rule && other.Name == l.Name })
		}
		missing := slices.DeleteFunc(ofRule.Lines, func(l adminapi.Line) bool { return l.Rule == "" || hasLine(l) })
		history.Lines = append(history.Lines, missing...)
	}
	start := history.End.Add(-time.Duration(len(timings.Store.Calls)) * unitOf(o.Span))
	events, err := adminapi.Read[adminapi.Timeline](ctx, h.API, v, "timeline", url.Values{"from": {start.Format(time.RFC3339)}})
	if err != nil {
		return nil, err
	}
	o.Events = events.Events
	o.Charts = makeCharts(o.Rule, history, timings, o.Events)
	o.Limits = limitRows(state.FleetCounts)
	if more := len(o.Limits) - maxLimitRows; more > 0 {
		o.Limits, o.MoreLimits = o.Limits[:maxLimitRows], more
	}
	o.Instances, err = adminapi.Read[adminapi.Instances](ctx, h.API, v, "instances", nil)
	return o, err
}

// readHistory reads all that the API keeps for a span: seconds or minutes.
func (h *Handler) readHistory(ctx context.Context, v adminapi.Viewer, span string) (history adminapi.History, timings adminapi.Timings, err error) {
	last := maxSeconds
	if span == "minutes" {
		last = maxMinutes
	}
	query := url.Values{"span": {span}, "last": {strconv.Itoa(last)}}
	if timings, err = adminapi.Read[adminapi.Timings](ctx, h.API, v, "timings", query); err != nil {
		return history, timings, err
	}
	query.Set("sum", "rules")
	history, err = adminapi.Read[adminapi.History](ctx, h.API, v, "history", query)
	return history, timings, err
}

func unitOf(span string) time.Duration {
	if span == "minutes" {
		return time.Minute
	}
	return time.Second
}

type counts struct{ Allowed, Denied, Near, Waited, Uncounted uint64 }

// Share returns the part of the requests that was denied, in percent.
func (c counts) Share() float64 { return share(c.Denied, c.Allowed+c.Denied) }

func (c *counts) add(outcome string, n uint64) {
	switch {
	case slices.Contains(passed, outcome):
		c.Allowed += n
	case slices.Contains(denied, outcome):
		c.Denied += n
	case outcome == "near_limit":
		c.Near += n
	case outcome == "waited":
		c.Waited += n
	case outcome == activity.Uncounted:
		c.Uncounted += n
	}
}

func share(part, all uint64) float64 {
	if all == 0 {
		return 0
	}
	return 100 * float64(part) / float64(all)
}

// Outcomes of requests that passed, of those that a limit has denied, and of those that were
// rejected for another reason.
var (
	passed   = []string{"allowed", "failed_open", "exempt", "unlimited"}
	denied   = []string{"denied", "denied_new_identity"}
	rejected = []string{"failed_closed", "refused", "malformed", "abandoned"}
)

type limitRow struct {
	Rule, Limit string
	counts      // of the last minute
}

// limitRows returns the limits that have decided requests, in descending order of denials.
func limitRows(all []adminapi.Count) (rows []limitRow) {
	for _, c := range all {
		if c.Rule == "" {
			continue
		}
		if n := len(rows); n == 0 || rows[n-1].Rule != c.Rule || rows[n-1].Limit != c.Limit { // counts are sorted
			rows = append(rows, limitRow{Rule: c.Rule, Limit: c.Limit})
		}
		rows[len(rows)-1].add(c.Name, c.Last60)
	}
	rows = slices.DeleteFunc(rows, func(r limitRow) bool { return r.Allowed+r.Denied+r.Near+r.Waited == 0 })
	slices.SortStableFunc(rows, func(a, b limitRow) int {
		return cmp.Or(cmp.Compare(b.Denied, a.Denied), cmp.Compare(b.Allowed, a.Allowed))
	})
	return rows
}

// A rulesBody has the rules in force whose names contain a text.
type rulesBody struct {
	adminapi.Rules
	Find  string // the text; "": all rules
	Total int    // number of all rules
	More  int    // number of rules that were found and are not listed

	Replay []replayRow // if the form with the report of a replay was sent
}

func (h *Handler) rules(ctx context.Context, v adminapi.Viewer, q url.Values) (any, error) {
	all, err := adminapi.Read[adminapi.Rules](ctx, h.API, v, "rules", nil)
	b := rulesBody{Rules: all, Find: q.Get("find"), Total: len(all.Rules)}
	b.Rules.Rules = slices.DeleteFunc(slices.Clone(all.Rules), func(r adminapi.Rule) bool { return !strings.Contains(r.Name, b.Find) })
	if more := len(b.Rules.Rules) - maxRules; more > 0 {
		b.Rules.Rules, b.More = b.Rules.Rules[:maxRules], more
	}
	return b, err
}

// An offendersBody has the offenders, and whether a login would show their keys in full.
type offendersBody struct {
	Found       adminapi.Offenders
	CanShowFull bool
}

func (h *Handler) offenders(ctx context.Context, v adminapi.Viewer, q url.Values) (any, error) {
	found, err := adminapi.Read[adminapi.Offenders](ctx, h.API, v, "offenders", parametersOf(q, "kind", "window", "scope"))
	if err != nil {
		return nil, err
	}
	return offendersBody{found, h.API.Identities == adminapi.ShowFull}, nil
}

// parametersOf returns the parameters of these names. It leaves out empty ones, which a form sends
// for its empty fields.
func parametersOf(q url.Values, names ...string) url.Values {
	found := url.Values{}
	for _, name := range names {
		for _, value := range q[name] {
			if value = strings.TrimSpace(value); value != "" {
				found.Add(name, value)
			}
		}
	}
	return found
}

type keyBody struct {
	Query        adminapi.ResetRequest // what is in the forms
	Key          *adminapi.Key         // nil if no key was requested, or it was not found
	Reset        *keylimits.Reset      // nil: nothing was reset
	Corrupt      []string              // limits whose state is corrupt
	Failure      string                // what happens to their requests
	IsTokenWrong bool                  // the token for the reset was wrong or missing
}

func (h *Handler) key(ctx context.Context, v adminapi.Viewer, q url.Values) (any, error) {
	q = parametersOf(q, "key", "ref", "rule", "all")
	body := keyBody{Query: adminapi.ResetRequest{Key: q.Get("key"), Ref: q.Get("ref"), Rule: q.Get("rule")}}
	if body.Query.Key == "" && body.Query.Ref == "" {
		return body, nil
	}
	q.Set("all", "true")
	key, err := adminapi.Read[adminapi.Key](ctx, h.API, v, "key", q)
	if err != nil {
		return body, err
	}
	slices.SortStableFunc(key.Limits, func(a, b keylimits.Limit) int { return cmp.Compare(rank(&b), rank(&a)) })
	body.Key = &key
	if corrupt := keylimits.Corrupt(slices.Concat(key.Limits, key.Global)); corrupt != nil {
		body.Corrupt, body.Failure = keylimits.Names(corrupt), keylimits.FailureText(corrupt)
	}
	return body, nil
}

// rank orders limits: the more a limit matters, the larger the number.
func rank(l *keylimits.Limit) int {
	switch {
	case l.IsDenied && l.Kind == keylimits.Enforced:
		return 3
	case l.IsInUse() && l.Kind == keylimits.Enforced:
		return 2
	case l.IsInUse():
		return 1
	}
	return 0
}

// receiveReset handles the form that resets a key. The form has the token, unless the operator has
// logged in.
func (h *Handler) receiveReset(w http.ResponseWriter, r *http.Request) {
	r.Body = http.MaxBytesReader(w, r.Body, maxForm)
	v, err := h.API.ViewerOf(r)
	if err != nil {
		h.fail(w, r, adminapi.StatusOf(err), err)
		return
	}
	wanted := adminapi.ResetRequest{Key: r.PostFormValue("key"), Ref: r.PostFormValue("ref"), Reason: r.PostFormValue("reason")}
	wanted.Rule, wanted.Limit, _ = strings.Cut(r.PostFormValue("limit"), "\t")
	token := r.PostFormValue("token")
	done, err := h.API.Reset(r, token, wanted)
	reader := v
	if err == nil && token != "" {
		reader, err = h.API.ViewerOfToken(token)
	}
	made, readErr := h.key(r.Context(), reader, parametersOf(url.Values{"key": {wanted.Key}, "ref": {wanted.Ref}}, "key", "ref"))
	body := made.(keyBody)
	body.Query, body.Reset = wanted, done
	status := http.StatusOK
	if err = cmp.Or(err, readErr); err != nil {
		status = adminapi.StatusOf(err)
		body.IsTokenWrong = status == http.StatusUnauthorized
	}
	i := slices.IndexFunc(pages, func(p page) bool { return p.path == "key" })
	h.write(w, status, "key", view{Page: pages[i], Viewer: v, Body: body, Problem: text(err)}, r)
}

type explainBody struct {
	URL, Method, From, Headers string
	Report                     *explain.Report // nil if no request was entered
	IsCorrupt                  bool            // a key has a value that Penstock did not write
}

func (h *Handler) explain(ctx context.Context, v adminapi.Viewer, q url.Values) (any, error) {
	body := explainBody{URL: q.Get("url"), Method: cmp.Or(q.Get("method"), "GET"), From: q.Get("from"), Headers: q.Get("header")}
	if body.URL == "" {
		return body, nil
	}
	wanted := parametersOf(q, "url", "method", "from")
	for line := range strings.Lines(body.Headers) {
		if line = strings.TrimSpace(line); line != "" {
			wanted.Add("header", line)
		}
	}
	report, err := adminapi.Read[explain.Report](ctx, h.API, v, "explain", wanted)
	if err == nil {
		body.Report = &report
		body.IsCorrupt = slices.ContainsFunc(report.Charges, func(c explain.Charge) bool { return c.IsCorrupt })
	}
	return body, err
}

type healthBody struct {
	Store     adminapi.StoreState
	Instances adminapi.Instances
	Digest    string
}

func (h *Handler) health(ctx context.Context, v adminapi.Viewer, _ url.Values) (any, error) {
	body := healthBody{Digest: h.API.Digest()}
	var err error
	if body.Store, err = adminapi.Read[adminapi.StoreState](ctx, h.API, v, "store", nil); err != nil {
		return nil, err
	}
	body.Instances, err = adminapi.Read[adminapi.Instances](ctx, h.API, v, "instances", nil)
	return body, err
}
