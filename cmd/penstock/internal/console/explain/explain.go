// Package explain shows which limits apply to a request: the matching rules, the identity, the
// charged limits in their order, and their keys in the store.
package explain

import (
	"context"
	"fmt"
	"io"
	"math"
	"net/http"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/cmd/penstock/internal/console/keylimits"
	"github.com/penstock/penstock/cmd/penstock/internal/text/printable"
	"github.com/penstock/penstock/guard"
	"github.com/penstock/penstock/httplimit"
	"github.com/penstock/penstock/internal/policy/describe"
	"github.com/penstock/penstock/internal/regions"
	"github.com/penstock/penstock/memstore"
	"github.com/penstock/penstock/policy"
	"github.com/penstock/penstock/redisstore"
)

type Report struct {
	Method  string   `json:"method"`
	Path    string   `json:"path"`
	Address string   `json:"address"` // of the client; "unix" if the client has none
	Tier    string   `json:"tier,omitempty"`
	List    string   `json:"list,omitempty"`   // "allow" or "deny"
	Doubts  []string `json:"doubts,omitempty"` // why the token or an identity of the request is rejected, and that no limit is enforced although shadows count the request
	Rules   []Rule   `json:"rules"`
	Charges []Charge `json:"charges"` // decided together, all or nothing, in this order
	Shadows []Charge `json:"shadows,omitempty"`
	Allowed *bool    `json:"allowed,omitempty"` // by the store; nil: the store was not read
	Unread  []string `json:"unread,omitempty"`  // limits of new_identities, as RULE.LIMIT, which may deny the request too: only the memory of instances has their counts
}

type Rule struct {
	Name      string `json:"name"`
	IsApplied bool   `json:"applies"`
	Why       string `json:"why"`
}

type Charge struct {
	Rule           string  `json:"rule"`
	Limit          string  `json:"limit"`
	Identity       string  `json:"identity"`
	Rate           string  `json:"rate"`
	Share          string  `json:"share,omitempty"` // what this region enforces now of a limit across regions
	Algorithm      string  `json:"algorithm"`
	Cost           int64   `json:"cost"`
	WaitMS         int64   `json:"wait_ms,omitempty"` // the longest time that the request may wait
	OnFailure      string  `json:"on_failure"`
	Ceiling        string  `json:"ceiling,omitempty"` // with on_failure open
	Lease          int64   `json:"lease,omitempty"`
	SplitInto      int     `json:"split_into,omitempty"`
	DenyCacheTTLMS *int64  `json:"deny_cache_ttl_ms,omitempty"` // 0: denials are not cached; nil: the default
	Kind           string  `json:"kind"`                        // enforced, shadow or candidate
	Note           string  `json:"note,omitempty"`
	Key            string  `json:"key"`               // in Redis
	IsCorrupt      bool    `json:"corrupt,omitempty"` // the key has a value that Penstock did not write
	Remaining      *int64  `json:"remaining,omitempty"`
	RetryAfterMS   *int64  `json:"retry_after_ms,omitempty"` // -1: never
	TurnAfterMS    *int64  `json:"turn_after_ms,omitempty"`  // how long the request would wait now
	Bounds         []Bound `json:"bounds,omitempty"`         // of enforced limits

	isInFlight   bool   // the limit counts requests in flight
	countsDenied bool   // the limit counts denied requests
	storeFailure string // what happens while the store does not answer, in words
}

// A Bound is how many units the limit admits at most in one situation, like guard.Bound.
type Bound struct {
	When string `json:"when"`
	Over *int64 `json:"over"` // units beyond the limit itself; null: unbounded
	Text string `json:"text"`
}

// Explain explains a request. descriptor has the entries of a call of Envoy, or is empty. keys has
// the prefix and the secret of the store. The bounds are for this number of instances, and for
// these regions. Explain also returns the charges of the Report, for CheckCost and Peek.
func Explain(rules *policy.Rules, r *http.Request, descriptor map[string][]string, keys redisstore.Options, instances int, setup regions.Setup) (*Report, []penstock.Charge, error) {
	attributes, err := httplimit.AttributesOf(rules, r, descriptor)
	if err != nil {
		return nil, nil, err
	}
	evaluation := new(policy.Evaluation)
	if rules.Evaluate(attributes, evaluation); evaluation.Ambiguous != "" {
		return nil, nil, fmt.Errorf("%w: %s", penstock.ErrInvalid, evaluation.Ambiguous)
	}
	report := &Report{Method: r.Method, Path: attributes.Lookup(policy.KindPath, "")[0], Address: "unix", Tier: evaluation.Tier, Rules: []Rule{}, Charges: []Charge{}}
	if address := attributes.Address(); address.IsValid() {
		report.Address = address.String()
	}
	matching := rules.Matching(attributes)
	switch evaluation.ListMatch {
	case policy.AllowListed:
		report.List = "allow"
	case policy.DenyListed:
		report.List = "deny"
	}
	report.Doubts = evaluation.IgnoredValues()
	report.addRules(matching, evaluation.Matched)
	for _, invented := range evaluation.Invented {
		report.Unread = append(report.Unread, invented.Rule.Name+"."+invented.Limit.Name())
	}
	for i := range evaluation.Charges {
		c, err := newCharge(evaluation.Limits[i], &evaluation.Charges[i], "enforced", r.ContentLength, keys)
		if err != nil {
			return nil, nil, err
		}
		c.Bounds = BoundsOf(rules, evaluation.Charges[i].Plan, instances, setup)
		report.Charges = append(report.Charges, c)
	}
	for _, shadow := range evaluation.Shadows {
		kind := "shadow"
		if shadow.Candidate {
			kind = "candidate"
		}
		for i := range shadow.Charges {
			c, err := newCharge(shadow.Limits[i], &shadow.Charges[i], kind, r.ContentLength, keys)
			if err != nil {
				return nil, nil, err
			}
			report.Shadows = append(report.Shadows, c)
		}
	}
	report.addUnenforced(matching, evaluation.Matched)
	return report, evaluation.Charges, nil
}

// addUnenforced adds a doubt if shadows count the request, and no limit is enforced for it. A rule
// whose limits are all shadows replaces less specific rules, as any rule does.
func (r *Report) addUnenforced(matching, applied []*policy.Rule) {
	if len(r.Charges) > 0 || len(r.Shadows) == 0 {
		return
	}
	doubt := "no limit is enforced for this request: shadows count it, and deny nothing"
	replaces := func(rule *policy.Rule) bool { return !rule.Shadow && !rule.Always && len(rule.Limits) > 0 }
	i := slices.IndexFunc(applied, replaces)
	isReplaced := func(rule *policy.Rule) bool {
		return rule.Enforces() && !rule.Shadow && !slices.Contains(applied, rule)
	}
	if i >= 0 && slices.ContainsFunc(matching, isReplaced) {
		name := applied[i].Name
		doubt += "; move shadow: true from the limits of rule " + name + " to the rule itself, so that the less specific rule still applies"
	}
	r.Doubts = append(r.Doubts, doubt)
}

// BoundsOf returns what guard.Standard and the regions guarantee for a limit of the rules, enforced
// by this number of instances.
func BoundsOf(rules *policy.Rules, limit *penstock.Plan, instances int, setup regions.Setup) (all []Bound) {
	options := guard.Options{Limits: rules.Settings, Instances: instances}
	bounds := options.Bounds(limit)
	if over, text := setup.Bound(limit); text != "" {
		bounds = slices.Insert(bounds, 1, guard.Bound{When: "all regions", MaxExcess: over, Text: text})
	}
	for _, b := range bounds {
		bound := Bound{When: b.When, Text: b.Text}
		if b.MaxExcess != math.MaxInt64 {
			bound.Over = &b.MaxExcess
		}
		all = append(all, bound)
	}
	return all
}

// addRules adds the rules that match the request, and why each applies or does not.
func (r *Report) addRules(matching, applied []*policy.Rule) {
	// Besides the rules with always, at most one enforced rule and one shadow rule apply. The enforced
	// one is named, if there is one.
	mostSpecific := ""
	for _, rule := range applied {
		if !rule.Always && (mostSpecific == "" || !rule.Shadow) {
			mostSpecific = rule.Name
		}
	}
	for _, rule := range matching {
		line := Rule{Name: rule.Name, IsApplied: slices.Contains(applied, rule)}
		switch {
		case r.List != "":
			line.Why = "the client is on the list " + r.List
		case line.IsApplied && rule.Shadow:
			line.Why = "a shadow rule: counted, never enforced"
		case rule.Always:
			line.Why = "applies in addition to other rules (always: true)"
		case line.IsApplied && rule.Unlimited:
			line.Why = "the most specific match; it sets no limit"
		case line.IsApplied:
			line.Why = "the most specific match"
		default:
			line.Why = mostSpecific + " is more specific"
		}
		r.Rules = append(r.Rules, line)
	}
}

func newCharge(l *policy.Limit, c *penstock.Charge, kind string, size int64, keys redisstore.Options) (Charge, error) {
	key, err := redisstore.KeyOf(*c, keys)
	if err != nil {
		return Charge{}, err
	}
	charge := Charge{
		Rule: l.Rule.Name, Limit: l.Name, Identity: c.Key, Rate: describe.Rate(c.Plan), Algorithm: l.Algorithm, Cost: c.Cost, WaitMS: l.Patience.Milliseconds(),
		OnFailure: l.Guard.OnFailure.String(), Kind: kind, Key: key, isInFlight: c.Plan.Algorithm().NeedsHolder(), countsDenied: c.Plan.CountsDenied(), storeFailure: describe.StoreFailure(&l.Guard),
	}
	charge.setGuards(&l.Guard)
	var notes []string
	if l.Status != nil {
		notes = append(notes, "counts only responses with the statuses of on_status")
	}
	if l.Cost.Body > 0 && size < 0 {
		notes = append(notes, "the size of the body is unknown: 1 unit now, the rest when the body is read")
	}
	if l.Adjustable {
		notes = append(notes, "the true cost is charged after the response")
	}
	if l.Rule.BeforeAuth {
		notes = append(notes, "charged before the signature of a new token is checked")
	}
	if limit := l.Rule.NewIdentities; limit != nil && !l.Shadow {
		notes = append(notes, "new identities from one address: at most "+describe.Rate(limit))
	}
	charge.Note = strings.Join(notes, "; ")
	return charge, nil
}

func (c *Charge) setGuards(s *guard.Settings) {
	c.Lease, c.SplitInto = s.Lease, s.SplitInto
	if s.DenyCacheTTL != 0 {
		c.DenyCacheTTLMS = new(max(s.DenyCacheTTL, 0).Milliseconds())
	}
	if s.Ceiling.Algorithm != nil {
		if plan, err := s.Ceiling.Compile(); err == nil {
			c.Ceiling = describe.Rate(plan)
		}
	}
}

// CheckCost marks charges that cost more than their limit can ever admit. It decides in memory with
// unused limits, without the store.
func (r *Report) CheckCost(charges []penstock.Charge) error {
	unused := Report{Charges: slices.Clone(r.Charges)}
	if err := unused.Peek(context.Background(), memstore.New(memstore.Options{}), charges); err != nil {
		return err
	}
	for i := range unused.Charges {
		if retry := unused.Charges[i].RetryAfterMS; retry != nil && *retry < 0 {
			r.Charges[i].RetryAfterMS, r.Allowed = retry, unused.Allowed
		}
	}
	return nil
}

// Enforce replaces the limits of the charges by what is enforced of them now, and says so.
func (r *Report) Enforce(charges []penstock.Charge, enforced func(*penstock.Plan) *penstock.Plan) {
	for i := range charges {
		charges[i].Plan, r.Charges[i].Share = keylimits.ShareOf(charges[i].Plan, enforced)
	}
}

// Peek adds what the store would decide now. It charges nothing. If the store fails because of a
// value that Penstock did not write, Peek marks the key.
func (r *Report) Peek(ctx context.Context, store penstock.Store, charges []penstock.Charge) error {
	if len(charges) == 0 {
		return nil
	}
	charges = slices.Clone(charges)
	for i := range charges {
		charges[i].Mode = penstock.Peek
	}
	d, err := store.Decide(ctx, charges)
	if err != nil {
		for i := range r.Charges {
			r.Charges[i].IsCorrupt = keylimits.IsCorrupt(err) && isCorruptKey(ctx, store, charges[i])
		}
		return err
	}
	r.Allowed = &d.Allowed
	for i := range r.Charges {
		c, s := &r.Charges[i], d.Status(i)
		retry, turn := keylimits.Milliseconds(s.RetryAfter), keylimits.Milliseconds(s.Wait)
		c.Remaining, c.RetryAfterMS = &s.Remaining, &retry
		if c.WaitMS > 0 {
			c.TurnAfterMS = &turn
		}
	}
	return nil
}

// isCorruptKey returns true if this charge's key prevents a decision.
func isCorruptKey(ctx context.Context, store penstock.Store, charge penstock.Charge) bool {
	_, err := store.Decide(ctx, []penstock.Charge{charge})
	return keylimits.IsCorrupt(err)
}

func (r *Report) Print(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	printable.Fprintf(w, "request\t%s %s\n", r.Method, r.Path)
	printable.Fprintf(w, "from\t%s\n", r.Address)
	if r.Tier != "" {
		printable.Fprintf(w, "tier\t%s\n", r.Tier)
	}
	for _, doubt := range r.Doubts {
		printable.Fprintf(w, "note\t%s\n", doubt)
	}
	switch {
	case r.List == "deny":
		printable.Fprintf(w, "list\tdeny: always rejected with status 403\n")
	case r.List == "allow":
		printable.Fprintf(w, "list\tallow: never limited\n")
	case len(r.Rules) == 0:
		printable.Fprintf(w, "rules\tno rule matches: the request is not limited\n")
	}
	for i, rule := range r.Rules {
		label := ""
		if i == 0 {
			label = "rules"
		}
		applies := "does not apply"
		if rule.IsApplied {
			applies = "applies"
		}
		printable.Fprintf(w, "%s\t%s %s: %s\n", label, rule.Name, applies, rule.Why)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for i := range r.Charges {
		r.Charges[i].print(out, fmt.Sprintf("%d.", i+1))
	}
	for i := range r.Shadows {
		r.Shadows[i].print(out, "("+r.Shadows[i].Kind+")")
	}
	if len(r.Charges) > 1 {
		exception := ""
		if slices.ContainsFunc(r.Charges, func(c Charge) bool { return c.countsDenied }) {
			exception = ", except those where denied requests count"
		}
		printable.Fprintf(out, "\nAll %d limits must allow the request. If one denies it, none is charged%s.\n", len(r.Charges), exception)
	}
	if r.Allowed != nil && *r.Allowed {
		printable.Fprintf(out, "\nIt would be allowed now.\n")
	} else if r.Allowed != nil {
		printable.Fprintf(out, "\nIt would be denied now.\n")
	}
	if r.Allowed != nil && len(r.Unread) > 0 {
		printable.Fprintf(out, "\nNot read: %s. Each instance counts the new identities of an address in its own memory. If the address has\n"+
			"sent too many, a request with a new identity is denied. penstock denials lists such addresses.\n", strings.Join(r.Unread, ", "))
	}
	return nil
}

func (c *Charge) print(out io.Writer, label string) {
	printable.Fprintf(out, "\n%s %s.%s\n", label, c.Rule, c.Limit)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	printable.Fprintf(w, "   counts for\t%s\n", c.identityText())
	limit := c.Rate
	if !c.isInFlight {
		limit += " (" + c.Algorithm + ")"
	}
	printable.Fprintf(w, "   limit\t%s\n", limit)
	if c.Share != "" {
		printable.Fprintf(w, "   enforced now\t%s: the share of this region, which is not in contact with all others\n", c.Share)
	}
	printable.Fprintf(w, "   cost\t%d\n", c.Cost)
	if c.WaitMS > 0 {
		printable.Fprintf(w, "   may wait\tup to %v\n", time.Duration(c.WaitMS)*time.Millisecond)
	}
	if c.Note != "" {
		printable.Fprintf(w, "   note\t%s\n", c.Note)
	}
	if c.Lease > 0 {
		printable.Fprintf(w, "   lease\tup to %d units are drawn from the store in advance\n", c.Lease)
	}
	if c.SplitInto > 0 {
		printable.Fprintf(w, "   split_into\t%d counters; their keys end in ~00 to ~%02d\n", c.SplitInto, c.SplitInto-1)
	}
	switch deny := c.DenyCacheTTLMS; {
	case deny == nil:
	case *deny == 0:
		printable.Fprintf(w, "   deny cache\toff\n")
	default:
		printable.Fprintf(w, "   deny cache\tup to %v\n", time.Duration(*deny)*time.Millisecond)
	}
	if c.Kind == "enforced" {
		printable.Fprintf(w, "   if the store fails\t%s\n", c.storeFailure)
	}
	printable.Fprintf(w, "   key in the store\t%s\n", c.Key)
	if c.IsCorrupt {
		printable.Fprintf(w, "   \tthis key has a value that Penstock did not write: delete the key\n")
	}
	if c.Remaining != nil {
		printable.Fprintf(w, "   remaining\t%d\n", *c.Remaining)
	}
	if c.TurnAfterMS != nil && *c.TurnAfterMS > 0 {
		printable.Fprintf(w, "   would wait\t%v\n", time.Duration(*c.TurnAfterMS)*time.Millisecond)
	}
	switch retry := c.RetryAfterMS; {
	case retry == nil || *retry == 0:
	case *retry < 0:
		printable.Fprintf(w, "   retry after\tnever: the cost is larger than the limit\n")
	default:
		printable.Fprintf(w, "   retry after\t%v\n", time.Duration(*retry)*time.Millisecond)
	}
	w.Flush()
	if len(c.Bounds) > 0 {
		printable.Fprintf(out, "   upper bounds\n")
	}
	for _, b := range c.Bounds {
		printable.Fprintf(w, "     %s\t%s\n", b.When, b.Text)
	}
	w.Flush()
}

func (c *Charge) identityText() string {
	switch c.Identity {
	case "global":
		return "global: all clients together"
	case "unknown":
		return "unknown: all requests without any of the identities"
	}
	return c.Identity
}
