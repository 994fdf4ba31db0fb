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
		c := Check{Name: name, Server: region, Status: OK, Summary: "region " + region + " is reached, and knows this region"}
		store, err := redisstore.Open(d.Peers[region], d.Keys)
		if err != nil {
			c.Status, c.Summary = Failed, "region "+region+": "+shortText(err)
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

// judgeRegion sets the check of another region. own is what the store of this one shows, and here
// is its clock.
func (d *doctor) judgeRegion(ctx context.Context, c *Check, store *redisstore.Store, own regions.Look, here offset) {
	const noContact = "this region and that one have their shares of limits with across only"
	region := "region " + c.Server
	d.commands.Add(2)
	there, clock, err := look(ctx, store)
	if err != nil {
		c.Status, c.Why = Failed, noContact
		c.Summary, c.Remedy = whyRegionUnreached(c.Server, err)
		return
	}
	rights := redisrights.CheckScript(redisops.Rights(redisrights.Options{}))
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	missing, err := store.Eval(ctx, rights, []string{"regions"}, rediskeys.StoreKey(d.base, "regions"))
	apart, margin := clock.by-here.by, clock.margin+here.margin
	c.Facts = map[string]any{"offset_us": apart.Microseconds(), "error_us": margin.Microseconds()}
	switch {
	case err != nil:
		c.Status, c.Why = Failed, noContact
		c.Summary, c.Remedy = whyRegionUnreached(c.Server, err)
	case missing != "":
		c.Status, c.Summary, c.Why = Failed, "the user in region_peers lacks rights in the store of "+region+": "+missing, noContact
		c.Remedy = "in " + region + ", give the user the rights that penstock acl prints"
	case there.Region == "":
		c.Status, c.Summary, c.Why = Warning, "no instance of "+region+" has used its store with a region yet", noContact
		c.Remedy = "in " + region + ", set region and region_peers too, and the same prefix"
	case there.Region != c.Server:
		c.Status, c.Summary, c.Why = Failed, "the store of "+region+" in region_peers belongs to region "+there.Region, noContact
		c.Remedy = "correct region_peers: each region has one name and a store of its own"
	case !slices.Contains(there.Peers, d.Region):
		c.Status, c.Summary, c.Why = Failed, fmt.Sprintf("%s does not know region %s, only %s", region, d.Region, strings.Join(there.Peers, ", ")), noContact
		c.Remedy = "in " + region + ", write region " + d.Region + " into region_peers"
	case there.Mark != regions.MarkOf(d.Keys.Secret):
		c.Status, c.Summary, c.Why = Failed, region+" has another key_hash_secret", noContact
		c.Remedy = "give all regions the same secret; after a change, the other one counts until its instances have stopped for a minute"
	case own.Region != "" && own.Contacts[c.Server].IsLost(d.Interval):
		c.Status, c.Why = Warning, noContact
		reason := ""
		reason, c.Remedy = d.whyOutOfContact(c.Server, own, there)
		c.Summary = "there was never contact with " + region + ": " + reason
		if age := own.Contacts[c.Server].Age(); age >= 0 {
			c.Summary = fmt.Sprintf("there has been no contact with %s for %v: %s", region, rounded(age), reason)
			c.Facts["contact_us"] = age.Microseconds()
		}
	case apart.Abs()-margin >= clockFault:
		c.Status, c.Summary = Warning, fmt.Sprintf("the clock of %s differs by %v", region, rounded(apart.Abs()))
		c.Why, c.Remedy = "windows that are aligned to the clock end at different times, so regions may admit one window more", "synchronize the servers' clocks, by chrony or another NTP client"
	}
}

func whyRegionUnreached(region string, err error) (summary, remedy string) {
	store, text := "the store of region "+region, shortText(err)
	if why, remedy := wrongCertificate(err); why != "" {
		return store + " is not reached: " + why, remedy + ", in region_peers"
	}
	switch {
	case isLoginRefused(err):
		return store + " refuses the user or the password: " + text, "correct the user or the password of region " + region + " in region_peers"
	case strings.Contains(text, "NOPERM"):
		return "the user in region_peers lacks rights in " + store + ": " + text, "in region " + region + ", give the user the rights that penstock acl prints"
	}
	return store + " gives no answer: " + text, "see whether this Redis runs, whether its address in region_peers is right, and whether this network may reach it"
}

// whyOutOfContact returns the probable reason why there is no contact with another region, although
// its store is reached from here and knows this region. It also returns a remedy.
func (d *doctor) whyOutOfContact(region string, own, there regions.Look) (reason, remedy string) {
	for _, side := range []struct {
		name string
		look regions.Look
	}{{d.Region, own}, {region, there}} {
		if side.look.Idle == 0 {
			continue
		}
		reason = fmt.Sprintf("no instance of region %s has exchanged for %v", side.name, rounded(side.look.Idle))
		if side.look.Idle < 0 {
			reason = fmt.Sprintf("no instance of region %s exchanges", side.name)
		}
		return reason, fmt.Sprintf("start an instance of region %s; if one runs, its log says why it cannot write to its own store", side.name)
	}
	longest := regions.Options{Every: d.Interval}.MaxRedisDelay()
	if delay := max(own.Delay, there.Delay); delay > longest {
		return fmt.Sprintf("a message takes %v, and may take %v at most", rounded(delay), longest), "write a longer region_interval in all regions"
	}
	from, to := d.Region, region
	if own.Contacts[region].HasAnswers(d.Interval) {
		from, to = region, d.Region
	}
	return fmt.Sprintf("the instances of region %s get no full answer from region %s", from, to),
		fmt.Sprintf("look at the log of the instances of region %s, and run penstock doctor there: they may not reach the store of region %s", from, to)
}
