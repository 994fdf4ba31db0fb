package keylimits

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/guard"
	"github.com/penstock/penstock/internal/syntax"
	"github.com/penstock/penstock/memstore"
	"github.com/penstock/penstock/policy"
	"github.com/penstock/penstock/policy/policyfile"
)

const testPolicy = `
tiers: {premium: {header X-Plan: premium}, free: default}
rules:
  - name: api
    per: {key: header X-Key}
    limits:
      - {rate: {premium: 100/h, free: 10/h}, candidate: {rate: 5/h}}
      - {name: day, rate: 1000/d, shadow: true}
      - {name: slots, in_flight: 4}
      - {name: all, rate: 9000/h, per: global}
  - {name: near, always: true, per: ip, limits: [{rate: 20/h}]}
`

func rulesOf(t *testing.T, text string) *policy.Rules {
	t.Helper()
	file := filepath.Join(t.TempDir(), "rules.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	p, err := policyfile.Load(file, policyfile.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p.Rules
}

// manyLimits returns a policy of n limits of a key, with two tiers each.
func manyLimits(n int) string {
	var b strings.Builder
	b.WriteString("tiers: {premium: {header X-Plan: premium}, free: default}\nrules:\n")
	for i := range n {
		fmt.Fprintf(&b, "  - {name: r%d, match: {path: /%[1]d}, per: {key: header X-Key}, limits: [{rate: {premium: 20/h, free: 10/h}}]}\n", i)
	}
	return b.String()
}

// spend charges units of the limits with a name.
func spend(t *testing.T, store penstock.Store, limits []Limit, name string, units int64) {
	t.Helper()
	i := slices.IndexFunc(limits, func(l Limit) bool { return l.Name() == name })
	if i < 0 {
		t.Fatalf("the limits are %s; want one of the name %s", summary(limits), name)
	}
	c := limits[i].Charge()
	c.Cost, c.Mode = units, penstock.Spend
	if d, err := store.Decide(t.Context(), []penstock.Charge{c}); err != nil || !d.Allowed {
		t.Fatalf("a charge of %s returns %+v, %v; want it allowed", name, d, err)
	}
}

// summary lists limits as NAME KIND USED+LEFT TIER.
func summary(limits []Limit) string {
	var all []string
	for _, l := range limits {
		all = append(all, strings.TrimSpace(fmt.Sprintf("%s %s %d+%d %s", l.Name(), l.Kind, l.Used, l.Left, l.Tier)))
	}
	return strings.Join(all, ", ")
}

func TestLimitsOfAKey(t *testing.T) {
	rules, store := rulesOf(t, testPolicy), memstore.New(memstore.Options{})
	limits, skipped := Find(rules, "key:a", "")
	global, _ := Globals(rules, limits)
	spend(t, store, limits, "api.hour", 7)
	spend(t, store, global, "api.all", 5)
	all := slices.Concat(limits, global)
	source, err := (&Reader{Store: store}).Read(t.Context(), all)
	const want = "api.hour enforced 7+93 premium, api.hour enforced 7+3 free, api.hour.candidate candidate 0+5, api.day shadow 0+1000, api.slots enforced 0+4, api.all enforced 5+8995"
	if got := summary(all); err != nil || got != want || source != penstock.FromStore || skipped != 0 {
		t.Errorf("the limits are\n%s\nfrom %v, with %d skipped, %v; want\n%s\nfrom the store, with none skipped", got, source, skipped, err, want)
	}
	if got, _ := Find(rules, "key:a", "near"); len(got) != 0 {
		t.Errorf("the limits of rule near for key:a are %s; want none", summary(got))
	}
	if got, _ := Find(rules, Normalize(rules, "ip:2001:db8::1"), ""); len(got) != 1 || got[0].Name() != "near.hour" {
		t.Errorf("the limits of an address are %s; want near.hour", summary(got))
	}
}

// An operator may write a key as the client sends it, or as explain prints it.
func TestKeysAreNormalized(t *testing.T) {
	t.Parallel()
	const one = "rules: [{name: api, per: {key: header X-Key}, limits: [{rate: 9/h}]}, {name: near, always: true, per: ip, limits: [{rate: 20/h}]}]"
	const both = "rules: [{name: api, per: {all_of: [{key: header X-Key}, {device: header X-Device}]}, limits: [{rate: 9/h}]}]"
	long := strings.Repeat("a", syntax.MaxKeyValue+1)
	hashed := "key:#" + fmt.Sprintf("%x", sha256.Sum256([]byte(long)))
	for _, c := range []struct{ policy, key, want string }{
		{one, "key:a", "key:a"},
		{one, "key:a,b", "key:a%2Cb"},
		{one, "key:a%2Cb", "key:a%2Cb"},
		{one, "key:a b#c", "key:a%20b%23c"},
		{one, "key:50%", "key:50%25"},
		{one, "key:50%25", "key:50%25"},
		{one, "key:%41", "key:%2541"}, // a client that sends %41
		{one, "key:" + long, hashed},
		{one, hashed, hashed},
		{one, "other|a=b,c", "other|a=b,c"}, // of Envoy
		{one, "ip:fe80::1%eth0", "ip:fe80::/64"},
		{both, "key:a,device:b", "key:a,device:b"},
		{both, "key:a b,device:c", "key:a%20b,device:c"},
	} {
		if got := Normalize(rulesOf(t, c.policy), c.key); got != c.want {
			t.Errorf("the key %s is read as %s; want %s", c.key, got, c.want)
		}
	}
	for _, key := range []string{"ip:1.2.3.4%eth0", "ip:nobody"} {
		if found, _ := Find(rulesOf(t, one), key, ""); found != nil {
			t.Errorf("the limits of %s are %s; want none, because it has no address", key, summary(found))
		}
	}
}

// A key that is listed in a tier has only the numbers of this tier, also of limits for all clients.
// Clients whose tier depends on something else have one result for each tier.
func TestResultsOfTiers(t *testing.T) {
	const tail = `
rules:
  - name: api
    per: {first_of: [{key: header X-Key}, ip]}
    limits: [{rate: {gold: 10/h, free: 4/h}, candidate: {rate: 1/h}}, {name: all, rate: {gold: 90/h, free: 50/h}, per: global}]
`
	listed, claimed := "tiers: {gold: {header X-Key: [gold-1]}, free: default}"+tail, "tiers: {gold: {header X-Plan: gold}, free: default}"+tail
	for _, c := range []struct{ policy, key, want, denied string }{
		{listed, "key:gold-1", "gold []", ""},
		{listed, "key:other", "free [api.hour]", "api.hour"},
		{listed, "ip:192.0.2.1", "free [api.hour]", "api.hour"},
		{claimed, "key:gold-1", "gold [], free [api.hour]", ""},
	} {
		rules, store := rulesOf(t, c.policy), memstore.New(memstore.Options{})
		limits, _ := Find(rules, c.key, "")
		global, _ := Globals(rules, limits)
		spend(t, store, limits, "api.hour", 4)
		spend(t, store, limits, "api.hour.candidate", 1)
		all := slices.Concat(limits, global)
		if _, err := (&Reader{Store: store}).Read(t.Context(), all); err != nil {
			t.Fatal(err)
		}
		var got []string
		results := Results(all)
		for _, v := range results {
			got = append(got, fmt.Sprint(v.Tier, " ", v.DeniedBy))
			if isDenied := len(v.DeniedBy) > 0; (v.RetryMS > 0) != isDenied {
				t.Errorf("%s: the result %+v lasts %d ms; want a time exactly if a limit denies", c.key, v, v.RetryMS)
			}
		}
		if strings.Join(got, ", ") != c.want || strings.Join(DeniedBy(results), " ") != c.denied || IsMixed(results) != (len(got) > 1) {
			t.Errorf("%s: the results are %v, denied by %v whatever the tier, mixed: %v; want %s, %q", c.key, got, DeniedBy(results), IsMixed(results), c.want, c.denied)
		}
		if len(global) != len(results) {
			t.Errorf("%s has the global limits %s; want one for each tier it may have", c.key, summary(global))
		}
	}
}

// If a rule lists the values that count, no request has the key of another value. The limits of
// such a key are marked, and deny nothing.
func TestUnlistedKeysCountNoRequest(t *testing.T) {
	rules, store := rulesOf(t, `
rules:
  - {name: api, match: {path: /a}, per: {key: {header X-Key: [a1, a2]}}, limits: [{rate: 4/h}]}
  - {name: near, always: true, per: {first_of: [{key: {header X-Key: [a1, b1]}}, {office: {ip: 10.0.0.0/8}}]}, limits: [{rate: 4/h}]}
`), memstore.New(memstore.Options{})
	for _, c := range []struct{ key, unlisted, list, denied string }{
		{key: "key:a1", denied: "api.hour"},
		{key: "key:a2", denied: "api.hour", unlisted: "near.hour"},
		{key: "key:b1", unlisted: "api.hour"},
		{key: "key:zz", unlisted: "api.hour near.hour", list: Unlisted},
		{key: "key:A1", unlisted: "api.hour near.hour", list: Unlisted},
		{key: "office:10.1.2.3"},
		{key: "office:192.0.2.1", unlisted: "near.hour", list: Unlisted},
	} {
		limits, _ := Find(rules, c.key, "")
		if limits[0].Rule == "api" {
			spend(t, store, limits, "api.hour", 4) // as a call of the check API can do
		}
		if _, err := (&Reader{Store: store}).Read(t.Context(), limits); err != nil {
			t.Fatal(err)
		}
		var unlisted []string
		for _, l := range limits {
			if l.IsUnlisted {
				unlisted = append(unlisted, l.Name())
			}
		}
		list, denied := ListOf(rules, limits), strings.Join(DeniedBy(Results(limits)), " ")
		if got := strings.Join(unlisted, " "); got != c.unlisted || list != c.list || denied != c.denied {
			t.Errorf("%s: not listed are %q, the list is %q, denied by %q; want %q, %q, %q", c.key, got, list, denied, c.unlisted, c.list, c.denied)
		}
	}
}

func TestResultsNameEachLimitAndTheLongestTime(t *testing.T) {
	denies := func(name, tier string, retryMS int64) Limit {
		return Limit{Rule: "r", Limit: name, Tier: tier, Kind: Enforced, IsDenied: true, RetryMS: retryMS}
	}
	shadow := denies("s", "", 9000)
	shadow.Kind = Shadow
	for _, c := range []struct {
		limits       []Limit
		want, denied string
		isMixed      bool
	}{
		{nil, "[{ [] 0}]", "[]", false},
		{[]Limit{shadow, {Rule: "r", Limit: "x", Kind: Enforced}}, "[{ [] 0}]", "[]", false},
		{[]Limit{denies("a", "", 2000), denies("b", "", 7000)}, "[{ [r.a r.b] 7000}]", "[r.a r.b]", false},
		{[]Limit{denies("a", "", 7000), denies("b", "", -1), denies("c", "", 8000)}, "[{ [r.a r.b r.c] -1}]", "[r.a r.b r.c]", false},
		{[]Limit{denies("a", "gold", 100), denies("b", "free", 50), denies("c", "", 70)}, "[{gold [r.a r.c] 100} {free [r.b r.c] 70}]", "[r.a r.c r.b]", false},
		{[]Limit{denies("a", "free", 100), {Rule: "r", Limit: "a", Tier: "gold", Kind: Enforced}}, "[{free [r.a] 100} {gold [] 0}]", "[]", true},
	} {
		got := Results(c.limits)
		if fmt.Sprint(got) != c.want || fmt.Sprint(DeniedBy(got)) != c.denied || IsMixed(got) != c.isMixed {
			t.Errorf("%+v: the results are %v, denied by %v, mixed: %v; want %s, %s, %v", c.limits, got, DeniedBy(got), IsMixed(got), c.want, c.denied, c.isMixed)
		}
	}
}

func TestKeysWithoutALimitGetExamples(t *testing.T) {
	const several = "rules: [{name: a, per: {first_of: [{key: header X-Key}, {user: header X-User}, ip]}, limits: [{rate: 9/s}]}, {name: b, always: true, per: {all_of: [{user: header X-User}, ip]}, limits: [{rate: 9/s}]}]\n"
	for _, c := range []struct{ policy, key, rule, want string }{
		{testPolicy, "gold-1", "", "write key:gold-1"},
		{testPolicy, "gold-1", "near", "write ip:…"},
		{testPolicy, "2001:db8::1", "", "write ip:2001:db8::1"},
		{testPolicy, "user:7", "", "write one of: key:…, global, ip:…"},
		{testPolicy, "", "", "write one of: key:…, global, ip:…"},
		{several, "bob", "", "write one of: key:bob, user:bob"},
		{several, "x:y", "b", "write user:…,ip:…"},
		{"rules: [{name: a, unlimited: true}]\n", "x", "", "write the domain and the entries of a descriptor that the files limit, as in 'rides|api_key=abc'"},
	} {
		if got := NotCounted(rulesOf(t, c.policy), c.key, c.rule); !strings.HasSuffix(got, c.want) {
			t.Errorf("%q of rule %q: %s; want %s", c.key, c.rule, got, c.want)
		}
	}
}

// At most MaxLimits limits of a key are read, in full batches.
func TestLimitsAreReadInFewBatches(t *testing.T) {
	rules := rulesOf(t, manyLimits(MaxLimits))
	limits, skipped := Find(rules, "key:a", "")
	if len(limits) != MaxLimits || skipped != MaxLimits {
		t.Fatalf("there are %d limits, and %d are skipped; want %d of each", len(limits), skipped, MaxLimits)
	}
	calls, memory := 0, memstore.New(memstore.Options{})
	counting := penstock.StoreFunc(func(ctx context.Context, charges []penstock.Charge) (penstock.Decision, error) {
		calls++
		return memory.Decide(ctx, charges)
	})
	if _, err := (&Reader{Store: counting}).Read(t.Context(), limits); err != nil || calls != MaxLimits/penstock.MaxCharges {
		t.Errorf("Read called the store %d times, %v; want %d", calls, err, MaxLimits/penstock.MaxCharges)
	}
}

// Global limits of other rules do not count toward MaxLimits.
func TestGlobalsOfARuleAreFoundAmongMany(t *testing.T) {
	var text strings.Builder
	text.WriteString("rules:\n")
	for i := range MaxLimits {
		fmt.Fprintf(&text, "  - {name: g%d, match: {path: /%[1]d}, per: global, limits: [{rate: 10/h}]}\n", i)
	}
	text.WriteString("  - {name: last, match: {path: /last}, per: {key: header X-Key}, limits: [{rate: 10/h}, {name: all, rate: 9/h, per: global}]}\n")
	rules := rulesOf(t, text.String())
	limits, _ := Find(rules, "key:a", "")
	if global, skipped := Globals(rules, limits); len(global) != 1 || global[0].Name() != "last.all" || skipped != 0 {
		t.Errorf("the global limits are %s, with %d skipped; want last.all, with none skipped", summary(global), skipped)
	}
}

// Limits of other rules may deny a key's requests too. Those of all clients are read. Those that
// count under another key are named.
func TestLimitsOfRulesThatMayApplyTogether(t *testing.T) {
	t.Parallel()
	rule := func(name, more, per string) string {
		return fmt.Sprintf("{name: %s, %s limits: [{rate: 5/h, per: %s}]}", name, more, per)
	}
	const inPath, always, isShadow = "match: {path: /b},", "always: true,", "shadow: true,"
	const key, near, global = "{key: header X-Key}", "ip", "global"
	for _, c := range []struct {
		first, second     string
		global, elsewhere string
	}{
		{rule("a", "", key), rule("b", always, global), "b.hour", ""},
		{rule("a", always, key), rule("b", inPath, global), "b.hour", ""},
		{rule("a", isShadow, key), rule("b", inPath, global), "b.hour", ""},
		{rule("a", "", key), rule("b", inPath, global), "", ""}, // never both
		{rule("a", "", key), rule("b", always+isShadow, global), "", ""},
		{rule("a", "", key), rule("b", always, near), "", "b.hour"},
		{rule("a", "", key), rule("b", always+isShadow, near), "", ""},
		{rule("a", "", key), rule("b", inPath, near), "", ""},
		{rule("a", "", key), rule("b", always, "{first_of: ["+key+", ip]}"), "", ""}, // it counts the key itself
	} {
		rules := rulesOf(t, "rules: ["+c.first+", "+c.second+"]\n")
		limits, _ := Find(rules, "key:a", "a")
		var names []string
		found, _ := Globals(rules, limits)
		for _, l := range found {
			names = append(names, l.Name())
		}
		if got, elsewhere := strings.Join(names, " "), strings.Join(UnderOtherKeys(rules, "key:a", limits), " "); got != c.global || elsewhere != c.elsewhere {
			t.Errorf("%s, %s: limits of all clients are %q, and elsewhere counts %q; want %q and %q", c.first, c.second, got, elsewhere, c.global, c.elsewhere)
		}
	}
}

// A fallback knows its share only, so the rest of the limit must not count as used.
func TestUsedUnitsAreUnknownWithoutTheStore(t *testing.T) {
	limits, _ := Find(rulesOf(t, testPolicy), "key:a", "api")
	share := penstock.StoreFunc(func(_ context.Context, charges []penstock.Charge) (penstock.Decision, error) {
		statuses := make([]penstock.Status, len(charges))
		for i := range statuses {
			statuses[i].Remaining = 2
		}
		d := penstock.NewDecision(statuses)
		d.Source = penstock.FromFallback
		return d, nil
	})
	source, err := (&Reader{Store: share}).Read(t.Context(), limits)
	if err != nil || source != penstock.FromFallback {
		t.Fatalf("the source is %v, %v; want the fallback", source, err)
	}
	for _, l := range limits {
		if !l.IsUnknown || l.Used != 0 || l.Left != 2 || l.IsUncounted != (l.Kind != Enforced) { // shadows fail open
			t.Errorf("%s has %d units used and %d left, IsUnknown is %v, and IsUncounted is %v; want 0, 2, true, and true only for shadows", l.Name(), l.Used, l.Left, l.IsUnknown, l.IsUncounted)
		}
	}
	open, _ := Find(rulesOf(t, "rules: [{name: api, per: {key: header X-Key}, limits: [{name: any, rate: 9/s, on_failure: open}, {name: some, rate: 9/s, on_failure: open, ceiling: 2/s}]}]"), "key:a", "api")
	for _, store := range []penstock.Store{share, memstore.New(memstore.Options{})} {
		if _, err := (&Reader{Store: store}).Read(t.Context(), open); err != nil || len(open) != 2 {
			t.Fatalf("%d limits were read, %v; want 2", len(open), err)
		}
		for _, l := range open {
			if want := l.Limit == "any" && l.IsUnknown; l.IsUncounted != want {
				t.Errorf("%s: IsUnknown is %v, and IsUncounted is %v; want %v", l.Name(), l.IsUnknown, l.IsUncounted, want)
			}
		}
	}
}

// In an outage, a full limit that fails local denies, whatever the other limits of the key do.
func TestFullLimitDeniesWithoutTheStore(t *testing.T) {
	down := penstock.StoreFunc(func(context.Context, []penstock.Charge) (penstock.Decision, error) {
		return penstock.Decision{}, penstock.NewStoreError(penstock.ReasonTimeout, nil)
	})
	for _, other := range []string{"local", "open", "closed"} {
		rules := rulesOf(t, "rules: [{name: pool, per: {key: header X-Key}, limits: [{name: slots, in_flight: 2}, {rate: 9/h, on_failure: "+other+"}]}]")
		store := penstock.Wrap(down, guard.Fallback(guard.FallbackOptions{Limits: rules.Settings, OnFailure: guard.FailLocal}))
		limits, _ := Find(rules, "key:a", "")
		for _, holder := range []string{"1", "2"} {
			if d, err := store.Decide(t.Context(), []penstock.Charge{{Key: "key:a", Plan: limits[0].plan, Cost: 1, Holder: holder}}); err != nil || !d.Allowed {
				t.Fatalf("hold %s gets %v, %v; want it allowed", holder, d, err)
			}
		}
		if _, err := (&Reader{Store: store}).Read(t.Context(), limits); err != nil || limits[0].Left != 0 || !limits[0].IsDenied || limits[0].RetryMS <= 0 {
			t.Errorf("beside a limit that fails %s, the full limit is %+v, %v; want 0 left, and that it denies", other, limits[0], err)
		}
	}
}

func TestClearResetsWhatIsInUse(t *testing.T) {
	rules, store := rulesOf(t, testPolicy), memstore.New(memstore.Options{})
	all, _ := Find(rules, "key:a", "")
	spend(t, store, all, "api.hour", 10)
	spend(t, store, all, "api.day", 3)
	before, err := (&Reader{Store: store}).ReadStates(t.Context(), Resettable(all, ""))
	const want = "api.hour enforced 10+90 premium, api.hour.candidate candidate 0+5, api.day shadow 3+997" // NAME KIND USED+LEFT TIER
	if got := summary(before); err != nil || got != want {
		t.Fatalf("before the reset, the limits are %s, %v; want %s", got, err, want)
	}
	var changes []string
	done, err := (&Reader{Store: store}).Clear(t.Context(), store, before, func(c Change) {
		changes = append(changes, fmt.Sprintf("%s %d->%d", c.Before.Name(), c.Before.Used, c.After.Used))
	})
	if err != nil || fmt.Sprint(changes) != "[api.hour 10->0 api.day 3->0]" || fmt.Sprint(done.Reset) != "[api.hour api.day]" {
		t.Errorf("Clear reports %v and returns %v, %v; want api.hour and api.day reset", changes, done, err)
	}
	if got := summary(done.After); got != "api.hour enforced 0+100 premium, api.hour.candidate candidate 0+5, api.day shadow 0+1000" {
		t.Errorf("after the reset, the limits are %s; want them unused", got)
	}
	var sent []Limit // as an instance sends them to a command
	if text, err := json.Marshal(all); err != nil || json.Unmarshal(text, &sent) != nil || len(Resettable(sent, "")) != len(Resettable(all, "")) {
		t.Errorf("of limits that were sent as JSON, %s can be reset; want the same as before", summary(Resettable(sent, "")))
	}
	if named := Resettable(all, "slots"); len(named) != 1 || named[0].Limit != "slots" {
		t.Errorf("the limits named slots are %s; want one", summary(named))
	}
}

// Limits with the same names may count under different keys, such as one of the policy and one of
// Envoy's files. Then each has a state of its own.
func TestReadStatesKeepsEachKey(t *testing.T) {
	rules, store := rulesOf(t, testPolicy), memstore.New(memstore.Options{})
	a, _ := Find(rules, "key:a", "api")
	b, _ := Find(rules, "key:b", "api")
	states, err := (&Reader{Store: store}).ReadStates(t.Context(), slices.Concat(a[:1], b[:1]))
	if err != nil || len(states) != 2 {
		t.Errorf("the states of one limit under two keys are %s, %v; want 2", summary(states), err)
	}
}

// A reset whose answer is lost is reported, because the limit may be cleared. The next limit is not
// reset.
func TestClearReportsALostAnswer(t *testing.T) {
	rules, memory := rulesOf(t, testPolicy), memstore.New(memstore.Options{})
	all, _ := Find(rules, "key:a", "")
	spend(t, memory, all, "api.hour", 10)
	spend(t, memory, all, "api.day", 3)
	before, err := (&Reader{Store: memory}).ReadStates(t.Context(), Resettable(all, ""))
	if err != nil {
		t.Fatal(err)
	}
	for name, answer := range map[string]func() (penstock.Decision, error){
		"an error":   func() (penstock.Decision, error) { return penstock.Decision{}, errors.New("lost") },
		"a fallback": func() (penstock.Decision, error) { return penstock.Decision{Source: penstock.FromFallback}, nil },
	} {
		var changes []Change
		store := penstock.StoreFunc(func(ctx context.Context, charges []penstock.Charge) (penstock.Decision, error) {
			if charges[0].Mode == penstock.Reset {
				return answer()
			}
			return memory.Decide(ctx, charges)
		})
		done, err := (&Reader{Store: store}).Clear(t.Context(), store, before, func(c Change) { changes = append(changes, c) })
		if err == nil || !strings.Contains(err.Error(), "api.hour") || len(changes) != 1 || changes[0].After != nil || len(done.Reset) != 0 {
			t.Errorf("%s: Clear returns %v with the changes %+v; want an error that names api.hour, and one change", name, err, changes)
		}
	}
}

func TestReasonsAreOneShortLine(t *testing.T) {
	for reason, isGood := range map[string]bool{"support-4711": true, "ünï": true, strings.Repeat("x", maxReason): true, "": false, " ": false, "a\nb": false, "a\x1b[2J": false, strings.Repeat("x", maxReason+1): false} {
		if err := CheckReason(reason); (err == nil) != isGood {
			t.Errorf("CheckReason(%.20q) returns %v; want it accepted: %v", reason, err, isGood)
		}
	}
}
