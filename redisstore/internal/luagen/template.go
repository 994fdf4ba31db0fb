package luagen

import (
	"strconv"
	"strings"
)

// A template is expanded for a sequence of n charges:
//
//   - the lines between @each and @endeach once per charge
//   - @list{…}, @text{…} and @all{…} once per charge in one line, joined by commas, by nothing, or
//     by "and"
//
// In all of them $ is the number of the charge, from 1.

// separators separate the parts of an expanded list in one line.
var separators = map[string]string{"list": ", ", "text": "", "all": " and "}

// cutBlock cuts a text into what is before, inside and after the lines "@name" and "@endname".
func cutBlock(text, name string) (before, inside, after string, found bool) {
	before, rest, found := strings.Cut(text, "@"+name+"\n")
	inside, after, _ = strings.Cut(rest, "@end"+name+"\n")
	return before, inside, after, found
}

// replaceBlocks replaces each block by what write returns for it.
func replaceBlocks(text, name string, write func(block string) string) string {
	var out strings.Builder
	out.Grow(4 * len(text))
	for {
		before, block, after, found := cutBlock(text, name)
		out.WriteString(before)
		if !found {
			return out.String()
		}
		out.WriteString(write(block))
		text = after
	}
}

// expandLists expands each "@list{…}", and the others in separators.
func expandLists(text string, n int) string {
	var out strings.Builder
	out.Grow(2 * len(text))
	for {
		before, rest, found := strings.Cut(text, "@")
		out.WriteString(before)
		if !found {
			return out.String()
		}
		name, rest, _ := strings.Cut(rest, "{")
		template, rest, _ := strings.Cut(rest, "}")
		out.WriteString(repeat(template, separators[name], n))
		text = rest
	}
}

// repeat writes a template n times, with the number of the charge for $.
func repeat(template, separator string, n int) string {
	parts := strings.Split(template, "$")
	var out strings.Builder
	for i := range n {
		if i > 0 {
			out.WriteString(separator)
		}
		out.WriteString(strings.Join(parts, strconv.Itoa(i+1)))
	}
	return out.String()
}
