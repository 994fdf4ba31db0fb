package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

func TestDeployedFilesAreCurrent(t *testing.T) {
	for path, want := range deployedFiles() {
		got, err := os.ReadFile(filepath.Join("../../deploy", path))
		if err != nil {
			t.Fatal(err)
		}
		if string(got) != want {
			t.Errorf("deploy/%s is not what scripts/monitoring writes; run make monitoring", path)
		}
	}
}

func TestEachAlertHasItsRunbook(t *testing.T) {
	text, err := os.ReadFile("../../docs/runbooks.md")
	if err != nil {
		t.Fatal(err)
	}
	sections := strings.Split(string(text), "\n### ")[1:]
	var described []string // alerts that have a runbook
	for _, section := range sections {
		name, body, _ := strings.Cut(section, "\n")
		described = append(described, name)
		for _, part := range []string{"\n**Means.** ", "\n**Look at** ", "\n**Do"} {
			if !strings.Contains(body, part) {
				t.Errorf("the runbook of %s has no part %q", name, strings.TrimSpace(part))
			}
		}
	}
	var all []string
	for _, a := range alerts {
		all = append(all, a.name)
		if want := "https://github.com/penstock/penstock/blob/main/docs/runbooks.md#" + strings.ToLower(a.name); a.runbook() != want {
			t.Errorf("the alert %s links to the runbook %s; want %s", a.name, a.runbook(), want)
		}
	}
	slices.Sort(described)
	slices.Sort(all)
	if !slices.Equal(described, all) {
		t.Errorf("docs/runbooks.md describes the alerts\n%v\nwant those of alerts.yaml:\n%v", described, all)
	}
	panels := make(map[string]bool)
	for _, r := range dashboard() {
		for _, p := range r.panels {
			panels[p.title] = true
		}
	}
	quotedTitle := regexp.MustCompile("`([A-Z][a-z]+ [a-z][A-Za-z ]+)`")
	for _, m := range quotedTitle.FindAllStringSubmatch(string(text), -1) {
		if title := m[1]; !panels[title] {
			t.Errorf("docs/runbooks.md names the panel %q, which the dashboard does not have", title)
		}
	}
}

func TestAlertsAreComplete(t *testing.T) {
	usedLabel := regexp.MustCompile(`\$labels\.(\w+)`)
	for _, a := range alerts {
		if !slices.Contains([]string{"critical", "warning", "info"}, a.severity) || a.summary == "" || !strings.HasSuffix(a.description, ".") {
			t.Errorf("%s has severity %q, summary %q and description %q; want severity critical, warning or info, a summary, and a description that ends with a period",
				a.name, a.severity, a.summary, a.description)
		}
		if len(a.fires) == 0 || len(a.quiet) == 0 {
			t.Errorf("%s has %d series for its firing test and %d for its quiet test; want at least one for each", a.name, len(a.fires), len(a.quiet))
		}
		if a.wait == 0 && !strings.Contains(a.query, "increase(") {
			t.Errorf("%s fires without a wait; want a wait, because its condition may be true for only a moment", a.name)
		}
		for _, m := range usedLabel.FindAllStringSubmatch(a.description+a.summary, -1) {
			label := m[1]
			if label == "job" || label == "instance" { // Prometheus adds them to all series
				continue
			}
			// The name of a rule contains its labels, as job_rule does.
			if !regexp.MustCompile(`\b(\w+_)?` + label + `\b`).MatchString(a.query) {
				t.Errorf("%s: the summary or description uses the label %s, which the query %q does not have", a.name, label, a.query)
			}
		}
	}
}

// A line of panels is as high as its highest panel.
// A user of the dashboard writes the series of the backend. A counter needs a rate, and a gauge
// must have none.
func TestBackendSeriesAreShownByTheirKind(t *testing.T) {
	shown := make(map[string]bool)
	for _, query := range queriesOf(dashboard()) {
		for _, m := range variable.FindAllStringSubmatch(query, -1) {
			name := m[1]
			series, isKnown := seriesVariables[name]
			if !isKnown {
				t.Errorf("the query %s has the unknown variable %s", query, name)
			}
			shown[name] = true
			isCounter := strings.Contains(series, "_total")
			if hasRate := strings.Contains(query, "rate(${"+name+"}[$__rate_interval])"); hasRate != isCounter {
				t.Errorf("the query %s shows %s; want a rate: %v", query, series, isCounter)
			}
		}
	}
	if len(shown) != len(seriesVariables) {
		t.Errorf("panels show the series %v; want all of %v", shown, seriesVariables)
	}
}

func TestPanelsOfDifferentHeightsDoNotOverlap(t *testing.T) {
	number := panel{title: "number", width: statWidth}
	line := panel{title: "chart", width: gridColumns - statWidth}
	for _, rows := range [][]row{
		{{panels: []panel{line, number, line}}},
		{{panels: []panel{line, number}}, {title: "next"}},
	} {
		placed := layout(rows)
		last := placed[len(placed)-1].(object)["gridPos"].(object)
		if y, want := last["y"].(int), 1+line.height(); y != want {
			t.Errorf("below a line with a chart and a number, y is %d; want %d", y, want)
		}
	}
}

// box is the place of a panel, in units of Grafana's grid.
type box struct{ X, Y, W, H int }

type jsonPanel struct {
	ID         int
	Type       string
	Title      string
	Datasource struct{ UID string }
	GridPos    box
	Targets    []struct {
		Expr       string
		Datasource struct{ UID string }
	}
	FieldConfig struct{ Defaults struct{ Unit string } }
	Panels      []jsonPanel
}

func TestDashboardFollowsGrafanasConventions(t *testing.T) {
	var fields map[string]any
	var d struct {
		UID           string
		SchemaVersion int
		Time          struct{ From, To string }
		Panels        []jsonPanel
		Templating    struct {
			List []struct{ Name, Type, Definition string }
		}
	}
	text := []byte(dashboardJSON())
	if err := json.Unmarshal(text, &fields); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &d); err != nil {
		t.Fatal(err)
	}
	if _, hasID := fields["id"]; hasID || d.UID != "penstock" || d.SchemaVersion != schemaVersion {
		t.Errorf("the dashboard has id %v, uid %q and schemaVersion %d; want no id, uid penstock and schemaVersion %d", fields["id"], d.UID, d.SchemaVersion, schemaVersion)
	}
	if !strings.HasPrefix(d.Time.From, "now") || d.Time.To != "now" {
		t.Errorf("the dashboard shows the time from %q to %q; want from now-… to now", d.Time.From, d.Time.To)
	}
	var names []string
	for _, v := range d.Templating.List {
		names = append(names, v.Name)
		if v.Type == "query" && !strings.HasPrefix(v.Definition, "label_values(") {
			t.Errorf("the definition of variable %s is %q; want label_values(…)", v.Name, v.Definition)
		}
	}
	if names[0] != "datasource" || !slices.Contains(names, "job") || !slices.Contains(names, "instance") || !slices.Contains(names, "rule") {
		t.Errorf("the variables are %v; want datasource first, and job, instance and rule", names)
	}
	var panels []jsonPanel
	for _, p := range d.Panels {
		panels = append(append(panels, p), p.Panels...)
	}
	ids, titles := make(map[int]bool), make(map[string]bool)
	rateRange := regexp.MustCompile(`\[([^\]]*)\]`)
	for _, p := range panels {
		isRow := p.Type == "row"
		if p.Title == "" || ids[p.ID] {
			t.Errorf("the panel with id %d and title %q has no title, or the id of another panel", p.ID, p.Title)
		}
		if !isRow && titles[p.Title] {
			t.Errorf("two panels have the title %q", p.Title)
		}
		ids[p.ID] = true
		if isRow {
			continue
		}
		titles[p.Title] = true
		if p.Datasource.UID != "${datasource}" || p.FieldConfig.Defaults.Unit == "" || len(p.Targets) == 0 {
			t.Errorf("the panel %q has the data source %q, the unit %q and %d queries; want ${datasource}, a unit, and at least one query", p.Title, p.Datasource.UID, p.FieldConfig.Defaults.Unit, len(p.Targets))
		}
		for _, target := range p.Targets {
			for _, m := range rateRange.FindAllStringSubmatch(target.Expr, -1) {
				if m[1] != "$__rate_interval" {
					t.Errorf("the panel %q has a rate over %s; want $__rate_interval", p.Title, m[1])
				}
			}
			if target.Datasource.UID != "${datasource}" {
				t.Errorf("a query of the panel %q has the data source %q; want ${datasource}", p.Title, target.Datasource.UID)
			}
			if !strings.Contains(target.Expr, `job=~"$job"`) && !strings.Contains(target.Expr, "${backend_") {
				t.Errorf("the panel %q has the query %s; want one with job=~\"$job\" or a variable of the backend", p.Title, target.Expr)
			}
		}
	}
	// Panels of collapsed rows are not in d.Panels. Grafana places them when a user opens the row.
	type cell struct{ x, y int }
	panelAt := make(map[cell]string) // titles
	for _, p := range d.Panels {
		for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
			for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
				if other := panelAt[cell{x, y}]; other != "" {
					t.Fatalf("the panel %q overlaps the panel %q", p.Title, other)
				}
				if x >= gridColumns {
					t.Fatalf("the panel %q is outside of the %d columns", p.Title, gridColumns)
				}
				panelAt[cell{x, y}] = p.Title
			}
		}
	}
	t.Logf("counted: %d panels of the dashboard, %d alerts with runbooks", len(panels), len(alerts))
}
