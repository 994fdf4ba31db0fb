package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/cmd/penstock/internal/console/redisops"
	"github.com/penstock/penstock/cmd/penstock/internal/text/rediscli"
	"github.com/penstock/penstock/redisstore"
)

// An Instance is the summary that a running instance has written to the store.
type Instance struct {
	Host, Version string
	Digest        string // of its policy
	Health        string // why the store fails for it; "" if it works
	Seed          uint32 // equal for instances with the same secret

	IsChargedTwice bool // it gets requests that another instance with the same policy has charged
}

// checkInstances lists the instances under the prefix, with their policies and versions.
func (d *doctor) checkInstances(ctx context.Context, store *redisstore.Store) {
	if len(d.primaries) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	texts, registered, err := redisops.ReadSummaries(ctx, store)
	if err != nil {
		d.addFailedInstances(err)
		return
	}
	var all []Instance
	for _, text := range texts {
		if i, err := d.ReadInstance(text.Text); err == nil { // another version may use another format
			all = append(all, i)
		}
	}
	d.judgeInstances(int64(registered), all)
}

func (d *doctor) addFailedInstances(err error) {
	c := Check{Name: "instances", Status: Unknown, Summary: "the instances cannot be read: " + shortText(err)}
	var e *penstock.StoreError
	switch {
	case !errors.As(err, &e):
	case e.Reason == penstock.ReasonPermissionDenied:
		c.Needs, c.Remedy = e.Hint, d.grant(d.primaries[0], e.Hint)
	case e.Reason == penstock.ReasonCorrupt:
		c.Status, c.Why = Failed, "instances do not see each other, and in an outage they admit more than their shares"
		c.Remedy = d.cli(d.primaries[0], "DEL "+rediscli.Word(d.base+"{%@}instances"))
	}
	d.add(c)
}

// judgeInstances adds a warning for each difference among the instances, or one check that is ok.
// registered is the number of instances, and all are those whose summaries were read.
func (d *doctor) judgeInstances(registered int64, all []Instance) {
	policies := tally(all, func(i Instance) string { return i.Digest })
	versions := tally(all, func(i Instance) string { return i.Version })
	seeds := tally(all, func(i Instance) string { return fmt.Sprint(i.Seed) })
	c := Check{Name: "instances", Status: OK, Summary: count(registered, "running instance"), Facts: map[string]any{"instances": registered, "policies": policies, "versions": versions}}
	if registered == 0 {
		c.Summary = "no instance is running"
	}
	hasWarning := false
	warn := func(summary, why, remedy string) {
		hasWarning = true
		d.add(Check{Name: "instances", Status: Warning, Summary: summary, Why: why, Remedy: remedy, Facts: c.Facts})
	}
	if len(policies) > 1 {
		warn("the instances have different policies: "+listed(policies), "clients are limited by whichever instance they reach; during a rollout this is normal",
			"give all instances one file; two services need two prefixes. penstock validate FILE prints the digest of a file")
	} else if digest := onlyValue(policies); digest != "" && d.Digest != "" && digest != d.Digest {
		warn(fmt.Sprintf("the instances have the policy %s, and the file has %s", digest, d.Digest), "the instances do not enforce the file",
			"reload it with SIGHUP, and look in the log for: policy reload failed")
	} else if digest != "" {
		c.Summary += ", with the policy " + digest
	}
	if len(seeds) > 1 {
		warn(fmt.Sprintf("the instances have %d different secrets", len(seeds)), "with different secrets for keys, they do not share counters; without such secrets, different tokens "+
			"mean that one cannot settle the reservations of another", "give all instances the same key-hash-secret, or the same tokens if they have none")
	}
	if len(versions) > 1 {
		warn("the instances have different versions: "+listed(versions), "during an upgrade this is normal", "finish the upgrade")
	}
	if i := slices.IndexFunc(all, func(i Instance) bool { return i.IsChargedTwice }); i >= 0 {
		warn(fmt.Sprintf("an instance on %q gets requests that another instance with the same policy has already charged", all[i].Host), "each request is charged twice, so clients get at most half of their limits",
			"send requests through one of the instances only, or give the other one its own rules or prefix; see docs/howto/hybrid.md")
	}
	for _, i := range all {
		if i.Health != "" {
			warn(fmt.Sprintf("an instance on %q reports that the store fails: %q", i.Host, i.Health), usesOnFailure, remedyOf(i.Health))
			break
		}
	}
	if !hasWarning {
		d.add(c)
	}
}

const usesOnFailure = "its limits use on_failure"

// checkAskedInstance reports how the store works for a running instance, which may differ from how
// it works for this command.
func (d *doctor) checkAskedInstance(ctx context.Context) {
	if d.AskInstance == nil {
		return
	}
	i, err := d.AskInstance(ctx)
	switch {
	case err != nil:
		d.add(Check{Name: "instances", Status: Unknown, Summary: "the instance cannot be asked: " + shortText(err)})
	case i.Health != "":
		d.add(Check{Name: "instances", Status: Failed, Summary: fmt.Sprintf("the instance at %s reports that the store fails: %s", i.Host, i.Health), Why: usesOnFailure,
			Remedy: remedyOf(i.Health)})
	default:
		works := "the store works for the instance at " + i.Host
		isListed := func(c Check) bool { return c.Name == "instances" && c.Status == OK }
		if at := slices.IndexFunc(d.checks, isListed); at >= 0 { // the report shows one line for all checks that are ok
			d.checks[at].Summary += "; " + works
			return
		}
		d.add(Check{Name: "instances", Status: OK, Summary: works})
	}
}

// remedyOf returns what to do if the store fails for an instance. health has the reason.
func remedyOf(health string) string {
	switch {
	case strings.Contains(health, penstock.ReasonPermissionDenied.String()):
		return "if the other checks are ok, the instance has another user or password than this command: correct its password_file, which is read for each new connection, or its URL, which needs a restart"
	case strings.Contains(health, penstock.ReasonUnreachable.String()), strings.Contains(health, penstock.ReasonTimeout.String()):
		return "if the other checks are ok, see the network between the instance and the store"
	}
	return "see the other checks, and the instance's log"
}

func tally(all []Instance, property func(Instance) string) map[string]int64 {
	counts := make(map[string]int64)
	for _, i := range all {
		counts[property(i)]++
	}
	return counts
}

// listed returns up to ten values, each with the number of instances that have it.
func listed(counts map[string]int64) string {
	var all []string
	for value, n := range counts {
		all = append(all, fmt.Sprintf("%.64s (%s)", cmp.Or(value, "none"), count(n, "instance")))
	}
	slices.Sort(all)
	return strings.Join(all[:min(len(all), 10)], ", ")
}

// onlyValue returns the value that all instances have, or "". counts has at most one value.
func onlyValue(counts map[string]int64) string {
	for value := range counts {
		return value
	}
	return ""
}
