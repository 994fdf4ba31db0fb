package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/penstock/penstock/internal/regions"
)

type regionCollector func() []regions.Status

func newRegionSeries(name, help string) *prometheus.Desc {
	return prometheus.NewDesc("rate_limiter_region_"+name, help, []string{"region"}, nil)
}

var (
	regionInContact = newRegionSeries("in_contact", "1 if this region and another one know what the other has granted, else 0. Without contact, each region has its share of the limits.")
	regionLag       = newRegionSeries("lag_seconds", "Time since both regions knew all that the other has granted.")
	regionExchange  = newRegionSeries("exchange_seconds", "How long it took to ask another region, and to merge its answer.")
	regionPending   = newRegionSeries("pending_counters", "Counters that have changed since another region has asked.")
	regionDropped   = newRegionSeries("has_dropped", "1 if some counters were not noted for another region, because too many have changed, else 0.")
)

// AddRegions registers the series of the other regions. AddRegions is called once.
func (m *Metrics) AddRegions(statuses func() []regions.Status) {
	m.registry.MustRegister(regionCollector(statuses))
}

func (regionCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, desc := range []*prometheus.Desc{regionInContact, regionLag, regionExchange, regionPending, regionDropped} {
		ch <- desc
	}
}

func (c regionCollector) Collect(ch chan<- prometheus.Metric) {
	for _, s := range c() {
		send := func(desc *prometheus.Desc, n float64) {
			ch <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, n, s.Region)
		}
		send(regionInContact, boolean(s.IsInContact))
		if s.Contact >= 0 {
			send(regionLag, s.Contact.Seconds())
		}
		send(regionExchange, s.Took.Seconds())
		send(regionPending, float64(s.Changed))
		send(regionDropped, boolean(s.HasDropped))
	}
}
