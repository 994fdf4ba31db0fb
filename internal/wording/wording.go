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
