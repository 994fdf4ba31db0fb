package syntax

import (
	"slices"
	"testing"
)

func TestQueryParametersEndAtAmpersandsAndSemicolons(t *testing.T) {
	t.Parallel()
	for query, want := range map[string][]string{
		"":              nil,
		"b=1":           nil,
		"a=1&a=2":       {"1", "2"},
		"b=0;a=1;a=2&c": {"1", "2"},
		"a[]=1&a[x]=2":  {"1", "2"},
		"[a]=1&]a=2&a]=3&[a=4&[]a[b]=5&%5Ba%5d=6&[[a=7": {"1", "2", "3", "4", "5", "6", "7"},
		"b[a]=1&[b]a=2&[]=3&ab]=4&]=5":                  nil,
		"%61=%31&a=%zz":                                 {"1", "%zz"},
		"a&A=1&+a=2&a+b":                                {"", "1", "2"},
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
		"a=b; \xa0my_id=1; \x85my_id=2; my_id\xa0=3; \xa0 \x85my_id \xa0=4; my_idà=5": {"1", "2", "3", "4"},
		"my_id=; my_id": {"", ""},
		"+my_id=1; + my_id+=2; my+id=3; +my_id[%zz]=4; %2Bmy_id=5; ++=6":       {"1", "2", "3", "4"},
		"my[id=1; my_id[]=2; my[id]=3; my.id[x=4; myid=5; my[id[=6; my%5Bid=7": {"1", "2", "4", "7"},
	} {
		if got := CookieValues([]string{line}, "my_id"); !slices.Equal(got, want) {
			t.Errorf("CookieValues(%q, %q) is %q; want %q", line, "my_id", got, want)
		}
	}
}
