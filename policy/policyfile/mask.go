package policyfile

import (
	"slices"
	"strconv"
	"strings"
)

const (
	// minSecretBytes is the least length of a variable's value that messages hide, in bytes.
	minSecretBytes = 8

	// minPieceBytes is the least length of a part of a longer value that messages hide, in bytes.
	minPieceBytes = 12
)

// A mask hides the values of variables in messages, because they may be secrets. Messages may clip,
// quote and split values, and write ASCII letters in lower case. Messages must not escape values in
// another way, such as for URLs.
type mask struct {
	values []maskedValue   // in the order in which they were read
	pieces map[string]bool // parts of the values; none is shown
}

type maskedValue struct{ value, name string }

// hide hides the value of a variable, unless it is too short to be a secret.
func (m *mask) hide(name, value string) {
	if len(value) < minSecretBytes {
		return
	}
	quoted := strconv.Quote(value)
	for _, form := range []string{value, quoted[1 : len(quoted)-1]} {
		v := maskedValue{toLowerASCII(form), name}
		if slices.ContainsFunc(m.values, func(known maskedValue) bool { return known.value == v.value }) {
			continue
		}
		m.values = append(m.values, v)
		if m.pieces == nil {
			m.pieces = make(map[string]bool)
		}
		n := min(len(v.value), minPieceBytes) // bytes of each piece
		for i := range len(v.value) - n + 1 {
			m.pieces[v.value[i:i+n]] = true
		}
	}
}

// apply returns a message with the names of variables instead of their values.
func (m *mask) apply(message string) string {
	if len(m.values) == 0 {
		return message
	}
	lowered := toLowerASCII(message)
	var out strings.Builder
	shown := 0 // the end of the part that is already in out
	for i := 0; i < len(lowered); i++ {
		end := m.hiddenFrom(lowered, i)
		if end == i {
			continue
		}
		begin := i
		for ; i < end; i++ { // another secret may overlap it
			end = max(end, m.hiddenFrom(lowered, i))
		}
		out.WriteString(message[shown:begin] + m.names(lowered[begin:end]))
		shown = end
		i = end - 1
	}
	return out.String() + message[shown:]
}

// hiddenFrom returns the end of the text that must be hidden from start on. If nothing must be
// hidden there, it returns start.
func (m *mask) hiddenFrom(text string, start int) int {
	for n := min(minPieceBytes, len(text)-start); n >= minSecretBytes; n-- {
		if m.pieces[text[start:start+n]] {
			return start + n
		}
	}
	return start
}

// names returns ${NAME} for each variable whose value, or a part of it, is in a hidden text.
func (m *mask) names(text string) string {
	var out strings.Builder
	for len(text) >= minSecretBytes {
		longest, best := 0, maskedValue{}
		for _, v := range m.values {
			n := commonStart(text, v.value)
			if n > longest || n == longest && len(v.value) < len(best.value) {
				longest, best = n, v
			}
		}
		if longest >= minSecretBytes {
			out.WriteString("${" + best.name + "}")
		}
		text = text[max(longest, 1):]
	}
	return out.String()
}

// commonStart returns the length of the longest beginning of a text that a value contains.
func commonStart(text, value string) int {
	low, high := 0, min(len(text), len(value))
	for low < high {
		mid := (low + high + 1) / 2
		if strings.Contains(value, text[:mid]) {
			low = mid
		} else {
			high = mid - 1
		}
	}
	return low
}

// toLowerASCII returns a text of the same length with ASCII letters in lower case.
func toLowerASCII(text string) string {
	lowered := []byte(text)
	for i, c := range lowered {
		if 'A' <= c && c <= 'Z' {
			lowered[i] = c + 'a' - 'A'
		}
	}
	return string(lowered)
}
