package resplimit

import (
	"bytes"
	"errors"
	"io"
	"math"
	"strconv"
)

// The bounds of what a client may send. A declared length is checked against them before anything
// is allocated.
const (
	maxArgs   = 16       // arguments of a command, including its name
	maxBulk   = 4 << 10  // bytes of an argument
	maxInline = 64 << 10 // bytes of a line that is an inline command
	maxHeader = 32       // bytes of a line that declares a length

	// maxBuffer is the bytes of the longest command: 16 arguments, each with a header and CRLF, or an
	// inline command.
	maxBuffer = maxArgs*(maxBulk+maxHeader+2) + maxHeader

	minBuffer = 4 << 10 // bytes that an idle connection keeps

	// maxBeforeAuth is the bytes of the longest command before AUTH: an AUTH with the longest password
	// fits.
	maxBeforeAuth = 8 << 10
)

// A protocolError ends a connection. If Redis has the same error, the text is that of Redis.
type protocolError string

func (e protocolError) Error() string { return "ERR Protocol error: " + string(e) }

const (
	errArrayLength protocolError = "invalid multibulk length"
	errArrayHeader protocolError = "too big mbulk count string"
	errBulkLength  protocolError = "invalid bulk length"
	errBulkHeader  protocolError = "too big bulk count string"
	errBulkEnd     protocolError = "expected CRLF after an argument"
	errInline      protocolError = "too big inline request"
	errQuotes      protocolError = "unbalanced quotes in request"
)

// errFull happens only before AUTH: maxBuffer has room for every command within the bounds.
var errFull = errors.New("resplimit: a command before AUTH is too large")

// A reader reads commands: arrays of bulk strings, or lines of words. A reader holds at most
// maxBuffer bytes. Its work for a command is linear in the command's bytes, however these arrive.
type reader struct {
	source     io.Reader
	buffer     []byte
	start, end int // buffer[start:end] has been received and not parsed yet
	scanned    int // how many bytes from start on were searched for a newline
	most       int // bytes that the buffer may have: maxBuffer, or maxBeforeAuth
	args       [maxArgs][]byte
}

func newReader(source io.Reader) *reader {
	return &reader{source: source, buffer: make([]byte, minBuffer), most: maxBuffer}
}

// fill reads once. It invalidates the arguments that next has returned.
func (r *reader) fill() error {
	if r.start == r.end {
		r.start, r.end = 0, 0
		if len(r.buffer) > minBuffer {
			r.buffer = make([]byte, minBuffer)
		}
	}
	if r.end == len(r.buffer) {
		if err := r.makeRoom(); err != nil {
			return err
		}
	}
	n, err := r.source.Read(r.buffer[r.end:])
	r.end += n
	if n > 0 {
		return nil // the next Read returns the error again
	}
	return err
}

// makeRoom makes room at the end of the buffer. The buffer is doubled only if all of it is in use,
// so it is at most twice as long as what was received.
func (r *reader) makeRoom() error {
	switch {
	case r.start > 0:
		copy(r.buffer, r.buffer[r.start:r.end])
	case len(r.buffer) >= r.most:
		return errFull
	default:
		larger := make([]byte, min(2*len(r.buffer), r.most))
		copy(larger, r.buffer[:r.end])
		r.buffer = larger
	}
	r.start, r.end = 0, r.end-r.start
	return nil
}

// isPartial reports whether the buffer has the beginning of a command.
func (r *reader) isPartial() bool { return r.start < r.end }

// next returns the next command in the buffer, or nil if the buffer has no complete command. The
// arguments are valid until the next fill. Empty commands are ignored, as in Redis.
func (r *reader) next() (args [][]byte, err error) {
	for r.start < r.end {
		data := r.buffer[r.start:r.end]
		n, size := 0, 0
		if data[0] == '*' {
			n, size, err = r.parseArray(data)
		} else {
			n, size, err = r.parseInline(data)
		}
		if err != nil || size == 0 {
			return nil, err
		}
		r.start, r.scanned = r.start+size, 0
		if n > 0 {
			return r.args[:n], nil
		}
	}
	return nil, nil
}

// parseArray parses a command that is an array. It returns the number of arguments, and the size in
// bytes. The size is 0 if the command is not complete.
func (r *reader) parseArray(data []byte) (n, size int, err error) {
	count, at, err := parseHeader(data, 1, errArrayLength, errArrayHeader)
	switch {
	case err != nil || at == 0:
		return 0, 0, err
	case count > maxArgs:
		return 0, 0, errArrayLength
	case count <= 0:
		return 0, at, nil
	}
	for i := range int(count) {
		if at == len(data) {
			return 0, 0, nil
		}
		if data[at] != '$' {
			return 0, 0, protocolError("expected '$', got '" + string(data[at:at+1]) + "'")
		}
		length, begin, err := parseHeader(data, at+1, errBulkLength, errBulkHeader)
		switch {
		case err != nil || begin == 0:
			return 0, 0, err
		case length < 0 || length > maxBulk:
			return 0, 0, errBulkLength
		}
		end := begin + int(length)
		if len(data) < end+2 {
			return 0, 0, nil
		}
		if data[end] != '\r' || data[end+1] != '\n' {
			return 0, 0, errBulkEnd
		}
		r.args[i] = data[begin:end:end]
		at = end + 2
	}
	return int(count), at, nil
}

// parseHeader parses the number at data[from:], and returns where its line ends. The end is 0 if
// the line is not complete.
func parseHeader(data []byte, from int, invalid, tooLong protocolError) (n int64, end int, err error) {
	line := data[from:]
	length := bytes.IndexByte(line[:min(len(line), maxHeader)], '\r')
	switch {
	case length < 0 && len(line) >= maxHeader:
		return 0, 0, tooLong
	case length < 0 || length+1 == len(line):
		return 0, 0, nil
	}
	n, ok := parseInt(line[:length])
	if !ok || line[length+1] != '\n' {
		return 0, 0, invalid
	}
	return n, from + length + 2, nil
}

// parseInt parses a number as Redis does: no sign but '-', no leading zeros, no spaces.
func parseInt(text []byte) (int64, bool) {
	digits, isNegative := text, false
	if len(text) > 0 && text[0] == '-' {
		digits, isNegative = text[1:], true
	}
	if len(digits) == 0 || digits[0] == '0' && len(text) > 1 {
		return 0, false
	}
	var n uint64
	for _, c := range digits {
		if c < '0' || c > '9' || n > (math.MaxUint64-9)/10 {
			return 0, false
		}
		n = 10*n + uint64(c-'0')
	}
	switch {
	case isNegative && n <= -math.MinInt64:
		return -int64(n), true
	case !isNegative && n <= math.MaxInt64:
		return int64(n), true
	}
	return 0, false
}

// parseInline parses a line of words. It returns what parseArray returns.
func (r *reader) parseInline(data []byte) (n, size int, err error) {
	found := bytes.IndexByte(data[r.scanned:], '\n')
	if found < 0 {
		r.scanned = len(data)
		if len(data) > maxInline {
			return 0, 0, errInline
		}
		return 0, 0, nil
	}
	end := r.scanned + found
	if end > maxInline {
		return 0, 0, errInline
	}
	n, err = r.splitWords(bytes.TrimSuffix(data[:end], []byte("\r")))
	return n, end + 1, err
}

// splitWords splits a line at spaces into r.args. A word may be quoted: "…" with the escapes of C,
// or '…' with \' only. Words are unquoted in place, because none gets longer.
func (r *reader) splitWords(line []byte) (n int, err error) {
	for at := 0; ; {
		for at < len(line) && isSpace(line[at]) {
			at++
		}
		if at == len(line) {
			return n, nil
		}
		word, next, ok := unquote(line, at)
		switch {
		case !ok:
			return 0, errQuotes
		case n == maxArgs:
			return 0, errArrayLength
		case len(word) > maxBulk:
			return 0, errBulkLength
		}
		r.args[n] = word
		n, at = n+1, next
	}
}

// unquote returns the word that begins at line[at], and where it ends. A closing quote must be
// followed by a space or by the end of the line.
func unquote(line []byte, at int) (word []byte, next int, ok bool) {
	begin, to := at, at // to is where the next unquoted byte is written
	quote := byte(0)    // the open quote; 0: none
	for ; at < len(line); at++ {
		c := line[at]
		switch {
		case quote == 0 && isSpace(c):
			return line[begin:to:to], at, true
		case quote == 0 && (c == '"' || c == '\''):
			quote = c
			continue
		case quote != 0 && c == quote:
			if at+1 < len(line) && !isSpace(line[at+1]) {
				return nil, 0, false
			}
			return line[begin:to:to], at + 1, true
		case quote == '"' && c == '\\' && at+1 < len(line):
			c, at = unescape(line, at+1)
		case quote == '\'' && c == '\\' && at+1 < len(line) && line[at+1] == '\'':
			c, at = '\'', at+1
		}
		line[to] = c
		to++
	}
	return line[begin:to:to], at, quote == 0
}

// unescape returns the byte of the escape at line[at], after the backslash, and the index of the
// last byte of the escape.
func unescape(line []byte, at int) (c byte, last int) {
	switch c = line[at]; c {
	case 'n':
		c = '\n'
	case 'r':
		c = '\r'
	case 't':
		c = '\t'
	case 'b':
		c = '\b'
	case 'a':
		c = '\a'
	case 'x':
		if at+2 < len(line) {
			if value, err := strconv.ParseUint(string(line[at+1:at+3]), 16, 8); err == nil {
				return byte(value), at + 2
			}
		}
	}
	return c, at
}

// isSpace reports whether a byte ends a word: one for which isspace of C is true, or NUL.
func isSpace(c byte) bool { return c == ' ' || c >= '\t' && c <= '\r' || c == 0 }
