package adminapi

import (
	"cmp"
	"context"
	"net/url"
	"slices"

	"github.com/penstock/penstock/cmd/penstock/internal/console/activity"
)

const maxOffenders = 100

func (h *Handler) makeOffenders(ctx context.Context, v Viewer, q url.Values) (any, error) {
	n, err := number(q, "limit", 20, maxOffenders)
	if err != nil {
		return nil, err
	}
	found := Offenders{Kind: q.Get("kind"), Window: q.Get("window"), Scope: q.Get("scope"), Identities: h.shown(v), Offenders: []Offender{}, Instances: 1}
	windowIndex := slices.IndexFunc(activity.Windows(), func(w activity.Window) bool { return w.Name == found.Window })
	kindIndex := slices.IndexFunc(activity.Kinds(), func(k activity.Kind) bool { return k.String() == found.Kind })
	var a *activity.Activity
	if found.Scope == "instance" {
		a = h.Recorder.Activity(activity.Windows()[windowIndex])
	} else {
		fleet := h.Fleet(ctx)
		a, found.Instances, found.Problem = fleet.Activity[windowIndex], len(fleet.Instances), fleet.Problem
	}
	top := *a.Tops[kindIndex]
	// The count of a key outside top.Items is at most Floor plus Missed.
	found.Total, found.OthersAtMost, found.Missed = top.Total, top.Floor+top.Missed, top.Missed
	for i, item := range top.Items {
		least, most := item.Bounds()
		most += top.Missed // each of the missed events may have been of this key
		if i >= n {
			found.OthersAtMost = max(found.OthersAtMost, most)
			continue
		}
		found.Offenders = append(found.Offenders, Offender{
			Rule: item.Rule, Limit: item.Limit, Identity: h.identity(v, item.Name), Ref: h.ref(item.Name),
			Count: item.Weight, AtLeast: least, AtMost: most,
			IsExact: item.Largest == 0, // no event was sampled
		})
	}
	if found.Kind == activity.Denied.String() {
		found.Distinct = distinct(a.Denied)
	}
	return found, nil
}

func distinct(d *activity.Distinct) *Distinct {
	n, deviation := d.Count()
	found := &Distinct{Count: uint64(n), Deviation: uint64(deviation), ByLimit: []DistinctLimit{}}
	d.ByLimit(func(rule, limit string, n, deviation float64) {
		found.ByLimit = append(found.ByLimit, DistinctLimit{Rule: rule, Limit: limit, Count: uint64(n), Deviation: uint64(deviation)})
	})
	slices.SortFunc(found.ByLimit, func(a, b DistinctLimit) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.Rule, b.Rule), cmp.Compare(a.Limit, b.Limit))
	})
	return found
}
