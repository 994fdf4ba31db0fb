package policy

import (
	"cmp"
	"slices"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/guard"
	"github.com/penstock/penstock/internal/match"
)

// Rules are a compiled policy. Make Rules with New. They never change, and many goroutines may use
// them at the same time.
type Rules struct {
	spec           Spec
	byFirstSegment map[string][]*matcher      // matchers by the literal first segment of their paths, the most specific first
	general        []*matcher                 // matchers whose paths begin with a pattern, the most specific first
	beforeAuth     []*matcher                 // matchers of rules with BeforeAuth
	keyCount       int                        // the length of request.keys
	settings       map[string][]limitSettings // by rule
	byName         map[string]*Rule
	names          readNames // of the headers, cookies and parameters that the policy reads

	// identifying are the headers that tokens, identities and lists read. A request with one of them
	// is no CORS preflight. So the list leaves out inPreflights, which preflights may have.
	identifying []string
}

// A Rule says how the requests that it matches are limited.
type Rule struct {
	Name       string // 1 to 64 of a-z, 0-9, '_', '.' and '-'; counters are kept under it
	Match      Match
	Always     bool // applies in addition to the most specific rule, and to CORS preflights too
	BeforeAuth bool // decided in a separate call before a token is verified; New sets Always too
	Unlimited  bool // has no Limits: its requests are not limited
	Shadow     bool // counted and reported, never enforced
	Limits     []*Limit

	// NewIdentities is how many new identities one address may send to the rule. Nil: any number.
	NewIdentities *penstock.Plan

	matchers []*matcher
	order    int // the place in the policy

	countsPreflights bool // the author set Always, so the rule limits CORS preflights too
}

// A Match describes which requests a rule matches. The zero value matches all.
type Match struct {
	Methods []string // none: any. GET includes HEAD, unless another rule names HEAD

	// Hosts are names such as api.example.com, in lower case, or *.example.com for all hosts below it.
	// None, or an empty one: any.
	Hosts []string

	// Paths are patterns. In them, {name} is one segment, * any part of one, and /** at the end
	// everything below. None: any. New converts them to the canonical form of Spec.Paths.
	Paths []string

	Where Condition // must also hold
}

// IsAll reports whether every request matches.
func (m *Match) IsAll() bool {
	isAnyHost := len(m.Hosts) == 0 || slices.Contains(m.Hosts, "")
	isAnyPath := len(m.Paths) == 0 || slices.Contains(m.Paths, "/**")
	return len(m.Methods) == 0 && len(m.Where) == 0 && isAnyHost && isAnyPath
}

// A Limit is one limit of a rule.
type Limit struct {
	Rule       *Rule          // New sets it
	Name       string         // the name within the rule
	FullName   string         // in responses and messages: the name of the rule, a dot, and Name
	Algorithm  string         // the name of the algorithm
	Patience   time.Duration  // the longest time that a request may wait for its turn
	Guard      guard.Settings // for the guards around a store. OnFailure is Open, Closed or Local; see Rules.Settings
	Shadow     bool           // counted and reported, never enforced
	InHeaders  bool           // response headers report it
	CostHeader string         // the response header with the true cost
	Adjustable bool           // the true cost is known afterwards, by the header CostHeader or by the handler
	IsMinimum  bool           // the true cost of an Adjustable limit is at least what was charged, so nothing is refunded
	Status     *Statuses      // charges only requests whose response has such a status; nil: all
	Candidate  *Limit         // a shadow with other numbers; it counts beside this limit

	Key      *Identity
	Cost     Cost
	Variants []*penstock.Plan // one plan for each tier, or one if they do not differ

	SubWindows int    // the number of sub-windows of the algorithm sub-window; only for descriptions
	Timezone   string // of a calendar window; only for descriptions
}

// A Cost is how many units a request costs. The zero value is no units.
type Cost struct {
	Units   int64            // the cost if none of the fields below sets it
	Methods map[string]int64 // by method; GET includes HEAD
	Header  string           // the number in this request header
	Body    int64            // bytes of the body for one unit, rounded up; 0: the body does not matter
	Min     int64            // smallest cost by Header or Body
	Max     int64            // largest cost by Header or Body; 0: penstock.MaxCost
}

// Enforces reports whether a rule has a limit that is not a shadow.
func (r *Rule) Enforces() bool {
	return slices.ContainsFunc(r.Limits, func(l *Limit) bool { return !l.Shadow })
}

// Covers reports whether the rule matches all requests that another one matches, whatever their
// Match.Where are. Each path is compared with one other path: /** covers /api/**, but /a/** and
// /b/** together are not seen to cover another path.
func (r *Rule) Covers(other *Rule) bool {
	isCovered := func(o *matcher) bool {
		return slices.ContainsFunc(r.matchers, func(m *matcher) bool { return m.CoversTarget(o.Matcher) })
	}
	return !slices.ContainsFunc(other.matchers, func(o *matcher) bool { return !isCovered(o) })
}

// Settings returns how guards treat a limit, for guard.Options.Limits. The settings are zero for
// limits that are not in the Rules, except those of reserved groups. A shadow is neither
// leased nor split, and it is not counted while the store gives no answer.
func (r *Rules) Settings(limit *penstock.Plan) guard.Settings {
	ofRule := r.settings[limit.Group()] // the Group of a limit is the name of its rule
	for i := range ofRule {
		if ofRule[i].limit == limit.Name() {
			return ofRule[i].settings
		}
	}
	return reservedSettings(limit)
}

// limitSettings are the settings of a limit, by its name within the rule.
type limitSettings struct {
	limit    string
	settings guard.Settings
}

// indexSettings lets Settings find the settings of each limit.
func (r *Rules) indexSettings() {
	r.settings = make(map[string][]limitSettings, len(r.spec.Rules))
	for _, rule := range r.spec.Rules {
		var all []limitSettings
		for _, l := range rule.Limits {
			all = append(all, limitSettings{l.Name, l.Guard})
			if c := l.Candidate; c != nil {
				all = append(all, limitSettings{c.Name, c.Guard})
			}
		}
		r.settings[rule.Name] = all
	}
}

// A RuleSource has the rules in force. *Rules are the source of rules that are never reloaded, and
// a *policyfile.Watcher is the source of those in a file.
type RuleSource interface {
	// Rules returns the rules in force. It is called for each request, so it must be quick. Many
	// goroutines call it at the same time.
	Rules() *Rules
}

// Rules implements RuleSource.
func (r *Rules) Rules() *Rules { return r }

// Spec returns the Spec of the Rules. The Spec must not be changed.
func (r *Rules) Spec() Spec { return r.spec }

// Rule returns the rule with this name, or nil.
func (r *Rules) Rule(name string) *Rule { return r.byName[name] }

// Limit returns the limit with this name in the rule with this name, or nil. A shadow is found too.
func (r *Rules) Limit(rule, limit string) *Limit {
	found := r.Rule(rule)
	if found == nil {
		return nil
	}
	for _, l := range found.Limits {
		if l.Name == limit {
			return l
		}
	}
	return nil
}

// Plans returns the plans of all limits. The plans of each rule have the order in which a request
// charges them: first the enforced limits, which are one batch, then the shadows. A store loads the
// scripts that these plans need.
func (r *Rules) Plans() (plans []*penstock.Plan) {
	for _, rule := range r.spec.Rules {
		var shadows []*penstock.Plan
		for _, l := range rule.Limits {
			if l.Shadow {
				shadows = append(shadows, l.Variants...)
			} else {
				plans = append(plans, l.Variants...)
			}
			if l.Candidate != nil {
				shadows = append(shadows, l.Candidate.Variants...)
			}
		}
		plans = append(plans, shadows...)
	}
	return plans
}

// ReadsHeader reports whether the policy reads the header field with this name, in any case.
func (r *Rules) ReadsHeader(name string) bool { return r.names.hasHeader(name) }

// SectionOf returns the part of Spec.Sections that has type T, if there is one.
func SectionOf[T any](r *Rules) (section T, ok bool) {
	for _, one := range r.spec.Sections {
		if section, ok = one.(T); ok {
			return section, true
		}
	}
	return section, false
}

// Statuses is a set of HTTP status codes below 640, one bit for each.
type Statuses [10]uint64

// Has reports whether a status is in the set.
func (s *Statuses) Has(status int) bool {
	return status >= 0 && status < 64*len(s) && s[status/64]>>(status%64)&1 != 0
}

// Add adds all statuses between from and to, including from and to themselves.
func (s *Statuses) Add(from, to int) {
	for status := from; status <= to; status++ {
		s[status/64] |= 1 << (status % 64)
	}
}

// A matcher is one way in which a request can match a rule.
type matcher struct {
	*match.Matcher
	where Condition
	rule  *Rule
	order int // the place in the policy; after New, the place by specificity
}

func (m *matcher) matches(q *request) bool {
	if q.isPreflight && len(m.Methods) == 0 && !m.rule.countsPreflights {
		return false
	}
	if !m.MatchesHost(q.host) || !m.Path.Matches(q.path) {
		return false
	}
	if len(m.Methods) > 0 {
		q.noteMethod()
	}
	return m.MatchesMethod(q.method) && q.holds(m.where)
}

// bySpecificity orders matchers as Compare does. Equal matchers keep their order.
func bySpecificity(a, b *matcher) int {
	return cmp.Or(a.Compare(b.Matcher), cmp.Compare(a.order, b.order))
}
