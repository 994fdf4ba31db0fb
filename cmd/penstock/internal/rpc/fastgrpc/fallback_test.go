package fastgrpc_test

import (
	"fmt"
	"io"
	"net/http"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/penstock/penstock/cmd/penstock/internal/rpc/fastgrpc"
)

// otherMethod has no Handler, so the fallback serves it.
const otherMethod = "/other.Service/Method"

// An echo is a fallback that responds with the request's body. It counts the calls that have begun
// and those that have ended.
type echo struct{ begun, ended atomic.Int64 }

func (e *echo) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	e.begun.Add(1)
	defer e.ended.Add(1)
	for part := make([]byte, 1<<10); ; {
		n, err := r.Body.Read(part)
		w.Write(part[:n])
		if err != nil {
			if err == io.EOF {
				w.Header().Set(http.TrailerPrefix+"Grpc-Status", "0")
			}
			return
		}
	}
}

// A call whose first message does not arrive in time takes no goroutine, and is cancelled.
func TestHalfOpenCallsOfTheFallbackAreCancelled(t *testing.T) {
	for name, c := range map[string]struct {
		sent  []byte
		begun int64 // calls that the fallback gets
	}{
		"only headers":              {},
		"half a prefix":             {sent: message("x")[:3]},
		"half a message":            {sent: message("xxxx")[:7]},
		"half a compressed one":     {sent: []byte{1, 0, 0, 0, 2, 7}},
		"a large part of a message": {sent: append([]byte{0, 0, 0, 0x80, 0}, make([]byte, 0x7f00)...), begun: 1},
	} {
		t.Run(name, func(t *testing.T) {
			var e echo
			o := fastgrpc.Options{ReadTimeout: time.Second, WriteTimeout: time.Hour, Fallback: &e}
			inBubble(t, o, func(t *testing.T, _ *fastgrpc.Server, r *rawClient) {
				begin := time.Now()
				r.begin()
				r.headers(1, false, fields(":path", otherMethod))
				for rest := c.sent; len(rest) > 0; {
					n := min(len(rest), 16<<10)
					r.logError(r.WriteData(1, false, rest[:n]))
					rest = rest[n:]
				}
				if got, took := r.outcome(1), time.Since(begin); got != "reset CANCEL" || !isAbout(took, o.ReadTimeout) {
					t.Errorf("after %v the outcome is %q; want %q after %v", took, got, "reset CANCEL", o.ReadTimeout)
				}
				synctest.Wait()
				if begun, ended := e.begun.Load(), e.ended.Load(); begun != c.begun || ended != c.begun {
					t.Errorf("%d calls of the fallback have begun, and %d have ended; want %d", begun, ended, c.begun)
				}
			})
		})
	}
}

// A stream that has sent its first message may stay open for as long as the client wants.
func TestStreamThatHasSentAMessageStaysOpen(t *testing.T) {
	var e echo
	o := fastgrpc.Options{ReadTimeout: time.Second, KeepAlive: 9 * time.Hour, Fallback: &e} // this client answers no ping
	for name, parts := range map[string][][]byte{
		"at once":     {message("x")},
		"in parts":    {message("xxxx")[:3], message("xxxx")[3:7], message("xxxx")[7:]},
		"a large one": {append([]byte{0, 0, 0, 0x80, 0}, make([]byte, 0x3ff0)...), make([]byte, 0x4000), make([]byte, 0x10)},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, o, func(t *testing.T, _ *fastgrpc.Server, r *rawClient) {
				r.begin()
				r.headers(1, false, fields(":path", otherMethod))
				for _, part := range parts {
					r.logError(r.WriteData(1, false, part))
				}
				time.Sleep(time.Hour)
				r.logError(r.WriteData(1, true, nil))
				if got := r.outcome(1); got != good {
					t.Errorf("the outcome of a stream that was open for an hour is %q; want %q", got, good)
				}
			})
		})
	}
}

func TestStalledResponseOfTheFallbackIsCancelled(t *testing.T) {
	var e echo
	o := fastgrpc.Options{WriteTimeout: time.Second, Fallback: &e}
	inBubble(t, o, func(t *testing.T, _ *fastgrpc.Server, r *rawClient) {
		begin := time.Now()
		r.begin(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
		r.call(1, "x", ":path", otherMethod)
		if got, took := r.outcome(1), time.Since(begin); got != "reset CANCEL" || !isAbout(took, o.WriteTimeout) {
			t.Errorf("after %v the outcome is %q; want %q after %v", took, got, "reset CANCEL", o.WriteTimeout)
		}
		synctest.Wait()
		if n := e.ended.Load(); n != 1 {
			t.Errorf("%d calls of the fallback have ended; want 1", n)
		}
		r.logError(r.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 100}))
		r.call(3, "x", ":path", otherMethod)
		if got := r.outcome(3); got != good {
			t.Errorf("the outcome of the next call is %q; want %q", got, good)
		}
	})
}

func TestFallbackServesAtMostMaxParallelCalls(t *testing.T) {
	release := make(chan struct{})
	wait := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		<-release
		w.Header().Set(http.TrailerPrefix+"Grpc-Status", "0")
	})
	_, address := startFast(t, fastgrpc.Options{MaxParallel: 3, Fallback: wait})
	one, other := dialRaw(t, address), dialRaw(t, address)
	for id := uint32(1); id <= 5; id += 2 {
		one.call(id, "x", ":path", otherMethod)
	}
	one.headers(7, false, fields(":path", otherMethod)) // it has not begun, so it does not count
	one.call(9, "x", ":path", otherMethod)
	if got := one.outcome(9); got != "reset REFUSED_STREAM" {
		t.Errorf("the outcome of the fourth call is %q; want %q", got, "reset REFUSED_STREAM")
	}
	other.call(1, "x", ":path", otherMethod)
	if got := other.outcome(1); got != "reset REFUSED_STREAM" {
		t.Errorf("the outcome of a call on another connection is %q; want %q", got, "reset REFUSED_STREAM")
	}
	other.call(3, "x")
	if got := other.outcome(3); got != good {
		t.Errorf("the outcome of a call that has a Handler is %q; want %q", got, good)
	}
	close(release)
	if got := one.outcome(5); got != "200/0" {
		t.Errorf("the outcome of the last call that began is %q; want %q", got, "200/0")
	}
	for id := uint32(5); ; id += 2 { // until an earlier call has ended
		other.call(id, "x", ":path", otherMethod)
		if got := other.outcome(id); got != "reset REFUSED_STREAM" {
			if got != "200/0" {
				t.Errorf("the outcome of a call after others have ended is %q; want %q", got, "200/0")
			}
			break
		}
	}
}

// A grpc.Server reads the body ahead of its handler, so the windows do not bound what it keeps.
func TestRequestOfTheFallbackHasABound(t *testing.T) {
	const bound = 5 + 1<<20 // bytes, as the documentation of Options.Fallback states
	for _, over := range []int{0, 1} {
		var e echo
		_, address := startFast(t, fastgrpc.Options{Fallback: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			io.Copy(io.Discard, r.Body)
			e.ServeHTTP(w, r)
		})})
		r := dialRaw(t, address)
		r.headers(1, false, fields(":path", otherMethod))
		for left := bound + over; left > 0; {
			n := min(left, 16<<10)
			left -= n
			r.logError(r.WriteData(1, left == 0, make([]byte, n)))
			if left > 0 {
				r.awaitWindow(1) // opens by what was sent
			}
		}
		want := "200/0"
		if over > 0 {
			want = "reset ENHANCE_YOUR_CALM"
		}
		if got := r.outcome(1); got != want {
			t.Errorf("the outcome of a request of %d bytes more than the bound is %q; want %q", over, got, want)
		}
	}
}

// A header list can be large although few bytes were sent: each byte may refer to an entry of the
// header table.
func TestHeadersOfHalfOpenCallsHaveABound(t *testing.T) {
	const perCall, bound = 15_000, 1 << 20 // bytes of headers of a call, and those that a connection keeps
	_, address := startFast(t, fastgrpc.Options{Fallback: new(echo)})
	r := dialRaw(t, address)
	list := fields(":path", otherMethod)
	for size := 300; size+3032 < perCall; size += 3032 { // a field of 3,000 bytes counts 32 more
		list = append(list, hpack.HeaderField{Name: "x", Value: strings.Repeat("y", 2999)})
	}
	for id := uint32(1); ; id += 2 {
		r.headers(id, false, list)
		r.call(id+2, "x", "content-type", "text/plain") // is answered after the call before it is examined
		refused := false
		for {
			f, err := r.ReadFrame()
			if err != nil {
				t.Fatal(err)
			}
			if reset, ok := f.(*http2.RSTStreamFrame); ok && reset.StreamID == id {
				refused = reset.ErrCode == http2.ErrCodeRefusedStream
			}
			if h, ok := f.(*http2.MetaHeadersFrame); ok && h.StreamID == id+2 {
				break
			}
		}
		if calls := int(id/4) + 1; refused {
			if calls < bound/perCall || calls > 2*bound/perCall {
				t.Errorf("call %d is refused; want %d to %d accepted", calls, bound/perCall, 2*bound/perCall)
			}
			break
		} else if calls > 2*bound/perCall {
			t.Fatalf("%d calls are accepted; want at most %d", calls, 2*bound/perCall)
		}
		id += 2
	}
	r.logError(r.WriteRSTStream(1, http2.ErrCodeCancel))
	r.call(10_001, "x", ":path", otherMethod)
	if got := r.outcome(10_001); got != good {
		t.Errorf("the outcome of a call after another was cancelled is %q; want %q", got, good)
	}
}

// Without the bound, each of these calls takes 25 KB and four goroutines, for 15 bytes.
func TestHalfOpenCallsTakeLittleMemory(t *testing.T) {
	const connections, calls = 10, 2000
	const bound = 30 << 20 // bytes of all of them, in the server and in the clients
	standard := newStandard()
	t.Cleanup(standard.Stop)
	_, address := startFast(t, fastgrpc.Options{Fallback: standard})
	clients := make([]*rawClient, connections)
	for i := range clients {
		clients[i] = dialRaw(t, address)
		clients[i].call(1, "x")
		if got := clients[i].outcome(1); got != good {
			t.Fatalf("the outcome of the first call is %q; want %q", got, good)
		}
	}
	before, goroutines := inUse(), runtime.NumGoroutine()
	for _, r := range clients {
		for i := range calls {
			r.headers(uint32(3+2*i), false, fields(":path", "/grpc.health.v1.Health/Check"))
		}
		last := uint32(3 + 2*calls)
		r.call(last, "x")
		if got := r.outcome(last); got != good {
			t.Fatalf("the outcome of the call after %d half-open ones is %q; want %q", calls, got, good)
		}
	}
	used, more := inUse()-before, runtime.NumGoroutine()-goroutines
	t.Logf("%d half-open calls take %d KB and %d goroutines", connections*calls, used>>10, more)
	if used > bound || more > connections {
		t.Errorf("%d half-open calls take %d bytes and %d goroutines; want at most %d bytes, and no goroutine for each", connections*calls, used, more, bound)
	}
}

// What is wrong with the end of a request is found for calls of a Handler and of the fallback.
func TestRequestsThatEndWrongAreReset(t *testing.T) {
	m := message("x")
	length := fmt.Sprint(len(m))
	for name, c := range map[string]struct {
		length string
		send   func(r *rawClient)
		want   string
	}{
		"right length": {length: length, send: func(r *rawClient) { r.WriteData(1, true, m) }, want: good},
		"right length in parts": {length: length, send: func(r *rawClient) {
			r.WriteData(1, false, m[:6])
			r.WriteDataPadded(1, false, m[6:], make([]byte, 9))
			r.WriteData(1, true, nil)
		}, want: good},
		"larger length":          {length: length + "0", send: func(r *rawClient) { r.WriteData(1, true, m) }, want: "reset PROTOCOL_ERROR"},
		"larger length in parts": {length: length + "0", send: func(r *rawClient) { r.WriteData(1, false, m); r.WriteData(1, true, nil) }, want: "reset PROTOCOL_ERROR"},
		"smaller length":         {length: "3", send: func(r *rawClient) { r.WriteData(1, false, m) }, want: "reset PROTOCOL_ERROR"},
		"larger length, and trailers": {length: length + "0", send: func(r *rawClient) {
			r.WriteData(1, false, m)
			r.headers(1, true, []hpack.HeaderField{{Name: "x-a", Value: "1"}})
		}, want: "reset PROTOCOL_ERROR"},
		"trailers": {send: func(r *rawClient) {
			r.WriteData(1, false, m)
			r.headers(1, true, []hpack.HeaderField{{Name: "x-a", Value: "1"}})
		}, want: good},
		"pseudo header in trailers": {send: func(r *rawClient) {
			r.WriteData(1, false, m[:6])
			r.headers(1, true, []hpack.HeaderField{{Name: ":method", Value: "POST"}})
		}, want: "reset PROTOCOL_ERROR"},
		"upper case in trailers": {send: func(r *rawClient) {
			r.WriteData(1, false, m[:6])
			r.headers(1, true, []hpack.HeaderField{{Name: "X-A", Value: "1"}})
		}, want: "reset PROTOCOL_ERROR"},
		"trailers that do not end": {send: func(r *rawClient) {
			r.WriteData(1, false, m[:6])
			r.headers(1, false, []hpack.HeaderField{{Name: "x-a", Value: "1"}})
		}, want: "reset PROTOCOL_ERROR"},
	} {
		for kind, path := range map[string]string{"handler": method, "fallback": otherMethod} {
			t.Run(name+"/"+kind, func(t *testing.T) {
				_, address := startFast(t, fastgrpc.Options{Fallback: new(echo)})
				r := dialRaw(t, address)
				r.headers(1, false, fields(":path", path, "content-length", c.length))
				c.send(r)
				if got := r.outcome(1); got != c.want {
					t.Errorf("the outcome is %q; want %q", got, c.want)
				}
				r.call(3, "x")
				if got := r.outcome(3); got != good {
					t.Errorf("the outcome of the next call is %q; want %q", got, good)
				}
			})
		}
	}
}

// The fallback gets the calls of a method with a Handler that are compressed, or encoded otherwise.
func TestFallbackServesOtherEncodings(t *testing.T) {
	for name, c := range map[string]struct {
		changes []string
		begun   int64
	}{
		"plain":             {changes: nil, begun: 0},
		"identity":          {changes: []string{"grpc-encoding", "identity"}, begun: 0},
		"proto":             {changes: []string{"content-type", "application/grpc+proto"}, begun: 0},
		"compressed":        {changes: []string{"grpc-encoding", "gzip"}, begun: 1},
		"JSON":              {changes: []string{"content-type", "application/grpc+json"}, begun: 1},
		"compressed JSON":   {changes: []string{"grpc-encoding", "gzip", "content-type", "application/grpc+json"}, begun: 1},
		"of another method": {changes: []string{":path", otherMethod}, begun: 1},
	} {
		t.Run(name, func(t *testing.T) {
			var e echo
			_, address := startFast(t, fastgrpc.Options{Fallback: &e})
			r := dialRaw(t, address)
			r.call(1, "x", c.changes...)
			if got := r.outcome(1); got != good || e.begun.Load() != c.begun {
				t.Errorf("the outcome is %q, and the fallback got %d calls; want %q and %d", got, e.begun.Load(), good, c.begun)
			}
		})
	}
}

// A response of the fallback is sent in the parts that the windows allow, before the fallback has
// ended.
func TestFallbackSendsWhatTheWindowAllows(t *testing.T) {
	const size, window = 300_000, 10
	_, address := startFast(t, fastgrpc.Options{Fallback: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Write(make([]byte, size))
		w.Header().Set(http.TrailerPrefix+"Grpc-Status", "0")
	})})
	r := dialRaw(t, address, http2.Setting{ID: http2.SettingInitialWindowSize, Val: window})
	received := make(map[uint32]int) // bytes, by stream
	receive := func(id uint32, most int) {
		for received[id] < most {
			f, err := r.ReadFrame()
			if err != nil {
				t.Fatalf("the response of call %d ended after %d bytes: %v; want %d", id, received[id], err, most)
			}
			if data, ok := f.(*http2.DataFrame); ok {
				received[data.StreamID] += int(data.Length)
			}
		}
	}
	for _, id := range []uint32{1, 3} { // the second call begins while the first one waits
		r.call(id, "x", ":path", otherMethod)
		receive(id, window)
	}
	for id, n := range received {
		if n != window {
			t.Errorf("the server sent %d bytes of call %d; want %d, the whole window", n, id, window)
		}
		r.logError(r.WriteWindowUpdate(id, size))
		r.logError(r.WriteWindowUpdate(0, size))
	}
	receive(1, size)
	receive(3, size)
}
