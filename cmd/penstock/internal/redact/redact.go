// Package redact removes from messages what clients and upstreams sent.
package redact

import "regexp"

var quoted = regexp.MustCompile(`"(?:[^"\\]|\\.)*"?`)

// Quoted replaces what stands in double quotes: the standard library quotes in its errors what it
// could not read, which may be anybody's secret.
func Quoted(text string) string { return quoted.ReplaceAllLiteralString(text, `"…"`) }
