package policy

import (
	"cmp"
	"crypto/rand"
	"slices"
	"strconv"

	"github.com/penstock/penstock"
)

// A ListMatch names the list of the policy that a request matches.
type ListMatch uint8

// The lists. Deny counts before allow.
const (
	NotListed   ListMatch = iota
	AllowListed           // on the allow list: never limited
	DenyListed            // on the deny list: always rejected
)

// An Evaluation is what Rules demand of one request. It may be used again for another.
type Evaluation struct {
	// Unclear says that the request must be refused as malformed, and why: what identifies its
	// client can be read in several ways, as a header that is sent twice. It is empty if nothing is
	// wrong; otherwise the Evaluation says nothing else. It contains nothing that the client sent.
	Unclear string

	TokenError *TokenError // why the request's token is rejected; nil if it is valid, has none, or nothing needs it

	ListMatch ListMatch
	Matched   []*Rule             // those that apply, in the order of the file
	Charges   []penstock.Charge   // to be decided as one batch
	Limits    []*Limit            // the limit of each charge
	Shadows   []Shadow            // each is decided by itself, also if the request is rejected
	Unchecked []UncheckedIdentity // identities that may be new, of rules that bound how many may be; to be admitted before the charges are decided
	Tier      string              // of the caller, if rules or limits asked for it

	request request
}

// A Shadow is a batch that is counted and reported, and never enforced.
type Shadow struct {
	Charges   []penstock.Charge
	Limits    []*Limit
	Candidate bool // it is the candidate of a limit; false: a shadow rule or limit
}

// Variant returns the index in l.Variants of the plan for the caller's tier.
func (v *Evaluation) Variant(l *Limit) int {
	if len(l.Variants) == 1 {
		return 0
	}
	return v.request.tierIndex()
}

// request is what has been found out about one.
type request struct {
	rules      *Rules
	a          Attributes
	named      NamedCall // in place of the attributes, if isNamed
	isNamed    bool
	method     string
	host       string
	path       string
	matcher    *Matcher // of the rule at hand
	preflight  bool     // only rules that name OPTIONS match it
	keys       []string // by identity; "" if not asked for yet
	tier       int      // -1 if not asked for yet
	holder     string
	checked    bool // the token was looked at
	token      Claims
	tokenErr   *TokenError
	waits      bool   // no signature is to be checked yet
	unverified bool   // a signature would have been checked
	granted    bool   // the rules with before_auth have granted it, and are skipped
	unclear    string // what identifies the client and can be read in several ways; the first that was found
}

// Evaluate finds what the rules demand of a request.
func (r *Rules) Evaluate(a Attributes, v *Evaluation) {
	v.reset(r, a)
	r.evaluate(a, v)
	v.finish(r, a)
}

// finish makes an Evaluation of what was found.
func (v *Evaluation) finish(r *Rules, a Attributes) {
	v.TokenError = v.request.tokenErr
	if v.request.unclear != "" && v.ListMatch != DenyListed {
		why := v.request.unclear
		v.reset(r, a)
		v.Unclear = why
	}
}

func (r *Rules) evaluate(a Attributes, v *Evaluation) {
	q := &v.request
	switch {
	case q.anyHolds(r.spec.Deny):
		v.ListMatch = DenyListed
		return
	case q.anyHolds(r.spec.Allow):
		v.ListMatch = AllowListed
		return
	}
	// The most specific rule applies, and those that always do. A shadow does not replace the rule
	// that applies: it counts beside it, unless that one is more specific.
	var selected, shadowed *Matcher
	for matchers := r.matchersOf(q.path); matchers.next(); {
		m := matchers.at
		switch {
		case m.rule.BeforeAuth && q.granted:
			continue
		case m.rule.Always:
		case m.rule.Shadow && (shadowed != nil || selected != nil && selected.Compare(m) != 0), !m.rule.Shadow && selected != nil:
			continue
		}
		if v.has(m.rule) || !m.matches(q) {
			continue
		}
		switch {
		case m.rule.Always:
		case m.rule.Shadow:
			shadowed = m
		default:
			selected = m
		}
		v.apply(m)
	}
	if len(v.Matched) > 1 {
		v.inOrder()
	}
	if q.tier >= 0 && len(r.spec.Tiers) > 0 {
		v.Tier = r.spec.Tiers[q.tier].Name
	}
}

// Matching are all rules that match a request, the most specific first, whether they apply or not.
func (r *Rules) Matching(a Attributes) []*Rule {
	var v Evaluation
	v.reset(r, a)
	var rules []*Rule
	for matchers := r.matchersOf(v.request.path); matchers.next(); {
		m := matchers.at
		if !slices.Contains(rules, m.rule) && m.matches(&v.request) {
			rules = append(rules, m.rule)
		}
	}
	return rules
}

// matchersOf walks through the matchers that a path's first segment does not rule out, the most
// specific first.
func (r *Rules) matchersOf(path string) matcherIter {
	if len(path) == 0 || path[0] != '/' {
		return matcherIter{}
	}
	first, _ := cut(path)
	return matcherIter{a: r.index[first], b: r.general}
}

// A matcherIter goes through two lists at once, in the order of specificity.
type matcherIter struct {
	at   *Matcher
	a, b []*Matcher
}

func (w *matcherIter) next() bool {
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

func (v *Evaluation) reset(r *Rules, a Attributes) {
	clear(v.Charges)
	clear(v.Shadows)
	v.TokenError = nil
	v.Unclear, v.ListMatch, v.Tier = "", NotListed, ""
	v.Unchecked = v.Unchecked[:0]
	v.Matched, v.Charges, v.Limits, v.Shadows = v.Matched[:0], v.Charges[:0], v.Limits[:0], v.Shadows[:0]
	q := &v.request
	keys := q.keys[:0]
	for range r.identities {
		keys = append(keys, "")
	}
	*q = request{rules: r, a: a, keys: keys, tier: -1}
	q.method, q.host, q.path = first(a, KindMethod), first(a, KindHost), cmp.Or(first(a, KindPath), "/")
	q.preflight = q.method == "OPTIONS" && r.isPreflight(a)
}

// isPreflight tells whether an OPTIONS request is a CORS preflight as browsers send it. Preflights
// are free, so a request with a body, or with anything that tells who the client is, is an ordinary
// one.
func (r *Rules) isPreflight(a Attributes) bool {
	if a.BodySize() != 0 {
		return false
	}
	for _, name := range [...]string{"Origin", "Access-Control-Request-Method"} {
		if values := a.Lookup(KindHeader, name); len(values) != 1 || values[0] == "" {
			return false
		}
	}
	has := func(name string) bool { return len(a.Lookup(KindHeader, name)) > 0 }
	return !slices.ContainsFunc(notInPreflights, has) && !slices.ContainsFunc(r.identifying, has)
}

// notInPreflights are headers that tell who the client is, that say a body follows, or by which
// some servers take the request for one with another method.
var notInPreflights = []string{"Authorization", "Proxy-Authorization", "Cookie", "Transfer-Encoding",
	"X-Http-Method-Override", "X-Http-Method", "X-Method-Override"}

// inPreflights are headers that browsers send with preflights too.
var inPreflights = []string{"Origin", "User-Agent", "Accept", "Accept-Encoding", "Accept-Language", "Referer",
	"Access-Control-Request-Method", "Access-Control-Request-Headers"}

func (v *Evaluation) has(r *Rule) bool {
	for _, m := range v.Matched {
		if m == r {
			return true
		}
	}
	return false
}

// apply adds what a rule demands.
func (v *Evaluation) apply(m *Matcher) {
	v.Matched = append(v.Matched, m.rule)
	v.request.matcher = m
	if m.rule.NewIdentities != nil && !v.request.isNamed {
		v.noteUnchecked(m.rule)
	}
	var shadow Shadow
	for _, l := range m.rule.Limits {
		charge := v.request.charge(l)
		switch {
		case m.rule.Shadow:
			shadow.Charges = append(shadow.Charges, charge)
			shadow.Limits = append(shadow.Limits, l)
		case l.Shadow:
			v.Shadows = append(v.Shadows, Shadow{Charges: []penstock.Charge{charge}, Limits: []*Limit{l}})
		default:
			v.Charges = append(v.Charges, charge)
			v.Limits = append(v.Limits, l)
		}
		if c := l.Candidate; c != nil {
			v.Shadows = append(v.Shadows, Shadow{Charges: []penstock.Charge{v.request.charge(c)}, Limits: []*Limit{c}, Candidate: true})
		}
	}
	if shadow.Charges != nil {
		v.Shadows = append(v.Shadows, shadow)
	}
}

// inOrder brings rules and charges into the order of the file.
func (v *Evaluation) inOrder() {
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
	if q.isNamed {
		return q.namedCharge(l)
	}
	plan := q.variant(l)
	return penstock.Charge{Key: q.key(l.Key), Plan: plan, Cost: q.cost(l), Patience: l.Patience, Holder: q.holderOf(plan)}
}

// holderOf returns the holder of a charge, if the limit's algorithm refunds by holder.
func (q *request) holderOf(plan *penstock.Plan) string {
	if !plan.Algorithm().OwnsRefunds() {
		return ""
	}
	if q.holder == "" {
		q.holder = rand.Text()
	}
	return q.holder
}

// variant returns the limit's plan for the caller's tier.
func (q *request) variant(l *Limit) *penstock.Plan {
	if len(l.Variants) == 1 {
		return l.Variants[0]
	}
	return l.Variants[q.tierIndex()]
}

// tierIndex finds the caller's tier. The last one takes those that no other has.
func (q *request) tierIndex() int {
	if q.tier >= 0 {
		return q.tier
	}
	last := len(q.rules.spec.Tiers) - 1
	q.tier = last // while the conditions are tested
	for i, t := range q.rules.spec.Tiers[:last] {
		if q.anyHolds(t.AnyOf) {
			q.tier = i
			break
		}
	}
	return q.tier
}

// cost returns what the request costs under a limit. Without a Max, that is up to MaxCost.
func (q *request) cost(l *Limit) int64 {
	c := &l.Cost
	most := cmp.Or(c.Max, penstock.MaxCost)
	switch {
	case c.Body > 0:
		size := max(q.a.BodySize(), 0)
		return min(max(size/c.Body+min(size%c.Body, 1), c.Min), most)
	case c.Header != "":
		values := q.a.Lookup(KindHeader, c.Header)
		if len(values) == 0 {
			return c.Min
		}
		// Clients write the header: one that is malformed or repeated costs the most.
		n, err := strconv.ParseInt(values[0], 10, 64)
		if err != nil || len(values) > 1 {
			return most
		}
		return min(max(n, c.Min), most)
	case c.Methods != nil:
		if n, ok := c.Methods[q.method]; ok {
			return n
		}
		if n, ok := c.Methods["GET"]; ok && q.method == "HEAD" {
			return n
		}
	}
	return c.Units
}

// claims are those of the request's token, if it is verified.
func (q *request) claims() Claims {
	if q.checked {
		return q.token
	}
	q.checked = true
	tokens := &q.rules.spec.Tokens
	if tokens.Verifier == nil {
		return nil
	}
	token, unclear := tokens.Find(q.a)
	switch {
	case unclear != "":
		q.noteUnclear(unclear)
	case token != "" && q.waits && !tokens.Verifier.IsKnown(token):
		q.unverified = true
	case token != "":
		// A token that is rejected says nothing: the request is treated like one without a token.
		q.token, q.tokenErr = tokens.Verifier.Claims(token)
	}
	return q.token
}
