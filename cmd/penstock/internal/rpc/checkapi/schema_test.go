package checkapi

import (
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
)

// description is the OpenAPI file, as far as checkResponse needs it.
var description = func() (d struct {
	Paths      map[string]map[string]struct{ Responses map[string]response }
	Components struct{ Schemas map[string]map[string]any }
}) {
	if err := json.Unmarshal(openAPI, &d); err != nil {
		panic(err)
	}
	return d
}()

type response struct {
	Content map[string]struct{ Schema map[string]any }
}

// checkResponse checks a response against the OpenAPI file.
func checkResponse(t testing.TB, path string, w *httptest.ResponseRecorder) {
	t.Helper()
	path, _, _ = strings.Cut(path, "?")
	operation, ok := description.Paths[path]
	if !ok {
		return
	}
	response, ok := operation["post"].Responses[fmt.Sprint(w.Code)]
	if !ok {
		t.Errorf("%s: the OpenAPI file has no status %d", path, w.Code)
		return
	}
	content, ok := response.Content[w.Header().Get("Content-Type")]
	if !ok {
		t.Errorf("%s: the OpenAPI file has no %s for status %d", path, w.Header().Get("Content-Type"), w.Code)
		return
	}
	var value any
	if err := json.Unmarshal(w.Body.Bytes(), &value); err != nil {
		t.Errorf("%s: the response is not JSON: %v: %s", path, err, w.Body)
		return
	}
	if err := checkValue(content.Schema, value, "the answer"); err != nil {
		t.Errorf("%s: the response differs from the OpenAPI file: %v: %s", path, err, w.Body)
	}
}

// checkValue checks a value against a schema. It knows the parts of JSON Schema that the schemas of
// responses use. at is the place of the value, for errors.
func checkValue(schema map[string]any, value any, at string) error {
	if name, ok := schema["$ref"].(string); ok {
		return checkValue(description.Components.Schemas[strings.TrimPrefix(name, "#/components/schemas/")], value, at)
	}
	if enum, ok := schema["enum"].([]any); ok && !slices.Contains(enum, value) {
		return fmt.Errorf("%s is %v; it may be one of %v", at, value, enum)
	}
	if least, ok := schema["minimum"].(float64); ok && value.(float64) < least {
		return fmt.Errorf("%s is %v; the least is %v", at, value, least)
	}
	hasType := false
	switch v := value.(type) {
	case string:
		hasType = schema["type"] == "string"
	case bool:
		hasType = schema["type"] == "boolean"
	case float64:
		hasType = schema["type"] == "integer" && v == float64(int64(v))
	case []any:
		hasType = schema["type"] == "array"
		for i, one := range v {
			if err := checkValue(schema["items"].(map[string]any), one, fmt.Sprintf("%s[%d]", at, i)); err != nil {
				return err
			}
		}
	case map[string]any:
		hasType = schema["type"] == "object"
		properties, _ := schema["properties"].(map[string]any)
		for name, one := range v {
			property, ok := properties[name].(map[string]any)
			if !ok {
				return fmt.Errorf("%s has the field %s, which is not described", at, name)
			}
			if err := checkValue(property, one, at+"."+name); err != nil {
				return err
			}
		}
		required, _ := schema["required"].([]any)
		for _, name := range required {
			if _, ok := v[name.(string)]; !ok {
				return fmt.Errorf("%s lacks the field %s", at, name)
			}
		}
	}
	if !hasType {
		return fmt.Errorf("%s is %v; it must be of type %v", at, value, schema["type"])
	}
	return nil
}

// checkValue finds errors in responses.
func TestSchemaCheckFindsWrongResponses(t *testing.T) {
	schema := map[string]any{
		"type": "object", "additionalProperties": false, "required": []any{"id", "expires_in_ms"},
		"properties": map[string]any{
			"id":            map[string]any{"type": "string"},
			"expires_in_ms": map[string]any{"type": "integer", "minimum": float64(0)},
			"decision":      map[string]any{"$ref": "#/components/schemas/CheckResponse"},
		},
	}
	for text, want := range map[string]string{
		`{"id":"a","expires_in_ms":1}`:                            "",
		`{"id":"a"}`:                                              "lacks the field expires_in_ms",
		`{"id":"a","expires_in_ms":1,"x":1}`:                      "has the field x",
		`{"id":1,"expires_in_ms":1}`:                              "must be of type string",
		`{"id":"a","expires_in_ms":1.5}`:                          "must be of type integer",
		`{"id":"a","expires_in_ms":-1}`:                           "the least is 0",
		`{"id":"a","expires_in_ms":1,"decision":{"outcome":"x"}}`: "it may be one of",
	} {
		var value any
		if err := json.Unmarshal([]byte(text), &value); err != nil {
			t.Fatal(err)
		}
		if err := checkValue(schema, value, "the answer"); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: the error is %v; want %q", text, err, want)
		}
	}
}
