package match

import "testing"

// pattern parses the pattern of a path.
func pattern(t *testing.T, text string) Pattern {
	t.Helper()
	p, err := ParsePattern(text, func(path string) (string, error) { return path, nil }, false)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestOnlyTheRestIsThePatternOfAllPaths(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{"/**": true, "/*": false, "/a": false, "/a/**": false, "/*/**": false} {
		if got := pattern(t, text).IsAll(); got != want {
			t.Errorf("IsAll of the pattern %q is %v; want %v", text, got, want)
		}
	}
}

func TestPatternCoversOnlyPatternsWithinIt(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		pattern, other string
		want           bool
	}{
		{pattern: "/**", other: "/a/b", want: true},
		{pattern: "/a/**", other: "/a/{x}/**", want: true},
		{pattern: "/a/**", other: "/b/c"},
		{pattern: "/a/**", other: "/**"},
		{pattern: "/a/b", other: "/a"},
		{pattern: "/a", other: "/a/b"},
		{pattern: "/a/*", other: "/a/**"},
		{pattern: "/a/*", other: "/a/b", want: true},
		{pattern: "/a/*", other: "/a/{x}", want: true},
		{pattern: "/a/{x}", other: "/a/b*", want: true},
		{pattern: "/a/b*", other: "/a/bc", want: true},
		{pattern: "/a/b*", other: "/a/b*", want: true},
		{pattern: "/a/b*", other: "/a/*"},
		{pattern: "/a/b", other: "/a/*"},
	} {
		if got := pattern(t, c.pattern).Covers(pattern(t, c.other)); got != c.want {
			t.Errorf("whether the pattern %q covers %q: %v; want %v", c.pattern, c.other, got, c.want)
		}
	}
}

func TestMatchersAreOrderedBySpecificity(t *testing.T) {
	t.Parallel()
	all := pattern(t, "/**")
	var ordered []*Matcher // the most specific first
	for _, host := range []string{"api.example.com", "*.example.com", "*.com", ""} {
		ordered = append(ordered, &Matcher{Host: host, Path: all})
	}
	for i, specific := range ordered {
		for j, other := range ordered {
			if got := specific.Compare(other); (got < 0) != (i < j) || (got > 0) != (i > j) {
				t.Errorf("Compare of the hosts %q and %q is %d; want the more specific host first", specific.Host, other.Host, got)
			}
		}
	}
	short, long := &Matcher{Host: "a.b", Path: all}, &Matcher{Host: "*.sub.example.com", Path: all}
	if got := short.Compare(long); got >= 0 {
		t.Errorf("Compare of the hosts %q and %q is %d; want a whole name before every domain", short.Host, long.Host, got)
	}
}
