package regions

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/background"
	"github.com/penstock/penstock/internal/batches"
	"github.com/penstock/penstock/internal/panicked"
)

// A Server is the Redis of a region, such as a *redisstore.Store. All regions use one prefix and
// one secret.
type Server interface {
	penstock.Store

	// Eval runs a script with keys of the store itself, one for each name.
	Eval(ctx context.Context, script string, names []string, args ...string) (string, error)
}

// The bounds of a region on Redis.
const (
	maxChanged     = 100_000 // counters that are noted for one other region, in Redis and in an instance
	notedTogether  = 400     // counters that one script notes, for all other regions together: about 0.5 ms
	maxCounts      = 400 * 24 * time.Hour
	maxRedisTotals = 5000 // of one answer
)

// An Instance is one of the processes that decide for a region. They share the region's Redis, and
// keep there what they know of the other regions. Each writes what it has granted, and reads the
// rest, five times in Options.Every. One of them is the leader, which asks the other regions. If
// the leader dies, another instance becomes the leader within Options.Every.
type Instance struct {
	*Exchange
	own    Server
	sealer *sealer
	name   string // a random text
	keys   []string
	peers  map[string]Peer

	notesPerScript int // counters that one script notes for each other region

	mu         sync.Mutex
	plans      map[[2]uint64][]*penstock.Plan
	pending    map[id]*pendingChange
	hasDropped bool              // pending was full, so some changes were not noted; not yet written to Redis
	states     map[string]Status // by region
	leadership leadership
	clock      clock  // of the region's Redis
	minFence   uint64 // the largest fence that another region knows from before this region lost its data

	syncing sync.Mutex // held during a sync, so that older replies do not replace newer ones

	work *background.Group
}

// A pendingChange is a change that is not yet written to the region's Redis.
type pendingChange struct {
	change
	counts time.Duration // how long its units count in the limit, at most
}

// A leadership says that this instance is the leader.
type leadership struct {
	fence uint64
	until time.Time
}

// A clock relates the clock of a Redis to that of this process. The Redis had the time micros at
// local, or earlier. So a time that is computed with it is too early, by at most the time that a
// reply took.
type clock struct {
	micros int64
	local  time.Time
}

// at returns what the clock of the Redis showed at a time, in µs, or 0 if it is not known.
func (c clock) at(t time.Time) int64 {
	if c.micros == 0 {
		return 0
	}
	return c.micros - c.local.Sub(t).Microseconds()
}

// A Status is what an instance knows of another region.
type Status struct {
	Region      string
	IsInContact bool
	Contact     time.Duration // time since each of the two regions had merged all totals of the other; below 0: never
	Took        time.Duration // the last answer, until it was merged
	Delay       time.Duration // of one of its messages
	Changed     int64         // counters that have changed since the other region asked
	HasDropped  bool          // some were dropped lately, because there were too many
}

// NewInstance makes an Instance, and starts its exchange. Options.Store and Peers are not used.
// servers are those of the other regions by name. secret is that of the stores. Close ends the
// exchange.
func NewInstance(o Options, own Server, servers map[string]Server, secret []byte) (*Instance, error) {
	o.Store, o.Peers = own, nil
	for name := range servers {
		o.Peers = append(o.Peers, name)
	}
	slices.Sort(o.Peers)
	if o.MaxTotals == 0 {
		o.MaxTotals = maxRedisTotals
	}
	o.Seed = mathrand.Uint64()
	e, err := New(o)
	if err != nil {
		return nil, err
	}
	i := &Instance{
		Exchange: e, own: own, sealer: newSealer(secret), name: rand.Text(), keys: []string{"regions"}, peers: make(map[string]Peer),
		plans: make(map[[2]uint64][]*penstock.Plan), pending: make(map[id]*pendingChange), states: make(map[string]Status), work: background.New(),
		notesPerScript: notedTogether / len(o.Peers),
	}
	e.ledger = i
	for _, name := range o.Peers {
		i.keys = append(i.keys, keysOf(name)...)
		i.peers[name] = &remote{Instance: i, region: name, server: servers[name], decide: batches.Of(servers[name])}
	}
	return i, nil
}

// keysOf returns the names of the two sets of another region.
func keysOf(region string) []string {
	return []string{"regions." + region + ".0", "regions." + region + ".1"}
}

// Start starts the exchange.
func (i *Instance) Start() {
	i.work.Start(func(ctx context.Context) {
		start, known := i.o.Now(), make(map[string]bool)
		background.Every(ctx, i.o.flushInterval(), func() {
			defer panicked.Recover("regions are exchanged")
			if err := i.flush(ctx); ctx.Err() == nil {
				i.o.Exchanged(i.o.Self, err)
			}
			for _, s := range i.Statuses() {
				was, isKnown := known[s.Region]
				if isKnown && was == s.IsInContact || !isKnown && !s.IsInContact && i.o.Now().Sub(start) < 10*i.o.Every {
					continue
				}
				known[s.Region] = s.IsInContact
				i.o.ContactChanged(s.Region, s.IsInContact)
			}
		})
	})
	i.work.Start(func(ctx context.Context) { i.Run(ctx, i.peers) })
}

// Close ends the exchange. It writes what this instance has granted, and lets another one lead.
func (i *Instance) Close() {
	i.work.Cancel()
	i.work.Wait()
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	for i.sync(ctx, nil, 0) == nil && i.unwritten() > 0 {
	}
}

// Use replaces the limits that the exchange knows. It merges no totals of other limits.
func (i *Instance) Use(plans []*penstock.Plan) {
	known := make(map[[2]uint64][]*penstock.Plan)
	for _, p := range plans {
		if IsAcross(p) {
			known[p.ID()] = append(known[p.ID()], p)
		}
	}
	i.forgetOthers(plans)
	i.mu.Lock()
	defer i.mu.Unlock()
	i.plans = known
}

// Statuses returns what is known of the other regions, by name.
func (i *Instance) Statuses() (all []Status) {
	now := i.o.Now()
	for _, name := range i.o.Peers {
		i.mu.Lock()
		s := i.states[name]
		i.mu.Unlock()
		s.Region, s.IsInContact, s.Contact = name, i.inContact(name, now), -1
		i.Exchange.mu.Lock()
		if at := i.lastContact(name); !at.IsZero() {
			s.Contact = now.Sub(at)
		}
		i.Exchange.mu.Unlock()
		all = append(all, s)
	}
	return all
}

// Delay returns how long a message to the farthest region takes, by the last answer of each. It is
// 0 if there was none.
func (i *Instance) Delay() (most time.Duration) {
	for _, s := range i.Statuses() {
		most = max(most, s.Delay)
	}
	return most
}

// messages is how many messages follow one another until an answer is merged: two questions, and
// two answers.
const messages = 4

// messages returns how many messages followed one another for the answer. If no counter has
// changed, the region is not asked for totals.
func (a *mergedAnswer) messages() time.Duration {
	if a.isIdle {
		return messages / 2
	}
	return messages
}

// RedisLag is as Options.Lag, for regions on Redis. There, a grant is written within a flush. The
// counters come with the first answer, and their totals with the second.
func (o Options) RedisLag(delay time.Duration) (usual, most time.Duration) {
	o.setDefaults()
	return o.Lag(o.flushInterval() + (messages-1)*delay)
}

// MaxRedisDelay returns the longest delay of a message with which regions on Redis stay in contact.
// An answer is merged four messages after it was asked for, and with long delays, the next question
// follows immediately. It tells the other region of the merged answer. The question after that
// arrives nine messages after the answer was asked for. Until then, the other region knows of no
// newer answer. It takes this one to be older by a message, because it converts the time from
// another clock. Its instances read it within a flush, and it must not be older than Silence.
func (o Options) MaxRedisDelay() time.Duration {
	o.setDefaults()
	return (o.Silence - o.flushInterval()) / (2 * (messages + 1))
}

func (i *Instance) note(c Counter, units int64, counts time.Duration) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.noteLocked(idOf(c), pendingChange{change{c, units}, min(max(counts, 0), maxCounts)})
}

func (i *Instance) noteLocked(id id, p pendingChange) {
	known := i.pending[id]
	switch {
	case known != nil:
		known.units, known.counts = known.units+p.units, max(known.counts, p.counts)
	case len(i.pending) >= maxChanged:
		i.hasDropped = true
	default:
		i.pending[id] = &p
	}
}

func (i *Instance) unwritten() int {
	i.mu.Lock()
	defer i.mu.Unlock()
	return len(i.pending)
}

func (i *Instance) isLeader() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.o.Now().Before(i.leadership.until)
}

func (i *Instance) storeTime(t time.Time) int64 {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.clock.at(t)
}

func (i *Instance) recordMerged(ctx context.Context, region string, asked time.Time, answer Answer) error {
	return i.sync(ctx, &mergedAnswer{region, asked, answer}, i.o.Every)
}

// A mergedAnswer is an answer that was merged, to be recorded.
type mergedAnswer struct {
	region string
	asked  time.Time
	Answer
}

// flush writes all that is pending, in as many scripts as it needs.
func (i *Instance) flush(ctx context.Context) error {
	for {
		if err := i.sync(ctx, nil, i.o.Every); err != nil || i.unwritten() < i.notesPerScript {
			return err
		}
	}
}

// errDeposed is why an answer was not recorded. The question after it gets one that is.
var errDeposed = errors.New("the exchange has begun anew: another instance leads it now, or this region's Redis has lost its data")

// sync runs syncLua. If this instance is elected, it is the leader for the time leadFor. done is
// nil if there is no answer to record.
func (i *Instance) sync(ctx context.Context, done *mergedAnswer, leadFor time.Duration) error {
	i.syncing.Lock()
	defer i.syncing.Unlock()
	ctx, cancel := context.WithTimeout(ctx, i.o.Silence)
	defer cancel()
	noted, counts := i.takePending()
	i.mu.Lock()
	fence, minFence, hasDropped, clock := i.leadership.fence, i.minFence, "0", i.clock
	if i.hasDropped {
		hasDropped = "1"
	}
	i.hasDropped = false
	i.mu.Unlock()
	sent := i.o.Now()
	args := []string{i.o.Self, i.name, i.sealer.mark, micros(leadFor), strconv.FormatUint(minFence, 10), micros(counts + i.o.Silence), strconv.Itoa(maxChanged)}
	if done != nil {
		isFull := "0"
		if done.IsFull {
			isFull = "1"
		}
		args = append(args, done.region, strconv.FormatUint(fence, 10), strconv.FormatUint(done.Number, 10), isFull,
			strconv.FormatInt(clock.at(done.asked), 10), micros(sent.Sub(done.asked)), micros(sent.Sub(done.asked)/done.messages()))
	} else {
		args = append(args, "", "0", "0", "0", "0", "0", "0")
	}
	args = append(append(args, hasDropped, strconv.Itoa(len(i.o.Peers))), i.o.Peers...)
	for _, p := range noted {
		args = append(args, strconv.FormatInt(p.units, 10), i.sealer.seal(encode(p.counter)))
	}
	reply, err := i.own.Eval(ctx, syncLua, i.keys, args...)
	if err == nil {
		err = i.read(reply, sent, leadFor)
	}
	if err != nil { // the script may have run; to note a counter twice does no harm
		i.mu.Lock()
		defer i.mu.Unlock()
		for _, p := range noted {
			i.noteLocked(idOf(p.counter), p)
		}
		i.hasDropped = i.hasDropped || hasDropped == "1"
		return err
	}
	if i.mu.Lock(); done != nil && (fence == 0 || i.leadership.fence != fence) {
		err = errDeposed
	}
	i.mu.Unlock()
	return err
}

// takePending takes at most notesPerScript of the pending changes. counts is the longest of theirs.
func (i *Instance) takePending() (all []pendingChange, counts time.Duration) {
	i.mu.Lock()
	defer i.mu.Unlock()
	for id, p := range i.pending {
		if len(all) == i.notesPerScript {
			break
		}
		all, counts = append(all, *p), max(counts, p.counts)
		delete(i.pending, id)
	}
	return all, counts
}

// read reads a reply of syncLua. The script ran after sent. So a time that read computes from an
// age may be too early, and is never too late.
func (i *Instance) read(reply string, sent time.Time, leadFor time.Duration) error {
	if other, ok := strings.CutPrefix(reply, "other "); ok {
		return fmt.Errorf("%w: the store belongs to region %q, and this instance is of region %q; give each region its own store", penstock.ErrInvalid, other, i.o.Self)
	}
	if reply == "secret" {
		return fmt.Errorf("%w: other instances of region %s have another key-hash-secret; give each the same one", penstock.ErrInvalid, i.o.Self)
	}
	lines := strings.Split(reply, "\n")
	if len(lines) != 1+len(i.o.Peers) {
		return fmt.Errorf("the script of regions replied %.40q; expected %d lines", reply, 1+len(i.o.Peers))
	}
	fence, now := uint64(0), int64(0)
	if _, err := fmt.Sscan(lines[0], &fence, &now); err != nil {
		return fmt.Errorf("the script of regions replied %.40q; expected a fence and a time", reply)
	}
	i.Exchange.mu.Lock()
	defer i.Exchange.mu.Unlock()
	i.mu.Lock()
	defer i.mu.Unlock()
	i.leadership, i.clock = leadership{}, clock{now, i.o.Now()}
	if fence > 0 {
		i.leadership = leadership{fence, sent.Add(leadFor)}
	}
	for n, name := range i.o.Peers {
		var merged uint64
		var asked, visited, counted, took, delay, changed, dropped int64
		if _, err := fmt.Sscan(lines[n+1], &merged, &asked, &visited, &counted, &took, &delay, &changed, &dropped); err != nil {
			return fmt.Errorf("the script of regions replied %.40q about %s; expected eight numbers", lines[n+1], name)
		}
		p := i.Exchange.peers[name]
		p.number, p.contactAt, p.countedAt = merged, before(sent, asked), before(sent, counted)
		i.site.setContact(name, before(sent, visited))
		i.states[name] = Status{Took: time.Duration(took) * time.Microsecond, Delay: time.Duration(delay) * time.Microsecond, Changed: changed, HasDropped: dropped >= 0 && dropped < i.o.Silence.Microseconds()}
	}
	return nil
}

// before returns the time this many µs before a time, or no time if they are negative.
func before(t time.Time, micros int64) time.Time {
	if micros < 0 {
		return time.Time{}
	}
	return t.Add(-time.Duration(micros) * time.Microsecond)
}

func micros(d time.Duration) string { return strconv.FormatInt(d.Microseconds(), 10) }

// A remote is another region, as its Redis shows it.
type remote struct {
	*Instance
	region string
	server Server
	decide batches.Func
	there  clock // of the other region's Redis
}

// Answer asks the other region's Redis.
func (r *remote) Answer(ctx context.Context, ask Ask) (Answer, error) {
	contact, contactAt := "-1", int64(0)
	if ask.Contact >= 0 {
		contact, contactAt = micros(ask.Contact), r.there.at(r.o.Now().Add(-ask.Contact))
	}
	r.mu.Lock()
	fence := r.leadership.fence
	r.mu.Unlock()
	reply, err := r.server.Eval(ctx, askLua, append([]string{"regions"}, keysOf(ask.From)...),
		r.region, ask.From, r.sealer.mark, strconv.FormatUint(fence, 10), strconv.FormatUint(ask.Merged, 10), contact, strconv.Itoa(r.o.MaxTotals),
		strconv.FormatUint(mathrand.Uint64N(1<<48)+1, 10), micros(r.o.Silence), strconv.FormatInt(max(contactAt, 0), 10))
	if err != nil {
		return Answer{}, err
	}
	answer, counters, err := r.readAnswer(reply)
	if answer.isIdle = len(counters) == 0; err == nil && !answer.isIdle {
		answer.Totals, err = r.totals(ctx, r.decide, counters, ask.From)
	}
	return answer, err
}

// readAnswer reads a reply of askLua. Counters of limits that are not known here are left out.
func (r *remote) readAnswer(reply string) (answer Answer, counters []Counter, err error) {
	head, rest, _ := strings.Cut(reply, "\n")
	word, value, _ := strings.Cut(head, " ")
	switch word {
	case "none":
		return answer, nil, fmt.Errorf("no instance of region %s has used its store yet; set region and region-peers there too", r.region)
	case "stranger":
		return answer, nil, fmt.Errorf("region %s does not know region %s; write it into region-peers there", r.region, r.o.Self)
	case "other":
		return answer, nil, fmt.Errorf("%w: the store of region %s belongs to region %q; correct region-peers", penstock.ErrInvalid, r.region, value)
	case "secret":
		return answer, nil, r.errSecret()
	case "fence":
		fence, _ := strconv.ParseUint(value, 10, 64)
		r.mu.Lock()
		r.minFence = max(r.minFence, fence)
		r.mu.Unlock()
		return answer, nil, errDeposed
	}
	full, now := int64(0), int64(0)
	if _, err = fmt.Sscan(head, &answer.Number, &full, &now); err != nil {
		return answer, nil, fmt.Errorf("region %s replied %.40q; expected three numbers", r.region, reply)
	}
	answer.IsFull, answer.hasMore, r.there = full == 1, full == 0, clock{now, r.o.Now()}
	for rest != "" {
		size, after, _ := strings.Cut(rest, "\n")
		n, err := strconv.Atoi(size)
		if err != nil || n < 0 || n > len(after) {
			return answer, nil, fmt.Errorf("region %s replied %.40q; expected the length of a counter", r.region, rest)
		}
		text, ok := r.sealer.open(after[:n])
		if !ok {
			return answer, nil, r.errSecret()
		}
		if c, ok := r.decode(text); ok {
			counters = append(counters, c)
		}
		rest = after[n:]
	}
	return answer, counters, nil
}

func (r *remote) errSecret() error {
	return fmt.Errorf("%w: region %s has another key-hash-secret; give all regions the same one", penstock.ErrInvalid, r.region)
}

// encode writes a counter as a text: the limit's ID, its numbers, and the key. The numbers tell
// which of the tiers' limits it is.
func encode(c Counter) string {
	id, limit := c.Plan.ID(), c.Plan.Limit()
	b := binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, id[0]), id[1])
	for _, n := range []int64{limit.Count, limit.Period.Microseconds(), limit.Burst} {
		b = binary.AppendUvarint(b, uint64(n))
	}
	return string(append(b, c.Key...))
}

// decode reads a text of encode. If no limit has these numbers, because the regions have different
// policies, it is the first one with this ID.
func (i *Instance) decode(text string) (c Counter, ok bool) {
	const idSize = 16
	if len(text) < idSize {
		return c, false
	}
	b := []byte(text)
	key := [2]uint64{binary.BigEndian.Uint64(b), binary.BigEndian.Uint64(b[8:])}
	b = b[idSize:]
	var numbers [3]int64
	for j := range numbers {
		n, size := binary.Uvarint(b)
		if size <= 0 {
			return c, false
		}
		numbers[j], b = int64(n), b[size:]
	}
	i.mu.Lock()
	plans := i.plans[key]
	i.mu.Unlock()
	if len(plans) == 0 || len(b) > penstock.MaxKey {
		return c, false
	}
	at := slices.IndexFunc(plans, func(p *penstock.Plan) bool {
		limit := p.Limit()
		return numbers == [3]int64{limit.Count, limit.Period.Microseconds(), limit.Burst}
	})
	return Counter{string(b), plans[max(at, 0)]}, true
}
