package keylimits

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/cmd/penstock/internal/text/rediscli"
	"github.com/penstock/penstock/guard"
	"github.com/penstock/penstock/internal/policy/describe"
	"github.com/penstock/penstock/internal/redisclient"
	"github.com/penstock/penstock/internal/regions"
	"github.com/penstock/penstock/redisstore"
)

// A Reader reads limits. It charges nothing.
type Reader struct {
	// Store has the counters. A failed read must not count as a failure of the store.
	Store penstock.Store

	// DecideWithoutStore decides Peeks as the instance does while its store gives no answer. Default:
	// no instance decides, so a limit that cannot be read is an error.
	DecideWithoutStore func([]penstock.Charge) (penstock.Decision, error)

	// Enforced returns what is enforced of a limit now: this region's share of a limit across regions.
	// Default: the limit itself.
	Enforced func(*penstock.Plan) *penstock.Plan

	// URL is that of Redis, and Options are those of its store. They are for the names of keys, and
	// for the command that deletes a key. Default: commands have no address.
	URL     string
	Options redisstore.Options
}

// Read reads the numbers of limits. It returns the source of the numbers. If the sources of several
// batches differ, it returns the one farthest from the store. It marks limits whose state is
// corrupt.
func (r *Reader) Read(ctx context.Context, limits []Limit) (penstock.Source, error) {
	source := penstock.FromStore
	for i := range limits {
		if l := &limits[i]; r.Enforced != nil {
			l.share, l.Share = ShareOf(l.plan, r.Enforced)
		}
	}
	for _, batch := range packBatches(limits) {
		d, err := r.Store.Decide(ctx, chargesOf(batch))
		if IsCorrupt(err) {
			if err := r.readEach(ctx, batch, err); err != nil {
				return source, err
			}
			continue
		}
		if err != nil {
			return source, fmt.Errorf("read %s: %w", namesWithKeys(batch), err)
		}
		source = max(source, d.Source)
		for i, l := range batch {
			l.fill(d.Status(i), checkStored(d.Source) != nil)
		}
	}
	return source, nil
}

// ShareOf returns what is enforced of a limit, and its rate in words if that is less than the
// limit.
func ShareOf(plan *penstock.Plan, enforced func(*penstock.Plan) *penstock.Plan) (*penstock.Plan, string) {
	share := enforced(plan)
	if share == plan || regions.IsShared(plan) { // the state says which share a region has
		return share, ""
	}
	return share, describe.Rate(share)
}

// readEach reads the limits of a batch that the store cannot read because of a corrupt key.
func (r *Reader) readEach(ctx context.Context, batch []*Limit, cause error) error {
	var corrupt []*Limit
	for _, l := range batch {
		d, err := r.Store.Decide(ctx, chargesOf([]*Limit{l}))
		l.IsCorrupt = IsCorrupt(err)
		if l.IsCorrupt {
			corrupt = append(corrupt, l)
			l.OnFailure = describe.StoreFailure(&l.guard)
			if l.Stored, err = redisstore.KeyOf(l.Charge(), r.Options); err != nil {
				return err
			}
			if r.DecideWithoutStore == nil {
				continue // the error below names the limit
			}
			d, err = r.DecideWithoutStore(chargesOf([]*Limit{l}))
		}
		if err != nil {
			return fmt.Errorf("read %s: %w", namesWithKeys([]*Limit{l}), err)
		}
		l.fill(d.Status(0), l.IsCorrupt || checkStored(d.Source) != nil)
	}
	if corrupt == nil { // the values have been deleted since
		return fmt.Errorf("read %s: %w", namesWithKeys(batch), cause)
	}
	if r.DecideWithoutStore != nil {
		return nil
	}
	return &CorruptError{limits: corrupt, cause: cause, repair: r.Repair(corrupt)}
}

// A CorruptError says that keys in Redis have values that Penstock did not write. Its text contains
// the keys.
type CorruptError struct {
	limits []*Limit
	cause  error
	repair string
}

func (e *CorruptError) Error() string {
	return fmt.Sprintf("read %s: %v; Penstock did not write this value. Until it is deleted, %s; delete it: %s",
		namesWithKeys(e.limits), e.cause, FailureText(e.limits), e.repair)
}

func (e *CorruptError) Unwrap() error { return e.cause }

// FailureText says what happens to the requests that corrupt limits count.
func FailureText(corrupt []*Limit) string {
	return "on_failure decides its requests (" + strings.Join(distinct(corrupt, func(l *Limit) string { return l.OnFailure }), "; ") + ")"
}

// Names returns the name of each limit once. Tiers share a name.
func Names(limits []*Limit) []string { return distinct(limits, (*Limit).Name) }

func distinct(limits []*Limit, text func(*Limit) string) (all []string) {
	for _, l := range limits {
		if t := text(l); !slices.Contains(all, t) {
			all = append(all, t)
		}
	}
	return all
}

// Repair returns the command that deletes the keys of limits. Keys of several slots of a Cluster
// need several commands.
func (r *Reader) Repair(corrupt []*Limit) string {
	start := "redis-cli"
	if option, err := redisclient.ParseURL(r.URL); err == nil {
		hasTLS := option.TLSConfig != nil
		server := rediscli.Server{Address: option.InitAddress[0], HasTLS: hasTLS, Database: option.SelectDB}
		if set := option.Sentinel.MasterSet; set != "" { // the address is a Sentinel's
			sentinel := rediscli.Server{Address: server.Address, HasTLS: option.Sentinel.TLSConfig != nil}
			master := sentinel.Command() + " SENTINEL GET-MASTER-ADDR-BY-NAME " + rediscli.Word(set)
			return "at the server that " + master + " names: " + deletions("redis-cli", corrupt)
		}
		start = server.Command() + " -c" // it follows the redirections of a Cluster
	}
	return deletions(start, corrupt)
}

// deletions returns the command lines that delete the keys of limits, which begin with start.
func deletions(start string, corrupt []*Limit) string {
	var lines, keyOfLine []string // limits of one key are in one slot, so one line can delete them
	for _, l := range corrupt {
		i := slices.Index(keyOfLine, l.key)
		if i < 0 {
			i, keyOfLine, lines = len(lines), append(keyOfLine, l.key), append(lines, start+" DEL")
		}
		if word := " " + rediscli.Word(l.Stored); !strings.Contains(lines[i], word) { // limits share keys
			lines[i] += word
		}
	}
	return strings.Join(lines, " && ")
}

// IsCorrupt reports whether a store made no decision because a key has data that Penstock did not
// write.
func IsCorrupt(err error) bool {
	e := penstock.AsStoreError(err)
	return e != nil && e.Reason == penstock.ReasonCorrupt
}

// Corrupt returns the limits, as they were read, whose state is corrupt.
func Corrupt(limits []Limit) (corrupt []*Limit) {
	for i := range limits {
		if limits[i].IsCorrupt {
			corrupt = append(corrupt, &limits[i])
		}
	}
	return corrupt
}

func chargesOf(batch []*Limit) []penstock.Charge {
	charges := make([]penstock.Charge, len(batch))
	for i, l := range batch {
		charges[i] = l.Charge()
	}
	return charges
}

// fill sets the numbers of a limit. Without the store, what is used is unknown.
func (l *Limit) fill(s penstock.Status, isWithoutStore bool) {
	l.Used, l.Left = max(cmp.Or(l.share, l.plan).Capacity()-s.Remaining, 0), s.Remaining
	l.ResetMS, l.RetryMS, l.IsDenied = Milliseconds(s.ResetAfter), Milliseconds(s.RetryAfter), s.RetryAfter > 0
	l.IsUnknown = isWithoutStore
	l.IsUncounted = isWithoutStore && l.guard.OnFailure == guard.FailOpen && l.guard.Ceiling == (penstock.Limit{})
	if isWithoutStore {
		l.Used = 0
	}
}

// namesWithKeys lists limits for an error, with their keys in Redis if these are known.
func namesWithKeys(batch []*Limit) string {
	var all []string
	for _, l := range batch {
		name := l.Name()
		if l.Stored != "" {
			name += " (key " + l.Stored + ")"
		}
		all = append(all, name)
	}
	return strings.Join(all, ", ")
}
