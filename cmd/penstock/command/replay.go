package command

import (
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/penstock/penstock/algorithm"
	"github.com/penstock/penstock/cmd/penstock/internal/serve/settings"
	"github.com/penstock/penstock/cmd/penstock/internal/text/printable"
	"github.com/penstock/penstock/cmd/penstock/internal/tools/accesslog"
	"github.com/penstock/penstock/cmd/penstock/internal/tools/htmlreport"
	"github.com/penstock/penstock/cmd/penstock/internal/tools/replay"
	"github.com/penstock/penstock/internal/wording"
	"github.com/penstock/penstock/policy/policyfile"
)

func newReplay(algorithms []*algorithm.Algorithm) *cobra.Command {
	var r replayCommand
	var formats []string
	for _, f := range accesslog.Formats() {
		formats = append(formats, f.Name)
	}
	c := &cobra.Command{
		Use:   "replay LOG... --config FILE [flags]",
		Short: "Show whom a policy would have denied, from access logs",
		Long: "replay decides each request of access logs by a policy, in memory and by the clock of the log. It needs no server. It reads\n" +
			"the logs of nginx, Apache, Caddy, Envoy, HAProxy, Traefik, AWS ALB and CloudFront, and logs in JSON; gzip, zstd or bzip2; - is\n" +
			"standard input. Several files are put in order by time. The format is detected: " + wording.List(formats, "or") + ".\n" +
			"Requests with equal time stamps are decided in the alphabetical order of their lines, whatever their order in the logs.\n" +
			"A log shows what clients did without these limits. Denied clients would have changed: by default a denied request is gone;\n" +
			"with --retry it comes back after its Retry-After, at most three times. If the time stamps are whole seconds, the requests of a\n" +
			"second are taken as one burst; the report says how many would be denied if each client spread its requests over the second.",
		Example: "  penstock replay access.log --config rules.yaml\n  penstock replay *.log.gz --config new.yaml --diff old.yaml\n" +
			"  penstock replay access.log --config rules.yaml --fail-if 'denied_identities > 0.1%'\n" +
			"  penstock replay access.log --config rules.yaml --header 'X-API-Key: $remote_user'",
		Args: argumentCount(1, 1000, "the name of a log, as in: penstock replay access.log --config rules.yaml"),
		RunE: func(c *cobra.Command, args []string) error {
			return r.run(c, args, algorithms)
		},
	}
	f := c.Flags()
	f.StringVar(&r.config, "config", "", "policy file (required)")
	f.StringVar(&r.old, "diff", "", "another policy file to compare with, such as the one in force")
	f.StringVar(&r.format, "format", "", "format of the logs: a name, a log_format of nginx, or a regular expression with groups such as (?P<remote_addr>\\S+)")
	f.StringArrayVar(&r.headers, "header", nil, "header of each request, as in 'X-API-Key: $remote_user'; repeat it for more")
	f.BoolVar(&r.shouldRetry, "retry", false, "send denied requests again after their Retry-After, at most three times")
	f.StringVar(&r.failIf, "fail-if", "", "exit with status 6 if this holds, as in 'denied > 1%', 'denied_identities > 10' or 'rejected_lines > 5%'")
	f.StringVar(&r.identities, "identities", "masked", "how the report shows keys: masked or full")
	f.StringVar(&r.html, "html", "", htmlUsage)
	addOutput(c, &r.output)
	_ = c.RegisterFlagCompletionFunc("config", completeYAML)
	_ = c.RegisterFlagCompletionFunc("diff", completeYAML)
	return c
}

type replayCommand struct {
	config, old, format, failIf, identities, html, output string
	headers                                               []string
	shouldRetry                                           bool
}

func (r *replayCommand) run(c *cobra.Command, logs []string, algorithms []*algorithm.Algorithm) error {
	o := replay.Options{ShouldRetry: r.shouldRetry, ShowsIdentities: r.identities == "full"}
	var format *accesslog.Format
	var limit *threshold
	err := errors.New("a policy is missing; write --config rules.yaml")
	if r.config != "" {
		err = nil
	}
	if err == nil && r.identities != "full" && r.identities != "masked" {
		err = fmt.Errorf("--identities is %q; write masked or full", wording.Clip(r.identities))
	}
	if err == nil && r.failIf != "" {
		limit, err = readThreshold(r.failIf, []string{"denied", "denied_identities", "rejected_lines"}, nil)
	}
	if err == nil && r.format != "" {
		format, err = accesslog.NewFormat(r.format)
	}
	for _, text := range r.headers {
		if err == nil {
			var h replay.Header
			h, err = replay.ParseHeader(text)
			o.Headers = append(o.Headers, h)
		}
	}
	if err != nil {
		return withStatus(exitUsage, err)
	}
	p, err := policyfile.Load(r.config, settings.PolicyOptions(algorithms...))
	if err != nil {
		return err
	}
	defer p.Close()
	o.Rules = p.Rules
	if r.old != "" {
		old, err := policyfile.Load(r.old, settings.PolicyOptions(algorithms...))
		if err != nil {
			return err
		}
		defer old.Close()
		o.Old = old.Rules
	}
	if o.Log, err = accesslog.Open(logs, c.InOrStdin(), format); err != nil {
		return withStatus(exitInvalid, fmt.Errorf("cannot read the log: %w", err))
	}
	defer o.Log.Close()
	stop := showProgress(c.ErrOrStderr(), o.Log)
	report, err := replay.Run(c.Context(), o)
	stop()
	if err != nil {
		return err
	}
	if err := checkLog(&report.Log); err != nil {
		return err
	}
	if err := writeHTML(r.html, func() *htmlreport.Page { return replayPage(report) }); err != nil {
		return err
	}
	if r.output == "json" {
		err = writeJSON(c.OutOrStdout(), report)
	} else {
		err = printReplay(c.OutOrStdout(), report)
	}
	switch {
	case err != nil || limit == nil:
		return err
	case len(report.Undecided) > 0 && limit.name != "rejected_lines":
		return fmt.Errorf("--fail-if %s was not judged, because limits were not decided; see the warnings", limit.text)
	case isExceeded(limit, report):
		return limit.reportExceeded(c.ErrOrStderr())
	}
	return nil
}

func isExceeded(t *threshold, r *replay.Report) bool {
	switch t.name {
	case "denied_identities":
		return t.isExceeded(float64(r.Policy.DeniedIdentities), r.Policy.Identities)
	case "rejected_lines":
		return t.isExceeded(float64(r.Log.Rejected), r.Log.Lines)
	}
	return t.isExceeded(float64(r.Policy.Denied), r.Policy.Requests)
}

const timeLayout = "2006-01-02 15:04:05"

func printReplay(out io.Writer, r *replay.Report) error {
	printReplayNotes(out, r)
	fmt.Fprintln(out)
	printSums(out, r.Policy)
	printSection(out, rulesSection(r.Policy))
	printSection(out, hitSection(r.Policy))
	printOld(out, r)
	printSection(out, differencesSection(r))
	return nil
}

// printSection prints the table of a section, if it has rows.
func printSection(out io.Writer, s htmlreport.Section) {
	if len(s.Rows) == 0 {
		return
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, row := range append([][]string{s.Columns}, s.Rows...) {
		for i, cell := range row {
			separator := "\t"
			if i == 0 {
				separator = "\n"
			}
			fmt.Fprint(w, separator+printable.Line(cell))
		}
	}
	fmt.Fprint(w, "\n"+s.Note)
	_ = w.Flush()
}

func printReplayNotes(out io.Writer, r *replay.Report) {
	printLog(out, &r.Log, r.Denied429)
	if r.WithoutAddress > 0 {
		printable.Fprintf(out, "warning: %s of the requests have no address in the log; rules per ip count them as one client\n", share(r.WithoutAddress, r.Log.Requests))
	}
	for _, n := range r.NeedsHeaders {
		printable.Fprintf(out, "warning: rule %s reads %s, which no request of the log has; --header adds a header\n", n.Rule, n.Source)
	}
	for _, n := range r.Undecided {
		printable.Fprintf(out, "warning: limit %s of rule %s was not decided, because no request of the log has a %s; write --format if the lines have it\n", n.Limit, n.Rule, n.Source)
	}
}

// printOld compares the policy with the other one, if there is one.
func printOld(out io.Writer, r *replay.Report) {
	if r.Old == nil {
		return
	}
	printable.Fprintf(out, "\nThe other policy denies %s of the requests.\n", share(r.Old.Denied, r.Old.Requests))
	printable.Fprintf(out, "Only this policy denies %d of them, and only the other one %d.\n", r.OnlyNew, r.OnlyOld)
}

// maxLateShare is the part of the requests that may be late. More would distort the result.
const maxLateShare = 0.01

// checkLog returns an error if no line of a log was read as a request, or if the log is not in the
// order of time.
func checkLog(log *accesslog.Stats) error {
	switch {
	case log.Requests == 0:
		return withStatus(exitInvalid, fmt.Errorf("no line of the log is a request: %d of %d lines have another format; check --format", log.Rejected, log.Lines))
	case float64(log.Late) > maxLateShare*float64(log.Requests):
		return withStatus(exitInvalid, fmt.Errorf("the log is not in the order of time: %s of the requests stand more than a minute behind later ones. Give the files as separate arguments, or sort the lines by time", share(log.Late, log.Requests)))
	}
	return nil
}

// printLog prints what was read. denied429 is how many requests the log says were denied.
func printLog(out io.Writer, log *accesslog.Stats, denied429 int64) {
	for _, f := range log.Files {
		printable.Fprintf(out, "%s: format %s\n", f.Name, f.Format)
		if f.Unread != "" {
			printable.Fprintf(out, "note: the lines go on with fields that this format does not have, such as %q; write --format with your log_format to read them\n", wording.ClipAt(f.Unread, 60))
		}
	}
	printable.Fprintf(out, "%d requests from %s to %s", log.Requests, log.First.UTC().Format(timeLayout), log.Last.UTC().Format(timeLayout)+" UTC")
	if log.Resolution > 0 {
		printable.Fprintf(out, ", times in steps of %s", wording.Period(log.Resolution))
		if log.Coarsest > log.Resolution {
			printable.Fprintf(out, " to %s", wording.Period(log.Coarsest))
		}
	}
	fmt.Fprintln(out)
	if log.Rejected > 0 {
		printable.Fprintf(out, "warning: %s of the lines are no requests:\n", share(log.Rejected, log.Lines))
		for _, e := range log.Examples {
			printable.Fprintf(out, "  %s:%d: %s\n", e.File, e.Line, e.Text)
		}
	}
	if log.Late > 0 {
		printable.Fprintf(out, "warning: %s of the requests stand more than a minute behind later ones; they count at the time of the requests around them\n", share(log.Late, log.Requests))
	}
	if denied429 > 0 {
		printable.Fprintf(out, "note: %s of the requests were answered with 429 already; their clients may have held back\n", share(denied429, log.Requests))
	}
}

func printSums(out io.Writer, r *replay.Result) {
	printable.Fprintf(out, "%s of the requests denied", share(r.Denied, r.Requests))
	if r.Retries > 0 {
		printable.Fprintf(out, " at first, and %s admitted by one of %d retries", share(r.Later, r.Requests), r.Retries)
	}
	if r.DeniedIfSpread != nil && *r.DeniedIfSpread != r.Denied {
		printable.Fprintf(out, " (%s if clients spread the requests of a second)", share(*r.DeniedIfSpread, r.Requests))
	}
	printable.Fprintf(out, "; %s of the identities hit\n", share(r.DeniedIdentities, r.Identities))
	for _, outcome := range []string{"refused", "malformed", "unlimited", "exempt"} {
		if n := r.Outcomes[outcome]; n > 0 {
			printable.Fprintf(out, "%s of the requests %s\n", share(n, r.Requests), outcome)
		}
	}
	if r.LongestWait > 0 {
		printable.Fprintf(out, "the longest wait was %s\n", wording.Period(time.Duration(r.LongestWait*float64(time.Second)).Round(time.Millisecond)))
	}
	if r.Merged > 0 {
		printable.Fprintf(out, "warning: %d requests of further identities are not in the counts of identities\n", r.Merged)
	}
}

func worstMinute(r *replay.Rule) string {
	if r.WorstDenied == 0 {
		return ""
	}
	return fmt.Sprintf("%d at %s", r.WorstDenied, r.WorstMinute.UTC().Format("01-02 15:04"))
}

// longest writes for how long an identity was denied.
func longest(id *replay.Identity) string {
	return wording.Period(time.Duration(id.Longest * float64(time.Second)).Round(time.Millisecond))
}

func stamp(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(timeLayout)
}

// share writes a count and its percentage.
func share(n, of int64) string {
	percent := strconv.FormatFloat(float64(n)*100/float64(max(of, 1)), 'f', 2, 64)
	return fmt.Sprintf("%d (%s %%)", n, strings.TrimSuffix(strings.TrimRight(percent, "0"), "."))
}
