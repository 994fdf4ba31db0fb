package redisstore

import (
	"encoding/binary"
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
}

const (
	headerSize = 7 + 2               // now, batches
	batchSize  = 2                   // how many charges
	chargeSize = 2 + 1 + 1 + 4 + 4*7 // key, algorithm, mode, tag; cost, three parameters
	moreSize   = 3 * 7               // the fourth parameter, patience, who; if one of them is not 0
	withMore   = 128                 // added to the mode where they follow
	statusSize = 5 * 7               // granted, remaining, retry, reset, wait
	plainSize  = 3 * 7               // granted, remaining, reset: where nothing was denied and nobody waits
)

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
	put7(c.buf, now)
	binary.LittleEndian.PutUint16(c.buf[7:], uint16(len(c.batches)))
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
	if p[3] != 0 || patience != 0 || who != 0 {
		mode += withMore
		put7(b[36:], p[3])
		put7(b[43:], patience)
		put7(b[50:], who)
	}
	binary.LittleEndian.PutUint16(b, uint16(key))
	if !script.row {
		b[2] = script.index(ch.plan.Limit.Algorithm)
	}
	b[3] = mode
	binary.LittleEndian.PutUint32(b[4:], ch.plan.Tag)
	put7(b[8:], ch.Cost)
	put7(b[15:], p[0])
	put7(b[22:], p[1])
	put7(b[29:], p[2])
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

// key is the number, counted from 1, of the storage key of a charge. Limits that share a string share the number.
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

// decode reads the statuses of a batch of n charges.
func decode(reply string, n int) penstock.Decision {
	size := len(reply) / n
	if n == 1 {
		return penstock.Single(status(reply))
	}
	statuses := make([]penstock.Status, n)
	for i := range statuses {
		statuses[i] = status(reply[i*size : (i+1)*size])
	}
	return penstock.NewDecision(statuses)
}

func status(reply string) penstock.Status {
	if len(reply) == plainSize {
		return penstock.StatusOf(algorithm.Outcome{Granted: get7(reply), Remaining: get7(reply[7:]), ResetAfter: get7(reply[14:])})
	}
	return penstock.StatusOf(algorithm.Outcome{
		Granted:    get7(reply),
		Remaining:  get7(reply[7:]),
		RetryAfter: get7(reply[14:]),
		ResetAfter: get7(reply[21:]),
		Wait:       get7(reply[28:]),
	})
}

// put7 writes a number as seven bytes, the least significant first, as struct.pack's I7.
func put7(b []byte, n int64) {
	_ = b[6]
	for i := range 7 {
		b[i] = byte(n >> (8 * i))
	}
}

// get7 reads a signed number of seven bytes.
func get7(s string) int64 {
	var n int64
	for i := range 7 {
		n |= int64(s[i]) << (8 * i)
	}
	return n << 8 >> 8
}

// view is b as a string, without a copy: b must not change while the string is in use.
func view(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }
