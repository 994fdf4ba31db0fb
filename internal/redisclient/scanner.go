package redisclient

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
)

// A commandScanner finds the ends of the commands that rueidis writes.
type commandScanner struct {
	number    int  // the digits of the header that is being read, so far
	isArray   bool // the header is that of the command, not of an argument
	left      int  // arguments that are still to come
	skip      int  // bytes of the argument, and of its end of line, that are still to come
	arguments int  // of this command, so far

	start  [64]byte // the first two arguments, each with its end of line
	length int

	begin       [stampAt + StampSize]byte // of a later argument
	beginLength int
	isStamped   bool // an argument of the command has a stamp
	stamp       [stampNumberSize]byte
}

// scan reads up to the end of a command, and returns the rest.
func (s *commandScanner) scan(b []byte) (rest []byte, isComplete bool) {
	for len(b) > 0 {
		if s.skip == 0 {
			b = s.readHeader(b)
			continue
		}
		n := min(s.skip, len(b))
		if s.arguments < 2 {
			s.length += copy(s.start[s.length:], b[:n])
		} else {
			s.beginLength += copy(s.begin[s.beginLength:], b[:n])
		}
		b = b[n:]
		if s.skip -= n; s.skip > 0 {
			break
		}
		s.findStamp()
		s.arguments++
		if s.left--; s.left == 0 {
			return b, true
		}
	}
	return nil, false
}

// findStamp looks for a stamp in an argument that has been read.
func (s *commandScanner) findStamp() {
	if s.beginLength == len(s.begin) && [len(stampBegin)]byte(s.begin[stampAt:]) == stampBegin {
		s.isStamped, s.stamp = true, [stampNumberSize]byte(s.begin[stampAt+len(stampBegin):])
	}
	s.beginLength = 0
}

func (s *commandScanner) readHeader(b []byte) (rest []byte) {
	number := s.number
	for i, c := range b {
		switch {
		case '0' <= c && c <= '9':
			number = number*10 + int(c-'0')
		case c == '*':
			s.isArray = true
		case c == '\n':
			s.number = 0
			if s.isArray {
				s.left, s.arguments, s.length, s.isArray, s.isStamped = number, 0, 0, false, false
			} else {
				s.skip = number + len("\r\n")
			}
			return b[i+1:]
		}
	}
	s.number = number
	return nil
}

// words returns the first two arguments of a command, as far as they fit into start.
func (s *commandScanner) words() (name, argument []byte) {
	name, rest, _ := bytes.Cut(s.start[:s.length], []byte{'\r'})
	argument, _, _ = bytes.Cut(rest, []byte{'\r'})
	return name, bytes.TrimPrefix(argument, []byte{'\n'})
}

// The bounds of a reply. The largest one that a Store needs is CLUSTER SLOTS of a Cluster in which
// each range has one slot: about 400,000 elements and 5 MB.
const (
	maxReplyBytes    = 16 << 20 // of all its texts
	maxReplyElements = 1 << 19
	maxReplyDepth    = 8
	maxDigits        = 19      // of an int64
	largestNumber    = 1 << 50 // larger ones are read as this one
	maxField         = 512     // bytes of each field that are kept
)

// A replyScanner finds the ends of replies, and the first malformed byte. It accepts the types that
// Redis and Valkey send in RESP 2 and 3. They send neither streamed values nor attributes.
type replyScanner struct {
	state      scanState
	kind       byte  // the type of the value that is being read
	isHeader   bool  // the line that is being read is a length, after which the value follows
	number     int64 // the length; in inText, the bytes that are still to come
	digits     int
	isNegative bool

	// About the reply that is being read:
	top      byte                 // its type
	elements int64                // if it is an aggregate: its elements, or -1 for a null; else -1
	depth    int                  // aggregates that are open
	left     [maxReplyDepth]int64 // elements of each of them that are still to come
	total    int64                // elements of all aggregates
	size     int64                // bytes of all texts

	head       [stampNumberSize]byte // the first bytes of the first string
	headLength int

	isKept bool      // fields are kept; those of errors and pushes always are
	field  int       // the index of the field that is being read; beyond fields: none
	fields [3][]byte // the beginning of the reply's text, or of the texts of its first elements
}

type scanState int

const (
	atType scanState = iota
	inNumber
	inBool
	inLine
	inText
	atCR
	atLF
)

func (r *replyScanner) isAtStart() bool  { return r.state == atType && r.depth == 0 }
func (r *replyScanner) isComplete() bool { return r.isAtStart() && r.top != 0 }
func (r *replyScanner) isPush() bool     { return r.top == '>' }
func (r *replyScanner) isError() bool    { return r.top == '-' || r.top == '!' }

// isPong reports whether rueidis takes the reply for that of PING. A rejection counts too.
func (r *replyScanner) isPong() bool {
	text := r.fields[0]
	if r.top == '-' && (bytes.HasPrefix(text, []byte("LOADING")) || bytes.HasPrefix(text, []byte("BUSY")) || bytes.Contains(text, []byte("'ping'"))) {
		return true
	}
	return r.elements < 0 && string(text) == "PONG" || r.elements > 0 && string(text) == "pong"
}

// scan reads up to the end of a reply, or up to a malformed byte. It returns how many bytes it has
// read, without the malformed one.
func (r *replyScanner) scan(b []byte) (n int, err error) {
	for n < len(b) {
		if r.state == inText {
			length := int(min(r.number, int64(len(b)-n)))
			r.keep(b[n : n+length])
			r.headLength += copy(r.head[r.headLength:], b[n:n+length])
			n += length
			if r.number -= int64(length); r.number == 0 {
				r.state = atCR
			}
			continue
		}
		if err := r.step(b[n]); err != nil {
			return n, err
		}
		n++
		if r.isAtStart() {
			break
		}
	}
	return n, nil
}

var errSyntax = errors.New("malformed reply: not the protocol of Redis; is this the port of another program?")

func (r *replyScanner) step(c byte) error {
	switch r.state {
	case atType:
		return r.begin(c)
	case inNumber:
		switch {
		case c == '\r' && r.digits > 0:
			r.state = atLF
		case c == '-' && r.digits == 0 && !r.isNegative:
			r.isNegative = true
		case '0' <= c && c <= '9' && r.digits < maxDigits:
			r.number = min(r.number*10+int64(c-'0'), largestNumber)
			r.digits++
		default:
			return errSyntax
		}
	case inBool:
		if c != 't' && c != 'f' {
			return errSyntax
		}
		r.state = atCR
	case inLine:
		if c == '\r' {
			r.state = atLF
			return nil
		}
		if r.size++; c == '\n' || r.size > maxReplyBytes {
			return errSyntax
		}
		r.keep([]byte{c})
	case atCR:
		if c != '\r' {
			return errSyntax
		}
		r.state = atLF
	case atLF:
		if c != '\n' {
			return errSyntax
		}
		if r.isHeader {
			r.isHeader = false
			return r.open()
		}
		r.end()
	}
	return nil
}

func (r *replyScanner) begin(c byte) error {
	if r.depth == 0 {
		r.top, r.elements, r.total, r.size, r.headLength = c, -1, 0, 0, 0
		r.isKept = r.isKept || c == '>' || r.isError()
		r.field = 0
		for i := range r.fields {
			r.fields[i] = r.fields[i][:0]
		}
	} else if r.depth > 1 {
		r.field = len(r.fields)
	}
	r.kind = c
	switch c {
	case '+', '-', ',', '(':
		r.state = inLine
	case '$', '!', '=', '*', '%', '~', '>':
		if c == '>' && r.depth > 0 {
			return errSyntax
		}
		r.isHeader = true
		fallthrough
	case ':':
		r.state, r.number, r.digits, r.isNegative = inNumber, 0, 0, false
	case '_':
		r.state = atCR
	case '#':
		r.state = inBool
	default:
		return errSyntax
	}
	return nil
}

// open begins the text or the elements of a value after its length.
func (r *replyScanner) open() error {
	isNull := r.isNegative && r.number == 1 && (r.kind == '$' || r.kind == '*')
	switch {
	case isNull:
		r.end()
		return nil
	case r.isNegative:
		return fmt.Errorf("malformed reply: the length -%d", r.number)
	}
	if r.kind == '$' || r.kind == '!' || r.kind == '=' {
		if r.size += r.number; r.number > maxReplyBytes || r.size > maxReplyBytes {
			return fmt.Errorf("malformed reply: it has more than %d bytes", maxReplyBytes)
		}
		r.state = inText
		if r.number == 0 {
			r.state = atCR
		}
		return nil
	}
	if r.number > maxReplyElements {
		return fmt.Errorf("malformed reply: it has more than %d elements", maxReplyElements)
	}
	elements := r.number
	if r.kind == '%' {
		elements *= 2
	}
	if r.total += elements; r.total > maxReplyElements {
		return fmt.Errorf("malformed reply: it has more than %d elements", maxReplyElements)
	}
	if r.depth == 0 {
		r.elements = elements
	}
	if elements == 0 {
		r.end()
		return nil
	}
	if r.depth == maxReplyDepth {
		return fmt.Errorf("malformed reply: more than %d aggregates are nested", maxReplyDepth)
	}
	r.left[r.depth] = elements
	r.depth++
	r.state = atType
	return nil
}

// end ends a value, and the aggregates of which it is the last element.
func (r *replyScanner) end() {
	r.state = atType
	for r.depth > 0 {
		if r.left[r.depth-1]--; r.left[r.depth-1] > 0 {
			break
		}
		r.depth--
	}
	if r.depth == 1 {
		r.field = int(min(r.elements-r.left[0], int64(len(r.fields))))
	}
}

func (r *replyScanner) keep(text []byte) {
	if r.isKept && r.field < len(r.fields) {
		f := &r.fields[r.field]
		*f = append(*f, text[:min(len(text), maxField-len(*f))]...)
	}
}

// A stamp shows which call a reply answers. In the protocol of Redis, only the order of the replies
// shows that: if one reply is lost or comes twice, each later one seems to answer another command.
// So a script gets a stamp, and begins its reply with the stamp's number.
//
// A stamp has 6 bytes that are the same for all calls of this process, and 2 bytes with the number.
const (
	StampSize = 8
	stampAt   = 8 // index of the stamp in an argument of a script

	stampNumberSize = 2
)

// stampBegin is random, so that no key or argument of a user is taken for a stamp.
var stampBegin = [StampSize - stampNumberSize]byte(binary.LittleEndian.AppendUint64(nil, rand.Uint64())[:])

// PutStamp writes the stamp of a number to an argument, after the first 8 bytes.
func PutStamp(argument []byte, number uint16) {
	copy(argument[stampAt:], stampBegin[:])
	binary.LittleEndian.PutUint16(argument[stampAt+len(stampBegin):], number)
}

var errOtherStamp = errors.New("the script's reply is that of another call")

// CutStamp returns a reply without the stamp's number. It returns an error if the reply begins with
// another number.
func CutStamp(reply string, number uint16) (string, error) {
	if len(reply) < stampNumberSize || binary.LittleEndian.Uint16([]byte(reply[:stampNumberSize])) != number {
		return "", errOtherStamp
	}
	return reply[stampNumberSize:], nil
}
