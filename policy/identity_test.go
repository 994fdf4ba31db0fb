package policy

import (
	"strings"
	"testing"
)

// Different values have different escaped forms, and no escaped form has a separator of values.
func FuzzEscape(f *testing.F) {
	long := strings.Repeat("x", MaxValue+1)
	for _, value := range []string{"", "a", "a,b", "%2C", "#", "é", "\xff", "a b", "key:a", long, long + ",", escape(long), escape(long)[1:]} {
		f.Add(value, "a")
		f.Add("%2C", value)
	}
	f.Fuzz(func(t *testing.T, a, b string) {
		escapedA, escapedB := escape(a), escape(b)
		if (escapedA == escapedB) != (a == b) {
			t.Fatalf("%q and %q are escaped as %q and %q; want equal texts only for equal values", a, b, escapedA, escapedB)
		}
		// A comma separates the values of a combined key.
		if pair := escapedA + "," + escapedB; strings.Count(pair, ",") != 1 {
			t.Fatalf("%q and %q look like more than two values: %q", a, b, pair)
		}
		for _, c := range []byte(escapedA) {
			if c <= ' ' || c >= 0x7f {
				t.Fatalf("%q is escaped as %q, which has the byte %q; want printable ASCII without spaces", a, escapedA, c)
			}
		}
		if len(escapedA) > 3*MaxValue || a != "" && escapedA == "" {
			t.Fatalf("%q is escaped in %d bytes; want 1 to %d", a, len(escapedA), 3*MaxValue)
		}
	})
}
