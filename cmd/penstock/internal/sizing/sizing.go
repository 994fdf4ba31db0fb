// Package sizing computes what limits need in Redis: memory, commands and servers. Its figures were
// measured on Redis 7.0. A test compares the figures for memory with a real server.
package sizing

import (
	"fmt"
	"math"
	"math/bits"
	"time"

	"github.com/penstock/penstock"
)

// The memory that Redis needs, in bytes, with jemalloc.
const (
	entry    = 24  // an entry in the table of keys, without rounding
	object   = 16  // the header of a value
	skipList = 100 // an element of a large sorted set, besides the set's table

	// tables is what a key needs in Redis' tables beyond entry: rounding of the entry, an entry in the
	// table of expiry times (32), and a share of both tables' arrays (8 to 16 each).
	tables = 62

	maxEmbedded = 44 // bytes of a string that Redis stores in one piece with the header of the value

	maxElements = 1 << 32 // elements that a sorted set can have

	// A sorted set of at most maxListPack elements is one list (zset-max-listpack-entries).
	maxListPack = 128
	listHeader  = 7  // of a list of SlidingLog
	logEntry    = 25 // an element of a list of SlidingLog
	slotEntry   = 34 // an element of a list of Concurrency: a holder has 22 characters
	slotList    = 40 // the rest of a list of Concurrency
)

// What a decision needs.
const (
	scriptTime     = 3500 * time.Nanosecond // of the server's processor, for a granted token bucket (docs/algorithms.md)
	maxUtilization = 0.7                    // the largest part of a server's processor that limits should use
	BytesSent      = 180                    // of a command: EVALSHA, a digest, a key of 25 bytes and the arguments; bench measures 159 to 183
	BytesReplied   = 40
)

// factors are the processor times of algorithms as a multiple of scriptTime, by title; see
// docs/algorithms.md. The times of grants and denials differ; the larger one counts.
var factors = map[string]float64{
	"token-bucket": 1, "leaky-bucket": 1.3, "fixed-window": 1.1, "anchored-window": 1.1, "calendar-window": 1.1, "sliding-window": 1.1, "sub-window": 2.4, "sliding-log": 4.7, "concurrency": 5.6,
}

// storedNumbers are how many numbers algorithms store for a limit, unless the limit has changed.
var storedNumbers = map[string]int{"token-bucket": 3, "leaky-bucket": 5, "fixed-window": 3, "anchored-window": 3, "calendar-window": 3, "sliding-window": 3}

// roundUp rounds a size up to a size class of jemalloc.
func roundUp(n int) int {
	if n <= 128 {
		return (n + 15) / 16 * 16
	}
	step := 1 << (bits.Len(uint(n-1)) - 3) // four classes for each power of two
	return (n + step - 1) / step * step
}

// stringSize returns the memory of a key's name or a string's content of n bytes. Redis adds a
// header of 1 or 3 bytes, and a final NUL.
func stringSize(n int) int {
	if n < 32 {
		return n + 2
	}
	return n + 4
}

// Usage returns the memory that limits of one group need for one key, and the number of their keys
// in Redis. keyLength is the length of the key's name in Redis. The memory is the sum of what
// MEMORY USAGE reports for these keys. Collections have the most elements that limits admit.
func Usage(keyLength int, limits []*penstock.Plan) (bytes, keys int) {
	const timeField = 4 // bytes of the time with which a string begins
	value := timeField
	for _, l := range limits {
		if !l.Algorithm().IsCollection() {
			value += 3 + 7*numbers(l) // the tag and the numbers, less trailing zeros
			continue
		}
		nameLength := keyLength + len(":"+l.Name()+":"+l.Algorithm().Name())
		bytes += roundUp(stringSize(nameLength)) + entry + object + sortedSet(l)
		keys++
	}
	if value > timeField {
		bytes += roundUp(stringSize(keyLength)) + entry
		if value <= maxEmbedded {
			bytes += roundUp(object + 4 + value)
		} else {
			bytes += object + roundUp(stringSize(value))
		}
		keys++
	}
	return bytes, keys
}

// numbers returns how many numbers a limit has in its string. Unused numbers at its end take no
// memory.
func numbers(l *penstock.Plan) int {
	if l.Algorithm().Title() == "sub-window" {
		parts := int(l.Params(0)[2])
		return parts + 5 // start, count, width, owner, the current part, and the parts before it
	}
	if n := storedNumbers[l.Algorithm().Title()]; n > 0 {
		return n
	}
	return l.Algorithm().Numbers()
}

// sortedSet returns the memory of the elements of a full sorted set.
func sortedSet(l *penstock.Plan) int {
	elements := int(min(l.Limit().Count, maxElements))
	list := logEntry*elements + listHeader
	if l.Algorithm().NeedsHolder() {
		elements = int(min(l.Limit().Burst, maxElements))
		list = slotEntry*elements + slotList
	}
	if elements <= maxListPack {
		return roundUp(list)
	}
	table := 1 // number of pointers, a power of 2
	for table < elements {
		table *= 2
	}
	return skipList*elements + 8*table
}

// A Size is what a number of clients needs.
type Size struct {
	Keys           int64   `json:"redis_keys"`
	BytesPerClient int     `json:"bytes_per_client,omitempty"`
	Memory         int64   `json:"memory_bytes"`    // with Redis' tables
	MaxMemory      int64   `json:"maxmemory_bytes"` // with room for fragmentation, buffers and growth
	Calls          int64   `json:"calls_per_second"`
	ScriptMicros   float64 `json:"script_us,omitempty"`
	Cores          float64 `json:"redis_cores"`
	Servers        int     `json:"servers"`
	PerKey         int64   `json:"decisions_per_second_of_one_key,omitempty"`
	Bandwidth      int64   `json:"bytes_per_second"`
	LiveFor        string  `json:"live_for,omitempty"` // after a client's last request, at most
}

// A Load has limits, and the clients and requests that use them.
type Load struct {
	Limits   []*penstock.Plan
	Key      int     // length of a key's name in Redis
	Clients  int64   // that are active within LiveFor
	Requests float64 // per second
}

// Of computes what a load needs.
func Of(l Load) Size {
	bytes, keys := Usage(l.Key, l.Limits)
	perClient := bytes + keys*tables
	s := Size{Keys: product(l.Clients, int64(keys)), BytesPerClient: perClient, Memory: product(l.Clients, int64(perClient)), Calls: int64(math.Ceil(l.Requests))}
	s.MaxMemory = maxMemory(s.Memory)
	cost, live := 0.0, time.Duration(0)
	for _, limit := range l.Limits {
		cost += factorOf(limit)
		live = max(live, lifeOf(limit))
	}
	// Each further limit of a string costs a fifth of the first: three cost 1.4 times one.
	if n := len(l.Limits); n > 1 {
		cost = cost / float64(n) * (1 + 0.2*float64(n-1))
	}
	took := cost * scriptTime.Seconds()
	s.ScriptMicros = took * 1e6
	s.Cores = l.Requests * took
	s.Servers = servers(s.Cores)
	s.PerKey = int64(maxUtilization / took)
	s.Bandwidth = int64(l.Requests * (BytesSent + BytesReplied))
	s.LiveFor = live.String()
	return s
}

// maxMemory adds a half and 64 MB, for fragmentation, buffers of clients, and growth.
func maxMemory(used int64) int64 { return sum(sum(used, used/2), 64_000_000) }

// product and sum return the largest int64 if the result would be larger.
func product(a, b int64) int64 {
	if a > 0 && b > math.MaxInt64/a {
		return math.MaxInt64
	}
	return a * b
}

func sum(a, b int64) int64 {
	if b > math.MaxInt64-a {
		return math.MaxInt64
	}
	return a + b
}

func servers(cores float64) int { return max(int(math.Ceil(cores/maxUtilization)), 1) }

// Sum adds sizes that are needed at the same time.
func Sum(all []Size) (total Size) {
	for _, s := range all {
		total.Keys = sum(total.Keys, s.Keys)
		total.Memory = sum(total.Memory, s.Memory)
		total.Calls += s.Calls
		total.Cores += s.Cores
		total.Bandwidth += s.Bandwidth
	}
	total.MaxMemory, total.Servers = maxMemory(total.Memory), servers(total.Cores)
	return total
}

func factorOf(l *penstock.Plan) float64 {
	if f, ok := factors[l.Algorithm().Title()]; ok {
		return f
	}
	return 1.3 // a custom algorithm: about as much as a leaky bucket
}

// lifeOf returns the longest TTL of a key: 5 s, and twice the time until its state equals that of a
// new key.
func lifeOf(l *penstock.Plan) time.Duration {
	limit := l.Limit()
	refill := limit.Period
	if limit.Count > 0 && limit.Burst > limit.Count {
		refill = time.Duration(float64(limit.Period) * float64(limit.Burst) / float64(limit.Count))
	}
	return 2*refill + 5*time.Second
}

// Bytes writes a number of bytes for people.
func Bytes(n int64) string {
	for _, unit := range []struct {
		name string
		size float64
	}{{"TB", 1e12}, {"GB", 1e9}, {"MB", 1e6}, {"kB", 1e3}} {
		if f := float64(n) / unit.size; f >= 1 {
			return fmt.Sprintf("%.3g %s", f, unit.name)
		}
	}
	return fmt.Sprintf("%d B", n)
}
