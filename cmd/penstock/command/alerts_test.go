package command

import (
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v4"
)

func readFile(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

type alert struct {
	Alert, Expr, For string
	Labels           struct{ Severity string }
	Annotations      struct {
		Summary, Description string
		RunbookURL           string `yaml:"runbook_url"`
	}
}

func readAlerts(t *testing.T) (all []alert) {
	t.Helper()
	var file struct {
		Groups []struct{ Rules []alert }
	}
	if err := yaml.Unmarshal([]byte(readFile(t, deploy+"/prometheus/alerts.yaml")), &file); err != nil {
		t.Fatal(err)
	}
	for _, g := range file.Groups {
		all = append(all, g.Rules...)
	}
	return all
}

// runbookOf is the page that the alerts link to. Each alert has a heading of its own there.
const runbookOf = "https://github.com/penstock/penstock/blob/main/docs/runbooks.md#"

func TestEachAlertHasItsRunbook(t *testing.T) {
	text := readFile(t, "../../../docs/runbooks.md")
	var described []string // alerts that have a runbook
	for _, section := range strings.Split(text, "\n### ")[1:] {
		name, body, _ := strings.Cut(section, "\n")
		described = append(described, name)
		for _, part := range []string{"\n**Means.** ", "\n**Look at** ", "\n**Do"} {
			if !strings.Contains(body, part) {
				t.Errorf("the runbook of %s has no part %q", name, strings.TrimSpace(part))
			}
		}
	}
	var all []string
	for _, a := range readAlerts(t) {
		all = append(all, a.Alert)
		if want := runbookOf + strings.ToLower(a.Alert); a.Annotations.RunbookURL != want {
			t.Errorf("the alert %s links to the runbook %s; want %s", a.Alert, a.Annotations.RunbookURL, want)
		}
	}
	slices.Sort(described)
	slices.Sort(all)
	if !slices.Equal(described, all) {
		t.Errorf("docs/runbooks.md describes the alerts\n%v\nwant those of alerts.yaml:\n%v", described, all)
	}
	var titles []string
	for _, p := range readDashboard(t).panels() {
		titles = append(titles, p.Title)
	}
	for _, m := range regexp.MustCompile("`([A-Z][a-z]+ [a-z][A-Za-z ]+)`").FindAllStringSubmatch(text, -1) {
		if !slices.Contains(titles, m[1]) {
			t.Errorf("docs/runbooks.md names the panel %q, which the dashboard does not have", m[1])
		}
	}
}

// make alerts runs the tests of the alerts with promtool.
func TestAlertsAreComplete(t *testing.T) {
	tests := readFile(t, deploy+"/prometheus/tests.yaml")
	usedLabel := regexp.MustCompile(`\$labels\.(\w+)`)
	for _, a := range readAlerts(t) {
		texts := a.Annotations
		if !slices.Contains([]string{"critical", "warning", "info"}, a.Labels.Severity) || texts.Summary == "" || !strings.HasSuffix(texts.Description, ".") {
			t.Errorf("%s has severity %q, summary %q and description %q; want severity critical, warning or info, a summary, and a description that ends with a period",
				a.Alert, a.Labels.Severity, texts.Summary, texts.Description)
		}
		if a.For == "" && !strings.Contains(a.Expr, "increase(") {
			t.Errorf("%s fires without a wait; want a wait, because its condition may be true for only a moment", a.Alert)
		}
		for _, value := range []string{"1", "0"} { // it fires, and it does not
			if test := regexp.MustCompile(`alertname="` + a.Alert + `".*value: ` + value + `\}`); !test.MatchString(tests) {
				t.Errorf("tests.yaml has no test in which %s alerts %s fire; want one with 1 and one with 0", value, a.Alert)
			}
		}
		for _, m := range usedLabel.FindAllStringSubmatch(texts.Description+texts.Summary, -1) {
			label := m[1]
			if label == "job" || label == "instance" { // Prometheus adds them to all series
				continue
			}
			// The name of a rule contains its labels, as job_rule does.
			if !regexp.MustCompile(`\b(\w+_)?` + label + `\b`).MatchString(a.Expr) {
				t.Errorf("%s: the summary or description uses the label %s, which the query %q does not have", a.Alert, label, a.Expr)
			}
		}
	}
}

// A dashboard is the JSON of a dashboard of Grafana.
type dashboard struct {
	ID            any
	UID           string
	SchemaVersion int
	Time          struct{ From, To string }
	Panels        []panel
	Templating    struct {
		List []struct{ Name, Type, Definition string }
	}
}

type panel struct {
	ID          int
	Type, Title string
	Datasource  source
	GridPos     struct{ X, Y, W, H int }
	Targets     []struct {
		Expr       string
		Datasource source
	}
	FieldConfig struct{ Defaults struct{ Unit string } }
	Panels      []panel
}

type source struct{ UID string }

func readDashboard(t *testing.T) (d dashboard) {
	t.Helper()
	if err := json.Unmarshal([]byte(readFile(t, deploy+"/grafana/dashboard.json")), &d); err != nil {
		t.Fatal(err)
	}
	return d
}

// panels returns all panels, with those of collapsed rows.
func (d dashboard) panels() (all []panel) {
	for _, p := range d.Panels {
		all = append(append(all, p), p.Panels...)
	}
	return all
}

func TestDashboardFollowsGrafanasConventions(t *testing.T) {
	d := readDashboard(t)
	const schemaVersion = 39 // of Grafana 10.4 and 11; later versions convert the dashboard
	if d.ID != nil || d.UID != "penstock" || d.SchemaVersion != schemaVersion || !strings.HasPrefix(d.Time.From, "now") || d.Time.To != "now" {
		t.Errorf("the dashboard has id %v, uid %q, schemaVersion %d and time %v; want no id, uid penstock, schemaVersion %d, and from now-… to now", d.ID, d.UID, d.SchemaVersion, d.Time, schemaVersion)
	}
	var names []string
	for _, v := range d.Templating.List {
		names = append(names, v.Name)
		if v.Type == "query" && !strings.HasPrefix(v.Definition, "label_values(") {
			t.Errorf("the definition of variable %s is %q; want label_values(…)", v.Name, v.Definition)
		}
	}
	if want := []string{"datasource", "job", "instance", "rule"}; !slices.Equal(names[:len(want)], want) {
		t.Errorf("the variables are %v; want first %v", names, want)
	}
	ids, titles := make(map[int]bool), make(map[string]bool)
	ofBackend := ""
	for _, p := range d.panels() {
		isRow := p.Type == "row"
		if p.Title == "" || ids[p.ID] || titles[p.Title] && !isRow {
			t.Errorf("the panel with id %d and title %q has no title, or the id or title of another panel", p.ID, p.Title)
		}
		ids[p.ID], titles[p.Title] = true, true
		if isRow {
			continue
		}
		if p.Datasource.UID != "${datasource}" || p.FieldConfig.Defaults.Unit == "" || len(p.Targets) == 0 {
			t.Errorf("the panel %q has the data source %q, the unit %q and %d queries; want ${datasource}, a unit, and at least one query", p.Title, p.Datasource.UID, p.FieldConfig.Defaults.Unit, len(p.Targets))
		}
		for _, target := range p.Targets {
			isOfBackend := strings.Contains(target.Expr, "${backend_")
			if isOfBackend {
				ofBackend += target.Expr + "\n"
			}
			if target.Datasource.UID != "${datasource}" || !strings.Contains(target.Expr, `job=~"$job"`) && !isOfBackend {
				t.Errorf("the panel %q has the query %s with the data source %q; want ${datasource}, and job=~\"$job\" or a variable of the backend", p.Title, target.Expr, target.Datasource.UID)
			}
			if strings.Count(target.Expr, "[") != strings.Count(target.Expr, "[$__rate_interval]") {
				t.Errorf("the panel %q has a rate over another time than $__rate_interval: %s", p.Title, target.Expr)
			}
		}
	}
	// A counter needs a rate, and a gauge must have none.
	for _, want := range []string{"sum(${backend_used})", "sum(${backend_max})", "rate(${backend_cpu}[$__rate_interval])", "\n${backend_memory}\n"} {
		if !strings.Contains(ofBackend, want) {
			t.Errorf("no panel shows %q; the queries of the backend are\n%s", want, ofBackend)
		}
	}
	// Panels of collapsed rows are not in d.Panels. Grafana places them when a user opens the row.
	for i, p := range d.Panels {
		a := p.GridPos
		for _, q := range d.Panels[:i] {
			b := q.GridPos
			if a.X < b.X+b.W && b.X < a.X+a.W && a.Y < b.Y+b.H && b.Y < a.Y+a.H {
				t.Errorf("the panel %q overlaps the panel %q", p.Title, q.Title)
			}
		}
		if a.X+a.W > 24 {
			t.Errorf("the panel %q is outside of the 24 columns", p.Title)
		}
	}
	t.Logf("counted: %d panels of the dashboard", len(d.panels()))
}
