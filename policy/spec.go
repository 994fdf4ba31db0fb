package policy

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/guard"
	"github.com/penstock/penstock/internal/fieldvalues"
	"github.com/penstock/penstock/internal/match"
	"github.com/penstock/penstock/internal/reserved"
	"github.com/penstock/penstock/internal/syntax"
)

// A Spec is a policy as data. Package policyfile makes one from a file. Go code can fill one in,
// and Simple makes the simplest. New makes Rules from it.
type Spec struct {
	Name string // for messages and descriptions

	// ApplyAll applies every rule that matches a request. By default the most specific rule applies,
	// and all rules with Always.
	ApplyAll bool

	Rules       []*Rule
	Tiers       []Tier      // a client has the first tier whose conditions hold
	Allow, Deny []Condition // clients that are never limited, and clients that are always rejected. Deny is checked first
	Tokens      Tokens

	// Identities are further identities, besides those of the rules. A request with a header of any
	// identity is not treated as a CORS preflight. Only rules that name OPTIONS limit preflights.
	Identities []*Identity

	Paths Paths // how paths are read before they are matched

	// IPv4Prefix and IPv6Prefix are prefix lengths in bits. All addresses of a network with such a
	// prefix are limited like one address. Default: 32 and 64.
	IPv4Prefix, IPv6Prefix int

	// MaxWaiting is how many requests may wait at the same time in one process. Further ones are
	// denied instead of waiting. Default: 1000.
	MaxWaiting int

	// Sections are parts of the policy for users of the Rules, such as transports. Each user finds its
	// own by its type; see SectionOf.
	Sections []any
}

// A Tier is a class of clients, such as free or premium.
type Tier struct {
	Name      string
	IsDefault bool        // has all clients that are in no other tier; only for the last tier
	AnyOf     []Condition // one of them must hold
}

// Simple returns a policy with one rule. The limits of this rule charge every request, and are
// decided together. A request costs one unit at first. Its true cost may be set afterwards, for all
// limits that can refund units. The true cost is at least one unit, unless IsMinimum of the limit
// is set to false. onFailure is the failure mode of the limits; guard.FailDefault means
// guard.FailLocal.
func Simple(name string, key *Identity, onFailure guard.FailureMode, limits ...penstock.Limit) (Spec, error) {
	if onFailure == guard.FailDefault {
		onFailure = guard.FailLocal
	}
	rule := &Rule{Name: name}
	for _, limit := range limits {
		limit.Group = name
		plan, err := limit.Compile()
		if err != nil {
			return Spec{}, fmt.Errorf("policy %q: %w", name, err)
		}
		rule.Limits = append(rule.Limits, &Limit{
			Name: plan.Name(), Key: key, Cost: Cost{Units: 1}, Variants: []*penstock.Plan{plan},
			Guard: guard.Settings{OnFailure: onFailure}, InHeaders: true,
			Adjustable: plan.Algorithm().CanRefund(), IsMinimum: true,
		})
	}
	return Spec{Name: name, Rules: []*Rule{rule}}, nil
}

// New makes Rules from a Spec. The Rules keep a copy of the Spec, but share its maps, conditions
// and values, which must not be changed afterwards. The error reports every mistake and wraps
// penstock.ErrInvalid.
func New(spec Spec) (*Rules, error) {
	b := builder{rules: &Rules{spec: spec}, copies: make(map[*Identity]*Identity)}
	b.build()
	if err := errors.Join(b.errs...); err != nil {
		return nil, fmt.Errorf("%w: policy %q: %w", penstock.ErrInvalid, spec.Name, err)
	}
	return b.rules, nil
}

// A builder makes Rules. After a mistake it continues, to find them all.
type builder struct {
	rules  *Rules
	copies map[*Identity]*Identity // the copy of each identity of the Spec
	errs   []error
}

func (b *builder) fail(format string, args ...any) {
	b.errs = append(b.errs, fmt.Errorf(format, args...))
}

func (b *builder) build() {
	spec := &b.rules.spec
	spec.Tiers, spec.Rules = slices.Clone(spec.Tiers), slices.Clone(spec.Rules)
	if spec.MaxWaiting <= 0 {
		spec.MaxWaiting = fieldvalues.DefaultMaxWaiting
	}
	b.addIdentifyingHeader(spec.Tokens.Header)
	if spec.Tokens.Header != "" {
		b.rules.names.addSource(Header(spec.Tokens.Header))
	}
	if spec.Tokens.Cookie != "" {
		b.rules.names.addSource(Source{Kind: KindCookie, Name: spec.Tokens.Cookie})
	}
	for i := range spec.Tiers {
		t := &spec.Tiers[i]
		if isLast := i == len(spec.Tiers)-1; t.IsDefault != isLast {
			b.fail("tier %q: the last tier, and no other, has all other clients; set IsDefault in the last tier only", t.Name)
		}
		t.AnyOf = b.conditions(t.AnyOf)
	}
	spec.Allow, spec.Deny = b.conditions(spec.Allow), b.conditions(spec.Deny)
	spec.Identities = b.identities(spec.Identities)
	b.rules.byName = make(map[string]*Rule, len(spec.Rules))
	for i, rule := range spec.Rules {
		if rule == nil {
			b.fail("rule %d is nil; write a &policy.Rule{…}", i+1)
			spec.Rules[i] = &Rule{}
			continue
		}
		if !syntax.IsName(rule.Name) {
			b.fail("%q is not a name for a rule; write 1 to 64 of a-z, 0-9, '_', '.' and '-'", rule.Name)
		}
		if strings.HasPrefix(rule.Name, reserved.Prefix) {
			b.fail("rule %q: names that begin with %s are reserved; rename it", rule.Name, reserved.Prefix)
		}
		if b.rules.byName[rule.Name] != nil {
			b.fail("two rules are called %q; rename one, because counters are kept under the name", rule.Name)
		}
		spec.Rules[i] = b.rule(rule, i)
		b.rules.byName[rule.Name] = spec.Rules[i]
	}
	b.indexMatchers()
	b.rules.indexSettings()
}

func (b *builder) rule(rule *Rule, order int) *Rule {
	r := *rule
	r.order = order
	r.countsPreflights = r.Always
	r.Always = r.Always || r.BeforeAuth || b.rules.spec.ApplyAll
	if r.Unlimited != (len(r.Limits) == 0) {
		b.fail("rule %q: a rule has Limits or is Unlimited; set exactly one of the two", r.Name)
	}
	if len(r.Limits) > penstock.MaxCharges {
		b.fail("rule %q has %d limits; the most is %d", r.Name, len(r.Limits), penstock.MaxCharges)
	}
	isShadow := func(l *Limit) bool { return l != nil && (l.Shadow || l.Candidate != nil) } // nil is reported below
	hasShadow := r.Shadow || slices.ContainsFunc(r.Limits, isShadow)
	if r.BeforeAuth && (hasShadow || r.Unlimited || r.NewIdentities != nil) {
		b.fail("rule %q: BeforeAuth cannot be combined with Unlimited, Shadow, NewIdentities or a Candidate; remove one of them", r.Name)
	}
	r.Match.Where = b.condition(r.Match.Where, false)
	if len(r.Match.Methods) > 0 {
		b.rules.names.addMethods()
	}
	r.matchers, r.Match.Paths = nil, slices.Clone(r.Match.Paths)
	var paths []match.Pattern
	for i, text := range r.Match.Paths {
		path, err := match.ParsePattern(text, b.rules.spec.Paths.Clean, b.rules.spec.Paths.IgnoreTrailingSlash)
		if err != nil {
			b.fail("rule %q: %w", r.Name, err)
			return &r
		}
		paths, r.Match.Paths[i] = append(paths, path), path.String()
	}
	for _, m := range match.Matchers(r.Match.Methods, r.Match.Hosts, paths, len(r.Match.Where)) {
		r.matchers = append(r.matchers, &matcher{Matcher: m, where: r.Match.Where, rule: &r})
	}
	r.Limits = slices.Clone(r.Limits)
	for i, limit := range r.Limits {
		l := b.limit(&r, limit)
		if slices.ContainsFunc(r.Limits[:i], func(other *Limit) bool { return other.Name == l.Name }) {
			b.fail("rule %q has two limits called %q; rename one", r.Name, l.Name)
		}
		if l.Candidate != nil {
			l.Candidate = b.limit(&r, l.Candidate)
		}
		r.Limits[i] = l
	}
	return &r
}

func (b *builder) limit(r *Rule, limit *Limit) *Limit {
	if limit == nil {
		b.fail("rule %q: a limit is nil; write a &policy.Limit{…}", r.Name)
		return &Limit{Rule: r}
	}
	l := *limit
	l.Rule = r
	l.FullName = r.Name + "." + l.Name
	if l.Key == nil {
		b.fail("limit %q: it has no Key; set one, such as ByAddress() or Global()", l.FullName)
		return &l
	}
	if l.Guard.OnFailure == guard.FailDefault {
		l.Guard.OnFailure = guard.FailLocal
	}
	l.Key = b.identity(l.Key)
	if l.Cost.Header != "" {
		b.rules.names.addSource(Header(l.Cost.Header))
	}
	if l.Cost.Methods != nil {
		b.rules.names.addMethods()
	}
	l.Variants = slices.Clone(l.Variants)
	if n := len(l.Variants); n != 1 && (n == 0 || n != len(b.rules.spec.Tiers)) {
		b.fail("limit %q has %d Variants; write one, or one for each tier", l.FullName, n)
		return &l
	}
	for i, plan := range l.Variants {
		// Counters are kept under the names of the rule and the limit, so the plan must have these names.
		if plan.Name() == l.Name && plan.Group() == r.Name {
			continue
		}
		limit := plan.Limit()
		limit.Name, limit.Group = l.Name, r.Name
		renamed, err := limit.Compile()
		if err != nil {
			b.errs = append(b.errs, err)
			return &l
		}
		l.Variants[i] = renamed
	}
	l.Algorithm = l.Variants[0].Algorithm().Title()
	return &l
}

func (b *builder) conditions(list []Condition) []Condition {
	list = slices.Clone(list)
	for i := range list {
		list[i] = b.condition(list[i], true)
	}
	return list
}

// condition returns a copy of a condition. isIdentity is for conditions on the client.
func (b *builder) condition(c Condition, isIdentity bool) Condition {
	c = slices.Clone(c)
	for i := range c {
		c[i] = b.test(c[i])
		c[i].isIdentity = isIdentity
		if isIdentity && c[i].Source.Kind == KindHeader {
			b.addIdentifyingHeader(c[i].Source.Name)
		}
	}
	return c
}

// test returns a copy of a test. Listed segments get the form of canonical paths.
func (b *builder) test(t Test) Test {
	b.rules.names.addSource(t.Source)
	if t.Source.Identity != nil {
		t.Source.Identity = b.identity(t.Source.Identity)
	}
	if t.Source.Kind == KindSegment {
		texts := make(map[string]struct{}, len(t.texts))
		for text := range t.texts {
			if clean, err := match.CleanSegment(text, true, b.rules.spec.Paths.Clean); err == nil {
				text = clean
			}
			texts[text] = struct{}{}
		}
		t.texts = texts
	}
	return t
}

// identity returns a copy of an identity. The copy gets an index in request.keys, unless its key
// depends on the rule that matched. An identity that the Spec uses several times is copied once.
func (b *builder) identity(id *Identity) *Identity {
	if known := b.copies[id]; known != nil {
		return known
	}
	copied := *id
	b.copies[id] = &copied
	b.rules.names.addSource(copied.Source)
	copied.FirstOf, copied.AllOf = b.identities(id.FirstOf), b.identities(id.AllOf)
	isCompound := copied.FirstOf != nil || copied.AllOf != nil
	if !copied.Global && copied.Func == nil && !isCompound && !syntax.IsKind(copied.Kind) {
		b.fail("%q cannot be the kind of an identity; write 1 to 20 of a-z, 0-9 and -, beginning with a letter", copied.Kind)
	}
	if copied.Source.Kind == KindHeader {
		b.addIdentifyingHeader(copied.Source.Name)
	}
	if copied.AllowedValues != nil {
		allowed := b.test(*copied.AllowedValues)
		copied.AllowedValues = &allowed
	}
	if !copied.Global && len(copied.Segments()) == 0 {
		b.rules.keyCount++
		copied.keyNumber = b.rules.keyCount
	}
	return &copied
}

func (b *builder) identities(list []*Identity) (copies []*Identity) {
	for _, one := range list {
		copies = append(copies, b.identity(one))
	}
	return copies
}

// addIdentifyingHeader adds a header to Rules.identifying, if it belongs there.
func (b *builder) addIdentifyingHeader(name string) {
	if name == "" || slices.Contains(inPreflights, name) || slices.Contains(b.rules.identifying, name) {
		return
	}
	b.rules.identifying = append(b.rules.identifying, name)
}

// indexMatchers builds the indices by which a request finds its matchers.
func (b *builder) indexMatchers() {
	var matchers []*matcher
	for _, rule := range b.rules.spec.Rules {
		for _, m := range rule.matchers {
			m.order = len(matchers)
			matchers = append(matchers, m)
		}
	}
	slices.SortStableFunc(matchers, bySpecificity)
	b.rules.byFirstSegment = make(map[string][]*matcher)
	for i, m := range matchers {
		m.order = i
		if m.Path[0].Kind == match.Literal {
			b.rules.byFirstSegment[m.Path[0].Text] = append(b.rules.byFirstSegment[m.Path[0].Text], m)
		} else {
			b.rules.general = append(b.rules.general, m)
		}
		if m.rule.BeforeAuth {
			b.rules.beforeAuth = append(b.rules.beforeAuth, m)
		}
	}
}
