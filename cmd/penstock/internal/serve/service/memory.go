package service

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"

	"github.com/penstock/penstock/cmd/penstock/internal/serve/logthrottle"
	"github.com/penstock/penstock/cmd/penstock/internal/serve/memory"
)

// What a request takes of the memory budget, in bytes. Measured as the growth of the process: 1,000
// to 6,000 requests of one kind, by HTTP/1 and HTTP/2, whose clients read no response.
const (
	// memoryOfCall is for a request that is not forwarded: goroutine, buffers and response. Measured:
	// 16 to 20 KB.
	memoryOfCall = 16 << 10

	// memoryOfGRPCCall is for a call over gRPC, with its message. Measured: 12 KB without a message.
	memoryOfGRPCCall = 20 << 10

	// memoryOfForwarded is for a request to the proxy. It includes the connection to the upstream.
	// Measured: 40 to 49 KB, of which a part is garbage.
	memoryOfForwarded = 40 << 10

	// memoryOfField is for each header, in addition to twice its text. Measured: 110 to 150 bytes. A
	// forwarded request has two copies of its headers.
	memoryOfField = 128

	// uploadBuffer is how many bytes of a body a client may send by HTTP/2 before the handler reads
	// them. Envoy recommends the same for its edge.
	uploadBuffer = 64 << 10

	// minMemory is the budget without a memory limit of Go. It is larger if max_connections is, so
	// that each connection may have a request.
	minMemory = 512 << 20
)

func (s *service) openMemory() {
	count := s.metrics.AddOverload("memory")
	line := &logthrottle.Line{Every: time.Minute}
	size := memory.Size(max(minMemory, s.Settings.MaxConnections*memoryOfForwarded))
	if s.testHooks.memory > 0 {
		size = s.testHooks.memory
	}
	s.memory = memory.New(size, func() {
		count()
		line.Log(s.Log.Warn, "requests in flight use all memory for requests; new ones get 503 (raise GOMEMLIMIT with the memory of the process, or limit the connections of an address in front of it)",
			"bytes", size, "in_flight", s.inFlight.Load())
	})
	s.metrics.AddRequestMemory(s.memory.Taken)
}

// memoryOf estimates the bytes that a request takes. fixed is what each request takes, and copies
// is how often its headers are kept.
func memoryOf(r *http.Request, fixed, copies int64) int64 {
	text, fields := len(r.RequestURI)+len(r.Host), 0
	for name, values := range r.Header {
		fields += len(values)
		for _, value := range values {
			text += len(name) + len(value)
		}
	}
	bytes := fixed + copies*(int64(fields)*memoryOfField+2*int64(text))
	if r.ProtoMajor == 2 {
		if r.ContentLength < 0 {
			return bytes + uploadBuffer
		}
		bytes += min(r.ContentLength, uploadBuffer)
	}
	return bytes
}

// If the process has more than manyGoroutines, a response by HTTP/2 keeps the memory of its request
// until the client has accepted the body. With fewer, it does not: waiting for the client costs one
// more frame, which is a tenth of the processor time of a small request. Each response has a
// goroutine, so at most this many are not counted.
const manyGoroutines = 512

// limitMemory lets a request take a part of the memory budget until it has ended. If the budget is
// used up, the response is 503. It has no body, which would wait for a client that reads nothing.
func (s *service) limitMemory(fixed, copies int64, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		held, _ := r.Context().Value(heldMemoryKey{}).(*heldMemory)
		if held != nil {
			held.beginRequest()
		}
		bytes := memoryOf(r, fixed, copies)
		if !s.memory.Take(bytes) {
			s.memory.Refused()
			refuse(w, r)
			return
		}
		if held != nil && r.ProtoMajor == 1 {
			held.bytes.Add(bytes) // until the connection is idle: net/http may read the rest of a body
			next.ServeHTTP(w, r)
			if held.isHijacked.Load() {
				held.releaseAll()
			}
			return
		}
		defer s.memory.Release(bytes)
		response := &flushedWriter{ResponseWriter: w}
		next.ServeHTTP(response, r)
		if response.hasBody && runtime.NumGoroutine() > manyGoroutines {
			// net/http would send the rest of the body after this function, and wait for the client.
			_ = http.NewResponseController(w).Flush()
		}
	})
}

// refuse responds with 503, and ends the connection of HTTP/1 without reading the body.
func refuse(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Retry-After", "1")
	w.Header().Set("Content-Length", "0")
	if r.ProtoMajor == 1 {
		w.Header().Set("Connection", "close")
		if r.ContentLength != 0 {
			_ = http.NewResponseController(w).SetReadDeadline(time.Now())
		}
	}
	w.WriteHeader(http.StatusServiceUnavailable)
}

type flushedWriter struct {
	http.ResponseWriter
	hasBody bool
}

func (w *flushedWriter) Write(p []byte) (int, error) {
	w.hasBody = true
	return w.ResponseWriter.Write(p)
}

func (w *flushedWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// heldMemory is what the request of an HTTP/1 connection has taken, also before its handler runs.
type heldMemory struct {
	budget     *memory.Budget // nil: nothing is taken
	bytes      atomic.Int64
	isHijacked atomic.Bool

	isInRequest atomic.Bool // the header of the request has arrived
	isHTTP2     atomic.Bool // then isInRequest stays true
	header      int64       // bytes of a header that have arrived
}

// A header that arrives slowly takes memoryOfHeaderByte for each of its bytes, once it has more
// than smallHeader. Measured: 19, for headers of six bytes.
const (
	smallHeader        = 4 << 10
	memoryOfHeaderByte = 20
)

var errNoMemoryForHeader = errors.New("requests in flight use all memory for requests")

// readFrom reads from the socket of the connection, and notes how much.
func (h *heldMemory) readFrom(socket io.Reader, b []byte) (int, error) {
	n, err := socket.Read(b)
	if noteErr := h.noteRead(n); noteErr != nil {
		return 0, noteErr
	}
	return n, err
}

// noteRead must be called with each number of bytes that are read from the connection. If it fails,
// the connection must be closed.
func (h *heldMemory) noteRead(n int) error {
	if h.budget == nil || h.isInRequest.Load() {
		return nil
	}
	before := max(h.header, smallHeader)
	h.header += int64(n)
	if h.header <= before {
		return nil
	}
	more := (h.header - before) * memoryOfHeaderByte
	if !h.budget.Take(more) {
		h.budget.Refused()
		return errNoMemoryForHeader
	}
	h.bytes.Add(more)
	return nil
}

// beginRequest releases what the header has taken. limitMemory takes the estimate of memoryOf then.
func (h *heldMemory) beginRequest() {
	if h.isInRequest.CompareAndSwap(false, true) {
		h.releaseAll()
	}
}

func (h *heldMemory) memory() *heldMemory { return h }

func (h *heldMemory) releaseAll() {
	if n := h.bytes.Swap(0); n != 0 {
		h.budget.Release(n)
	}
}

// note releases the memory of a request when its connection becomes idle or is closed.
func (h *heldMemory) note(state http.ConnState) {
	switch state {
	case http.StateIdle:
		if !h.isInRequest.Load() { // only an HTTP/2 connection is idle before its first request
			h.isHTTP2.Store(true)
			h.beginRequest()
		}
		if h.isHTTP2.Load() {
			return
		}
		h.releaseAll()
		h.header = 0
		h.isInRequest.Store(false)
	case http.StateClosed:
		h.releaseAll()
	case http.StateHijacked: // its handler releases the memory
		h.isHijacked.Store(true)
	}
}

// heldMemoryIn returns the heldMemory of a connection, or nil.
func heldMemoryIn(conn net.Conn) *heldMemory {
	if secured, ok := conn.(interface{ NetConn() net.Conn }); ok {
		conn = secured.NetConn()
	}
	if c, ok := conn.(interface{ memory() *heldMemory }); ok {
		return c.memory()
	}
	return nil
}

type heldMemoryKey struct{}

// withHeldMemory is the ConnContext of an http.Server. By the context that it returns, limitMemory
// finds the heldMemory of the connection.
func (s *service) withHeldMemory(ctx context.Context, conn net.Conn) context.Context {
	held := heldMemoryIn(conn)
	if held == nil {
		return ctx
	}
	held.budget = s.memory
	return context.WithValue(ctx, heldMemoryKey{}, held)
}

// largeBody is the smallest body of Envoy's JSON calls, and the smallest answer over gRPC, that
// takes memory in addition to memoryOfCall. memoryOfByte is what each byte of such a body takes.
const (
	largeBody    = 16 << 10
	memoryOfByte = 12
)

// limitBodies lets a request with a large body, or one of unknown size, take memory for it. The
// body has at most maxMessage bytes.
func (s *service) limitBodies(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		size := r.ContentLength
		if size >= 0 && size < largeBody {
			next.ServeHTTP(w, r)
			return
		}
		if size < 0 || size > maxMessage {
			size = maxMessage
		}
		if !s.memory.Take(size * memoryOfByte) {
			s.memory.Refused()
			refuse(w, r)
			return
		}
		defer s.memory.Release(size * memoryOfByte)
		next.ServeHTTP(w, r)
	})
}

// A meteredCodec takes memory for each large answer over gRPC until it has been written. A client
// that accepts no answer keeps it in grpc-go after the handler has returned.
type meteredCodec struct {
	encoding.CodecV2
	memory *memory.Budget
}

func (c meteredCodec) Marshal(message any) (mem.BufferSlice, error) {
	data, err := c.CodecV2.Marshal(message)
	if err != nil || data.Len() < largeBody {
		return data, err
	}
	bytes := data.Materialize()
	data.Free()
	size := int64(len(bytes))
	c.memory.Add(size)
	owner := &answerOwner{release: sync.OnceFunc(func() { c.memory.Release(size) })}
	// grpc-go does not free what is left when a connection ends.
	runtime.AddCleanup(owner, func(release func()) { release() }, owner.release)
	return mem.BufferSlice{mem.NewBuffer(&bytes, owner)}, nil
}

// An answerOwner is the pool of one buffer. It releases the memory of the buffer.
type answerOwner struct{ release func() }

func (o *answerOwner) Get(length int) *[]byte {
	bytes := make([]byte, length)
	return &bytes
}

func (o *answerOwner) Put(*[]byte) { o.release() }
