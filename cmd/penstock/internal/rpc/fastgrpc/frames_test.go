package fastgrpc_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/penstock/penstock/cmd/penstock/internal/rpc/fastgrpc"
)

// A rawClient is a client that can send any frame, even an invalid one. Errors of writes are only
// logged, because the server may have closed the connection.
type rawClient struct {
	testing.TB
	net.Conn
	*http2.Framer
	encoder *hpack.Encoder
	block   bytes.Buffer // what encoder has written
}

// dialRaw connects, and sends the preface and the client's settings.
func dialRaw(t testing.TB, address string, settings ...http2.Setting) *rawClient {
	t.Helper()
	r := connectRaw(t, address)
	r.begin(settings...)
	return r
}

// begin sends the preface and the client's settings.
func (r *rawClient) begin(settings ...http2.Setting) {
	r.write([]byte(http2.ClientPreface))
	r.logError(r.WriteSettings(settings...))
}

// connectRaw connects, and sends nothing.
func connectRaw(t testing.TB, address string) *rawClient {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	conn.SetDeadline(time.Now().Add(time.Minute))
	return newRaw(t, conn)
}

func newRaw(t testing.TB, conn net.Conn) *rawClient {
	r := &rawClient{TB: t, Conn: conn, Framer: http2.NewFramer(conn, conn)}
	r.AllowIllegalWrites = true
	r.ReadMetaHeaders = hpack.NewDecoder(4096, nil) // the size of a header table in bytes: the default of HTTP/2
	r.encoder = hpack.NewEncoder(&r.block)
	return r
}

func (r *rawClient) write(b []byte) {
	r.Helper()
	if _, err := r.Conn.Write(b); err != nil {
		r.Logf("write: %v", err)
	}
}

func (r *rawClient) logError(err error) {
	r.Helper()
	if err != nil {
		r.Logf("write: %v", err)
	}
}

// fields returns the headers of a valid request with changes. The changes are names, each followed
// by its new value. An empty value removes the field. An unknown name adds a field.
func fields(changes ...string) (list []hpack.HeaderField) {
	list = []hpack.HeaderField{
		{Name: ":method", Value: "POST"}, {Name: ":scheme", Value: "http"}, {Name: ":path", Value: method}, {Name: ":authority", Value: "a.example"},
		{Name: "content-type", Value: "application/grpc"}, {Name: "te", Value: "trailers"},
	}
	for i := 0; i < len(changes); i += 2 {
		name, value, isKnown := changes[i], changes[i+1], false
		for j := range list {
			if list[j].Name == name {
				list[j].Value, isKnown = value, true
			}
		}
		if !isKnown {
			list = append(list, hpack.HeaderField{Name: name, Value: value})
		}
	}
	kept := list[:0]
	for _, f := range list {
		if f.Value != "" {
			kept = append(kept, f)
		}
	}
	return kept
}

// encode returns a header block, which is valid until the next call.
func (r *rawClient) encode(list []hpack.HeaderField) []byte {
	r.block.Reset()
	for _, f := range list {
		r.encoder.WriteField(f)
	}
	return r.block.Bytes()
}

func (r *rawClient) headers(id uint32, isEnd bool, list []hpack.HeaderField) {
	r.logError(r.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: r.encode(list), EndHeaders: true, EndStream: isEnd}))
}

// message returns an encoded request with its prefix of 5 bytes.
func message(domain string) []byte {
	m, err := proto.Marshal(&rls.RateLimitRequest{Domain: domain})
	if err != nil {
		panic(err)
	}
	return append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(m))), m...)
}

// call sends a whole request. The changes are those of fields.
func (r *rawClient) call(id uint32, domain string, changes ...string) {
	r.headers(id, false, fields(changes...))
	r.logError(r.WriteData(id, true, message(domain)))
}

// outcome reads until a stream or the connection ends, and returns how this ended. An answer is
// such as "200/0 answered": the HTTP status, the gRPC status, and whether a message came. Other
// ends are such as "reset CANCEL", "goaway NO_ERROR" or "closed".
func (r *rawClient) outcome(id uint32) string {
	r.Helper()
	httpStatus, grpcStatus, text := "", "", ""
	for {
		f, err := r.ReadFrame()
		if err != nil {
			if err == io.EOF || strings.Contains(err.Error(), "reset by peer") {
				return "closed"
			}
			r.Fatalf("read a frame of the server: %v", err)
		}
		switch f := f.(type) {
		case *http2.SettingsFrame:
			if !f.IsAck() {
				r.logError(r.WriteSettingsAck())
			}
		case *http2.MetaHeadersFrame:
			if f.StreamID != id {
				continue
			}
			for _, h := range f.Fields {
				switch h.Name {
				case ":status":
					httpStatus = h.Value
				case "grpc-status":
					grpcStatus = h.Value
				}
			}
			if f.StreamEnded() {
				return strings.TrimSpace(fmt.Sprintf("%s/%s %s", httpStatus, grpcStatus, text))
			}
		case *http2.DataFrame:
			if f.StreamID == id && len(f.Data()) > 5 { // more than the prefix of a message
				text = "answered"
			}
			if n := f.Length; n > 0 {
				r.logError(r.WriteWindowUpdate(0, n))
				r.logError(r.WriteWindowUpdate(f.StreamID, n))
			}
		case *http2.RSTStreamFrame:
			if f.StreamID == id {
				return "reset " + f.ErrCode.String()
			}
		case *http2.GoAwayFrame:
			return "goaway " + f.ErrCode.String()
		}
	}
}

// good is the outcome of a call that succeeds.
const good = "200/0 answered"

// frameCases are sent to grpc-go's server and to that of fastgrpc. The field standard lists all
// known differences.
var frameCases = []struct {
	name     string
	send     func(r *rawClient)
	want     string // the outcome with fastgrpc
	standard string // the outcome with grpc-go. "": as want; "ignored": no outcome, and the next call is answered; "undefined": it varies
	isOver   bool   // the connection cannot be used afterwards
	stream   uint32 // the stream whose outcome is compared; 0: stream 1
}{
	{name: "a good request", send: func(r *rawClient) { r.call(1, "x") }, want: good},
	{name: "content type with codec", send: func(r *rawClient) { r.call(1, "x", "content-type", "application/grpc+proto") }, want: good},
	{name: "padding", want: good, send: func(r *rawClient) {
		r.logError(r.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: r.encode(fields()), EndHeaders: true, PadLength: 200}))
		r.logError(r.WriteDataPadded(1, true, message("x"), make([]byte, 100)))
	}},
	{name: "priority", want: good, send: func(r *rawClient) {
		r.logError(r.WritePriority(1, http2.PriorityParam{StreamDep: 3, Weight: 7}))
		r.logError(r.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: r.encode(fields()), EndHeaders: true, Priority: http2.PriorityParam{StreamDep: 5, Exclusive: true, Weight: 1}}))
		r.logError(r.WriteData(1, true, message("x")))
	}},
	{name: "continuation", want: good, send: func(r *rawClient) {
		block := r.encode(fields("x-long", strings.Repeat("y", 3000)))
		r.logError(r.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block[:1]}))
		r.logError(r.WriteContinuation(1, false, block[1:1000]))
		r.logError(r.WriteContinuation(1, false, nil))
		r.logError(r.WriteContinuation(1, true, block[1000:]))
		r.logError(r.WriteData(1, true, message("x")))
	}},
	{name: "message byte by byte", want: good, send: func(r *rawClient) {
		r.headers(1, false, fields())
		for _, b := range message("x") {
			r.logError(r.WriteData(1, false, []byte{b}))
		}
		r.logError(r.WriteData(1, true, nil))
	}},
	{name: "request trailers", want: good, standard: "goaway PROTOCOL_ERROR", send: func(r *rawClient) {
		r.headers(1, false, fields())
		r.logError(r.WriteData(1, false, message("x")))
		r.headers(1, true, []hpack.HeaderField{{Name: "x-checksum", Value: "1"}})
	}},
	{name: "unknown frames", want: good, send: func(r *rawClient) {
		r.logError(r.WriteRawFrame(0x42, 0xff, 0, []byte("what")))
		r.logError(r.WriteRawFrame(0x42, 0xff, 1, []byte("what")))
		r.call(1, "x")
	}},
	{name: "table size update", want: good, send: func(r *rawClient) {
		r.encoder.SetMaxDynamicTableSize(0)
		r.call(1, "x")
	}},
	{name: "client without header table", want: good, send: func(r *rawClient) {
		r.logError(r.WriteSettings(http2.Setting{ID: http2.SettingHeaderTableSize, Val: 0}))
		r.call(1, "x")
	}},
	{name: "the same block twice, with entries of both", want: good, send: func(r *rawClient) {
		block := bytes.Clone(r.encode(fields())) // adds four fields to the header table, te last
		for _, id := range []uint32{1, 3} {
			r.logError(r.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block, EndHeaders: true}))
			r.logError(r.WriteData(id, true, message("x")))
		}
		const first = 62 // the index of te of the second block; the index of the first block's path is 7 more
		indexed := []byte{0x83, 0x86, 0x80 | (first + 7), 0x80 | (first + 2), 0x80 | (first + 1), 0x80 | first}
		r.logError(r.WriteHeaders(http2.HeadersFrameParam{StreamID: 5, BlockFragment: indexed, EndHeaders: true}))
		r.logError(r.WriteData(5, true, message("x")))
		if got := r.outcome(5); got != good {
			r.Errorf("the outcome of the call whose headers are indices is %q; want %q", got, good)
		}
		r.encoder = hpack.NewEncoder(&r.block)
		r.encoder.SetMaxDynamicTableSize(0) // the new encoder does not know the entries of the second block
		r.call(7, "x")
	}, stream: 7},
	{name: "empty message", want: good, send: func(r *rawClient) { r.call(1, "") }},
	{name: "error", want: "200/3", send: func(r *rawClient) { r.call(1, "fail") }},
	{name: "panic", want: "200/13", send: func(r *rawClient) { r.call(1, "panic") }},
	{name: "bytes that are no message", want: "200/13", send: func(r *rawClient) {
		r.headers(1, false, fields())
		r.logError(r.WriteData(1, true, []byte{0, 0, 0, 0, 2, 0xff, 0xff}))
	}},
	{name: "unknown method", want: "200/12", send: func(r *rawClient) { r.call(1, "x", ":path", "/a.B/C") }},
	{name: "unknown method of a known service", want: "200/12", send: func(r *rawClient) { r.call(1, "x", ":path", method+"x") }},
	{name: "malformed path", want: "200/12", send: func(r *rawClient) { r.call(1, "x", ":path", "nothing") }},
	{name: "no path", want: "reset PROTOCOL_ERROR", send: func(r *rawClient) { r.call(1, "x", ":path", "") }, standard: "200/12"},
	{name: "no scheme", want: "reset PROTOCOL_ERROR", send: func(r *rawClient) { r.call(1, "x", ":scheme", "") }, standard: good},
	{name: "GET", want: "405/13", send: func(r *rawClient) { r.call(1, "x", ":method", "GET") }},
	{name: "JSON", want: "415/3", send: func(r *rawClient) { r.call(1, "x", "content-type", "application/json") }},
	{name: "no content type", want: "415/3", send: func(r *rawClient) { r.call(1, "x", "content-type", "") }},
	{name: "gRPC-Web", want: "415/3", send: func(r *rawClient) { r.call(1, "x", "content-type", "application/grpc-web") }},
	{name: "no authority", want: "400/13", send: func(r *rawClient) { r.call(1, "x", ":authority", "") }},
	{name: "host instead of authority", want: good, send: func(r *rawClient) { r.call(1, "x", ":authority", "", "host", "b.example") }},
	{name: "two hosts", want: "400/13", send: func(r *rawClient) {
		r.headers(1, false, append(fields(), hpack.HeaderField{Name: "host", Value: "a"}, hpack.HeaderField{Name: "host", Value: "b"}))
	}},
	{name: "connection header", want: "reset PROTOCOL_ERROR", send: func(r *rawClient) { r.call(1, "x", "connection", "close") }},
	{name: "te without trailers", want: "reset PROTOCOL_ERROR", send: func(r *rawClient) { r.call(1, "x", "te", "gzip") }, standard: good},
	{name: "upper case", want: "reset PROTOCOL_ERROR", send: func(r *rawClient) { r.call(1, "x", "X-Upper", "1") }},
	{name: "unknown pseudo header", want: "reset PROTOCOL_ERROR", send: func(r *rawClient) {
		r.headers(1, false, append([]hpack.HeaderField{{Name: ":wrong", Value: "1"}}, fields()...))
	}},
	{name: "pseudo header after other headers", want: "reset PROTOCOL_ERROR", send: func(r *rawClient) {
		r.headers(1, false, append(fields(":path", ""), hpack.HeaderField{Name: ":path", Value: method}))
	}},
	{name: "two paths", want: "reset PROTOCOL_ERROR", send: func(r *rawClient) {
		r.headers(1, false, append([]hpack.HeaderField{{Name: ":path", Value: "/x/y"}}, fields()...))
	}},
	{name: "line feed in a value", want: "reset PROTOCOL_ERROR", send: func(r *rawClient) { r.call(1, "x", "x-bad", "a\nb") }},
	{name: "timeout of zero", want: "200/4", send: func(r *rawClient) { r.call(1, "x", "grpc-timeout", "0n") }},
	{name: "timeout without unit", want: "400/13", send: func(r *rawClient) { r.call(1, "x", "grpc-timeout", "10") }},
	{name: "timeout of nine digits", want: "400/13", send: func(r *rawClient) { r.call(1, "x", "grpc-timeout", "123456789S") }},
	{name: "timeout that is negative", want: "400/13", send: func(r *rawClient) { r.call(1, "x", "grpc-timeout", "-1S") }},
	{name: "timeout of years", want: good, send: func(r *rawClient) { r.call(1, "x", "grpc-timeout", "99999999H") }},
	{name: "timeout that passes", want: "200/4", standard: "200/4 or reset CANCEL", send: func(r *rawClient) { r.call(1, "wait", "grpc-timeout", "20m") }},
	{name: "compressed message", want: "200/12", send: func(r *rawClient) {
		r.headers(1, false, fields("grpc-encoding", "snappy"))
		r.logError(r.WriteData(1, true, append([]byte{1}, message("x")[1:]...)))
	}},
	{name: "compressed flag without encoding", want: "200/13", send: func(r *rawClient) {
		r.headers(1, false, fields())
		r.logError(r.WriteData(1, true, append([]byte{1}, message("x")[1:]...)))
	}},
	{name: "unknown flag", want: "200/13", send: func(r *rawClient) {
		r.headers(1, false, fields())
		r.logError(r.WriteData(1, true, append([]byte{2}, message("x")[1:]...)))
	}},
	{name: "no message", want: "200/13", send: func(r *rawClient) { r.headers(1, true, fields()) }},
	{name: "half a message", want: "200/13", send: func(r *rawClient) {
		r.headers(1, false, fields())
		r.logError(r.WriteData(1, true, message("xxxx")[:7]))
	}},
	{name: "half a prefix", want: "200/13", send: func(r *rawClient) {
		r.headers(1, false, fields())
		r.logError(r.WriteData(1, true, []byte{0, 0}))
	}},
	{name: "two messages", want: "200/13", send: func(r *rawClient) {
		r.headers(1, false, fields())
		r.logError(r.WriteData(1, true, append(message("x"), message("y")...)))
	}},
	{name: "message that is too large", want: "200/8", send: func(r *rawClient) {
		r.headers(1, false, fields())
		r.logError(r.WriteData(1, false, []byte{0, 0, 1, 0, 1})) // the size is maxMessage + 1
	}},
	{name: "largest message", want: good, send: func(r *rawClient) {
		m := message(strings.Repeat("x", maxMessage-4))
		r.headers(1, false, fields())
		r.logError(r.WriteData(1, false, m[:16384]))
		r.logError(r.WriteData(1, false, m[16384:32768]))
		r.logError(r.WriteData(1, false, m[32768:49152]))
		r.awaitWindow(1)
		r.logError(r.WriteData(1, false, m[49152:65536]))
		r.logError(r.WriteData(1, true, m[65536:]))
	}},
	{name: "headers that are too large", want: "431/8", standard: "reset FRAME_SIZE_ERROR", send: func(r *rawClient) {
		list := fields()
		for i := range 300 {
			list = append(list, hpack.HeaderField{Name: fmt.Sprint("x-", i), Value: strings.Repeat("y", 40)})
		}
		r.headers(1, false, list)
	}},
	{name: "a header value that is too large", want: "goaway COMPRESSION_ERROR", standard: "closed", send: func(r *rawClient) {
		r.headers(1, false, append(fields(), hpack.HeaderField{Name: "x-long", Value: strings.Repeat("0", 20_000)}))
	}, isOver: true},
	{name: "cancelled before the message", want: "closed", send: func(r *rawClient) {
		r.headers(1, false, fields())
		r.logError(r.WriteRSTStream(1, http2.ErrCodeCancel))
		r.call(3, "x")
		if got := r.outcome(3); got != good {
			r.Errorf("the outcome of the next call is %q; want %q", got, good)
		}
		r.Conn.(*net.TCPConn).CloseWrite()
	}, isOver: true},
	{name: "DATA after the end", want: "reset STREAM_CLOSED", send: func(r *rawClient) {
		r.call(1, "wait", "grpc-timeout", "1M")
		r.logError(r.WriteData(1, true, message("x")))
	}},
	{name: "even stream", want: "goaway PROTOCOL_ERROR", send: func(r *rawClient) { r.headers(2, true, fields()) }, isOver: true},
	{name: "stream 0", want: "goaway PROTOCOL_ERROR", standard: "closed", send: func(r *rawClient) { r.headers(0, true, fields()) }, isOver: true},
	{name: "smaller stream", want: "reset STREAM_CLOSED", standard: "goaway PROTOCOL_ERROR", send: func(r *rawClient) {
		r.call(3, "x")
		r.call(1, "x")
	}},
	{name: "DATA of no stream", want: "goaway PROTOCOL_ERROR", standard: "ignored", send: func(r *rawClient) { r.logError(r.WriteData(7, true, nil)) }, isOver: true},
	{name: "window of no stream", want: "goaway PROTOCOL_ERROR", standard: "ignored", send: func(r *rawClient) { r.logError(r.WriteWindowUpdate(7, 1)) }, isOver: true},
	{name: "RST_STREAM of no stream", want: "goaway PROTOCOL_ERROR", standard: "ignored", send: func(r *rawClient) { r.logError(r.WriteRSTStream(7, 0)) }, isOver: true},
	{name: "window update of zero", want: "goaway PROTOCOL_ERROR", standard: "closed", send: func(r *rawClient) { r.logError(r.WriteWindowUpdate(0, 0)) }, isOver: true},
	{name: "window update of zero for a stream", want: "reset PROTOCOL_ERROR", send: func(r *rawClient) {
		r.headers(1, false, fields())
		r.logError(r.WriteWindowUpdate(1, 0))
	}},
	{name: "window update of zero for no stream", want: "reset PROTOCOL_ERROR", standard: "ignored", send: func(r *rawClient) { r.logError(r.WriteWindowUpdate(1, 0)) }},
	{name: "window that is too large", want: "goaway FLOW_CONTROL_ERROR", standard: "ignored", send: func(r *rawClient) { r.logError(r.WriteWindowUpdate(0, 1<<31-1)) }, isOver: true},
	{name: "stream window that is too large", want: "reset FLOW_CONTROL_ERROR", standard: "ignored", send: func(r *rawClient) {
		r.headers(1, false, fields())
		r.logError(r.WriteWindowUpdate(1, 1<<31-1))
	}},
	{name: "initial window that is too large", want: "goaway FLOW_CONTROL_ERROR", standard: "closed", send: func(r *rawClient) {
		r.logError(r.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 31}))
	}, isOver: true},
	{name: "settings of five bytes", want: "goaway FRAME_SIZE_ERROR", standard: "closed", send: func(r *rawClient) { r.logError(r.WriteRawFrame(http2.FrameSettings, 0, 0, make([]byte, 5))) }, isOver: true},
	{name: "ping of seven bytes", want: "goaway FRAME_SIZE_ERROR", standard: "closed", send: func(r *rawClient) { r.logError(r.WriteRawFrame(http2.FramePing, 0, 0, make([]byte, 7))) }, isOver: true},
	{name: "frame that is too large", want: "goaway FRAME_SIZE_ERROR", standard: "closed", send: func(r *rawClient) { r.logError(r.WriteRawFrame(http2.FrameData, 0, 1, make([]byte, 16385))) }, isOver: true},
	{name: "push promise", want: "goaway PROTOCOL_ERROR", standard: "undefined", send: func(r *rawClient) {
		r.logError(r.WritePushPromise(http2.PushPromiseParam{StreamID: 1, PromiseID: 2, BlockFragment: r.encode(fields()), EndHeaders: true}))
	}, isOver: true},
	{name: "continuation of nothing", want: "goaway PROTOCOL_ERROR", standard: "closed", send: func(r *rawClient) { r.logError(r.WriteContinuation(1, true, r.encode(fields()))) }, isOver: true},
	{name: "header block that is interrupted", want: "goaway PROTOCOL_ERROR", standard: "closed", send: func(r *rawClient) {
		r.logError(r.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: r.encode(fields())}))
		r.logError(r.WritePing(false, [8]byte{}))
	}, isOver: true},
	{name: "header block that cannot be decoded", want: "goaway COMPRESSION_ERROR", standard: "closed", send: func(r *rawClient) {
		r.logError(r.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: []byte{0xff, 0xff, 0xff, 0xff, 0x0f}, EndHeaders: true}))
	}, isOver: true},
	{name: "padding longer than the frame", want: "goaway PROTOCOL_ERROR", standard: "closed", send: func(r *rawClient) {
		r.logError(r.WriteRawFrame(http2.FrameData, http2.FlagDataPadded, 1, []byte{200, 1, 2}))
	}, isOver: true},
	{name: "padding of headers longer than the frame", want: "goaway PROTOCOL_ERROR", standard: "reset PROTOCOL_ERROR", send: func(r *rawClient) {
		r.logError(r.WriteRawFrame(http2.FrameHeaders, http2.FlagHeadersPadded|http2.FlagHeadersEndHeaders, 1, []byte{200, 1, 2}))
	}, isOver: true},
}

// maxMessage is the size in bytes of the largest message that the servers accept.
const maxMessage = 64 << 10

// awaitWindow reads until the server opens a stream's window.
func (r *rawClient) awaitWindow(id uint32) {
	for {
		f, err := r.ReadFrame()
		if err != nil {
			r.Fatalf("waiting for WINDOW_UPDATE of stream %d: %v", id, err)
		}
		if w, ok := f.(*http2.WindowUpdateFrame); ok && w.StreamID == id {
			return
		}
	}
}

func TestFramesHaveTheOutcomesOfGRPCGo(t *testing.T) {
	standard := startStandard(t, grpc.MaxRecvMsgSize(maxMessage), grpc.MaxHeaderListSize(16<<10))
	fallback := newStandard(grpc.MaxRecvMsgSize(maxMessage))
	t.Cleanup(fallback.Stop)
	_, parallel := startFast(t, fastgrpc.Options{})
	_, inTurn := startFast(t, fastgrpc.Options{Parallel: 1})
	_, withFallback := startFast(t, fastgrpc.Options{Fallback: fallback})
	for _, c := range frameCases {
		for name, address := range map[string]string{"grpc-go": standard, "parallel": parallel, "in turn": inTurn, "with fallback": withFallback} {
			if c.name == "DATA after the end" && name == "in turn" {
				continue // the connection waits for the handler
			}
			t.Run(c.name+"/"+name, func(t *testing.T) {
				want := c.want
				if name == "grpc-go" && c.standard != "" {
					want = c.standard
				}
				r := dialRaw(t, address)
				c.send(r)
				if want == "undefined" {
					return
				}
				if want == "ignored" {
					r.call(99, "x")
					if got := r.outcome(99); got != good {
						t.Errorf("the outcome of the next call is %q; want %q", got, good)
					}
					return
				}
				if got := r.outcome(max(c.stream, 1)); !slices.Contains(strings.Split(want, " or "), got) {
					t.Errorf("the outcome is %q; want %q", got, want)
				}
				if c.isOver || name == "grpc-go" {
					return
				}
				r.call(99, "x")
				if got := r.outcome(99); got != good {
					t.Errorf("the outcome of the next call is %q; want %q", got, good)
				}
			})
		}
	}
}

// A client that has no header table gets one update of the table's size. Clients that use the
// library nghttp2 require it.
func TestFirstHeaderBlockAcknowledgesASmallerHeaderTable(t *testing.T) {
	_, address := startFast(t, fastgrpc.Options{})
	r := dialRaw(t, address, http2.Setting{ID: http2.SettingHeaderTableSize, Val: 0})
	r.ReadMetaHeaders = nil
	r.call(1, "x")
	r.call(3, "x")
	var blocks [][]byte
	for len(blocks) < 4 { // headers and trailers of both calls
		f, err := r.ReadFrame()
		if err != nil {
			t.Fatal(err)
		}
		if h, ok := f.(*http2.HeadersFrame); ok {
			blocks = append(blocks, bytes.Clone(h.HeaderBlockFragment()))
		}
	}
	for i, block := range blocks {
		if isUpdate := block[0]>>5 == 1; isUpdate != (i == 0) { // an update begins with the bits 001
			t.Errorf("block %d begins with %#x; want an update of the table's size in the first block only", i, block[0])
		}
	}
}
