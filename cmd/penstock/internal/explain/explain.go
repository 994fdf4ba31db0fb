// Package explain tells what a policy makes of one request: which rules match, who pays, which
// limits are charged, in what order and under which keys of the store.
package explain

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/guard"
	"github.com/penstock/penstock/httplimit"
	"github.com/penstock/penstock/memstore"
	"github.com/penstock/penstock/policy"
	"github.com/penstock/penstock/redisstore"
)

// A Report is what is told, for programs as JSON.
type Report struct {
	Method  string   `json:"method"`
	Path    string   `json:"path"`
	Address string   `json:"address"`
	Tier    string   `json:"tier,omitempty"`
	Listed  string   `json:"listed,omitempty"` // "allow" or "deny"
	Doubts  []string `json:"doubts,omitempty"` // why the token, or a value that should have named the client, is rejected
	Rules   []Rule   `json:"rules"`
	Charges []Charge `json:"charges"` // decided together, all or nothing, in this order
	Trials  []Charge `json:"trials,omitempty"`
	Allowed *bool    `json:"allowed,omitempty"` // by the store, if it was asked
}

// A Rule is one that matches.
type Rule struct {
	Name    string `json:"name"`
	Applies bool   `json:"applies"`
	Why     string `json:"why"`
}

// A Charge is what a limit demands.
type Charge struct {
	Rule         string  `json:"rule"`
	Limit        string  `json:"limit"`
	Payer        string  `json:"payer"`
	Rate         string  `json:"rate"`
	Algorithm    string  `json:"algorithm"`
	Cost         int64   `json:"cost"`
	WaitMS       int64   `json:"wait_ms,omitempty"`
	OnFailure    string  `json:"on_failure"`
	Ceiling      string  `json:"ceiling,omitempty"` // with on_failure open
	Lease        int64   `json:"lease,omitempty"`
	Shards       int     `json:"shards,omitempty"`
	DenyForMS    *int64  `json:"deny_for_ms,omitempty"` // 0: never
	Kind         string  `json:"kind"`                  // enforced, shadow or candidate
	Note         string  `json:"note,omitempty"`
	Key          string  `json:"key"`               // in Redis
	Corrupt      bool    `json:"corrupt,omitempty"` // something else stands under the key
	Remaining    *int64  `json:"remaining,omitempty"`
	RetryAfterMS *int64  `json:"retry_after_ms,omitempty"` // -1: never
	TurnAfterMS  *int64  `json:"turn_after_ms,omitempty"`  // how long it would wait now
	Bounds       []Bound `json:"bounds,omitempty"`         // of what is enforced
}

// A Bound says how much the limit admits at most in one situation: guard.Bound for programs.
type Bound struct {
	When string `json:"when"`
	Over *int64 `json:"over"` // units beyond the limit itself; null: no number holds
	Text string `json:"text"`
}

// Explain reads a request. The options are those of the store whose keys are named; the bounds are
// for so many instances.
func Explain(rules *policy.Rules, r *http.Request, keys redisstore.Options, instances int) (*Report, []penstock.Charge, error) {
	reading, err := httplimit.Read(rules, r)
	if err != nil {
		return nil, nil, err
	}
	v := &reading.Verdict
	report := &Report{Method: r.Method, Path: reading.Path, Address: "unix", Tier: v.Tier, Rules: []Rule{}, Charges: []Charge{}}
	if reading.Address.IsValid() {
		report.Address = reading.Address.String()
	}
	switch v.Listed {
	case policy.Exempt:
		report.Listed = "allow"
	case policy.Refused:
		report.Listed = "deny"
	}
	report.Doubts = v.Doubts()
	report.rules(reading)
	for i := range v.Charges {
		c, err := newCharge(v.Limits[i], &v.Charges[i], "enforced", r.ContentLength, keys)
		if err != nil {
			return nil, nil, err
		}
		c.Bounds = boundsOf(rules, v.Charges[i].Limit, instances)
		report.Charges = append(report.Charges, c)
	}
	for _, t := range v.Trials {
		kind := "shadow"
		if t.Candidate {
			kind = "candidate"
		}
		for i := range t.Charges {
			c, err := newCharge(t.Limits[i], &t.Charges[i], kind, r.ContentLength, keys)
			if err != nil {
				return nil, nil, err
			}
			report.Trials = append(report.Trials, c)
		}
	}
	return report, v.Charges, nil
}

func boundsOf(rules *policy.Rules, limit penstock.Limit, instances int) (all []Bound) {
	options := guard.Options{Limits: rules.Settings, Instances: instances}
	for _, b := range options.Bounds(limit) {
		bound := Bound{When: b.When, Text: b.Text}
		if b.Over != guard.Unbounded {
			bound.Over = &b.Over
		}
		all = append(all, bound)
	}
	return all
}

func (r *Report) rules(reading *httplimit.Reading) {
	winner := ""
	for _, rule := range reading.Verdict.Matched {
		if !rule.Always && (winner == "" || !rule.Shadow) {
			winner = rule.Name
		}
	}
	for _, rule := range reading.Matching {
		line := Rule{Name: rule.Name, Applies: slices.Contains(reading.Verdict.Matched, rule)}
		switch {
		case r.Listed != "":
			line.Why = "the client is on the list " + r.Listed
		case line.Applies && rule.Shadow:
			line.Why = "a shadow: counted and reported, never enforced"
		case rule.Always:
			line.Why = "always, beside any other rule"
		case line.Applies && rule.Unlimited:
			line.Why = "the most specific match; it sets no limit"
		case line.Applies:
			line.Why = "the most specific match"
		default:
			line.Why = winner + " is more specific"
		}
		r.Rules = append(r.Rules, line)
	}
}

func newCharge(l *policy.Limit, c *penstock.Charge, kind string, size int64, keys redisstore.Options) (Charge, error) {
	key, err := redisstore.KeyOf(*c, keys)
	if err != nil {
		return Charge{}, err
	}
	_, rate, _ := strings.Cut(c.Limit.String(), ": ")
	if c.Limit.Algorithm.Holds {
		rate = fmt.Sprintf("%d at once", c.Limit.Burst)
	}
	charge := Charge{
		Rule: l.Rule.Name, Limit: l.Name, Payer: c.Key, Rate: rate, Algorithm: l.Algorithm, Cost: c.Cost, WaitMS: l.Patience.Milliseconds(),
		OnFailure: l.Guard.OnFailure.String(), Kind: kind, Key: key,
	}
	charge.guards(&l.Guard)
	var notes []string
	if l.Status != nil {
		notes = append(notes, "counts only responses with the statuses of on_status")
	}
	if l.Body > 0 && size < 0 {
		notes = append(notes, "the body's size is not known yet: one unit now, the rest once it is read")
	}
	if l.Settled {
		notes = append(notes, "the true cost is charged after the response")
	}
	if l.Rule.BeforeAuth {
		notes = append(notes, "charged before the signature of a new token is checked")
	}
	if limit, ok := l.Rule.NewIdentities(); ok && !l.Shadow {
		_, rate, _ := strings.Cut(limit.String(), ": ")
		notes = append(notes, "new identities from one address: at most "+rate)
	}
	charge.Note = strings.Join(notes, "; ")
	return charge, nil
}

// guards tells how the limit is guarded.
func (c *Charge) guards(s *guard.Settings) {
	c.Lease, c.Shards = s.Lease, s.Shards
	if s.DenyFor != 0 {
		c.DenyForMS = new(max(s.DenyFor, 0).Milliseconds())
	}
	if s.Ceiling.Algorithm != nil {
		_, c.Ceiling, _ = strings.Cut(s.Ceiling.String(), ": ")
	}
}

// Judge tells whether the request could never pass, since it costs more than a limit ever admits.
// It asks no store.
func (r *Report) Judge(charges []penstock.Charge) error {
	empty := Report{Charges: slices.Clone(r.Charges)}
	if err := empty.Peek(context.Background(), memstore.New(memstore.Options{}), charges); err != nil {
		return err
	}
	for i := range empty.Charges {
		if retry := empty.Charges[i].RetryAfterMS; retry != nil && *retry < 0 {
			r.Charges[i].RetryAfterMS, r.Allowed = retry, empty.Allowed
		}
	}
	return nil
}

// Peek asks the store what it would answer now, and charges nothing. If a key holds something else,
// the report tells which.
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
			r.Charges[i].Corrupt = isCorrupt(err) && isCorruptKey(ctx, store, charges[i])
		}
		return err
	}
	r.Allowed = &d.Allowed
	for i := range r.Charges {
		c, s := &r.Charges[i], d.Status(i)
		retry, turn := milliseconds(s.RetryAfter), milliseconds(s.Wait)
		c.Remaining, c.RetryAfterMS = &s.Remaining, &retry
		if c.WaitMS > 0 {
			c.TurnAfterMS = &turn
		}
	}
	return nil
}

// isCorruptKey tells whether the store cannot decide because of this charge's key.
func isCorruptKey(ctx context.Context, store penstock.Store, charge penstock.Charge) bool {
	_, err := store.Decide(ctx, []penstock.Charge{charge})
	return isCorrupt(err)
}

func isCorrupt(err error) bool {
	e := penstock.AsStoreError(err)
	return e != nil && e.Reason == penstock.ReasonCorrupt
}

// milliseconds are rounded up; penstock.Never is -1.
func milliseconds(d time.Duration) int64 {
	if d == penstock.Never {
		return -1
	}
	return int64((d + time.Millisecond - 1) / time.Millisecond)
}

// Print writes the report for people.
func (r *Report) Print(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "request\t%s %s\n", r.Method, r.Path)
	fmt.Fprintf(w, "from\t%s\n", r.Address)
	if r.Tier != "" {
		fmt.Fprintf(w, "tier\t%s\n", r.Tier)
	}
	for _, doubt := range r.Doubts {
		fmt.Fprintf(w, "warning\t%s\n", doubt)
	}
	switch {
	case r.Listed == "deny":
		fmt.Fprintf(w, "list\tdeny: always refused, with status 403\n")
	case r.Listed == "allow":
		fmt.Fprintf(w, "list\tallow: never limited\n")
	case len(r.Rules) == 0:
		fmt.Fprintf(w, "rules\tno rule matches: the request is not limited\n")
	}
	for i, rule := range r.Rules {
		label := ""
		if i == 0 {
			label = "rules"
		}
		applies := "does not apply"
		if rule.Applies {
			applies = "applies"
		}
		fmt.Fprintf(w, "%s\t%s %s: %s\n", label, rule.Name, applies, rule.Why)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for i := range r.Charges {
		r.Charges[i].print(out, fmt.Sprintf("%d.", i+1))
	}
	for i := range r.Trials {
		r.Trials[i].print(out, "("+r.Trials[i].Kind+")")
	}
	if len(r.Charges) > 1 {
		fmt.Fprintf(out, "\nAll %d limits must allow the request. If one denies it, none is charged.\n", len(r.Charges))
	}
	if r.Allowed != nil && *r.Allowed {
		fmt.Fprintf(out, "\nIt would be allowed now.\n")
	} else if r.Allowed != nil {
		fmt.Fprintf(out, "\nIt would be denied now.\n")
	}
	return nil
}

func (c *Charge) print(out io.Writer, label string) {
	fmt.Fprintf(out, "\n%s %s.%s\n", label, c.Rule, c.Limit)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "   counts for\t%s\n", c.counted())
	fmt.Fprintf(w, "   limit\t%s\n", c.Rate)
	fmt.Fprintf(w, "   cost\t%d\n", c.Cost)
	if c.WaitMS > 0 {
		fmt.Fprintf(w, "   may wait\tup to %v\n", time.Duration(c.WaitMS)*time.Millisecond)
	}
	if c.Note != "" {
		fmt.Fprintf(w, "   note\t%s\n", c.Note)
	}
	if c.Lease > 0 {
		fmt.Fprintf(w, "   leased\tup to %d units are drawn from the store in advance\n", c.Lease)
	}
	if c.Shards > 0 {
		fmt.Fprintf(w, "   split\tinto %d counters: ~00 to ~%02d stands behind the key\n", c.Shards, c.Shards-1)
	}
	switch deny := c.DenyForMS; {
	case deny == nil:
	case *deny == 0:
		fmt.Fprintf(w, "   denials\tnever remembered\n")
	default:
		fmt.Fprintf(w, "   denials\tremembered up to %v\n", time.Duration(*deny)*time.Millisecond)
	}
	if c.Kind == "enforced" {
		fmt.Fprintf(w, "   if the store fails\t%s\n", c.withoutStore())
	}
	fmt.Fprintf(w, "   key in the store\t%s\n", c.Key)
	if c.Corrupt {
		fmt.Fprintf(w, "   \tsomething else stands under this key: delete it\n")
	}
	if c.Remaining != nil {
		fmt.Fprintf(w, "   left\t%d\n", *c.Remaining)
	}
	if c.TurnAfterMS != nil && *c.TurnAfterMS > 0 {
		fmt.Fprintf(w, "   its turn\tafter %v\n", time.Duration(*c.TurnAfterMS)*time.Millisecond)
	}
	switch retry := c.RetryAfterMS; {
	case retry == nil || *retry == 0:
	case *retry < 0:
		fmt.Fprintf(w, "   retry after\tnever: it costs more than the limit\n")
	default:
		fmt.Fprintf(w, "   retry after\t%v\n", time.Duration(*retry)*time.Millisecond)
	}
	w.Flush()
	if len(c.Bounds) > 0 {
		fmt.Fprintf(out, "   how much passes at most\n")
	}
	for _, b := range c.Bounds {
		fmt.Fprintf(w, "     %s\t%s\n", b.When, b.Text)
	}
	w.Flush()
}

// counted is whose requests are counted together.
func (c *Charge) counted() string {
	switch c.Payer {
	case "everyone":
		return "everyone: all clients together"
	case "unknown":
		return "unknown: all requests that do not say who sends them"
	}
	return c.Payer
}

// withoutStore is what becomes of the request while the store gives no answer.
func (c *Charge) withoutStore() string {
	switch {
	case c.OnFailure == guard.Closed.String():
		return "denied with status 503"
	case c.OnFailure == guard.Local.String():
		return "each instance enforces its share of the limit"
	case c.Ceiling != "":
		return "allowed, but for each key at each instance at most " + c.Ceiling
	}
	return "allowed"
}
