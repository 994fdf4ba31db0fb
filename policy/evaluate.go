package policy

import (
	"cmp"
	"crypto/rand"
	"slices"
	"strconv"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/match"
)

// A ListMatch names the list of the policy that a request matches.
type ListMatch uint8

// The lists. The deny list is checked first.
const (
	NotListed   ListMatch = iota
	AllowListed           // on the allow list: never limited
	DenyListed            // on the deny list: always rejected
)

// An Evaluation is the result of Rules for one request. It can be reused for another request.
type Evaluation struct {
	// Ambiguous is why the request must be rejected as malformed, or "". The reason is that servers
	// could read different clients from the request, such as from a header that was sent twice. If
	// Ambiguous is set, all other fields are empty. Ambiguous contains nothing that the client sent.
	Ambiguous string

	TokenError *TokenError // why the token is rejected; nil if the token is valid, if there is none, or if no rule needs it

	ListMatch ListMatch
	Matched   []*Rule           // the rules that apply, in the order of the file
	Charges   []penstock.Charge // to be decided as one batch
	Limits    []*Limit          // the limit of each charge
	Shadows   []Shadow          // each is decided separately, also if the request is denied
	Tier      string            // of the client, if rules or limits needed it

	// Invented are the identities that clients can invent, of rules with NewIdentities. The caller
	// must handle them before the charges are decided; see InventedIdentity.
	Invented []InventedIdentity

	request request
}

// A Shadow is a batch that is counted and reported, and never enforced.
type Shadow struct {
	Charges   []penstock.Charge
	Limits    []*Limit
	Candidate bool // true: a candidate of a limit; false: a shadow rule, or a limit with shadow: true
}

// request is what is known about a request so far.
type request struct {
	rules               *Rules
	attributes          Attributes
	isNamedCall         bool   // a program calls a rule by its name: see EvaluateRule. There are no attributes
	callerKey           string // the key that the program gives, if isNamedCall
	callerCost          int64  // the cost that it gives
	method              string
	host                string
	path                string
	matcher             *matcher // of the current rule
	isPreflight         bool     // only rules that name OPTIONS match it
	keys                []string // by Identity.keyNumber - 1; "" if not computed yet
	knownTierIndex      int      // in Spec.Tiers; -1 if not computed yet
	holder              string   // the holder of all charges that need one; "" if none was made yet
	isTokenChecked      bool     // the token was verified, or there is none
	tokenClaims         Claims   // of the verified token
	tokenError          *TokenError
	isBeforeAuth        bool   // no signature may be checked yet
	hasSkippedCheck     bool   // a signature check was skipped because of isBeforeAuth
	isGrantedBeforeAuth bool   // the rules with before_auth have granted the request, and are skipped
	hasMethodOverride   bool   // some servers use another method
	ambiguous           string // the first value for Evaluation.Ambiguous
}

// Evaluate finds the charges of a request, and sets v to the result.
func (r *Rules) Evaluate(a Attributes, v *Evaluation) {
	v.reset(r, a)
	r.evaluate(v)
	v.finish(r, a)
}

// finish sets the result of an Evaluation. An ambiguous request has no charges. Such a request is
// rejected as malformed, unless the deny list rejects it.
func (v *Evaluation) finish(r *Rules, a Attributes) {
	v.TokenError = v.request.tokenError
	if v.request.ambiguous != "" && v.ListMatch != DenyListed {
		why := v.request.ambiguous
		v.reset(r, a)
		v.Ambiguous = why
	}
}

// evaluate finds the rules that apply, and adds their charges. The caller calls reset before it,
// and finish after it.
func (r *Rules) evaluate(v *Evaluation) {
	q := &v.request
	switch {
	case q.anyHolds(r.spec.Deny):
		v.ListMatch = DenyListed
		return
	case q.anyHolds(r.spec.Allow):
		v.ListMatch = AllowListed
		return
	}
	var selected selection
	for matchers := r.matchersOf(q.path); matchers.next(); {
		m := matchers.current
		isGranted := m.rule.BeforeAuth && q.isGrantedBeforeAuth
		if isGranted || !selected.canAdd(m) || v.has(m.rule) || !m.matches(q) {
			continue
		}
		selected.add(m)
		v.apply(m)
	}
	if len(v.Matched) > 1 {
		v.sortByOrder()
	}
	if q.knownTierIndex >= 0 && len(r.spec.Tiers) > 0 {
		v.Tier = r.spec.Tiers[q.knownTierIndex].Name
	}
}

// A selection has the rules that apply to a request because they are specific. They are one
// enforced rule, and one shadow rule that is at least as specific. Rules with Always apply besides
// these.
type selection struct{ enforced, shadow *matcher }

// canAdd reports whether a rule applies if it matches. The matchers must come in the order of
// specificity.
func (s *selection) canAdd(m *matcher) bool {
	switch {
	case m.rule.Always:
		return true
	case m.rule.Shadow:
		isLessSpecific := s.enforced != nil && s.enforced.Compare(m.Matcher) != 0
		return s.shadow == nil && !isLessSpecific
	}
	return s.enforced == nil
}

func (s *selection) add(m *matcher) {
	switch {
	case m.rule.Always:
	case m.rule.Shadow:
		s.shadow = m
	default:
		s.enforced = m
	}
}

// Matching returns all rules that match a request, the most specific first, whether they apply or
// not.
func (r *Rules) Matching(a Attributes) []*Rule {
	var v Evaluation
	v.reset(r, a)
	var rules []*Rule
	for matchers := r.matchersOf(v.request.path); matchers.next(); {
		m := matchers.current
		if !slices.Contains(rules, m.rule) && m.matches(&v.request) {
			rules = append(rules, m.rule)
		}
	}
	return rules
}

// matchersOf returns the matchers that the first segment of a path does not exclude, the most
// specific first.
func (r *Rules) matchersOf(path string) matcherIter {
	if len(path) == 0 || path[0] != '/' {
		return matcherIter{}
	}
	first, _ := match.CutSegment(path)
	return matcherIter{indexed: r.byFirstSegment[first], general: r.general}
}

// A matcherIter merges two lists of matchers, both ordered by specificity.
type matcherIter struct {
	current          *matcher
	indexed, general []*matcher // the matchers that next has not returned yet
}

// next sets current to the next matcher, or returns false at the end.
func (it *matcherIter) next() bool {
	switch {
	case len(it.indexed) > 0 && (len(it.general) == 0 || it.indexed[0].order < it.general[0].order):
		it.current, it.indexed = it.indexed[0], it.indexed[1:]
	case len(it.general) > 0:
		it.current, it.general = it.general[0], it.general[1:]
	default:
		return false
	}
	return true
}

// reset removes the results of the previous request, and begins with another one.
func (v *Evaluation) reset(r *Rules, a Attributes) {
	clear(v.Charges)
	clear(v.Shadows)
	v.TokenError = nil
	v.Ambiguous, v.ListMatch, v.Tier = "", NotListed, ""
	v.Invented = v.Invented[:0]
	v.Matched, v.Charges, v.Limits, v.Shadows = v.Matched[:0], v.Charges[:0], v.Limits[:0], v.Shadows[:0]
	q := &v.request
	keys := q.keys[:0]
	for range r.keyCount {
		keys = append(keys, "")
	}
	*q = request{rules: r, attributes: a, keys: keys, knownTierIndex: -1}
	q.method, q.host, q.path = firstValue(a, KindMethod), firstValue(a, KindHost), cmp.Or(firstValue(a, KindPath), "/")
	q.isPreflight = q.method == "OPTIONS" && r.isPreflight(a)
	q.hasMethodOverride = r.names.hasMethods && isMethodOverridden(a, q.method)
	if why := r.names.explain(a); why != "" {
		q.noteAmbiguous(why)
	}
}

// isPreflight reports whether an OPTIONS request is a CORS preflight as browsers send it. A
// preflight is limited only by rules that name OPTIONS or have Always. Clients must not use this
// exception to evade other rules. So a request with a body, or with anything that identifies the
// client, does not count as a preflight.
func (r *Rules) isPreflight(a Attributes) bool {
	if a.BodySize() != 0 {
		return false
	}
	for _, name := range [...]string{"Origin", "Access-Control-Request-Method"} {
		if values := a.Lookup(KindHeader, name); len(values) != 1 || values[0] == "" {
			return false
		}
	}
	hasHeader := func(name string) bool { return len(a.Lookup(KindHeader, name)) > 0 }
	return !slices.ContainsFunc(notInPreflights, hasHeader) && !slices.ContainsFunc(r.identifying, hasHeader)
}

// notInPreflights are headers that identify the client, that announce a body, or that make some
// servers use another method.
var notInPreflights = append([]string{"Authorization", "Proxy-Authorization", "Cookie", "Transfer-Encoding"}, methodOverrides...)

// inPreflights are headers that browsers also send with preflights.
var inPreflights = []string{"Origin", "User-Agent", "Accept", "Accept-Encoding", "Accept-Language", "Referer",
	"Access-Control-Request-Method", "Access-Control-Request-Headers"}

func (v *Evaluation) has(r *Rule) bool {
	return slices.Contains(v.Matched, r)
}

func (v *Evaluation) apply(m *matcher) {
	v.Matched = append(v.Matched, m.rule)
	v.request.matcher = m
	if m.rule.NewIdentities != nil && !v.request.isNamedCall {
		v.noteInvented(m.rule)
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

// sortByOrder sorts rules and charges into the order of the file.
func (v *Evaluation) sortByOrder() {
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
	if q.isNamedCall {
		return q.namedCharge(l)
	}
	plan := q.planOf(l)
	return penstock.Charge{Key: q.key(l.Key), Plan: plan, Cost: q.cost(l), Patience: l.Patience, Holder: q.holderOf(plan)}
}

// holderOf returns the ID under which the limit's algorithm records the units of the request, so
// that only the request itself can return them. It is "" if the algorithm records no IDs.
func (q *request) holderOf(plan *penstock.Plan) string {
	if !plan.Algorithm().OwnsRefunds() {
		return ""
	}
	if q.holder == "" {
		q.holder = rand.Text()
	}
	return q.holder
}

func (q *request) planOf(l *Limit) *penstock.Plan {
	if len(l.Variants) == 1 {
		return l.Variants[0]
	}
	return l.Variants[q.tierIndex()]
}

// tierIndex finds the client's tier. The last tier has all clients that are in no other tier.
func (q *request) tierIndex() int {
	if q.knownTierIndex >= 0 {
		return q.knownTierIndex
	}
	last := len(q.rules.spec.Tiers) - 1
	q.knownTierIndex = last // a condition that depends on the tier reads this one, so there is no endless recursion
	for i, t := range q.rules.spec.Tiers[:last] {
		if q.anyHolds(t.AnyOf) {
			q.knownTierIndex = i
			break
		}
	}
	return q.knownTierIndex
}

// cost returns the cost of the request under a limit, in units. The cost is at most Max, or MaxCost
// without a Max.
func (q *request) cost(l *Limit) int64 {
	c := &l.Cost
	most := cmp.Or(c.Max, penstock.MaxCost)
	switch {
	case c.Body > 0:
		size := max(q.attributes.BodySize(), 0)
		units := size / c.Body
		if size%c.Body > 0 {
			units++
		}
		return min(max(units, c.Min), most)
	case c.Header != "":
		values := q.attributes.Lookup(KindHeader, c.Header)
		if len(values) == 0 {
			return c.Min
		}
		// Clients write the header, so a malformed or repeated header costs the maximum.
		n, err := strconv.ParseInt(values[0], 10, 64)
		if err != nil || len(values) > 1 {
			return most
		}
		return min(max(n, c.Min), most)
	case c.Methods != nil:
		q.noteMethod()
		if n, ok := c.Methods[q.method]; ok {
			return n
		}
		if n, ok := c.Methods["GET"]; ok && q.method == "HEAD" {
			return n
		}
	}
	return c.Units
}

// claims returns the claims of the request's token, or nil if it has no valid one.
func (q *request) claims() Claims {
	if q.isTokenChecked {
		return q.tokenClaims
	}
	q.isTokenChecked = true
	tokens := &q.rules.spec.Tokens
	if tokens.Verifier == nil {
		return nil
	}
	token, ambiguous := tokens.Find(q.attributes)
	switch {
	case ambiguous != "":
		q.noteAmbiguous(ambiguous)
	case token != "" && q.isBeforeAuth && !tokens.Verifier.IsKnown(token):
		q.hasSkippedCheck = true
	case token != "":
		// A rejected token has no claims: the request is treated like one without a token.
		q.tokenClaims, q.tokenError = tokens.Verifier.Claims(token)
	}
	return q.tokenClaims
}
