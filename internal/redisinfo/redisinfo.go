// Package redisinfo reads replies to INFO, the report of a Redis server about itself.
package redisinfo

import (
	"strconv"
	"strings"
)

type Fields map[string]string

// Parse returns the fields of a reply to INFO, which has lines such as "role:master".
func Parse(text string) Fields {
	fields := make(Fields)
	for line := range strings.Lines(strings.TrimPrefix(text, "txt:")) { // txt: begins a verbatim string of RESP3
		if name, value, found := strings.Cut(strings.TrimSpace(line), ":"); found && !strings.HasPrefix(name, "#") {
			fields[name] = value
		}
	}
	return fields
}

// Integer returns a field as a number. A field that does not exist, or is not a number, is 0.
func (f Fields) Integer(name string) int64 { return Integer(f[name]) }

// MaxInteger is the largest result of Integer. The sum of a thousand such numbers does not
// overflow.
const MaxInteger = 1 << 53

// Integer returns a number of INFO. A number beyond 0 to MaxInteger becomes the nearest bound. A
// text that is not a number is 0.
func Integer(text string) int64 {
	n, _ := strconv.ParseInt(text, 10, 64)
	return min(max(n, 0), MaxInteger)
}

// ListField returns a field of a list such as "calls=1,usec=10", or "".
func ListField(list, name string) string {
	for field := range strings.SplitSeq(list, ",") {
		if n, value, _ := strings.Cut(field, "="); n == name {
			return value
		}
	}
	return ""
}

// IsNumbered reports whether a name is the prefix followed by a number: the fields slave0, slave1
// and so on have lists.
func IsNumbered(name, prefix string) bool {
	digits, found := strings.CutPrefix(name, prefix)
	return found && digits != "" && strings.Trim(digits, "0123456789") == ""
}
