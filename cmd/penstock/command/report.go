package command

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/cmd/penstock/internal/text/printable"
	"github.com/penstock/penstock/cmd/penstock/internal/tools/accesslog"
	"github.com/penstock/penstock/cmd/penstock/internal/tools/htmlreport"
	"github.com/penstock/penstock/cmd/penstock/internal/tools/replay"
	"github.com/penstock/penstock/cmd/penstock/internal/tools/simulate"
	"github.com/penstock/penstock/cmd/penstock/internal/tools/suggest"
	"github.com/penstock/penstock/internal/wording"
)

// reportFlags say in which forms a report is written.
type reportFlags struct{ html, output string }

func (f *reportFlags) add(c *cobra.Command) {
	c.Flags().StringVar(&f.html, "html", "", "also write the report to this file, as HTML")
	addOutput(c, &f.output)
}

// A shownReport is what a command has found. It is written as JSON too.
type shownReport interface {
	page() *htmlreport.Page
	print(io.Writer) error
}

// write writes a report to out, as text or JSON, and as HTML to the file of the flag.
func (f *reportFlags) write(out io.Writer, r shownReport) error {
	if f.html != "" {
		file, err := os.OpenFile(f.html, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600) // it may have keys
		if err == nil {
			err = errors.Join(htmlreport.Write(file, r.page()), file.Close())
		}
		if err != nil {
			return fmt.Errorf("cannot write the report: %w; write the name of a file in a folder that exists", err)
		}
	}
	if f.output == "json" {
		return writeJSON(out, r)
	}
	return r.print(out)
}

// printTable prints rows below the names of their columns. Numbers are aligned to the right, and
// what a row has behind the last column is printed as it is.
func printTable(out io.Writer, columns []string, rows [][]string, areNumbers bool) error {
	flags := uint(0)
	if areNumbers {
		flags = tabwriter.AlignRight
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', flags)
	for _, row := range append([][]string{columns}, rows...) {
		for i, cell := range row {
			fmt.Fprint(w, printable.Line(cell))
			if i < len(row)-1 || areNumbers && i < len(columns) {
				fmt.Fprint(w, "\t")
			}
		}
		fmt.Fprintln(w)
	}
	return w.Flush()
}

// printSection prints the table of a section, if it has rows.
func printSection(out io.Writer, s htmlreport.Section) {
	if len(s.Rows) > 0 {
		fmt.Fprintln(out)
		_ = printTable(out, s.Columns, s.Rows, false)
		fmt.Fprint(out, s.Note)
	}
}

// demandSection shows requests over time. hasDenied adds those that were denied.
func demandSection(d *accesslog.Demand, hasDenied bool) htmlreport.Section {
	chart := &htmlreport.Chart{Unit: "requests in " + wording.Period(d.Step), IsTime: true, Lines: []htmlreport.Line{{Label: "requests"}, {Label: "denied"}}}
	s := htmlreport.Section{Title: "Demand over time", Chart: chart, Columns: []string{"from (UTC)", "requests", "denied"}}
	for _, span := range d.Spans {
		chart.X = append(chart.X, float64(span.From.Unix()))
		chart.Lines[0].Values = append(chart.Lines[0].Values, float64(span.Requests))
		chart.Lines[1].Values = append(chart.Lines[1].Values, float64(span.Denied))
		s.Rows = append(s.Rows, htmlreport.Row(stamp(span.From), span.Requests, span.Denied))
	}
	if !hasDenied {
		chart.Lines, s.Columns = chart.Lines[:1], s.Columns[:2]
		for i := range s.Rows {
			s.Rows[i] = s.Rows[i][:2]
		}
	}
	return s
}

func (r *suggestReport) page() *htmlreport.Page {
	var notes bytes.Buffer
	r.printNotes(&notes)
	fmt.Fprintf(&notes, "%d clients, %d requests\n", r.Identities, r.Requests)
	p := &htmlreport.Page{Title: "Suggested limit", Notes: notes.String()}
	if r.Suggested == nil {
		return p
	}
	p.Sections = append(p.Sections, htmlreport.Section{Title: "Suggestion", Note: fmt.Sprintf("With a headroom of %g, for a budget of %s.", r.Headroom, r.flags.budget), Text: r.flags.policy(r.Suggested)},
		demandSection(&r.Demand, false), r.busiestSection(), r.needsSection())
	return p
}

func (r *suggestReport) busiestSection() htmlreport.Section {
	chart := &htmlreport.Chart{Unit: "requests " + r.Measure(), Lines: []htmlreport.Line{{Label: "client, the busiest first", IsBar: true}, {Label: "most that the suggested limit admits"}}}
	busiest := htmlreport.Section{Title: "The busiest clients", Chart: chart, Columns: []string{"client", "requests", "requests " + r.Measure(), "needs", "outlier"},
		Note: fmt.Sprintf("The first %d are outliers: they are not counted in the suggestion.", len(r.Outliers))}
	for i := range r.Busiest {
		id := &r.Busiest[i]
		outlier := ""
		if i < len(r.Outliers) {
			outlier = "yes"
		}
		chart.X = append(chart.X, float64(i+1))
		chart.Lines[0].Values = append(chart.Lines[0].Values, float64(id.Measured(r.Report)))
		chart.Lines[1].Values = append(chart.Lines[1].Values, mostOf(r.Suggested))
		needs := strconv.FormatInt(id.Count, 10)
		if r.Chosen != nil {
			needs = fmt.Sprintf("burst %d at %s", id.Burst, r.Chosen.Rate)
		}
		busiest.Rows = append(busiest.Rows, htmlreport.Row(id.Key, id.Requests, id.Measured(r.Report), needs, outlier))
	}
	return busiest
}

// mostOf returns how much a limit admits in the measure by which clients are compared: that of a
// window, or of a minute for a token bucket.
func mostOf(l *suggest.Limit) float64 {
	if l.InFlight > 0 {
		return float64(l.InFlight)
	}
	limit, _ := penstock.ParseRate(l.Rate) // suggest has written it
	if l.Burst == 0 {
		return float64(limit.Count)
	}
	return perMinute(limit) + float64(l.Burst)
}

func perMinute(l penstock.Limit) float64 {
	return float64(l.Count) * time.Minute.Seconds() / l.Period.Seconds()
}

// needs returns the points of the frontier, or the one of a window or of requests in flight.
func (r *suggestReport) needs() (points []suggest.Point, all []int64) {
	if c := r.Counted; c != nil {
		return []suggest.Point{{Rate: r.Measure(), Bursts: c.Counts}}, []int64{c.All}
	}
	for _, p := range r.All {
		all = append(all, p.Bursts[suggest.BudgetName(0)])
	}
	return r.Frontier, all
}

// needsSection shows which limits would have been high enough.
func (r *suggestReport) needsSection() htmlreport.Section {
	points, all := r.needs()
	s := htmlreport.Section{Title: "The smallest count", Columns: []string{"requests", "count that denies nobody", "0.1 % of the clients", "1 %", "5 %", "all together"}}
	if r.Counted == nil {
		s.Title, s.Note = "Burst against rate", "A slower rate needs a larger burst. Chosen: "+r.Chosen.Rate+"."
		s.Columns[0], s.Columns[1] = "rate", "burst that denies nobody"
		s.Chart = &htmlreport.Chart{Unit: "burst, by rate per minute", IsLog: true, Lines: make([]htmlreport.Line, len(suggest.Budgets))}
	}
	for i, p := range points {
		row := htmlreport.Row(p.Rate)
		for k, b := range suggest.Budgets {
			n := p.Bursts[suggest.BudgetName(b)]
			row = append(row, strconv.FormatInt(n, 10))
			if s.Chart != nil {
				line := &s.Chart.Lines[k]
				line.Label, line.Values = s.Columns[k+1], append(line.Values, float64(n))
			}
		}
		if s.Chart != nil {
			limit, _ := penstock.ParseRate(p.Rate)
			s.Chart.X = append(s.Chart.X, perMinute(limit))
		}
		s.Rows = append(s.Rows, append(row, strconv.FormatInt(all[i], 10)))
	}
	return s
}

func (r replayReport) page() *htmlreport.Page {
	var notes bytes.Buffer
	r.printNotes(&notes)
	printSums(&notes, r.Policy)
	r.printOld(&notes)
	hit := hitSection(r.Policy)
	if len(hit.Rows) == 0 {
		hit.Chart, hit.Columns, hit.Note = nil, nil, "Nobody."
	}
	sections := []htmlreport.Section{demandSection(&r.Policy.Demand, true), rulesSection(r.Policy), hit}
	if len(r.Differences) > 0 {
		sections = append(sections, r.differencesSection())
	}
	return &htmlreport.Page{Title: "Whom the policy would have denied", Notes: notes.String(), Sections: sections}
}

func rulesSection(r *replay.Result) htmlreport.Section {
	s := htmlreport.Section{Title: "Rules", Columns: []string{"rule", "requests", "denied", "identities", "hit", "first denied", "worst minute", "by shadows"}}
	for _, x := range r.Rules {
		s.Rows = append(s.Rows, htmlreport.Row(x.Name, x.Requests, x.Denied, x.Identities, x.DeniedIdentities, stamp(x.FirstDenied), worstMinute(&x), x.ShadowDenied))
	}
	if len(s.Rows) > 1 {
		s.Note = "A request counts at one rule: the one that denies it, or else has the least left.\n"
	}
	return s
}

func hitSection(r *replay.Result) htmlreport.Section {
	chart := &htmlreport.Chart{Unit: "requests", Lines: []htmlreport.Line{{Label: "denied, of the most denied identity first", IsBar: true}}}
	s := htmlreport.Section{Title: "Who would be hit", Chart: chart, Columns: []string{"most denied", "rule", "requests", "denied", "longest denied", "first denied"}}
	for i, id := range r.Top {
		chart.X = append(chart.X, float64(i+1))
		chart.Lines[0].Values = append(chart.Lines[0].Values, float64(id.Denied))
		s.Rows = append(s.Rows, htmlreport.Row(id.Key, id.Rule, id.Requests, id.Denied, longest(&id), stamp(id.First)))
	}
	return s
}

func (r replayReport) differencesSection() htmlreport.Section {
	s := htmlreport.Section{Title: "Who differs between the policies", Columns: []string{"most requests that differ", "rule", "only by this policy", "only by the other"}}
	for _, d := range r.Differences {
		s.Rows = append(s.Rows, htmlreport.Row(d.Key, d.Rule, d.OnlyNew, d.OnlyOld))
	}
	return s
}

func (r simulationReport) page() *htmlreport.Page {
	all := r.Simulations
	p := &htmlreport.Page{Title: "What a limit does", Notes: "arrivals: " + all[0].Arrivals, Sections: []htmlreport.Section{sumsSection(all)}}
	for i := range all {
		p.Sections = append(p.Sections, timelineSection(&all[i]))
	}
	return p
}

func sumsSection(all []simulate.Simulation) htmlreport.Section {
	s := htmlreport.Section{Title: "Sums", Columns: []string{"algorithm", "requests", "allowed", "denied", "most in " + wording.Period(all[0].Period), "longest wait"}}
	for _, one := range all {
		s.Rows = append(s.Rows, htmlreport.Row(one.Algorithm, one.Requests, one.Allowed, one.Denied, one.MostUnits, round(one.LongestWait)))
	}
	return s
}

func timelineSection(one *simulate.Simulation) htmlreport.Section {
	chart := &htmlreport.Chart{Unit: "requests, by seconds since the start", Lines: []htmlreport.Line{{Label: "denied, on top of allowed", IsBar: true}, {Label: "allowed", IsBar: true}}}
	s := htmlreport.Section{Title: one.Limit, Note: one.Note, Chart: chart, Columns: []string{"from", "requests", "allowed", "denied", "remaining", "retry after"}}
	for _, b := range one.Bounds {
		s.Note += " Bound: " + b + "."
	}
	for _, row := range one.Timeline {
		chart.X = append(chart.X, time.Duration(row.From).Seconds())
		for k, n := range []int64{row.Requests, row.Allowed} {
			chart.Lines[k].Values = append(chart.Lines[k].Values, float64(n))
		}
		retryAfter := ""
		if row.Denied > 0 {
			retryAfter = round(row.RetryAfter)
		}
		s.Rows = append(s.Rows, htmlreport.Row(round(row.From), row.Requests, row.Allowed, row.Denied, row.Remaining, retryAfter))
	}
	return s
}
