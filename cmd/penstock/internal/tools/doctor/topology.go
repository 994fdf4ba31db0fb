package doctor

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/penstock/penstock/cmd/penstock/internal/text/rediscli"
	"github.com/penstock/penstock/internal/hashslot"
	"github.com/penstock/penstock/internal/redisinfo"
)

func (d *doctor) checkTopology(ctx context.Context) {
	switch d.kind {
	case "cluster":
		d.checkCluster(ctx)
	case "sentinel":
		d.checkSentinels(ctx)
	default:
		d.add(Check{Name: "topology", Status: OK, Summary: "one server"})
	}
}

func (d *doctor) checkCluster(ctx context.Context) {
	if len(d.primaries) == 0 {
		return // checkReach reports it
	}
	if why := d.primaries[0].slotsError; why != "" {
		s := d.primaries[0]
		c := Check{Name: "topology", Server: s.address, Status: Failed, Summary: "the server does not list the slots of the nodes: " + why, Why: "no client can use the Cluster"}
		if strings.Contains(why, "NOPERM") {
			c.Needs, c.Remedy = "+cluster|slots +cluster|shards", d.grant(s, "+cluster|slots +cluster|shards")
		}
		d.add(c)
		return
	}
	covered, primaries := int64(0), 0
	for _, s := range d.servers {
		for _, r := range s.ranges {
			covered += r.last - r.first + 1
		}
		if s.ranges != nil {
			primaries++
		}
	}
	c := Check{Name: "topology", Status: OK, Summary: fmt.Sprintf("a Cluster of %d primaries; all %d slots have one", primaries, hashslot.Slots),
		Facts: map[string]any{"slots": covered, "primaries": primaries}}
	if covered < hashslot.Slots {
		c.Status, c.Summary = Failed, fmt.Sprintf("%d of %d slots have no primary", hashslot.Slots-covered, hashslot.Slots)
		c.Why, c.Remedy = "keys in these slots use on_failure; by default the whole Cluster stops", d.cli(d.primaries[0], "--cluster fix "+rediscli.Word(d.primaries[0].address))
	}
	d.add(c)
	for _, s := range d.primaries {
		text, err := d.do(ctx, s, "CLUSTER", "INFO").ToString()
		if err != nil {
			d.addUnreadable("topology", s, "this node's view of the Cluster", "+cluster|info", err)
			continue
		}
		state := redisinfo.Parse(text)
		c := Check{Name: "topology", Server: s.address, Status: OK, Summary: "this node reports that the Cluster is ok", Facts: map[string]any{"cluster_state": state["cluster_state"],
			"slots_fail": state["cluster_slots_fail"], "slots_pfail": state["cluster_slots_pfail"]}}
		if state["cluster_state"] != "ok" {
			c.Status, c.Summary = Failed, "this node rejects all keys: cluster_state is "+state["cluster_state"]
			c.Why, c.Remedy = "it cannot reach most primaries, or slots have none; limits use on_failure", d.cli(s, "CLUSTER NODES")+" shows which nodes fail"
		} else if state["cluster_slots_fail"] != "0" || state["cluster_slots_pfail"] != "0" {
			c.Status, c.Summary = Warning, fmt.Sprintf("this node cannot reach the primaries of %d slots", state.Integer("cluster_slots_fail")+state.Integer("cluster_slots_pfail"))
			c.Why, c.Remedy = "keys in these slots use on_failure", d.cli(s, "CLUSTER NODES")+" shows which nodes fail"
		}
		d.add(c)
	}
}

func (d *doctor) checkSentinels(ctx context.Context) {
	named := make(map[string][]string) // addresses of the Sentinels, by the primary that they name
	reached := 0
	for _, s := range d.sentinels {
		if s.client == nil {
			continue
		}
		reached++
		if s.primaryAddress == "" {
			d.add(Check{Name: "topology", Server: s.address, Status: Failed, Summary: "the Sentinel names no primary: " + shortText(s.err),
				Why: "clients that use this Sentinel find no server", Remedy: "correct the name in the URL; " + s.cli(d.option.Sentinel.TLSConfig != nil, 0) + " SENTINEL MASTERS lists the names"})
			continue
		}
		named[s.primaryAddress] = append(named[s.primaryAddress], s.address)
		if err := d.do(ctx, s, "SENTINEL", "CKQUORUM", d.option.Sentinel.MasterSet).Error(); err != nil {
			d.add(Check{Name: "topology", Server: s.address, Status: Failed, Summary: "the Sentinels cannot fail over: " + shortText(err),
				Why: "if the primary fails, no replica takes over", Remedy: "start the missing Sentinels, or " + s.cli(d.option.Sentinel.TLSConfig != nil, 0) + " SENTINEL SET " + rediscli.Word(d.option.Sentinel.MasterSet) + " quorum N"})
		}
	}
	switch {
	case len(named) > 1:
		var all []string
		for primary, sentinels := range named {
			all = append(all, fmt.Sprintf("%s (%s)", primary, strings.Join(sentinels, ", ")))
		}
		slices.Sort(all)
		d.add(Check{Name: "topology", Status: Failed, Summary: "the Sentinels name different primaries: " + strings.Join(all, "; "),
			Why: "instances may count on different servers, so clients get their limits more than once", Remedy: "if this lasts longer than a failover, restart the Sentinels that name the wrong primary"})
	case len(named) == 1:
		c := Check{Name: "topology", Status: OK, Summary: fmt.Sprintf("%s agree on the primary %s", count(int64(reached), "Sentinel"), d.option.Sentinel.MasterSet), Facts: map[string]any{"sentinels": reached}}
		if reached == 1 {
			c.Summary = "the Sentinel names a primary for " + d.option.Sentinel.MasterSet
		}
		if len(d.option.InitAddress) < 3 {
			c.Status, c.Why = Warning, "a client that starts while the named Sentinels are down finds no server"
			c.Summary += fmt.Sprintf("; the URL names %d", len(d.option.InitAddress))
			c.Remedy = "name three Sentinels in the URL"
		}
		d.add(c)
	}
}
