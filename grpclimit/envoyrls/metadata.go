package envoyrls

import (
	"fmt"
	"maps"
)

// metadata returns the dynamic metadata of the response.
func (c *call) metadata() map[string]any {
	r := c.request
	descriptors := make([]any, len(r.Descriptors))
	for i := range r.Descriptors {
		descriptors[i] = r.Descriptors[i].metadata()
	}
	m := map[string]any{"domain": r.Domain, "descriptors": descriptors}
	if r.Hits > 0 {
		m["hitsAddend"] = float64(r.Hits)
	}
	var violations []any
	hasQuota := false
	passed := make(map[string]any)
	for i := range c.items {
		it := &c.items[i]
		if it.kind <= refuse {
			continue
		}
		hasQuota = hasQuota || it.limit.config != nil && it.limit.config.QuotaMode
		switch {
		case it.isOver && it.isQuota && !it.isShadow:
			violations = append(violations, float64(it.descriptorIndex))
		case !it.isOver && it.limit.config != nil:
			maps.Copy(passed, it.limit.config.Metadata)
		}
	}
	m["quotaModeEnabled"] = hasQuota
	if len(violations) > 0 {
		m["quotaModeViolations"] = violations
	}
	if len(passed) > 0 {
		m["metadata"] = passed
	}
	return m
}

func (d *Descriptor) metadata() map[string]any {
	entries := make([]any, len(d.Entries))
	for i, e := range d.Entries {
		entries[i] = e.Key + "=" + e.Value
	}
	m := map[string]any{"entries": entries}
	if o := d.Override; o != nil {
		text := fmt.Sprintf("unit:%v", o.Unit)
		if o.RequestsPerUnit > 0 {
			text = fmt.Sprintf("requests_per_unit:%d %s", o.RequestsPerUnit, text)
		}
		if o.UnitMultiplier > 0 {
			text += fmt.Sprintf(" unit_multiplier:{value:%d}", o.UnitMultiplier)
		}
		m["limit"] = text
	}
	if d.HasHits {
		m["hitsAddend"] = float64(d.Hits)
	}
	return m
}
