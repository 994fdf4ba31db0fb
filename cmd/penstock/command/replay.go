package command

import (
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/penstock/penstock/algorithm"
	"github.com/penstock/penstock/cmd/penstock/internal/serve/settings"
	"github.com/penstock/penstock/cmd/penstock/internal/text/printable"
	"github.com/penstock/penstock/cmd/penstock/internal/tools/accesslog"
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
	f.StringArrayVar(&r.headers, "header", nil, "header of each request, as in 'X-API-Key: $remote_user'; repeat it for more")
	f.BoolVar(&r.options.ShouldRetry, "retry", false, "send denied requests again after their Retry-After, at most three times")
	f.StringVar(&r.failIf, "fail-if", "", "exit with status 6 if this holds, as in 'denied > 1%', 'denied_identities > 10' or 'rejected_lines > 5%'")
	r.addFlags(c)
	_ = c.RegisterFlagCompletionFunc("config", completeYAML)
	_ = c.RegisterFlagCompletionFunc("diff", completeYAML)
	return c
}

type replayCommand struct {
	logCommand
	options             replay.Options
	config, old, failIf string
	headers             []string
}

func (r *replayCommand) run(c *cobra.Command, logs []string, algorithms []*algorithm.Algorithm) error {
	limit, err := r.read()
	if err != nil {
		return withStatus(exitUsage, err)
	}
	p, err := policyfile.Load(r.config, settings.PolicyOptions(algorithms...))
	if err != nil {
		return err
	}
	defer p.Close()
	r.options.Rules = p.Rules
	if r.old != "" {
		old, err := policyfile.Load(r.old, settings.PolicyOptions(algorithms...))
		if err != nil {
			return err
		}
		defer old.Close()
		r.options.Old = old.Rules
	}
	var report replayReport
	err = r.logCommand.run(c, logs, func(log *accesslog.Reader) (_ logReport, err error) {
		r.options.Log = log
		report.Report, err = replay.Run(c.Context(), r.options)
		return report, err
	})
	switch {
	case err != nil || limit == nil:
		return err
	case len(report.Undecided) > 0 && limit.name != "rejected_lines":
		return fmt.Errorf("--fail-if %s was not judged, because limits were not decided; see the warnings", limit.text)
	}
	counts := map[string][2]int64{
		"denied":            {report.Policy.Denied, report.Policy.Requests},
		"denied_identities": {report.Policy.DeniedIdentities, report.Policy.Identities},
		"rejected_lines":    {report.Log.Rejected, report.Log.Lines},
	}
	if n := counts[limit.name]; limit.isExceeded(float64(n[0]), n[1]) {
		return limit.reportExceeded(c.ErrOrStderr())
	}
	return nil
}

func (r *replayCommand) read() (limit *threshold, err error) {
	r.options.ShowsIdentities = r.showsIdentities()
	if r.config == "" {
		return nil, errors.New("a policy is missing; write --config rules.yaml")
	}
	if r.failIf != "" {
		if limit, err = readThreshold(r.failIf, []string{"denied", "denied_identities", "rejected_lines"}, nil); err != nil {
			return nil, err
		}
	}
	for _, text := range r.headers {
		h, err := replay.ParseHeader(text)
		if err != nil {
			return nil, err
		}
		r.options.Headers = append(r.options.Headers, h)
	}
	return limit, nil
}

type replayReport struct{ *replay.Report }

func (r replayReport) log() *accesslog.Stats { return &r.Log }

func (r replayReport) print(out io.Writer) error {
	r.printNotes(out)
	fmt.Fprintln(out)
	printSums(out, r.Policy)
	printSection(out, rulesSection(r.Policy))
	printSection(out, hitSection(r.Policy))
	r.printOld(out)
	printSection(out, r.differencesSection())
	return nil
}

func (r replayReport) printNotes(out io.Writer) {
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
func (r replayReport) printOld(out io.Writer) {
	if r.Old == nil {
		return
	}
	printable.Fprintf(out, "\nThe other policy denies %s of the requests.\n", share(r.Old.Denied, r.Old.Requests))
	printable.Fprintf(out, "Only this policy denies %d of them, and only the other one %d.\n", r.OnlyNew, r.OnlyOld)
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
