package service

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"net"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/penstock/penstock/internal/testing/eventually"
)

// A frameClient is a client that writes its frames itself.
type frameClient struct {
	*testing.T
	net.Conn
	*http2.Framer
	buffer  *bufio.Writer // of Framer; see flush
	encoder *hpack.Encoder
	block   bytes.Buffer // of encoder
}

// frames connects a client of the gRPC listener that writes its frames itself.
func (r *testService) frames() *frameClient { return r.framesTo(r.GRPC) }

// framesTo connects a client that writes its frames itself. It has its own settings.
func (r *testService) framesTo(address string, settings ...http2.Setting) *frameClient {
	r.Helper()
	conn, err := net.Dial("tcp", address)
	if err != nil {
		r.Fatal(err)
	}
	r.Cleanup(func() { conn.Close() })
	conn.SetDeadline(time.Now().Add(patience))
	buffer := bufio.NewWriterSize(conn, 64<<10)
	c := &frameClient{T: r.T, Conn: conn, Framer: http2.NewFramer(buffer, conn), buffer: buffer}
	c.encoder = hpack.NewEncoder(&c.block)
	c.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	buffer.WriteString(http2.ClientPreface)
	c.WriteSettings(settings...)
	return c
}

// begin writes the headers of a call, and not its message. more are names and values.
func (c *frameClient) begin(id uint32, method string, more ...string) {
	c.block.Reset()
	encodeRequest(c.encoder, "POST", method)
	more = append([]string{"content-type", "application/grpc", "te", "trailers"}, more...)
	for i := 0; i < len(more); i += 2 {
		c.encoder.WriteField(hpack.HeaderField{Name: more[i], Value: more[i+1]})
	}
	c.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: c.block.Bytes(), EndHeaders: true}) // fails if the service has closed the connection
}

// flush sends what was written. It fails if the service has closed the connection, so its error
// means nothing.
func (c *frameClient) flush() { c.buffer.Flush() }

// outcome reads frames until the call ends, and returns how: "closed" for the end of the
// connection, "goaway CODE", "reset CODE", or the status of gRPC.
func (c *frameClient) outcome(id uint32) string {
	for {
		frame, err := c.ReadFrame()
		if err != nil {
			return "closed"
		}
		switch f := frame.(type) {
		case *http2.GoAwayFrame:
			return "goaway " + f.ErrCode.String()
		case *http2.RSTStreamFrame:
			if f.StreamID == id {
				return "reset " + f.ErrCode.String()
			}
		case *http2.MetaHeadersFrame:
			for _, field := range f.Fields {
				if f.StreamID == id && field.Name == "grpc-status" {
					return field.Value
				}
			}
		}
	}
}

// inUse returns how many bytes the heap and the stacks of this process use.
func inUse() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc + m.StackInuse)
}

// A client may send 2,000 calls without a message on each of ten connections. Each connection has
// at most maxStreams of them open, so they take little memory. Other clients are served.
func TestHalfOpenGRPCCallsTakeLittleMemory(t *testing.T) {
	const connections, calls = 10, 2000
	const bound = 40 << 20 // bytes of all of them, in the service and in the clients
	r := start(t, nil, map[string]string{"grpc": "127.0.0.1:0"}, withEcho(capitalize))
	if answer, err := say(callContext(t), r.grpcClient(nil), "x"); answer != "X" {
		t.Fatalf("the response to the first call is %q (error %v); want X", answer, err)
	}
	before := inUse()
	refused := 0
	for range connections {
		c := r.frames()
		for i := range calls {
			c.begin(uint32(1+2*i), echoMethod)
		}
		c.flush()
		for i := maxStreams; i < calls; i++ { // the first calls are open
			got := c.outcome(uint32(1 + 2*i))
			if got == "1" { // CANCELLED: the machine is busy, so a call has ended as too slow, and this one had its place
				break
			}
			if got != "reset REFUSED_STREAM" {
				t.Fatalf("call %d without a message ends with %q; want it refused", i+1, got)
			}
			refused++
		}
	}
	if least := connections * (calls - maxStreams) / 2; refused < least {
		t.Errorf("%d calls were refused; want at least %d", refused, least)
	}
	used := inUse() - before
	if answer, err := say(callContext(t), r.grpcClient(nil), "y"); answer != "Y" {
		t.Errorf("beside half-open calls, the response is %q (error %v); want Y", answer, err)
	}
	t.Logf("counted: %d half-open gRPC calls (%d refused, the others take %d KB)", connections*calls, refused, used>>10)
	if used > bound {
		t.Errorf("%d half-open calls take %d bytes; want at most %d", connections*calls, used, bound)
	}
}

// Some calls are answered before their message has come. A client that never ends such
// a call does not keep its place.
func TestGRPCCallsThatAreAnsweredEarlyFreeTheirPlaces(t *testing.T) {
	const token = "0123456789abcdef"
	const calls = 3 * maxStreams
	r := start(t, nil, map[string]string{"grpc": "127.0.0.1:0", "caller-token": token}, withEcho(capitalize))
	for name, call := range map[string]struct {
		method, authorization, want string
	}{
		"without a token":      {method: echoMethod, authorization: "Bearer " + token[1:], want: "16"},
		"of an unknown method": {method: "/a.B/C", authorization: "Bearer " + token, want: "12"},
	} {
		c := r.frames()
		for i := range uint32(calls) {
			c.begin(1+2*i, call.method, "authorization", call.authorization)
			c.flush()
			if got := c.outcome(1 + 2*i); got != call.want {
				t.Fatalf("call %d %s has the outcome %q; want status %s", i+1, name, got, call.want)
			}
		}
	}
}

// A client may cancel each call right after it was sent. The call still counts for maxStreams while
// its handler runs.
func TestRapidResetsKeepFewGRPCCallsInFlight(t *testing.T) {
	const calls = 2000
	var running, most atomic.Int64 // handlers
	release := make(chan struct{})
	r := start(t, nil, map[string]string{"grpc": "127.0.0.1:0"}, withEcho(func(context.Context, string) (string, error) {
		now := running.Add(1)
		defer running.Add(-1)
		// This raises most to now.
		for before := most.Load(); now > before && !most.CompareAndSwap(before, now); {
			before = most.Load()
		}
		<-release
		return "", nil
	}))
	c := r.frames()
	for id := uint32(1); id < 2*calls; id += 2 {
		c.begin(id, echoMethod)
		c.WriteData(id, true, make([]byte, 5)) // an empty message
		c.WriteRSTStream(id, http2.ErrCodeCancel)
	}
	c.flush()
	eventually.True(t, "all places of the connection to be taken", func() bool { return running.Load() >= maxStreams })
	close(release)
	eventually.True(t, "all handlers to end", func() bool { return running.Load() == 0 })
	if n := most.Load(); n > maxStreams {
		t.Errorf("%d handlers ran at the same time; want at most %d", n, maxStreams)
	}
}

// Clients may send calls that are refused, and read nothing. When the answers fill the buffers of
// the network, the service stops to read; see package grpcqueue.
func TestUnreadRefusalsOfGRPCCallsTakeLittleMemory(t *testing.T) {
	const connections, calls = 1, 100_000
	const bound = 12 << 20              // bytes in the service and in the clients
	large := strings.Repeat("x", 1<<10) // fills the buffers of the network
	r := start(t, nil, map[string]string{"grpc": "127.0.0.1:0"}, withEcho(capitalize))
	before := inUse()
	sent := 0
	for range connections {
		c := r.frames()
		c.Conn.(*net.TCPConn).SetReadBuffer(4 << 10)
		for i := range uint32(calls) {
			c.begin(1+2*i, fmt.Sprintf("/%s/%d", large, i)) // the answer has it too
			sent++
			if c.buffer.Available() > 2<<10 {
				continue
			}
			c.SetWriteDeadline(time.Now().Add(500 * time.Millisecond))
			if c.buffer.Flush() != nil {
				break // the service reads no more
			}
		}
	}
	used := inUse() - before
	t.Logf("counted: %d unread refusals of gRPC calls (they take %d KB)", sent, used>>10)
	if sent == connections*calls {
		t.Error("the service reads all calls; want that it waits until their answers are read")
	}
	if used > bound {
		t.Errorf("%d unread refusals take %d bytes; want at most %d", sent, used, bound)
	}
}

// Calls without a message take memory from the budget. The next call is refused, also by another
// connection, until some have ended.
func TestGRPCCallsTakeBoundedMemory(t *testing.T) {
	const calls = maxStreams / 2
	const large = 8 << 10 // bytes of a header
	// Each call has three headers. Their text counts twice.
	r := start(t, nil, map[string]string{"grpc": "127.0.0.1:0"}, withEcho(capitalize), withMemory(calls*(memoryOfGRPCCall+3*memoryOfField+2*large+150)))
	c := r.frames()
	for i := range uint32(calls) {
		c.begin(1+2*i, echoMethod, "large", strings.Repeat("x", large))
	}
	c.begin(1+2*calls, echoMethod)
	c.flush()
	if got, want := c.outcome(1+2*calls), strconv.Itoa(int(codes.Unavailable)); got != want {
		t.Errorf("a call beyond the budget has the outcome %q; want status %s", got, want)
	}
	if _, err := say(callContext(t), r.grpcClient(nil), "x"); status.Code(err) != codes.Unavailable {
		t.Errorf("the call of another connection ends with %v; want UNAVAILABLE", err)
	}
	for i := range uint32(calls) {
		c.WriteRSTStream(1+2*i, http2.ErrCodeCancel)
	}
	c.flush()
	r.awaitNoMemory()
	if answer, err := say(callContext(t), r.grpcClient(nil), "x"); answer != "X" {
		t.Errorf("after the calls have ended, the response is %q (error %v); want X", answer, err)
	}
}

// grpc-go answers calls with an unknown compression without a handler. Their memory is released,
// and a connection with many of them takes no more than others.
func TestGRPCCallsWithoutAHandlerReleaseTheirMemory(t *testing.T) {
	const calls = 1000
	r := start(t, nil, map[string]string{"grpc": "127.0.0.1:0"}, withEcho(capitalize), withMemory(2*maxStreams*memoryOfGRPCCall))
	c := r.frames()
	for i := range uint32(calls) {
		c.begin(1+2*i, echoMethod, "grpc-encoding", "unknown")
		c.flush()
		if got, want := c.outcome(1+2*i), strconv.Itoa(int(codes.Unimplemented)); got != want {
			t.Fatalf("call %d with an unknown compression has the outcome %q; want status %s", i+1, got, want)
		}
	}
	if answer, err := say(callContext(t), r.grpcClient(nil), "x"); answer != "X" {
		t.Errorf("beside calls with an unknown compression, the response is %q (error %v); want X", answer, err)
	}
	r.awaitNoMemory()
}

// A client may send frames that are no calls, and read nothing. The service keeps little for it,
// and serves others meanwhile.
func TestGRPCFloodsTakeLittleMemory(t *testing.T) {
	const frames = 20_000
	const bound = 12 << 20 // bytes that one flood takes, in the service and in the client
	r := start(t, nil, map[string]string{"grpc": "127.0.0.1:0"}, withEcho(capitalize))
	other := r.grpcClient(nil)
	if answer, err := say(callContext(t), other, "x"); answer != "X" {
		t.Fatalf("the response to the first call is %q (error %v); want X", answer, err)
	}
	for name, send := range map[string]func(c *frameClient, i uint32){
		"pings":          func(c *frameClient, _ uint32) { c.WritePing(false, [8]byte{}) },
		"settings":       func(c *frameClient, _ uint32) { c.WriteSettings() },
		"windows":        func(c *frameClient, _ uint32) { c.WriteWindowUpdate(0, 1) },
		"unknown frames": func(c *frameClient, _ uint32) { c.WriteRawFrame(0x77, 0, 0, nil) },
		"resets": func(c *frameClient, i uint32) {
			c.begin(1+2*i, echoMethod)
			c.WriteRSTStream(1+2*i, http2.ErrCodeCancel)
		},
	} {
		before := inUse()
		c := r.frames()
		for i := range uint32(frames) {
			send(c, i)
		}
		c.flush()
		if answer, err := say(callContext(t), other, "x"); answer != "X" {
			t.Errorf("beside a flood of %s, the response is %q (error %v); want X", name, answer, err)
		}
		if used := inUse() - before; used > bound {
			t.Errorf("a flood of %s takes %d bytes; want at most %d", name, used, bound)
		}
		c.Close()
	}
}
