// Package wording formats lists, durations, sizes and quoted texts for messages and descriptions.
package wording

import (
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/penstock/penstock/algorithm"
)

// List joins names with commas, and the last one with a word such as "and".
func List(names []string, and string) string {
	if len(names) < 2 {
		return strings.Join(names, "")
	}
	last := len(names) - 1
	return strings.Join(names[:last], ", ") + " " + and + " " + names[last]
}

// maxListed is the largest number of names that a message lists.
const maxListed = 20

// ShortList is like List, but of more than 20 names it lists only 20, and the number of the others.
func ShortList(names []string, and string) string {
	if len(names) > maxListed {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:maxListed], ", "), len(names)-maxListed)
	}
	return List(names, and)
}

// Period formats a duration without zeros at its end: 24h, not 24h0m0s.
func Period(d time.Duration) string { return algorithm.PeriodText(d) }

// Size formats a number of bytes in the largest unit that needs no fraction: 64KB, 100 bytes.
func Size(n int64) string {
	for i, unit := range []string{"GB", "MB", "KB"} {
		if by := int64(1) << (30 - 10*i); n%by == 0 {
			return strconv.FormatInt(n/by, 10) + unit
		}
	}
	return strconv.FormatInt(n, 10) + " bytes"
}

// Plain returns a text from a user, in quotes if it would be misread without them.
func Plain(text string) string {
	needsQuotes := func(c rune) bool { return c == ' ' || c == ',' || c == ';' || c == '"' || !unicode.IsPrint(c) }
	if utf8.ValidString(text) && !strings.ContainsFunc(text, needsQuotes) {
		return text
	}
	return strconv.Quote(text)
}

// Clip shortens a text to at most 60 bytes and "...", for a message.
func Clip(s string) string { return ClipAt(s, 60) }

// ClipAt shortens a text to at most maxBytes and "...". It cuts no character in two.
func ClipAt(s string, maxBytes int) string {
	if len(s) <= maxBytes {
		return s
	}
	end := maxBytes
	for end > 0 && !utf8.RuneStart(s[end]) {
		end--
	}
	return s[:end] + "..."
}

// Suggest returns a hint for an unknown name. The hint is the known name that was probably meant
// ("did you mean rate?"), or else the known names ("there are a and b").
func Suggest(name string, known []string) string {
	maxEdits := min(max(1, len(name)/3), 3) // of a name that is similar enough to suggest
	best, fewest := "", maxEdits+1
	var longer []string // known names that begin with name
	for _, k := range known {
		if d := Distance(name, k); d < fewest && d < len(k) {
			best, fewest = k, d
		}
		if len(name) >= 3 && strings.HasPrefix(k, name) {
			longer = append(longer, k)
		}
	}
	switch {
	case best != "":
		return fmt.Sprintf("did you mean %s?", best)
	case len(longer) == 1:
		return fmt.Sprintf("did you mean %s?", longer[0])
	case len(known) == 0:
		return "there are none"
	case len(known) == 1:
		return "there is " + known[0]
	case len(known) > maxListed:
		return fmt.Sprintf("there are %d, such as %s", len(known), strings.Join(known[:3], ", "))
	}
	return "there are " + List(known, "and")
}

// Distance returns the edit distance of a and b without regard to case. A swap of two neighbors is
// one edit. To save time, the result is 4 if the lengths differ by more than 3, or if a is longer
// than 64 bytes. Suggest accepts at most 3.
func Distance(a, b string) int {
	if len(a) > len(b)+3 || len(b) > len(a)+3 || len(a) > 64 {
		return 4
	}
	a, b = strings.ToLower(a), strings.ToLower(b)
	rows := make([][]int, len(a)+1) // rows[i][j] is the distance of a[:i] and b[:j]
	for i := range rows {
		rows[i] = make([]int, len(b)+1)
		rows[i][0] = i
		for j := range len(b) {
			if i == 0 {
				rows[i][j+1] = j + 1
				continue
			}
			change := rows[i-1][j]
			if a[i-1] != b[j] {
				change++
			}
			rows[i][j+1] = min(change, rows[i][j]+1, rows[i-1][j+1]+1)
			if i > 1 && j > 0 && a[i-1] == b[j-1] && a[i-2] == b[j] {
				rows[i][j+1] = min(rows[i][j+1], rows[i-2][j-1]+1)
			}
		}
	}
	return rows[len(a)][len(b)]
}
