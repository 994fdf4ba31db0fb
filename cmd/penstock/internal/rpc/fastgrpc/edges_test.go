package fastgrpc_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/cmd/penstock/internal/rpc/fastgrpc"
)

// distinct returns n settings with different numbers, which HTTP/2 does not define.
func distinct(n int) (all []http2.Setting) {
	for i := range n {
		all = append(all, http2.Setting{ID: http2.SettingID(0x100 + i), Val: 1})
	}
	return all
}

func TestSettingsAreChecked(t *testing.T) {
	_, address := startFast(t, fastgrpc.Options{})
	for name, c := range map[string]struct {
		send func(r *rawClient)
		want string
	}{
		"32 settings":       {func(r *rawClient) { r.logError(r.WriteSettings(distinct(32)...)) }, good},
		"33 settings":       {func(r *rawClient) { r.logError(r.WriteSettings(distinct(33)...)) }, "goaway ENHANCE_YOUR_CALM"},
		"a setting twice":   {func(r *rawClient) { r.logError(r.WriteSettings(append(distinct(1), distinct(1)...)...)) }, "goaway ENHANCE_YOUR_CALM"},
		"ENABLE_PUSH 2":     {func(r *rawClient) { r.logError(r.WriteSettings(http2.Setting{ID: http2.SettingEnablePush, Val: 2})) }, "goaway PROTOCOL_ERROR"},
		"ENABLE_PUSH 1":     {func(r *rawClient) { r.logError(r.WriteSettings(http2.Setting{ID: http2.SettingEnablePush, Val: 1})) }, good},
		"small frames":      {func(r *rawClient) { r.logError(r.WriteSettings(http2.Setting{ID: http2.SettingMaxFrameSize, Val: 1})) }, "goaway PROTOCOL_ERROR"},
		"acknowledgements":  {func(r *rawClient) { r.logError(r.WriteSettingsAck()) }, good},
		"the whole window":  {func(r *rawClient) { openWindow(r, math.MaxInt32-65535, 65535) }, good},
		"one byte too many": {func(r *rawClient) { openWindow(r, math.MaxInt32-65535, 65536) }, "goaway FLOW_CONTROL_ERROR"},
		"a negative window": {func(r *rawClient) { openWindow(r, 65535, 0) }, good},
		"the connection's window": {func(r *rawClient) {
			r.logError(r.WriteWindowUpdate(0, math.MaxInt32-65535))
		}, good},
		"one byte more than the connection's window": {func(r *rawClient) {
			r.logError(r.WriteWindowUpdate(0, math.MaxInt32-65534))
		}, "goaway FLOW_CONTROL_ERROR"},
	} {
		r := dialRaw(t, address)
		c.send(r)
		r.call(3, "x")
		if got := r.outcome(3); got != c.want {
			t.Errorf("%s: the outcome is %q; want %q", name, got, c.want)
		}
	}
}

// openWindow opens stream 1 and its window by more bytes, and then changes the initial window.
func openWindow(r *rawClient, more, initial uint32) {
	r.headers(1, false, fields())
	r.logError(r.WriteWindowUpdate(1, more))
	r.logError(r.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: initial}))
	r.logError(r.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 65535}))
}

// The first frame of a client is SETTINGS.
func TestHandshakeNeedsSettings(t *testing.T) {
	_, address := startFast(t, fastgrpc.Options{})
	for name, c := range map[string]struct {
		send func(r *rawClient)
		want string
	}{
		"a ping":             {func(r *rawClient) { r.logError(r.WritePing(false, [8]byte{})) }, "goaway PROTOCOL_ERROR"},
		"an acknowledgement": {func(r *rawClient) { r.logError(r.WriteSettingsAck()) }, "goaway PROTOCOL_ERROR"},
		"a malformed frame":  {func(r *rawClient) { r.logError(r.WriteRawFrame(http2.FrameSettings, 0, 0, make([]byte, 5))) }, "goaway FRAME_SIZE_ERROR"},
		"wrong settings":     {func(r *rawClient) { r.logError(r.WriteSettings(http2.Setting{ID: http2.SettingEnablePush, Val: 2})) }, "goaway PROTOCOL_ERROR"},
		"nothing":            {func(r *rawClient) { r.Conn.(*net.TCPConn).CloseWrite() }, "closed"},
	} {
		r := connectRaw(t, address)
		r.write([]byte(http2.ClientPreface))
		c.send(r)
		if got := r.outcome(1); got != c.want {
			t.Errorf("after the preface, %s: the outcome is %q; want %q", name, got, c.want)
		}
	}
	r := connectRaw(t, address)
	r.write([]byte(http2.ClientPreface)[:10])
	r.Conn.(*net.TCPConn).CloseWrite()
	if got := r.outcome(1); got != "closed" {
		t.Errorf("after a part of the preface, the outcome is %q; want %q", got, "closed")
	}
}

// The settings and the window that the server announces are its bounds.
func TestServerAnnouncesItsBounds(t *testing.T) {
	_, address := startFast(t, fastgrpc.Options{MaxStreams: 77, MaxHeaderList: 5000})
	r := dialRaw(t, address)
	f, err := r.ReadFrame()
	if err != nil {
		t.Fatal(err)
	}
	settings, ok := f.(*http2.SettingsFrame)
	if !ok || settings.IsAck() || settings.NumSettings() != 2 {
		t.Fatalf("the first frame is %v; want SETTINGS with two settings", f)
	}
	for id, want := range map[http2.SettingID]uint32{http2.SettingMaxConcurrentStreams: 77, http2.SettingMaxHeaderListSize: 5000} {
		if got, _ := settings.Value(id); got != want {
			t.Errorf("%v is %d; want %d", id, got, want)
		}
	}
	f, err = r.ReadFrame()
	if w, ok := f.(*http2.WindowUpdateFrame); err != nil || !ok || w.StreamID != 0 || w.Increment != 1<<20-65535 {
		t.Errorf("the second frame is %v, %v; want a WINDOW_UPDATE to 1 MiB", f, err)
	}
	f, err = r.ReadFrame()
	if s, ok := f.(*http2.SettingsFrame); err != nil || !ok || !s.IsAck() {
		t.Errorf("the third frame is %v, %v; want the acknowledgement of the client's settings", f, err)
	}
	r.logError(r.WritePing(false, [8]byte{1, 2, 3}))
	f, err = r.ReadFrame()
	if p, ok := f.(*http2.PingFrame); err != nil || !ok || !p.IsAck() || p.Data != [8]byte{1, 2, 3} {
		t.Errorf("the frame after a ping is %v, %v; want its acknowledgement", f, err)
	}
}

func TestMalformedHeadersAreRefused(t *testing.T) {
	_, address := startFast(t, fastgrpc.Options{})
	_, addressOfSmall := startFast(t, fastgrpc.Options{MaxHeaderList: 5000})
	block := func(fields ...hpack.HeaderField) []byte {
		var b bytes.Buffer
		e := hpack.NewEncoder(&b)
		e.SetMaxDynamicTableSize(0)
		for _, f := range fields {
			e.WriteField(f)
		}
		return b.Bytes()
	}
	with := func(more ...hpack.HeaderField) []byte { return block(append(fields(), more...)...) }
	size := 0 // of fields() as HTTP/2 counts
	for _, f := range fields() {
		size += int(f.Size())
	}
	fill := func(total int) hpack.HeaderField {
		return hpack.HeaderField{Name: "x", Value: strings.Repeat("y", total-size-33)}
	}
	for name, c := range map[string]struct {
		block []byte
		want  string
	}{
		"an empty name":               {with(hpack.HeaderField{Value: "a"}), "reset PROTOCOL_ERROR"},
		"a content-length of 0":       {with(hpack.HeaderField{Name: "content-length", Value: "0"}), "reset PROTOCOL_ERROR"},
		"the right content-length":    {with(hpack.HeaderField{Name: "content-length", Value: fmt.Sprint(len(message("x")))}), good},
		"two content-lengths":         {with(hpack.HeaderField{Name: "content-length", Value: "8"}, hpack.HeaderField{Name: "content-length", Value: "8"}), "reset PROTOCOL_ERROR"},
		"two content-lengths of 0":    {with(hpack.HeaderField{Name: "content-length", Value: "0"}, hpack.HeaderField{Name: "content-length", Value: "0"}), "reset PROTOCOL_ERROR"},
		"a content-length in words":   {with(hpack.HeaderField{Name: "content-length", Value: "many"}), "reset PROTOCOL_ERROR"},
		"a negative content-length":   {with(hpack.HeaderField{Name: "content-length", Value: "-8"}), "reset PROTOCOL_ERROR"},
		"an empty timeout":            {with(hpack.HeaderField{Name: "grpc-timeout"}), "400/13"},
		"the shortest name":           {with(hpack.HeaderField{Name: "a", Value: "b"}), good},
		"the name A":                  {with(hpack.HeaderField{Name: "A", Value: "b"}), "reset PROTOCOL_ERROR"},
		"the name Z":                  {with(hpack.HeaderField{Name: "Z", Value: "b"}), "reset PROTOCOL_ERROR"},
		"a bracket in a name":         {with(hpack.HeaderField{Name: "a[", Value: "b"}), "reset PROTOCOL_ERROR"},
		"an authority and a host":     {with(hpack.HeaderField{Name: "host", Value: "b"}), good},
		"proxy-connection":            {with(hpack.HeaderField{Name: "proxy-connection", Value: "a"}), "reset PROTOCOL_ERROR"},
		"keep-alive":                  {with(hpack.HeaderField{Name: "keep-alive", Value: "a"}), "reset PROTOCOL_ERROR"},
		"a line feed in the path":     {block(fields(":path", "/a\n")...), "reset PROTOCOL_ERROR"},
		"the largest list of headers": {with(fill(5000)), good},
		"a list that is too large":    {with(fill(5001)), "431/8"},
		"half a field":                {append(with(), 0x40, 5, 'a'), "goaway COMPRESSION_ERROR"},
		"the encoding identity":       {with(hpack.HeaderField{Name: "grpc-encoding", Value: "identity"}), good},
		"content type with ;":         {block(fields("content-type", "application/grpc;a=b")...), good},
		"content type with a letter":  {block(fields("content-type", "application/grpcx")...), "415/3"},
	} {
		r := dialRaw(t, address)
		if strings.Contains(name, "list") {
			r = dialRaw(t, addressOfSmall)
		}
		r.logError(r.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: c.block, EndHeaders: true}))
		r.logError(r.WriteData(1, true, message("x")))
		if got := r.outcome(1); got != c.want {
			t.Errorf("%s: the outcome is %q; want %q", name, got, c.want)
		}
		if !strings.HasPrefix(c.want, "goaway") {
			r.call(99, "x") // neither the size nor the faults of the first headers count for the next ones
			if got := r.outcome(99); got != good {
				t.Errorf("%s: the outcome of the next call is %q; want %q", name, got, good)
			}
		}
	}
}

// Handlers see the headers of a trace and the address of the client.
func TestHandlersSeeTraceHeaders(t *testing.T) {
	var seen []string
	_, address := startFast(t, fastgrpc.Options{Methods: map[string]fastgrpc.Handler{method: func(ctx context.Context, c *fastgrpc.Call) error {
		seen = append(seen, c.Header("traceparent"), c.Header("tracestate"), c.Header("te"), c.Addr().String())
		return nil
	}}})
	r := dialRaw(t, address)
	r.call(1, "x", "traceparent", "00-a-b-01", "tracestate", "c=d")
	r.outcome(1)
	r.call(3, "x")
	r.outcome(3)
	at := r.LocalAddr().String()
	if got, want := strings.Join(seen, "|"), "00-a-b-01|c=d||"+at+"||||"+at; got != want {
		t.Errorf("the handlers see %s; want %s", got, want)
	}
}

// Headers of any length arrive whole: HPACK encodes their length in parts, and HTTP/2 sends them in
// several frames.
func TestLongResponseHeadersArriveWhole(t *testing.T) {
	var length atomic.Int64
	_, address := startFast(t, fastgrpc.Options{Fallback: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("X-Long", strings.Repeat("v", int(length.Load())))
		h.Set("Connection", "close")
		h.Set("Keep-Alive", "1")
		h.Set("Transfer-Encoding", "chunked")
		h.Set("Upgrade", "x")
		h.Set("Trailer", "X-Declared, x-second")
		w.WriteHeader(http.StatusTeapot)
		w.WriteHeader(http.StatusOK) // has no effect
		h.Set("X-Declared", "d")
		h.Set("X-Second", "s")
		h.Set("X-Late", "not sent")
		h.Set(http.TrailerPrefix+"Grpc-Status", "0")
		w.(http.Flusher).Flush()
	})})
	for _, n := range []int{0, 1, 125, 126, 127, 128, 253, 254, 255, 256, 16383 + 127, 16384 + 127, 16384, 40_000, 2_100_000} {
		length.Store(int64(n))
		r := dialRaw(t, address)
		r.ReadMetaHeaders.SetMaxStringLength(1 << 24)
		r.MaxHeaderListSize = 1 << 24
		r.call(1, "x", ":path", otherMethod)
		var got []string
		for isEnd := false; !isEnd; {
			f, err := r.ReadFrame()
			if err != nil {
				t.Fatalf("%d bytes: %v", n, err)
			}
			m, ok := f.(*http2.MetaHeadersFrame)
			if !ok {
				continue
			}
			isEnd = m.StreamEnded()
			for _, h := range m.Fields {
				if h.Name == "x-long" {
					h.Value = fmt.Sprint(len(h.Value), strings.Trim(h.Value, "v"))
				}
				got = append(got, h.Name+"="+h.Value)
			}
		}
		text := strings.Join(got, " ")
		for _, want := range []string{":status=418 ", fmt.Sprintf("x-long=%d", n), "x-declared=d", "x-second=s", "grpc-status=0"} {
			if !strings.Contains(text, want) {
				t.Errorf("%d bytes: the headers are %.300s; want %s among them", n, text, want)
			}
		}
		if len(got) != 5 {
			t.Errorf("%d bytes: the headers are %.300s; want five", n, text)
		}
	}
}

// A response without trailers ends with DATA.
func TestResponseWithoutTrailersEndsWithData(t *testing.T) {
	_, address := startFast(t, fastgrpc.Options{Fallback: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.Write([]byte("abc")) })})
	r := dialRaw(t, address)
	r.call(1, "x", ":path", otherMethod)
	body := ""
	for isEnd := false; !isEnd; {
		f, err := r.ReadFrame()
		if err != nil {
			t.Fatal(err)
		}
		switch f := f.(type) {
		case *http2.DataFrame:
			body += string(f.Data())
			isEnd = f.StreamEnded()
		case *http2.MetaHeadersFrame:
			if f.StreamEnded() {
				t.Fatal("the stream ends with headers; want that it ends with DATA")
			}
		}
	}
	if body != "abc" {
		t.Errorf("the body is %q; want abc, and then the end of the stream in DATA", body)
	}
}

// A panic of the fallback cancels its stream only.
func TestPanicOfTheFallbackCancelsItsStream(t *testing.T) {
	_, address := startFast(t, fastgrpc.Options{Fallback: http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic("this is a test") })})
	r := dialRaw(t, address)
	r.call(1, "x", ":path", otherMethod)
	if got := r.outcome(1); got != "reset INTERNAL_ERROR" {
		t.Errorf("the outcome is %q; want %q", got, "reset INTERNAL_ERROR")
	}
	r.call(3, "x")
	if got := r.outcome(3); got != good {
		t.Errorf("the outcome of the next call is %q; want %q", got, good)
	}
}

// The fallback gets the request as net/http describes it.
func TestRequestOfTheFallback(t *testing.T) {
	var got *http.Request
	var body []byte
	_, address := startFast(t, fastgrpc.Options{Fallback: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got = r
		body, _ = io.ReadAll(r.Body)
		if n, err := r.Body.Read(nil); n != 0 || err != nil {
			t.Errorf("a Read of no bytes returns %d, %v; want 0 and no error", n, err)
		}
		r.Body.Close()
		if _, err := r.Body.Read(make([]byte, 1)); err != http.ErrBodyReadAfterClose {
			t.Errorf("a Read after Close returns %v; want ErrBodyReadAfterClose", err)
		}
		w.Header().Set(http.TrailerPrefix+"Grpc-Status", "0")
	})})
	r := dialRaw(t, address)
	r.headers(1, false, append(fields(":path", otherMethod, "host", "b.example"), hpack.HeaderField{Name: "x-a", Value: "1"}, hpack.HeaderField{Name: "x-a", Value: "2"}))
	r.logError(r.WriteDataPadded(1, true, message("x"), make([]byte, 9)))
	if got := r.outcome(1); got != "200/0" {
		t.Errorf("the outcome is %q; want %q", got, "200/0")
	}
	if got.Method != "POST" || got.URL.Path != otherMethod || got.RequestURI != otherMethod || got.Proto != "HTTP/2.0" || got.ProtoMajor != 2 || got.ProtoMinor != 0 || got.ContentLength != -1 ||
		got.Host != "a.example" || got.RemoteAddr != r.LocalAddr().String() || got.TLS != nil || fmt.Sprint(got.Header["X-A"]) != "[1 2]" || len(got.Header) != 3 || got.Header["Content-Type"] == nil || got.Header["Te"] == nil {
		t.Errorf("the request is %+v; want what the client sent", got)
	}
	if at, ok := got.Context().Value(http.LocalAddrContextKey).(net.Addr); !ok || at.String() != address {
		t.Errorf("the local address is %v; want %s", at, address)
	}
	if !bytes.Equal(body, message("x")) {
		t.Errorf("the body is %x; want %x", body, message("x"))
	}
}

// A client may send no more than the window of its stream while the fallback reads nothing.
func TestWindowOfAFallbackStreamIsEnforced(t *testing.T) {
	for sent, want := range map[int]string{65_535: "200/0", 65_536: "reset FLOW_CONTROL_ERROR"} {
		release := make(chan struct{})
		_, address := startFast(t, fastgrpc.Options{Fallback: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			<-release
			w.Header().Set(http.TrailerPrefix+"Grpc-Status", "0")
		})})
		r := dialRaw(t, address)
		r.headers(1, false, fields(":path", otherMethod))
		first := append(binary.BigEndian.AppendUint32([]byte{0}, 10), make([]byte, 10)...)
		r.logError(r.WriteData(1, false, first))
		for rest := sent - len(first); rest > 0; rest -= min(rest, 16384) {
			r.logError(r.WriteData(1, rest <= 16384, make([]byte, min(rest, 16384))))
		}
		// The server handles the ping after all DATA.
		r.logError(r.WritePing(false, [8]byte{}))
		if want == "200/0" {
			r.awaitPong()
			close(release)
		} else {
			defer close(release)
		}
		if got := r.outcome(1); got != want {
			t.Errorf("after %d bytes, the outcome is %q; want %q", sent, got, want)
		}
	}
}

// awaitPong reads until the server has answered a ping.
func (r *rawClient) awaitPong() {
	for {
		f, err := r.ReadFrame()
		if err != nil {
			r.Fatalf("waiting for the answer to a ping: %v", err)
		}
		if p, isPing := f.(*http2.PingFrame); isPing && p.IsAck() {
			return
		}
	}
}

// Empty DATA of a call that the fallback serves costs as much as that of another call.
func TestEmptyDataForTheFallbackIsBounded(t *testing.T) {
	_, address := startFast(t, fastgrpc.Options{Fallback: new(echo)})
	r := dialRaw(t, address)
	r.headers(1, false, fields(":path", otherMethod))
	r.logError(r.WriteData(1, false, message("x")))
	if got := flood(r, func() { r.WriteData(1, false, nil) }); got != "goaway ENHANCE_YOUR_CALM" && got != "closed" {
		t.Errorf("the connection ended with %q; want %q, or %q if the GOAWAY was lost", got, "goaway ENHANCE_YOUR_CALM", "closed")
	}
}

// The open calls of a connection may continue for MaxAgeGrace after its end was announced.
func TestDrainEndsAfterMaxAgeGrace(t *testing.T) {
	o := fastgrpc.Options{MaxAgeGrace: 7 * time.Minute, KeepAlive: 9 * time.Hour}
	inBubble(t, o, func(t *testing.T, server *fastgrpc.Server, r *rawClient) {
		r.begin()
		r.call(1, "wait", "grpc-timeout", "9H")
		synctest.Wait()
		begin := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		shut := make(chan error, 1)
		go func() { shut <- server.Shutdown(ctx) }()
		r.awaitGoAways(2)
		if got := r.outcome(1); got != "closed" {
			t.Errorf("the outcome of the open call is %q; want %q", got, "closed")
		}
		if took := time.Since(begin); took != o.MaxAgeGrace+time.Second {
			t.Errorf("the connection ended after %v; want %v, a second of it until the last GOAWAY", took, o.MaxAgeGrace+time.Second)
		}
		if err := <-shut; err != nil {
			t.Errorf("Shutdown returns %v; want no error", err)
		}
	})
}

// Shutdown returns when its context ends, and Close ends the rest.
func TestShutdownEndsWithItsContext(t *testing.T) {
	inBubble(t, fastgrpc.Options{}, func(t *testing.T, server *fastgrpc.Server, r *rawClient) {
		r.begin()
		r.call(1, "wait", "grpc-timeout", "9H")
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		begin := time.Now()
		go func() {
			for {
				if _, err := r.ReadFrame(); err != nil {
					return
				}
			}
		}()
		if err := server.Shutdown(ctx); err != context.DeadlineExceeded || time.Since(begin) != time.Minute {
			t.Errorf("Shutdown returns %v after %v; want the error of its context after a minute", err, time.Since(begin))
		}
		if n := server.Connections(); n != 1 {
			t.Errorf("%d clients are connected; want 1", n)
		}
		server.Close()
		if n := server.Connections(); n != 0 {
			t.Errorf("%d clients are connected after Close; want none", n)
		}
	})
}

func TestServeEndsWithTheServerOrTheListener(t *testing.T) {
	server, err := fastgrpc.New(fastgrpc.Options{})
	if err != nil {
		t.Fatal(err)
	}
	broken := errors.New("broken")
	if err := server.Serve(brokenListener{listen(t), broken}); !errors.Is(err, broken) {
		t.Errorf("Serve of a broken listener returns %v; want its error", err)
	}
	server.Close()
	l := listen(t)
	if err := server.Serve(l); err != fastgrpc.ErrServerClosed {
		t.Errorf("Serve after Close returns %v; want ErrServerClosed", err)
	}
	if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("after Serve, Accept of the listener returns %v; want that it is closed", err)
	}
}

type brokenListener struct {
	net.Listener
	err error
}

func (l brokenListener) Accept() (net.Conn, error) { return nil, l.err }

func TestWrongOptionsAreRefused(t *testing.T) {
	list := func(context.Context, []*fastgrpc.Call) {}
	for name, c := range map[string]struct {
		o    fastgrpc.Options
		want string // a part of the error; "": none
	}{
		"no options":             {},
		"no method":              {fastgrpc.Options{Methods: map[string]fastgrpc.Handler{"/a.B": handle}}, "Options.Methods has"},
		"three parts":            {fastgrpc.Options{Methods: map[string]fastgrpc.Handler{"/a.B/C/D": handle}}, "Options.Methods has"},
		"no slash at first":      {fastgrpc.Options{Methods: map[string]fastgrpc.Handler{"a.B/C/D": handle}}, "Options.Methods has"},
		"no handler":             {fastgrpc.Options{Methods: map[string]fastgrpc.Handler{method: nil}}, "Options.Methods has"},
		"no list handler":        {fastgrpc.Options{Methods: map[string]fastgrpc.Handler{method: handle}, Lists: map[string]fastgrpc.ListHandler{method: nil}}, "Options.Lists has"},
		"only a list handler":    {fastgrpc.Options{Lists: map[string]fastgrpc.ListHandler{method: list}}, "Options.Lists has"},
		"large messages":         {fastgrpc.Options{MaxMessage: 1<<20 + 1}, "may be at most 1048576 bytes"},
		"large lists of headers": {fastgrpc.Options{MaxHeaderList: 1<<20 + 1}, "may be at most 1048576 bytes"},
		"the largest of all":     {fastgrpc.Options{MaxMessage: 1 << 20, MaxHeaderList: 1 << 20}, ""},
		"a method with a lister": {fastgrpc.Options{Methods: map[string]fastgrpc.Handler{method: handle}, Lists: map[string]fastgrpc.ListHandler{method: list}}, ""},
		"negative numbers":       {fastgrpc.Options{Parallel: -1, MaxStreams: -1, ReadTimeout: -1}, ""},
	} {
		_, err := fastgrpc.New(c.o)
		if c.want == "" && err != nil || c.want != "" && (!errors.Is(err, penstock.ErrInvalid) || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: the error is %v; want %q", name, err, c.want)
		}
	}
}

// An okError is an error whose status is OK.
type okError struct{}

func (okError) Error() string              { return "fine" }
func (okError) GRPCStatus() *status.Status { return status.New(codes.OK, "fine") }

// An error of a handler never becomes a response without an error.
func TestErrorWithTheStatusOKIsInternal(t *testing.T) {
	_, address := startFast(t, fastgrpc.Options{Methods: map[string]fastgrpc.Handler{method: func(context.Context, *fastgrpc.Call) error { return okError{} }}})
	r := dialRaw(t, address)
	r.call(1, "x")
	if got := r.outcome(1); got != "200/13" {
		t.Errorf("the outcome is %q; want %q", got, "200/13")
	}
}

// A client that reads nothing is not read either once much waits for it.
func TestClientThatReadsNothingIsNotRead(t *testing.T) {
	var handled atomic.Int64
	o := fastgrpc.Options{WriteTimeout: time.Hour, Parallel: 1, Methods: map[string]fastgrpc.Handler{method: func(ctx context.Context, c *fastgrpc.Call) error {
		handled.Add(1)
		return handle(ctx, c)
	}}}
	inBubble(t, o, func(t *testing.T, _ *fastgrpc.Server, r *rawClient) {
		r.begin(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 30})
		r.logError(r.WriteWindowUpdate(0, 1<<30))
		for id := uint32(1); id <= 5; id += 2 {
			r.call(id, "large") // 300 kB; 64 kB are on their way to the client
			synctest.Wait()
		}
		if n := handled.Load(); n == 3 {
			t.Errorf("%d calls were handled before the client read anything; want fewer", n)
		}
		if got := r.outcome(5); got != good {
			t.Errorf("the outcome of the last call is %q; want %q", got, good)
		}
	})
}

// A malformed message for a stream that is complete ends the stream, and its response is dropped.
func TestTrailersAfterTheEndResetTheStream(t *testing.T) {
	release := make(chan struct{})
	_, address := startFast(t, fastgrpc.Options{MaxStreams: 1, Methods: map[string]fastgrpc.Handler{method: func(context.Context, *fastgrpc.Call) error {
		<-release
		return nil
	}}})
	r := dialRaw(t, address)
	r.call(1, "x")
	r.headers(1, true, []hpack.HeaderField{{Name: "x-late", Value: "1"}})
	if got := r.outcome(1); got != "reset STREAM_CLOSED" {
		t.Errorf("the outcome is %q; want %q", got, "reset STREAM_CLOSED")
	}
	r.call(3, "x")
	if got := r.outcome(3); got != "reset REFUSED_STREAM" {
		t.Errorf("the outcome of another call is %q; want %q, because the handler still runs", got, "reset REFUSED_STREAM")
	}
	close(release)
	for id := uint32(5); ; id += 2 { // until the handler has returned
		r.call(id, "x")
		if got := r.outcome(id); got != "reset REFUSED_STREAM" {
			if !strings.HasPrefix(got, "200/0") {
				t.Errorf("the outcome of a later call is %q; want an answer", got)
			}
			break
		}
	}
}

// Accept errors that pass are waited out.
func TestServeContinuesAfterTemporaryErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, err := fastgrpc.New(fastgrpc.Options{Methods: map[string]fastgrpc.Handler{method: handle}})
		if err != nil {
			t.Fatal(err)
		}
		l := &flakyListener{Listener: bufconn.Listen(1 << 16), failures: []int{3, 1}}
		served := make(chan error)
		go func() { served <- server.Serve(l) }()
		begin := time.Now()
		for _, want := range []time.Duration{35 * time.Millisecond, 40 * time.Millisecond} { // 5 + 10 + 20, and 5 again
			conn, err := l.Listener.(*bufconn.Listener).Dial()
			if err != nil {
				t.Fatal(err)
			}
			r := newRaw(t, conn)
			r.begin()
			r.call(1, "x")
			if got := r.outcome(1); got != good || time.Since(begin) != want {
				t.Errorf("the outcome is %q after %v; want %q after %v", got, time.Since(begin), good, want)
			}
			defer conn.Close()
		}
		server.Close()
		if err := <-served; err != fastgrpc.ErrServerClosed {
			t.Errorf("Serve returns %v; want ErrServerClosed", err)
		}
	})
}

// A flakyListener fails some times before each connection that it accepts.
type flakyListener struct {
	net.Listener
	failures []int
}

func (l *flakyListener) Accept() (net.Conn, error) {
	if len(l.failures) > 0 {
		if l.failures[0] > 0 {
			l.failures[0]--
			return fullListener{}.Accept()
		}
		l.failures = l.failures[1:]
	}
	conn, err := l.Listener.Accept()
	return bubbleConn{conn}, err
}

// If the client has not sent the whole request when its call ends, a RST_STREAM tells it to stop.
func TestUnfinishedRequestsAreStopped(t *testing.T) {
	_, address := startFast(t, fastgrpc.Options{Fallback: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set(http.TrailerPrefix+"Grpc-Status", "0")
	}), Authorize: func(c fastgrpc.Caller) error {
		if c.Method == "/not.Allowed/Method" {
			return status.Error(codes.PermissionDenied, "this is a test")
		}
		return nil
	}})
	for _, path := range []string{otherMethod, "/not.Allowed/Method"} {
		for _, isFinished := range []bool{false, true} {
			r := dialRaw(t, address)
			r.headers(1, false, fields(":path", path))
			r.logError(r.WriteData(1, isFinished, message("x")))
			if path != otherMethod && isFinished {
				r = dialRaw(t, address)
				r.headers(1, true, fields(":path", path))
			}
			want := "200/0"
			if path != otherMethod {
				want = "200/7"
			}
			if got := r.outcome(1); got != want {
				t.Errorf("%s: the outcome is %q; want %q", path, got, want)
			}
			r.logError(r.WritePing(false, [8]byte{}))
			isStopped := false
			for isOver := false; !isOver; {
				f, err := r.ReadFrame()
				if err != nil {
					t.Fatal(err)
				}
				switch f := f.(type) {
				case *http2.RSTStreamFrame:
					isStopped = f.StreamID == 1 && f.ErrCode == http2.ErrCodeNo
				case *http2.PingFrame:
					isOver = true
				}
			}
			if isStopped != !isFinished {
				t.Errorf("%s: a finished request %t is stopped: %t; want it only if it is not finished", path, isFinished, isStopped)
			}
		}
	}
}

// Flush sends the headers, also if nothing was written.
func TestFlushSendsHeaders(t *testing.T) {
	release := make(chan struct{})
	_, address := startFast(t, fastgrpc.Options{Fallback: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X-Early", "1")
		w.(http.Flusher).Flush()
		<-release
		w.Header().Set(http.TrailerPrefix+"Grpc-Status", "0")
	})})
	defer close(release)
	r := dialRaw(t, address)
	r.call(1, "x", ":path", otherMethod)
	for {
		f, err := r.ReadFrame()
		if err != nil {
			t.Fatal(err)
		}
		if m, ok := f.(*http2.MetaHeadersFrame); ok {
			if len(m.Fields) != 2 || m.Fields[0].Value != "200" || m.StreamEnded() {
				t.Errorf("the headers are %v; want the status 200 and x-early, before the end", m.Fields)
			}
			return
		}
	}
}

// A client that answers the ping of a drain gets the second GOAWAY at once.
func TestAnsweredPingEndsTheDrainAtOnce(t *testing.T) {
	inBubble(t, fastgrpc.Options{}, func(t *testing.T, server *fastgrpc.Server, r *rawClient) {
		r.begin()
		r.call(1, "wait", "grpc-timeout", "1M")
		synctest.Wait()
		begin := time.Now()
		go server.Shutdown(context.Background())
		goAways := 0
		for goAways < 2 {
			f, err := r.ReadFrame()
			if err != nil {
				t.Fatal(err)
			}
			switch f := f.(type) {
			case *http2.PingFrame:
				r.logError(r.WritePing(true, f.Data))
			case *http2.GoAwayFrame:
				if goAways++; goAways == 1 && f.LastStreamID != math.MaxInt32 || goAways == 2 && f.LastStreamID != 1 {
					t.Errorf("GOAWAY %d has the stream %d; want the largest one first, and then 1", goAways, f.LastStreamID)
				}
			}
		}
		if took := time.Since(begin); took != 0 {
			t.Errorf("the second GOAWAY came after %v; want it at once", took)
		}
		if got := r.outcome(1); got != "200/4" {
			t.Errorf("the outcome of the open call is %q; want %q", got, "200/4")
		}
	})
}
