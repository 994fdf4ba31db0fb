package doctor

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/penstock/penstock/cmd/penstock/internal/console/redisops"
	"github.com/penstock/penstock/internal/rediskeys"
	"github.com/penstock/penstock/internal/redisrights"
	"github.com/penstock/penstock/internal/regions"
	"github.com/penstock/penstock/redisstore"
)

// checkRegions examines the stores of the other regions, and whether all regions know each other.
// own is the store of this region.
func (d *doctor) checkRegions(ctx context.Context, own *redisstore.Store) {
	const name = "regions"
	if len(d.Peers) == 0 {
		d.add(Check{Name: name, Status: OK, Summary: "no other region is named"})
		return
	}
	here, clock, err := look(ctx, own)
	switch {
	case err != nil:
		return // other checks say why
	case here.Region != "" && here.Region != d.Region:
		d.add(Check{Name: name, Status: Failed, Summary: fmt.Sprintf("the store belongs to region %s, and not to %s", here.Region, d.Region),
			Why: "two regions have one store, or one name: their limits are not exchanged", Remedy: "give each region a store of its own, and one name"})
	}
	for _, region := range slices.Sorted(maps.Keys(d.Peers)) {
		c := Check{Name: name, Server: region, Status: OK, Summary: "it is reached, and knows this region"}
		store, err := redisstore.Open(d.Peers[region], d.Keys)
		if err != nil {
			c.Status, c.Summary = Failed, shortText(err)
			d.add(c)
			continue
		}
		d.judgeRegion(ctx, &c, store, here, clock)
		store.Close()
		d.add(c)
	}
}

// look reads what a region's store shows, and how far its clock is ahead of this machine's.
func look(ctx context.Context, store *redisstore.Store) (l regions.Look, clock offset, err error) {
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	sent := time.Now()
	l, err = regions.LookAt(ctx, store)
	trip := time.Since(sent)
	return l, offset{by: l.Clock.Sub(sent.Add(trip / 2)), margin: trip / 2, isKnown: true}, err
}

// longestContact is the age from which on a contact is lost, unless regions exchange seldom.
const longestContact = 15 * time.Second

// judgeRegion sets the check of another region. own is what the store of this one shows, and here
// is its clock.
func (d *doctor) judgeRegion(ctx context.Context, c *Check, store *redisstore.Store, own regions.Look, here offset) {
	const noContact = "this region and that one have their shares of limits with across only"
	d.commands.Add(2)
	there, clock, err := look(ctx, store)
	if err != nil {
		c.Status, c.Summary, c.Why, c.Remedy = Failed, "it gives no answer: "+shortText(err), noContact, "correct region_peers, or let this network reach the store"
		return
	}
	rights := redisrights.CheckScript(redisops.Rights(redisrights.Options{}))
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	missing, err := store.Eval(ctx, rights, []string{"regions"}, rediskeys.StoreKey(d.base, "regions"))
	apart, margin := clock.by-here.by, clock.margin+here.margin
	c.Facts = map[string]any{"offset_us": apart.Microseconds(), "error_us": margin.Microseconds()}
	switch {
	case err != nil || missing != "":
		c.Status, c.Summary, c.Why = Failed, "the user lacks rights there: "+missing, noContact
		c.Remedy = "give the user the rights that penstock acl prints"
	case there.Region == "":
		c.Status, c.Summary, c.Why = Warning, "no instance there has used the store with a region yet", noContact
		c.Remedy = "set region and region_peers there too, and the same prefix"
	case there.Region != c.Server:
		c.Status, c.Summary, c.Why = Failed, "its store belongs to region "+there.Region, noContact
		c.Remedy = "correct region_peers: each region has one name and a store of its own"
	case !slices.Contains(there.Peers, d.Region):
		c.Status, c.Summary, c.Why = Failed, fmt.Sprintf("it does not know region %s, only %s", d.Region, strings.Join(there.Peers, ", ")), noContact
		c.Remedy = "write this region into region_peers there"
	case there.Mark != regions.MarkOf(d.Keys.Secret):
		c.Status, c.Summary, c.Why = Failed, "it has another key_hash_secret", noContact
		c.Remedy = "give all regions the same secret; after a change, the other one counts until its instances have stopped for a minute"
	case own.Region != "" && (own.Contact[c.Server] < 0 || own.Contact[c.Server] > max(longestContact, 5*d.Interval)):
		c.Status, c.Summary, c.Why = Warning, "there is no contact now, though it is reached and knows this region", noContact
		if own.Contact[c.Server] > 0 {
			c.Summary = fmt.Sprintf("there has been no contact for %v, though it is reached and knows this region", rounded(own.Contact[c.Server]))
		}
		c.Remedy = "look at the logs of the instances of both regions: an instance there may be down, hang, or not reach this store"
	case apart.Abs()-margin >= clockFault:
		c.Status, c.Summary = Warning, fmt.Sprintf("its clock differs by %v", rounded(apart.Abs()))
		c.Why, c.Remedy = "windows that are aligned to the clock end at different times, so regions may admit one window more", "synchronize the servers' clocks, by chrony or another NTP client"
	}
}
