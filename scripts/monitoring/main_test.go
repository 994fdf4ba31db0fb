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
	for path, want := range deployed() {
		have, err := os.ReadFile(filepath.Join("../../deploy", path))
		if err != nil || string(have) != want {
			t.Errorf("deploy/%s is not up to date with scripts/monitoring (run make monitoring): %v", path, err)
		}
	}
}

func TestEachAlertHasItsRunbook(t *testing.T) {
	text, err := os.ReadFile("../../docs/runbooks.md")
	if err != nil {
		t.Fatal(err)
	}
	sections := strings.Split(string(text), "\n### ")[1:]
	var described []string
	for _, section := range sections {
		name, body, _ := strings.Cut(section, "\n")
		described = append(described, name)
		for _, part := range []string{"\n**Means.** ", "\n**Look at** ", "\n**Do", "\n"} {
			if !strings.Contains(body, part) {
				t.Errorf("the runbook of %s lacks %q", name, strings.TrimSpace(part))
			}
		}
	}
	var all []string
	for _, a := range alerts {
		all = append(all, a.name)
		if want := "https://github.com/penstock/penstock/blob/main/docs/runbooks.md#" + strings.ToLower(a.name); a.runbook() != want {
			t.Errorf("%s has the runbook %s; want %s", a.name, a.runbook(), want)
		}
	}
	slices.Sort(described)
	slices.Sort(all)
	if !slices.Equal(described, all) {
		t.Errorf("docs/runbooks.md has the alerts\n%v\nalerts.yaml has\n%v", described, all)
	}
	panels := make(map[string]bool)
	for _, r := range dashboard() {
		for _, p := range r.panels {
			panels[p.title] = true
		}
	}
	for _, m := range regexp.MustCompile("`([A-Z][a-z]+ [a-z][A-Za-z ]+)`").FindAllStringSubmatch(string(text), -1) {
		if !panels[m[1]] {
			t.Errorf("docs/runbooks.md names the panel %q, which the dashboard does not have", m[1])
		}
	}
}

func TestAlertsAreComplete(t *testing.T) {
	label := regexp.MustCompile(`\$labels\.(\w+)`)
	for _, a := range alerts {
		if !slices.Contains([]string{"critical", "warning", "info"}, a.severity) || a.summary == "" || !strings.HasSuffix(a.description, ".") {
			t.Errorf("%s: severity %q, summary %q, description %q; want critical, warning or info, a summary, and a description that ends with a period",
				a.name, a.severity, a.summary, a.description)
		}
		if len(a.fires) == 0 || len(a.quiet) == 0 {
			t.Errorf("%s has %d firing and %d quiet cases; want at least one each", a.name, len(a.fires), len(a.quiet))
		}
		if a.wait == 0 && !strings.Contains(a.query, "increase(") {
			t.Errorf("%s has no duration; want one, because its state may end at once", a.name)
		}
		for _, m := range label.FindAllStringSubmatch(a.description+a.summary, -1) {
			if m[1] != "job" && m[1] != "instance" && !regexp.MustCompile(`\b(\w+_)?`+m[1]+`\b`).MatchString(a.query) {
				t.Errorf("%s: the description has the label %s, which the query lacks", a.name, m[1])
			}
		}
	}
}

// box is the place of a panel.
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
	if _, has := fields["id"]; has || d.UID != "penstock" || d.SchemaVersion != schemaVersion || !strings.HasPrefix(d.Time.From, "now") || d.Time.To != "now" {
		t.Errorf("uid %q, schemaVersion %d, time %v, id %v; want penstock, %d, from now-… to now, and no id", d.UID, d.SchemaVersion, d.Time, fields["id"], schemaVersion)
	}
	var names []string
	for _, v := range d.Templating.List {
		names = append(names, v.Name)
		if v.Type == "query" && !strings.HasPrefix(v.Definition, "label_values(") {
			t.Errorf("variable %s is %q; want label_values(…)", v.Name, v.Definition)
		}
	}
	if names[0] != "datasource" || !slices.Contains(names, "job") || !slices.Contains(names, "instance") || !slices.Contains(names, "rule") {
		t.Errorf("the variables are %v; want datasource first, and job, instance and rule", names)
	}
	var panels []jsonPanel
	for _, p := range d.Panels {
		panels = append(append(panels, p), p.Panels...)
	}
	ids, titles, places := map[int]bool{}, map[string]bool{}, map[[2]int]string{}
	span := regexp.MustCompile(`\[([^\]]*)\]`)
	for _, p := range panels {
		isRow := p.Type == "row"
		if ids[p.ID] || !isRow && titles[p.Title] || p.Title == "" {
			t.Errorf("panel %d, %q: another panel has the same id or title, or the title is empty", p.ID, p.Title)
		}
		ids[p.ID] = true
		if isRow {
			continue
		}
		titles[p.Title] = true
		if p.Datasource.UID != "${datasource}" || p.FieldConfig.Defaults.Unit == "" || len(p.Targets) == 0 {
			t.Errorf("%s: data source %q, unit %q, %d queries; want ${datasource}, a unit, and at least one", p.Title, p.Datasource.UID, p.FieldConfig.Defaults.Unit, len(p.Targets))
		}
		for _, target := range p.Targets {
			for _, m := range span.FindAllStringSubmatch(target.Expr, -1) {
				if m[1] != "$__rate_interval" {
					t.Errorf("%s: a rate over %s; want $__rate_interval", p.Title, m[1])
				}
			}
			if target.Datasource.UID != "${datasource}" || !strings.Contains(target.Expr, `job=~"$job"`) && !strings.Contains(target.Expr, "${backend_") {
				t.Errorf("%s: data source %q, query %s; want ${datasource}, and a query with job=~\"$job\" or a variable of the backend", p.Title, target.Datasource.UID, target.Expr)
			}
		}
	}
	for _, p := range d.Panels { // Grafana places the panels of a collapsed row when a user opens the row
		for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
			for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
				if other := places[[2]int{x, y}]; other != "" || x >= 24 {
					t.Fatalf("%s overlaps the panel %q, or is outside of the 24 columns", p.Title, other)
				}
				places[[2]int{x, y}] = p.Title
			}
		}
	}
	t.Logf("counted: %d panels of the dashboard, %d alerts with runbooks", len(panels), len(alerts))
}
