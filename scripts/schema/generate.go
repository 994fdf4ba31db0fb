package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/penstock/penstock/policy"
)

type schema = jsonschema.Schema

// generate is the text of the schema: draft 7, the latest that editors have long known.
func generate() ([]byte, error) {
	g := &generator{left: forms()}
	root := g.of(reflect.TypeFor[policy.Config]())
	for _, name := range slices.Sorted(maps.Keys(g.left)) {
		g.errs = append(g.errs, fmt.Errorf("%s has a form, and is no field of a Config; remove it", name))
	}
	if err := errors.Join(g.errs...); err != nil {
		return nil, err
	}
	root.Schema = "http://json-schema.org/draft-07/schema#"
	root.Title = "Policy of Penstock"
	root.Definitions = definitions()
	text, err := json.Marshal(root)
	if err != nil {
		return nil, err
	}
	var pretty bytes.Buffer
	err = json.Indent(&pretty, text, "", "  ")
	pretty.WriteByte('\n')
	return pretty.Bytes(), err
}

// A generator describes structs by their fields, and fields by their type or, where that does not
// tell enough, by a form of their own.
type generator struct {
	left map[string]*schema // forms by "Struct.field" that no field has taken yet
	errs []error
}

// of describes a type.
func (g *generator) of(t reflect.Type) *schema {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if form, ok := typeForms[t]; ok {
		return form
	}
	switch {
	case t.Kind() == reflect.Slice:
		return listOf(g.of(t.Elem()))
	case t.Kind() != reflect.Struct:
		g.errs = append(g.errs, fmt.Errorf("type %s has no form; add it to typeForms", t))
		return &schema{}
	}
	s := g.object(t)
	if shape, ok := structForms[t]; ok {
		s = shape(s)
	}
	return s
}

// object describes the fields of a struct.
func (g *generator) object(t reflect.Type) *schema {
	s := &schema{Type: "object", Properties: make(map[string]*schema), AdditionalProperties: nothing()}
	for i := range t.NumField() {
		field := t.Field(i)
		name := field.Tag.Get("yaml")
		if name == "" || name == "-" {
			continue
		}
		what := field.Tag.Get("jsonschema")
		if what == "" {
			g.errs = append(g.errs, fmt.Errorf("%s.%s has no description; write one into a jsonschema tag", t.Name(), name))
		}
		s.Properties[name] = described(g.field(t.Name()+"."+name, field.Type), what)
		s.PropertyOrder = append(s.PropertyOrder, name)
	}
	if len(s.Properties) == 0 {
		g.errs = append(g.errs, fmt.Errorf("type %s is read by a decoder of its own; add it to typeForms, or its fields to forms", t))
	}
	return s
}

func (g *generator) field(name string, t reflect.Type) *schema {
	form, ok := g.left[name]
	if !ok {
		return g.of(t)
	}
	delete(g.left, name)
	return form
}

// described is a schema with a description. Draft 7 ignores what stands beside a $ref, so that
// moves into an allOf.
func described(s *schema, what string) *schema {
	if s.Ref != "" {
		return &schema{Description: what, AllOf: []*schema{s}}
	}
	with := *s
	with.Description = what
	return &with
}
