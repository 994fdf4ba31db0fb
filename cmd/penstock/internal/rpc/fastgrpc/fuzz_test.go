package fastgrpc

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"runtime"
	"slices"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// A recording is the connection of a client that sends recorded bytes, and reads everything.
type recording struct {
	rest io.Reader
}

func (r *recording) Read(p []byte) (int, error)         { return r.rest.Read(p) }
func (r *recording) Write(p []byte) (int, error)        { return len(p), nil }
func (r *recording) Close() error                       { return nil }
func (r *recording) LocalAddr() net.Addr                { return &net.TCPAddr{} }
func (r *recording) RemoteAddr() net.Addr               { return &net.TCPAddr{} }
func (r *recording) SetDeadline(t time.Time) error      { return nil }
func (r *recording) SetReadDeadline(t time.Time) error  { return nil }
func (r *recording) SetWriteDeadline(t time.Time) error { return nil }

// frames returns the bytes of the frames that send writes. The encoder writes header blocks to the
// buffer.
func frames(send func(*http2.Framer, *hpack.Encoder, *bytes.Buffer)) []byte {
	var sent, block bytes.Buffer
	f := http2.NewFramer(&sent, nil)
	f.AllowIllegalWrites = true
	send(f, hpack.NewEncoder(&block), &block)
	return sent.Bytes()
}

// FuzzConnection serves a client that sends any bytes. The server does not panic, all goroutines
// end, and the allocated memory has a bound.
func FuzzConnection(f *testing.F) {
	call := func(path string, more ...hpack.HeaderField) []byte {
		return frames(func(f *http2.Framer, e *hpack.Encoder, block *bytes.Buffer) {
			for _, h := range append([]hpack.HeaderField{
				{Name: ":method", Value: "POST"}, {Name: ":scheme", Value: "http"}, {Name: ":path", Value: path}, {Name: ":authority", Value: "a"},
				{Name: "content-type", Value: "application/grpc"}, {Name: "te", Value: "trailers"},
			}, more...) {
				e.WriteField(h)
			}
			for id := uint32(1); id < 9; id += 2 {
				f.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block.Bytes(), EndHeaders: true})
				f.WriteData(id, true, []byte{0, 0, 0, 0, 3, 1, 2, 3})
			}
			f.WriteWindowUpdate(1, 5)
			f.WriteRSTStream(3, 0)
			f.WritePing(false, [8]byte{})
			f.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1})
			f.WriteHeaders(http2.HeadersFrameParam{StreamID: 9, BlockFragment: block.Bytes(), PadLength: 3})
			f.WriteContinuation(9, true, block.Bytes())
		})
	}
	f.Add(call("/a.B/C"))
	f.Add(call("/a.B/Other"))
	f.Add(call("/a.B/C", hpack.HeaderField{Name: "grpc-timeout", Value: "5m"}))
	f.Add(call("/a.B/C", hpack.HeaderField{Name: "grpc-encoding", Value: "gzip"}))
	begin := append([]byte(http2.ClientPreface), 0, 0, 0, 4, 0, 0, 0, 0, 0) // and an empty SETTINGS frame
	var servers []*Server
	echo := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		w.Write(b)
		w.Header().Set(http.TrailerPrefix+"x", "1")
	})
	for _, o := range []Options{{Parallel: 1}, {}, {Fallback: echo}} {
		o.Methods = map[string]Handler{"/a.B/C": func(_ context.Context, call *Call) error {
			call.Response = append(call.Response, call.Request...)
			return nil
		}}
		s, err := New(o)
		if err != nil {
			f.Fatal(err)
		}
		servers = append(servers, s)
	}
	f.Fuzz(func(t *testing.T, sent []byte) {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for _, s := range servers {
			c := newConn(s, &recording{io.MultiReader(bytes.NewReader(begin), bytes.NewReader(sent))})
			c.run()
			c.close()
			s.goroutines.Wait()
			if c.openStreams != 0 || c.incompleteRequests != 0 || c.bufferedBytes != 0 || c.keptBytes != 0 || len(c.streams) != 0 || c.runningHandlers != 0 {
				t.Errorf("at the end %d streams are open, %d requests are incomplete, %d bytes are buffered, %d bytes are kept, %d streams are known, %d handlers run; want 0 of each", c.openStreams, c.incompleteRequests, c.bufferedBytes, c.keptBytes, len(c.streams), c.runningHandlers)
			}
			const perField = 32                                                       // bytes that HTTP/2 counts for an empty field
			mostFields := 4*maxFields*len(servers) + s.options.MaxHeaderList/perField // a generous bound, because append may reserve more than is used
			if len(c.in.buf) > maxInput || cap(c.headers.fields) > mostFields {
				t.Errorf("the connection keeps %d bytes of input and %d headers; want at most %d and %d", len(c.in.buf), cap(c.headers.fields), maxInput, mostFields)
			}
		}
		runtime.ReadMemStats(&after)
		// In bytes: a constant for the connections, and a factor for what was sent.
		if got, limit := after.TotalAlloc-before.TotalAlloc, uint64(4<<20+400*len(sent)); got > limit {
			t.Errorf("%d bytes of input allocate %d bytes; want at most %d", len(sent), got, limit)
		}
	})
}

// FuzzHeaders decodes any two header blocks, and then the second one again. If the second block
// does not change the dynamic table, it gives the same request both times.
func FuzzHeaders(f *testing.F) {
	f.Add([]byte{0x83, 0x86, 0x84}, []byte{0x83})     // entries of the static table
	f.Add([]byte{0x40, 1, 'a', 1, 'b'}, []byte{0xbe}) // adds an entry to the dynamic table, then refers to it
	f.Fuzz(func(t *testing.T, first, second []byte) {
		h := headers{maxHeaderList: 1000}
		h.decoder = hpack.NewDecoder(hpackTable, h.add)
		h.decoder.SetMaxStringLength(h.maxHeaderList)
		if _, err := h.decode(first); err != nil {
			return
		}
		r, err := h.decode(second)
		if err != nil {
			return
		}
		before := *r
		again, err := h.decode(second)
		isSame := err == nil && again.path == before.path && again.method == before.method && again.hasTimeout == before.hasTimeout
		if isIndexed(second) && !isSame { // other blocks may change the dynamic table
			t.Errorf("block %x, decoded again, is %+v, %v; want %+v as before", second, again, err, before)
		}
		if before.isTooLarge {
			return
		}
		size := 0
		for _, f := range h.fields {
			size += int(f.Size())
		}
		if size > h.maxHeaderList {
			t.Errorf("the headers have %d bytes; want at most %d", size, h.maxHeaderList)
		}
	})
}

// FuzzHeadersOfAConnection decodes the header blocks of a connection as package hpack does. The
// input has the blocks, each after its length. A length of 0 repeats the block before.
func FuzzHeadersOfAConnection(f *testing.F) {
	encoded := func(blocks ...[]byte) (all []byte) {
		for _, b := range blocks {
			all = append(append(all, byte(len(b))), b...)
		}
		return all
	}
	const first = 62                                // the index of the newest entry of the dynamic table
	adds := []byte{0x83, 0x40, 1, 'a', 1, 'b'}      // :method POST, and a field that enters the dynamic table
	addsOther := []byte{0x83, 0x40, 1, 'c', 1, 'd'} // another field
	refers := []byte{0x80 | first, 0x80 | (first + 1), 0x80 | (first + 2)}
	f.Add(encoded(addsOther, adds, nil, refers, nil, adds, refers)) // a repeated block adds an entry each time
	f.Add(encoded(adds, adds, refers[:1], nil, addsOther, refers[:1]))
	f.Add(encoded([]byte{0x83, 0x86, 0x84}, nil, []byte{0x20}, nil, adds, refers[:1]))                       // an update of the table's size
	f.Add(encoded([]byte{0x10, 1, 'a', 1, 'b'}, nil, []byte{0x00, 1, 'a', 1, 'b'}, nil, []byte{0xff, 0x00})) // literals that enter no table, and an index that needs two bytes
	f.Fuzz(func(t *testing.T, input []byte) {
		h := headers{maxHeaderList: 1000}
		h.decoder = hpack.NewDecoder(hpackTable, h.add)
		h.decoder.SetMaxStringLength(h.maxHeaderList)
		reference := hpack.NewDecoder(hpackTable, nil)
		reference.SetMaxStringLength(h.maxHeaderList)
		var block []byte
		for len(input) > 0 {
			n := min(int(input[0]), len(input)-1)
			if n > 0 {
				block = input[1 : 1+n]
			}
			input = input[1+n:]
			want, wantErr := reference.DecodeFull(block)
			_, err := h.decode(block)
			if (err == nil) != (wantErr == nil) {
				t.Fatalf("block %x: the error is %v; want %v", block, err, wantErr)
			}
			if err != nil {
				return // the connection ends
			}
			if !h.isTooLarge && !slices.Equal(h.fields, want) {
				t.Fatalf("block %x has the fields %v; want %v", block, h.fields, want)
			}
		}
	})
}
