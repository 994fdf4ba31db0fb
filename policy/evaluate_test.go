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
	bodySize int64 // in bytes
}

func (w withBody) BodySize() int64 { return w.bodySize }

func TestCostWithoutMaxIsAtMostMaxCost(t *testing.T) {
	t.Parallel()
	units := func(text ...string) fields { return fields{KindHeader: {"Units": text}} }
	for _, c := range []struct {
		name    string
		cost    Cost
		request Attributes
		want    int64 // in units
	}{
		{name: "body", cost: Cost{Body: 1000}, request: withBody{bodySize: 2001}, want: 3},
		{name: "body, max", cost: Cost{Body: 1000, Max: 2}, request: withBody{bodySize: 2001}, want: 2},
		{name: "huge body", cost: Cost{Body: 1}, request: withBody{bodySize: math.MaxInt64}, want: penstock.MaxCost},
		{name: "header", cost: Cost{Header: "Units"}, request: units("7"), want: 7},
		{name: "header, max", cost: Cost{Header: "Units", Max: 5}, request: units("7"), want: 5},
		{name: "malformed header", cost: Cost{Header: "Units"}, request: units("many"), want: penstock.MaxCost},
		{name: "malformed header, max", cost: Cost{Header: "Units", Max: 5}, request: units("many"), want: 5},
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
