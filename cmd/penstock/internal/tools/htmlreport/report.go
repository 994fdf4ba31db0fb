// Package htmlreport writes what a command has found as one HTML file. The file loads nothing, and
// is complete without JavaScript: each chart has a table of its numbers.
package htmlreport

import (
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"html/template"
	"io"
	"strings"

	"github.com/penstock/penstock/cmd/penstock/internal/console/dashboard"
	"github.com/penstock/penstock/cmd/penstock/internal/text/printable"
)

// A Page is one report. Its texts may come from logs.
type Page struct {
	Title    string
	Notes    string // lines about what was read; those that begin with "warning: " stand out
	Sections []Section
}

// A Section has a chart, a table, or a text as it is written in a file, or several of them.
type Section struct {
	Title, Note string
	Chart       *Chart
	Columns     []string // of the table
	Rows        [][]string
	Text        string
}

// A Chart has lines or bars over the values of X.
type Chart struct {
	Unit   string    `json:"-"`      // of the vertical axis
	IsTime bool      `json:"isTime"` // X are seconds since 1970. Otherwise they are numbers
	IsLog  bool      `json:"isLog"`  // both axes are logarithmic, and values below 1 are not drawn
	X      []float64 `json:"x"`
	Lines  []Line    `json:"lines"`
}

type Line struct {
	Label  string    `json:"label"`
	Values []float64 `json:"values"`
	IsBar  bool      `json:"isBar"`
}

// Spec returns the chart as the script reads it.
func (c *Chart) Spec() (string, error) {
	text, err := json.Marshal(c)
	return string(text), err
}

func Row(cells ...any) (row []string) {
	for _, c := range cells {
		row = append(row, fmt.Sprint(c))
	}
	return row
}

//go:embed report.html
var layout string

//go:embed report.js
var script string

//go:embed report.css
var style string

var page = template.Must(template.New("").Funcs(template.FuncMap{
	"line":      printable.Line,
	"text":      printable.Text,
	"lines":     func(text string) []string { return strings.Split(strings.TrimSpace(text), "\n") },
	"isWarning": func(line string) bool { return strings.HasPrefix(line, "warning: ") },
	"inc":       func(i int) int { return i + 1 },
}).Parse(layout))

// Write writes the file. Its Content-Security-Policy lets only its own scripts and styles run.
func Write(w io.Writer, p *Page) error {
	library, libraryStyle := dashboard.UPlot()
	styles := libraryStyle + "\n" + style
	return page.Execute(w, struct {
		*Page
		CSP             template.HTMLAttr
		Library, Script template.JS
		Style           template.CSS
	}{p, template.HTMLAttr(fmt.Sprintf(`content="default-src 'none'; script-src %s %s; style-src %s; base-uri 'none'; form-action 'none'"`, hash(library), hash(script), hash(styles))),
		template.JS(library), template.JS(script), template.CSS(styles)})
}

// hash returns the source expression of an inline script or style.
func hash(text string) string {
	sum := sha256.Sum256([]byte(text))
	return "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
}
