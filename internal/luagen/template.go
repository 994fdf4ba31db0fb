package luagen

import (
	"strconv"
	"strings"
)

// A template is expanded for a sequence of n charges:
//
//   - The lines between @each and @endeach are repeated for each charge.
//   - The lines between @one and @endone are dropped unless n is 1, and those between @several and
//     @endseveral if it is.
//   - The lines between @buckets and @endbuckets are dropped unless all limits are token buckets.
//   - The text in @list{…}, @text{…}, @all{…} or @any{…} is repeated in one line for each charge.
//     The copies are joined by commas, by nothing, by "and", or by "or".
//
// In each copy, $ is replaced by the number of the charge, from 1.

// separators separate the parts of an expanded list in one line.
var separators = map[string]string{"list": ", ", "text": "", "all": " and ", "any": " or "}

// cutBlock returns what is before the line "@name" in a text, what is between that line and
// "@endname", and what is after "@endname".
func cutBlock(text, name string) (before, inside, after string, found bool) {
	before, rest, found := strings.Cut(text, "@"+name+"\n")
	inside, after, _ = strings.Cut(rest, "@end"+name+"\n")
	return before, inside, after, found
}

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

func keepBlocks(text, name string, isKept bool) string {
	return replaceBlocks(text, name, func(block string) string {
		if isKept {
			return block
		}
		return ""
	})
}

// expandLists expands "@list{…}" and the other forms in separators for n charges.
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

// repeat returns n copies of a template. In each, $ is replaced by the number of the copy, from 1.
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
