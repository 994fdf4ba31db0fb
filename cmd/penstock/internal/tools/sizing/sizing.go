// Package sizing computes what limits need in Redis: memory, commands and servers. Its figures were
// measured on Redis 7.0. A test compares the figures for memory with a real server.
package sizing

import (
	"cmp"
	"fmt"
	"math"
	"math/bits"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/wording"
)

// The memory that Redis needs, in bytes, with jemalloc.
const (
	entry    = 24  // an entry in the table of keys, before rounding to a size class
	object   = 16  // the header of a value
	skipList = 100 // an element of a large sorted set, besides the set's table

	// tables is what a key needs in Redis' tables beyond entry: rounding of the entry, an entry in the
	// table of expiry times (32), and a share of both tables' arrays (8 to 16 each).
	tables = 62

	maxEmbedded = 44 // length of the longest string that Redis stores in one piece with the header of the value

	maxElements = 1 << 32 // elements that a sorted set can have

	// A sorted set of at most maxListPack elements is stored as one list
	// (zset-max-listpack-entries).
	maxListPack   = 128
	logListHeader = 7  // a list of SlidingLog, without its elements
	logEntry      = 25 // an element of a list of SlidingLog
	slotList      = 40 // a list of Concurrency, without its elements
	slotEntry     = 34 // an element of a list of Concurrency: a holder has 22 characters
)

// What a decision needs.
const (
	scriptTime     = 3500 * time.Nanosecond // of the server's processor, for a granted token bucket (docs/algorithms.md)
	maxUtilization = 0.7                    // the largest part of a server's processor time that limits should use
	BytesSent      = 180                    // bytes of a command: EVALSHA, a digest, a key of 25 bytes and the arguments; bench measures 159 to 183
	BytesReplied   = 40                     // bytes of a reply
)

// timeFactors are the processor times of algorithms as a multiple of scriptTime, by the algorithm's
// title; see docs/algorithms.md. If a grant and a denial take different times, the larger one
// counts.
var timeFactors = map[string]float64{
	"token-bucket":    1,
	"leaky-bucket":    1.3,
	"fixed-window":    1.1,
	"anchored-window": 1.1,
	"calendar-window": 1.1,
	"sliding-window":  1.1,
	"sub-window":      2.4,
	"sliding-log":     4.7,
	"concurrency":     5.6,
}

// customFactor is assumed for custom algorithms. It is that of a leaky bucket.
const customFactor = 1.3

// storedNumbers are how many numbers algorithms store for a limit whose settings have not changed,
// by the algorithm's title.
var storedNumbers = map[string]int{"token-bucket": 3, "leaky-bucket": 5, "fixed-window": 3, "anchored-window": 3, "calendar-window": 3, "sliding-window": 3}

// roundUp rounds a size up to a size class of jemalloc: a multiple of 16 up to 128, and then one of
// four classes for each power of two.
func roundUp(n int) int {
	if n <= 128 {
		return (n + 15) / 16 * 16
	}
	step := 1 << (bits.Len(uint(n-1)) - 3)
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
	value := timeField  // length of the string
	for _, l := range limits {
		if !l.Algorithm().IsCollection() {
			// The tag and the count have 4 bytes. A number has 7 bytes, except the third, which has 6.
			value += 4 + 7*numbers(l) - 1
			continue
		}
		nameLength := keyLength + len(":"+l.Name()+":"+l.Algorithm().Name())
		bytes += roundUp(stringSize(nameLength)) + entry + object + sortedSetSize(l)
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

// numbers returns how many numbers a limit has in its string. Unused numbers at the end of its
// state are not stored.
func numbers(l *penstock.Plan) int {
	if l.Algorithm().Title() == "sub-window" {
		subWindows := int(l.Params(0)[2])
		return subWindows + 5 // the past sub-windows, the current one, and start, count, width and owner
	}
	if n := storedNumbers[l.Algorithm().Title()]; n > 0 {
		return n
	}
	return l.Algorithm().Numbers()
}

// sortedSetSize returns the memory of the elements of a full sorted set.
func sortedSetSize(l *penstock.Plan) int {
	elements := int(min(l.Limit().Count, maxElements))
	listSize := logEntry*elements + logListHeader
	if l.Algorithm().NeedsHolder() {
		elements = int(min(l.Limit().Burst, maxElements))
		listSize = slotEntry*elements + slotList
	}
	if elements <= maxListPack {
		return roundUp(listSize)
	}
	const pointerSize = 8
	pointers := 1 // of the set's hash table: a power of 2
	for pointers < elements {
		pointers *= 2
	}
	return skipList*elements + pointerSize*pointers
}

// A Size is what a Load needs.
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
	LiveFor        string  `json:"live_for,omitempty"` // how long keys live after a client's last request, at most
}

// A Load has limits, and the clients and requests that use them.
type Load struct {
	Limits    []*penstock.Plan
	KeyLength int     // length of a key's name in Redis
	Clients   int64   // number of clients that are active within the LiveFor of the Size
	Requests  float64 // per second

	ScriptTime time.Duration // of a granted token bucket in this store. Default: scriptTime
}

// Of computes what a load needs.
func Of(l Load) Size {
	bytes, keys := Usage(l.KeyLength, l.Limits)
	perClient := bytes + keys*tables
	s := Size{Keys: product(l.Clients, int64(keys)), BytesPerClient: perClient, Memory: product(l.Clients, int64(perClient)), Calls: int64(math.Ceil(l.Requests))}
	s.MaxMemory = maxMemory(s.Memory)
	factor, life := 0.0, time.Duration(0)
	for _, limit := range l.Limits {
		factor += cmp.Or(timeFactors[limit.Algorithm().Title()], customFactor)
		life = max(life, lifeOf(limit))
	}
	// The first limit takes the mean time of all. Each further limit of a string takes a fifth of
	// that: three limits take 1.4 times as long as one.
	if n := len(l.Limits); n > 1 {
		mean := factor / float64(n)
		factor = mean * (1 + 0.2*float64(n-1))
	}
	seconds := factor * cmp.Or(l.ScriptTime, scriptTime).Seconds() // of processor time, for one decision
	s.ScriptMicros = seconds * 1e6
	s.Cores = l.Requests * seconds
	s.Servers = servers(s.Cores)
	s.PerKey = int64(maxUtilization / seconds)
	s.Bandwidth = int64(l.Requests * (BytesSent + BytesReplied))
	s.LiveFor = wording.Period(life)
	return s
}

// maxMemory returns 1.5 times the used bytes, and 64 MB more: room for fragmentation, buffers of
// clients, and growth.
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

// servers returns how many servers are needed for limits that need this many processor cores. Redis
// runs scripts on one core.
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

// Bytes returns a number of bytes as people read it, such as 1.5 GB.
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
