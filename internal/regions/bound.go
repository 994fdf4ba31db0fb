package regions

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/wording"
)

// A Setup says which regions exchange, for the bound of their limits.
type Setup struct {
	Count int           // of the regions; 0: not known
	Every time.Duration // see Options
	Delay time.Duration // of a message between two regions
}

// Bound returns how many units all regions together may admit beyond a limit, under one key, and
// says so in words. MaxInt64 means that there is no bound. The text is "" for one region with a
// limit of its own.
func (s Setup) Bound(plan *penstock.Plan) (over int64, text string) {
	switch isAcross := IsAcross(plan); {
	case isAcross && s.Count == 0:
		return math.MaxInt64, "not known here, because nothing says how many regions there are; " +
			"set PENSTOCK_REGION and PENSTOCK_REGION_PEERS as for the instances, or write region and region_peers into the section server of the file"
	case isAcross && s.Count == 1:
		return 0, "no more: there is one region; with region_peers, all regions together have the limit"
	case IsShared(plan):
		return 0, fmt.Sprintf("no more in %d regions together: each has a share, and lends what it does not need", s.Count)
	case isAcross:
		usual, most := Options{Every: s.Every}.RedisLag(s.Delay)
		demands := slices.Repeat([]int64{math.MaxInt64 / 4}, s.Count)
		usually, over := Beyond(plan, usual, demands), Beyond(plan, most, demands)
		return over, fmt.Sprintf("%d units more than the limit in %d regions together, or %d when links fail: what the others grant within %s, or %s, if a message takes %s",
			usually, s.Count, over, wording.Period(usual), wording.Period(most), wording.Period(s.Delay))
	case s.Count < 2:
		return 0, ""
	}
	return math.MaxInt64, fmt.Sprintf("each of %d regions has a limit of its own, so together they admit %d times as much", s.Count, s.Count)
}

// Within returns how many units one region admits in an interval.
func Within(plan *penstock.Plan, interval time.Duration) int64 {
	limit := plan.Limit()
	periods := int64((interval + limit.Period - 1) / limit.Period)
	switch {
	case limit.Algorithm.RefillsSteadily():
		return bounded(float64(plan.Capacity()) + float64(limit.Count)*float64(interval)/float64(limit.Period) + 1)
	case limit.Algorithm.WindowsDiffer(): // an interval touches one window more
		periods++
	}
	return bounded(float64(periods) * float64(limit.Count))
}

func bounded(units float64) int64 { return int64(min(units, math.MaxInt64/4)) }

// Beyond returns how many units regions may admit beyond a limit, under one key, if one does not
// know what another has granted within a lag. Of windows, it is for one window. demands has, for
// each region that uses the key, the most units that arrive there within the lag.
// docs/decisions/0033 has the proof.
func Beyond(plan *penstock.Plan, lag time.Duration, demands []int64) (units int64) {
	if len(demands) < 2 || IsShared(plan) {
		return 0
	}
	isSteady, capacity := plan.Algorithm().RefillsSteadily(), plan.Capacity()
	least := int64(math.MaxInt64) // the region that knows least of the others is any one
	for _, demand := range demands {
		most := min(Within(plan, lag), demand)
		if isSteady { // and its own share
			most = min(Within(plan, lag), demand+(capacity+1)/2)
		} else if plan.Algorithm().WindowsDiffer() {
			most = min(capacity, demand)
		}
		units, least = units+most, min(least, most)
	}
	if isSteady && len(demands) > 2 { // a region that is not yet known to the others
		units += (Within(plan, lag) - capacity + 2) / 3
	}
	return bounded(float64(units - least))
}
