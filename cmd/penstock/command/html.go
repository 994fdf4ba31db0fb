package command

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/cmd/penstock/internal/tools/accesslog"
	"github.com/penstock/penstock/cmd/penstock/internal/tools/htmlreport"
	"github.com/penstock/penstock/cmd/penstock/internal/tools/replay"
	"github.com/penstock/penstock/cmd/penstock/internal/tools/simulate"
	"github.com/penstock/penstock/cmd/penstock/internal/tools/suggest"
	"github.com/penstock/penstock/internal/wording"
)

const htmlUsage = "also write the report to this file, as HTML"

// writeHTML writes a report to a file. Without a name it writes nothing.
func writeHTML(name string, page func() *htmlreport.Page) error {
	if name == "" {
		return nil
	}
	file, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600) // it may have keys
	if err == nil {
		err = errors.Join(htmlreport.Write(file, page()), file.Close())
	}
	if err != nil {
		return fmt.Errorf("cannot write the report: %w; write the name of a file in a folder that exists", err)
	}
	return nil
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

func (s *suggestCommand) page(r *suggest.Report) *htmlreport.Page {
	var notes bytes.Buffer
	printLog(&notes, &r.Log, r.Denied429)
	s.printWarnings(&notes, r)
	fmt.Fprintf(&notes, "%d clients, %d requests\n", r.Identities, r.Requests)
	p := &htmlreport.Page{Title: "Suggested limit", Notes: notes.String()}
	if r.Suggested == nil {
		return p
	}
	p.Sections = append(p.Sections, htmlreport.Section{Title: "Suggestion", Note: fmt.Sprintf("With a headroom of %g, for a budget of %s.", r.Headroom, s.budget), Text: s.policy(r.Suggested)},
		demandSection(&r.Demand, false), s.busiestSection(r), s.needsSection(r))
	return p
}

func (s *suggestCommand) busiestSection(r *suggest.Report) htmlreport.Section {
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
		chart.Lines[0].Values = append(chart.Lines[0].Values, float64(id.Measured(r)))
		chart.Lines[1].Values = append(chart.Lines[1].Values, mostOf(r.Suggested))
		needs := strconv.FormatInt(id.Count, 10)
		if r.Chosen != nil {
			needs = fmt.Sprintf("burst %d at %s", id.Burst, r.Chosen.Rate)
		}
		busiest.Rows = append(busiest.Rows, htmlreport.Row(id.Key, id.Requests, id.Measured(r), needs, outlier))
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

// needsSection shows which limits would have been high enough.
func (s *suggestCommand) needsSection(r *suggest.Report) htmlreport.Section {
	columns := []string{"denies nobody", "0.1 % of the clients", "1 %", "5 %"}
	if c := r.Counted; c != nil {
		return htmlreport.Section{Title: "The smallest count", Columns: append(append([]string{"requests"}, columns...), "all together"),
			Rows: [][]string{htmlreport.Row(r.Measure(), c.Counts["0"], c.Counts["0.001"], c.Counts["0.01"], c.Counts["0.05"], c.All)}}
	}
	chart := &htmlreport.Chart{Unit: "burst, by rate per minute", IsLog: true}
	frontier := htmlreport.Section{Title: "Burst against rate", Note: "A slower rate needs a larger burst. Chosen: " + r.Chosen.Rate + ".", Chart: chart, Columns: append(append([]string{"rate"}, columns...), "all together")}
	for i, b := range suggest.Budgets {
		line := htmlreport.Line{Label: columns[i]}
		for _, p := range r.Frontier {
			line.Values = append(line.Values, float64(p.Bursts[suggest.BudgetName(b)]))
		}
		chart.Lines = append(chart.Lines, line)
	}
	for i, p := range r.Frontier {
		limit, _ := penstock.ParseRate(p.Rate)
		chart.X = append(chart.X, perMinute(limit))
		frontier.Rows = append(frontier.Rows, htmlreport.Row(p.Rate, p.Bursts["0"], p.Bursts["0.001"], p.Bursts["0.01"], p.Bursts["0.05"], r.All[i].Bursts["0"]))
	}
	return frontier
}

func replayPage(r *replay.Report) *htmlreport.Page {
	var notes bytes.Buffer
	printReplayNotes(&notes, r)
	printSums(&notes, r.Policy)
	printOld(&notes, r)
	hit := hitSection(r.Policy)
	if len(hit.Rows) == 0 {
		hit.Chart, hit.Columns, hit.Note = nil, nil, "Nobody."
	}
	sections := []htmlreport.Section{demandSection(&r.Policy.Demand, true), rulesSection(r.Policy), hit}
	if len(r.Differences) > 0 {
		sections = append(sections, differencesSection(r))
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

func differencesSection(r *replay.Report) htmlreport.Section {
	s := htmlreport.Section{Title: "Who differs between the policies", Columns: []string{"most requests that differ", "rule", "only by this policy", "only by the other"}}
	for _, d := range r.Differences {
		s.Rows = append(s.Rows, htmlreport.Row(d.Key, d.Rule, d.OnlyNew, d.OnlyOld))
	}
	return s
}

func (s *simulateCommand) page(all []simulate.Simulation) *htmlreport.Page {
	p := &htmlreport.Page{Title: "What a limit does", Notes: "arrivals: " + all[0].Arrivals}
	summary := htmlreport.Section{Title: "Sums", Columns: []string{"algorithm", "requests", "allowed", "denied", "most in " + wording.Period(all[0].Period), "longest wait"}}
	for i := range all {
		one := &all[i]
		chart := &htmlreport.Chart{Unit: "requests, by seconds since the start", Lines: []htmlreport.Line{{Label: "denied, on top of allowed", IsBar: true}, {Label: "allowed", IsBar: true}}}
		section := htmlreport.Section{Title: one.Limit, Note: one.Note, Chart: chart, Columns: []string{"from", "requests", "allowed", "denied", "remaining", "retry after"}}
		for _, b := range one.Bounds {
			section.Note += " Bound: " + b + "."
		}
		for _, row := range one.Timeline {
			chart.X = append(chart.X, time.Duration(row.From).Seconds())
			for k, n := range []int64{row.Requests, row.Allowed} {
				chart.Lines[k].Values = append(chart.Lines[k].Values, float64(n))
			}
			section.Rows = append(section.Rows, htmlreport.Row(round(row.From), row.Requests, row.Allowed, row.Denied, row.Remaining, retryAfter(&row)))
		}
		p.Sections = append(p.Sections, section)
		summary.Rows = append(summary.Rows, htmlreport.Row(one.Algorithm, one.Requests, one.Allowed, one.Denied, one.MostUnits, round(one.LongestWait)))
	}
	p.Sections = append([]htmlreport.Section{summary}, p.Sections...)
	return p
}
