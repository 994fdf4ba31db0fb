package main

import (
	"fmt"
	"slices"

	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/structpb"
)

type answer struct {
	response *rls.RateLimitResponse
	err      error
	json     *jsonResponse // nil if the request was not sent to POST /json
}

func (a answer) String() string {
	if a.err != nil {
		return "error: " + a.err.Error()
	}
	return fmt.Sprint(a.response)
}

func (a answer) code() codes.Code { return status.Code(a.err) }

// normalize removes a difference that two builds of one service may have.
func (a answer) normalize() answer {
	for _, d := range a.response.GetDynamicMetadata().GetFields()["descriptors"].GetListValue().GetValues() {
		fields := d.GetStructValue().GetFields()
		if text, ok := fields["limit"].GetKind().(*structpb.Value_StringValue); ok {
			text.StringValue = withSingleSpaces(text.StringValue)
		}
	}
	return a
}

// differences returns the fields in which two answers differ, such as "statuses[1].code". If only
// one answer has a status, the result names the status instead of its fields.
func differences(a, b answer) (fields []string) {
	if a.err != nil || b.err != nil {
		if a.code() != b.code() {
			return []string{"error"}
		}
		return nil
	}
	fields = differencesOfJSON(a.json, b.json)
	if a.response == nil || b.response == nil || proto.Equal(a.response, b.response) {
		return fields
	}
	compareMessages(a.response.ProtoReflect(), b.response.ProtoReflect(), "", &fields)
	if len(fields) == 0 {
		fields = []string{"unknown fields"}
	}
	return fields
}

// compareMessages appends the fields in which two messages differ. Their names begin with path.
func compareMessages(a, b protoreflect.Message, path string, fields *[]string) {
	list := a.Descriptor().Fields()
	for i := range list.Len() {
		field := list.Get(i)
		name := path + string(field.Name())
		switch {
		case a.Has(field) != b.Has(field):
			*fields = append(*fields, name)
		case !a.Has(field): // neither message has the field
		case field.IsList():
			compareLists(a.Get(field).List(), b.Get(field).List(), field, name, fields)
		case field.IsMap() || field.Name() == "dynamic_metadata":
			if !a.Get(field).Equal(b.Get(field)) {
				*fields = append(*fields, name)
			}
		case field.Message() != nil:
			compareMessages(a.Get(field).Message(), b.Get(field).Message(), name+".", fields)
		case !a.Get(field).Equal(b.Get(field)):
			*fields = append(*fields, name)
		}
	}
}

// compareLists appends the elements in which the two lists of a field differ, or the name of the
// field if the lists have different lengths.
func compareLists(a, b protoreflect.List, field protoreflect.FieldDescriptor, name string, fields *[]string) {
	if a.Len() != b.Len() {
		*fields = append(*fields, name)
		return
	}
	for i := range a.Len() {
		switch element := fmt.Sprintf("%s[%d]", name, i); {
		case field.Message() != nil:
			compareMessages(a.Get(i).Message(), b.Get(i).Message(), element+".", fields)
		case !a.Get(i).Equal(b.Get(i)):
			*fields = append(*fields, element)
		}
	}
}

type tally struct {
	names  []string // in the order in which they are printed
	counts map[string]int
}

func (t *tally) add(name string, n int) {
	if t.counts == nil {
		t.counts = make(map[string]int)
	}
	if !slices.Contains(t.names, name) {
		t.names = append(t.names, name)
	}
	t.counts[name] += n
}

func (t *tally) String() (text string) {
	for _, name := range t.names {
		text += fmt.Sprintf("%10d  %s\n", t.counts[name], name)
	}
	return text
}

// withOrder returns a tally with the same counts, which prints these names in their order.
func (t *tally) withOrder(names []string) *tally { return &tally{names, t.counts} }
