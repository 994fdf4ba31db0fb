package checkapi

import (
	"bytes"
	"encoding/json"
	"errors"
	"math"
	"strconv"
	"strings"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/penstock/penstock/internal/wording"
)

// The JSON form of a message is that of proto3 JSON with these differences: fields have the names
// of the proto file, 64-bit integers are numbers, and null is refused. All numbers of the API are
// below 2^53, so every program reads them exactly.

// unmarshal reads one JSON object into a message. It refuses unknown fields, duplicate fields, and
// empty values that mean the same as no field. The message must be empty, and may have booleans,
// 32- and 64-bit integers, strings, messages, lists, and maps of strings.
func unmarshal(text []byte, m proto.Message) error {
	if !utf8.Valid(text) {
		return invalid("the body", "it is not UTF-8")
	}
	readErr := protojson.Unmarshal(text, m)
	if readErr != nil {
		if err := checkSyntax(text); err != nil {
			return err
		}
	}
	// protojson accepts more than the OpenAPI file describes, and does not say where a mistake is.
	f := tokenReader{text}
	if err := f.checkObject(f.next(), m.ProtoReflect().Descriptor(), ""); err != nil {
		return err
	}
	if readErr == nil {
		return nil
	}
	if _, after, ok := strings.Cut(readErr.Error(), "duplicate "); ok {
		_, name, _ := strings.Cut(after, `"`) // duplicate field "name", or duplicate map key "name"
		return invalid(wording.Plain(wording.Clip(strings.TrimSuffix(name, `"`))), "it is sent twice")
	}
	if bytes.Contains(text, []byte(`\u`)) {
		return invalid("the body", "an escape is half of a surrogate pair; write both halves")
	}
	return invalid("the body", "a number has too many digits; write it shorter")
}

func checkSyntax(text []byte) error {
	err, isSyntax := errors.AsType[*json.SyntaxError](json.Unmarshal(text, new(json.RawMessage)))
	switch {
	case !isSyntax:
		return nil
	case strings.HasPrefix(err.Error(), "unexpected end"):
		return invalid("the body", "the JSON ends too early")
	case strings.HasSuffix(err.Error(), "after top-level value"):
		return invalid("the body", "bytes follow the object; send one object")
	}
	return invalid("the body", "it is not JSON from byte %d on", err.Offset-1)
}

type tokenReader struct{ rest []byte }

// next returns the next token: a bracket, or the text of a string, a number, true, false or null.
func (f *tokenReader) next() []byte {
	rest := bytes.TrimLeft(f.rest, " \t\r\n,:")
	end := 1
	switch rest[0] {
	case '{', '}', '[', ']':
	case '"':
		for ; rest[end] != '"'; end++ {
			if rest[end] == '\\' {
				end++
			}
		}
		end++
	default:
		if end = bytes.IndexAny(rest, " \t\r\n,]}"); end < 0 {
			end = len(rest)
		}
	}
	f.rest = rest[end:]
	return rest[:end]
}

// checkObject checks that a value is an object with the fields of a message. The first token of the
// value has been read. path is the path of the object, for errors. It is "" for the body.
func (f *tokenReader) checkObject(first []byte, m protoreflect.MessageDescriptor, path string) error {
	if first[0] != '{' {
		return invalid(placeOf(path), "it must be an object")
	}
	for token := f.next(); token[0] != '}'; token = f.next() {
		field := fieldNamed(m.Fields(), token)
		if field == nil {
			return unknownField(m.Fields(), nameOf(token), path)
		}
		err := error(nil)
		switch value, at := f.next(), join(path, string(field.Name())); {
		case field.IsMap():
			err = f.checkMap(value, at)
		case field.IsList():
			err = f.checkList(value, field, at)
		default:
			err = f.checkValue(value, field, at)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// fieldNamed returns the field with the name that a token has, or nil. It allocates nothing for a
// name without escapes.
func fieldNamed(fields protoreflect.FieldDescriptors, token []byte) protoreflect.FieldDescriptor {
	if bytes.IndexByte(token, '\\') >= 0 {
		return fields.ByName(protoreflect.Name(nameOf(token)))
	}
	for i := range fields.Len() {
		if field := fields.Get(i); string(field.Name()) == string(token[1:len(token)-1]) {
			return field
		}
	}
	return nil
}

func inQuotes(token []byte) string { return string(token[1 : len(token)-1]) }

// nameOf returns the name of a field. It reads escapes as protojson does.
func nameOf(token []byte) string {
	if name := ""; bytes.IndexByte(token, '\\') >= 0 && json.Unmarshal(token, &name) == nil {
		return name
	}
	return inQuotes(token)
}

// maxListed is the largest number of elements in a list or a map.
const maxListed = 1000

func (f *tokenReader) checkList(first []byte, field protoreflect.FieldDescriptor, at string) error {
	if first[0] != '[' {
		return invalid(at, "it must be a list")
	}
	n := 0
	for token := f.next(); token[0] != ']'; token = f.next() {
		if n == maxListed {
			return invalid(at, "it has more than %d elements", maxListed)
		}
		if err := f.checkValue(token, field, at+"["+strconv.Itoa(n)+"]"); err != nil {
			return err
		}
		n++
	}
	if n == 0 && at != "checks" { // CheckBatch reports an empty list of checks
		return invalid(at, "it is empty; leave it out")
	}
	return nil
}

// checkMap checks that a value is an object whose fields are strings.
func (f *tokenReader) checkMap(first []byte, at string) error {
	if first[0] != '{' {
		return invalid(at, "it must be an object")
	}
	n := 0
	for name := f.next(); name[0] != '}'; name = f.next() {
		if n++; n > maxListed {
			return invalid(at, "it has more than %d fields", maxListed)
		}
		if f.next()[0] != '"' {
			return invalid(at, "the value of %s must be a string", wording.Plain(wording.Clip(inQuotes(name))))
		}
	}
	return nil
}

// maxInteger is the largest integer that every JSON parser reads exactly.
const maxInteger = 1<<53 - 1

// checkValue checks a value that is neither a list nor a map.
func (f *tokenReader) checkValue(first []byte, field protoreflect.FieldDescriptor, at string) error {
	isEmptyAllowed := field.HasPresence() || field.IsList()
	switch field.Kind() {
	case protoreflect.MessageKind:
		return f.checkObject(first, field.Message(), at)
	case protoreflect.BoolKind:
		if first[0] != 't' && first[0] != 'f' {
			return invalid(at, "it must be true or false")
		}
	case protoreflect.StringKind:
		if first[0] != '"' {
			return invalid(at, "it must be a string")
		}
		if len(first) == len(`""`) && !isEmptyAllowed {
			if at == "id" {
				return invalid(at, "it is empty; write the id of the answer of reserve or acquire")
			}
			return invalid(at, "it is empty; leave it out")
		}
	default:
		number, err := strconv.ParseFloat(string(first), 64)
		switch {
		case math.Abs(number) > maxInteger, field.Kind() == protoreflect.Int32Kind && math.Abs(number) > math.MaxInt32:
			return invalid(at, "it is out of range")
		case err != nil || !isWhole(string(first)):
			return invalid(at, "it must be a whole number, without quotes")
		case number == 0 && !isEmptyAllowed:
			return invalid(at, "it is 0; write another number, or leave it out")
		}
	}
	return nil
}

// isWhole reports whether a JSON number is whole. It reads the text: ParseFloat rounds 1e-400 to 0.
func isWhole(text string) bool {
	digits, exponentText, hasExponent := strings.Cut(strings.ToLower(strings.TrimPrefix(text, "-")), "e")
	exponent := 0
	if hasExponent {
		var err error
		if exponent, err = strconv.Atoi(exponentText); err != nil {
			return false
		}
	}
	before, after, _ := strings.Cut(digits, ".")
	significant := len(strings.TrimRight(before+after, "0"))
	isZero := strings.Trim(before+after, "0") == ""
	return isZero || significant <= len(before)+exponent
}

// placeOf returns the path of an object as errors name it. The body has an empty path.
func placeOf(path string) string {
	if path == "" {
		return "the body"
	}
	return path
}

func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}

// unknownField returns the error for an unknown field. It suggests a field with a similar name.
func unknownField(fields protoreflect.FieldDescriptors, name, path string) error {
	names := make([]string, fields.Len())
	for i := range names {
		names[i] = string(fields.Get(i).Name())
	}
	return invalid(placeOf(path), "there is no field %s; %s", wording.Plain(wording.Clip(name)), wording.Suggest(name, names))
}

// marshal appends the JSON of a message. It always writes fields without presence, so that
// programs need no default for a missing number.
func marshal(b []byte, m protoreflect.Message) []byte {
	b = append(b, '{')
	fields := m.Descriptor().Fields()
	isFirst := true
	for i := range fields.Len() {
		field := fields.Get(i)
		if field.HasPresence() && !m.Has(field) {
			continue
		}
		if !isFirst {
			b = append(b, ',')
		}
		isFirst = false
		b = append(append(append(b, '"'), field.Name()...), `":`...)
		if !field.IsList() {
			b = appendValue(b, field, m.Get(field))
			continue
		}
		list := m.Get(field).List()
		b = append(b, '[')
		for j := range list.Len() {
			if j > 0 {
				b = append(b, ',')
			}
			b = appendValue(b, field, list.Get(j))
		}
		b = append(b, ']')
	}
	return append(b, '}')
}

func appendValue(b []byte, field protoreflect.FieldDescriptor, v protoreflect.Value) []byte {
	switch field.Kind() {
	case protoreflect.MessageKind:
		return marshal(b, v.Message())
	case protoreflect.StringKind:
		return appendString(b, v.String())
	case protoreflect.BoolKind:
		return strconv.AppendBool(b, v.Bool())
	}
	return strconv.AppendInt(b, v.Int(), 10)
}

func appendString(b []byte, text string) []byte {
	for i := range len(text) {
		if c := text[i]; c < ' ' || c == '"' || c == '\\' || c >= utf8.RuneSelf {
			quoted, _ := json.Marshal(text) // a string has no error
			return append(b, quoted...)
		}
	}
	return append(append(append(b, '"'), text...), '"')
}
