package fastgrpc

import (
	"bytes"
	"net/http"
	"strconv"
	"strings"
	"time"

	"golang.org/x/net/http/httpguts"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// hpackTable is the size of the header table in bytes: the default of HTTP/2.
const hpackTable = 4096

// headers decodes header blocks.
type headers struct {
	decoder       *hpack.Decoder
	maxHeaderList int

	fields     []hpack.HeaderField // of the last block
	size       int                 // of fields in bytes, as HTTP/2 counts: 32 more for each field
	isTooLarge bool                // size exceeds maxHeaderList; then fields is not complete
	isCorrupt  bool                // a name, a value or the order breaks the rules of HTTP/2

	block       []byte // collects a block that arrives in several frames
	lastBlock   []byte // the last block, if decoding it again gives the same fields; else empty
	lastRequest request
}

// maxFields is the capacity of fields above which its memory is not reused for the next request.
const maxFields = 64

// add appends a field to fields. The decoder calls it for each field of a block.
func (h *headers) add(f hpack.HeaderField) {
	if h.size += int(f.Size()); h.size > h.maxHeaderList {
		h.isTooLarge = true
		h.decoder.SetEmitEnabled(false)
		return
	}
	if !isWellFormed(f, h.fields) {
		h.isCorrupt = true
	}
	h.fields = append(h.fields, f)
}

// isWellFormed reports whether a field may follow those before it.
func isWellFormed(f hpack.HeaderField, before []hpack.HeaderField) bool {
	if strings.HasPrefix(f.Name, ":") {
		switch f.Name {
		case ":method", ":scheme", ":path", ":authority":
		default:
			return false
		}
		for i := range before {
			isRepeated := before[i].Name == f.Name && f.Name != ":authority" // check refuses a second :authority, with another error
			if isRepeated || !before[i].IsPseudo() {
				return false
			}
		}
		return httpguts.ValidHeaderFieldValue(f.Value)
	}
	switch f.Name {
	case "connection", "proxy-connection", "keep-alive", "transfer-encoding", "upgrade":
		return false
	case "te":
		return f.Value == "trailers"
	}
	if f.Name == "" {
		return false
	}
	for i := range len(f.Name) {
		if b := f.Name[i]; 'A' <= b && b <= 'Z' || !httpguts.IsTokenRune(rune(b)) {
			return false
		}
	}
	return httpguts.ValidHeaderFieldValue(f.Value)
}

// decode decodes a block. The result is valid until the next call.
func (h *headers) decode(block []byte) (*request, error) {
	if len(h.lastBlock) > 0 && bytes.Equal(block, h.lastBlock) {
		return &h.lastRequest, nil
	}
	clear(h.fields)
	if cap(h.fields) > maxFields {
		h.fields = nil
	}
	h.fields, h.lastBlock = h.fields[:0], h.lastBlock[:0]
	h.size, h.isTooLarge, h.isCorrupt = 0, false, false
	h.decoder.SetEmitEnabled(true)
	if _, err := h.decoder.Write(block); err != nil {
		return nil, connectionError{http2.ErrCodeCompression, "a header block cannot be decoded"}
	}
	if err := h.decoder.Close(); err != nil {
		return nil, connectionError{http2.ErrCodeCompression, "a header block is cut off"}
	}
	h.lastRequest = h.request()
	if len(block) <= maxLastBlockBytes && isIndexed(block) {
		h.lastBlock = append(h.lastBlock, block...)
	}
	return &h.lastRequest, nil
}

// maxLastBlockBytes is the size in bytes of the largest block that is kept in lastBlock.
const maxLastBlockBytes = 64

// isIndexed reports whether a block refers to entries of the header tables only, each by one byte.
// HPACK encodes an index below 127 as a byte from 0x80 to 0xfe. Such a block does not change the
// dynamic table. The block has the same fields until another block changes that table.
func isIndexed(block []byte) bool {
	for _, b := range block {
		if b < 0x80 || b == 0xff {
			return false
		}
	}
	return true
}

// A request is what the headers of a request contain.
type request struct {
	method, scheme, path, authority, contentType, encoding string
	authorityCount, hostCount                              int // how many such fields there are
	host                                                   string
	authorization                                          []string
	timeout                                                time.Duration
	hasTimeout                                             bool
	isCorrupt                                              bool
	isTooLarge                                             bool
	badTimeout                                             string // a grpc-timeout that cannot be parsed; "" if there is none
	contentLength                                          int64  // negative: none
	hasPseudo                                              bool   // a name begins with a colon
	trace                                                  traceHeaders
}

func (h *headers) request() (r request) {
	r.isCorrupt, r.isTooLarge, r.contentLength = h.isCorrupt, h.isTooLarge, -1
	for i := range h.fields {
		f := &h.fields[i]
		r.hasPseudo = r.hasPseudo || f.IsPseudo()
		switch f.Name {
		case ":method":
			r.method = f.Value
		case ":scheme":
			r.scheme = f.Value
		case ":path":
			r.path = f.Value
		case ":authority":
			r.authority = f.Value
			r.authorityCount++
		case "host":
			r.host = f.Value
			r.hostCount++
		case "content-type":
			r.contentType = f.Value
		case "grpc-encoding":
			r.encoding = f.Value
		case "authorization":
			r.authorization = append(r.authorization, f.Value)
		case "content-length":
			n, err := strconv.ParseUint(f.Value, 10, 63)
			if err != nil || r.contentLength >= 0 {
				r.isCorrupt = true
			}
			r.contentLength = int64(n)
		case "traceparent":
			r.trace.parent = f.Value
		case "tracestate":
			r.trace.state = f.Value
		case "grpc-timeout":
			var ok bool
			if r.timeout, ok = parseTimeout(f.Value); !ok {
				r.badTimeout = f.Value
				if f.Value == "" { // badTimeout must not be "", which means that the timeout is valid
					r.badTimeout = `""`
				}
			}
			r.hasTimeout = true
		}
	}
	if r.authorityCount == 0 {
		r.authority = r.host
	}
	return r
}

// traceHeaders are the headers of W3C Trace Context.
type traceHeaders struct{ parent, state string }

// A refusal is an error response.
type refusal struct {
	httpStatus int
	status     *status.Status
}

// check returns why the request is refused, or nil. Most texts are those of grpc-go. A corrupt
// request gets RST_STREAM instead: handleHeaders refuses it before check.
func (r *request) check() *refusal {
	switch {
	case r.isTooLarge:
		return &refusal{http.StatusRequestHeaderFieldsTooLarge, status.New(codes.ResourceExhausted, "the request headers are too large")}
	case r.authorityCount > 1 || r.hostCount > 1:
		return &refusal{http.StatusBadRequest, status.Newf(codes.Internal, "num values of :authority: %v, num values of host: %v, both must only have 1 value as per HTTP/2 spec", r.authorityCount, r.hostCount)}
	case !isGRPC(r.contentType):
		return &refusal{http.StatusUnsupportedMediaType, status.Newf(codes.InvalidArgument, "invalid gRPC request content-type %q", r.contentType)}
	case r.badTimeout != "":
		return &refusal{http.StatusBadRequest, status.Newf(codes.Internal, "malformed grpc-timeout: %s", r.badTimeout)}
	case r.authority == "":
		return &refusal{http.StatusBadRequest, status.New(codes.Internal, "no host or :authority header present")}
	case r.method != http.MethodPost:
		return &refusal{http.StatusMethodNotAllowed, status.Newf(codes.Internal, "Received a HEADERS frame with :method %q which should be POST", r.method)}
	}
	return nil
}

const grpcContentType = "application/grpc"

// isGRPC reports whether a content type is application/grpc, with or without the name of a codec.
func isGRPC(contentType string) bool {
	rest, ok := strings.CutPrefix(contentType, grpcContentType)
	return ok && (rest == "" || rest[0] == '+' || rest[0] == ';')
}

// isProto reports whether messages are encoded by protobuf.
func (r *request) isProto() bool {
	return r.contentType == grpcContentType || r.contentType == grpcContentType+"+proto"
}

// isPlain reports whether messages are not compressed.
func (r *request) isPlain() bool { return r.encoding == "" || r.encoding == "identity" }

// parseTimeout parses a grpc-timeout: up to 8 digits and a unit.
func parseTimeout(text string) (time.Duration, bool) {
	if len(text) < 2 || len(text) > 9 {
		return 0, false
	}
	digits, unit := text[:len(text)-1], text[len(text)-1]
	var n int64
	for i := range len(digits) {
		d := digits[i]
		if d < '0' || d > '9' {
			return 0, false
		}
		n = n*10 + int64(d-'0')
	}
	switch unit {
	case 'n':
		return time.Duration(n), true
	case 'u':
		return time.Duration(n) * time.Microsecond, true
	case 'm':
		return time.Duration(n) * time.Millisecond, true
	case 'S':
		return time.Duration(n) * time.Second, true
	case 'M':
		return time.Duration(n) * time.Minute, true
	case 'H':
		return time.Duration(min(n, maxHours)) * time.Hour, true
	}
	return 0, false
}

// maxHours is how many hours fit into a time.Duration.
const maxHours = int64((1<<63 - 1) / time.Hour)
