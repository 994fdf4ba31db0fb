package command

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/net/http/httpguts"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/cmd/penstock/internal/text/printable"
	"github.com/penstock/penstock/cmd/penstock/internal/tools/accesslog"
	"github.com/penstock/penstock/cmd/penstock/internal/tools/suggest"
	"github.com/penstock/penstock/internal/match"
	"github.com/penstock/penstock/internal/transport/clientaddress"
	"github.com/penstock/penstock/internal/wording"
	"github.com/penstock/penstock/policy"
)

func newSuggest() *cobra.Command {
	var s suggestCommand
	c := &cobra.Command{
		Use:   "suggest LOG... [flags]",
		Short: "Suggest a limit for each client, from access logs",
		Long: "suggest reads access logs as replay does. For each rate it computes the burst with which a token bucket would have denied\n" +
			"no more clients than the budget allows. It suggests the pair of a rate and a burst that lets a client send least in a minute,\n" +
			"with some headroom. The few busiest clients are outliers if each sends at least four times as much as the busiest other client.\n" +
			"Outliers are listed, and not counted.\n" +
			"With --algorithm it suggests the count of a fixed window or a sliding log instead, or how many requests of a client may be in\n" +
			"flight at once. in_flight needs a log that has the duration of each request.\n" +
			"A log shows what clients did, not what your service can handle: find that out with a load test. Read a week or more.",
		Example: "  penstock suggest access.log\n  penstock suggest *.log.gz --path '/search/**' --budget 0.1%\n" +
			"  penstock suggest access.json --per 'header X-API-Key' --headroom 2\n" +
			"  penstock suggest access.log --algorithm sliding-log --window 10m",
		Args: argumentCount(1, 1000, "the name of a log, as in: penstock suggest access.log"),
		RunE: func(c *cobra.Command, args []string) error {
			return s.run(c, args)
		},
	}
	f := c.Flags()
	f.StringVar(&s.per, "per", "ip", "what a client is: ip, user, global, or a header as in 'header X-API-Key'")
	f.StringSliceVar(&s.proxies, "trusted-proxies", nil, "addresses of the load balancers in the log, as in 10.0.0.0/8; the client is then in X-Forwarded-For, which the log must have")
	f.StringArrayVar(&s.paths, "path", nil, "count only requests of this path, as in a rule: '/search/**'; repeat it for more")
	f.StringArrayVar(&s.methods, "method", nil, "count only requests with this method, such as POST; repeat it for more")
	f.StringVar(&s.budget, "budget", "1%", "share of the clients that the limit may ever deny")
	f.StringVar(&s.options.Algorithm, "algorithm", suggest.Algorithms()[0], "what to suggest: "+wording.List(suggest.Algorithms(), "or"))
	f.StringVar(&s.window, "window", "1m", "length of the window of fixed-window and sliding-log")
	f.Float64Var(&s.options.Headroom, "headroom", 1.5, "multiplies what was measured, because traffic grows")
	f.BoolVar(&s.options.KeepsOutliers, "keep-outliers", false, "count the outliers too: the few clients that send far more than the busiest other client")
	s.addFlags(c)
	return c
}

const maxWindow = 31 * 24 * time.Hour

type suggestCommand struct {
	logCommand
	options                 suggest.Options
	per, budget, window     string
	proxies, paths, methods []string
}

func (s *suggestCommand) run(c *cobra.Command, logs []string) error {
	if err := s.read(); err != nil {
		return withStatus(exitUsage, err)
	}
	return s.logCommand.run(c, logs, func(log *accesslog.Reader) (logReport, error) {
		s.options.Log = log
		report, err := suggest.Run(c.Context(), s.options)
		if errors.Is(err, suggest.ErrNoDurations) {
			err = withStatus(exitInvalid, err)
		}
		return &suggestReport{report, s}, err
	})
}

func (s *suggestCommand) read() (err error) {
	o := &s.options
	o.ShowsIdentities = s.showsIdentities()
	isBudget := false
	if percent, ok := strings.CutSuffix(strings.TrimSpace(s.budget), "%"); ok {
		o.Budget, err = strconv.ParseFloat(strings.TrimSpace(percent), 64)
		o.Budget /= 100
		isBudget = err == nil && o.Budget >= 0 && o.Budget <= 0.5
	}
	limit, periodErr := penstock.ParseRate("1/" + s.window) // it knows days too
	o.Window = limit.Period
	isHeadroom := o.Headroom >= 1 && o.Headroom <= 100
	switch {
	case !isBudget:
		return fmt.Errorf("--budget is %q; write a percentage from 0%% to 50%%", wording.Clip(s.budget))
	case !isHeadroom:
		return fmt.Errorf("--headroom is %g; write 1 to 100", o.Headroom)
	case !slices.Contains(suggest.Algorithms(), o.Algorithm):
		return fmt.Errorf("--algorithm is %q; %s", wording.Clip(o.Algorithm), wording.Suggest(o.Algorithm, suggest.Algorithms()))
	case periodErr != nil || o.Window < time.Millisecond || o.Window > maxWindow:
		return fmt.Errorf("--window is %q; write 1ms to 31d, as in 10m or 7d", wording.Clip(s.window))
	}
	for _, text := range s.proxies {
		if _, err := clientaddress.ParseNetwork(text); err != nil {
			return fmt.Errorf("--trusted-proxies: %w", err)
		}
	}
	if o.Identity, err = identityOf(s.per, clientaddress.New(s.proxies, forwardedFor)); err != nil {
		return err
	}
	o.IsIncluded, err = includes(s.paths, s.methods)
	return err
}

// forwardedFor is the header in which trusted proxies name the client.
const forwardedFor = "X-Forwarded-For"

// clientOf returns the address of the client, which may be behind a trusted proxy, or its network.
func clientOf(e *accesslog.Entry, proxies *clientaddress.Proxies) string {
	address := e.Address
	if peer := (clientaddress.Peer{Address: address}); proxies.Trusts(peer) {
		address = proxies.Client(peer, map[string][]string{forwardedFor: e.Values(forwardedFor)})
	}
	switch {
	case !address.IsValid():
		return ""
	case address.Is6(): // as policies do, because a client has a whole network
		return netip.PrefixFrom(address, 64).Masked().String()
	}
	return address.String()
}

// identityOf returns the function that finds the key of a request. The key is "" if the request has
// none.
func identityOf(per string, proxies *clientaddress.Proxies) (func(*accesslog.Entry) string, error) {
	header, isHeader := strings.CutPrefix(per, "header ")
	var kind string
	var valueOf func(*accesslog.Entry) string
	switch {
	case per == "ip":
		kind, valueOf = "ip:", func(e *accesslog.Entry) string { return clientOf(e, proxies) }
	case per == "user":
		kind, valueOf = "user:", func(e *accesslog.Entry) string { return e.User }
	case per == "global":
		valueOf = func(*accesslog.Entry) string { return per }
	case isHeader && httpguts.ValidHeaderFieldName(header):
		kind, valueOf = "key:", func(e *accesslog.Entry) string { return cmp.Or(e.Values(header)...) }
	default:
		return nil, fmt.Errorf("--per is %q; write ip, user, global, or a header as in 'header X-API-Key'", wording.Clip(per))
	}
	return func(e *accesslog.Entry) string {
		if value := valueOf(e); value != "" {
			return kind + value
		}
		return ""
	}, nil
}

// includes returns the function that reports whether a request has one of the paths, if there are
// any, and one of the methods.
func includes(patterns, methods []string) (func(*accesslog.Entry) bool, error) {
	var paths policy.Paths
	var parsed []match.Pattern
	for _, text := range patterns {
		p, err := match.ParsePattern(text, paths.Clean, false)
		if err != nil {
			return nil, fmt.Errorf("--path: %w", err)
		}
		parsed = append(parsed, p)
	}
	return func(e *accesslog.Entry) bool {
		if len(methods) > 0 && !slices.ContainsFunc(methods, func(m string) bool { return strings.EqualFold(m, e.Method) }) {
			return false
		}
		if len(parsed) == 0 {
			return true
		}
		u, err := url.ParseRequestURI(e.Target)
		if err != nil {
			return false
		}
		clean, err := paths.Clean(u.EscapedPath())
		return err == nil && slices.ContainsFunc(parsed, func(p match.Pattern) bool { return p.Matches(clean) })
	}, nil
}

// A suggestReport is what suggest has found, as its flags wanted.
type suggestReport struct {
	*suggest.Report
	flags *suggestCommand
}

func (r *suggestReport) log() *accesslog.Stats { return &r.Log }

func (r *suggestReport) print(out io.Writer) error {
	r.printNotes(out)
	if r.Suggested == nil {
		return withStatus(exitInvalid, errors.New("no request of the log can be counted; choose another --per or --path"))
	}
	fmt.Fprintf(out, "%d clients, %d requests\n\n", r.Identities, r.Requests)
	needs := r.needsSection()
	points, _ := r.needs()
	for i, p := range points {
		if r.Chosen == nil || p.Rate == r.Chosen.Rate {
			needs.Rows[i] = append(needs.Rows[i], fmt.Sprintf("  chosen: %d for %s", p.Bursts[suggest.BudgetName(r.Budget)], r.flags.budget))
		}
	}
	if err := printTable(out, needs.Columns, needs.Rows, true); err != nil {
		return err
	}
	printable.Fprintf(out, "\nThe busiest clients, by requests %s:\n", r.Measure())
	for i := range r.Busiest {
		n := r.Busiest[i].Measured(r.Report)
		bar := strings.Repeat("█", int(max(n*barWidth/max(r.Busiest[0].Measured(r.Report), 1), 1)))
		printable.Fprintf(out, "  %8d %s %s\n", n, bar, r.Busiest[i].Key)
	}
	if n := len(r.Outliers); n > 0 {
		printable.Fprintf(out, "Outliers, which are not counted above: the first %d. --keep-outliers counts them.\n", n)
	}
	if !r.flags.showsIdentities() {
		fmt.Fprint(out, "The last part of each key is masked. --identities full shows it.\n")
	}
	printable.Fprintf(out, "\nSuggested, with a headroom of %g and rounded up:\n\n", r.Headroom)
	fmt.Fprint(out, printable.Text(r.flags.policy(r.Suggested)))
	if b := r.Beyond; b.Clients > 0 {
		printable.Fprintf(out, "\n# At most %s of the clients would be denied at times. They sent %s of the requests.", share(b.Clients, r.Identities), share(b.Requests, r.Requests))
	}
	fmt.Fprint(out, "\n# Write it to a file, without the line with shadow, and see whom it would have denied: penstock replay LOG --config rules.yaml\n")
	return nil
}

func (r *suggestReport) printNotes(out io.Writer) {
	printLog(out, &r.Log, r.Denied429)
	if r.WithoutIdentity > 0 {
		printable.Fprintf(out, "warning: %d requests have no %s, and are not counted\n", r.WithoutIdentity, r.flags.per)
	}
	if r.Merged > 0 {
		printable.Fprintf(out, "warning: %d requests of further clients are not counted\n", r.Merged)
	}
	if r.IsShort {
		time := "time in which this burst refills"
		if r.Counted != nil {
			time = "window"
		}
		printable.Fprintf(out, "warning: the log is shorter than the %s, so it does not show what clients need; read a longer one\n", time)
	}
	if r.Counted != nil && r.Counted.IsTooHigh {
		printable.Fprintf(out, "warning: there are too many requests in a window to keep the time of each, so the counts may be somewhat too high\n")
	}
	if r.IsUncertain {
		printable.Fprintf(out, "warning: %d clients are too few to be sure about a budget of %s; fewer than ten are beyond it\n", r.Identities, r.flags.budget)
	}
}

func (s *suggestCommand) policy(l *suggest.Limit) string {
	per := s.per
	if header, ok := strings.CutPrefix(per, "header "); ok {
		per = "{key: header " + header + "}"
	}
	var conditions []string
	for name, values := range map[string][]string{"method": s.methods, "path": s.paths} {
		var quoted []string
		for _, v := range values {
			quoted = append(quoted, strconv.Quote(v))
		}
		if quoted != nil {
			conditions = append(conditions, name+": ["+strings.Join(quoted, ", ")+"]")
		}
	}
	slices.Sort(conditions)
	matched := ""
	if conditions != nil {
		matched = "    match: {" + strings.Join(conditions, ", ") + "}\n"
	}
	if per == "user" {
		per = "{user: header X-User}   # what identifies your users; for the users of a log: replay --header 'X-User: $remote_user'"
	}
	trusted := ""
	if len(s.proxies) > 0 {
		trusted = "http: {trusted_proxies: [\"" + strings.Join(s.proxies, "\", \"") + "\"]}\n"
	}
	return trusted + "rules:\n  - name: suggested\n" + matched + "    per: " + per + "\n    shadow: true   # counts, and denies nothing; delete this line to enforce the limit\n" +
		"    limits: [{" + l.String() + "}]\n"
}
