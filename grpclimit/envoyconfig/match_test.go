package envoyconfig_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/penstock/penstock/grpclimit/envoyconfig"
)

const matching = `
domain: d
descriptors:
- key: plain
  rate_limit: {unit: day, requests_per_unit: 1}
- key: plain
  value: one
  rate_limit: {unit: day, requests_per_unit: 2}
- {key: wild, value: foo*, rate_limit: {unit: day, requests_per_unit: 3}}
- {key: wild, value: foobar*, rate_limit: {unit: day, requests_per_unit: 4}}
- {key: wild, value: foobar, rate_limit: {unit: day, requests_per_unit: 5}}
- {key: wild, rate_limit: {unit: day, requests_per_unit: 6}}
- key: nest
  value: a
  descriptors:
  - {key: k, value: x, rate_limit: {unit: day, requests_per_unit: 7}}
- key: nest
  descriptors:
  - {key: k, rate_limit: {unit: day, requests_per_unit: 8}}
- key: both
  rate_limit: {unit: day, requests_per_unit: 9}
  descriptors:
  - {key: sub, rate_limit: {unit: day, requests_per_unit: 10}}
- {key: keys*, rate_limit: {unit: day, requests_per_unit: 11}}
- {key: mid, value: b*c*d, rate_limit: {unit: day, requests_per_unit: 12}}
- key: files
  value: f*
  share_threshold: true
  descriptors:
  - {key: path, value: p*, rate_limit: {unit: day, requests_per_unit: 13}}
- {key: a, value: b_c, rate_limit: {unit: day, requests_per_unit: 14}}
- {key: none}
`

// Each row has entries key=value, separated by blanks. want is the count of the limit that matches,
// or 0 for none.
func TestDescriptorsMatchAsInEnvoysService(t *testing.T) {
	d := load(t, matching).Domain("d")
	var m envoyconfig.Match
	for _, row := range []struct {
		entries string
		want    uint32   // requests_per_unit of the limit
		shared  []string // Match.Shared
	}{
		{"plain=two", 1, nil},
		{"plain=", 1, nil},
		{"plain=one", 2, nil},
		{"plain=one more=x", 0, nil},
		{"wild=foo1", 3, nil},
		{"wild=foobar1", 3, nil}, // the first wildcard in the file
		{"wild=foobar", 5, nil},
		{"wild=foo", 3, nil},
		{"wild=fo", 6, nil},
		{"nest=a k=x", 7, nil},
		{"nest=a k=y", 0, nil}, // nest=a has been chosen; the other nest is not tried
		{"nest=b k=y", 8, nil},
		{"nest=a", 0, nil},
		{"both=1", 9, nil},
		{"both=1 sub=2", 10, nil},
		{"both=1 other=2", 0, nil},
		{"keys1=x", 11, nil},
		{"keys=", 11, nil},
		{"mid=bcd", 12, nil},
		{"mid=b-c-c-d", 12, nil},
		{"mid=b-d", 0, nil},
		{"mid=bc", 0, nil},
		{"files=f1 path=p2", 13, []string{"f*"}},
		{"files=f* path=p2", 13, nil}, // the value itself, which is the same counter
		{"files=g path=p2", 0, nil},
		{"a_b=c", 14, nil}, // key and value are one text
		{"none=1", 0, nil},
		{"other=1", 0, nil},
		{"", 0, nil},
	} {
		var entries []envoyconfig.Entry
		for _, field := range strings.Fields(row.entries) {
			key, value, _ := strings.Cut(field, "=")
			entries = append(entries, envoyconfig.Entry{Key: key, Value: value})
		}
		d.Match(entries, &m)
		got := uint32(0)
		if m.Limit != nil {
			got = m.Limit.RequestsPerUnit
		}
		if got != row.want || !slices.Equal(m.Shared, row.shared) {
			t.Errorf("[%s] has limit %d and shared %q; want %d, %q", row.entries, got, m.Shared, row.want, row.shared)
		}
	}
}

func TestMetricPathsHaveTheConfiguredValues(t *testing.T) {
	d := load(t, `
domain: d
descriptors:
- key: a
  value_to_metric: true
  descriptors:
  - {key: b, value: v*, rate_limit: {unit: day, requests_per_unit: 1}}
  - {key: c, value: v*, detailed_metric: true, rate_limit: {unit: day, requests_per_unit: 1}}
  - {key: s, value: v*, share_threshold: true, detailed_metric: true, rate_limit: {unit: day, requests_per_unit: 1}}
- {key: p, value: v*, rate_limit: {unit: day, requests_per_unit: 1}}
`).Domain("d")
	var m envoyconfig.Match
	for _, row := range []struct {
		entries []envoyconfig.Entry
		want    string
	}{
		{[]envoyconfig.Entry{{"a", "1"}, {"b", "v2"}}, "d.a_1.b_v*"},
		{[]envoyconfig.Entry{{"a", "1"}, {"c", "v2"}}, "d.a_1.c_v2"},
		{[]envoyconfig.Entry{{"a", "1"}, {"s", "v2"}}, "d.a_1.s_v*"},
		{[]envoyconfig.Entry{{"p", "v2"}}, "d.p_v*"},
		{[]envoyconfig.Entry{{"x", "v2"}}, ""},
	} {
		d.Match(row.entries, &m)
		if got := string(m.AppendMetricPath(nil, "d", row.entries)); got != row.want {
			t.Errorf("%v has the path %s; want %s", row.entries, got, row.want)
		}
	}
}

func TestMatchingAllocatesNothing(t *testing.T) {
	d := load(t, matching).Domain("d")
	entries := []envoyconfig.Entry{{"files", "f1"}, {"path", "p2"}}
	var m envoyconfig.Match
	if n := testing.AllocsPerRun(100, func() { d.Match(entries, &m) }); n > 0 {
		t.Errorf("a match allocates %v times; want none", n)
	}
}
