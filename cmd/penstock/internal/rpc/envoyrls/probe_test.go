package envoyrls

import (
	"testing"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/policy"
)

// The probe of a limit of the policy has one unit more than the limit.
func TestProbesHaveOneUnitMore(t *testing.T) {
	for _, storeLimit := range []penstock.Limit{
		penstock.PerMinute(10),
		penstock.PerMinute(10).WithBurst(19),
		penstock.PerMinute(10).With(penstock.LeakyBucket),
		penstock.PerMinute(10).With(penstock.LeakyBucket).WithBurst(19),
		penstock.PerMinute(10).With(penstock.FixedWindow),
		penstock.PerMinute(10).With(penstock.SlidingLog),
	} {
		plan := storeLimit.MustCompile()
		l, err := (&ruleset{plans: make(map[*penstock.Plan]*limit)}).limitOf(&policy.Limit{Variants: []*penstock.Plan{plan}}, plan)
		if err != nil {
			t.Fatal(err)
		}
		if got, want := l.probe.Capacity(), plan.Capacity()+1; got != want {
			t.Errorf("the probe of %v has %d units; want %d", plan, got, want)
		}
	}
}
