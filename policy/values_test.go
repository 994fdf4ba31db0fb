package policy

import (
	"slices"
	"testing"
)

func TestQueryParametersEndAtAmpersandsAndSemicolons(t *testing.T) {
	t.Parallel()
	for query, want := range map[string][]string{
		"":               nil,
		"b=1":            nil,
		"a=1&a=2":        {"1", "2"},
		"b=0;a=1;a=2&c":  {"1", "2"},
		"a[]=1&a[x]=2":   {"1", "2"},
		"%61=%31&a=%zz":  {"1", "%zz"},
		"a&A=1&+a=2&a+b": {"", "1", "2"},
	} {
		if got := QueryValues(query, "a"); !slices.Equal(got, want) {
			t.Errorf("QueryValues(%q, %q) is %q; want %q", query, "a", got, want)
		}
	}
}

func TestCookiesAreFoundUnderEveryNameThatServersRead(t *testing.T) {
	t.Parallel()
	for line, want := range map[string][]string{
		"":                   nil,
		"b=1":                nil,
		"my_id=1; my_id=2":   {"1", "2"},
		`my_id="1"; my_id="`: {"1", `"`},
		"my.id=1; MY%5Fid=2": {"1", "2"},
		"my_id=; my_id":      {"", ""},
	} {
		if got := CookieValues([]string{line}, "my_id"); !slices.Equal(got, want) {
			t.Errorf("CookieValues(%q, %q) is %q; want %q", line, "my_id", got, want)
		}
	}
}
