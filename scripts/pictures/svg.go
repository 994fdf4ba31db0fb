package main

import (
	"encoding/json"
	"fmt"
	"html"
	"math"
	"os"
	"strconv"
	"strings"
)

// A drawing is an SVG to which elements are added. Coordinates are pixels from the top left corner.
type drawing struct{ body strings.Builder }

// style defines the classes of texts and shapes, and the colors of both color schemes.
const style = `
text { font: 13px system-ui, -apple-system, "Segoe UI", Roboto, Helvetica, Arial, sans-serif; fill: var(--ink) }
.h { font-size: 16px; font-weight: 600 } .s { font-size: 12px } .muted { fill: var(--muted) } .b { font-weight: 600 }
.end { text-anchor: end } .mid { text-anchor: middle } .page { fill: var(--page) } .away { fill: var(--red); opacity: .16 }
.blue { fill: var(--blue) } .orange { fill: var(--orange) } .grey { fill: var(--grey) }
.axis { stroke: var(--line) } .bound { stroke: var(--red); stroke-width: 2; fill: none } .edge { stroke: var(--muted); stroke-dasharray: 3 3 }
:root { --page: #ffffff; --ink: #1f2328; --muted: #59636e; --line: #d1d9e0; --blue: #0969da; --orange: #bc4c00; --red: #cf222e; --grey: #9aa4ae }
@media (prefers-color-scheme: dark) { :root { --page: #0d1117; --ink: #e6edf3; --muted: #9198a1; --line: #3d444d;
  --blue: #4493f8; --orange: #f0883e; --red: #ff7b72; --grey: #6e7681 } }
`

// svg returns the drawing with a size. The title and the text about it are for screen readers.
func (d *drawing) svg(width, height float64, title, about string) string {
	return fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %[1]s %[2]s" width="%[1]s" height="%[2]s" role="img" aria-labelledby="t d">
<title id="t">%[3]s</title>
<desc id="d">%[4]s</desc>
<style>%[5]s</style>
<rect class="page" width="100%%" height="100%%" rx="6"/>
%[6]s</svg>
`, num(width), num(height), html.EscapeString(title), html.EscapeString(about), style, d.body.String())
}

func (d *drawing) text(x, y float64, class, text string) {
	fmt.Fprintf(&d.body, "<text x=%q y=%q class=%q>%s</text>\n", num(x), num(y), class, html.EscapeString(text))
}

func (d *drawing) rect(x, y, w, h float64, class string) {
	fmt.Fprintf(&d.body, "<rect x=%q y=%q width=%q height=%q class=%q/>\n", num(x), num(y), num(w), num(h), class)
}

func (d *drawing) line(x1, y1, x2, y2 float64, class string) {
	fmt.Fprintf(&d.body, "<line x1=%q y1=%q x2=%q y2=%q class=%q/>\n", num(x1), num(y1), num(x2), num(y2), class)
}

// path draws a line through points. A point is x and y.
func (d *drawing) path(class string, points [][2]float64) {
	var parts []string
	for _, p := range points {
		parts = append(parts, num(p[0])+" "+num(p[1]))
	}
	fmt.Fprintf(&d.body, "<path d=%q class=%q/>\n", "M"+strings.Join(parts, "L"), class)
}

// num formats a number with at most one decimal. Rounding makes the picture independent of the last
// bits of a computation, which can differ between machines.
func num(f float64) string { return strconv.FormatFloat(math.Round(f*10)/10, 'f', -1, 64) }

// readJSON reads the measurements in a file.
func readJSON(file string, into any) error {
	text, err := os.ReadFile(file)
	if err == nil {
		err = json.Unmarshal(text, into)
	}
	return err
}
