package policyfile

import (
	"slices"
	"strconv"
	"strings"
)

const (
	// shortestSecret is how long the value of a variable is, in bytes, if messages do not show it.
	shortestSecret = 8

	// shortestPiece is how many bytes in a row of a longer value messages do not show either.
	shortestPiece = 12
)

// A mask hides the values of variables in messages, since they may be secrets. Messages may clip,
// quote and split values, and write them in small letters of ASCII. They must not escape them in
// another way, such as that of URLs.
type mask struct {
	values []masked        // in the order in which they were read
	pieces map[string]bool // of them, none of which is shown
}

type masked struct{ value, name string }

// hide hides the value of a variable from now on, unless it is too short to be a secret.
func (m *mask) hide(name, value string) {
	if len(value) < shortestSecret {
		return
	}
	quoted := strconv.Quote(value)
	for _, form := range []string{value, quoted[1 : len(quoted)-1]} {
		v := masked{smallLetters(form), name}
		if slices.ContainsFunc(m.values, func(known masked) bool { return known.value == v.value }) {
			continue
		}
		m.values = append(m.values, v)
		if m.pieces == nil {
			m.pieces = make(map[string]bool)
		}
		n := min(len(v.value), shortestPiece)
		for i := range len(v.value) - n + 1 {
			m.pieces[v.value[i:i+n]] = true
		}
	}
}

// apply is a message with the names of variables in place of their values.
func (m *mask) apply(message string) string {
	if len(m.values) == 0 {
		return message
	}
	small := smallLetters(message)
	var out strings.Builder
	shown := 0 // up to where the message is in out
	for i := 0; i < len(small); i++ {
		end := m.hiddenFrom(small, i)
		if end == i {
			continue
		}
		begin := i
		for ; i < end; i++ { // others may overlap it
			end = max(end, m.hiddenFrom(small, i))
		}
		out.WriteString(message[shown:begin] + m.names(small[begin:end]))
		shown = end
		i = end - 1
	}
	return out.String() + message[shown:]
}

// hiddenFrom is up to where a text must be hidden that begins at start.
func (m *mask) hiddenFrom(text string, start int) int {
	for n := min(shortestPiece, len(text)-start); n >= shortestSecret; n-- {
		if m.pieces[text[start:start+n]] {
			return start + n
		}
	}
	return start
}

// names are those of the variables that a hidden text is made of.
func (m *mask) names(text string) string {
	var out strings.Builder
	for len(text) >= shortestSecret {
		most, best := 0, masked{}
		for _, v := range m.values {
			n := commonStart(text, v.value)
			if n > most || n == most && len(v.value) < len(best.value) {
				most, best = n, v
			}
		}
		if most >= shortestSecret {
			out.WriteString("${" + best.name + "}")
		}
		text = text[max(most, 1):]
	}
	return out.String()
}

// commonStart is how much of the beginning of a text stands somewhere in a value.
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

// smallLetters is a text of the same length with small letters for those of ASCII.
func smallLetters(text string) string {
	small := []byte(text)
	for i, c := range small {
		if 'A' <= c && c <= 'Z' {
			small[i] = c + 'a' - 'A'
		}
	}
	return string(small)
}
