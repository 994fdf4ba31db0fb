package fastgrpc

import (
	"encoding/binary"
	"io"
	"net"
)

// input is the read buffer of a connection. The buffer begins small, because many connections are
// idle, and grows until it has room for any frame.
type input struct {
	nc   net.Conn
	buf  []byte
	r, w int // the unread bytes are buf[r:w]
}

// minInput is the size of buf in bytes after the first read. maxInput is its largest size.
const (
	minInput = 4 << 10
	maxInput = 32 << 10 // more than a frame, which has at most frameHeader + maxFrameBytes
)

// buffered returns how many bytes are unread.
func (in *input) buffered() int { return in.w - in.r }

// hasFrame reports whether the unread bytes begin with a whole frame, or with one that is too
// large.
func (in *input) hasFrame() bool {
	n := in.buffered()
	if n < frameHeader {
		return false
	}
	length := int(binary.BigEndian.Uint32(in.buf[in.r:]) >> 8)
	return n-frameHeader >= length || length > maxFrameBytes
}

// fill reads from the connection once, and makes room first if the buffer is full.
func (in *input) fill() error {
	if in.r == in.w {
		in.r, in.w = 0, 0
	} else if in.r > 0 {
		in.w = copy(in.buf, in.buf[in.r:in.w])
		in.r = 0
	}
	if in.w == len(in.buf) {
		buf := make([]byte, min(max(minInput, 2*len(in.buf)), maxInput))
		in.w = copy(buf, in.buf[:in.w])
		in.buf = buf
	}
	n, err := in.nc.Read(in.buf[in.w:])
	in.w += n
	if n > 0 {
		return nil
	}
	if err == nil {
		err = io.ErrNoProgress
	}
	return err
}

// Read reads what is buffered. The framer calls it only for a whole frame.
func (in *input) Read(p []byte) (int, error) {
	if in.r == in.w {
		return 0, io.ErrUnexpectedEOF
	}
	n := copy(p, in.buf[in.r:in.w])
	in.r += n
	return n, nil
}
