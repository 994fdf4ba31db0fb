package redisstore

import (
	"encoding/binary"
	"math"
	"time"
	"unsafe"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/algorithm"
)

// A charge is a penstock.Charge on its way to Redis.
type charge struct {
	*penstock.Charge
	plan *penstock.Plan
}

// A call is one script call being put together: a list of batches. All its memory is used again.
type call struct {
	plans   []*penstock.Plan
	charges []charge
	batches []int  // how many charges each batch has, in order
	buf     []byte // keys and packed arguments; the strings below point into it
	ends    []int  // of the keys in buf
	keys    []string
	args    []string

	waiting waiting // where the call goes together with others
	trials  []tried // that are decided in the same script
}

const (
	headerSize = 8 + 2               // now, batches
	batchSize  = 2                   // how many charges
	chargeSize = 2 + 1 + 1 + 4 + 4*8 // key, algorithm, mode, tag; cost, three parameters
	moreSize   = 3 * 8               // the fourth parameter, patience, who; if one of them is not 0, or in a dry run
	withMore   = 128                 // added to the mode where they follow
	statusSize = 5 * 8               // granted, remaining, retry, reset, wait
	plainSize  = 2 * 8               // remaining, reset: where all of the cost was granted and nobody waits
)

// dry is added to the modes of a batch for a dry run, which charges nothing: each charge is
// answered as if another charge of its batch were denied.
const dry penstock.Mode = 64

// encode packs the call's batches. A time of 0 lets the server read its own.
func (c *call) encode(s *Store, now int64, script *script) {
	c.buf, c.ends, c.keys, c.args = c.buf[:0], c.ends[:0], c.keys[:0], append(c.args[:0], "")
	// The arguments come first, so that they can be written in one go; keys are appended behind them.
	room := headerSize + batchSize*len(c.batches) + (chargeSize+moreSize)*len(c.charges)
	if cap(c.buf) < room {
		c.buf = make([]byte, 0, room+256)
	}
	c.buf = c.buf[:room]
	c.ends = append(c.ends, room)
	putNumber(c.buf, now)
	binary.LittleEndian.PutUint16(c.buf[8:], uint16(len(c.batches)))
	at, batch, left := headerSize, 0, 0
	for i := range c.charges {
		if left == 0 {
			left = c.batches[batch]
			batch++
			binary.LittleEndian.PutUint16(c.buf[at:], uint16(left))
			at += batchSize
		}
		left--
		at += c.encodeCharge(s, &c.charges[i], at, now, script)
	}
	c.view(at)
}

// encodeRows packs a bunch for rows.lua.
func (c *call) encodeRows(s *Store, now int64, b *bunch) {
	c.buf, c.ends, c.keys, c.args = c.buf[:0], c.ends[:0], c.keys[:0], append(c.args[:0], "")
	c.buf = appendNumber(c.buf, now)
	asks := 0 // where in buf stands how many the string has
	for first, a := range b.inOrder {
		if first {
			asks = len(c.buf)
			c.buf = append(c.buf, 0, 0)
			for i := range a.charges {
				c.buf = binary.LittleEndian.AppendUint32(c.buf, a.charges[i].plan.Tag)
			}
		}
		c.increment(asks)
		c.buf = binary.LittleEndian.AppendUint16(c.buf, uint16(len(a.callers)))
		for i := range a.charges {
			c.appendRowCharge(&a.charges[i], now)
		}
	}
	at := len(c.buf)
	c.ends = append(c.ends, at)
	for first, a := range b.inOrder {
		if first {
			c.buf = s.appendKey(c.buf, a.charges[0].Key, a.charges[0].plan)
			c.ends = append(c.ends, len(c.buf))
		}
	}
	c.view(at)
}

// increment adds one to the count at a place in buf.
func (c *call) increment(at int) {
	binary.LittleEndian.PutUint16(c.buf[at:], binary.LittleEndian.Uint16(c.buf[at:])+1)
}

func (c *call) appendRowCharge(ch *charge, now int64) {
	p := ch.plan.Params(present(now, ch.plan))
	patience, who := ch.Patience.Microseconds(), algorithm.HolderID(ch.Holder)
	more := p[3] != 0 || patience != 0 || who != 0 || ch.Mode >= dry
	mode := byte(ch.Mode)
	if more {
		mode += withMore
	}
	b := append(c.buf, mode)
	b = appendNumber(b, ch.Cost)
	b = appendNumber(b, p[0])
	b = appendNumber(b, p[1])
	b = appendNumber(b, p[2])
	if more {
		b = appendNumber(b, p[3])
		b = appendNumber(b, patience)
		b = appendNumber(b, who)
	}
	c.buf = b
}

// view makes strings of what was packed: the arguments end at at, the keys follow.
func (c *call) view(at int) {
	for i := 1; i < len(c.ends); i++ {
		c.keys = append(c.keys, view(c.buf[c.ends[i-1]:c.ends[i]]))
	}
	c.args[0] = view(c.buf[:at])
}

// encodeCharge packs a charge at a place in buf that is large enough, and returns its size.
func (c *call) encodeCharge(s *Store, ch *charge, at int, now int64, script *script) int {
	p := ch.plan.Params(present(now, ch.plan))
	key, patience, who := c.key(s, ch), ch.Patience.Microseconds(), c.who(ch)
	b := c.buf[at:] // only now: the key may have moved it
	mode := byte(ch.Mode)
	if p[3] != 0 || patience != 0 || who != 0 || ch.Mode >= dry {
		mode += withMore
		putNumber(b[40:], p[3])
		putNumber(b[48:], patience)
		putNumber(b[56:], who)
	}
	binary.LittleEndian.PutUint16(b, uint16(key))
	if script.kind == many {
		b[2] = script.index(ch.plan.Limit.Algorithm)
	}
	b[3] = mode
	binary.LittleEndian.PutUint32(b[4:], ch.plan.Tag)
	putNumber(b[8:], ch.Cost)
	putNumber(b[16:], p[0])
	putNumber(b[24:], p[1])
	putNumber(b[32:], p[2])
	if mode >= withMore {
		return chargeSize + moreSize
	}
	return chargeSize
}

// present is the time by which a calendar names its windows: the given one, or this process's.
func present(now int64, plan *penstock.Plan) int64 {
	if now == 0 && plan.Limit.Algorithm.At != nil {
		return time.Now().UnixMicro()
	}
	return now
}

// key is the number, counted from 1, of the storage key of a charge. Limits that share a string
// share the number.
func (c *call) key(s *Store, ch *charge) int {
	start := len(c.buf)
	c.buf = s.appendKey(c.buf, ch.Key, ch.plan)
	for i := 1; i < len(c.ends); i++ {
		if string(c.buf[c.ends[i-1]:c.ends[i]]) == string(c.buf[start:]) {
			c.buf = c.buf[:start]
			return i
		}
	}
	c.ends = append(c.ends, len(c.buf))
	return len(c.ends) - 1
}

// who is how the script knows a holder: the number of the argument that names it, or its HolderID.
func (c *call) who(ch *charge) int64 {
	if !ch.plan.Limit.Algorithm.Collection {
		return algorithm.HolderID(ch.Holder)
	}
	if ch.Holder == "" {
		return 0
	}
	c.args = append(c.args, ch.Holder)
	return int64(len(c.args))
}

// decode reads the statuses of a batch.
func decode(reply string, charges []charge) penstock.Decision {
	size := len(reply) / len(charges)
	if len(charges) == 1 {
		return penstock.Single(status(reply, &charges[0]))
	}
	statuses := make([]penstock.Status, len(charges))
	for i := range statuses {
		statuses[i] = status(reply[i*size:(i+1)*size], &charges[i])
	}
	return penstock.NewDecision(statuses)
}

func status(reply string, c *charge) penstock.Status {
	if len(reply) == plainSize {
		return penstock.StatusOf(&algorithm.Outcome{Granted: c.Cost, Remaining: getNumber(reply), ResetAfter: getNumber(reply[8:])})
	}
	return penstock.StatusOf(&algorithm.Outcome{
		Granted:    getNumber(reply),
		Remaining:  getNumber(reply[8:]),
		RetryAfter: getNumber(reply[16:]),
		ResetAfter: getNumber(reply[24:]),
		Wait:       getNumber(reply[32:]),
	})
}

// putNumber writes a number as a double, as Lua has it: all numbers up to 2^53 are exact.
func putNumber(b []byte, n int64) {
	binary.LittleEndian.PutUint64(b, math.Float64bits(float64(n)))
}

func appendNumber(b []byte, n int64) []byte {
	return binary.LittleEndian.AppendUint64(b, math.Float64bits(float64(n)))
}

func getNumber(s string) int64 {
	return int64(math.Float64frombits(binary.LittleEndian.Uint64([]byte(s[:8]))))
}

// view is b as a string, without a copy: b must not change while the string is in use.
func view(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }
