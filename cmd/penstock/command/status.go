package command

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/algorithm"
	"github.com/penstock/penstock/cmd/penstock/internal/console/adminapi"
	"github.com/penstock/penstock/cmd/penstock/internal/console/keylimits"
	"github.com/penstock/penstock/cmd/penstock/internal/rpc/envoyconfig"
	"github.com/penstock/penstock/cmd/penstock/internal/rpc/envoyrls"
	"github.com/penstock/penstock/cmd/penstock/internal/serve/service"
	"github.com/penstock/penstock/cmd/penstock/internal/serve/settings"
	"github.com/penstock/penstock/cmd/penstock/internal/text/printable"
	"github.com/penstock/penstock/cmd/penstock/internal/text/redact"
	"github.com/penstock/penstock/guard"
	"github.com/penstock/penstock/internal/regions"
	"github.com/penstock/penstock/internal/syntax"
	"github.com/penstock/penstock/policy"
	"github.com/penstock/penstock/policy/policyfile"
	"github.com/penstock/penstock/redisstore"
)

// storeTimeout is how long one call of the store may take. It includes the time to connect.
const storeTimeout = 5 * time.Second

func newStatus(algorithms []*algorithm.Algorithm) *cobra.Command {
	var rule, output, ref string
	var instance adminFlags
	given := storeFlags{algorithms: algorithms}
	c := &cobra.Command{
		Use:   "status [flags] (KEY | --ref REF)",
		Short: "Show what a client has used of its limits",
		Long: "status shows all limits of a key: what is used, what is left, when the limit will be unused again, and which limit would\n" +
			"deny a request of one unit now. It reads the store and charges nothing. The key is that of penstock explain and of the\n" +
			"log, such as key:abc, ip:192.0.2.1, user:42, or global for all clients together. For limits of --envoy-config it is the domain\n" +
			"and the entries of a descriptor, as in 'rides|api_key=abc'.\n\n" +
			"It takes the store, the policy, the prefix and the secret from the same flags, variables and file as serve. With --admin it\n" +
			"reads from a running instance instead, and needs none of these settings. The token of PENSTOCK_OPERATOR_TOKEN or\n" +
			"PENSTOCK_OPERATOR_TOKEN_FILE is sent if it is set; KEY needs it, --ref does not. The instance answers as it would for a request: it also uses its deny cache and\n" +
			"its leases. penstock denials and the log print a ref beside each masked key. --ref shows that key, if the instance has denied it\n" +
			"or seen it often in the last hour.\n\n" +
			"If the policy has tiers and the key does not say which one the client has, status says what holds for each tier.\n\n" +
			"Exit status: 0 no limit would deny the request, or only in some tiers, 3 one would, 4 the operator token is wrong or missing, 5 the store or the\n" +
			"instance gives no answer. An instance without its store decides from its own memory, so the status is 0 or 3. The used units\n" +
			"are then not known.",
		Example:           "  penstock status key:abc --store redis://localhost:6379 --config rules.yaml\n  penstock status ip:192.0.2.1 --rule login -o json",
		Args:              checkKeyArgument(&ref, &instance, "one key, as in: penstock status ip:192.0.2.1"),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(c *cobra.Command, args []string) error {
			report, err := readKey(c, &given, &instance, keyQuery{key: keyArgument(args), ref: ref, rule: rule})
			if err != nil {
				return err
			}
			err = printReport(c.OutOrStdout(), output, report, report.print)
			if err == nil && report.isDenied() {
				return statusOnly(exitDenied)
			}
			return err
		},
	}
	given.add(c, "envoy-config")
	c.Flags().StringVar(&rule, "rule", "", "show only the limits of this rule, and limits of all clients together that may deny its requests")
	instance.add(c, "read from the running instance with this admin address")
	c.Flags().StringVar(&ref, "ref", "", refUsage)
	addOutput(c, &output)
	return c
}

// readKey reads a key from a running instance if its address is given, else from the store.
func readKey(c *cobra.Command, given *storeFlags, instance *adminFlags, wanted keyQuery) (*keyReport, error) {
	if instance.Address == "" {
		k, err := openKey(c, given, wanted.key, wanted.rule)
		if err != nil {
			return nil, err
		}
		defer k.close()
		return k.read(c.Context())
	}
	a, err := instance.openInstead(c, given)
	if err != nil {
		return nil, err
	}
	defer a.Close()
	return a.fetchKey(c.Context(), wanted)
}

// A keyQuery names a key, or its ref. It names a rule if only the limits of that rule are wanted.
type keyQuery struct{ key, ref, rule string }

func (q keyQuery) String() string {
	if q.ref != "" {
		return "ref " + q.ref
	}
	return q.key
}

const refUsage = "instead of KEY, with --admin: the ref that penstock denials and the log print beside a masked key"

// checkKeyArgument returns a check that there is one key or, for a running instance, one ref. The
// error of the check names the wanted argument.
func checkKeyArgument(ref *string, instance *adminFlags, wanted string) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if err := checkRef(*ref); err != nil {
			return err
		}
		switch {
		case *ref == "":
			if err := argumentCount(1, 1, wanted)(c, args); err != nil {
				return err
			}
		case len(args) > 0:
			return withStatus(exitUsage, errors.New("both a key and --ref are given; write one of them"))
		case instance.Address == "":
			return withStatus(exitUsage, errors.New("only a running instance knows refs; write --admin 127.0.0.1:9180 --ref "+*ref))
		}
		return checkMasked(keyArgument(args))
	}
}

// checkRef returns an error if --ref has a masked key, or its digits. It also returns one if --ref
// has the next flag as its value, because a script has left out the ref.
func checkRef(ref string) error {
	_, err := hex.DecodeString(ref)
	const digitsOfMask = 8 // behind the # of a masked key
	isDigitsOfMask := len(ref) == digitsOfMask && err == nil
	if redact.IsMasked(ref) || isDigitsOfMask {
		return withStatus(exitUsage, fmt.Errorf("%s is of a masked key, and no ref; a ref has 16 digits, and is printed beside the masked key, as in ref=a5e8a92f78f64dc2", printable.Line(ref)))
	}
	if !strings.HasPrefix(ref, "--") {
		return nil
	}
	return withStatus(exitUsage, fmt.Errorf("--ref has no value: the next word is the flag %s; write --ref REF, and check that REF is not empty", ref))
}

// checkMasked returns an error for a masked key, because no limit counts under it.
func checkMasked(key string) error {
	if !redact.IsMasked(key) {
		return nil
	}
	return withStatus(exitUsage, fmt.Errorf("%s is masked, so it names no client; write --ref REF --admin ADDRESS: penstock denials and the log print the ref beside the key", key))
}

// keyArgument returns the key, or "" if --ref names it.
func keyArgument(args []string) string {
	if len(args) == 0 {
		return ""
	}
	return args[0]
}

func (a *admin) fetchKey(ctx context.Context, wanted keyQuery) (*keyReport, error) {
	query := url.Values{"all": {"true"}} // also limits that the key has not used
	for name, value := range map[string]string{"key": wanted.key, "ref": wanted.ref, "rule": wanted.rule} {
		if value != "" {
			query.Set(name, value)
		}
	}
	var found adminapi.Key
	if err := a.send(ctx, "key?"+query.Encode(), nil, &found); err != nil {
		return nil, err
	}
	if found.Source == "" { // the admin API always names a source
		return nil, a.errNotTheAPI()
	}
	if found.Identity == "" { // shown_identities is off
		found.Identity = wanted.String()
	}
	found.Ref, found.Stored = "", "" // the user has named the key
	return &keyReport{Key: found}, nil
}

// A keyStore is the store and the policy, for one key.
type keyStore struct {
	key            string
	limits         []keylimits.Limit // limits that count under the key; empty only if unread has a name
	global         []keylimits.Limit // limits of all clients together that may deny the key
	unread         []string          // names of limits of new_identities, which the store does not have
	underOtherKeys []string          // names of limits that may count the client under another key
	list           string            // the list that has the client: allow or deny; "" for none
	skipped        int               // how many limits of the key are left out, because there are too many
	skippedGlobal  int               // how many limits of all clients together are left out
	store          penstock.Store    // each call has storeTimeout
	reader         *keylimits.Reader
	settings       settings.Settings
	redis          *redisstore.Store
	policy         *policyfile.Policy
}

func openKey(c *cobra.Command, given *storeFlags, key, rule string) (*keyStore, error) {
	s, p, err := given.load(c, "operator-token", "caller-token", "audit-file",
		"region-interval", "envoy-config", "envoy-mode", "envoy-algorithm", "envoy-on-failure", "envoy-merge-domains", "envoy-shadow-mode", "envoy-reports", "envoy-headers")
	if err != nil {
		return nil, err
	}
	if p == nil && s.EnvoyConfig == "" {
		return nil, withStatus(exitUsage, errors.New("no policy is named; write --config rules.yaml, set PENSTOCK_CONFIG, or write --envoy-config DIR"))
	}
	k, err := newKeyStore(s, p, key, rule)
	if err != nil && p != nil {
		p.Close()
	}
	return k, err
}

func envoyLimits(s *settings.Settings, key, rule string) ([]keylimits.Limit, error) {
	if s.EnvoyConfig == "" {
		return nil, nil
	}
	c, err := envoyconfig.LoadDir(s.EnvoyConfig, envoyconfig.Options{MergeDomains: s.EnvoyMergeDomains})
	if err != nil {
		return nil, fmt.Errorf("%w: envoy-config (%s): %w", settings.ErrInvalid, s.Source("envoy-config"), err)
	}
	found, err := envoyrls.KeyLimits(c, service.EnvoyOptions(s), key)
	return keylimits.Envoy(found, rule), err
}

// newKeyStore finds the limits of a key and opens the store. p is nil if all limits are Envoy's.
func newKeyStore(s settings.Settings, p *policyfile.Policy, key, rule string) (*keyStore, error) {
	rules, err := policy.New(policy.Spec{}) // no rules
	if err != nil {
		return nil, err
	}
	if p != nil {
		rules = p.Rules
	}
	envoy, err := envoyLimits(&s, key, rule)
	if err != nil {
		return nil, err
	}
	hasRule := rules.Rule(rule) != nil || len(envoy) > 0
	if rule != "" && !hasRule {
		return nil, withStatus(exitUsage, fmt.Errorf("%q: %w; penstock validate -v lists the rules", rule, rules.NoRule(rule)))
	}
	options := redisstore.Options{Prefix: s.Prefix, Secret: s.KeyHashSecret}
	k := &keyStore{key: keylimits.Normalize(rules, key), policy: p, settings: s}
	k.limits, k.skipped = keylimits.Find(rules, k.key, rule)
	k.list = keylimits.ListOf(rules, k.limits)
	k.unread = keylimits.NewIdentities(rules, k.key, rule)
	k.underOtherKeys = keylimits.UnderOtherKeys(rules, k.key, k.limits)
	k.limits = append(k.limits, envoy...)
	if len(k.limits) == 0 && len(k.unread) == 0 {
		return nil, withStatus(exitUsage, errors.New(keylimits.NotCounted(rules, key, rule)))
	}
	if k.key != syntax.GlobalKey {
		k.global, k.skippedGlobal = keylimits.Globals(rules, k.limits)
	}
	for _, limits := range [][]keylimits.Limit{k.limits, k.global} {
		for i := range limits {
			if limits[i].Stored, err = redisstore.KeyOf(limits[i].Charge(), options); err != nil {
				return nil, err
			}
		}
	}
	if k.redis, err = redisstore.Open(s.Store, options); err != nil {
		return nil, withStatus(exitUsage, err)
	}
	var enforced func(*penstock.Plan) *penstock.Plan
	if slices.ContainsFunc(rules.Plans(), regions.IsAcross) {
		ctx, cancel := context.WithTimeout(context.Background(), storeTimeout)
		defer cancel()
		look, _ := regions.LookAt(ctx, k.redis) // if the store fails, the read says so
		enforced = func(p *penstock.Plan) *penstock.Plan { return look.Enforced(p, s.RegionInterval) }
	}
	split := penstock.Wrap(k.redis, guard.Split(rules.Settings)) // as serve does
	k.store = penstock.StoreFunc(func(ctx context.Context, charges []penstock.Charge) (penstock.Decision, error) {
		ctx, cancel := context.WithTimeout(ctx, storeTimeout)
		defer cancel()
		return split.Decide(ctx, charges)
	})
	k.reader = &keylimits.Reader{Store: k.store, Enforced: enforced, URL: s.Store, Options: options}
	return k, nil
}

func (k *keyStore) close() {
	k.redis.Close()
	if k.policy != nil {
		k.policy.Close()
	}
}

// A keyReport is what penstock status prints. As JSON it has the names of /api/v1/key.
type keyReport struct {
	adminapi.Key

	isFromCommand bool // the command has read the store itself, with its own settings
}

// isUnused reports whether the command has found no counter of the key.
func (r *keyReport) isUnused() bool {
	isUsed := func(l keylimits.Limit) bool { return l.Used > 0 }
	return r.isFromCommand && r.List == "" && len(r.Limits) > 0 && !slices.ContainsFunc(r.Limits, isUsed)
}

// adviceIfUnused says what to compare if a command finds no counter of a key. With other settings
// than those of the instances, it looks for other keys in Redis.
const adviceIfUnused = "If the client has sent requests, check the spelling of the key, and that prefix and key_hash_secret are those of the instances.\n"

// isDenied reports whether a request is certain to be denied.
func (r *keyReport) isDenied() bool {
	return r.List == keylimits.DenyList || r.List == "" && len(r.DeniedBy) > 0
}

func (k *keyStore) read(ctx context.Context) (*keyReport, error) {
	all := slices.Concat(k.limits, k.global)
	source, err := k.reader.Read(ctx, all)
	if err != nil {
		return nil, err
	}
	results := keylimits.Results(all)
	return &keyReport{isFromCommand: true, Key: adminapi.Key{Identity: k.key, Source: source.String(), List: k.list, DeniedBy: keylimits.DeniedBy(results), Results: results,
		Limits: all[:len(k.limits)], Global: all[len(k.limits):], Unread: k.unread, UnderOtherKeys: k.underOtherKeys, Skipped: k.skipped + k.skippedGlobal}}, nil
}

func (r *keyReport) print(out io.Writer) error {
	var b strings.Builder
	printable.Fprintf(&b, "key %s\n", r.Identity)
	if r.Source != penstock.FromStore.String() {
		printable.Fprintf(&b, "read from the instance itself, not from the store (source: %s)\n", r.Source)
		if slices.ContainsFunc(r.Limits, func(l keylimits.Limit) bool { return l.IsUnknown }) {
			b.WriteString("What was used is not known until the store answers. The column \"left\" shows what this instance alone admits.\n")
		}
	}
	b.WriteString("\n")
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "limit\tadmits\tused\tleft\tunused in\ta request now")
	for _, l := range r.Limits {
		printLimit(w, &l, "", r.List)
	}
	for _, l := range r.Global {
		printLimit(w, &l, "all clients", r.List)
	}
	_ = w.Flush()
	if r.Skipped > 0 {
		printable.Fprintf(&b, "\n%d more limits were not read; name a rule by --rule.\n", r.Skipped)
	}
	switch {
	case r.List == keylimits.AllowList:
		b.WriteString("\nThe client is on the allow list, so no limit applies to its requests.\n")
	case r.List == keylimits.DenyList:
		b.WriteString("\nThe client is on the deny list, so all its requests are rejected.\n")
	case r.List == keylimits.Unlisted:
		b.WriteString("\nNo request counts under this key, because the policy lists the values that count, and this one is not listed.\npenstock explain finds the key of such a request.\n")
	case keylimits.IsMixed(r.Results):
		b.WriteString("\nThe tier of the client decides about a request of one unit now:\n")
		for _, v := range r.Results {
			printable.Fprintf(&b, "  %s if the tier is %s\n", resultText(&v), v.Tier)
		}
		b.WriteString("penstock explain finds the tier from the headers of a request.\n")
	case len(r.DeniedBy) > 0:
		printable.Fprintf(&b, "\nA request of one unit would be denied now, by %s.\n", strings.Join(r.DeniedBy, ", "))
		if r.hasAllowingRule() {
			b.WriteString("A limit counts only the requests that its rule matches.\n")
		}
	case len(r.Unread)+len(r.UnderOtherKeys)+r.Skipped > 0:
		b.WriteString("\nNone of these enforced limits would deny a request of one unit now.\n")
	default:
		b.WriteString("\nNo enforced limit would deny a request of one unit now.\n")
	}
	if r.isUnused() {
		b.WriteString(adviceIfUnused)
	}
	r.printCorrupt(&b)
	b.WriteString(textOfUnread(r.Unread))
	if r.List == "" {
		b.WriteString(textOfOtherKeys(r.UnderOtherKeys))
	}
	_, err := io.WriteString(out, b.String())
	return err
}

// hasAllowingRule reports whether the report has a rule whose limits would all allow a request.
func (r *keyReport) hasAllowingRule() bool {
	all := slices.Concat(r.Limits, r.Global)
	denyingRules := make(map[string]bool)
	for _, l := range all {
		if slices.Contains(r.DeniedBy, l.Name()) {
			denyingRules[l.Rule] = true
		}
	}
	return slices.ContainsFunc(all, func(l keylimits.Limit) bool {
		return l.Kind == keylimits.Enforced && !denyingRules[l.Rule]
	})
}

// printCorrupt names the limits whose state is corrupt, what happens to their requests, and how to
// repair it.
func (r *keyReport) printCorrupt(out io.Writer) {
	corrupt := slices.Concat(keylimits.Corrupt(r.Limits), keylimits.Corrupt(r.Global))
	if corrupt == nil {
		return
	}
	printable.Fprintf(out, "\nCorrupt: %s. Redis has a value at the key that Penstock did not write, so what was used cannot be read.\n", strings.Join(keylimits.Names(corrupt), ", "))
	printable.Fprintf(out, "Until the value is deleted, %s. The columns \"left\" and \"a request now\" show what this instance does.\n", keylimits.FailureText(corrupt))
	printable.Fprintf(out, "To repair it, %s\n", repairText(r.Repair))
}

// repairText says how to delete corrupt values. command deletes them. An instance omits it, as "",
// if it would show a hidden key.
func repairText(command string) string {
	if command == "" {
		return "run penstock status KEY --store URL --config FILE for the client's key: it prints the command that deletes the value"
	}
	return "delete the value: " + command
}

func resultText(v *keylimits.Result) string {
	if len(v.DeniedBy) == 0 {
		return "allowed"
	}
	return deniedText(v.RetryMS) + " by " + strings.Join(v.DeniedBy, ", ")
}

// deniedText returns for how long a limit denies, as in "denied for 2m0s".
func deniedText(retryMS int64) string {
	if retryMS < 0 {
		return "denied forever"
	}
	return "denied for " + (time.Duration(retryMS) * time.Millisecond).String()
}

// textOfUnread describes the limits of new_identities, which were not read. It returns "" if there
// are no names.
func textOfUnread(names []string) string {
	if len(names) == 0 {
		return ""
	}
	return "Not read: " + printable.Line(strings.Join(names, ", ")) + ". Each instance counts the new identities of an address in its own memory. This count\n" +
		"cannot be reset: it goes down by itself, and a restart clears it. penstock denials lists the addresses that are denied.\n"
}

// textOfOtherKeys describes the limits that may count the client under another key. It returns ""
// if there are no names.
func textOfOtherKeys(names []string) string {
	if len(names) == 0 {
		return ""
	}
	return "Not read: " + printable.Line(strings.Join(names, ", ")) + ". They may count the client under another key, such as its address.\n" +
		"penstock explain finds all limits of a request.\n"
}

// printLimit prints a row of the table. clients names the clients that the limit counts. It is ""
// if the limit counts only the client of the key. list is the list that has the client, or "".
func printLimit(w io.Writer, l *keylimits.Limit, clients, list string) {
	name := l.Name()
	var notes []string
	for _, note := range []string{l.Tier, clients} {
		if note != "" {
			notes = append(notes, note)
		}
	}
	if l.Kind != keylimits.Enforced {
		notes = append(notes, l.Kind)
	}
	if l.Share != "" {
		notes = append(notes, "the share of this region")
	}
	if len(notes) > 0 {
		name += " (" + strings.Join(notes, ", ") + ")"
	}
	answer := "allowed"
	switch {
	case list == keylimits.AllowList: // the limit does not apply
	case list == keylimits.DenyList:
		answer = "rejected"
	case l.IsUnlisted:
		answer = "not counted"
	case l.IsDenied && l.Kind == keylimits.Enforced:
		answer = deniedText(l.RetryMS)
	case l.IsDenied:
		answer = "would be " + deniedText(l.RetryMS)
	}
	unused := "-"
	if l.Used > 0 {
		unused = (time.Duration(l.ResetMS) * time.Millisecond).String()
	}
	used, left := strconv.FormatInt(l.Used, 10), strconv.FormatInt(l.Left, 10)
	if l.IsUnknown {
		used, unused = "?", "?"
	}
	if l.IsUncounted {
		left = "any"
	}
	printable.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", name, cmp.Or(l.Share, l.Rate), used, left, unused, answer)
}
