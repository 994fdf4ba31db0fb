package command

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/cmd/penstock/internal/console/redisops"
	"github.com/penstock/penstock/cmd/penstock/internal/text/printable"
	"github.com/penstock/penstock/cmd/penstock/internal/tools/htmlreport"
	"github.com/penstock/penstock/cmd/penstock/internal/tools/load"
	"github.com/penstock/penstock/cmd/penstock/internal/tools/simulate"
	"github.com/penstock/penstock/internal/wording"
	"github.com/penstock/penstock/redisstore"
)

func newLoad() *cobra.Command {
	var l loadCommand
	c := &cobra.Command{
		Use:   "load --target URL [flags]",
		Short: "Load-test a deployment, and check that its limits hold",
		Long: "load sends requests to URLs, and reports the latencies, the share of 429, and whether any client was admitted more often\n" +
			"than its limit allows. --arrivals says when requests arrive, as in penstock simulate:\n" +
			"  100/s for 10s                           a rate, whatever the answers are; add poisson for random gaps\n" +
			"  150 at 0s                               all at once\n" +
			"  50 clients every 100ms..300ms for 1m    each sends its next request some time after an answer; add joining 5/s\n" +
			"A slow answer does not delay the requests of a rate. Latencies count from the time at which a request was due. If this\n" +
			"machine sends requests late, or has no processor time left, the report says so, and no threshold of a latency is judged.\n\n" +
			"$client in a URL, a header or the body is the number of the client; $address is an address for it, in 198.18.0.0/15.\n" +
			"--limit is the limit of each client at each target: in any time, no more than the burst and the rate for that time\n" +
			"may be admitted. For fixed windows, write a burst of twice the count. Without --limit, the policies that answers state in\n" +
			"RateLimit-Policy are judged, less strictly. Each request is expected to cost one unit.\n" +
			"Send load only to services that you may load. An interrupt ends the test, and prints the report so far.",
		Example: "  penstock load --target http://localhost:8080/search --arrivals '500/s poisson for 30s' --clients 1000 -H 'X-API-Key: load-$client'\n" +
			"  penstock load --target 'POST http://localhost:8080/api/rides/request' --limit '10/s, burst 20' --fail-if 'over_limit > 0'\n" +
			"  penstock load --target '5 POST http://localhost:8080/api/rides/request' --target http://localhost:8080/api/fares/estimate \\\n" +
			"    --arrivals '2000 clients joining 200/s every 100ms..300ms for 1m' -H 'X-User-Id: $client' --fail-if 'p99 > 50ms'",
		Args:              argumentCount(0, 0, "flags only, as in: penstock load --target http://localhost:8080/"),
		RunE:              func(c *cobra.Command, _ []string) error { return l.run(c) },
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	f := c.Flags()
	f.StringArrayVar(&l.targets, "target", nil, "URL, with an optional weight and method before it, as in '5 POST http://localhost:8080/rides'; repeat it for more")
	f.StringVar(&l.arrivals, "arrivals", "10/s for 10s", "when requests arrive; see above")
	f.Int64Var(&l.options.Clients, "clients", 1, "clients that the requests of a rate stand for; they take turns")
	f.StringArrayVarP(&l.headers, "header", "H", nil, "header of each request, as in 'X-API-Key: load-$client'; repeat it for more")
	f.StringVarP(&l.http.Body, "data", "d", "", "body of each request")
	f.StringSliceVar(&l.sources, "source-addresses", nil, "addresses of this machine to send from, as in 127.0.1.0/24; clients take turns")
	f.StringVar(&l.limit, "limit", "", "limit of each client, as in '10/s, burst 20'")
	f.StringVar(&l.store, "store", "", "URL of the target's Redis or Valkey, to measure how busy it is: store_cpu in --fail-if")
	f.IntSliceVar(&l.options.Allowed, "allowed-status", nil, "status of 400 or more that says that the limit admitted a request, as in 401 for a limit on failed logins; repeat it for more")
	f.StringVar(&l.onDenied, "on-denied", string(simulate.Drop), "what clients (not those of a rate) do after a denial: drop the request, or wait for Retry-After before the next one")
	f.DurationVar(&l.http.Timeout, "timeout", 10*time.Second, "how long an answer may take")
	f.IntVar(&l.options.MaxInFlight, "max-in-flight", 10_000, "requests in flight at most; further ones wait")
	f.Uint64Var(&l.options.Seed, "seed", 1, "seed of random gaps and targets")
	f.StringArrayVar(&l.failIf, "fail-if", nil, "exit with status 6 if this holds: mean, p50, p90, p99, p99.9 or max above a time, or denied, failed, unanswered or\nover_limit above a count or percentage, or store_cpu above a percentage of a core, as in 'p99 > 10ms' or 'store_cpu > 70%'; repeat it for more")
	addOutput(c, &l.output)
	return c
}

type loadCommand struct {
	options                                  load.Options
	http                                     load.HTTP
	arrivals, limit, onDenied, output, store string
	targets, headers, sources, failIf        []string
}

func (l *loadCommand) run(c *cobra.Command) error {
	thresholds, err := l.read()
	if err != nil {
		return withStatus(exitUsage, err)
	}
	endMeasure := func() (*load.StoreUse, error) { return nil, nil }
	if l.store != "" {
		if endMeasure, err = measureStore(c.Context(), l.store); err != nil {
			return err
		}
	}
	l.http.Open(l.options.MaxInFlight)
	defer l.http.Close()
	report := load.Run(c.Context(), l.options)
	use, storeErr := endMeasure()
	report.Store = use
	report.Arrivals = l.options.Arrivals.Text
	for i, t := range l.http.Targets {
		report.Targets[i].Name = t.String()
	}
	if l.output == "json" {
		err = writeJSON(c.OutOrStdout(), report)
	} else {
		err = l.print(c.OutOrStdout(), report)
	}
	if err = cmp.Or(err, storeErr); err != nil {
		return err
	}
	return judgeLoad(c.Context(), c.ErrOrStderr(), report, thresholds)
}

func (l *loadCommand) read() (thresholds []*threshold, err error) {
	o := &l.options
	o.ShouldHonorRetryAfter, o.Send = l.onDenied == string(simulate.Wait), l.http.Send
	for _, text := range l.targets {
		t, err := load.ParseTarget(text)
		if err != nil {
			return nil, err
		}
		l.http.Targets, o.Weights = append(l.http.Targets, t), append(o.Weights, t.Weight)
	}
	for _, text := range l.headers {
		h, err := load.ParseHeader(text)
		if err != nil {
			return nil, err
		}
		l.http.Headers = append(l.http.Headers, h)
	}
	if l.http.Sources, err = load.ParseSources(l.sources); err != nil {
		return nil, fmt.Errorf("--source-addresses: %w", err)
	}
	for _, text := range l.failIf {
		t, err := readThreshold(text, []string{"denied", "failed", "unanswered", "over_limit", "store_cpu"}, load.Quantiles)
		if err == nil && t.name == "store_cpu" && l.store == "" {
			err = errors.New("--fail-if has store_cpu, which needs the store; add --store redis://localhost:6379")
		}
		if err != nil {
			return nil, err
		}
		thresholds = append(thresholds, t)
	}
	if l.limit != "" {
		limit, err := penstock.ParseRate(l.limit)
		if err == nil {
			o.Limit, err = limit.Compile()
		}
		if err != nil {
			return nil, fmt.Errorf("--limit: %w", err)
		}
	}
	o.Arrivals, err = simulate.Parse(l.arrivals, o.Limit, 1)
	return thresholds, cmp.Or(err, l.check())
}

// check checks the flags that have only a range of values.
func (l *loadCommand) check() error {
	const maxClients, maxTargets, maxInFlight = 1_000_000, 100, 100_000
	clients := l.options.Clients
	if l.options.Arrivals != nil {
		for _, it := range l.options.Arrivals.Items {
			if it.IsClients {
				clients = max(clients, it.Count)
			}
		}
	}
	switch {
	case len(l.targets) == 0:
		return errors.New("a target is missing; write --target http://localhost:8080/")
	case len(l.targets) > maxTargets:
		return fmt.Errorf("there are %d targets; write at most %d", len(l.targets), maxTargets)
	case l.options.Clients < 1 || l.options.Clients > maxClients:
		return fmt.Errorf("--clients is %d; write 1 to %d", l.options.Clients, maxClients)
	case clients > load.MaxAddresses && l.http.UsesAddresses():
		return fmt.Errorf("there are %d clients, but only %d have an $address of their own; write fewer clients", clients, load.MaxAddresses)
	case clients < int64(len(l.http.Sources)):
		return fmt.Errorf("%d clients cannot use %d source addresses; write --clients %d", clients, len(l.http.Sources), len(l.http.Sources))
	case l.onDenied != string(simulate.Drop) && l.onDenied != string(simulate.Wait):
		return fmt.Errorf("--on-denied is %q; write drop or wait", wording.Clip(l.onDenied))
	case l.http.Timeout <= 0 || l.http.Timeout > time.Hour:
		return fmt.Errorf("--timeout is %s; write a time of at most 1h", wording.Period(l.http.Timeout))
	case slices.ContainsFunc(l.options.Allowed, func(n int) bool { return n < 400 || n > 599 || n == 429 }):
		return fmt.Errorf("--allowed-status is %d; write statuses from 400 to 599 without 429", l.options.Allowed)
	case l.options.MaxInFlight < 1 || l.options.MaxInFlight > maxInFlight:
		return fmt.Errorf("--max-in-flight is %d; write 1 to %d", l.options.MaxInFlight, maxInFlight)
	}
	return nil
}

// judgeLoad returns the error of the command: if nothing was answered, if a threshold is exceeded,
// or if one cannot be judged.
func judgeLoad(ctx context.Context, stderr io.Writer, r *load.Report, thresholds []*threshold) error {
	if r.Sent == r.Unanswered && r.Sent > 0 && ctx.Err() == nil {
		return withStatus(exitUnreachable, fmt.Errorf("no request was answered: %s", cmp.Or(shortened(r.Error), "interrupted")))
	}
	var err error
	for _, t := range thresholds {
		counts := map[string]int64{"denied": r.Denied, "failed": r.Failed, "unanswered": r.Unanswered, "over_limit": r.Limit.Excess}
		notJudged := func(why string) {
			fmt.Fprintf(stderr, "penstock: --fail-if %s was not judged, because %s\n", printable.Line(t.text), why)
			err = cmp.Or(err, statusOnly(exitInternal))
		}
		switch {
		case t.name == "store_cpu":
			if r.Store == nil {
				notJudged("a server of the store has restarted")
			} else if t.isExceeded(r.Store.Cores, 1) {
				err = t.reportExceeded(stderr)
			}
		case t.name == "over_limit" && r.Limit.Counters == 0:
			notJudged("no limit was")
		case !slices.Contains(load.Quantiles, t.name):
			if t.isExceeded(float64(counts[t.name]), r.Sent) {
				err = t.reportExceeded(stderr)
			}
		case r.Client.IsLimit:
			notJudged("this machine was too slow for the load")
		case r.Latency.Count == 0:
			notJudged("no request was allowed")
		case t.isExceeded(r.Latency.Quantiles()[slices.Index(load.Quantiles, t.name)], 0):
			err = t.reportExceeded(stderr)
		case r.Unsent > 0:
			notJudged("requests were not sent")
		}
	}
	return err
}

// measureStore begins to measure how busy a store is. It returns a function that ends that. If a
// server restarts meanwhile, the function returns nil.
func measureStore(ctx context.Context, url string) (end func() (*load.StoreUse, error), err error) {
	s, err := loadStore(url)
	if err != nil {
		return nil, err
	}
	store, err := redisstore.Open(s.Store, redisstore.Options{})
	if err != nil {
		return nil, err
	}
	before, err := redisops.Servers(ctx, store)
	if err != nil {
		store.Close()
		return nil, fmt.Errorf("--store: the servers cannot be measured: %w", err)
	}
	start := time.Now()
	return func() (*load.StoreUse, error) {
		defer store.Close()
		took := time.Since(start).Seconds()
		after, err := redisops.Servers(context.WithoutCancel(ctx), store)
		if err != nil {
			return nil, fmt.Errorf("--store: the servers cannot be measured: %w", err)
		}
		use := &load.StoreUse{Store: s.StoreName()}
		for _, b := range before {
			i := slices.IndexFunc(after, func(a redisops.Server) bool { return a.RunID == b.RunID })
			if i < 0 {
				return nil, nil
			}
			use.Cores = max(use.Cores, (after[i].CPU-b.CPU).Seconds()/took)
		}
		return use, nil
	}, nil
}

func (l *loadCommand) print(out io.Writer, r *load.Report) error {
	printable.Fprintf(out, "%s\n%d %s sent in %.3gs", r.Arrivals, r.Sent, plural(int(r.Sent), "request"), r.Seconds)
	if r.Rate > 0 {
		printable.Fprintf(out, " (%.4g/s)", r.Rate)
	}
	printable.Fprintf(out, ": %s allowed, %s denied with 429", share(r.Allowed, r.Sent), share(r.Denied, r.Sent))
	for _, status := range slices.Sorted(maps.Keys(r.Statuses)) {
		if status >= 400 && status != 429 {
			printable.Fprintf(out, ", %s with %d", share(r.Statuses[status], r.Sent), status)
		}
	}
	for _, f := range slices.Sorted(maps.Keys(r.Failures)) {
		printable.Fprintf(out, ", %s without an answer: %s", share(r.Failures[f], r.Sent), f)
	}
	fmt.Fprintln(out)
	if r.IsInterrupted {
		fmt.Fprintln(out, "The test was interrupted; this is the report so far.")
	}
	if r.Error != "" {
		printable.Fprintf(out, "the first error: %s\n", shortened(r.Error))
	}
	fmt.Fprintln(out)
	var rows [][]string
	add := func(name string, x load.Latency) {
		if x.Count > 0 {
			row := htmlreport.Row(name, x.Count)
			for _, ms := range x.Quantiles() {
				row = append(row, fmt.Sprintf("%.3f", ms))
			}
			rows = append(rows, row)
		}
	}
	add("not denied", r.Latency)
	add("from when it was sent", r.Service)
	add("denied", r.Denials)
	if len(r.Targets) > 1 {
		for _, t := range r.Targets {
			add(t.Name, t.Latency)
		}
	}
	add("sent too late by", r.Client.Late)
	if err := printTable(out, append([]string{"latency in ms", "requests"}, load.Quantiles...), rows, true); err != nil {
		return err
	}
	fmt.Fprintln(out)
	printLimits(out, r)
	if r.Store != nil {
		printable.Fprintf(out, "%s: its busiest server used %.1f %% of a core\n", r.Store.Store, 100*r.Store.Cores)
	}
	if r.Queued > 0 {
		printable.Fprintf(out, "%s waited, because --max-in-flight others were in flight; that is part of their latency\n", share(r.Queued, r.Sent))
	}
	if r.Unsent > 0 {
		printable.Fprintf(out, "OVERLOAD: %d further requests were not sent, because they were 30s late. This machine and the server together cannot do this rate.\n", r.Unsent)
	}
	if r.Client.IsLimit {
		printable.Fprintf(out, "This machine was too slow for the load: %s.\nSo these latencies are not those of the server. Send less, or from another machine.\n", strings.Join(r.Client.Reasons, "; "))
	} else if r.Client.Cores > 0 {
		printable.Fprintf(out, "this process used %.2f of %d processors, and sent its requests in time\n", r.Client.Cores, r.Client.Of)
	}
	return nil
}

func printLimits(out io.Writer, r *load.Report) {
	v := r.Limit
	switch {
	case v.Counters > 0:
	case r.Allowed == 0:
		fmt.Fprintln(out, "no limit was judged: no answer has a status below 400; for a limit on failures, write --allowed-status 401")
		return
	default:
		fmt.Fprintln(out, "no limit was judged: write --limit, because the answers state none in RateLimit-Policy with a w above 1")
		return
	}
	for _, name := range slices.Sorted(maps.Keys(v.Bounds)) {
		b := v.Bounds[name]
		printable.Fprintf(out, "%s: at most %.6g and %.6g/s for each client\n", cmp.Or(name, "--limit"), b.Burst, b.Rate)
	}
	if v.Over == 0 {
		printable.Fprintf(out, "none of %d counters admitted more\n", v.Counters)
	} else {
		printable.Fprintf(out, "OVER THE LIMIT: %d of %d counters admitted %d more; client %d %d in %.6gs, where %.6g are allowed\n",
			v.Over, v.Counters, v.Excess, v.Worst.Client, v.Worst.Admitted, v.Worst.Seconds, v.Worst.Bound)
	}
	if v.Unjudged > 0 {
		printable.Fprintf(out, "%d requests of further clients were not judged\n", v.Unjudged)
	}
}
