// Package keylimits reads and resets all limits of one key. The admin API and the commands status
// and reset share it, so all three give the same answer.
package keylimits

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/cmd/penstock/internal/rpc/envoyrls"
	"github.com/penstock/penstock/guard"
	"github.com/penstock/penstock/internal/policy/describe"
	"github.com/penstock/penstock/internal/regions"
	"github.com/penstock/penstock/internal/syntax"
	"github.com/penstock/penstock/internal/wording"
	"github.com/penstock/penstock/policy"
)

// MaxLimits is how many limits of a key are read at most. They fill four batches.
const MaxLimits = 4 * penstock.MaxCharges

// A Limit is one limit of a key, with the numbers of one tier.
type Limit struct {
	Rule        string `json:"rule"`
	Limit       string `json:"limit"`
	Kind        string `json:"kind" doc:"enforced, shadow or candidate"`
	Tier        string `json:"tier,omitempty" doc:"the numbers are for clients of this tier"`
	Rate        string `json:"rate"`
	Share       string `json:"share,omitempty" doc:"what this region enforces now of a limit across regions, because it is not in contact with all others"`
	Algorithm   string `json:"algorithm"`
	Stored      string `json:"stored,omitempty" doc:"the name of the limit's state in Redis, if penstock status has read the store itself, or if the state is corrupt"`
	Used        int64  `json:"used" doc:"units; 0 if used_unknown"`
	IsUnknown   bool   `json:"used_unknown,omitempty" doc:"the store gives no answer, or the state is corrupt: used is unknown, and left is what this instance admits alone, such as its share"`
	IsUncounted bool   `json:"uncounted,omitempty" doc:"used is unknown, and the limit fails open: it admits everything, and left says nothing"`
	IsCorrupt   bool   `json:"corrupt,omitempty" doc:"the key in Redis has a value that Penstock did not write: it cannot be read, and requests that the limit counts are decided by on_failure"`
	OnFailure   string `json:"on_failure,omitempty" doc:"if corrupt: what on_failure does with these requests"`
	Left        int64  `json:"left" doc:"units"`
	ResetMS     int64  `json:"reset_after_ms" doc:"milliseconds until no unit is used any more"`
	RetryMS     int64  `json:"retry_after_ms" doc:"milliseconds until one unit is left; 0: now; -1: never"`
	IsDenied    bool   `json:"denies" doc:"it would deny a request of one unit now; a shadow or candidate would do so only if it were enforced. A list of the client decides first"`

	IsUnlisted bool `json:"unlisted,omitempty" doc:"the rule counts only listed values, and that of the key is not listed: only calls of the check API that name the rule count here"`

	key    string
	plan   *penstock.Plan
	share  *penstock.Plan // what is enforced of the plan; nil: all of it
	policy *policy.Limit  // nil if the limit is not in the policy, but in Envoy's files
	guard  guard.Settings
}

const (
	Enforced  = "enforced"
	Shadow    = "shadow"
	Candidate = "candidate"
)

// examples returns examples of the keys that the limits of a policy count. If rule is not "", they
// are those of one rule. If text is a key without its kind, such as the "a1" of key:a1, the
// examples have that value.
func examples(rules *policy.Rules, rule, text string) (keys []string) {
	var identities []*policy.Identity
	for _, r := range rules.Spec().Rules {
		if rule != "" && r.Name != rule {
			continue
		}
		for _, l := range r.Limits {
			if l.Key.FirstOf != nil {
				identities = append(identities, l.Key.FirstOf...)
			} else {
				identities = append(identities, l.Key)
			}
		}
	}
	add := func(id *policy.Identity, value string) {
		if example := id.ExampleKey(value); !slices.Contains(keys, example) {
			keys = append(keys, example)
		}
	}
	_, err := netip.ParseAddr(text)
	isAddress := err == nil
	isValue := isAddress || text != "" && !strings.ContainsAny(text, ":,")
	for _, id := range identities {
		isSingle, takesAddress := id.Source.Kind != policy.KindNone, id.Source.Kind == policy.KindAddress
		if isValue && isSingle && takesAddress == isAddress {
			add(id, text)
		}
	}
	if keys == nil {
		for _, id := range identities {
			add(id, "…")
		}
	}
	return keys
}

// NotCounted returns the text of the error for a key that no limit counts, with keys to write
// instead. If rule is not "", only the limits of that rule were wanted.
func NotCounted(rules *policy.Rules, key, rule string) string {
	hint := "the domain and the entries of a descriptor that the files limit, as in 'rides|api_key=abc'" // all limits are in Envoy's files
	if keys := examples(rules, rule, key); keys != nil {
		hint = strings.Join(keys, ", ")
		if len(keys) > 1 {
			hint = "one of: " + hint
		}
	}
	return fmt.Sprintf("no limit counts under a key such as %q; write %s", wording.Clip(key), hint)
}

// KindOf returns the kind of a limit that is not a candidate.
func KindOf(l *policy.Limit) string {
	if l.Shadow || l.Rule.Shadow {
		return Shadow
	}
	return Enforced
}

// Normalize returns the key under which a policy counts. An address becomes the network that is
// limited as one client, without its zone. Special characters of a value are escaped, as in
// key:a%2Cb for key:a,b.
func Normalize(rules *policy.Rules, key string) string {
	kind, value, _ := strings.Cut(key, ":")
	if address, err := netip.ParseAddr(value); kind == "ip" && err == nil {
		spec := rules.Spec()
		return kind + ":" + syntax.AddressText(address, spec.IPv4Prefix, spec.IPv6Prefix)
	}
	// In an AllOf, a comma separates keys and is not escaped. So its form of the key takes precedence.
	var escaped string
	for _, r := range rules.Spec().Rules {
		for _, l := range r.Limits {
			isFirst := escaped == "" || l.Key.AllOf != nil
			if isFirst && l.Key.CanHaveKey(key) {
				escaped = l.Key.EscapedKey(key)
			}
		}
	}
	return cmp.Or(escaped, key)
}

// Find returns the limits that count under a key, in the order of the policy. If rule is not "", it
// returns only those of that rule. It returns at most MaxLimits, and how many others it skipped.
func Find(rules *policy.Rules, key, rule string) (found []Limit, skipped int) {
	return cut(findAll(rules, key, rule))
}

// cut returns the first MaxLimits limits, and how many others there are.
func cut(all []Limit) (found []Limit, skipped int) {
	found = all[:min(MaxLimits, len(all))]
	return found, len(all) - len(found)
}

// findAll returns the limits of Find without a bound.
func findAll(rules *policy.Rules, key, rule string) (found []Limit) {
	for _, r := range rules.Spec().Rules {
		if rule != "" && r.Name != rule {
			continue
		}
		for _, l := range r.Limits {
			found = append(found, variants(rules, KindOf(l), l, key)...)
			if l.Candidate != nil {
				found = append(found, variants(rules, Candidate, l.Candidate, key)...)
			}
		}
	}
	return found
}

// variants returns a limit for each tier that the client of a key may have, or one limit if the
// tiers do not differ. It returns none if the limit cannot count under the key.
func variants(rules *policy.Rules, kind string, l *policy.Limit, key string) (all []Limit) {
	if !l.Key.CanHaveKey(key) || l.Key.Needs(policy.KindAddress) && isWrongAddress(key) {
		return nil
	}
	tiers, _, isUnlisted := rules.ClientOf(l.Key, key)
	add := func(plan *penstock.Plan, tier string) {
		all = append(all, Limit{Rule: l.Rule.Name, Limit: l.Name, Kind: kind, Tier: tier, Rate: describe.Rate(plan), Algorithm: l.Algorithm, IsUnlisted: isUnlisted, key: key, plan: plan, policy: l, guard: l.Guard})
	}
	if len(l.Variants) == 1 {
		add(l.Variants[0], "")
		return all
	}
	for _, tier := range tiers {
		add(l.Variants[tier], rules.Spec().Tiers[tier].Name)
	}
	return all
}

// isWrongAddress reports whether a key of the kind ip has neither an address nor a network.
func isWrongAddress(key string) bool {
	value, isAddress := strings.CutPrefix(key, "ip:")
	if !isAddress || value == "" || strings.Contains(value, ",") { // the key of an AllOf has other parts
		return false
	}
	_, ok := syntax.ParseNetwork(value)
	return !ok
}

// NewIdentities returns the limits of new_identities, as RULE.LIMIT, that may deny the client of a
// key: an address, or an identity that may be new. If rule is not "", it returns only the limit of
// that rule. Each instance counts them in its own memory, so they are not read or reset with the
// others.
func NewIdentities(rules *policy.Rules, key, rule string) (names []string) {
	for _, r := range rules.Spec().Rules {
		canBeNew := slices.ContainsFunc(r.Limits, func(l *policy.Limit) bool { return !l.Key.Global && l.Key.CanHaveKey(key) })
		if r.NewIdentities != nil && (rule == "" || r.Name == rule) && (canBeNew || strings.HasPrefix(key, "ip:")) {
			names = append(names, r.Name+"."+r.NewIdentities.Name())
		}
	}
	return names
}

// Envoy returns the limits of Envoy's files that were found for a key. If rule is not "", it
// returns only those of that rule.
func Envoy(found []envoyrls.KeyLimit, rule string) (limits []Limit) {
	for _, l := range found {
		if rule != "" && rule != l.Rule {
			continue
		}
		kind := Enforced
		if l.IsShadow {
			kind = Shadow
		}
		limits = append(limits, Limit{Rule: l.Rule, Limit: l.Limit, Kind: kind, Rate: describe.Rate(l.Plan), Algorithm: l.Plan.Algorithm().Title(), key: l.Key, plan: l.Plan, guard: l.Settings})
	}
	return limits
}

// canJoin reports whether a rule may apply to requests that the given limits of a key count. It
// compares no matches, so it may return true for a rule that matches none of these requests.
func canJoin(limits []Limit, rule *policy.Rule) bool {
	return slices.ContainsFunc(limits, func(l Limit) bool {
		if l.policy == nil { // Envoy's limits are counted without a rule of the policy
			return false
		}
		own := l.policy.Rule
		return own == rule || own.Always || rule.Always || own.Shadow
	})
}

// UnderOtherKeys returns the enforced limits, as RULE.LIMIT, that may count the client of a key
// under another key, such as its address. limits are the limits that count under the key itself.
// The other key cannot be computed from this one, so its limits are not read.
func UnderOtherKeys(rules *policy.Rules, key string, limits []Limit) (names []string) {
	if key == syntax.GlobalKey { // of no client
		return nil
	}
	for _, r := range rules.Spec().Rules {
		if !canJoin(limits, r) {
			continue
		}
		for _, l := range r.Limits {
			if isOther := !l.Key.Global && !l.Key.CanHaveKey(key); isOther && KindOf(l) == Enforced {
				names = append(names, r.Name+"."+l.Name)
			}
		}
	}
	return names
}

// Globals returns the limits for all clients together that may deny requests of a key. They are in
// the rules of the given limits of the key, or enforced in rules that may apply together with
// these. Globals returns at most MaxLimits, and how many others it skipped.
func Globals(rules *policy.Rules, limits []Limit) (found []Limit, skipped int) {
	isOwn := func(l *Limit) bool {
		return slices.ContainsFunc(limits, func(other Limit) bool { return other.policy != nil && other.Rule == l.Rule })
	}
	// canHave reports whether a client that one of the limits counts may have the tier of l.
	canHave := func(l *Limit) bool {
		return l.Tier == "" || slices.ContainsFunc(limits, func(other Limit) bool {
			if other.policy == nil || isOwn(l) && other.Rule != l.Rule {
				return false
			}
			hasName := func(tier int) bool { return rules.Spec().Tiers[tier].Name == l.Tier }
			tiers, _, _ := rules.ClientOf(other.policy.Key, other.key)
			return slices.ContainsFunc(tiers, hasName)
		})
	}
	cannotDeny := func(l Limit) bool {
		mayDeny := isOwn(&l) || l.Kind == Enforced
		return !l.policy.Key.Global || !mayDeny || !canJoin(limits, l.policy.Rule) || !canHave(&l)
	}
	return cut(slices.DeleteFunc(findAll(rules, syntax.GlobalKey, ""), cannotDeny))
}

// packBatches puts limits into as few batches as possible. Tiers share a state, and a batch must
// not have a state twice.
func packBatches(limits []Limit) (all [][]*Limit) {
	for i := range limits {
		l := &limits[i]
		hasRoom := func(batch []*Limit) bool {
			return len(batch) < penstock.MaxCharges && !slices.ContainsFunc(batch, l.sharesState)
		}
		at := slices.IndexFunc(all, hasRoom)
		if at < 0 {
			at, all = len(all), append(all, nil)
		}
		all[at] = append(all[at], l)
	}
	return all
}

// sharesState reports whether two limits have one state, as the tiers of a limit do.
func (l *Limit) sharesState(other *Limit) bool {
	return other.plan.ID() == l.plan.ID() && other.key == l.key
}

func (l *Limit) Charge() penstock.Charge {
	return penstock.Charge{Key: l.key, Plan: cmp.Or(l.share, l.plan), Cost: 1, Mode: penstock.Peek}
}

// IsInUse reports whether the limit, as it was read, has counted something or denies.
func (l *Limit) IsInUse() bool { return l.Used > 0 || l.IsDenied }

// ListOf returns the list that has the client of a key: AllowList or DenyList. It returns Unlisted
// if no request can have the key. The limits are those of the key. ListOf returns "" if the client
// is on no list, or if the key alone does not tell.
func ListOf(rules *policy.Rules, limits []Limit) string {
	list, isUnlisted := policy.NotListed, len(limits) > 0
	for i, l := range limits {
		if l.policy == nil { // Envoy's limits know no lists
			return ""
		}
		_, of, _ := rules.ClientOf(l.policy.Key, l.key)
		if i > 0 && of != list {
			return ""
		}
		list, isUnlisted = of, isUnlisted && l.IsUnlisted
	}
	switch {
	case list == policy.AllowListed:
		return AllowList
	case list == policy.DenyListed:
		return DenyList
	case isUnlisted:
		return Unlisted
	}
	return ""
}

// The lists of a policy, and Unlisted for a key that a list of a rule does not have.
const (
	AllowList = "allow"
	DenyList  = "deny"
	Unlisted  = "unlisted"
)

// A Result is what all limits of a key would decide now about a request of one unit, if its client
// has a certain tier.
type Result struct {
	Tier     string   `json:"tier,omitempty" doc:"the result is for clients of this tier; empty: for all"`
	DeniedBy []string `json:"denied_by" doc:"limits, as RULE.LIMIT, that would deny the request; empty: it would be allowed"`
	RetryMS  int64    `json:"retry_after_ms" doc:"milliseconds until none of them denies it; 0: now; -1: never"`
}

// Results returns the result of limits, as they were read, for each tier that the limits have.
// Without tiers it returns one result.
func Results(limits []Limit) (all []Result) {
	for _, l := range limits {
		hasTier := func(v Result) bool { return v.Tier == l.Tier }
		if l.Tier != "" && !slices.ContainsFunc(all, hasTier) {
			all = append(all, Result{Tier: l.Tier})
		}
	}
	if all == nil {
		all = []Result{{}}
	}
	for i := range all {
		all[i].decide(limits)
	}
	return all
}

// decide sets the result of the enforced limits that count the tier.
func (r *Result) decide(limits []Limit) {
	r.DeniedBy = []string{}
	for _, l := range limits {
		isForOthers := l.Tier != "" && l.Tier != r.Tier
		if isForOthers || l.IsUnlisted || l.Kind != Enforced || !l.IsDenied {
			continue
		}
		r.DeniedBy = append(r.DeniedBy, l.Name())
		if isForever := r.RetryMS < 0 || l.RetryMS < 0; isForever {
			r.RetryMS = -1
		} else {
			r.RetryMS = max(r.RetryMS, l.RetryMS)
		}
	}
}

// DeniedBy returns the names of the limits that deny a request whatever the tier of its client. It
// returns none if a tier would be allowed.
func DeniedBy(results []Result) []string {
	denied := []string{}
	for _, v := range results {
		if len(v.DeniedBy) == 0 {
			return []string{}
		}
		for _, name := range v.DeniedBy {
			if !slices.Contains(denied, name) {
				denied = append(denied, name)
			}
		}
	}
	return denied
}

// IsMixed reports whether a request is denied in one tier, and allowed in another.
func IsMixed(results []Result) bool {
	isDenied := func(v Result) bool { return len(v.DeniedBy) > 0 }
	return slices.ContainsFunc(results, isDenied) && len(DeniedBy(results)) == 0
}

// Name returns the limit's name in the policy, RULE.LIMIT.
func (l *Limit) Name() string { return l.Rule + "." + l.Limit }

// DenyCacheTTL returns how long instances may repeat a denial from their caches after a reset.
func (l *Limit) DenyCacheTTL() time.Duration {
	const byDefault = time.Second // the default of guard.DenyOptions.MaxAge
	return max(cmp.Or(l.guard.DenyCacheTTL, byDefault), 0)
}

// HasLease reports whether instances may hold leased units of the limit. A reset keeps them.
func (l *Limit) HasLease() bool { return l.guard.Lease > 0 }

// IsAcross reports whether the limit is across regions. A reset clears it in one region.
func (l *Limit) IsAcross() bool { return regions.IsAcross(l.plan) }

// Milliseconds returns d in milliseconds, rounded up. penstock.Never becomes -1.
func Milliseconds(d time.Duration) int64 {
	if d == penstock.Never {
		return -1
	}
	return int64((d + time.Millisecond - 1) / time.Millisecond)
}
