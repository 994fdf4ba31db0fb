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
		x, y := escape(a), escape(b)
		if (x == y) != (a == b) {
			t.Fatalf("%q and %q are both escaped as %q", a, b, x)
		}
		// The comma separates two values. An empty value is written as nothing after the colon.
		if pair := x + "," + y; strings.Count(pair, ",") != 1 {
			t.Fatalf("%q and %q look like more than two values: %q", a, b, pair)
		}
		for _, c := range []byte(x) {
			if c <= ' ' || c >= 0x7f {
				t.Fatalf("%q is escaped with %q", a, c)
			}
		}
		if len(x) > 3*MaxValue || a != "" && x == "" {
			t.Fatalf("%q is escaped in %d characters", a, len(x))
		}
	})
}
