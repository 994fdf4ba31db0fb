// Package adminapi serves the admin API in JSON: the rules in force, the keys that were denied, and
// the health of the instance and its store. It also resets keys. Decisions never wait for it.
package adminapi

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/cmd/penstock/internal/console/activity"
	"github.com/penstock/penstock/cmd/penstock/internal/console/denials"
	"github.com/penstock/penstock/cmd/penstock/internal/console/explain"
	"github.com/penstock/penstock/cmd/penstock/internal/console/keylimits"
	"github.com/penstock/penstock/cmd/penstock/internal/rpc/envoyrls"
	"github.com/penstock/penstock/cmd/penstock/internal/text/redact"
	"github.com/penstock/penstock/internal/bearer"
	"github.com/penstock/penstock/internal/regions"
	"github.com/penstock/penstock/policy"
)

const (
	ShowOff    = redact.ShowOff
	ShowMasked = redact.ShowMasked
	ShowFull   = redact.ShowFull
)

// Options of a Handler. All fields without a default must be set.
type Options struct {
	// Token is the token of operators, sent as Authorization: Bearer. Default: no token is accepted.
	Token []byte

	// IsLocal is true if only this machine can reach the handler. Then reads need no token.
	IsLocal bool

	Identities string // how identities are shown: ShowOff, ShowMasked or ShowFull
	MaskSecret []byte // the key of the hashes in masked identities and refs

	Store     penstock.Store // with its guards
	Policy    policy.RuleSource
	Digest    func() string // of the policy
	Recorder  *activity.Recorder
	Fleet     func(context.Context) *activity.Fleet
	Health    func(context.Context) Health
	StoreInfo func(context.Context) StoreState
	Waiting   func() int    // requests that wait for their turn
	Upstream  func() string // URL of the upstream; "": this instance forwards nothing

	// Explain returns which limits apply to a request, and their charges.
	Explain func(r *http.Request, descriptor map[string][]string) (*explain.Report, []penstock.Charge, error)

	// Regions returns how this region exchanges with others.
	Regions func() regions.Setup

	// RegionsNow returns what is known of the other regions.
	RegionsNow func() []regions.Status

	// Reader reads keys for operators.
	Reader *keylimits.Reader

	// MaxReaders is how many readers of events and denials there may be at once. One more replaces the
	// oldest.
	MaxReaders int

	// Denials records the denials of the instance.
	Denials *denials.Recorder

	// EnvoyLimits returns the limits of Envoy's files that count under a key.
	EnvoyLimits func(key string) []envoyrls.KeyLimit

	// AuthFailed is called for each request that is rejected because its operator token is wrong or
	// missing: wrong_token or no_token.
	AuthFailed func(reason string)

	// AuditIntent writes the line of a reset before the reset, and returns when it is on the disk. If
	// it returns an error, nothing is reset.
	AuditIntent func(Audit) error

	// Audit records each reset, and each request for a reset that was rejected.
	Audit func(Audit)

	// Name returns the name that a key has in the store. Key is its inverse; ok is false if the name
	// is a hash.
	Name func(key string) string
	Key  func(name string) (key string, ok bool)
}

// A Handler serves the API below Prefix.
type Handler struct {
	Options
	masks      redact.Identities
	mux        http.ServeMux
	token      bearer.Secret
	live       broadcaster
	stateCache stateCache

	readers places // of events and denials
	delays  delays

	origins http.CrossOriginProtection // checks the origins of writes
}

const Prefix = "/api/v1/"

// resetPath is the only path that writes.
const resetPath = "key/reset"

const timeout = 5 * time.Second

func New(o Options) *Handler {
	h := &Handler{Options: o, token: bearer.NewSecret(o.Token), masks: redact.Identities{Show: o.Identities, Secret: o.MaskSecret, Name: o.Name, Key: o.Key}}
	h.live.handler, h.delays.each = h, wrongTokenDelay
	for _, r := range routes {
		h.mux.HandleFunc("GET "+Prefix+r.path, func(w http.ResponseWriter, req *http.Request) { h.serve(w, req, r) })
	}
	h.mux.HandleFunc("GET "+Prefix+"events", h.live.serve)
	h.mux.HandleFunc("GET "+Prefix+denialsRoute.path, h.serveDenials)
	h.mux.HandleFunc("GET "+Prefix+"openapi.json", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(OpenAPI())
	})
	h.mux.HandleFunc("POST "+Prefix+resetPath, h.serveReset)
	h.mux.HandleFunc(Prefix, func(w http.ResponseWriter, req *http.Request) {
		accepted := "GET"
		switch isRead := req.Method == http.MethodGet || req.Method == http.MethodHead; {
		case req.URL.Path == Prefix+resetPath:
			accepted = "POST"
		case isRead:
			fail(w, http.StatusNotFound, "no such path; "+Prefix+"openapi.json lists the paths")
			return
		}
		w.Header().Set("Allow", accepted)
		fail(w, http.StatusMethodNotAllowed, "this path does not accept the method; use "+accepted)
	})
	return h
}

// A route is a path whose response is JSON.
type route struct {
	path, summary string
	parameters    []parameter
	body          any // a value of the response's type, for the schema
	respond       func(h *Handler, ctx context.Context, v Viewer, query url.Values) (any, error)
}

type parameter struct {
	name, doc  string
	choices    []string // the first is the default; nil: any text
	isRequired bool
	isRepeated bool
}

// A Viewer is a client of the API. The zero Viewer has sent no token; it may only read.
type Viewer struct{ isOperator bool }

// IsOperator reports whether the viewer has sent the token.
func (v Viewer) IsOperator() bool { return v.isOperator }

var routes = []route{
	{path: "state", summary: "The current state: health, store, instances and counts.", body: State{}, respond: (*Handler).makeState},
	{path: "health", summary: "Whether the instance is ready, and why not.", body: Health{}, respond: (*Handler).makeHealth},
	{path: "store", summary: "The store: whether it fails, its breakers, latencies and memory.", body: StoreState{}, respond: (*Handler).makeStore},
	{path: "instances", summary: "The instances that share the store.", body: Instances{}, respond: (*Handler).makeInstances},
	{path: "rules", summary: "The rules in force, their limits with bounds, and their recent counts.", body: Rules{}, respond: (*Handler).makeRules},
	{path: "history", summary: "Counts of this instance by the second or by the minute.", parameters: []parameter{
		{name: "span", doc: "seconds: the last 10 minutes; minutes: the last 24 hours", choices: []string{"seconds", "minutes"}},
		{name: "last", doc: "how many seconds or minutes; default 60, at most 600 seconds or 1440 minutes"},
		{name: "rule", doc: "only counts of this rule"},
		{name: "limit", doc: "only counts of this limit"},
		{name: "name", doc: "only counts of this name, such as denied"},
		{name: "sum", doc: "none: a line for each limit; rules: a line for each rule, which is the sum of its limits, and a line without a rule, which is the sum of all rules", choices: []string{"none", "rules"}},
	}, body: History{}, respond: (*Handler).makeHistory},
	{path: "timings", summary: "How long the store and the upstream took, by the second or by the minute.", parameters: []parameter{
		{name: "span", doc: "seconds: the last 10 minutes; minutes: the last 24 hours", choices: []string{"seconds", "minutes"}},
		{name: "last", doc: "how many seconds or minutes; default 60, at most 600 seconds or 1440 minutes"},
	}, body: Timings{}, respond: (*Handler).makeTimings},
	{path: "timeline", summary: "Events that may explain changes in the charts: reloads, resets, outages. The latest first.", parameters: []parameter{
		{name: "from", doc: "only events from this time on, such as 2026-01-31T14:00:00Z, or 14:00 in UTC"},
		{name: "to", doc: "only events up to this time; a time without a date is the first one after from"},
	}, body: Timeline{}, respond: (*Handler).makeTimeline},
	{path: "offenders", summary: "The keys with the most denied requests, requests near their limit, or units.", parameters: []parameter{
		{name: "kind", doc: "what is counted", choices: []string{"denied", "shadow_denied", "near_limit", "units"}},
		{name: "window", doc: "the time that is counted, up to now", choices: []string{"5m", "1h"}},
		{name: "scope", doc: "fleet: all instances; instance: this one", choices: []string{"fleet", "instance"}},
		{name: "limit", doc: "how many offenders; default 20, at most 100"},
	}, body: Offenders{}, respond: (*Handler).makeOffenders},
	{path: "key", summary: "The state of one key in all limits. It charges nothing.", parameters: []parameter{
		{name: "key", doc: "as explain writes it, such as key:abc; needs the token"},
		{name: "ref", doc: "instead of key: the ref of an offender"},
		{name: "rule", doc: "only the limits of this rule"},
		{name: "all", doc: "true: also limits that the key has not used", choices: []string{"false", "true"}},
	}, body: Key{}, respond: (*Handler).makeKey},
	{path: "explain", summary: "Which limits apply to a request and, with the token, what they would decide. It charges nothing.", parameters: []parameter{
		{name: "url", doc: "a path or a URL", isRequired: true},
		{name: "method", doc: "default GET"},
		{name: "header", doc: "Name: value", isRepeated: true},
		{name: "descriptor", doc: "KEY=VALUE: an entry of a descriptor that Envoy sends", isRepeated: true},
		{name: "from", doc: "the address of the client; default 192.0.2.1"},
		{name: "size", doc: "size of the body in bytes; default 0; -1: unknown"},
	}, body: explain.Report{}, respond: (*Handler).makeExplain},
}

// A refusal is an error with the status of its response.
type refusal struct {
	status int
	text   string
}

func (r refusal) Error() string { return r.text }

func refuse(status int, format string, args ...any) error {
	return refusal{status, fmt.Sprintf(format, args...)}
}

func (h *Handler) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	if err := h.CheckOrigin(req); err != nil {
		failWith(w, err)
		return
	}
	if req.URL.Path != Prefix+resetPath { // serveReset checks the viewer itself, and records refused writes
		if _, refused := h.ViewerOf(req); refused != nil {
			failWith(w, refused)
			return
		}
	}
	h.mux.ServeHTTP(w, req)
}

// Protect returns a handler for clients that may read the API. Pages of other origins may not even
// link to it, because a request for it is expensive.
func (h *Handler) Protect(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		err := h.CheckOrigin(req)
		if site := req.Header.Get("Sec-Fetch-Site"); err == nil && (site == "cross-site" || site == "same-site") {
			err = errForeign
		}
		if err == nil {
			_, err = h.ViewerOf(req)
		}
		if err != nil {
			failWith(w, err)
			return
		}
		next.ServeHTTP(w, req)
	})
}

var errForeign = refuse(http.StatusForbidden, "a page of another origin has sent this request; only pages of this origin may send it")

// CheckOrigin returns an error if a page of another origin has sent the request.
func (h *Handler) CheckOrigin(req *http.Request) error {
	if isForeign(req) || h.origins.Check(req) != nil {
		return errForeign
	}
	return nil
}

// isForeign reports whether a page of another origin has sent the request, by its headers.
func isForeign(req *http.Request) bool {
	switch req.Header.Get("Sec-Fetch-Site") {
	case "cross-site", "same-site":
		return req.Header.Get("Sec-Fetch-Mode") != "navigate"
	case "same-origin", "none": // also if a proxy has changed the Host
		return false
	}
	origin := req.Header.Get("Origin")
	if origin == "" {
		return false
	}
	u, err := url.Parse(origin)
	return err != nil || u.Host != req.Host
}

// ViewerOf returns the client that sends a request, or an error if the client may not read. An
// operator sends the token, or the cookie of a session. Options.AuthFailed counts each error, so
// one request must not call ViewerOf twice if it fails.
func (h *Handler) ViewerOf(req *http.Request) (Viewer, error) {
	headers := req.Header.Values("Authorization")
	token, hasToken := bearer.Token(headers)
	switch {
	case hasToken:
		return h.ViewerOfToken(token)
	case len(headers) > 0: // of another form than Bearer TOKEN
		return Viewer{}, h.rejectToken()
	case h.hasSession(req):
		return Viewer{isOperator: true}, nil
	case h.IsLocal, req.TLS != nil && len(req.TLS.VerifiedChains) > 0: // a client certificate of an operator
		return Viewer{}, nil
	case !h.token.IsSet():
		return Viewer{}, refuse(http.StatusForbidden, "other machines can reach this address, so the API needs a token or a certificate; set operator_token or admin_client_ca, or set admin_listen to 127.0.0.1 or to a Unix socket")
	}
	h.AuthFailed(tokenIsMissing)
	return Viewer{}, refuse(http.StatusUnauthorized, "send the operator token as Authorization: Bearer")
}

// Arguments of Options.AuthFailed.
const tokenIsWrong, tokenIsMissing = "wrong_token", "no_token"

var (
	errNoToken    = refuse(http.StatusForbidden, "this instance has no operator_token, so it accepts no token; set operator_token in its settings, and restart it")
	errWrongToken = refuse(http.StatusUnauthorized, "the token is wrong; send the operator token as Authorization: Bearer")
)

// ViewerOfToken returns the client that sends a token, or an error if the token is wrong.
func (h *Handler) ViewerOfToken(token string) (Viewer, error) {
	if !h.token.Matches(token) {
		return Viewer{}, h.rejectToken()
	}
	return Viewer{isOperator: true}, nil
}

// rejectToken counts a wrong token, and returns the error after a delay. Without an operator_token,
// each token is wrong.
func (h *Handler) rejectToken() error {
	h.AuthFailed(tokenIsWrong)
	h.delays.wait()
	if len(h.Token) == 0 {
		return errNoToken
	}
	return errWrongToken
}

// delays makes guessing of tokens slow. A right token never waits.
type delays struct {
	each    time.Duration
	waiting atomic.Int32
}

const (
	wrongTokenDelay = 100 * time.Millisecond
	maxDelays       = 8 // responses that wait at once, so that requests with a right token have room
)

// wait waits, unless maxDelays others wait.
func (d *delays) wait() {
	defer d.waiting.Add(-1)
	if d.waiting.Add(1) <= maxDelays {
		time.Sleep(d.each)
	}
}

func (h *Handler) serve(w http.ResponseWriter, req *http.Request, r route) {
	values, err := r.values(req.URL.RawQuery)
	var body any
	if err == nil {
		ctx, cancel := context.WithTimeout(req.Context(), timeout)
		defer cancel()
		v, _ := h.ViewerOf(req) // ServeHTTP has checked it
		body, err = r.respond(h, ctx, v, values)
	}
	if err != nil {
		failWith(w, err)
		return
	}
	if raw, ok := body.(encoded); ok {
		raw.serve(w, req)
		return
	}
	var text bytes.Buffer
	if err := json.NewEncoder(&text).Encode(body); err != nil {
		fail(w, http.StatusInternalServerError, err.Error())
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(text.Bytes())
}

const (
	maxValue   = 4096 // bytes in one value of a parameter
	maxRepeats = 100  // values of one parameter
)

func (r *route) values(query string) (url.Values, error) {
	values, err := url.ParseQuery(query)
	if err != nil {
		return nil, refuse(http.StatusBadRequest, "the query cannot be read; escape its values")
	}
	for name, given := range values {
		i := slices.IndexFunc(r.parameters, func(p parameter) bool { return p.name == name })
		if i < 0 {
			return nil, refuse(http.StatusBadRequest, "unknown parameter %.40q; the parameters are: %s", name, r.names())
		}
		p, most := r.parameters[i], 1
		if p.isRepeated {
			most = maxRepeats
		}
		switch {
		case len(given) > most:
			return nil, refuse(http.StatusBadRequest, "%s is given %d times; the most is %d", name, len(given), most)
		case slices.ContainsFunc(given, func(v string) bool { return len(v) > maxValue }):
			return nil, refuse(http.StatusBadRequest, "%s is longer than %d bytes", name, maxValue)
		case p.choices != nil && !slices.Contains(p.choices, given[0]):
			return nil, refuse(http.StatusBadRequest, "the value of %s is unknown; write %s", name, strings.Join(p.choices, " or "))
		}
	}
	for _, p := range r.parameters {
		if p.choices != nil && !values.Has(p.name) {
			values.Set(p.name, p.choices[0])
		}
		if p.isRequired && values.Get(p.name) == "" {
			return nil, refuse(http.StatusBadRequest, "%s is missing: %s", p.name, p.doc)
		}
	}
	return values, nil
}

func (r *route) names() string {
	var names []string
	for _, p := range r.parameters {
		names = append(names, p.name)
	}
	if names == nil {
		return "none"
	}
	return strings.Join(names, ", ")
}

func fail(w http.ResponseWriter, status int, detail string) {
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(Problem{http.StatusText(status), status, detail})
}

// encoded is a body in JSON with its ETag.
type encoded struct {
	text []byte
	tag  string
}

func (e encoded) serve(w http.ResponseWriter, req *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("ETag", e.tag)
	w.Header().Set("Cache-Control", "no-cache") // caches must revalidate by the ETag
	for tag := range strings.SplitSeq(req.Header.Get("If-None-Match"), ",") {
		if tag = strings.TrimPrefix(strings.TrimSpace(tag), "W/"); tag == e.tag || tag == "*" {
			w.WriteHeader(http.StatusNotModified)
			return
		}
	}
	_, _ = w.Write(e.text)
}

func (h *Handler) boundsOf(rules *policy.Rules, plan *penstock.Plan, instances int) (all []Bound) {
	for _, b := range explain.BoundsOf(rules, plan, instances, h.Regions()) {
		all = append(all, Bound(b))
	}
	return all
}
