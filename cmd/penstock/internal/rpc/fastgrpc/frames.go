package fastgrpc

import (
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"unicode/utf8"

	"golang.org/x/net/http2"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// appendFrame appends the header of a frame. The caller appends the payload, of length bytes.
func appendFrame(b []byte, length int, t http2.FrameType, flags http2.Flags, id uint32) []byte {
	return append(b, byte(length>>16), byte(length>>8), byte(length), byte(t), byte(flags), byte(id>>24), byte(id>>16), byte(id>>8), byte(id))
}

func appendSetting(b []byte, id http2.SettingID, value uint32) []byte {
	return binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint16(b, uint16(id)), value)
}

func appendWindowUpdate(b []byte, id uint32, n int) []byte {
	return binary.BigEndian.AppendUint32(appendFrame(b, 4, http2.FrameWindowUpdate, 0, id), uint32(n))
}

func appendPing(b []byte, flags http2.Flags, data [8]byte) []byte {
	return append(appendFrame(b, 8, http2.FramePing, flags, 0), data[:]...)
}

func appendReset(b []byte, id uint32, code http2.ErrCode) []byte {
	return binary.BigEndian.AppendUint32(appendFrame(b, 4, http2.FrameRSTStream, 0, id), uint32(code))
}

func appendGoAway(b []byte, lastID uint32, code http2.ErrCode, reason string) []byte {
	b = appendFrame(b, 8+len(reason), http2.FrameGoAway, 0, 0)
	b = binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(b, lastID), uint32(code))
	return append(b, reason...)
}

// appendHeaders appends a header block as a HEADERS frame and, if it is long, CONTINUATION frames.
func appendHeaders(b, block []byte, id uint32, isEnd bool) []byte {
	flags, t := http2.Flags(0), http2.FrameHeaders
	if isEnd {
		flags = http2.FlagHeadersEndStream
	}
	for {
		part := block[:min(len(block), maxFrameBytes)]
		if block = block[len(part):]; len(block) == 0 {
			flags |= http2.FlagHeadersEndHeaders
		}
		b = append(appendFrame(b, len(part), t, flags, id), part...)
		if len(block) == 0 {
			return b
		}
		flags, t = 0, http2.FrameContinuation
	}
}

// Response headers are sent as literals that are not added to a header table, so that the server
// needs no table for them. The following are the header blocks of a successful response.
var (
	headersOfSuccess  = appendField([]byte{status200}, "content-type", grpcContentType)
	trailersOfSuccess = appendField(nil, "grpc-status", "0")
)

// Bytes of HPACK.
const (
	status200 = 0x88 // the field ":status: 200", which is entry 8 of the static table
	shrink    = 0x20 // the instruction that sets the size of the header table to 0
	literal   = 0    // begins a field whose name and value follow, and which is not added to a table
)

func appendField(b []byte, name, value string) []byte {
	return appendString(appendString(append(b, literal), name), value)
}

func appendStatus(b []byte, code int) []byte {
	if code == http.StatusOK {
		return append(b, status200)
	}
	return appendField(b, ":status", strconv.Itoa(code))
}

// appendString appends a string as HPACK encodes it: the length as an integer with a prefix of 7
// bits, and the text without Huffman code.
func appendString(b []byte, text string) []byte {
	n := len(text)
	if n < 127 {
		b = append(b, byte(n))
	} else {
		b = append(b, 127)
		for n -= 127; n >= 128; n >>= 7 {
			b = append(b, byte(n)|0x80)
		}
		b = append(b, byte(n))
	}
	return append(b, text...)
}

// appendStatusFields appends the fields of a status that is not OK. The client accepts
// maxHeaderList bytes of headers. If the fields do not fit, appendStatusFields omits the details,
// and if necessary the message.
func appendStatusFields(b []byte, s *status.Status, maxHeaderList uint32) []byte {
	const perField = 32 // bytes that HTTP/2 counts for each field, besides its text
	const others = ":status" + "200" + "content-type" + grpcContentType + "grpc-status" + "16"
	room := int64(maxHeaderList) - int64(len(others)+3*perField)
	b = appendField(b, "grpc-status", strconv.Itoa(int(s.Code())))
	if message := percentEncode(s.Message()); message != "" {
		if room -= int64(len("grpc-message") + len(message) + perField); room < 0 {
			return b
		}
		b = appendField(b, "grpc-message", message)
	}
	p := s.Proto()
	if len(p.GetDetails()) == 0 {
		return b
	}
	details, err := proto.Marshal(p)
	if err != nil {
		return b
	}
	text := base64.RawStdEncoding.EncodeToString(details)
	if room -= int64(len("grpc-status-details-bin") + len(text) + perField); room < 0 {
		return b
	}
	return appendField(b, "grpc-status-details-bin", text)
}

// percentEncode encodes a message as gRPC requires. Printable ASCII except % is unchanged. Other
// bytes become %XX. Bytes that are not UTF-8 become U+FFFD first.
func percentEncode(text string) string {
	isPlain := true
	for i := range len(text) {
		if c := text[i]; c < ' ' || c > '~' || c == '%' {
			isPlain = false
			break
		}
	}
	if isPlain {
		return text
	}
	var b strings.Builder
	for _, r := range text {
		if r >= ' ' && r <= '~' && r != '%' {
			b.WriteRune(r)
			continue
		}
		var encoded [utf8.UTFMax]byte
		for _, c := range encoded[:utf8.EncodeRune(encoded[:], r)] {
			fmt.Fprintf(&b, "%%%02X", c)
		}
	}
	return b.String()
}

// statusOf returns the status for an error of a handler.
func statusOf(err error) *status.Status {
	if s, ok := status.FromError(err); ok {
		if s.Code() == codes.OK { // an error cannot have the status OK
			return status.New(codes.Internal, err.Error())
		}
		return s
	}
	return status.FromContextError(err)
}
