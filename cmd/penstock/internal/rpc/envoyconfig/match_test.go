package envoyconfig_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/penstock/penstock/cmd/penstock/internal/rpc/envoyconfig"
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
- {key: u_v, value: "*", share_threshold: true, rate_limit: {unit: day, requests_per_unit: 15}}
- {key: z*, share_threshold: true, rate_limit: {unit: day, requests_per_unit: 16}}
`

// Each row has the entries of a descriptor, as in "key=value key=value".
func TestDescriptorsMatchAsInEnvoysService(t *testing.T) {
	d := load(t, matching).Domain("d")
	var m envoyconfig.Match
	for _, row := range []struct {
		entries string
		want    uint32   // requests_per_unit of the limit that matches; 0: none
		shared  []string // Match.Shared
	}{
		{entries: "plain=two", want: 1},
		{entries: "plain=", want: 1},
		{entries: "plain=one", want: 2},
		{entries: "plain=one more=x", want: 0},
		{entries: "wild=foo1", want: 3},
		{entries: "wild=foobar1", want: 3}, // the first wildcard in the file
		{entries: "wild=foobar", want: 5},
		{entries: "wild=foo", want: 3},
		{entries: "wild=fo", want: 6},
		{entries: "nest=a k=x", want: 7},
		{entries: "nest=a k=y", want: 0}, // nest=a matches, so nest without a value is not tried
		{entries: "nest=b k=y", want: 8},
		{entries: "nest=a", want: 0},
		{entries: "both=1", want: 9},
		{entries: "both=1 sub=2", want: 10},
		{entries: "both=1 other=2", want: 0},
		{entries: "keys1=x", want: 11},
		{entries: "keys=", want: 11},
		{entries: "mid=bcd", want: 12},
		{entries: "mid=b-c-c-d", want: 12},
		{entries: "mid=b-d", want: 0},
		{entries: "mid=bc", want: 0},
		{entries: "files=f1 path=p2", want: 13, shared: []string{"f*"}},
		{entries: "files=f* path=p2", want: 13}, // f* matches exactly, and its key is the shared one
		{entries: "files=g path=p2", want: 0},
		{entries: "a_b=c", want: 14}, // key and value are one text
		{entries: "u_v=x", want: 15, shared: []string{"*"}},
		{entries: "u=v_x", want: 15, shared: []string{"v_*"}}, // not the key of u=*
		{entries: "zx=1", want: 16, shared: []string{"z*"}},   // the key is a part of the wildcard
		{entries: "none=1", want: 0},
		{entries: "other=1", want: 0},
		{entries: "", want: 0},
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
			t.Errorf("the descriptor %q has a limit of %d requests and Shared %q; want %d and %q", row.entries, got, m.Shared, row.want, row.shared)
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
			t.Errorf("the descriptor %v has the metric path %q; want %q", row.entries, got, row.want)
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
