package adminapi

import (
	"encoding/json"
	"reflect"
	"strings"
	"sync"
	"time"

	"github.com/penstock/penstock/cmd/penstock/internal/console/keylimits"
)

// OpenAPI returns the OpenAPI 3.1 document of the API. It is generated from the routes and the
// types of their bodies.
var OpenAPI = sync.OnceValue(func() []byte {
	d := document{schemas: object{}}
	paths := object{}
	problem := d.schemaOf(reflect.TypeFor[Problem]())
	failure := func(text string) object {
		return object{"description": text, "content": object{"application/problem+json": object{"schema": problem}}}
	}
	add := func(path, summary string, parameters []any, contents object) {
		get := object{
			"operationId": strings.ReplaceAll(path, ".", "_"), "summary": summary, "security": []any{object{}, object{"operatorToken": []any{}}, object{"session": []any{}}},
			"responses": object{
				"200": object{"description": "OK", "content": contents},
				"400": failure("a parameter is wrong"), "401": failure("the token is missing or wrong"), "403": failure("the client may not send this request"),
				"404": failure("the key, rule or limit does not exist"), "409": failure("only the hash of the key is known; name the key itself"), "503": failure("the store does not respond, or too many readers are connected"),
			},
		}
		if parameters != nil {
			get["parameters"] = parameters
		}
		paths[Prefix+path] = object{"get": get}
	}
	parametersOf := func(r *route) (parameters []any) {
		for _, p := range r.parameters {
			schema := object{"type": "string"}
			if p.choices != nil {
				schema["enum"], schema["default"] = p.choices, p.choices[0]
			}
			if p.isRepeated {
				schema = object{"type": "array", "items": schema}
			}
			parameters = append(parameters, object{"name": p.name, "in": "query", "required": p.isRequired, "description": p.doc, "schema": schema})
		}
		return parameters
	}
	for _, r := range routes {
		add(r.path, r.summary, parametersOf(&r), object{"application/json": object{"schema": d.schemaOf(reflect.TypeOf(r.body))}})
	}
	add("events", "The state once a second, as server-sent events of the type state. At most 32 readers: one more replaces the oldest.", nil, object{"text/event-stream": object{"schema": object{"type": "string"}}})
	d.schemaOf(reflect.TypeOf(denialsRoute.body)) // adds the schema of an event's data to the components
	add(denialsRoute.path, denialsRoute.summary, parametersOf(&denialsRoute), object{"text/event-stream": object{"schema": object{"type": "string"}}})
	add("openapi.json", "This document.", nil, object{"application/json": object{"schema": object{"type": "object"}}})
	paths[Prefix+resetPath] = object{"post": object{
		"operationId": "reset", "summary": "Reset the limits of a key. It needs the operator token at every address, and writes an audit line.", "security": []any{object{"operatorToken": []any{}}, object{"session": []any{}}},
		"requestBody": object{"required": true, "content": object{"application/json": object{"schema": d.schemaOf(reflect.TypeFor[ResetRequest]())}}},
		"responses": object{
			"200": object{"description": "OK", "content": object{"application/json": object{"schema": d.schemaOf(reflect.TypeFor[keylimits.Reset]())}}},
			"400": failure("the body is wrong"), "401": failure("the token is missing or wrong"), "403": failure("the client may not send this request"), "404": failure("there is no such limit"),
			"409": failure("only the hash of the key is known, so name the key itself; or it has too many limits, so name a rule"), "415": failure("the body is not JSON"), "500": failure("the audit file cannot be written; nothing was reset"), "503": failure("the store does not respond; some limits may have been reset"),
		},
	}}
	text, err := json.MarshalIndent(object{
		"openapi": "3.1.0",
		"info": object{"title": "Penstock admin API", "version": "1", "license": object{"name": "Apache-2.0", "identifier": "Apache-2.0"},
			"description": "The state of a running instance, for operators. Fields may be added; readers must ignore those that they do not know."},
		"servers": []any{object{"url": "http://127.0.0.1:9180"}},
		"paths":   paths,
		"components": object{"schemas": d.schemas,
			"securitySchemes": object{
				"operatorToken": object{"type": "http", "scheme": "bearer", "description": "operator_token. Needed if other machines can reach the address."},
				"session":       object{"type": "apiKey", "in": "cookie", "name": sessionCookie, "description": "of a browser that has logged in to the dashboard"},
			}},
	}, "", "  ")
	if err != nil {
		panic(err) // unreachable: maps of strings can always be encoded
	}
	return append(text, '\n')
})

type object = map[string]any

type document struct{ schemas object }

// schemaOf returns the schema of a type, as a reference if it is a struct.
func (d *document) schemaOf(t reflect.Type) object {
	switch {
	case t == reflect.TypeFor[time.Time]():
		return object{"type": "string", "format": "date-time"}
	case t.Kind() == reflect.Pointer:
		return d.schemaOf(t.Elem())
	case t.Kind() == reflect.Slice:
		return object{"type": "array", "items": d.schemaOf(t.Elem())}
	case t.Kind() == reflect.Map:
		return object{"type": "object", "additionalProperties": d.schemaOf(t.Elem())}
	case t.Kind() == reflect.String:
		return object{"type": "string"}
	case t.Kind() == reflect.Bool:
		return object{"type": "boolean"}
	case t.Kind() != reflect.Struct:
		schema := object{"type": "integer"}
		if t.Kind() >= reflect.Uint && t.Kind() <= reflect.Uint64 {
			schema["minimum"] = 0
		}
		return schema
	}
	name := t.Name()
	if path := t.PkgPath(); !strings.HasSuffix(path, "/adminapi") { // such as KeylimitsReset for keylimits.Reset
		folder := path[strings.LastIndexByte(path, '/')+1:]
		name = strings.ToUpper(folder[:1]) + folder[1:] + name
	}
	ref := object{"$ref": "#/components/schemas/" + name}
	if d.schemas[name] != nil {
		return ref
	}
	properties, required := object{}, []string{}
	d.schemas[name] = object{} // ends the recursion of a type that contains itself
	for i := range t.NumField() {
		f := t.Field(i)
		tag, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		if tag == "" || tag == "-" {
			continue
		}
		schema := d.schemaOf(f.Type)
		if options == "" && f.Type.Kind() == reflect.Pointer {
			schema = object{"anyOf": []any{schema, object{"type": "null"}}}
		}
		if doc := f.Tag.Get("doc"); doc != "" {
			schema["description"] = doc
		}
		properties[tag] = schema
		if options == "" {
			required = append(required, tag)
		}
	}
	d.schemas[name] = object{"type": "object", "properties": properties, "required": required}
	return ref
}
