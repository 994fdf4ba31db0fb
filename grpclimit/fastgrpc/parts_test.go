package fastgrpc

import (
	"bytes"
	"errors"
	"io"
	"math"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

func TestTimeoutsAreParsed(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"0n": 0, "7n": 7, "99999999n": 99999999, "1u": time.Microsecond, "20m": 20 * time.Millisecond, "3S": 3 * time.Second, "4M": 4 * time.Minute, "5H": 5 * time.Hour,
		"90S": 90 * time.Second, "12345678S": 12345678 * time.Second, "2562047H": 2562047 * time.Hour, "2562048H": 2562047 * time.Hour, "99999999H": 2562047 * time.Hour,
	} {
		if got, ok := parseTimeout(text); !ok || got != want {
			t.Errorf("%s is the timeout %v, %t; want %v", text, got, ok, want)
		}
	}
	for _, text := range []string{"", "S", "1", "1s", "1h", "-1S", "1.S", "/S", ":S", "123456789S", "1 S", "SS"} {
		if got, ok := parseTimeout(text); ok || got != 0 {
			t.Errorf("%q is the timeout %v, %t; want none", text, got, ok)
		}
	}
}

// The zero time means never.
func TestEarlierOfTwoTimes(t *testing.T) {
	var never time.Time
	first := time.Unix(1, 0)
	second := first.Add(1)
	for _, c := range []struct{ a, b, want time.Time }{
		{never, never, never}, {first, never, first}, {never, first, first}, {first, second, first}, {second, first, first}, {first, first, first},
	} {
		if got := earlier(c.a, c.b); got != c.want {
			t.Errorf("the earlier of %v and %v is %v; want %v", c.a, c.b, got, c.want)
		}
	}
}

// An allowance has 10,000 units, and grows by 100 per second and by 10 with each request.
func TestAllowanceGrowsWithTimeAndRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, err := New(Options{})
		if err != nil {
			t.Fatal(err)
		}
		c := newConn(s, &recording{})
		// spend returns how many frames of one unit the client may send now.
		spend := func() (n int) {
			for c.spendAllowance(1) == nil {
				n++
			}
			return n
		}
		if n := spend(); n != 10_000 {
			t.Errorf("the first allowance is %d; want 10000", n)
		}
		for _, row := range []struct {
			after time.Duration
			want  int
		}{{time.Second, 101}, {70 * time.Millisecond, 8}, {9 * time.Millisecond, 0}, {time.Millisecond, 0}, {10 * time.Millisecond, 2}, {99 * time.Second, 9901}, {time.Hour * 9, 10_001}} {
			time.Sleep(row.after)
			// The frame for which the allowance grows is free.
			if n := spend(); n != row.want {
				t.Errorf("%v later, the allowance is %d; want %d", row.after, n, row.want)
			}
		}
		c.allowance.left = 0
		c.growAllowance(10)
		if n := spend(); n != 10 {
			t.Errorf("after a request, the allowance is %d; want 10", n)
		}
		c.allowance.left = 9_995
		c.growAllowance(10)
		if n := spend(); n != 10_000 {
			t.Errorf("after many requests, the allowance is %d; want 10000", n)
		}
		for _, cost := range []int{10, 11} {
			c.allowance.left = 10
			if err := c.spendAllowance(cost); (err == nil) != (cost == 10) {
				t.Errorf("a frame that costs %d of 10: %v; want an error only for 11", cost, err)
			}
		}
	})
}

// The buffer of a connection is small at first, and then has room for any frame.
func TestInputGrowsToTheLargestFrame(t *testing.T) {
	frame := func(length int) []byte {
		return append(appendFrame(nil, length, http2.FrameData, 0, 1), make([]byte, length)...)
	}
	for length, want := range map[int]int{0: 4 << 10, 4<<10 - frameHeader: 4 << 10, 4<<10 - frameHeader + 1: 8 << 10, 8 << 10: 16 << 10, maxFrameBytes: 32 << 10} {
		in := input{nc: &recording{rest: bytes.NewReader(frame(length))}}
		for !in.hasFrame() {
			if err := in.fill(); err != nil {
				t.Fatalf("a frame of %d bytes: %v", length, err)
			}
		}
		if len(in.buf) != want || in.buffered() != length+frameHeader {
			t.Errorf("a frame of %d bytes: the buffer has %d bytes, %d of them unread; want %d and %d", length, len(in.buf), in.buffered(), want, length+frameHeader)
		}
		if got, err := io.ReadAll(&in); err != io.ErrUnexpectedEOF || !bytes.Equal(got, frame(length)) {
			t.Errorf("a frame of %d bytes is read as %d bytes, %v; want the frame", length, len(got), err)
		}
	}
	in := input{buf: frame(3), w: frameHeader + 2}
	if in.hasFrame() {
		t.Error("a frame without its last byte is whole; want that it is not")
	}
	in = input{buf: appendFrame(nil, maxFrameBytes+1, 0, 0, 0), w: frameHeader}
	if !in.hasFrame() {
		t.Error("a frame that is too large must be read until its end; want that it is refused at once")
	}
	in = input{buf: appendFrame(nil, maxFrameBytes, 0, 0, 0), w: frameHeader}
	if in.hasFrame() {
		t.Error("the header of the largest frame is a whole frame; want that its payload is awaited")
	}
	in = input{nc: silentConn{}}
	if err := in.fill(); err != io.ErrNoProgress {
		t.Errorf("a Read of nothing: %v; want ErrNoProgress", err)
	}
}

// What is unread moves to the beginning of the buffer, before the buffer grows.
func TestInputKeepsUnreadBytes(t *testing.T) {
	sent := make([]byte, 100_000)
	for i := range sent {
		sent[i] = byte(i * 7)
	}
	in := input{nc: &recording{rest: bytes.NewReader(sent)}}
	var got []byte
	for n := 1; ; n = n%4000 + 911 {
		err := in.fill()
		part := make([]byte, min(n, in.buffered()))
		in.Read(part)
		got = append(got, part...)
		if err == io.EOF && in.buffered() == 0 {
			break
		}
		if err != nil && err != io.EOF || len(in.buf) > maxInput {
			t.Fatalf("fill: %v, and a buffer of %d bytes; want at most %d", err, len(in.buf), maxInput)
		}
		for in.buffered() > maxFrameBytes { // as the reader does, which takes whole frames
			part := make([]byte, 1000)
			n, _ := in.Read(part)
			got = append(got, part[:n]...)
		}
	}
	if !bytes.Equal(got, sent) {
		t.Errorf("%d bytes are read from %d; want the same", len(got), len(sent))
	}
}

// A silentConn reads nothing, without an error.
type silentConn struct{ net.Conn }

func (silentConn) Read([]byte) (int, error) { return 0, nil }

func TestDefaultsOfOptions(t *testing.T) {
	for _, n := range []int{0, -1} {
		d := time.Duration(n)
		o := Options{
			Parallel: n, MaxParallel: n, MaxConnections: n, MaxStreams: n, MaxMessage: n, MaxHeaderList: n, IdleTimeout: d, ReadTimeout: d, WriteTimeout: d, KeepAlive: d, MaxAgeGrace: d,
		}
		o.setDefaults()
		if o.Parallel != 256 || o.MaxParallel != 16_384 || o.MaxConnections != 10_000 || o.MaxStreams != 2048 || o.MaxMessage != 65_536 || o.MaxHeaderList != 16_384 ||
			o.IdleTimeout != time.Hour || o.ReadTimeout != 10*time.Second || o.WriteTimeout != 10*time.Second || o.KeepAlive != 5*time.Minute || o.MaxAgeGrace != time.Hour || o.MaxAge != 0 {
			t.Errorf("the defaults are %+v; want those of the documentation", o)
		}
	}
	o := Options{Parallel: 1, MaxConnections: 1, IdleTimeout: 1}
	o.setDefaults()
	if o.Parallel != 1 || o.MaxConnections != 1 || o.IdleTimeout != 1 {
		t.Errorf("the options are %+v; want 1 as it was set", o)
	}
}

// The ages of connections differ from MaxAge by up to 10 %. Of 1000 ages, some are in each tenth of
// this range. The chance that a tenth stays empty is below 1e-44.
func TestAgesOfConnectionsDiffer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, err := New(Options{MaxAge: 100 * time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		var tenths [10]int
		for range 1000 {
			age := newConn(s, &recording{}).drainAt.Sub(time.Now())
			if age < 90*time.Minute || age > 110*time.Minute {
				t.Fatalf("a connection is drained after %v; want 90 to 110 minutes", age)
			}
			tenths[min(int((age-90*time.Minute)/(2*time.Minute)), 9)]++
		}
		for i, n := range tenths {
			if n == 0 {
				t.Errorf("no connection of 1000 has an age in the tenth %d of the range; want some", i)
			}
		}
		if c := newConn(s, &recording{}); c.initialSendWindow != 65535 || c.sendWindow != 65535 || c.maxHeaderList != math.MaxUint32 {
			t.Errorf("the windows are %d and %d, and the list of headers %d; want the defaults of HTTP/2", c.initialSendWindow, c.sendWindow, c.maxHeaderList)
		}
	})
}

// A read deadline moves only if it is too late, or early by more than an eighth.
func TestReadDeadlinesMoveRarely(t *testing.T) {
	now := time.Unix(1000, 0)
	for _, c := range []struct {
		present, due, want time.Duration // after now; present 0: none
	}{
		{0, 8 * time.Second, 8 * time.Second}, {7 * time.Second, 8 * time.Second, 7 * time.Second}, {7*time.Second - 1, 8 * time.Second, 8 * time.Second},
		{8 * time.Second, 8 * time.Second, 8 * time.Second}, {8*time.Second + 1, 8 * time.Second, 8 * time.Second}, {time.Minute, 8 * time.Second, 8 * time.Second},
	} {
		nc := &deadlineConn{}
		conn := conn{nc: nc}
		if c.present != 0 {
			conn.readDeadline = now.Add(c.present)
		}
		conn.setReadDeadline(now, now.Add(c.due))
		wasSet := c.want != c.present
		if got := conn.readDeadline.Sub(now); got != c.want || wasSet && nc.deadline != now.Add(c.due) {
			t.Errorf("a deadline in %v, when one in %v is due, becomes %v; want %v", c.present, c.due, got, c.want)
		}
	}
}

type deadlineConn struct {
	net.Conn
	deadline time.Time
}

func (c *deadlineConn) SetReadDeadline(t time.Time) error {
	c.deadline = t
	return nil
}

// Large buffers of a call are not kept for the next one.
func TestLargeBuffersAreNotReused(t *testing.T) {
	for size, isKept := range map[int]bool{4 << 10: true, 4<<10 + 1: false} {
		used := &stream{Call: Call{Request: make([]byte, 5, size), Response: make([]byte, 5, size)}, id: 7, timeout: 3}
		for { // the pool may drop what is put into it
			streamPool.Put(used)
			if s := newStream(nil, 9); s == used {
				break
			}
		}
		if used.id != 9 || used.timeout != 0 || len(used.Request) != 0 || len(used.Response) != 0 {
			t.Errorf("a stream begins as %+v; want it empty", used)
		}
		if hasRequest, hasResponse := cap(used.Request) > 0, cap(used.Response) > 0; hasRequest != isKept || hasResponse != isKept {
			t.Errorf("buffers of %d bytes are kept: %t and %t; want %t", size, hasRequest, hasResponse, isKept)
		}
	}
}

func TestErrorOfAConnectionSaysWhy(t *testing.T) {
	var err error = connectionError{http2.ErrCodeProtocol, "this is a test"}
	if got, want := err.Error(), "PROTOCOL_ERROR: this is a test"; got != want {
		t.Errorf("the error is %q; want %q", got, want)
	}
	if ce, ok := errors.AsType[connectionError](err); !ok || ce.code != http2.ErrCodeProtocol {
		t.Errorf("the error is %v; want a connectionError", err)
	}
}

// The memory of a large header block is not kept for the next one.
func TestLargeHeaderBlocksAreNotKept(t *testing.T) {
	for size, isKept := range map[int]bool{4 << 10: true, 4<<10 + 1: false} {
		s, err := New(Options{})
		if err != nil {
			t.Fatal(err)
		}
		sent := frames(func(f *http2.Framer, _ *hpack.Encoder, _ *bytes.Buffer) {
			f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: []byte("ab")})
			f.WriteContinuation(1, false, []byte("cd"))
			f.WriteContinuation(1, true, []byte("ef"))
		})
		c := newConn(s, &recording{rest: bytes.NewReader(sent)})
		c.headers.block = make([]byte, 0, size)
		if err := c.wait(); err != nil {
			t.Fatal(err)
		}
		f, err := c.readFrame()
		if err != nil {
			t.Fatal(err)
		}
		block, err := c.wholeBlock(f.(*http2.HeadersFrame))
		if string(block) != "abcdef" || err != nil || (c.headers.block != nil) != isKept {
			t.Errorf("with memory of %d bytes, the block is %q, %v, and the memory is kept: %t; want abcdef, kept: %t", size, block, err, c.headers.block != nil, isKept)
		}
	}
}
