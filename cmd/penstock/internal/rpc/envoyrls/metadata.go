package envoyrls

import "fmt"

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
	passed := make(map[string]any)
	for i := range c.limits {
		it := &c.limits[i]
		if it.kind.isCharge() && !it.denies() && it.limit.config != nil {
			mergeMetadata(passed, it.limit.config.Metadata)
		}
	}
	if len(passed) > 0 {
		m["metadata"] = passed
	}
	return m
}

// mergeMetadata adds the fields of from that to does not have. If both have a map in a field, the
// maps are merged in the same way.
func mergeMetadata(to, from map[string]any) {
	for name, value := range from {
		inner, isMap := value.(map[string]any)
		if !isMap {
			if _, ok := to[name]; !ok {
				to[name] = value
			}
			continue
		}
		if _, ok := to[name]; !ok {
			to[name] = make(map[string]any) // from is part of the configuration, which must not change
		}
		if merged, ok := to[name].(map[string]any); ok {
			mergeMetadata(merged, inner)
		}
	}
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
