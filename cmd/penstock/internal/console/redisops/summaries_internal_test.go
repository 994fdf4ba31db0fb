package redisops

import (
	"fmt"
	"testing"
)

func TestRepliesWithSummariesAreParsed(t *testing.T) {
	for _, c := range []struct{ reply, want string }{
		{"0", "0: []"},
		{"2\n1 4\natext1 0\nb", `2: ["a text" "b "]`},
		{"3\n0 1\nx", `3: [" x"]`},
		{"", "error"},
		{"x", "error"},
		{"1\n1\na", "error"},
		{"1\n1 4", "error"},
		{"1\n1 4\ntex", "error"},
		{"1\n-1 4\ntext", "error"},
		{"1\n4 -1\ntext", "error"},
	} {
		all, n, err := parseSummaries(c.reply)
		texts := []string{}
		for _, s := range all {
			texts = append(texts, s.Instance+" "+s.Text)
		}
		got := fmt.Sprintf("%d: %q", n, texts)
		if err != nil {
			got = "error"
		}
		if got != c.want {
			t.Errorf("the reply %q is parsed as %s, %v; want %s", c.reply, got, err, c.want)
		}
	}
}
