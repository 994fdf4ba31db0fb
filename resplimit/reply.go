package resplimit

import "strconv"

// A reply is built in memory, in version 2 or 3 of the protocol. Each method appends a value of a
// RESP type.
type reply struct {
	bytes       []byte
	respVersion int // 2 or 3
}

func (r *reply) simple(text string) {
	r.bytes = append(r.bytes, '+')
	r.bytes = append(r.bytes, text...)
	r.end()
}

// fail writes an error. The error's text may have bytes of the client. Line breaks become spaces,
// so that no client can write a reply of its own.
func (r *reply) fail(text string) {
	r.bytes = append(r.bytes, '-')
	for i := range len(text) {
		c := text[i]
		if c == '\r' || c == '\n' {
			c = ' '
		}
		r.bytes = append(r.bytes, c)
	}
	r.end()
}

func (r *reply) integer(n int64) { r.number(':', n) }

func (r *reply) bulk(text string) {
	r.number('$', int64(len(text)))
	r.bytes = append(r.bytes, text...)
	r.end()
}

// text writes a text for people: a verbatim string in version 3, and a bulk string in version 2.
func (r *reply) text(text string) {
	if r.respVersion < 3 {
		r.bulk(text)
		return
	}
	r.number('=', int64(len(text)+len("txt:")))
	r.bytes = append(r.bytes, "txt:"...)
	r.bytes = append(r.bytes, text...)
	r.end()
}

func (r *reply) null() {
	if r.respVersion < 3 {
		r.bytes = append(r.bytes, "$-1\r\n"...)
	} else {
		r.bytes = append(r.bytes, "_\r\n"...)
	}
}

func (r *reply) array(n int) { r.number('*', int64(n)) }

// pairs begins n names with their values: a map in version 3, and a flat array in version 2.
func (r *reply) pairs(n int) {
	if r.respVersion < 3 {
		r.array(2 * n)
	} else {
		r.number('%', int64(n))
	}
}

func (r *reply) number(kind byte, n int64) {
	r.bytes = append(r.bytes, kind)
	r.bytes = strconv.AppendInt(r.bytes, n, 10)
	r.end()
}

func (r *reply) end() { r.bytes = append(r.bytes, '\r', '\n') }
