package checkapi

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"unicode/utf8"

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
	if at := loneSurrogate(text); at >= 0 {
		return invalid("the body", "the escape at byte %d is half of a surrogate pair; write both halves", at)
	}
	d := decoder{json.NewDecoder(bytes.NewReader(text))}
	d.UseNumber()
	token, err := d.nextToken("the body")
	if err != nil {
		return err
	}
	if err := d.readMessage(token, m.ProtoReflect(), ""); err != nil {
		return err
	}
	if _, err := d.Token(); err != io.EOF {
		return invalid("the body", "bytes follow the object; send one object")
	}
	return nil
}

type decoder struct{ *json.Decoder }

// nextToken reads a token. at is the path of what is read, for errors.
func (d decoder) nextToken(at string) (json.Token, error) {
	token, err := d.Token()
	switch {
	case err == io.EOF || err == io.ErrUnexpectedEOF:
		return nil, invalid(at, "the JSON ends too early")
	case err != nil:
		return nil, invalid(at, "it is not JSON from byte %d on", d.InputOffset())
	}
	return token, nil
}

// readMessage reads an object whose first token has been read. path is the path of the object, for
// errors.
func (d decoder) readMessage(first json.Token, m protoreflect.Message, path string) error {
	if first != json.Delim('{') {
		return invalid(placeOf(path), "it must be an object")
	}
	fields := m.Descriptor().Fields()
	var seen []protoreflect.FieldNumber
	for {
		token, err := d.nextToken(placeOf(path))
		if err != nil {
			return err
		}
		name, isName := token.(string)
		if !isName {
			return nil // the object ends
		}
		field := fields.ByName(protoreflect.Name(name))
		if field == nil {
			return unknownField(fields, name, path)
		}
		at := join(path, name)
		if slices.Contains(seen, field.Number()) {
			return invalid(at, "it is sent twice")
		}
		seen = append(seen, field.Number())
		switch {
		case field.IsMap():
			err = d.readMap(m.Mutable(field).Map(), at)
		case field.IsList():
			err = d.readList(field, m.Mutable(field).List(), at)
		default:
			err = d.readField(field, m, at)
		}
		if err != nil {
			return err
		}
	}
}

func (d decoder) readField(field protoreflect.FieldDescriptor, m protoreflect.Message, at string) error {
	token, err := d.nextToken(at)
	if err != nil {
		return err
	}
	if field.Message() != nil {
		return d.readMessage(token, m.Mutable(field).Message(), at)
	}
	value, err := scalar(field, token, at)
	if err != nil {
		return err
	}
	if !field.HasPresence() {
		if err := checkNotDefault(field.Kind(), value, at); err != nil {
			return err
		}
	}
	m.Set(field, value)
	return nil
}

// checkNotDefault refuses an empty string and the number 0, which mean the same as no field.
func checkNotDefault(kind protoreflect.Kind, value protoreflect.Value, at string) error {
	switch kind {
	case protoreflect.BoolKind:
		return nil
	case protoreflect.StringKind:
		if value.String() == "" {
			return invalid(at, "it is empty; leave it out")
		}
		return nil
	}
	if value.Int() == 0 {
		return invalid(at, "it is 0; write another number, or leave it out")
	}
	return nil
}

// maxListed is the largest number of elements in a list or a map.
const maxListed = 1000

func (d decoder) readList(field protoreflect.FieldDescriptor, list protoreflect.List, at string) error {
	token, err := d.nextToken(at)
	if err != nil {
		return err
	}
	if token != json.Delim('[') {
		return invalid(at, "it must be a list")
	}
	for {
		token, err := d.nextToken(at)
		switch {
		case err != nil:
			return err
		case token == json.Delim(']') && list.Len() == 0:
			return invalid(at, "it is empty; leave it out")
		case token == json.Delim(']'):
			return nil
		}
		place := at + "[" + strconv.Itoa(list.Len()) + "]"
		if list.Len() == maxListed {
			return invalid(at, "it has more than %d elements", maxListed)
		}
		if field.Message() == nil {
			value, err := scalar(field, token, place)
			if err != nil {
				return err
			}
			list.Append(value)
		} else if err := d.readMessage(token, list.AppendMutable().Message(), place); err != nil {
			return err
		}
	}
}

// readMap reads an object into a map of strings.
func (d decoder) readMap(values protoreflect.Map, at string) error {
	token, err := d.nextToken(at)
	if err != nil {
		return err
	}
	if token != json.Delim('{') {
		return invalid(at, "it must be an object")
	}
	for {
		token, err := d.nextToken(at)
		if err != nil {
			return err
		}
		name, isName := token.(string)
		if !isName {
			return nil
		}
		key := protoreflect.ValueOfString(name).MapKey()
		switch {
		case values.Has(key):
			return invalid(at, "%s is sent twice", wording.Plain(wording.Clip(name)))
		case values.Len() == maxListed:
			return invalid(at, "it has more than %d fields", maxListed)
		}
		if token, err = d.nextToken(at); err != nil {
			return err
		}
		text, isText := token.(string)
		if !isText {
			return invalid(at, "the value of %s must be a string", wording.Plain(wording.Clip(name)))
		}
		values.Set(key, protoreflect.ValueOfString(text))
	}
}

// scalar converts a token to a value of the field's kind. at is the path of the field, for errors.
func scalar(field protoreflect.FieldDescriptor, token json.Token, at string) (value protoreflect.Value, err error) {
	switch field.Kind() {
	case protoreflect.BoolKind:
		if value, ok := token.(bool); ok {
			return protoreflect.ValueOfBool(value), nil
		}
		return value, invalid(at, "it must be true or false")
	case protoreflect.StringKind:
		if text, ok := token.(string); ok {
			return protoreflect.ValueOfString(text), nil
		}
		return value, invalid(at, "it must be a string")
	case protoreflect.Int64Kind, protoreflect.Int32Kind:
		number, ok := token.(json.Number)
		n, isWhole := wholeNumber(string(number))
		switch {
		case !ok || !isWhole:
			return value, invalid(at, "it must be a whole number, without quotes")
		case n > maxInteger || n < -maxInteger || field.Kind() == protoreflect.Int32Kind && int64(int32(n)) != n:
			return value, invalid(at, "it is out of range")
		case field.Kind() == protoreflect.Int32Kind:
			return protoreflect.ValueOfInt32(int32(n)), nil
		}
		return protoreflect.ValueOfInt64(n), nil
	}
	return value, fmt.Errorf("checkapi: JSON of %s: fields of kind %v are not supported", field.FullName(), field.Kind())
}

// maxInteger is the largest integer that every JSON parser reads exactly.
const maxInteger = 1<<53 - 1

// wholeNumber parses a JSON number that is whole: 3, 3.0 or 3e0. For a number outside ±maxInteger,
// n may be maxInteger + 1 instead.
func wholeNumber(text string) (n int64, ok bool) {
	if n, err := strconv.ParseInt(text, 10, 64); err == nil {
		return n, true
	}
	f, err := strconv.ParseFloat(text, 64)
	switch {
	case f > maxInteger || f < -maxInteger:
		return maxInteger + 1, true
	case err != nil || f != math.Trunc(f):
		return 0, false
	}
	return int64(f), true
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

// loneSurrogate returns the position of an escape that is half of a surrogate pair, or -1.
// encoding/json replaces such halves by U+FFFD, so different texts would become equal.
func loneSurrogate(text []byte) int {
	// The first half of a pair is from minFirst to minSecond-1, and the second half from minSecond to
	// maxSecond.
	const minFirst, minSecond, maxSecond = 0xd800, 0xdc00, 0xdfff
	// escapeAt returns the number of an escape such as \ud83d. It returns false for other texts.
	escapeAt := func(at int) (int64, bool) {
		if at+6 > len(text) || text[at] != '\\' || text[at+1] != 'u' {
			return 0, false
		}
		n, err := strconv.ParseInt(string(text[at+2:at+6]), 16, 32)
		return n, err == nil
	}
	for i := 0; i < len(text); i++ {
		if text[i] != '\\' {
			continue
		}
		n, isUnicode := escapeAt(i)
		switch {
		case !isUnicode:
			i++ // the escaped character
		case n < minFirst || n > maxSecond:
			i += 5 // the rest of an escape of 6 bytes
		default:
			second, ok := escapeAt(i + 6)
			if n >= minSecond || !ok || second < minSecond || second > maxSecond {
				return i
			}
			i += 11 // the rest of two escapes of 6 bytes
		}
	}
	return -1
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

// appendString appends a text in quotes.
func appendString(b []byte, text string) []byte {
	for i := range len(text) {
		if c := text[i]; c < ' ' || c == '"' || c == '\\' || c >= utf8.RuneSelf {
			quoted, _ := json.Marshal(text) // a string has no error
			return append(b, quoted...)
		}
	}
	return append(append(append(b, '"'), text...), '"')
}
