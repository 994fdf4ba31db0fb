package fastgrpc

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// handleAll lets a connection handle the frames that send writes, without a handshake, and returns
// the connection and the error that ended it.
func handleAll(t *testing.T, o Options, send func(*http2.Framer, func(...string) []byte)) (*conn, error) {
	t.Helper()
	o.Parallel = 1
	o.Methods = map[string]Handler{"/a.B/C": func(context.Context, *Call) error { return nil }}
	s, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	sent := frames(func(f *http2.Framer, e *hpack.Encoder, b *bytes.Buffer) {
		send(f, func(changes ...string) []byte {
			b.Reset()
			list := map[string]string{":method": "POST", ":scheme": "http", ":path": "/a.B/C", ":authority": "a", "content-type": "application/grpc"}
			for i := 0; i < len(changes); i += 2 {
				list[changes[i]] = changes[i+1]
			}
			for _, name := range []string{":method", ":scheme", ":path", ":authority", "content-type", "connection", "content-length"} {
				if value := list[name]; value != "" {
					e.WriteField(hpack.HeaderField{Name: name, Value: value})
				}
			}
			return b.Bytes()
		})
	})
	c := newConn(s, &pausedConn{recording: recording{rest: bytes.NewReader(sent)}})
	c.allowance.left = 5000
	for err == nil {
		err = c.handleNext()
	}
	c.dispatch()
	if err == io.EOF {
		err = nil
	}
	return c, err
}

// open writes the headers of a call.
func open(f *http2.Framer, id uint32, isEnd bool, block []byte) {
	f.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block, EndHeaders: true, EndStream: isEnd})
}

// shortMessage returns a message of n bytes with its prefix.
func shortMessage(n int) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{0}, uint32(n)), make([]byte, n)...)
}

// Each frame that carries no part of a request costs 1 of the allowance. Settings and mistakes cost
// 10, and each request adds 10.
func TestCostsOfFrames(t *testing.T) {
	for name, c := range map[string]struct {
		send func(*http2.Framer, func(...string) []byte)
		want int // what it costs; below 0: what it adds
	}{
		"settings":        {func(f *http2.Framer, _ func(...string) []byte) { f.WriteSettings() }, 10},
		"acknowledgement": {func(f *http2.Framer, _ func(...string) []byte) { f.WriteSettingsAck() }, 1},
		"a ping":          {func(f *http2.Framer, _ func(...string) []byte) { f.WritePing(false, [8]byte{}) }, 1},
		"a window":        {func(f *http2.Framer, _ func(...string) []byte) { f.WriteWindowUpdate(0, 1) }, 1},
		"a priority":      {func(f *http2.Framer, _ func(...string) []byte) { f.WritePriority(1, http2.PriorityParam{}) }, 1},
		"unknown":         {func(f *http2.Framer, _ func(...string) []byte) { f.WriteRawFrame(0x77, 0, 0, nil) }, 1},
		"a request": {func(f *http2.Framer, block func(...string) []byte) {
			open(f, 1, false, block())
			f.WriteData(1, true, shortMessage(3))
		}, -10},
		"a request in parts": {func(f *http2.Framer, block func(...string) []byte) {
			open(f, 1, false, block())
			f.WriteData(1, false, shortMessage(600)[:255])
			f.WriteData(1, false, shortMessage(600)[255:255+256])
			f.WriteData(1, true, shortMessage(600)[511:])
		}, 1 - 10},
		"a reset": {func(f *http2.Framer, block func(...string) []byte) {
			open(f, 1, false, block())
			f.WriteRSTStream(1, http2.ErrCodeCancel)
		}, 1},
		"a window of a stream": {func(f *http2.Framer, block func(...string) []byte) {
			open(f, 1, false, block())
			f.WriteWindowUpdate(1, 1)
		}, 1},
		"a window of an ended stream": {func(f *http2.Framer, block func(...string) []byte) {
			open(f, 1, false, block("connection", "close"))
			f.WriteWindowUpdate(1, 1)
		}, 10 + 1},
		"DATA of an ended stream": {func(f *http2.Framer, block func(...string) []byte) {
			open(f, 1, false, block("connection", "close"))
			f.WriteData(1, false, make([]byte, 1000))
		}, 10 + 1},
		"trailers of an ended stream": {func(f *http2.Framer, block func(...string) []byte) {
			open(f, 1, false, block("connection", "close"))
			open(f, 1, true, block())
		}, 10 + 10},
		"trailers with pseudo headers": {func(f *http2.Framer, block func(...string) []byte) {
			open(f, 1, false, block())
			open(f, 1, true, block())
		}, 10},
		"a malformed window": {func(f *http2.Framer, block func(...string) []byte) {
			open(f, 1, false, block())
			f.WriteWindowUpdate(1, 0)
		}, 10},
		"more than content-length": {func(f *http2.Framer, block func(...string) []byte) {
			open(f, 1, false, block("content-length", "3"))
			f.WriteData(1, false, shortMessage(3))
		}, 10},
		"less than content-length": {func(f *http2.Framer, block func(...string) []byte) {
			open(f, 1, false, block("content-length", "30"))
			f.WriteData(1, true, shortMessage(3))
		}, 10},
		"too many streams": {func(f *http2.Framer, block func(...string) []byte) {
			for id := uint32(1); id <= 5; id += 2 {
				open(f, id, false, block())
			}
		}, 1},
		"an unknown method": {func(f *http2.Framer, block func(...string) []byte) { open(f, 1, true, block(":path", "/x/y")) }, 0},
	} {
		conn, err := handleAll(t, Options{MaxStreams: 2}, c.send)
		if got := 5000 - conn.allowance.left; got != c.want || err != nil {
			t.Errorf("%s costs %d, %v; want %d", name, got, err, c.want)
		}
	}
}

// updates returns the increments of the WINDOW_UPDATE frames that a connection has sent, by stream.
func updates(c *conn) map[uint32][]uint32 {
	found := make(map[uint32][]uint32)
	sent := append(bytes.Join(c.nc.(*pausedConn).written, nil), c.outgoing...)
	for f := http2.NewFramer(io.Discard, bytes.NewReader(sent)); ; {
		frame, err := f.ReadFrame()
		if err != nil {
			return found
		}
		if w, ok := frame.(*http2.WindowUpdateFrame); ok {
			found[w.StreamID] = append(found[w.StreamID], w.Increment)
		}
	}
}

// The window of a stream is opened after half of it was used, and that of the connection after a
// quarter.
func TestWindowsAreOpenedRarely(t *testing.T) {
	for _, c := range []struct {
		sizes  []int // of DATA frames of one call
		stream []uint32
	}{
		{[]int{16384, 16383}, nil}, {[]int{16384, 16384}, []uint32{32768}}, {[]int{16384, 16383, 1}, []uint32{32768}}, {[]int{16384, 16384, 16384, 16383}, []uint32{32768}},
	} {
		conn, err := handleAll(t, Options{}, func(f *http2.Framer, block func(...string) []byte) {
			open(f, 1, false, block())
			message := shortMessage(65536 - 5)
			for _, n := range c.sizes {
				f.WriteData(1, false, message[:n])
				message = message[n:]
			}
		})
		if got := updates(conn)[1]; err != nil || len(got) != len(c.stream) || len(got) > 0 && got[0] != c.stream[0] {
			t.Errorf("after DATA of %v bytes, the window of the stream is opened by %v, %v; want %v", c.sizes, got, err, c.stream)
		}
	}
	for last, want := range map[int][]uint32{0: nil, 1: {1<<18 + 1}} {
		conn, err := handleAll(t, Options{}, func(f *http2.Framer, block func(...string) []byte) {
			for id := uint32(1); id < 32; id += 2 { // 16 calls of 16 KiB
				open(f, id, false, block())
				f.WriteData(id, true, shortMessage(16384-5))
			}
			open(f, 33, false, block())
			f.WriteData(33, false, make([]byte, last))
		})
		if got := updates(conn)[0]; err != nil || len(got) != len(want) || len(got) > 0 && got[0] != want[0] {
			t.Errorf("after %d bytes, the window of the connection is opened by %v, %v; want %v", 1<<18+last, got, err, want)
		}
	}
}

// A call for the fallback begins with its first message, or with 16 KiB of a longer one.
func TestFallbackBeginsWithAMessageOrAPart(t *testing.T) {
	for _, c := range []struct {
		size, sent int // of the message; bytes of it with its prefix
		want       bool
	}{{10, 14, false}, {10, 15, true}, {60_000, 16_383, false}, {60_000, 16_384, true}, {0, 4, false}, {0, 5, true}} {
		begun := make(chan struct{}, 1)
		conn, err := handleAll(t, Options{Fallback: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			begun <- struct{}{}
			io.Copy(io.Discard, r.Body)
		})}, func(f *http2.Framer, block func(...string) []byte) {
			open(f, 1, false, block(":path", "/x/y"))
			f.WriteData(1, false, shortMessage(c.size)[:c.sent])
		})
		isBegun := conn.streams[1] != nil && conn.streams[1].exchange != nil
		if isBegun != c.want || err != nil {
			t.Errorf("after %d bytes of a message of %d, the fallback has begun: %t, %v; want %t", c.sent, c.size, isBegun, err, c.want)
		}
		if isBegun {
			<-begun
		}
		conn.close()
		conn.server.goroutines.Wait()
	}
}

// The window of a call of the fallback is opened each time a quarter of it was read. A body may be
// read in any parts, so an update may open more than a quarter. The memory of the body is released
// after all of it was read.
func TestWindowOfTheFallbackIsOpenedByReads(t *testing.T) {
	const quarter = 16_384                        // of the window, in bytes
	for _, c := range []struct{ sent, read int }{ // bytes
		{16_383, 16_383}, {16_384, 16_383}, {16_384, 16_384}, {40_000, 40_000}, {40_000, 10_000},
	} {
		hasRead := make(chan error, 1)
		conn, err := handleAll(t, Options{Fallback: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			_, err := io.ReadFull(r.Body, make([]byte, c.read))
			hasRead <- err
			<-r.Context().Done()
		})}, func(f *http2.Framer, block func(...string) []byte) {
			open(f, 1, false, block(":path", "/x/y"))
			f.WriteData(1, false, shortMessage(10)) // the fallback begins
			for left := c.sent - 15; left > 0; left -= min(left, quarter) {
				f.WriteData(1, false, make([]byte, min(left, quarter)))
			}
		})
		if readErr := <-hasRead; readErr != nil || err != nil {
			t.Fatalf("the body of %d bytes: %v, %v; want no error", c.sent, readErr, err)
		}
		conn.mu.Lock()
		got, kept, hasMemory := updates(conn)[1], conn.keptBytes, conn.streams[1].exchange.body != nil
		conn.mu.Unlock()
		rest := c.read // bytes that were read and have not opened the window
		for _, n := range got {
			if n < quarter {
				t.Errorf("after %d of %d bytes were read, an update opens the window by %d; want at least %d", c.read, c.sent, n, quarter)
			}
			rest -= int(n)
		}
		if rest < 0 || rest >= quarter || kept != c.sent-c.read {
			t.Errorf("after %d of %d bytes were read, the window is opened by %v, and %d bytes are kept; want less than %d left to open, and %d kept",
				c.read, c.sent, got, kept, quarter, c.sent-c.read)
		}
		if hasMemory != (c.read < c.sent) {
			t.Errorf("after %d of %d bytes were read, the body has memory: %t; want memory only for bytes that were not read", c.read, c.sent, hasMemory)
		}
		conn.close()
		conn.server.goroutines.Wait()
		if conn.keptBytes != 0 || conn.openStreams != 0 || conn.bufferedBytes != 0 || conn.incompleteRequests != 0 || conn.server.exchanges.Load() != 0 {
			t.Errorf("after the end, %d bytes are kept, %d buffered, %d streams are open, and the fallback serves %d; want none", conn.keptBytes, conn.bufferedBytes, conn.openStreams, conn.server.exchanges.Load())
		}
	}
}

// The headers of half-open calls of the fallback count as buffered, up to 1 MiB.
func TestHeadersForTheFallbackAreCounted(t *testing.T) {
	fallback := http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
	conn, err := handleAll(t, Options{Fallback: fallback}, func(f *http2.Framer, block func(...string) []byte) { open(f, 1, false, block(":path", "/x/y")) })
	size := conn.bufferedBytes
	if err != nil || size != conn.headers.size || size == 0 {
		t.Fatalf("%d bytes are buffered, %v; want %d, those of the headers", size, err, conn.headers.size)
	}
	for room, isKept := range map[int]bool{size: true, size - 1: false} {
		conn.bufferedBytes = 1<<20 - room
		s := newStream(conn, 3)
		if got := conn.keepHeadersLocked(s, &conn.headers.lastRequest); got != isKept || (s.fallback != nil) != isKept {
			t.Errorf("with room for %d bytes, headers of %d are kept: %t; want %t", room, size, got, isKept)
		}
	}
}

// The incomplete messages of a connection have 1 MiB.
func TestIncompleteMessagesAreCounted(t *testing.T) {
	conn, err := handleAll(t, Options{}, func(f *http2.Framer, block func(...string) []byte) {
		open(f, 1, false, block())
		f.WriteData(1, false, shortMessage(100)[:50])
		open(f, 3, false, block())
		f.WriteData(3, false, shortMessage(100)[:5])
	})
	if conn.bufferedBytes != 45 || conn.incompleteRequests != 2 || err != nil {
		t.Errorf("%d bytes of %d requests are buffered, %v; want 45 of 2", conn.bufferedBytes, conn.incompleteRequests, err)
	}
	for room, isAccepted := range map[int]bool{10: true, 9: false} {
		conn.bufferedBytes = 1<<20 - room
		s := newStream(conn, 5)
		s.prefix, s.prefixLength, s.messageSize = [5]byte{0, 0, 0, 0, 10}, 5, 10
		refused := conn.appendRequestLocked(s, make([]byte, 10))
		if (refused == nil) != isAccepted || conn.bufferedBytes != 1<<20-room+len(s.Request) || len(s.Request) != map[bool]int{true: 10, false: 0}[isAccepted] {
			t.Errorf("with room for %d bytes, a message of 10: %v, and %d bytes are buffered; want it accepted: %t", room, refused, conn.bufferedBytes, isAccepted)
		}
	}
}

// A Write that waits for a window is counted once, until it waits no more.
func TestBlockedWritesAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &conn{nc: &pausedConn{}}
		first, second := &exchange{stream: newStream(c, 1)}, &exchange{stream: newStream(c, 3)}
		check := func(count int, hasInterrupted bool) {
			t.Helper()
			if c.blockedExchanges != count || c.mustTick != hasInterrupted {
				t.Errorf("%d calls are blocked, and the reader is interrupted: %t; want %d and %t", c.blockedExchanges, c.mustTick, count, hasInterrupted)
			}
			c.mustTick = false
		}
		first.blockLocked()
		check(1, true)
		time.Sleep(time.Second)
		first.blockLocked()
		check(1, false)
		second.blockLocked()
		check(2, false)
		now := time.Now()
		var none *exchange
		for _, row := range []struct {
			e    *exchange
			long time.Duration
			want bool
		}{{first, time.Second, true}, {first, time.Second + 1, false}, {second, 0, true}, {second, 1, false}, {none, 0, false}, {new(exchange), 0, false}} {
			if got := row.e.isBlockedFor(now, row.long); got != row.want {
				t.Errorf("a call is blocked for %v: %t; want %t", row.long, got, row.want)
			}
		}
		first.unblockLocked()
		first.unblockLocked()
		check(1, false)
		second.unblockLocked()
		check(0, false)
	})
}

// A call that the fallback refuses is not counted as one that it serves.
func TestRefusedCallsOfTheFallbackAreNotCounted(t *testing.T) {
	for served, isServed := range map[int64]bool{6: true, 7: false} {
		conn, err := handleAll(t, Options{MaxParallel: 7, Fallback: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })}, func(f *http2.Framer, block func(...string) []byte) {
			open(f, 1, false, block(":path", "/x/y"))
		})
		if err != nil {
			t.Fatal(err)
		}
		conn.server.exchanges.Store(served)
		conn.mu.Lock()
		s := conn.streams[1]
		conn.startExchangeLocked(s, false)
		hasBegun := s.exchange != nil
		conn.mu.Unlock()
		if n := conn.server.exchanges.Load(); hasBegun != isServed || n != 7 {
			t.Errorf("beside %d calls, another one begins: %t, and %d are counted; want %t and 7", served, hasBegun, n, isServed)
		}
		conn.close()
		conn.server.goroutines.Wait()
	}
}
