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
			age := time.Until(newConn(s, &recording{}).drainAt)
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

// A pausedConn notes what is written and the deadlines of writes and reads.
type pausedConn struct {
	recording
	written       [][]byte
	writeDeadline time.Time
	readDeadline  time.Time
	err           error
	hasClosed     bool // CloseWrite was called
}

func (c *pausedConn) Write(p []byte) (int, error) {
	c.written = append(c.written, bytes.Clone(p))
	return len(p), c.err
}

func (c *pausedConn) SetWriteDeadline(t time.Time) error { c.writeDeadline = t; return nil }
func (c *pausedConn) SetReadDeadline(t time.Time) error  { c.readDeadline = t; return nil }
func (c *pausedConn) CloseWrite() error                  { c.hasClosed = true; return nil }

// A write may take WriteTimeout. Its memory is used again if it is small. After an error, nothing
// more is written.
func TestWritesOfAConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, err := New(Options{WriteTimeout: 7 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		for size, isKept := range map[int]bool{64 << 10: true, 64<<10 + 1: false} {
			nc := &pausedConn{}
			c := newConn(s, nc)
			c.outgoing = make([]byte, 3, size)
			c.flush()
			if len(nc.written) != 1 || len(nc.written[0]) != 3 || !nc.writeDeadline.Equal(time.Now().Add(7*time.Second)) || c.isWriting || nc.hasClosed {
				t.Errorf("flush writes %d times, until %v; want 3 bytes once, within 7 s", len(nc.written), time.Until(nc.writeDeadline))
			}
			if (c.spare != nil) != isKept {
				t.Errorf("the memory of %d bytes is kept: %t; want %t", size, c.spare != nil, isKept)
			}
			c.flush()
			c.flushLater()
			if len(nc.written) != 1 {
				t.Errorf("without outgoing bytes, flush writes %d times more; want nothing", len(nc.written)-1)
			}
		}
		nc := &pausedConn{err: io.ErrClosedPipe}
		c := newConn(s, nc)
		c.outgoing = []byte("abc")
		if c.flush(); c.drainState != ended || !c.drainStateSince.IsZero() || !c.mustTick || c.outgoing != nil || nc.readDeadline.After(time.Now()) {
			t.Errorf("after an error, the connection is in the state %d since %v; want the state ended long ago, and that the reader is interrupted", c.drainState, c.drainStateSince)
		}
		if _, err := c.tick(time.Now()); err != errDrained {
			t.Errorf("after an error, tick returns %v; want errDrained", err)
		}
		// After the last GOAWAY and the last call, the server closes its half.
		nc = &pausedConn{}
		c = newConn(s, nc)
		c.drainState, c.openStreams, c.outgoing = final, 1, []byte("a")
		if c.flush(); nc.hasClosed || c.drainState != final {
			t.Error("the connection was closed while a call is open; want that it stays")
		}
		c.openStreams = 0
		if c.flush(); !nc.hasClosed || c.drainState != ended || !c.drainStateSince.Equal(time.Now()) || !c.mustTick {
			t.Errorf("after the last call, the connection is in the state %d; want the state ended now", c.drainState)
		}
		for after, want := range map[time.Duration]error{time.Second - 1: nil, time.Second: errDrained} {
			if _, err := c.tick(time.Now().Add(after)); err != want {
				t.Errorf("%v after the end, tick returns %v; want %v", after, err, want)
			}
		}
		nc = &pausedConn{recording: recording{rest: bytes.NewReader(make([]byte, 1<<20+5))}}
		c = newConn(s, nc)
		if c.linger(); !nc.hasClosed || !nc.readDeadline.Equal(time.Now().Add(time.Second)) || nc.rest.(*bytes.Reader).Len() != 5 {
			t.Errorf("linger leaves %d bytes, until %v; want that it reads 1 MiB within a second", nc.rest.(*bytes.Reader).Len(), time.Until(nc.readDeadline))
		}
	})
}

// tick does what is due, and returns when it must be called again.
func TestTicksOfAConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := Options{IdleTimeout: time.Hour, ReadTimeout: 8 * time.Second, WriteTimeout: 16 * time.Second, KeepAlive: time.Minute, MaxAgeGrace: 10 * time.Minute}
		s, err := New(o)
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		tick := func(c *conn, at, want time.Duration, wantErr error) {
			t.Helper()
			due, err := c.tick(began.Add(at))
			if err != wantErr || err == nil && due.Sub(began) != want {
				t.Errorf("tick at %v is due again at %v, %v; want %v, %v", at, due.Sub(began), err, want, wantErr)
			}
		}
		idle := newConn(s, &pausedConn{})
		tick(idle, 0, time.Hour, nil)
		tick(idle, time.Hour-1, time.Hour, nil)
		if idle.drainState != notDraining {
			t.Error("the idle connection was drained too early")
		}
		tick(idle, time.Hour, time.Hour+time.Second, nil) // the GOAWAY is sent
		tick(idle, time.Hour+time.Second-1, time.Hour+time.Second, nil)
		if idle.drainState != announced {
			t.Errorf("after the idle time, the state is %d; want that the end was announced", idle.drainState)
		}

		open := newConn(s, &pausedConn{})
		open.openStreams = 1
		tick(open, 0, time.Minute, nil)
		tick(open, time.Minute-1, time.Minute, nil)
		if open.isPinged {
			t.Error("a ping was sent before KeepAlive")
		}
		tick(open, time.Minute, time.Minute+8*time.Second, nil)
		if !open.isPinged {
			t.Error("no ping was sent after KeepAlive")
		}
		tick(open, time.Minute+8*time.Second-1, time.Minute+8*time.Second, nil)
		tick(open, time.Minute+8*time.Second, 0, errSilent)

		draining := newConn(s, &pausedConn{})
		draining.openStreams = 1
		draining.drainAt = began.Add(30 * time.Second)
		tick(draining, 0, 30*time.Second, nil)
		tick(draining, 30*time.Second, 31*time.Second, nil)
		draining.lastRead = began.Add(31 * time.Second)
		tick(draining, 31*time.Second, 91*time.Second, nil) // the last GOAWAY is sent; a ping comes before MaxAgeGrace ends
		if draining.drainState != final {
			t.Errorf("a second after the announcement, the state is %d; want final", draining.drainState)
		}
		draining.lastRead = began.Add(11 * time.Minute)
		tick(draining, 31*time.Second+10*time.Minute-1, 31*time.Second+10*time.Minute, nil)
		tick(draining, 31*time.Second+10*time.Minute, 0, errDrained)

		// Requests and responses are examined four times in the shorter of their timeouts.
		late := newConn(s, &pausedConn{})
		late.openStreams, late.incompleteRequests = 3, 1
		newStreamAt := func(id uint32, state streamState, since time.Duration) {
			st := newStream(late, id)
			st.state, st.stateSince, st.isRunning = state, began.Add(since), true
			late.streams[id] = st
		}
		newStreamAt(1, arriving, 0)
		newStreamAt(3, answering, 0)
		newStreamAt(5, handling, 0)
		tick(late, 8*time.Second-1, 10*time.Second-1, nil)
		tick(late, 10*time.Second-2, 10*time.Second-1, nil)
		if len(late.streams) != 3 {
			t.Errorf("before the timeout, %d streams are left; want 3", len(late.streams))
		}
		tick(late, 10*time.Second-1, 12*time.Second-1, nil)
		if late.streams[1] != nil || len(late.streams) != 2 {
			t.Errorf("after ReadTimeout, %d streams are left; want 2, without the one that arrives", len(late.streams))
		}
		late.incompleteRequests, late.blockedStreams, late.lastRead = 0, []*stream{late.streams[3]}, began.Add(16*time.Second)
		late.sweptAt = time.Time{}
		tick(late, 16*time.Second-1, 18*time.Second-1, nil)
		late.sweptAt = time.Time{}
		tick(late, 16*time.Second, 18*time.Second, nil)
		if late.streams[3] != nil || late.streams[5] == nil || len(late.blockedStreams) != 0 {
			t.Errorf("after WriteTimeout, the streams %v are left; want only the one that is handled", late.streams)
		}
	})
}

// The fields of a large list of headers are not kept for the next list.
func TestLargeListsOfHeadersAreNotKept(t *testing.T) {
	s, err := New(Options{})
	if err != nil {
		t.Fatal(err)
	}
	for size, isKept := range map[int]bool{64: true, 65: false} {
		h := &newConn(s, &recording{}).headers
		h.fields = make([]hpack.HeaderField, 0, size)
		if _, err := h.decode([]byte{0x83}); err != nil || len(h.fields) != 1 {
			t.Fatalf("the fields are %v, %v; want one", h.fields, err)
		}
		if (cap(h.fields) == size) != isKept {
			t.Errorf("the memory for %d fields is kept: %t; want %t", size, cap(h.fields) == size, isKept)
		}
	}
	h := &newConn(s, &recording{}).headers
	for _, c := range []struct {
		block    []byte
		isCached bool
	}{
		{[]byte{0x83, 0x86}, true}, {bytes.Repeat([]byte{0x83}, 64), true}, {bytes.Repeat([]byte{0x83}, 65), false}, {append(bytes.Repeat([]byte{0x80 | 2}, 3), 0, 1, 'a', 1, 'b'), false},
	} {
		h.decode(c.block)
		if isCached := bytes.Equal(h.lastBlock, c.block); isCached != c.isCached {
			t.Errorf("the block %x is remembered: %t; want %t", c.block, isCached, c.isCached)
		}
	}
	// The empty block has no fields, also after a block that is not remembered.
	for _, block := range [][]byte{{0x83, 0, 1, 'a', 1, 'b'}, {}} {
		r, err := h.decode(block)
		want := ""
		if len(block) > 0 {
			want = "POST"
		}
		if err != nil || r.method != want {
			t.Errorf("the block %x has the method %q, %v; want %q", block, r.method, err, want)
		}
	}
	for b, want := range map[byte]bool{0x7f: false, 0x80: true, 0xfe: true, 0xff: false} {
		if got := isIndexed([]byte{0x82, b}); got != want {
			t.Errorf("a block with the byte %#x only has indices: %t; want %t", b, got, want)
		}
	}
}

func TestOutgoingBytesHaveABound(t *testing.T) {
	for size, want := range map[int]bool{256 << 10: false, 256<<10 + 1: true} {
		c := &conn{outgoing: make([]byte, size)}
		if got := c.isFullLocked(); got != want {
			t.Errorf("with %d outgoing bytes, the connection is full: %t; want %t", size, got, want)
		}
	}
}
