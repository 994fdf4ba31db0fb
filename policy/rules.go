package policy

import (
	"crypto/rand"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/guard"
)

// Rules are a compiled policy. They never change and may be used by many goroutines at once.
// Compile or Load makes them; Close ends what they keep running.
type Rules struct {
	name     string
	rules    []*Rule               // in the order of the file
	all      bool                  // every rule that matches applies
	index    map[string][]*matcher // by the first segment of their paths, the most specific first
	general  []*matcher            // those whose paths begin with a pattern, the most specific first
	before   []*matcher            // of rules with before_auth
	tiers    []tier
	allow    []condition
	deny     []condition
	payers   int
	settings map[string][]named // by rule
	verifier *verifier
	tokens   Tokens // without the secret

	identifying []string // headers that tell who the client is, but for those that preflights have too

	paths            Paths
	prefix4, prefix6 int
	http             HTTPConfig
	server           ServerConfig
	serverAt         map[string]position
	files            []string
	digest           string
	warnings         Errors
}

type tier struct {
	name      string
	otherwise bool
	when      []condition
}

// A Rule says what is demanded of the requests that it matches.
type Rule struct {
	Name       string
	Always     bool // applies besides the most specific rule
	BeforeAuth bool // decided by itself before a token is verified
	Unlimited  bool
	Shadow     bool // counted and reported, never enforced
	Limits     []*Limit

	matchers      []*matcher
	order         int
	newIdentities *penstock.Limit // how many new ones an address may bring; nil: any number
}

// NewIdentities is how many new identities one address may bring to the rule. It is false if that
// is not bounded.
func (r *Rule) NewIdentities() (penstock.Limit, bool) {
	if r.newIdentities == nil {
		return penstock.Limit{}, false
	}
	return *r.newIdentities, true
}

// A Limit is one limit of a rule.
type Limit struct {
	Rule      *Rule
	Name      string         // within its rule
	Policy    string         // its public name: the rule's, a dot, and its own
	Algorithm string         // its algorithm's name
	Patience  time.Duration  // how long a request may wait for its turn
	Guard     guard.Settings // for the guards around a store. OnFailure is Open, Closed or Local; see Rules.Settings
	Shadow    bool           // counted and reported, never enforced
	Shown     bool           // responses tell of it
	Actual    string         // the response header with the true cost
	Settled   bool           // the true cost is told afterwards, by the header Actual or by the handler
	Body      int64          // one unit for each begun part of the body of this many bytes; 0: the body does not matter
	Status    *Statuses      // charges only requests that are answered so; nil: all
	Candidate *Limit         // tried beside it

	forms []penstock.Limit // by tier; one if they do not differ
	parts int              // of a sub-window
	zone  string           // of a calendar window
	per   *identity
	cost  cost
}

// Forms are the limit's numbers: one, or one for each tier.
func (l *Limit) Forms() []penstock.Limit { return slices.Clone(l.forms) }

// Settings say how a limit of a charge is guarded: they are what guard.Options.Limits wants. Of
// limits that are not the Rules' own they are zero. What is a shadow or a candidate is neither
// leased nor split, and not counted while the store gives no answer.
func (r *Rules) Settings(limit *penstock.Limit) guard.Settings {
	rule := r.settings[limit.Group]
	for i := range rule {
		if rule[i].limit == limit.Name {
			return rule[i].settings
		}
	}
	return guard.Settings{}
}

// named are the settings of a limit, by its name within the rule.
type named struct {
	limit    string
	settings guard.Settings
}

// keepSettings makes the guards' settings ready to be found.
func (r *Rules) keepSettings() {
	r.settings = make(map[string][]named, len(r.rules))
	for _, rule := range r.rules {
		var all []named
		for _, l := range rule.Limits {
			all = append(all, named{l.Name, l.Guard})
			if c := l.Candidate; c != nil {
				all = append(all, named{c.Name, c.Guard})
			}
		}
		r.settings[rule.Name] = all
	}
}

type cost struct {
	units    int64
	methods  map[string]int64
	header   string
	min, max int64
}

// Rules are the rules, in the order of the file.
func (r *Rules) Rules() []*Rule { return slices.Clone(r.rules) }

// Tiers are the names of the tiers, in the order of the file.
func (r *Rules) Tiers() []string {
	var names []string
	for _, t := range r.tiers {
		names = append(names, t.name)
	}
	return names
}

// HTTP says how HTTP requests are read and answered, with its defaults filled in.
func (r *Rules) HTTP() HTTPConfig { return r.http }

// Server is what the file says to penstock serve.
func (r *Rules) Server() ServerConfig { return r.server }

// ServerPlace is where a field of the server section stands in the file: the first line and column
// are 1; 0 if it does not.
func (r *Rules) ServerPlace(field string) (line, column int) {
	at := r.serverAt[field]
	return at.line, at.column
}

// Paths says how paths are read before they are matched.
func (r *Rules) Paths() Paths { return r.paths }

// Files are the files that the policy was made of, its own first.
func (r *Rules) Files() []string { return slices.Clone(r.files) }

// Digest tells policies apart: the first 12 hex digits of the SHA-256 of the policy's file and of
// each file of values, one behind the other in the order in which they are named. Variables and
// keys of tokens are not in it. It is "" if the policy was read from no text.
func (r *Rules) Digest() string { return r.digest }

// Warnings are about what is valid but may not be what the author means.
func (r *Rules) Warnings() []*Error { return slices.Clone(r.warnings) }

// EmptyDeny are the files of the list deny that have no values, as the policy names them: the
// clients that they listed before are no longer refused.
func (r *Rules) EmptyDeny() (files []string) {
	for _, when := range r.deny {
		for i := range when {
			if t := &when[i]; t.file != "" && t.empty() {
				files = append(files, t.file)
			}
		}
	}
	return files
}

// Start begins to read the keys at jwks_url, and waits for the first answer for at most two
// seconds; without one it does nothing. report, which may be nil, is told how each reading ended,
// with nil if well. Until keys were read once, no token is believed.
func (r *Rules) Start(report func(error)) {
	if r.verifier != nil {
		r.verifier.start(report)
	}
}

// Close ends the reading of keys. The Rules still answer, with the keys that they have.
func (r *Rules) Close() {
	if r.verifier != nil {
		r.verifier.Close()
	}
}

// Listed tells whether a request is on one of the policy's lists.
type Listed uint8

// The lists. Deny counts before allow.
const (
	NotListed Listed = iota
	Exempt           // on the list of those who are never limited
	Refused          // on the list of those who are always refused
)

// A Verdict is what Rules demand of one request. It may be used again for another.
type Verdict struct {
	// Unclear says that the request must be refused as malformed, and why: what identifies its
	// client can be read in several ways, as a header that is sent twice. It is empty if nothing is
	// wrong; otherwise the Verdict says nothing else. It contains nothing that the client sent.
	Unclear string

	TokenError *TokenError // why the request's token is rejected; nil if it is valid, has none, or nothing needs it

	Listed    Listed
	Matched   []*Rule             // those that apply, in the order of the file
	Charges   []penstock.Charge   // to be decided as one batch
	Limits    []*Limit            // the limit of each charge
	Trials    []Trial             // to be decided, each for itself, whatever becomes of the request
	Unchecked []UncheckedIdentity // identities that may be new, of rules that bound how many may be; to be admitted before the charges are decided
	Tier      string              // of the caller, if rules or limits asked for it

	request request
}

// A Trial is what is counted and reported but never enforced.
type Trial struct {
	Charges   []penstock.Charge
	Limits    []*Limit
	Candidate bool // else it is a shadow
}

// Form is which of a limit's Forms a charge of it has: that of the caller's tier.
func (v *Verdict) Form(l *Limit) int {
	if len(l.forms) == 1 {
		return 0
	}
	return v.request.tierIndex()
}

// request is what has been found out about one.
type request struct {
	rules      *Rules
	a          Attributes
	matcher    *matcher // of the rule at hand
	preflight  bool     // only rules that name OPTIONS match it
	payers     []string // by identity; "" if not asked for yet
	tier       int      // -1 if not asked for yet
	holder     string
	checked    bool // the token was looked at
	token      claims
	tokenErr   *TokenError
	waits      bool   // no signature is to be checked yet
	unverified bool   // a signature would have been checked
	granted    bool   // the rules with before_auth have granted it, and are skipped
	unclear    string // what identifies the client and can be read in several ways; the first that was found
}

// Assess finds what the rules demand of a request.
func (r *Rules) Assess(a Attributes, v *Verdict) {
	v.reset(r, a)
	r.assess(a, v)
	v.finish(r, a)
}

// finish makes a Verdict of what was assessed.
func (v *Verdict) finish(r *Rules, a Attributes) {
	v.TokenError = v.request.tokenErr
	if v.request.unclear != "" && v.Listed != Refused {
		why := v.request.unclear
		v.reset(r, a)
		v.Unclear = why
	}
}

func (r *Rules) assess(a Attributes, v *Verdict) {
	q := &v.request
	switch {
	case q.anyHolds(r.deny):
		v.Listed = Refused
		return
	case q.anyHolds(r.allow):
		v.Listed = Exempt
		return
	}
	// The most specific rule applies, and those that always do. A shadow does not replace the rule
	// that applies: it is tried beside it, unless that one is more specific.
	var won, tried *matcher
	for candidates := r.candidates(a.Path()); candidates.next(); {
		m := candidates.at
		switch {
		case m.rule.BeforeAuth && q.granted:
			continue
		case m.rule.Always:
		case m.rule.Shadow && (tried != nil || won != nil && byMatch(won, m) != 0), !m.rule.Shadow && won != nil:
			continue
		}
		if v.has(m.rule) || !m.matches(q, a.Path()) {
			continue
		}
		switch {
		case m.rule.Always:
		case m.rule.Shadow:
			tried = m
		default:
			won = m
		}
		v.apply(m)
	}
	if len(v.Matched) > 1 {
		v.inOrder()
	}
	if q.tier >= 0 && len(r.tiers) > 0 {
		v.Tier = r.tiers[q.tier].name
	}
}

// Matching are all rules that match a request, the most specific first, whether they apply or not.
func (r *Rules) Matching(a Attributes) []*Rule {
	var v Verdict
	v.reset(r, a)
	var rules []*Rule
	for candidates := r.candidates(a.Path()); candidates.next(); {
		m := candidates.at
		if !slices.Contains(rules, m.rule) && m.matches(&v.request, a.Path()) {
			rules = append(rules, m.rule)
		}
	}
	return rules
}

// candidates walks through the matchers that a path's first segment does not rule out, the most
// specific first.
func (r *Rules) candidates(path string) walk {
	if len(path) == 0 || path[0] != '/' {
		return walk{}
	}
	first, _ := cut(path)
	return walk{a: r.index[first], b: r.general}
}

// A walk goes through two lists at once, in the order of specificity.
type walk struct {
	at   *matcher
	a, b []*matcher
}

func (w *walk) next() bool {
	switch {
	case len(w.a) > 0 && (len(w.b) == 0 || w.a[0].order < w.b[0].order):
		w.at, w.a = w.a[0], w.a[1:]
	case len(w.b) > 0:
		w.at, w.b = w.b[0], w.b[1:]
	default:
		return false
	}
	return true
}

func (v *Verdict) reset(r *Rules, a Attributes) {
	clear(v.Charges)
	clear(v.Trials)
	v.TokenError = nil
	v.Unclear, v.Listed, v.Tier = "", NotListed, ""
	v.Unchecked = v.Unchecked[:0]
	v.Matched, v.Charges, v.Limits, v.Trials = v.Matched[:0], v.Charges[:0], v.Limits[:0], v.Trials[:0]
	q := &v.request
	payers := q.payers[:0]
	for range r.payers {
		payers = append(payers, "")
	}
	*q = request{rules: r, a: a, preflight: r.isPreflight(a), payers: payers, tier: -1}
}

// isPreflight tells whether a request is a CORS preflight as browsers send it. Preflights are free,
// so a request with a body, or with anything that tells who the client is, is an ordinary one.
func (r *Rules) isPreflight(a Attributes) bool {
	if a.Method() != http.MethodOptions || a.BodySize() != 0 {
		return false
	}
	for _, name := range [...]string{"Origin", "Access-Control-Request-Method"} {
		if values := a.Header(name); len(values) != 1 || values[0] == "" {
			return false
		}
	}
	has := func(name string) bool { return len(a.Header(name)) > 0 }
	return !slices.ContainsFunc(notInPreflights, has) && !slices.ContainsFunc(r.identifying, has)
}

// notInPreflights are headers that tell who the client is, that say a body follows, or by which
// some servers take the request for one with another method.
var notInPreflights = []string{"Authorization", "Proxy-Authorization", "Cookie", "Transfer-Encoding",
	"X-Http-Method-Override", "X-Http-Method", "X-Method-Override"}

// inPreflights are headers that browsers send with preflights too.
var inPreflights = []string{"Origin", "User-Agent", "Accept", "Accept-Encoding", "Accept-Language", "Referer",
	"Access-Control-Request-Method", "Access-Control-Request-Headers"}

func (v *Verdict) has(r *Rule) bool {
	for _, m := range v.Matched {
		if m == r {
			return true
		}
	}
	return false
}

// apply adds what a rule demands.
func (v *Verdict) apply(m *matcher) {
	v.Matched = append(v.Matched, m.rule)
	v.request.matcher = m
	if m.rule.newIdentities != nil {
		v.noteUnchecked(m.rule)
	}
	var shadow Trial
	for _, l := range m.rule.Limits {
		charge := v.request.charge(l)
		switch {
		case m.rule.Shadow:
			shadow.Charges = append(shadow.Charges, charge)
			shadow.Limits = append(shadow.Limits, l)
		case l.Shadow:
			v.Trials = append(v.Trials, Trial{Charges: []penstock.Charge{charge}, Limits: []*Limit{l}})
		default:
			v.Charges = append(v.Charges, charge)
			v.Limits = append(v.Limits, l)
		}
		if c := l.Candidate; c != nil {
			v.Trials = append(v.Trials, Trial{Charges: []penstock.Charge{v.request.charge(c)}, Limits: []*Limit{c}, Candidate: true})
		}
	}
	if shadow.Charges != nil {
		v.Trials = append(v.Trials, shadow)
	}
}

// inOrder brings rules and charges into the order of the file.
func (v *Verdict) inOrder() {
	byOrder := func(a, b *Rule) int { return a.order - b.order }
	if slices.IsSortedFunc(v.Matched, byOrder) {
		return
	}
	slices.SortStableFunc(v.Matched, byOrder)
	charges, limits := slices.Clone(v.Charges), slices.Clone(v.Limits)
	v.Charges, v.Limits = v.Charges[:0], v.Limits[:0]
	for _, rule := range v.Matched {
		for i, l := range limits {
			if l.Rule == rule {
				v.Charges, v.Limits = append(v.Charges, charges[i]), append(v.Limits, l)
			}
		}
	}
}

func (q *request) charge(l *Limit) penstock.Charge {
	c := penstock.Charge{Key: q.payer(l.per), Limit: q.form(l), Cost: q.cost(l), Patience: l.Patience}
	if a := c.Limit.Algorithm; a.Holds || a.Is(penstock.LeakyBucket) {
		if q.holder == "" {
			q.holder = rand.Text()
		}
		c.Holder = q.holder
	}
	return c
}

// form is a limit with the numbers of the caller's tier.
func (q *request) form(l *Limit) penstock.Limit {
	if len(l.forms) == 1 {
		return l.forms[0]
	}
	return l.forms[q.tierIndex()]
}

// tierIndex finds the caller's tier. The last one takes those that no other has.
func (q *request) tierIndex() int {
	if q.tier >= 0 {
		return q.tier
	}
	last := len(q.rules.tiers) - 1
	q.tier = last // while the conditions are tested
	for i, t := range q.rules.tiers[:last] {
		if q.anyHolds(t.when) {
			q.tier = i
			break
		}
	}
	return q.tier
}

func (q *request) cost(l *Limit) int64 {
	c := &l.cost
	switch {
	case l.Body > 0:
		size := max(q.a.BodySize(), 0)
		return min(max(size/l.Body+min(size%l.Body, 1), c.min), c.max)
	case c.header != "":
		values := q.a.Header(c.header)
		if len(values) == 0 {
			return c.min
		}
		// Callers write the header: what cannot be read, or stands there twice, costs as much as can be.
		n, err := strconv.ParseInt(values[0], 10, 64)
		if err != nil || len(values) > 1 {
			return c.max
		}
		return min(max(n, c.min), c.max)
	case c.methods != nil:
		method := q.a.Method()
		if n, ok := c.methods[method]; ok {
			return n
		}
		if n, ok := c.methods[http.MethodGet]; ok && method == http.MethodHead {
			return n
		}
	}
	return c.units
}

// claims are those of the request's token, if it is verified.
func (q *request) claims() claims {
	if q.checked {
		return q.token
	}
	q.checked = true
	verifier := q.rules.verifier
	token, unclear := verifier.find(q.a)
	switch {
	case unclear != "":
		q.noteUnclear(unclear)
	case token != "" && q.waits && !verifier.knows(token):
		q.unverified = true
	case token != "":
		// A token that is rejected says nothing: the request is treated like one without a token.
		q.token, q.tokenErr = verifier.verify(token)
	}
	return q.token
}

func (q *request) claim(name string) (string, bool) { return q.claims().text(name) }

// Statuses is a set of HTTP status codes.
type Statuses [10]uint64

// Has tells whether a status is in the set.
func (s *Statuses) Has(status int) bool {
	return status >= 0 && status < 64*len(s) && s[status/64]>>(status%64)&1 != 0
}

func (s *Statuses) add(from, to int) {
	for status := from; status <= to; status++ {
		s[status/64] |= 1 << (status % 64)
	}
}
