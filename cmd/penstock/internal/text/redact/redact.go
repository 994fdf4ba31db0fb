// Package redact masks identities, and removes texts of clients and upstreams from messages.
package redact

import "regexp"

var quoted = regexp.MustCompile(`"(?:[^"\\]|\\.)*"?`)

// Quoted replaces everything in double quotes. Errors of the standard library quote what they could
// not parse, which may be a secret.
func Quoted(text string) string { return quoted.ReplaceAllLiteralString(text, `"…"`) }
