package command

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/algorithm"
	"github.com/penstock/penstock/cmd/penstock/internal/text/printable"
	"github.com/penstock/penstock/cmd/penstock/internal/tools/htmlreport"
	"github.com/penstock/penstock/cmd/penstock/internal/tools/simulate"
	"github.com/penstock/penstock/guard"
	"github.com/penstock/penstock/internal/fieldvalues"
	"github.com/penstock/penstock/internal/regions"
	"github.com/penstock/penstock/internal/wording"
)

func newSimulate(algorithms []*algorithm.Algorithm) *cobra.Command {
	var s simulateCommand
	c := &cobra.Command{
		Use:   "simulate RATE [flags]",
		Short: "Show what a limit does with requests, on a simulated clock",
		Long: "simulate decides requests with the real algorithms, in memory and without waiting. It needs no server and no policy.\n" +
			"--arrivals says when requests arrive, with semicolons between several:\n" +
			"  150 at 0s                          all at once\n" +
			"  20 every 50ms from 5s              one after another\n" +
			"  100/s for 10s                      a rate with equal gaps; add poisson for random gaps, or on 1s off 4s for pauses\n" +
			"  50 clients every 100ms..1s for 1m  each sends its next request some time after an answer; add joining 5/s\n" +
			"With --regions, each part may end with the number of its region, as in 100/s for 10s in 2. Otherwise regions take turns.\n" +
			"These names stand for arrivals that suit the limit:\n  " + strings.Join(simulate.Names(), "\n  ") + "\n" +
			"All requests share one counter, unless --per-client is given. With it, each client has one counter. Client 1 is the\n" +
			"same in each part of --arrivals, and so are the others. Requests without clients, as in 150 at 0s, are all of client 0.",
		Example: "  penstock simulate '10/s, burst 100' --arrivals '150 at 0s; 60 at 5s'\n" +
			"  penstock simulate 100/min --algorithm all --arrivals boundary\n" +
			"  penstock simulate 100/s --arrivals '150/s for 60s' --instances 4 --down 20s..40s\n" +
			"  penstock simulate '1000/s, burst 1000' --regions 3 --across exchange --delay 80ms --cut 2@10s..40s",
		Args: argumentCount(1, 1, "a rate, as in: penstock simulate '10/s, burst 100'"),
		RunE: func(c *cobra.Command, args []string) error {
			if s.options.Regions.Count > 1 && !c.Flags().Changed("arrivals") {
				s.arrivals = "overload"
			}
			return s.run(c.Context(), c.OutOrStdout(), args[0], algorithms)
		},
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	f := c.Flags()
	f.StringVar(&s.arrivals, "arrivals", "burst", "when requests arrive; see above")
	f.StringSliceVar(&s.algorithms, "algorithm", []string{penstock.TokenBucket.Title()}, "algorithms to compare, or all")
	f.Int64Var(&s.options.Cost, "cost", 1, "units of each request")
	f.DurationVar(&s.options.Patience, "max-wait", 0, "how long a request may wait for its turn (token-bucket, leaky-bucket)")
	f.BoolVar(&s.options.PerKey, "per-client", false, "each client has a counter of its own")
	f.StringVar((*string)(&s.options.OnDenied), "on-denied", string(simulate.Drop), "what a client does after a denial: drop the request, wait (send it again after Retry-After) or retry (send it\nagain after 100 ms), at most three times")
	f.IntVar(&s.options.Instances, "instances", 1, "instances that share the limit, and take turns")
	f.Int64Var(&s.options.Lease, "lease", 0, "units that an instance draws in advance at most, as the field lease of a policy says. Default: none")
	f.IntVar(&s.options.Regions.Count, "regions", 1, "regions, each with a store of its own")
	f.StringVar(&s.across, "across", "", "how one limit holds in all regions: exchange or share. Default: each region is on its own")
	f.DurationVar(&s.options.Regions.Delay, "delay", 0, "how long a message between two regions takes")
	f.StringSliceVar(&s.cuts, "cut", nil, "when a region is cut off from the others, as in 2@10s..40s for region 2")
	f.StringVar(&s.down, "down", "", "when the store gives no answer, as in 20s..40s")
	f.StringVar(&s.onFailure, "on-failure", guard.FailLocal.String(), "how instances decide meanwhile: local, open or closed")
	f.Uint64Var(&s.options.Seed, "seed", 1, "seed of random gaps; the same seed gives the same result")
	f.BoolVar(&s.hasDecisions, "decisions", false, "print each decision; at most 100,000")
	s.add(c)
	return c
}

type simulateCommand struct {
	reportFlags
	options                           simulate.Options
	arrivals, down, onFailure, across string
	algorithms, cuts                  []string
	hasDecisions                      bool
	burst                             int64 // that algorithms without a burst leave out
}

const maxDecisions = 100_000

func (s *simulateCommand) run(ctx context.Context, out io.Writer, rate string, own []*algorithm.Algorithm) error {
	all := []simulate.Simulation{}
	plans, err := s.read(rate, own)
	if err != nil {
		return withStatus(exitUsage, err)
	}
	for _, plan := range plans {
		one, err := s.simulate(ctx, plan)
		if err != nil {
			return err
		}
		all = append(all, *one)
	}
	return s.write(out, simulationReport{simulate.Report{Seed: s.options.Seed, Simulations: all}})
}

// read reads the arguments. It returns the limit with each algorithm.
func (s *simulateCommand) read(rate string, own []*algorithm.Algorithm) (plans []*penstock.Plan, err error) {
	limit, err := penstock.ParseRate(rate)
	if err != nil {
		return nil, err
	}
	o, isKnown := &s.options, false
	modes := map[string]guard.FailureMode{"local": guard.FailLocal, "open": guard.FailOpen, "closed": guard.FailClosed}
	o.OnFailure, isKnown = modes[s.onFailure]
	denials := []simulate.Denied{simulate.Drop, simulate.Wait, simulate.Retry}
	switch {
	case !isKnown:
		return nil, fmt.Errorf("--on-failure is %q; write local, open or closed", wording.Clip(s.onFailure))
	case !slices.Contains(denials, o.OnDenied):
		return nil, fmt.Errorf("--on-denied is %q; write drop, wait or retry", wording.Clip(string(o.OnDenied)))
	case o.Cost < 1 || o.Cost > penstock.MaxCost:
		return nil, fmt.Errorf("--cost is %d; write 1 to %d", o.Cost, int64(penstock.MaxCost))
	case o.Patience < 0:
		return nil, fmt.Errorf("--max-wait is %s; write 0 or more", wording.Period(o.Patience))
	case o.Instances < 1 || o.Instances > simulate.MaxInstances:
		return nil, fmt.Errorf("--instances is %d; write 1 to %d", o.Instances, simulate.MaxInstances)
	case o.Lease != 0 && !fieldvalues.Lease.Has(o.Lease):
		return nil, fmt.Errorf("--lease is %d; write %s, or remove it", o.Lease, fieldvalues.Lease)
	case o.Lease > 0 && o.Patience > 0:
		return nil, errors.New("requests that may wait are decided by the store, so the lease has no effect; remove --lease or --max-wait")
	}
	if err := s.readRegions(); err != nil {
		return nil, err
	}
	if s.down != "" {
		if o.DownFrom, o.DownTo, err = readInterval(s.down); err != nil {
			return nil, fmt.Errorf("--down is %q; write when the store fails and when it returns, as in 20s..40s", wording.Clip(s.down))
		}
	}
	chosen, err := chooseAlgorithms(s.algorithms, own)
	if err != nil {
		return nil, err
	}
	for _, a := range chosen {
		l := limit
		if len(chosen) > 1 && a.BurstUse() == algorithm.BurstUnused {
			s.burst, l.Burst = limit.Burst, 0
		}
		switch s.across {
		case "exchange":
			a = algorithm.Across(a)
		case "share":
			a = algorithm.ShareAcross(a, 1)
		}
		plan, err := l.With(a).Compile()
		if err != nil {
			return nil, err
		}
		plans = append(plans, plan)
	}
	return plans, nil
}

func (s *simulateCommand) readRegions() error {
	o := &s.options.Regions
	hasOthers := s.across != "" || o.Delay != 0 || len(s.cuts) > 0
	switch {
	case o.Count < 1 || o.Count > regions.MaxRegions:
		return fmt.Errorf("--regions is %d; write 1 to %d", o.Count, regions.MaxRegions)
	case o.Count == 1 && hasOthers:
		return errors.New("--across, --delay and --cut are about several regions; add --regions 2 or more")
	case o.Count > 1 && (s.options.Instances > 1 || s.options.Lease > 0 || s.down != ""):
		return errors.New("--instances, --lease and --down are about one region; remove them, or --regions")
	case s.across != "" && !slices.Contains(fieldvalues.Across, s.across):
		return fmt.Errorf("--across is %q; write %s, or remove it, so that each region is on its own", wording.Clip(s.across), strings.Join(fieldvalues.Across, " or "))
	case o.Delay < 0 || o.Delay > maxDelay:
		return fmt.Errorf("--delay is %s; write 0 to %s", wording.Period(o.Delay), wording.Period(maxDelay))
	}
	for _, text := range s.cuts {
		number, interval, _ := strings.Cut(text, "@")
		n, err := strconv.Atoi(number)
		cut := simulate.Cut{Region: n}
		if err == nil {
			cut.From, cut.To, err = readInterval(interval)
		}
		if err != nil || n < 1 || n > o.Count {
			return fmt.Errorf("--cut is %q; write the number of a region, and when it is cut off, as in 2@10s..40s", wording.Clip(text))
		}
		o.Cuts = append(o.Cuts, cut)
	}
	return nil
}

// maxDelay is the longest delay of a message. With a longer one, regions would never be in contact.
const maxDelay = 500 * time.Millisecond

// readInterval reads two times with two dots between them.
func readInterval(text string) (from, to time.Duration, err error) {
	first, last, _ := strings.Cut(text, "..")
	from, errFrom := time.ParseDuration(first)
	to, errTo := time.ParseDuration(last)
	if err = errors.Join(errFrom, errTo); err == nil && (from < 0 || to <= from) {
		err = errors.New("the end is not after the start")
	}
	return from, to, err
}

// chooseAlgorithms returns the algorithms with these titles. Calendar windows and in_flight do not
// limit a rate, so they cannot be chosen.
func chooseAlgorithms(titles []string, own []*algorithm.Algorithm) (chosen []*algorithm.Algorithm, err error) {
	var known []*algorithm.Algorithm
	var words []string
	for _, a := range append(append(algorithm.All(), penstock.SubWindow(10)), own...) {
		if !a.NeedsHolder() {
			known, words = append(known, a), append(words, a.Title())
		}
	}
	for _, title := range titles {
		at := slices.Index(words, title)
		switch {
		case title == "all":
			return known, nil
		case at < 0:
			return nil, fmt.Errorf("there is no algorithm %q for a rate; %s", wording.Clip(title), wording.Suggest(title, append(words, "all")))
		}
		chosen = append(chosen, known[at])
	}
	return chosen, nil
}

func (s *simulateCommand) simulate(ctx context.Context, plan *penstock.Plan) (*simulate.Simulation, error) {
	o := s.options
	arrivals, err := simulate.Parse(s.arrivals, plan, o.Regions.Count)
	if err != nil {
		return nil, withStatus(exitUsage, err)
	}
	o.Limit, o.Arrivals = plan, arrivals
	o.Patience = min(o.Patience, plan.MaxPatience())
	one := &simulate.Simulation{Limit: plan.String(), Algorithm: plan.Algorithm().Title(), Arrivals: arrivals.Text, Period: plan.Limit().Period}
	isLeased := false
	for _, b := range o.Bounds() {
		isLeased = isLeased || b.When == "leased"
		one.Bounds = append(one.Bounds, strings.TrimPrefix(b.When+": "+b.Text, "always: "))
	}
	var notes []string
	if s.burst > 0 && plan.Algorithm().BurstUse() == algorithm.BurstUnused {
		notes = append(notes, fmt.Sprintf("%s has no burst, so burst %d is left out", one.Algorithm, s.burst))
	}
	switch {
	case o.Lease == 0 || isLeased:
	case plan.Algorithm().Decay() == algorithm.DecayUnknown:
		notes = append(notes, one.Algorithm+" cannot have a lease, so the store decides each request")
	default:
		notes = append(notes, fmt.Sprintf("all instances together lease at most a quarter of %d units, which is too little here, so the store decides each request", plan.Capacity()))
	}
	one.Note = strings.Join(notes, "; ")
	var timeline simulate.Timeline
	var tooMany error
	o.Observe = func(d simulate.Decision) {
		timeline.Add(d)
		if !s.hasDecisions {
			return
		}
		if one.Decisions = append(one.Decisions, d); len(one.Decisions) > maxDecisions {
			one.Decisions, s.hasDecisions = nil, false
			tooMany = fmt.Errorf("there are more than %d decisions; leave out --decisions, or write fewer arrivals", maxDecisions)
		}
	}
	result, err := simulate.Run(ctx, o)
	if err = cmp.Or(tooMany, err); err != nil {
		return nil, withStatus(exitUsage, err)
	}
	one.Result, one.Timeline = *result, timeline.Rows()
	if o.Regions.Count > 1 {
		one.Regions, one.Across = o.Regions.Count, s.across
		one.Bounds = append(one.Bounds, s.regionBound(one))
	}
	return one, nil
}

// regionBound says how much the regions admit together.
func (s *simulateCommand) regionBound(one *simulate.Simulation) string {
	if one.Across == "" {
		return fmt.Sprintf("each of %d regions is on its own: together %d in any %s", one.Regions, one.Bound, wording.Period(one.Period))
	}
	if one.Across == "share" {
		return fmt.Sprintf("%d regions together: %d in any %s; each has a share, and lends what it does not need", one.Regions, one.Bound, wording.Period(one.Period))
	}
	usual, most := regions.Options{}.Lag(s.options.Regions.Delay)
	return fmt.Sprintf("%d regions together, at this demand: %d in any %s; a region knows of the others within %s, or %s when links fail",
		one.Regions, one.Bound, wording.Period(one.Period), wording.Period(usual), wording.Period(most))
}

type simulationReport struct{ simulate.Report }

func (r simulationReport) print(out io.Writer) error {
	all := r.Simulations
	for i := range all {
		one := &all[i]
		printable.Fprintf(out, "%s\n", one.Limit)
		for _, b := range one.Bounds {
			printable.Fprintf(out, "  bound: %s\n", b)
		}
		if one.Note != "" {
			printable.Fprintf(out, "  note: %s\n", one.Note)
		}
		if i == 0 || one.Arrivals != all[i-1].Arrivals {
			printable.Fprintf(out, "  arrivals: %s\n", one.Arrivals)
		}
		fmt.Fprintln(out)
		if err := printSimulation(out, one); err != nil || len(all) == 1 {
			return err
		}
		fmt.Fprintln(out)
	}
	sums := sumsSection(all)
	return printTable(out, sums.Columns, sums.Rows, true)
}

// barWidth is the number of characters of the longest bar.
const barWidth = 40

func printSimulation(out io.Writer, one *simulate.Simulation) error {
	table := timelineSection(one)
	most := int64(1)
	for _, r := range one.Timeline {
		most = max(most, r.Requests)
	}
	for i, r := range one.Timeline {
		allowed := int(r.Allowed * barWidth / most)
		table.Rows[i] = append(table.Rows[i], "  "+strings.Repeat("█", allowed)+strings.Repeat("░", int(r.Requests*barWidth/most)-allowed))
	}
	if len(one.Decisions) > 0 {
		table.Columns, table.Rows = []string{"time", "client", "try", "decision", "remaining", "retry after", "wait"}, nil
		for _, d := range one.Decisions {
			decision := "denied"
			if d.IsAllowed {
				decision = "allowed"
			}
			table.Rows = append(table.Rows, htmlreport.Row(round(d.At), d.Client, d.Try, decision, d.Remaining, round(d.RetryAfter), round(d.Wait)))
		}
	}
	if err := printTable(out, table.Columns, table.Rows, true); err != nil {
		return err
	}
	printable.Fprintf(out, "\n%d %s: %d allowed, %d denied", one.Requests, plural(int(one.Requests), "request"), one.Allowed, one.Denied)
	if one.Retries > 0 {
		printable.Fprintf(out, "; %d were retries, and %d were given up", one.Retries, one.GivenUp)
	}
	if one.InOutage > 0 {
		printable.Fprintf(out, "; the store was down for %d", one.InOutage)
	}
	if one.Leased > 0 {
		printable.Fprintf(out, "; leases decided %s, and the store got %d calls", share(one.Leased, one.Requests), one.StoreCalls)
	}
	printable.Fprintf(out, "\nat most %d %s admitted in any %s", one.MostUnits, plural(int(one.MostUnits), "unit"), wording.Period(one.Period))
	if one.Bound > 0 {
		printable.Fprintf(out, "; the bound is %d", one.Bound)
	}
	if one.Regions > 0 {
		for i, allowed := range one.ByRegion {
			printable.Fprintf(out, "\nregion %d: %d allowed", i+1, allowed)
		}
	}
	if one.LongestWait > 0 {
		printable.Fprintf(out, "; the longest wait was %s", round(one.LongestWait))
	}
	fmt.Fprintln(out)
	return nil
}

// round writes a time for people: with at most three digits behind the point.
func round(s simulate.Seconds) string {
	d := time.Duration(s)
	if d == penstock.Never {
		return "never"
	}
	for _, unit := range []time.Duration{time.Second, time.Millisecond} {
		if d >= unit {
			d = d.Round(unit / 1000)
			break
		}
	}
	return wording.Period(d)
}
