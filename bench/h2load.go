package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/penstock/penstock/internal/directsocket"
)

// An h2Load calls a unary gRPC method on one connection, with many streams. Its frames are prepared
// in advance, and it writes as many as possible at once. So it needs less than 1 µs of CPU time for
// a call.
type h2Load struct {
	conn    io.ReadWriter
	headers []byte // header block of the first request, which fills the server's dynamic table
	indexed []byte // header block of all other requests, with indexes only
	message []byte
	streams int // calls that are open at the same time
	digits  int // where the key's digits begin in message; negative: the message has no key

	received        []byte
	readAt, writeAt int    // positions in received: of the next frame, and of the end of the data
	out             []byte // frames that are not sent yet
	nextID          uint32 // of the next stream
	lastKey         int
	begun           map[uint32]time.Time // open calls, by stream
	unacked         int                  // bytes of DATA without a WINDOW_UPDATE

	times []float64 // µs of each call of the last run
}

const (
	loadKeys  = 100_000 // number of keys
	keyDigits = 6       // digits of each key

	frameHeader       = 9 // bytes of a frame's header
	settingSize       = 6 // bytes of a setting in a SETTINGS frame: its name and its value
	windowUpdateSize  = 4 // bytes of a WINDOW_UPDATE
	pingSize          = 8 // bytes of a PING
	goAwayHeader      = 8 // bytes of a GOAWAY before its message
	grpcMessageHeader = 5 // bytes: a flag for compression, and the length of the message
)

// dialH2 connects to a server. The message has keyDigits zeros at the position digits. The load
// replaces them by a key. digits is negative if the message has no key.
func dialH2(address, method string, message []byte, digits, streams int) (*h2Load, error) {
	conn, err := net.Dial("tcp", address)
	if err != nil {
		return nil, err
	}
	l := &h2Load{conn: directsocket.New(conn), message: message, digits: digits, streams: streams, received: make([]byte, 64<<10), nextID: 1, begun: make(map[uint32]time.Time)}
	fields := []hpack.HeaderField{
		{Name: ":method", Value: "POST"}, {Name: ":scheme", Value: "http"}, {Name: ":path", Value: method}, {Name: ":authority", Value: "limits.example"},
		{Name: "te", Value: "trailers"}, {Name: "content-type", Value: "application/grpc"}, {Name: "grpc-timeout", Value: "2S"},
	}
	var encoded byteWriter
	encoder := hpack.NewEncoder(&encoded)
	for _, f := range fields {
		if err := encoder.WriteField(f); err != nil {
			return nil, err
		}
	}
	l.headers, l.indexed = encoded, indexedBlock(len(fields))
	l.out = append(l.out, http2.ClientPreface...)
	l.out = appendHeader(l.out, settingSize, http2.FrameSettings, 0, 0)
	l.out = binary.BigEndian.AppendUint16(l.out, uint16(http2.SettingInitialWindowSize))
	const streamWindow = 1 << 20 // bytes
	l.out = binary.BigEndian.AppendUint32(l.out, streamWindow)
	l.out = appendHeader(l.out, windowUpdateSize, http2.FrameWindowUpdate, 0, 0)
	l.out = binary.BigEndian.AppendUint32(l.out, h2Window)
	return l, nil
}

// indexedBlock returns the header block of a request whose header fields are all in the tables of
// HPACK (RFC 7541). The first two fields are :method POST and :scheme http, which are in the static
// table. All others are in the dynamic table, where the last field has the lowest index.
func indexedBlock(fields int) []byte {
	const (
		indexed      = 0x80 // flag of an indexed field
		methodPost   = 3
		schemeHTTP   = 6
		firstDynamic = 62
	)
	block := []byte{indexed | methodPost, indexed | schemeHTTP}
	for dynamic := fields - len(block) - 1; dynamic >= 0; dynamic-- {
		block = append(block, indexed|byte(firstDynamic+dynamic))
	}
	return block
}

// h2Window is how many bytes of DATA the server may send on the connection before it gets another
// WINDOW_UPDATE.
const h2Window = 1 << 28

type byteWriter []byte

func (w *byteWriter) Write(p []byte) (int, error) {
	*w = append(*w, p...)
	return len(p), nil
}

// appendHeader appends the header of a frame on the stream id. The frame has length bytes after its
// header.
func appendHeader(b []byte, length int, t http2.FrameType, flags http2.Flags, id uint32) []byte {
	b = append(b, byte(length>>16), byte(length>>8), byte(length), byte(t), byte(flags))
	return binary.BigEndian.AppendUint32(b, id)
}

func (l *h2Load) durations() []float64 { return l.times }

// run keeps all streams busy until a time, and returns after the last response.
func (l *h2Load) run(until time.Time) error {
	l.times = l.times[:0]
	now := time.Now()
	for range l.streams {
		l.call(now)
	}
	for len(l.begun) > 0 {
		if err := l.send(); err != nil {
			return err
		}
		if l.readAt > 0 {
			l.writeAt = copy(l.received, l.received[l.readAt:l.writeAt])
			l.readAt = 0
		}
		n, err := l.conn.Read(l.received[l.writeAt:])
		if err != nil {
			return err
		}
		l.writeAt += n
		now = time.Now()
		if err := l.receive(now, now.Before(until)); err != nil {
			return err
		}
	}
	return l.send()
}

// send writes the frames that are not sent yet.
func (l *h2Load) send() error {
	if len(l.out) == 0 {
		return nil
	}
	_, err := l.conn.Write(l.out)
	l.out = l.out[:0]
	return err
}

// call starts a call on a new stream: it appends the request's frames to out.
func (l *h2Load) call(now time.Time) {
	id := l.nextID
	l.nextID += 2
	l.begun[id] = now
	block := l.indexed
	if id == 1 {
		block = l.headers
	}
	l.out = appendHeader(l.out, len(block), http2.FrameHeaders, http2.FlagHeadersEndHeaders, id)
	l.out = append(l.out, block...)
	l.out = appendHeader(l.out, grpcMessageHeader+len(l.message), http2.FrameData, http2.FlagDataEndStream, id)
	l.out = append(l.out, 0) // not compressed
	l.out = binary.BigEndian.AppendUint32(l.out, uint32(len(l.message)))
	start := len(l.out)
	l.out = append(l.out, l.message...)
	if l.digits >= 0 {
		l.lastKey = keyAfter(l.lastKey)
		putKey(l.out[start+l.digits:], l.lastKey)
	}
}

var (
	errTooLarge = errors.New("the server sent a frame that is too large for the buffer of 64 KiB")
	errUnknown  = errors.New("the server sent a response on a stream that has no open call")
)

// receive handles all frames that have arrived. If shouldContinue is true, it starts another call
// for each call that has ended.
func (l *h2Load) receive(now time.Time, shouldContinue bool) error {
	for l.writeAt-l.readAt >= frameHeader {
		header := l.received[l.readAt : l.readAt+frameHeader]
		length := int(binary.BigEndian.Uint32(header) >> 8) // the first three bytes
		if l.writeAt-l.readAt < frameHeader+length {
			if frameHeader+length > len(l.received) {
				return errTooLarge
			}
			return nil
		}
		payload := l.received[l.readAt+frameHeader : l.readAt+frameHeader+length]
		l.readAt += frameHeader + length
		id, flags := binary.BigEndian.Uint32(header[5:])&0x7fffffff, http2.Flags(header[4])
		switch http2.FrameType(header[3]) {
		case http2.FrameSettings:
			if !flags.Has(http2.FlagSettingsAck) {
				l.out = appendHeader(l.out, 0, http2.FrameSettings, http2.FlagSettingsAck, 0)
			}
		case http2.FramePing:
			if !flags.Has(http2.FlagPingAck) {
				l.out = appendHeader(l.out, pingSize, http2.FramePing, http2.FlagPingAck, 0)
				l.out = append(l.out, payload...)
			}
		case http2.FrameData:
			l.unacked += length
			if l.unacked > h2Window/2 {
				l.out = appendHeader(l.out, windowUpdateSize, http2.FrameWindowUpdate, 0, 0)
				l.out = binary.BigEndian.AppendUint32(l.out, uint32(l.unacked))
				l.unacked = 0
			}
		case http2.FrameGoAway:
			return fmt.Errorf("the server sent GOAWAY: %q", payload[goAwayHeader:])
		case http2.FrameRSTStream:
			return fmt.Errorf("the server canceled a call: %v", http2.ErrCode(binary.BigEndian.Uint32(payload)))
		case http2.FrameHeaders:
			if !flags.Has(http2.FlagHeadersEndStream) {
				continue
			}
			begun, isOpen := l.begun[id]
			if !isOpen {
				return errUnknown
			}
			delete(l.begun, id)
			l.times = append(l.times, float64(now.Sub(begun).Nanoseconds())/1e3)
			if shouldContinue {
				l.call(now)
			}
		}
	}
	return nil
}
