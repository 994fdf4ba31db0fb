package redisstore

import (
	"encoding/binary"
	"math"
	"time"
	"unsafe"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/algorithm"
	"github.com/penstock/penstock/internal/batches"
	"github.com/penstock/penstock/internal/luagen"
	"github.com/penstock/penstock/internal/redisclient"
	"github.com/penstock/penstock/redisstore/internal/coalesce"
)

// A call is one script call: a list of batches, and how they are packed. The memory of calls is
// reused.
type call struct {
	charges    []penstock.Charge // of all batches: the caller's slice, or copies in ownCharges
	ownCharges []penstock.Charge
	batchSizes []int  // how many charges each batch has, in order
	buf        []byte // packed charges, then keys; keys and args[0] point into it
	keyEnds    []int  // indexes in buf: where the keys begin, then where each key ends
	stamp      uint16 // its number; the reply begins with it
	keys       []string
	args       []string // the packed charges, then the names of holders

	extensions []byte // of the batch that is being packed for uniform.lua

	batches    []*batches.Batch   // what the caller wants decided: a list, and shadows that share its scripts
	waiters    []coalesce.Waiter  // of each of these batches
	waiterList []*coalesce.Waiter // the same waiters
	ownBatch   batches.Batch      // of ownCharges, for runGroup
}

// The sizes, in bytes, of the parts of packed arguments and of replies.
const (
	stampedSize = 8 + redisclient.StampSize // the time, the stamp
	headerSize  = stampedSize + 2           // and the number of batches, for mixed.lua
	batchSize   = 2                         // the number of charges in a batch, for mixed.lua
	placeSize   = 2 + 1                     // key, algorithm: before each charge, for mixed.lua
	chargeSize  = 1 + 4 + 4*8               // mode, tag; cost, three parameters
	shortSize   = 4 + 3*8                   // a charge in the short form: see isShort
	statusSize  = 5 * 8                     // granted, remaining, retry, reset, wait
	plainSize   = 2 * 8                     // remaining, reset: the whole cost was granted without a wait
	deniedSize  = 3 * 8                     // remaining, retry, reset: nothing was granted

	receiptSize = 8 // follows a status or a plain status, if a charge of the batch may be refunded

	// An extension follows each charge of a dry run, and each charge that sets one of these fields.
	extensionSize = 4 * 8 // fourth parameter, patience, holder, receipt

	keyRoom = 256 // for keys; buf grows if they need more
)

// Indexes of the parameters of a token bucket.
const (
	rateParam     = 0 // parts that are refilled per µs
	partsParam    = 1 // parts of a unit
	capacityParam = 2 // units
)

const extended = luagen.ExtendedMode // added to the mode if an extension follows

// dryRun is added to the mode of each charge in a batch that must charge nothing. The reply reports
// what is left under each limit, as if another charge of the batch had been denied.
const dryRun penstock.Mode = luagen.DryRunMode

// counted is added to the mode of each charge of a batch that is denied elsewhere, together with
// dryRun. The script then counts the charge as a denied one.
const counted penstock.Mode = luagen.CountedMode

// encode packs the call's batches for single.lua and mixed.lua. now is in µs; if it is 0, the
// script reads the server's time.
func (c *call) encode(s *Store, now int64, script *script) {
	c.beginPacking()
	// The arguments come first, so that one loop can write them; the keys are appended after them.
	room := headerSize + batchSize*len(c.batchSizes) + (placeSize+chargeSize+extensionSize)*len(c.charges) + 1
	if cap(c.buf) < room {
		c.buf = make([]byte, 0, room+keyRoom)
	}
	c.buf = c.buf[:room]
	c.keyEnds = append(c.keyEnds, room)
	c.putHeader(s, now)
	at, nextBatch, leftInBatch := stampedSize, 0, 0
	if script.kind == mixed {
		binary.LittleEndian.PutUint16(c.buf[at:], uint16(len(c.batchSizes)))
		at = headerSize
	}
	isShort := script.kind == single && haveShortForm(c.charges)
	for i := range c.charges {
		if isShort {
			c.addKey(s, &c.charges[i])
			appendShort(c.buf[:at], &c.charges[i])
			at += shortSize
			continue
		}
		if leftInBatch == 0 && script.kind == mixed {
			leftInBatch = c.batchSizes[nextBatch]
			nextBatch++
			binary.LittleEndian.PutUint16(c.buf[at:], uint16(leftInBatch))
			at += batchSize
		}
		leftInBatch--
		at += c.encodeCharge(s, &c.charges[i], at, now, script)
	}
	if script.kind == single && now != 0 {
		c.buf[at] = 0 // a further byte tells single.lua that the header has the time
		at++
	}
	c.setStrings(at)
}

// encodeFlight packs a flight for uniform.lua.
func (c *call) encodeFlight(s *Store, now int64, f *coalesce.Flight) {
	c.beginPacking()
	c.buf = append(c.buf, make([]byte, stampedSize)...)
	c.putHeader(s, now)
	if shared := sharedCharges(f, now); shared != nil {
		c.appendShared(shared, now)
	} else {
		c.appendRequests(f, now)
	}
	at := len(c.buf)
	c.keyEnds = append(c.keyEnds, at)
	for isNewKey, r := range f.Requests {
		if isNewKey {
			c.buf = s.keys.Append(c.buf, r.Charges[0].Key, r.Charges[0].Plan)
			c.keyEnds = append(c.keyEnds, len(c.buf))
		}
	}
	c.setStrings(at)
}

// appendShared packs a batch that is decided on each key of the flight.
func (c *call) appendShared(charges []penstock.Charge, now int64) {
	isShort := haveShortForm(charges)
	for i := range charges {
		if isShort {
			c.buf = appendShort(c.buf, &charges[i])
			continue
		}
		c.buf = binary.LittleEndian.AppendUint32(c.buf, charges[i].Plan.Tag())
		c.appendCharge(&charges[i], now)
	}
}

// appendRequests packs the requests of a flight, each with the number of its waiters.
func (c *call) appendRequests(f *coalesce.Flight, now int64) {
	var countAt int // index in buf of the number of requests for the current key
	for isNewKey, r := range f.Requests {
		if isNewKey {
			countAt = len(c.buf)
			c.buf = append(c.buf, 0, 0)
			for i := range r.Charges {
				c.buf = binary.LittleEndian.AppendUint32(c.buf, r.Charges[i].Plan.Tag())
			}
		}
		count := c.buf[countAt:]
		binary.LittleEndian.PutUint16(count, binary.LittleEndian.Uint16(count)+1)
		c.buf = binary.LittleEndian.AppendUint16(c.buf, uint16(len(r.Waiters)))
		c.extensions = c.extensions[:0]
		for i := range r.Charges {
			c.appendCharge(&r.Charges[i], now)
		}
		c.buf = append(c.buf, c.extensions...)
	}
}

// sharedCharges returns the batch of a flight whose batches are all equal, each from one caller and
// on a Redis key of its own. It returns nil for other flights, and if the batch has extensions.
func sharedCharges(f *coalesce.Flight, now int64) (shared []penstock.Charge) {
	for isNewKey, r := range f.Requests {
		if !isNewKey || len(r.Waiters) != 1 {
			return nil
		}
		if shared == nil {
			shared = r.Charges
		}
		for i := range r.Charges {
			ch, first := &r.Charges[i], &shared[i]
			isEqual := ch.Plan == first.Plan && ch.Mode == first.Mode && ch.Cost == first.Cost
			if !isEqual || isExtended(ch, paramsOf(ch, now)) {
				return nil
			}
		}
	}
	return shared
}

// maxShort is the largest capacity, in parts, of a bucket in the short form. Such a bucket is empty
// after 17 years, so the second until which its key lives has 32 bits.
const maxShort = 1 << 49

// haveShortForm reports whether a batch has the short form, which the block short of
// luagen/storage.lua decides. Then each charge is a Spend of a token bucket that refills one part
// per µs.
func haveShortForm(charges []penstock.Charge) bool {
	for i := range charges {
		ch := &charges[i]
		if ch.Plan.Algorithm() != algorithm.TokenBucket || ch.Mode != penstock.Spend || ch.CountsDenial() {
			return false
		}
		p := ch.Plan.Params(0)
		canFit := 0 < ch.Cost && ch.Cost <= p[capacityParam]
		if !canFit || p[rateParam] != 1 || p[partsParam]*p[capacityParam] > maxShort || isExtended(ch, p) {
			return false
		}
	}
	return true
}

// appendShort packs a charge in the short form: its tag, and how many parts a unit, the cost and
// the capacity have.
func appendShort(b []byte, ch *penstock.Charge) []byte {
	p := ch.Plan.Params(0)
	parts := p[partsParam]
	b = appendNumber(binary.LittleEndian.AppendUint32(b, ch.Plan.Tag()), parts)
	return appendNumber(appendNumber(b, parts*ch.Cost), parts*p[capacityParam])
}

// isExtended reports whether an extension follows a charge with these parameters.
func isExtended(ch *penstock.Charge, p *algorithm.Params) bool {
	return p[3] != 0 || ch.Patience != 0 || ch.Mode >= dryRun || algorithm.HolderID(ch.Holder) != 0 || receiptOrSerial(ch) != 0
}

// beginPacking empties what encode and encodeFlight fill.
func (c *call) beginPacking() {
	c.buf, c.keyEnds, c.keys = c.buf[:0], c.keyEnds[:0], c.keys[:0]
	c.args = append(c.args[:0], "") // the packed charges: see setStrings
}

// putHeader writes the time and a new stamp to the beginning of buf.
func (c *call) putHeader(s *Store, now int64) {
	c.stamp = uint16(s.stamps.Add(1))
	putNumber(c.buf, now)
	redisclient.PutStamp(c.buf, c.stamp)
}

// appendCharge packs a charge for uniform.lua. The extension of the charge goes to c.extensions,
// because the extensions of a batch follow all its charges.
func (c *call) appendCharge(ch *penstock.Charge, now int64) {
	params := paramsOf(ch, now)
	patience, holder, receipt := ch.Patience.Microseconds(), algorithm.HolderID(ch.Holder), receiptOrSerial(ch)
	mode := byte(ch.Mode)
	if isExtended(ch, params) {
		mode += extended
		c.extensions = appendNumber(appendNumber(c.extensions, params[3]), patience)
		c.extensions = appendNumber(appendNumber(c.extensions, holder), receipt)
	}
	b := append(c.buf, mode)
	b = appendNumber(b, ch.Cost)
	b = appendNumber(b, params[0])
	b = appendNumber(b, params[1])
	c.buf = appendNumber(b, params[2])
}

// setStrings makes the strings of the keys and of the packed charges, which point into buf.
// chargesEnd is the index in buf after the packed charges.
func (c *call) setStrings(chargesEnd int) {
	for i := 1; i < len(c.keyEnds); i++ {
		c.keys = append(c.keys, asString(c.buf[c.keyEnds[i-1]:c.keyEnds[i]]))
	}
	c.args[0] = asString(c.buf[:chargesEnd])
}

// encodeCharge packs a charge, beginning at buf[at], where there is room for it. It returns the
// charge's size. The comments at chargeSize and extensionSize list the fields.
func (c *call) encodeCharge(s *Store, ch *penstock.Charge, at int, now int64, script *script) int {
	params := paramsOf(ch, now)
	key, patience, holder, receipt := c.addKey(s, ch), ch.Patience.Microseconds(), c.holderNumber(ch), receiptOrSerial(ch)
	b := c.buf[at:] // not before addKey, which may reallocate buf
	size := chargeSize
	if script.kind == mixed {
		binary.LittleEndian.PutUint16(b, uint16(key))
		b[2] = script.number(ch.Plan.Algorithm())
		b, size = b[placeSize:], placeSize+chargeSize
	}
	mode := byte(ch.Mode)
	if ch.CountsDenial() {
		mode += byte(counted)
	}
	hasExtension := isExtended(ch, params)
	if hasExtension {
		mode += extended
		extension := b[chargeSize:]
		putNumber(extension, params[3])
		putNumber(extension[8:], patience)
		putNumber(extension[16:], holder)
		putNumber(extension[24:], receipt)
	}
	b[0] = mode
	binary.LittleEndian.PutUint32(b[1:], ch.Plan.Tag())
	putNumber(b[5:], ch.Cost)
	putNumber(b[13:], params[0])
	putNumber(b[21:], params[1])
	putNumber(b[29:], params[2])
	if hasExtension {
		size += extensionSize
	}
	return size
}

// paramsOf returns the parameters of a charge's limit. Those of a calendar algorithm depend on the
// time, which is that of this process if now is 0.
func paramsOf(ch *penstock.Charge, now int64) *algorithm.Params {
	if now == 0 && ch.Plan.Algorithm().IsCalendar() {
		now = time.Now().UnixMicro()
	}
	return ch.Plan.Params(now)
}

// addKey adds the key that has the state of a charge's limit, unless the call has it already. It
// returns the key's number, from 1.
func (c *call) addKey(s *Store, ch *penstock.Charge) int {
	start := len(c.buf)
	c.buf = s.keys.Append(c.buf, ch.Key, ch.Plan)
	for i := 1; i < len(c.keyEnds); i++ {
		if string(c.buf[c.keyEnds[i-1]:c.keyEnds[i]]) == string(c.buf[start:]) {
			c.buf = c.buf[:start]
			return i
		}
	}
	c.keyEnds = append(c.keyEnds, len(c.buf))
	return len(c.keyEnds) - 1
}

// holderNumber returns the number that stands for a charge's holder in the script. For an algorithm
// with a sorted set it is the index in ARGV of the holder's name. For the others it is the
// HolderID.
func (c *call) holderNumber(ch *penstock.Charge) int64 {
	if !ch.Plan.Algorithm().IsCollection() {
		return algorithm.HolderID(ch.Holder)
	}
	if ch.Holder == "" {
		return 0
	}
	c.args = append(c.args, ch.Holder)
	return int64(len(c.args))
}

// wantsReceipt stands for the receipt of a charge that may be refunded.
const wantsReceipt = -1

// receiptOrSerial returns the receipt of a Refund, wantsReceipt, or 0. For an algorithm without
// receipts, it returns the serial.
func receiptOrSerial(ch *penstock.Charge) int64 {
	switch {
	case !ch.Plan.Algorithm().HasExactRefunds():
		return ch.Serial
	case ch.Mode == penstock.Refund || ch.Mode > algorithm.Attempt:
		return ch.StoreReceipt()
	case ch.IsRefundable:
		return wantsReceipt
	}
	return 0
}

func decode(reply string, charges []penstock.Charge) penstock.Decision {
	size := len(reply) / len(charges)
	read := status
	if size == deniedSize {
		read = func(reply string, _ *penstock.Charge) penstock.Status { return deniedStatus(reply) }
	}
	if len(charges) == 1 {
		return penstock.Single(read(reply, &charges[0]))
	}
	statuses := make([]penstock.Status, len(charges))
	for i := range statuses {
		statuses[i] = read(reply[i*size:(i+1)*size], &charges[i])
	}
	return penstock.NewDecision(statuses)
}

// errCorrupt is the reply for a batch whose counters have a state that this store cannot have
// written.
const errCorrupt = ReplyError("CORRUPT the state of this key is malformed")

// isPossible reports whether all numbers of statuses are in the range of states that this store
// writes: at most 2^53 from zero. NaN and luagen.Impossible are not.
func isPossible(numbers string) bool {
	const largest = 1 << 53
	for ; len(numbers) >= numberSize; numbers = numbers[numberSize:] {
		if n := math.Float64frombits(binary.LittleEndian.Uint64([]byte(numbers[:numberSize]))); !(math.Abs(n) <= largest) {
			return false
		}
	}
	return true
}

// deniedStatus reads the status of a charge of which nothing was granted.
func deniedStatus(reply string) penstock.Status {
	return penstock.StatusOf(&algorithm.Outcome{Remaining: getNumber(reply), RetryAfter: getNumber(reply[8:]), ResetAfter: getNumber(reply[16:])})
}

// status reads one status. Its length tells which numbers it has: see statusSize, plainSize and
// receiptSize.
func status(reply string, c *penstock.Charge) penstock.Status {
	var receipt int64
	if n := len(reply) - receiptSize; n == plainSize || n == statusSize {
		receipt, reply = getNumber(reply[n:]), reply[:n]
	}
	if len(reply) == plainSize {
		return penstock.StatusOf(&algorithm.Outcome{Granted: c.Cost, Remaining: getNumber(reply), ResetAfter: getNumber(reply[8:]), Receipt: receipt})
	}
	return penstock.StatusOf(&algorithm.Outcome{
		Granted:    getNumber(reply),
		Remaining:  getNumber(reply[8:]),
		RetryAfter: getNumber(reply[16:]),
		ResetAfter: getNumber(reply[24:]),
		Wait:       getNumber(reply[32:]),
		Receipt:    receipt,
	})
}

// putNumber writes a number as a double, because Redis' Lua has no other numbers. Whole numbers up
// to 2^53 are exact.
func putNumber(b []byte, n int64) {
	binary.LittleEndian.PutUint64(b, math.Float64bits(float64(n)))
}

func appendNumber(b []byte, n int64) []byte {
	return binary.LittleEndian.AppendUint64(b, math.Float64bits(float64(n)))
}

func getNumber(s string) int64 {
	return int64(math.Float64frombits(binary.LittleEndian.Uint64([]byte(s[:8]))))
}

// asString returns b as a string, without a copy: b must not change while the string is in use.
func asString(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }
