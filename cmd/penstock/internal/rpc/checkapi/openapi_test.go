package checkapi

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/admission"
	"github.com/penstock/penstock/grpclimit/penstockv1"
)

var update = flag.Bool("update", false, "write openapi.json")

// TestOpenAPI compares openapi.json with the proto file and the bounds of this package.
func TestOpenAPI(t *testing.T) {
	text, err := json.MarshalIndent(document(t), "", " ")
	if err != nil {
		t.Fatal(err)
	}
	text = append(text, '\n')
	if *update {
		if err := os.WriteFile("openapi.json", text, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if !bytes.Equal(text, openAPI) {
		t.Error("openapi.json differs from what the proto file and the bounds make; run make protos")
	}
}

func TestOpenAPIHasNoFieldsWithDefaults(t *testing.T) {
	if bytes.Contains(openAPI, []byte(`"default":`)) {
		t.Error(`openapi.json has a "default"; want none, because openapi-typescript makes such a field required`)
	}
}

// An entry is an object of the description.
type entry map[string]any

const protoFile = "../../../../../grpclimit/proto/penstock/v1/limit.proto"

// commentsOf reads the comments of the proto file. The key is Message, Service, Message.field or
// Service.Method.
func commentsOf(t *testing.T) map[string]string {
	t.Helper()
	text, err := os.ReadFile(protoFile)
	if err != nil {
		t.Fatal(err)
	}
	opening := regexp.MustCompile(`^(?:message|service) (\w+) \{(\})?$`)
	member := regexp.MustCompile(`^  (?:rpc (\w+)\(|(?:optional |repeated )?[\w.<>, ]+ (\w+) = \d+;)`)
	comments := make(map[string]string)
	var scope string   // the message or service that the line is in
	var lines []string // of the comment above the line
	for line := range strings.Lines(string(text)) {
		line = strings.TrimRight(line, "\n")
		trimmed := strings.TrimSpace(line)
		if comment, ok := strings.CutPrefix(trimmed, "//"); ok {
			lines = append(lines, strings.TrimSpace(comment))
			continue
		}
		comment := strings.Join(lines, " ")
		if m := opening.FindStringSubmatch(line); m != nil {
			scope = m[1]
			comments[scope] = comment
		} else if m := member.FindStringSubmatch(line); m != nil {
			comments[scope+"."+m[1]+m[2]] = comment
		}
		lines = nil
	}
	return comments
}

// The patterns of strings. The patterns of paths and rates accept less than the service, because a
// pattern cannot describe everything that the service accepts.
const (
	namePattern  = `^[a-z0-9_.-]{1,64}$`
	tokenPattern = "^[!#$%&'*+.^_`|~0-9A-Za-z-]+$"
	idPattern    = `^[A-Za-z0-9_-]+$`
)

// bounds are the bounds of fields, by their names in the proto file. No field has a "default",
// because openapi-typescript then makes the field required. The descriptions state the defaults.
var bounds = map[string]entry{
	"CheckRequest.rule":             {"pattern": namePattern},
	"CheckRequest.key":              {"minLength": 1, "maxLength": maxKey},
	"CheckRequest.limits":           {"minItems": 1, "maxItems": maxCallerLimits},
	"CheckRequest.cost":             {"minimum": 0, "maximum": int64(penstock.MaxCost)},
	"CheckRequest.request_id":       {"minLength": 1, "maxLength": maxID},
	"Attributes.method":             {"pattern": tokenPattern, "maxLength": maxMethod},
	"Attributes.host":               {"pattern": `^[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*\.?(:[0-9]*)?$`, "maxLength": maxHost},
	"Attributes.path":               {"pattern": `^/[A-Za-z0-9_.!$&'()*+,:=@~/-]*$`, "maxLength": maxPath},
	"Attributes.query":              {"pattern": `^[!->@-~][!-~]*$`, "maxLength": maxPath},
	"Attributes.headers":            {"maxProperties": maxHeaders, "propertyNames": entry{"pattern": tokenPattern, "maxLength": maxHeaderName}},
	"Attributes.headers.value":      {"maxLength": maxHeaderValue, "pattern": `^[^\x00-\x08\x0a-\x1f\x7f]*$`},
	"Attributes.descriptors":        {"maxProperties": maxDescriptors, "propertyNames": entry{"minLength": 1, "maxLength": maxDescriptorName}},
	"Attributes.descriptors.value":  {"maxLength": maxDescriptorValue},
	"Attributes.address":            {"anyOf": []entry{{"format": "ipv4"}, {"format": "ipv6"}}},
	"Attributes.body_size":          {"minimum": 0, "maximum": int64(maxInteger)},
	"Limit.name":                    {"pattern": namePattern},
	"Limit.rate":                    {"pattern": `^[1-9][0-9]{0,5}/(s|min|h|d|w)$`, "examples": []string{"100/s", "10k/day", "3/s, burst 10"}},
	"Limit.burst":                   {"minimum": 1, "maximum": int64(maxBurst)},
	"Limit.in_flight":               {"minimum": 1, "maximum": int64(maxEntries)},
	"Limit.ttl_ms":                  {"minimum": minSlotTTL.Milliseconds(), "maximum": maxSlotTTL.Milliseconds()},
	"CheckBatchRequest.checks":      {"minItems": 1, "maxItems": maxBatch},
	"CheckBatchRequest.request_id":  {"minLength": 1, "maxLength": maxID},
	"ReserveRequest.ttl_ms":         {"minimum": minReservation.Milliseconds(), "maximum": maxReservation.Milliseconds()},
	"SettleRequest.id":              {"pattern": idPattern, "maxLength": maxIDLength},
	"SettleRequest.actual":          {"minimum": 0, "maximum": int64(penstock.MaxCost)},
	"SettleRequest.status":          {"minimum": 100, "maximum": 599},
	"AcquireRequest.holder":         {"minLength": 1, "maxLength": maxHolder},
	"RenewRequest.id":               {"pattern": idPattern, "maxLength": maxIDLength},
	"ReleaseRequest.id":             {"pattern": idPattern, "maxLength": maxIDLength},
	"CheckResponse.outcome":         {"enum": outcomes()},
	"CheckResponse.source":          {"enum": []string{"", "store", "deny_cache", "lease", "fallback", "open", "closed"}},
	"CheckResponse.retry_after_ms":  {"minimum": never},
	"LimitStatus.retry_after_ms":    {"minimum": never},
	"LimitStatus.reset_after_ms":    {"minimum": 0},
	"ReserveResponse.expires_in_ms": {"minimum": 0},
	"AcquireResponse.expires_in_ms": {"minimum": 0},
	"RenewResponse.expires_in_ms":   {"minimum": 0},
	"Error.code":                    {"enum": slices.Sorted(maps.Values(codeNames))},
	"ExplainResponse.list":          {"enum": []string{"", "allow", "deny"}},
	"ExplainedCharge.on_failure":    {"enum": []string{"open", "closed", "local", "default"}},
	"ExplainedCharge.cost":          {"minimum": 0},
}

// outcomes returns the names of the outcomes that a CheckResponse can have.
func outcomes() (names []string) {
	for _, o := range admission.Outcomes() {
		switch o {
		case admission.Malformed, admission.Abandoned, admission.ShadowAllowed, admission.ShadowDenied:
		default:
			names = append(names, o.String())
		}
	}
	return names
}

// A schemaWriter makes the schemas of the description.
type schemaWriter struct {
	testing.TB
	comments map[string]string // as commentsOf returns them
	used     map[string]bool   // the keys of bounds that are used
	schemas  entry             // by name
}

func (w *schemaWriter) comment(name string) string {
	w.Helper()
	if w.comments[name] == "" {
		w.Errorf("%s: %s has no comment; want one, as the description of its schema", protoFile, name)
	}
	return w.comments[name]
}

func ref(name string) entry { return entry{"$ref": "#/components/schemas/" + name} }

// fieldSchema returns the schema of a field.
func (w *schemaWriter) fieldSchema(f protoreflect.FieldDescriptor) entry {
	name := string(f.Parent().Name()) + "." + string(f.Name())
	schema := w.typeSchema(f)
	switch {
	case f.IsMap():
		value := entry{"type": "string"}
		w.addBounds(value, name+".value")
		schema = entry{"type": "object", "additionalProperties": value}
	case f.IsList():
		schema = entry{"type": "array", "items": schema}
	}
	w.addBounds(schema, name)
	schema["description"] = w.comment(name)
	return schema
}

// addBounds adds the bounds of a field to its schema.
func (w *schemaWriter) addBounds(schema entry, name string) {
	maps.Copy(schema, bounds[name])
	w.used[name] = true
}

// typeSchema returns the schema of a field's type, or nil for a map.
func (w *schemaWriter) typeSchema(f protoreflect.FieldDescriptor) entry {
	switch f.Kind() {
	case protoreflect.BoolKind:
		return entry{"type": "boolean"}
	case protoreflect.StringKind:
		return entry{"type": "string"}
	case protoreflect.Int64Kind:
		return entry{"type": "integer", "format": "int64"}
	case protoreflect.Int32Kind:
		return entry{"type": "integer", "format": "int32"}
	case protoreflect.MessageKind:
		if f.IsMap() {
			return nil
		}
		return ref(string(f.Message().Name()))
	}
	w.Fatalf("the field %s has the kind %v; typeSchema supports bool, string, int64, int32 and messages", f.FullName(), f.Kind())
	return nil
}

// object returns the schema of a message with some of its fields. If "!" is before a name, the
// field is required.
func (w *schemaWriter) object(m protoreflect.MessageDescriptor, description string, names ...string) entry {
	properties, required := entry{}, []string{}
	for _, name := range names {
		name, isRequired := strings.CutPrefix(name, "!")
		properties[name] = w.fieldSchema(m.Fields().ByName(protoreflect.Name(name)))
		if isRequired {
			required = append(required, name)
		}
	}
	schema := entry{"type": "object", "description": description, "properties": properties, "additionalProperties": false}
	if len(required) > 0 {
		schema["required"] = required
	}
	return schema
}

// addMessage adds the schema of a message with all its fields. A response always contains the
// fields without presence, so they are required. It contains its decision unless it can have an
// error instead.
func (w *schemaWriter) addMessage(m protoreflect.MessageDescriptor, isAnswer bool) {
	var names []string
	canFail := m.Fields().ByName("error") != nil
	for i := range m.Fields().Len() {
		f := m.Fields().Get(i)
		name := string(f.Name())
		if isAnswer && (!f.HasPresence() || name == "decision" && !canFail) {
			name = "!" + name
		}
		names = append(names, name)
	}
	w.schemas[string(m.Name())] = w.object(m, w.comment(string(m.Name())), names...)
}

// addRequests adds the schemas of requests. A CheckRequest has one of three forms.
func (w *schemaWriter) addRequests(file protoreflect.FileDescriptor) {
	message := func(name string) protoreflect.MessageDescriptor {
		return file.Messages().ByName(protoreflect.Name(name))
	}
	check := message("CheckRequest")
	for _, suffix := range []string{"", "WithoutId"} {
		add := func(name, description string, fields ...string) entry {
			if suffix == "" {
				fields = append(fields, "request_id")
			}
			w.schemas[name+suffix] = w.object(check, description, fields...)
			return ref(name + suffix)
		}
		attributes := add("CheckByAttributes", "The policy decides by the attributes of the request.", "!attributes")
		rule := add("CheckByRule", "The rule that the request names decides.", "!rule", "key", "cost")
		limits := add("CheckByLimits", "The request states its limits.", "!key", "!limits", "cost")
		w.schemas["CheckRequest"+suffix] = entry{"description": w.comment("CheckRequest"), "oneOf": []entry{attributes, rule, limits}}
		w.schemas["CheckWithoutAttributes"+suffix] = entry{"description": "A request of a batch that is all or nothing.", "oneOf": []entry{rule, limits}}
	}
	delete(w.schemas, "CheckWithoutAttributes") // requests of a batch that is all or nothing have no ids

	limit := message("Limit")
	w.schemas["RateLimit"] = w.object(limit, "A number of units per time.", "name", "!rate", "burst", "algorithm")
	w.schemas["RateLimit"].(entry)["properties"].(entry)["algorithm"].(entry)["enum"] = titles()
	w.schemas["SlotLimit"] = w.object(limit, "A number of slots that can be held at the same time.", "name", "!in_flight", "ttl_ms")
	w.schemas["Limit"] = entry{"description": w.comment("Limit"), "oneOf": []entry{ref("RateLimit"), ref("SlotLimit")}}
	w.addMessage(message("Attributes"), false)

	batch := message("CheckBatchRequest")
	each := w.object(batch, "Requests that are decided separately.", "!checks", "all_or_nothing")
	each["properties"].(entry)["all_or_nothing"].(entry)["const"] = false
	together := w.object(batch, "Requests that are charged together: all of them, or none.", "!checks", "!all_or_nothing", "request_id")
	together["properties"].(entry)["all_or_nothing"].(entry)["const"] = true
	checks := together["properties"].(entry)["checks"].(entry)
	checks["items"], checks["maxItems"] = ref("CheckWithoutAttributesWithoutId"), penstock.MaxCharges
	w.schemas["EachOfBatch"], w.schemas["AllOfBatch"] = each, together
	w.schemas["CheckBatchRequest"] = entry{"description": w.comment("CheckBatchRequest"), "oneOf": []entry{ref("EachOfBatch"), ref("AllOfBatch")}}

	w.schemas["ReserveRequest"] = w.object(message("ReserveRequest"), w.comment("ReserveRequest"), "!check", "ttl_ms")
	acquire := w.object(message("AcquireRequest"), w.comment("AcquireRequest"), "!check", "holder")
	acquire["properties"].(entry)["check"] = ref("CheckRequestWithoutId")
	w.schemas["AcquireRequest"] = acquire
	settle := message("SettleRequest")
	served := w.object(settle, "The request was served.", "!id", "actual", "status")
	served["minProperties"] = 2 // the id, and how the request ended
	w.schemas["SettleServed"] = served
	cancel := w.object(settle, "The request was not served.", "!id", "!cancel")
	cancel["properties"].(entry)["cancel"].(entry)["const"] = true
	w.schemas["SettleCanceled"] = cancel
	w.schemas["SettleRequest"] = entry{"description": w.comment("SettleRequest"), "oneOf": []entry{ref("SettleServed"), ref("SettleCanceled")}}
	for _, name := range []string{"RenewRequest", "ReleaseRequest"} {
		w.schemas[name] = w.object(message(name), w.comment(name), "!id")
	}
}

// titles returns the names of the algorithms that a caller limit with a rate may have.
func titles() (all []string) {
	for _, a := range CallerLimitAlgorithms() {
		if !a.NeedsHolder() {
			all = append(all, a.Title())
		}
	}
	return all
}

// document returns the description of the API.
func document(t *testing.T) entry {
	w := &schemaWriter{TB: t, comments: commentsOf(t), used: make(map[string]bool), schemas: entry{}}
	file := penstockv1.File_penstock_v1_limit_proto
	w.addRequests(file)
	for i := range file.Messages().Len() {
		if m := file.Messages().Get(i); w.schemas[string(m.Name())] == nil {
			w.addMessage(m, true)
		}
	}
	w.schemas["Problem"] = entry{
		"type": "object", "description": "The reason why a call failed, in the format of RFC 9457.", "additionalProperties": false,
		"required": []string{"type", "title", "status", "code", "detail", "may_be_charged"},
		"properties": entry{
			"type": entry{"type": "string", "const": "about:blank"}, "title": entry{"type": "string"}, "status": entry{"type": "integer", "minimum": 400, "maximum": 599},
			"code":           entry{"type": "string", "enum": bounds["Error.code"]["enum"]},
			"detail":         entry{"type": "string", "description": "What is wrong, where, and how to fix it."},
			"may_be_charged": entry{"type": "boolean", "description": "The charge may have been made although the call failed."},
		},
	}
	paths := entry{}
	service := file.Services().Get(0)
	for i := range service.Methods().Len() {
		rpc := service.Methods().Get(i)
		m := methodOf(string(rpc.Name()))
		if m == nil {
			t.Errorf("the call %s of the proto file is not in methods; want it there, with a path", rpc.Name())
			continue
		}
		paths[m.path] = entry{"post": w.operation(m, rpc)}
	}
	if len(paths) != len(methods) {
		t.Errorf("%d calls of the proto file have a path; want %d, all calls in methods", len(paths), len(methods))
	}
	for name := range bounds {
		if !w.used[name] {
			t.Errorf("bounds has the field %s, which no message has; remove it", name)
		}
	}
	return entry{
		"openapi": "3.1.0",
		"info": entry{
			"title": "Penstock check API", "version": "1", "license": entry{"name": "Apache-2.0", "identifier": "Apache-2.0"},
			"description": "Programs check whether a request may go ahead. A decision has status 200, whether the request is allowed or not.",
		},
		"servers": []entry{{"url": "/"}},
		"paths":   paths,
		"components": entry{
			"schemas": w.schemas,
			"securitySchemes": entry{
				"caller":   entry{"type": "http", "scheme": "bearer", "description": "The caller token, or the operator token."},
				"operator": entry{"type": "http", "scheme": "bearer", "description": "The operator token."},
			},
		},
	}
}

// links has, for a call whose response contains an id, the calls that take this id.
var links = map[string][]string{"Reserve": {"Settle"}, "Acquire": {"Renew", "Release"}}

// methodOf returns the method of a call in the proto file, or nil.
func methodOf(name string) *method {
	for _, m := range methods {
		if m.name == name {
			return m
		}
	}
	return nil
}

// operation returns the description of a call.
func (w *schemaWriter) operation(m *method, rpc protoreflect.MethodDescriptor) entry {
	request, response := string(rpc.Input().Name()), string(rpc.Output().Name())
	security := "caller"
	if m.needs == operator {
		security, request = "operator", request+"WithoutId" // these calls charge nothing, so a repeat needs no id
	}
	answer := func(description, schema, mediaType string) entry {
		return entry{"description": description, "content": entry{mediaType: entry{"schema": ref(schema)}}}
	}
	responses := entry{"200": answer("The answer.", response, "application/json")}
	for status, description := range map[int]string{
		400: "The query, the body or a field of the call is invalid.", 401: "The token is missing or wrong.", 403: "The call needs another token.", 404: "There is no such rule, reservation or hold.",
		409: "Parts of the call contradict each other, this call cannot enforce a limit of the request, or the reservation has expired or is of another region.", 413: "The body is too large.", 415: "The body is not JSON.",
		503: "There is no decision.",
	} {
		responses[fmt.Sprint(status)] = answer(description, "Problem", "application/problem+json")
	}
	operation := entry{
		"operationId": strings.ToLower(m.name[:1]) + m.name[1:], "summary": w.comment("LimitService." + m.name), "security": []entry{{security: []string{}}},
		"requestBody": entry{"required": true, "content": entry{"application/json": entry{"schema": ref(request)}}},
		"responses":   responses,
	}
	parameters := []entry{}
	if m.hasDecision() {
		parameters = append(parameters, entry{
			"name": "status", "in": "query", "description": "With status=429, a denial has status 429, 403 or 503, and the headers Retry-After, RateLimit and RateLimit-Policy.",
			"schema": entry{"type": "string", "enum": []string{"429"}},
		})
		responses["429"] = answer("The request is denied. Only with status=429.", response, "application/json")
		for _, status := range []string{"403", "503"} { // with status=429: a client on the deny list, or failed closed
			responses[status].(entry)["content"].(entry)["application/json"] = entry{"schema": ref(response)}
		}
	}
	if next := links[m.name]; next != nil {
		linked := entry{}
		for _, name := range next {
			linked[name] = entry{"operationId": strings.ToLower(name), "requestBody": entry{"id": "$response.body#/id"}}
		}
		responses["200"].(entry)["links"] = linked
	}
	switch m.name {
	case "Check", "Reserve":
		parameters = append(parameters, entry{
			"name": "Idempotency-Key", "in": "header", "description": "The request_id, if the body has none.",
			"schema": entry{"type": "string", "pattern": `^[!#-\[\]-~]{1,128}$`},
		})
	}
	if len(parameters) > 0 {
		operation["parameters"] = parameters
	}
	return operation
}
