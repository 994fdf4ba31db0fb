package command

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/user"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/algorithm"
	"github.com/penstock/penstock/cmd/penstock/internal/console/adminapi"
	"github.com/penstock/penstock/cmd/penstock/internal/console/audit"
	"github.com/penstock/penstock/cmd/penstock/internal/console/keylimits"
	"github.com/penstock/penstock/cmd/penstock/internal/serve/settings"
	"github.com/penstock/penstock/cmd/penstock/internal/text/printable"
	"github.com/penstock/penstock/cmd/penstock/internal/text/redact"
	"github.com/penstock/penstock/cmd/penstock/internal/text/rediscli"
)

func newReset(algorithms []*algorithm.Algorithm) *cobra.Command {
	var r resetCommand
	given := storeFlags{algorithms: algorithms}
	c := &cobra.Command{
		Use:   "reset [flags] --reason TEXT (KEY | --ref REF)",
		Short: "Let a client use its limits again from the beginning",
		Long: "reset clears the counters of one key: of all its limits, of one rule's limits, or of one limit. Shadows and candidates\n" +
			"are cleared too, so that their counts stay comparable with those of limits. A limit of requests in flight is reset only by\n" +
			"its name (--limit), because its slots may still be in use. reset never clears the counters of other keys. The key of all\n" +
			"clients together is global. reset prompts for confirmation. --yes skips the prompt, and is needed if the input is not a\n" +
			"terminal.\n\n" +
			"It writes an audit line in JSON to standard error, and to the audit_file of the settings. The line has the time, the user,\n" +
			"each limit before and after, the reason, the masked key and a ref. Lines with the same ref are about the same key.\n\n" +
			"With --admin, a running instance resets the key, and writes the audit line to its log. The command then needs no store and\n" +
			"no policy, but the token of PENSTOCK_OPERATOR_TOKEN or PENSTOCK_OPERATOR_TOKEN_FILE. penstock denials and the log print a\n" +
			"ref beside each masked key; --ref resets that key.\n\n" +
			"Running instances may repeat a denial from their caches for deny_cache_ttl (1s by default). They keep the units that they\n" +
			"have leased. Limits with across are reset in this region only: run reset in each region.\n\n" +
			"Exit status: 0 reset, 3 nothing was used, 4 the operator token is wrong or missing, 5 the store or the instance gives no answer.",
		Example: "  penstock reset key:abc --reason support-4711 --store redis://localhost:6379 --config rules.yaml\n" +
			"  penstock reset ip:192.0.2.1 --rule login --reason 'wrong password manager' --yes",
		Args:              checkKeyArgument(&r.ref, &r.admin, "one key, as in: penstock reset key:abc --reason support-4711"),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(c *cobra.Command, args []string) error {
			if err := r.check(); err != nil {
				return withStatus(exitUsage, err)
			}
			if r.admin.Address != "" {
				return r.resetAtInstance(c, &given, keyQuery{key: keyArgument(args), ref: r.ref, rule: r.rule})
			}
			k, err := openKey(c, &given, args[0], r.rule)
			if err != nil {
				return err
			}
			defer k.close()
			return r.run(c, k)
		},
	}
	given.add(c, "envoy-config", "audit-file")
	c.Flags().StringVar(&r.rule, "rule", "", "reset only the limits of this rule")
	c.Flags().StringVar(&r.limit, "limit", "", "reset only this limit of the rule")
	r.admin.add(c, "reset at the running instance with this admin address")
	c.Flags().StringVar(&r.ref, "ref", "", refUsage)
	c.Flags().StringVar(&r.reason, "reason", "", "why the key is reset, for the audit line")
	c.Flags().BoolVar(&r.isConfirmed, "yes", false, "do not prompt for confirmation")
	addOutput(c, &r.output)
	return c
}

func (r *resetCommand) check() error {
	switch {
	case r.reason == "":
		return errors.New("the reason is missing; write --reason TEXT, such as the number of a ticket")
	case r.limit != "" && r.rule == "":
		return errors.New("--limit is given without its rule; write --rule too")
	}
	return keylimits.CheckReason(r.reason)
}

type resetCommand struct {
	ref, rule, limit, reason, output string
	admin                            adminFlags // without an address, the command uses the store itself
	isConfirmed                      bool
}

// A resetReport is what penstock reset prints. As JSON it has the names of /api/v1/key/reset.
type resetReport struct {
	Identity string `json:"identity"`
	*keylimits.Reset
	Unread         []string          `json:"unread,omitempty"`    // limits of new_identities, as RULE.LIMIT, which are not reset
	Held           []keylimits.Limit `json:"held,omitempty"`      // concurrency limits with slots in use, which only --limit resets
	DeniedBy       []string          `json:"denied_by,omitempty"` // other limits, as RULE.LIMIT, that still deny the client
	UnderOtherKeys []string          `json:"elsewhere,omitempty"` // limits, as RULE.LIMIT, that may count the client under another key; neither read nor reset
	List           string            `json:"list,omitempty"`      // the list that has the client: allow or deny

	isUnused bool // the command has found no counter of the key
}

// newResetReport makes a report. after is the key's state after the reset; nil: not known.
func newResetReport(identity string, done *keylimits.Reset, unread []string, held []keylimits.Limit, after *keyReport) *resetReport {
	r := &resetReport{Identity: identity, Reset: done, Unread: unread, Held: held}
	if after == nil {
		return r
	}
	r.isUnused = len(r.Reset.Reset) == 0 && after.isUnused()
	if r.List = after.List; r.List != "" {
		return r // no limit decides
	}
	r.UnderOtherKeys = after.UnderOtherKeys
	for _, name := range after.DeniedBy {
		isHeld := func(l keylimits.Limit) bool { return l.Name() == name }
		if !slices.ContainsFunc(r.Held, isHeld) {
			r.DeniedBy = append(r.DeniedBy, name)
		}
	}
	return r
}

func (r *resetCommand) run(c *cobra.Command, k *keyStore) error {
	if k.skipped > 0 {
		return withStatus(exitUsage, fmt.Errorf("there are more than %d limits of such a key; name a rule by --rule", keylimits.MaxLimits))
	}
	limits := keylimits.Resettable(k.limits, r.limit)
	if len(limits) == 0 {
		return r.errNoSuchLimit(k.key, k.limits, k.unread)
	}
	if r.limit == "" { // then r.held needs the states of all limits
		if _, err := k.reader.Read(c.Context(), k.limits); err != nil {
			return err
		}
	}
	before, err := k.reader.ReadStates(c.Context(), limits)
	if err != nil {
		return err
	}
	if err := r.confirm(c, k.key, before); err != nil {
		return err
	}
	line := newAudit(&k.settings, k.key, r.reason)
	auditWriters := []io.Writer{c.ErrOrStderr()}
	if k.settings.AuditFile != "" {
		source := k.settings.Source("audit-file")
		file, err := audit.Open(k.settings.AuditFile)
		if err != nil {
			return fmt.Errorf("%w: audit-file (%s): %w; nothing was reset", settings.ErrInvalid, source, err)
		}
		if intent := line.Intent(before); len(intent.Limits) > 0 {
			if _, err := file.Write(intent.JSON()); err != nil { // no reset without a line in the file
				return fmt.Errorf("audit-file (%s): %w; nothing was reset", source, err)
			}
		}
		auditWriters = append(auditWriters, file)
	}
	done, err := k.reader.Clear(c.Context(), k.store, before, line.Add)
	const isRefused = false
	line.End(err, isRefused)
	if len(line.Limits) > 0 {
		for _, w := range auditWriters {
			if _, writeErr := w.Write(line.JSON()); writeErr != nil {
				err = cmp.Or(err, fmt.Errorf("%s, but the audit line was not written: %w", whatWasReset(done), writeErr))
			}
		}
	}
	if err != nil {
		return err
	}
	now, _ := k.read(c.Context()) // a failure does not undo the reset
	return r.print(c.OutOrStdout(), newResetReport(k.key, done, k.unread, r.held(k.limits), now), textOfNotCleared(limits))
}

func whatWasReset(done *keylimits.Reset) string {
	if len(done.Reset) == 0 {
		return "nothing was reset"
	}
	return "reset: " + strings.Join(done.Reset, ", ")
}

func (r *resetCommand) resetAtInstance(c *cobra.Command, given *storeFlags, wanted keyQuery) error {
	instance, err := r.admin.openInstead(c, given)
	if err != nil {
		return err
	}
	defer instance.Close()
	if instance.token.text == "" {
		return instance.explainMissingToken(c.Context())
	}
	found, err := instance.fetchKey(c.Context(), wanted)
	if err != nil {
		return err
	}
	fallbacks := []string{penstock.FromFallback.String(), penstock.FromOpen.String(), penstock.FromClosed.String()}
	if slices.Contains(fallbacks, found.Source) {
		return withStatus(exitUnreachable, fmt.Errorf("%s decides without its store now (source: %s), so nothing was reset; penstock doctor --store %s --admin %s says why",
			instance.address, printable.Line(found.Source), instance.storeName(c.Context()), instance.address))
	}
	// The numbers are for the confirmation only. The instance reads them again.
	limits := keylimits.Resettable(found.Limits, r.limit)
	if len(limits) == 0 {
		return r.errNoSuchLimit(found.Identity, found.Limits, found.Unread)
	}
	if corrupt := keylimits.Corrupt(limits); corrupt != nil {
		return withStatus(exitUnreachable, fmt.Errorf("nothing was reset: Redis has a value at the key of %s that Penstock did not write; %s", printable.Line(strings.Join(keylimits.Names(corrupt), ", ")), printable.Line(repairText(found.Repair))))
	}
	if !slices.ContainsFunc(limits, func(l keylimits.Limit) bool { return l.IsInUse() }) {
		nothing := &keylimits.Reset{Reset: []string{}, Before: limits, After: limits}
		return r.print(c.OutOrStdout(), newResetReport(found.Identity, nothing, found.Unread, r.held(found.Limits), found), "")
	}
	if err := r.confirm(c, found.Identity, limits); err != nil {
		return err
	}
	body, err := json.Marshal(adminapi.ResetRequest{Key: wanted.key, Ref: wanted.ref, Rule: r.rule, Limit: r.limit, Reason: r.reason})
	if err != nil {
		return err
	}
	done := new(keylimits.Reset)
	if err := instance.send(c.Context(), "key/reset", body, done); err != nil {
		if failure, ok := errors.AsType[*statusError](err); ok && failure.status == exitUnreachable {
			return withStatus(exitUnreachable, fmt.Errorf("%w; whether the key was reset is not known: run penstock status to see", failure.cause))
		}
		return err
	}
	if len(done.Before) == 0 || len(done.Before) != len(done.After) {
		return instance.errNotTheAPI()
	}
	const notCleared = "Other instances may deny from their caches for up to deny_cache_ttl (1s by default). Leased units stay with the instances. " +
		"Limits with across were reset in this region only.\n"
	now, _ := instance.fetchKey(c.Context(), wanted) // a failure does not undo the reset
	return r.print(c.OutOrStdout(), newResetReport(found.Identity, done, found.Unread, r.held(found.Limits), now), notCleared)
}

// storeName returns the URL of the instance's store without its password, as a word of a command
// line. It returns URL if the instance does not tell.
func (a *admin) storeName(ctx context.Context) string {
	var store adminapi.StoreState
	if err := a.send(ctx, "store", nil, &store); err != nil || store.Name == "" {
		return "URL"
	}
	return rediscli.Word(printable.Line(store.Name))
}

// held returns the limits of requests in flight that hold slots, unless the command names one.
func (r *resetCommand) held(limits []keylimits.Limit) []keylimits.Limit {
	if r.limit != "" {
		return nil
	}
	return keylimits.Held(limits)
}

// printHeld names the limits that were not reset because they hold slots.
func printHeld(out io.Writer, held []keylimits.Limit) {
	var names, flags []string
	for _, l := range held {
		name := l.Name()
		if l.IsDenied && l.Kind == keylimits.Enforced {
			name += " (it denies)"
		}
		if !slices.Contains(names, name) { // tiers share a counter
			names = append(names, name)
		}
		if text := flagsOf(&l); !slices.Contains(flags, text) {
			flags = append(flags, text)
		}
	}
	if names != nil {
		printable.Fprintf(out, "Not reset, because requests in flight hold slots: %s. If they have ended, name the limit: %s\n",
			strings.Join(names, ", "), strings.Join(flags, ", then "))
	}
}

func flagsOf(l *keylimits.Limit) string { return "--rule " + l.Rule + " --limit " + l.Limit }

// errNoSuchLimit returns the error for a key without limits to reset. all are its limits, and
// unread has the names of its limits of new_identities.
func (r *resetCommand) errNoSuchLimit(key string, all []keylimits.Limit, unread []string) error {
	key = printable.Line(key)
	if len(all) > 0 && r.limit == "" { // without a name, all limits but those of requests in flight are reset
		return withStatus(exitUsage, fmt.Errorf("all limits of %s count requests in flight, whose slots may still be in use; if the requests have ended, name the limit: %s", key, printable.Line(flagsOf(&all[0]))))
	}
	if len(unread) > 0 {
		return withStatus(exitUsage, fmt.Errorf("no limit of %s can be reset. %s", key, strings.TrimSpace(textOfUnread(unread))))
	}
	return withStatus(exitUsage, fmt.Errorf("no such limit counts under %s; penstock status lists the limits. To reset a limit of requests in flight, name it by --rule and --limit", key))
}

// print prints what was reset. notCleared describes the units and denials that the reset has kept.
func (r *resetCommand) print(out io.Writer, report *resetReport, notCleared string) error {
	var text strings.Builder
	for i, l := range report.Before {
		if slices.Contains(report.Reset.Reset, l.Name()) {
			printable.Fprintf(&text, "%s was reset: %d used before, %d left now", l.Name(), l.Used, report.After[i].Left)
			if l.Tier != "" { // all tiers share the counter, but what is left depends on the tier
				printable.Fprintf(&text, " for tier %s", l.Tier)
			}
			text.WriteString("\n")
		}
	}
	text.WriteString(notCleared)
	if len(report.Reset.Reset) == 0 {
		text.Reset()
		if len(report.Held) == 0 {
			printable.Fprintf(&text, "%s has used nothing; ", report.Identity)
		}
		text.WriteString("nothing was reset.\n")
	}
	if report.isUnused {
		text.WriteString(adviceIfUnused)
	}
	if len(report.DeniedBy) > 0 {
		printable.Fprintf(&text, "A request of the client is still denied by %s.\n", strings.Join(report.DeniedBy, ", "))
	}
	if report.List == keylimits.DenyList {
		text.WriteString("The client is on the deny list, so all its requests are still rejected.\n")
	}
	printHeld(&text, report.Held)
	text.WriteString(textOfOtherKeys(report.UnderOtherKeys))
	text.WriteString(textOfUnread(report.Unread))
	var err error
	if r.output == "json" {
		err = writeJSON(out, report)
	} else {
		_, err = io.WriteString(out, text.String())
	}
	if err == nil && len(report.Reset.Reset) == 0 {
		err = statusOnly(exitDenied)
	}
	return err
}

// textOfNotCleared describes what a reset of these limits keeps: the cached denials and leased
// units of instances, and the grants of other regions.
func textOfNotCleared(limits []keylimits.Limit) (text string) {
	denyCacheTTL, hasLease, isAcross := time.Duration(0), false, false
	for _, l := range limits {
		denyCacheTTL = max(denyCacheTTL, l.DenyCacheTTL())
		hasLease, isAcross = hasLease || l.HasLease(), isAcross || l.IsAcross()
	}
	if denyCacheTTL > 0 {
		text = fmt.Sprintf("Running instances may deny from their caches for up to %v more.\n", denyCacheTTL)
	}
	if hasLease {
		text += "Units that instances have leased stay with them.\n"
	}
	if isAcross {
		text += "Limits with across were reset in this region only. What other regions have granted counts again in some seconds, so run reset in each of them.\n"
	}
	return text
}

// confirm prompts the operator, unless --yes is given or nothing is used.
func (r *resetCommand) confirm(c *cobra.Command, key string, limits []keylimits.Limit) error {
	var names []string
	for _, l := range limits {
		name := fmt.Sprintf("%s (%d used)", l.Name(), l.Used)
		if l.IsInUse() && !slices.Contains(names, name) { // tiers share a counter
			names = append(names, name)
		}
	}
	if r.isConfirmed || len(names) == 0 {
		return nil
	}
	return confirm(c, fmt.Sprintf("Reset %s of %s?", strings.Join(names, ", "), key), "nothing was reset")
}

// confirm asks a question at the terminal. Without a yes, its error is notDone, such as "nothing
// was reset".
func confirm(c *cobra.Command, question, notDone string) error {
	in, isFile := c.InOrStdin().(*os.File)
	if !isFile || !term.IsTerminal(int(in.Fd())) {
		return withStatus(exitUsage, fmt.Errorf("the input is not a terminal, so %s; write --yes", notDone))
	}
	printable.Fprintf(c.ErrOrStderr(), "%s [y/N] ", question)
	line, err := bufio.NewReader(io.LimitReader(in, 1024)).ReadString('\n') // an answer is short
	answer := strings.ToLower(strings.TrimSpace(line))
	isYes := answer == "y" || answer == "yes"
	if err != nil || !isYes {
		return withStatus(exitUsage, errors.New(notDone))
	}
	return nil
}

func newAudit(s *settings.Settings, key, reason string) audit.Line {
	actor := audit.Actor{Kind: audit.CommandLine}
	if u, err := user.Current(); err == nil {
		actor.Name = u.Username
	}
	actor.Host, _ = os.Hostname()
	line := audit.New("reset", actor)
	identities := s.Identities(s.SharedSecret())
	line.Key, line.Ref, line.Reason = redact.Mask(key), identities.Ref(identities.Name(key)), reason
	return line
}
