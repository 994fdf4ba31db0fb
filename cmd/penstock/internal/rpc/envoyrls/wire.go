package envoyrls

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"unicode/utf8"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/penstock/penstock/admission"
	"github.com/penstock/penstock/cmd/penstock/internal/rpc/envoyconfig"
	"github.com/penstock/penstock/internal/panicked"
)

const methodName = "/" + ServiceName + "/ShouldRateLimit"

// DecideMessage decides an encoded RateLimitRequest, and returns the encoded RateLimitResponse. It
// does not use the generated messages, which would take more time. An error is a gRPC status.
func (e *Engine) DecideMessage(ctx context.Context, request []byte) ([]byte, error) {
	pair := messagePairs.Get().(*messagePair)
	defer pair.release()
	if err := pair.request.unmarshal(request); err != nil {
		return nil, err
	}
	if err := e.Decide(ctx, &pair.request, &pair.response); err != nil {
		return nil, grpcError(err)
	}
	response, err := pair.response.appendTo(make([]byte, 0, usualResponse))
	if err != nil {
		return nil, grpcError(err)
	}
	return response, nil
}

// A Message is an encoded request of a list, and its result: Response, or Err, a gRPC status.
type Message struct {
	Request, Response []byte
	Err               error
}

// DecideMessages does what DecideMessage does for each message. The order in which messages are
// charged is not defined, because the store gets them as one list.
func (e *Engine) DecideMessages(ctx context.Context, list []Message) {
	ctx = withEarlierAnswer(ctx)
	var others sync.WaitGroup // calls that cannot be in the list; each is decided alone
	defer others.Wait()
	listed, items := make([]listedMessage, 0, len(list)), make([]*admission.BatchItem, 0, len(list))
	for i := range list {
		m := &list[i]
		pair := messagePairs.Get().(*messagePair)
		if m.Err = pair.request.unmarshal(m.Request); m.Err != nil {
			pair.release()
			continue
		}
		c, err := e.begin(&pair.request)
		if err != nil {
			m.Err = grpcError(err)
			pair.release()
			continue
		}
		if c.isPlain() {
			listed = append(listed, listedMessage{Message: m, messagePair: pair, call: c})
			l := &listed[len(listed)-1] // no append moves it, because listed has room for the whole list
			l.item.Charges = c.beginRound()
			l.item.Charges.Reuse = &l.admission
			items = append(items, &l.item)
			continue
		}
		m.Err = errPanic // the result if decide panics; otherwise finish sets another
		others.Go(func() {
			defer panicked.Recover("a gRPC call is handled")
			err := c.decide(ctx)
			m.finish(c, pair, err)
		})
	}
	if len(listed) == 0 {
		return
	}
	e.controller.AdmitMany(ctx, items)
	for i := range listed {
		l := &listed[i]
		err := l.call.applyDecision(l.item.Admission, l.item.Outcome, l.item.Err)
		l.call.endRound()
		if err == nil && len(l.call.pending) > 0 {
			err = l.call.decide(ctx)
		}
		l.finish(l.call, l.messagePair, err)
	}
}

// A listedMessage is a message whose charges are in the list for the store.
type listedMessage struct {
	*Message
	messagePair *messagePair
	call        *call
	item        admission.BatchItem
	admission   admission.Admission
}

var errPanic = status.Error(codes.Internal, panicked.Message)

// finish sets the result of a message after its call was decided, and releases the call.
func (m *Message) finish(c *call, pair *messagePair, err error) {
	if err == nil {
		pair.response.prepare(len(pair.request.Descriptors))
		c.writeResponse(&pair.response)
		m.Response, err = pair.response.appendTo(make([]byte, 0, usualResponse))
	}
	c.release()
	pair.release()
	m.Err = nil
	if err != nil {
		m.Err = grpcError(err)
	}
}

var messagePairs = sync.Pool{New: func() any { return new(messagePair) }}

// usualResponse is the capacity in bytes that a response has from the start: enough for a limit of
// one descriptor.
const usualResponse = 64

// A messagePair is the request and the response of one call.
type messagePair struct {
	request  Request
	response Response
}

// maxEntriesKept is the capacity of Entries above which its memory is not reused.
const maxEntriesKept = 32

// release empties the request, and returns the pair to the pool unless it is too large.
func (pair *messagePair) release() {
	pair.request.Domain = ""
	for i := range pair.request.Descriptors {
		d := &pair.request.Descriptors[i]
		clear(d.Entries)
		if cap(d.Entries) > maxEntriesKept {
			d.Entries = nil
		}
		*d = Descriptor{Entries: d.Entries[:0]}
	}
	if cap(pair.request.Descriptors) <= MaxDescriptors {
		messagePairs.Put(pair)
	}
}

// grpcError returns the gRPC status for an error of Decide. Envoy treats all codes alike: its
// failure_mode_deny decides whether the request passes.
func grpcError(err error) error {
	if e, ok := errors.AsType[*Error](err); ok {
		return status.Error(codes.Code(e.Code), e.Text)
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return status.FromContextError(err).Err()
	}
	return status.Error(codes.Internal, err.Error())
}

// Field numbers of the messages.
const (
	requestDomain      = 1
	requestDescriptors = 2
	requestHits        = 3

	descriptorEntries    = 1
	descriptorLimit      = 2
	descriptorHits       = 3
	descriptorIsNegative = 4

	entryKey   = 1
	entryValue = 2

	limitRequestsPerUnit = 1
	limitUnit            = 2
	limitMultiplier      = 3

	wrapperValue = 1

	responseCode     = 1
	responseStatuses = 2
	responseHeaders  = 3
	responseMetadata = 6

	statusCode      = 1
	statusLimit     = 2
	statusRemaining = 3
	statusReset     = 4

	currentRequestsPerUnit = 1
	currentUnit            = 2
	currentName            = 3
	currentMultiplier      = 4

	durationSeconds = 1

	headerName  = 1
	headerValue = 2
)

// A decoder reads an encoded message. All strings that it returns are parts of text.
type decoder struct {
	text  string
	bytes []byte // the bytes of text
}

var errNoMessage = errors.New("grpc: error unmarshalling request: it is not a RateLimitRequest")

// unmarshal reads an encoded message into *r and reuses the memory of *r. unmarshal accepts what
// the generated code accepts.
func (r *Request) unmarshal(message []byte) error {
	in := decoder{string(message), message}
	r.Domain, r.Hits, r.Descriptors = "", 0, r.Descriptors[:0]
	n := 0 // descriptors
	err := in.each(0, len(message), func(number protowire.Number, f field) (err error) {
		switch {
		case number == requestDomain && f.isBytes():
			r.Domain, err = in.string(f)
		case number == requestHits && f.isVarint():
			r.Hits = uint32(f.varint)
		case number == requestDescriptors && f.isBytes():
			n++
			err = r.nextDescriptor(n).unmarshal(&in, f)
		}
		return err
	})
	if err != nil {
		return status.Error(codes.Internal, errNoMessage.Error())
	}
	if n > MaxDescriptors {
		return grpcError(invalid("the request has %d descriptors; send at most %d", n, MaxDescriptors))
	}
	return nil
}

// nextDescriptor empties the n-th descriptor and returns it; n counts from 1. Descriptors beyond
// MaxDescriptors share one, because unmarshal refuses the request after it has checked the rest.
func (r *Request) nextDescriptor(n int) *Descriptor {
	if n > MaxDescriptors {
		r.Descriptors = r.Descriptors[:MaxDescriptors-1]
	}
	if len(r.Descriptors) == cap(r.Descriptors) {
		r.Descriptors = append(r.Descriptors, Descriptor{})
	} else {
		r.Descriptors = r.Descriptors[:len(r.Descriptors)+1]
	}
	d := &r.Descriptors[len(r.Descriptors)-1]
	*d = Descriptor{Entries: d.Entries[:0]}
	return d
}

func (d *Descriptor) unmarshal(in *decoder, f field) error {
	return in.each(f.start, f.end, func(number protowire.Number, f field) error {
		switch {
		case number == descriptorEntries && f.isBytes():
			d.Entries = append(d.Entries, envoyconfig.Entry{})
			return unmarshalEntry(&d.Entries[len(d.Entries)-1], in, f)
		case number == descriptorLimit && f.isBytes():
			if d.Override == nil {
				d.Override = new(Override)
			}
			return d.Override.unmarshal(in, f)
		case number == descriptorHits && f.isBytes():
			d.HasHits = true
			return in.wrapped(f, &d.Hits)
		case number == descriptorIsNegative && f.isVarint():
			d.IsNegative = f.varint != 0
		}
		return nil
	})
}

func unmarshalEntry(e *envoyconfig.Entry, in *decoder, f field) error {
	return in.each(f.start, f.end, func(number protowire.Number, f field) (err error) {
		switch {
		case number == entryKey && f.isBytes():
			e.Key, err = in.string(f)
		case number == entryValue && f.isBytes():
			e.Value, err = in.string(f)
		}
		return err
	})
}

func (o *Override) unmarshal(in *decoder, f field) error {
	return in.each(f.start, f.end, func(number protowire.Number, f field) error {
		switch {
		case number == limitRequestsPerUnit && f.isVarint():
			o.RequestsPerUnit = uint32(f.varint)
		case number == limitUnit && f.isVarint():
			o.Unit = envoyconfig.Unit(int32(f.varint))
		case number == limitMultiplier && f.isBytes():
			n := uint64(o.UnitMultiplier)
			if err := in.wrapped(f, &n); err != nil {
				return err
			}
			o.UnitMultiplier = uint32(n)
		}
		return nil
	})
}

// A field is a value in a message: a varint, or the bytes from start to end.
type field struct {
	kind       protowire.Type
	varint     uint64
	start, end int
}

func (f *field) isBytes() bool  { return f.kind == protowire.BytesType }
func (f *field) isVarint() bool { return f.kind == protowire.VarintType }

// each calls do with each field of the message from start to end. Groups and fields of fixed
// size are passed without a value: the messages have no such fields.
func (in *decoder) each(start, end int, do func(protowire.Number, field) error) error {
	for start < end {
		number, kind, n := protowire.ConsumeTag(in.bytes[start:end])
		if n < 0 || number > protowire.MaxValidNumber {
			return errNoMessage
		}
		start += n
		f := field{kind: kind}
		switch kind {
		case protowire.VarintType:
			f.varint, n = protowire.ConsumeVarint(in.bytes[start:end])
		case protowire.BytesType:
			var value []byte
			value, n = protowire.ConsumeBytes(in.bytes[start:end])
			f.end = start + n
			f.start = f.end - len(value)
		default:
			n = protowire.ConsumeFieldValue(number, kind, in.bytes[start:end])
		}
		if n < 0 {
			return errNoMessage
		}
		start += n
		if err := do(number, f); err != nil {
			return err
		}
	}
	return nil
}

// wrapped reads the value of a wrapper such as UInt64Value.
func (in *decoder) wrapped(f field, value *uint64) error {
	return in.each(f.start, f.end, func(number protowire.Number, f field) error {
		if number == wrapperValue && f.isVarint() {
			*value = f.varint
		}
		return nil
	})
}

func (in *decoder) string(f field) (string, error) {
	text := in.text[f.start:f.end]
	if !utf8.ValidString(text) {
		return "", errNoMessage
	}
	return text, nil
}

func (r *Response) appendTo(b []byte) ([]byte, error) {
	b = appendVarint(b, responseCode, uint64(codeOf(r.IsOver)))
	for i := range r.Statuses {
		s := &r.Statuses[i]
		b = s.appendTo(appendMessageHead(b, responseStatuses, s.size()))
		if s.Limit != nil && !utf8.ValidString(s.Limit.Name) {
			return b, errors.New("the name of a limit is not UTF-8")
		}
	}
	for _, h := range r.Headers {
		if !utf8.ValidString(h.Name) || !utf8.ValidString(h.Value) {
			return b, errors.New("a rate limit header is not UTF-8")
		}
		b = appendMessageHead(b, responseHeaders, sizeOfString(headerName, h.Name)+sizeOfString(headerValue, h.Value))
		b = appendString(appendString(b, headerName, h.Name), headerValue, h.Value)
	}
	if r.Metadata == nil {
		return b, nil
	}
	// Metadata are rare and can nest, so the general encoder writes them.
	metadata, err := structpb.NewStruct(r.Metadata)
	if err == nil {
		b, err = proto.MarshalOptions{}.MarshalAppend(b, &rlsv3.RateLimitResponse{DynamicMetadata: metadata})
	}
	if err != nil {
		return b, fmt.Errorf("the metadata of a limit cannot be sent: %w", err)
	}
	return b, nil
}

func codeOf(isOver bool) rlsv3.RateLimitResponse_Code {
	if isOver {
		return rlsv3.RateLimitResponse_OVER_LIMIT
	}
	return rlsv3.RateLimitResponse_OK
}

func (s *Status) size() int {
	n := sizeOfVarint(statusCode, uint64(codeOf(s.IsOver))) + sizeOfVarint(statusRemaining, uint64(s.Remaining))
	if s.Limit != nil {
		n += sizeOfMessage(statusLimit, s.Limit.size())
	}
	if s.Reset > 0 {
		n += sizeOfMessage(statusReset, sizeOfVarint(durationSeconds, uint64(s.Reset)))
	}
	return n
}

func (s *Status) appendTo(b []byte) []byte {
	b = appendVarint(b, statusCode, uint64(codeOf(s.IsOver)))
	if l := s.Limit; l != nil {
		b = appendMessageHead(b, statusLimit, l.size())
		b = appendVarint(b, currentRequestsPerUnit, uint64(l.RequestsPerUnit))
		b = appendVarint(b, currentUnit, uint64(l.Unit))
		b = appendString(b, currentName, l.Name)
		if l.UnitMultiplier > 0 {
			b = appendMessageHead(b, currentMultiplier, sizeOfVarint(wrapperValue, uint64(l.UnitMultiplier)))
			b = appendVarint(b, wrapperValue, uint64(l.UnitMultiplier))
		}
	}
	b = appendVarint(b, statusRemaining, uint64(s.Remaining))
	if s.Reset > 0 {
		b = appendMessageHead(b, statusReset, sizeOfVarint(durationSeconds, uint64(s.Reset)))
		b = appendVarint(b, durationSeconds, uint64(s.Reset))
	}
	return b
}

func (l *CurrentLimit) size() int {
	n := sizeOfVarint(currentRequestsPerUnit, uint64(l.RequestsPerUnit)) + sizeOfVarint(currentUnit, uint64(l.Unit)) + sizeOfString(currentName, l.Name)
	if l.UnitMultiplier > 0 {
		n += sizeOfMessage(currentMultiplier, sizeOfVarint(wrapperValue, uint64(l.UnitMultiplier)))
	}
	return n
}

// appendVarint appends a field. Like the functions below, it sends no value that is 0 or empty.
func appendVarint(b []byte, number protowire.Number, value uint64) []byte {
	if value == 0 {
		return b
	}
	return protowire.AppendVarint(protowire.AppendTag(b, number, protowire.VarintType), value)
}

func appendString(b []byte, number protowire.Number, value string) []byte {
	if value == "" {
		return b
	}
	return protowire.AppendString(protowire.AppendTag(b, number, protowire.BytesType), value)
}

// appendMessageHead appends the tag and the size of a message. The caller appends its fields.
func appendMessageHead(b []byte, number protowire.Number, size int) []byte {
	return protowire.AppendVarint(protowire.AppendTag(b, number, protowire.BytesType), uint64(size))
}

func sizeOfVarint(number protowire.Number, value uint64) int {
	if value == 0 {
		return 0
	}
	return protowire.SizeTag(number) + protowire.SizeVarint(value)
}

func sizeOfString(number protowire.Number, value string) int {
	if value == "" {
		return 0
	}
	return sizeOfMessage(number, len(value))
}

func sizeOfMessage(number protowire.Number, size int) int {
	return protowire.SizeTag(number) + protowire.SizeBytes(size)
}
