package policy

import (
	"math"
	"testing"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/guard"
)

// withBody are the attributes of a request whose body has this size.
type withBody struct {
	fields
	bytes int64
}

func (w withBody) BodySize() int64 { return w.bytes }

func TestCostWithoutMaxIsAtMostMaxCost(t *testing.T) {
	t.Parallel()
	units := func(text ...string) fields { return fields{KindHeader: {"Units": text}} }
	for _, c := range []struct {
		name    string
		cost    Cost
		request Attributes
		want    int64
	}{
		{"body", Cost{Body: 1000}, withBody{bytes: 2001}, 3},
		{"body, max", Cost{Body: 1000, Max: 2}, withBody{bytes: 2001}, 2},
		{"huge body", Cost{Body: 1}, withBody{bytes: math.MaxInt64}, penstock.MaxCost},
		{"header", Cost{Header: "Units"}, units("7"), 7},
		{"header, max", Cost{Header: "Units", Max: 5}, units("7"), 5},
		{"malformed header", Cost{Header: "Units"}, units("many"), penstock.MaxCost},
		{"malformed header, max", Cost{Header: "Units", Max: 5}, units("many"), 5},
	} {
		spec, err := Simple("a", Global(), guard.FailOpen, penstock.Limit{Name: "a", Count: 10, Period: time.Second})
		if err != nil {
			t.Fatal(err)
		}
		spec.Rules[0].Limits[0].Cost = c.cost
		rules, err := New(spec)
		if err != nil {
			t.Fatal(err)
		}
		var v Evaluation
		rules.Evaluate(c.request, &v)
		if len(v.Charges) != 1 || v.Charges[0].Cost != c.want {
			t.Errorf("%s: the charges are %+v; want one of %d units", c.name, v.Charges, c.want)
		}
	}
}
