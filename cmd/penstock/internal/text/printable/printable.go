// Package printable replaces characters that could control a terminal, or forge a line, in texts of
// clients, servers and files: escape sequences, other control characters, and characters that
// change the direction of text.
package printable

import (
	"bytes"
	"fmt"
	"io"
	"reflect"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// Line returns a text on one line. Each character that is not printable becomes '�', and so do line
// ends, tabs, and bytes that are not UTF-8.
func Line(text string) string { return strings.Map(visible, text) }

func visible(r rune) rune {
	if unicode.IsPrint(r) {
		return r
	}
	return utf8.RuneError
}

// Text is like Line, but keeps line ends and tabs. It is for texts of several lines.
func Text(text string) string {
	return strings.Map(func(r rune) rune {
		if isKept(r) {
			return r
		}
		return utf8.RuneError
	}, text)
}

// Fprintf is like fmt.Fprintf, and writes each argument that is a text as Line does. The format
// may have line ends and tabs. It is for the output of commands.
func Fprintf(to io.Writer, format string, args ...any) {
	safe := make([]any, len(args))
	for i, arg := range args {
		safe[i] = arg
		kind := reflect.ValueOf(arg).Kind()
		if isNumber := kind >= reflect.Bool && kind <= reflect.Complex128; !isNumber {
			safe[i] = Line(fmt.Sprint(arg))
		}
	}
	_, _ = fmt.Fprintf(to, format, safe...)
}

// JSON escapes the characters of a JSON text that are not printable, except line ends and tabs. The
// text keeps its meaning, because such characters occur only in its strings.
func JSON(text []byte) []byte {
	first := bytes.IndexFunc(text, func(r rune) bool { return !isKept(r) })
	if first < 0 {
		return text
	}
	safe := append(make([]byte, 0, len(text)+64), text[:first]...)
	for _, r := range string(text[first:]) {
		if isKept(r) {
			safe = utf8.AppendRune(safe, r)
			continue
		}
		for _, unit := range utf16.Encode([]rune{r}) {
			safe = fmt.Appendf(safe, `\u%04x`, unit)
		}
	}
	return safe
}

func isKept(r rune) bool { return r == '\n' || r == '\t' || unicode.IsPrint(r) }
