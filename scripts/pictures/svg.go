package main

import (
	"fmt"
	"html"
	"math"
	"strconv"
	"strings"
)

// A drawing is an SVG to which elements are added. Coordinates are pixels from the top left corner.
type drawing struct {
	width, height float64
	title, about  string // for screen readers
	body          strings.Builder
}

// style defines the classes of texts and shapes, and the colors of both color schemes.
const style = `
text { font: 13px system-ui, -apple-system, "Segoe UI", Roboto, Helvetica, Arial, sans-serif; fill: var(--ink) }
.h { font-size: 16px; font-weight: 600 } .s { font-size: 12px } .muted { fill: var(--muted) } .b { font-weight: 600 }
.end { text-anchor: end } .mid { text-anchor: middle }
.page { fill: var(--page) } .box { fill: var(--box); stroke: var(--line) } .own { fill: var(--own); stroke: var(--blue) }
.store { fill: var(--warm); stroke: var(--orange) } .away { fill: var(--red); opacity: .16 }
.blue { fill: var(--blue) } .orange { fill: var(--orange) } .grey { fill: var(--grey) } .green { fill: var(--green) }
.axis { stroke: var(--line) } .bound { stroke: var(--red); stroke-width: 2; fill: none } .edge { stroke: var(--muted); stroke-dasharray: 3 3 }
.curve { stroke: var(--orange); stroke-width: 2; fill: none } .arrow { stroke: var(--muted); stroke-width: 1.5; fill: none } .tip { fill: var(--muted) }
:root { --page: #ffffff; --ink: #1f2328; --muted: #59636e; --line: #d1d9e0; --box: #f6f8fa; --own: #ddf4ff; --warm: #fff1e5;
  --blue: #0969da; --orange: #bc4c00; --red: #cf222e; --green: #1a7f37; --grey: #9aa4ae }
@media (prefers-color-scheme: dark) { :root { --page: #0d1117; --ink: #e6edf3; --muted: #9198a1; --line: #3d444d; --box: #151b23; --own: #12233d; --warm: #2d1d12;
  --blue: #4493f8; --orange: #f0883e; --red: #ff7b72; --green: #3fb950; --grey: #6e7681 } }
`

func (d *drawing) String() string {
	return fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %s %s" width="%s" height="%s" role="img" aria-labelledby="t d">
<title id="t">%s</title>
<desc id="d">%s</desc>
<style>%s</style>
<rect class="page" width="100%%" height="100%%" rx="6"/>
%s</svg>
`, num(d.width), num(d.height), num(d.width), num(d.height), html.EscapeString(d.title), html.EscapeString(d.about), style, d.body.String())
}

// add adds an element. Its format has a %s for each argument, even for a number. Texts are escaped.
func (d *drawing) add(format string, args ...any) {
	for i, arg := range args {
		switch arg := arg.(type) {
		case float64:
			args[i] = num(arg)
		case string:
			args[i] = html.EscapeString(arg)
		}
	}
	fmt.Fprintf(&d.body, format+"\n", args...)
}

func (d *drawing) text(x, y float64, class, text string) {
	d.add(`<text x="%s" y="%s" class="%s">%s</text>`, x, y, class, text)
}

func (d *drawing) rect(x, y, w, h float64, class string) {
	d.add(`<rect x="%s" y="%s" width="%s" height="%s" class="%s"/>`, x, y, w, h, class)
}

func (d *drawing) line(x1, y1, x2, y2 float64, class string) {
	d.add(`<line x1="%s" y1="%s" x2="%s" y2="%s" class="%s"/>`, x1, y1, x2, y2, class)
}

// box draws a rounded rectangle with lines of text in its middle. The first line is bold.
func (d *drawing) box(x, y, w, h float64, class string, lines ...string) {
	d.add(`<rect x="%s" y="%s" width="%s" height="%s" rx="8" class="%s"/>`, x, y, w, h, class)
	const lineHeight = 18.
	firstLine := y + h/2 - float64(len(lines)-1)*lineHeight/2 + 4.5 // 4.5: from a line's middle to its base
	for i, text := range lines {
		weight := "mid b"
		if i > 0 {
			weight = "mid s muted"
		}
		d.text(x+w/2, firstLine+float64(i)*lineHeight, weight, text)
	}
}

// arrow draws a line with a tip at its end.
func (d *drawing) arrow(x1, y1, x2, y2 float64) {
	d.line(x1, y1, x2, y2, "arrow")
	angle := math.Atan2(y2-y1, x2-x1)
	const length, halfAngle = 9, 0.45 // of the tip, in pixels and radians
	corner := func(turn float64) (float64, float64) {
		return x2 - length*math.Cos(angle+turn), y2 - length*math.Sin(angle+turn)
	}
	ax, ay := corner(halfAngle)
	bx, by := corner(-halfAngle)
	d.add(`<path d="M%s %s L%s %s L%s %s Z" class="tip"/>`, x2, y2, ax, ay, bx, by)
}

// path draws a line through points. A point is x and y.
func (d *drawing) path(class string, points [][2]float64) {
	var text strings.Builder
	for i, p := range points {
		command := 'L' // a line to the point
		if i == 0 {
			command = 'M' // no line to the first point
		}
		fmt.Fprintf(&text, "%c%s %s", command, num(p[0]), num(p[1]))
	}
	d.add(`<path d="%s" class="%s"/>`, text.String(), class)
}

// num formats a number with at most one decimal. Rounding makes the picture independent of the last
// bits of a computation, which can differ between machines.
func num(f float64) string { return strconv.FormatFloat(math.Round(f*10)/10, 'f', -1, 64) }
