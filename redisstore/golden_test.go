package redisstore

import (
	"cmp"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/algorithm"
	"github.com/penstock/penstock/internal/rediskeys"
	"github.com/penstock/penstock/internal/testing/redistest"
)

// The file has keys that a release has written, and the decisions that the release then made. Every
// version with the same schema must read the keys and make the same decisions. The flag -golden
// adds cases for new algorithms. No case of the file ever changes, as docs/compatibility.md
// promises.
const goldenFile = "testdata/golden.json"

var addGolden = flag.Bool("golden", false, "add cases that testdata/golden.json does not have")

type goldenCase struct {
	Name   string
	Before []goldenCall // the calls that write the keys
	Keys   []goldenKey  // the keys after the calls of Before
	After  []goldenCall // calls that read the keys
}

// A goldenCall is a call with its answer.
type goldenCall struct {
	At      int64 // the time of the call, in µs since 1970
	Charges []goldenCharge
	Allowed bool
	Answers []penstock.Status
}

type goldenCharge struct {
	Key, Name, Group, Algorithm string
	Count, Burst, Cost          int64
	Period, Patience            time.Duration
	Mode                        algorithm.Mode
	Holder                      string
	IsRefundable                bool  `json:",omitempty"`
	Receipt                     int64 `json:",omitempty"`
	Serial                      int64 `json:",omitempty"`
}

// A goldenKey is a Redis key with its value: a string, or the members of a sorted set. Each member
// is followed by its score; both are in hexadecimal digits.
type goldenKey struct {
	Name   string // without the prefix and the schema's version
	String []byte `json:",omitempty"`
	Set    []any  `json:",omitempty"`
}

func goldenAlgorithms() map[string]*algorithm.Algorithm {
	newYork, err := time.LoadLocation("America/New_York")
	if err != nil {
		panic(err)
	}
	return map[string]*algorithm.Algorithm{
		"token bucket": algorithm.TokenBucket, "leaky bucket": algorithm.LeakyBucket, "fixed window": algorithm.FixedWindow,
		"anchored window": algorithm.AnchoredWindow, "calendar day in New York": algorithm.CalendarWindow(algorithm.Day, newYork),
		"calendar month in UTC": algorithm.CalendarWindow(algorithm.Month, time.UTC), "sliding window": algorithm.SlidingWindow,
		"4 sub-windows": algorithm.SubWindow(4), "sliding log": algorithm.SlidingLog, "concurrency": algorithm.Concurrency,
	}
}

func TestGoldenStateIsReadByEveryVersion(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(goldenFile)
	if err != nil && !*addGolden {
		t.Fatal(err)
	}
	var cases []goldenCase
	if err := json.Unmarshal(text, &cases); err != nil && !*addGolden {
		t.Fatal(err)
	}
	server := redistest.Shared(t)
	client := dialURL(t, server.URL())
	if *addGolden {
		for _, c := range newGoldenCases() {
			if slices.ContainsFunc(cases, func(known goldenCase) bool { return known.Name == c.Name }) {
				continue
			}
			g := newGoldenStore(t, server, client)
			g.decide(c.Before)
			c.Keys = g.keys()
			g.decide(c.After)
			cases = append(cases, c)
		}
		writeGolden(t, cases)
	}
	answers := 0
	for _, c := range cases {
		for _, isWriting := range []bool{false, true} {
			g := newGoldenStore(t, server, client)
			name := c.Name + ", keys of the release"
			if isWriting { // so that instances of the release can read what this version writes
				name = c.Name + ", keys of this version"
				if got := g.decide(cloneCalls(c.Before)); !reflect.DeepEqual(got, c.Before) {
					t.Errorf("%s: the decisions are\n%+v\nwant\n%+v", name, got, c.Before)
				}
				if got := g.keys(); !reflect.DeepEqual(got, c.Keys) {
					t.Errorf("%s: the keys are\n%+v\nwant\n%+v", name, got, c.Keys)
				}
			} else {
				g.restore(c.Keys)
			}
			got := g.decide(cloneCalls(c.After))
			for i := range got {
				answers++
				if !reflect.DeepEqual(got[i], c.After[i]) {
					t.Errorf("%s, call %d: the answer is\n%+v\nwant\n%+v", name, i, got[i], c.After[i])
				}
			}
		}
	}
	// Each algorithm has a case, and so have a group and a mixture.
	if least := len(goldenAlgorithms()) + 2; len(cases) < least {
		t.Errorf("the file has %d cases; want %d or more", len(cases), least)
	}
	t.Logf("counted: %d answers to %d golden states", answers, len(cases))
}

// writeGolden writes the file, with a line per case.
func writeGolden(t *testing.T, cases []goldenCase) {
	var lines []string
	for _, c := range cases {
		line, err := json.Marshal(c)
		if err != nil {
			t.Fatal(err)
		}
		lines = append(lines, string(line))
	}
	if err := os.WriteFile(goldenFile, []byte("[\n"+strings.Join(lines, ",\n")+"\n]\n"), 0o644); err != nil {
		t.Fatal(err)
	}
}

// cloneCalls returns a copy of the calls, without their answers.
func cloneCalls(calls []goldenCall) []goldenCall {
	calls = slices.Clone(calls)
	for i := range calls {
		calls[i].Answers = nil
	}
	return calls
}

// A goldenStore is a store with a prefix and a clock of its own.
type goldenStore struct {
	*testing.T
	server *redistest.Server
	store  *Store
	prefix string
	now    time.Time
}

var goldenStores int // how many stores newGoldenStore has made

func newGoldenStore(t *testing.T, server *redistest.Server, client Client) *goldenStore {
	goldenStores++
	g := &goldenStore{T: t, server: server, prefix: fmt.Sprintf("golden-%d-", goldenStores)}
	g.store = storeOn(t, client, Options{Prefix: g.prefix, Now: func() time.Time { return g.now }})
	return g
}

// decide makes the calls and sets their answers.
func (g *goldenStore) decide(calls []goldenCall) []goldenCall {
	algorithms := goldenAlgorithms()
	for i := range calls {
		c := &calls[i]
		g.now = time.UnixMicro(c.At)
		var charges []penstock.Charge
		for _, charge := range c.Charges {
			limit := penstock.Limit{Name: charge.Name, Group: charge.Group, Algorithm: algorithms[charge.Algorithm], Count: charge.Count, Period: charge.Period, Burst: charge.Burst}
			charges = append(charges, penstock.Charge{Key: charge.Key, Plan: planOf(g, limit), Cost: charge.Cost, Mode: charge.Mode, Patience: charge.Patience, Holder: charge.Holder,
				IsRefundable: charge.IsRefundable, Receipt: charge.Receipt, Serial: charge.Serial})
		}
		d, err := g.store.Decide(context.Background(), charges)
		if err != nil {
			g.Fatalf("call %d: %v; want a decision", i, err)
		}
		c.Allowed = d.Allowed
		for n := range charges {
			c.Answers = append(c.Answers, d.Status(n))
		}
	}
	return calls
}

// do sends a command to the server, and returns the reply.
func (g *goldenStore) do(args ...string) any {
	g.Helper()
	reply, err := g.server.Do(args...)
	if err != nil {
		g.Fatalf("command %v: %v; want no error", args, err)
	}
	return reply
}

// keys returns the keys that the store has written. Members and scores of sets are in hex, because
// members need not be UTF-8.
func (g *goldenStore) keys() (keys []goldenKey) {
	begin := rediskeys.Base(g.prefix)
	for _, name := range g.do("KEYS", begin+"{*").([]any) {
		name := name.(string)
		key := goldenKey{Name: strings.TrimPrefix(name, begin)}
		if g.do("TYPE", name) == "zset" {
			key.Set = g.do("ZRANGE", name, "0", "-1", "WITHSCORES").([]any)
			for i, part := range key.Set {
				key.Set[i] = fmt.Sprintf("%x", part)
			}
		} else {
			key.String = []byte(g.do("GET", name).(string))
		}
		keys = append(keys, key)
	}
	slices.SortFunc(keys, func(a, b goldenKey) int { return cmp.Compare(a.Name, b.Name) })
	return keys
}

// restore writes the keys without a TTL, because TTLs are not part of the state.
func (g *goldenStore) restore(keys []goldenKey) {
	for _, key := range keys {
		name := rediskeys.Base(g.prefix) + key.Name
		if key.Set == nil {
			g.do("SET", name, string(key.String))
			continue
		}
		for i := 0; i < len(key.Set); i += 2 {
			var member, score []byte
			fmt.Sscanf(key.Set[i].(string), "%x", &member)
			fmt.Sscanf(key.Set[i+1].(string), "%x", &score)
			g.do("ZADD", name, string(score), string(member))
		}
	}
}

// newGoldenCases returns the cases that this version would write. They are one case per algorithm,
// a group whose numbers share a string, and a mixture of strings and sets.
func newGoldenCases() (cases []goldenCase) {
	const day = 24 * time.Hour
	names := make([]string, 0)
	for name := range goldenAlgorithms() {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		c := goldenCharge{Key: "user:42", Name: "main", Algorithm: name, Count: 10, Period: time.Hour}
		switch {
		case name == "token bucket", name == "leaky bucket":
			c.Burst = 15
		case name == "concurrency":
			c.Count, c.Burst = 4, 4
		case strings.HasPrefix(name, "calendar day"):
			c.Period = day
		case strings.HasPrefix(name, "calendar month"):
			c.Period = 31 * day
		}
		cases = append(cases, goldenCase{Name: name, Before: goldenCalls(0, []goldenCharge{c}), After: goldenCalls(time.Minute, []goldenCharge{c})})
	}
	bucket := goldenCharge{Key: "Ä {x}", Name: "bucket", Group: "shared", Algorithm: "token bucket", Count: 10, Period: time.Hour, Burst: 12}
	window := goldenCharge{Key: "Ä {x}", Name: "window", Group: "shared", Algorithm: "sliding window", Count: 20, Period: time.Hour}
	log := goldenCharge{Key: "Ä {x}", Name: "log", Group: "shared", Algorithm: "sliding log", Count: 30, Period: time.Hour}
	slots := goldenCharge{Key: "Ä {x}", Name: "slots", Group: "shared", Algorithm: "concurrency", Count: 9, Period: time.Hour}
	for name, charges := range map[string][]goldenCharge{"a group": {bucket, window}, "a mixture": {bucket, window, log, slots}} {
		cases = append(cases, goldenCase{Name: name, Before: goldenCalls(0, charges), After: goldenCalls(time.Minute, charges)})
	}
	return append(cases, refundedGoldenCase(), serialsGoldenCase())
}

// serialsGoldenCase returns a case in which holds have serials.
func serialsGoldenCase() goldenCase {
	begin := time.Date(2026, 11, 30, 12, 34, 56, 789_000, time.UTC).UnixMicro()
	call := func(second int64, holder string, mode algorithm.Mode, cost, serial int64) goldenCall {
		return goldenCall{At: begin + second*1_000_000, Charges: []goldenCharge{{
			Key: "user:42", Name: "main", Algorithm: "concurrency", Count: 8, Burst: 8, Period: time.Minute,
			Mode: mode, Cost: cost, Holder: holder, Serial: serial,
		}}}
	}
	return goldenCase{
		Name: "holds with serials",
		Before: []goldenCall{
			call(0, "a", penstock.Spend, 1, begin), call(1, "b", penstock.Spend, 2, 7), call(2, "b", penstock.Spend, 2, 5),
			call(3, "c", penstock.Spend, 1, algorithm.Max), call(4, "d", penstock.Spend, 1, 0), call(5, "e", penstock.Spend, 1, 3), call(6, "e", penstock.Refund, 1, 3),
		},
		After: []goldenCall{
			call(10, "a", penstock.Refund, 1, begin-1), call(11, "a", penstock.Refund, 1, begin), call(12, "b", penstock.Refund, 1, 6), call(13, "b", penstock.Refund, 1, 8),
			call(14, "c", penstock.Spend, 1, 1), call(15, "c", penstock.Refund, 1, 1), call(16, "d", penstock.Refund, 1, 1), call(17, "e", penstock.Spend, 1, 2),
			call(18, "e", penstock.Refund, 1, 2), call(19, "c", penstock.Refund, 1, 0), call(20, "", penstock.Peek, 1, 0),
		},
	}
}

// refundedGoldenCase returns a case in which a bucket has marks of charges that may be refunded.
func refundedGoldenCase() goldenCase {
	begin := time.Date(2026, 11, 30, 12, 34, 56, 789_000, time.UTC).UnixMicro()
	call := func(second int64, mode algorithm.Mode, cost, receipt int64) goldenCall {
		return goldenCall{At: begin + second*1_000_000, Charges: []goldenCharge{{
			Key: "user:42", Name: "main", Algorithm: "token bucket", Count: 10, Period: time.Minute, Burst: 40,
			Mode: mode, Cost: cost, IsRefundable: mode == penstock.Spend, Receipt: receipt,
		}}}
	}
	return goldenCase{
		Name:   "charges that may be refunded",
		Before: []goldenCall{call(0, penstock.Spend, 10, 0), call(1, penstock.Spend, 8, 0), call(5, penstock.Spend, 6, 0), call(6, penstock.Spend, 1, 0)},
		After: []goldenCall{ // the receipt of a bucket is the time of the charge
			call(60, penstock.Refund, 9, begin), call(61, penstock.Refund, 3, begin+5_000_000), call(62, penstock.Refund, 8, begin+1_000_000),
			call(63, penstock.Peek, 1, 0), call(64, penstock.Spend, 2, 0),
		},
	}
}

// goldenCalls returns calls of all modes except Reset. The calls begin at a fixed time plus the
// duration later. The first call is a Peek, which shows the state as it was stored.
func goldenCalls(later time.Duration, charges []goldenCharge) (calls []goldenCall) {
	at := time.Date(2026, 11, 30, 12, 34, 56, 789_000, time.UTC).Add(later)
	for i, op := range []struct {
		mode  algorithm.Mode
		cost  int64
		after time.Duration // after the call before
	}{
		{mode: penstock.Peek, cost: 1},
		{mode: penstock.Spend, cost: 1},
		{mode: penstock.Spend, cost: 2, after: 3 * time.Second},
		{mode: penstock.Spend, cost: 8, after: time.Millisecond},
		{mode: penstock.Draw, cost: 3, after: time.Second},
		{mode: penstock.Peek, cost: 1, after: 10 * time.Minute},
		{mode: penstock.Refund, cost: 1, after: time.Second},
		{mode: penstock.Force, cost: 2, after: time.Second},
		{mode: penstock.Spend, cost: 1, after: -time.Second}, // the clock steps back
	} {
		at = at.Add(op.after)
		call := goldenCall{At: at.UnixMicro()}
		for _, c := range charges {
			c.Mode, c.Cost = op.mode, op.cost
			switch c.Algorithm {
			case "concurrency", "leaky bucket":
				// Before and After begin a minute apart, so they have the same holders.
				c.Holder = fmt.Sprintf("holder %d of %d", i, at.Unix()%60)
			}
			if c.Algorithm == "concurrency" {
				c.Cost = 1
			}
			if c.Algorithm == "token bucket" || c.Algorithm == "leaky bucket" {
				c.Patience = time.Minute
			}
			call.Charges = append(call.Charges, c)
		}
		calls = append(calls, call)
	}
	return calls
}
