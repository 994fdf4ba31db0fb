package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/penstock/penstock/cmd/penstock/internal/cases"
	"github.com/penstock/penstock/cmd/penstock/internal/settings"
	"github.com/penstock/penstock/httplimit"
	"github.com/penstock/penstock/policy/jwt"
	"github.com/penstock/penstock/policy/policyfile"
)

type schema = jsonschema.Schema

// generate returns the schema of policy files. It is draft 7, which most editors support.
func generate() ([]byte, error) {
	g := &generator{unused: forms()}
	root := g.schemaOf(reflect.TypeFor[policyfile.Config]())
	for _, section := range settings.PolicyOptions().Sections {
		root.Properties[section.SectionName()] = describe(g.schemaOf(reflect.TypeOf(section)), sectionText[section.SectionName()])
		root.PropertyOrder = append(root.PropertyOrder, section.SectionName())
	}
	for _, name := range slices.Sorted(maps.Keys(g.unused)) {
		g.errs = append(g.errs, fmt.Errorf("%s has a form, but is not a field of a Config; remove it", name))
	}
	if err := errors.Join(g.errs...); err != nil {
		return nil, err
	}
	return render(root, "Policy of Penstock")
}

// generateCases returns the schema of files for penstock test.
func generateCases() ([]byte, error) {
	g := new(generator)
	root := g.schemaOf(reflect.TypeFor[cases.File]())
	if err := errors.Join(g.errs...); err != nil {
		return nil, err
	}
	return render(root, "Cases of penstock test")
}

// render returns the text of a schema.
func render(root *schema, title string) ([]byte, error) {
	root.Schema = "http://json-schema.org/draft-07/schema#"
	root.Title = title
	if root.Definitions == nil {
		root.Definitions = definitions()
	}
	text, err := json.Marshal(root)
	if err != nil {
		return nil, err
	}
	var pretty bytes.Buffer
	err = json.Indent(&pretty, text, "", "  ")
	pretty.WriteByte('\n')
	return pretty.Bytes(), err
}

// sectionText describes the sections.
var sectionText = map[string]string{
	"http":   "How HTTP requests are read and answered.",
	"server": "Settings of penstock serve; flags and the environment override them.",
}

// A generator describes structs by their fields. It describes a field by its form, or else by its
// type.
type generator struct {
	unused map[string]*schema // forms of no field so far, by "Struct.field"
	errs   []error
}

// schemaOf returns the schema of a type.
func (g *generator) schemaOf(t reflect.Type) *schema {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if form, ok := typeForms[t]; ok {
		return form
	}
	switch {
	case t.Kind() == reflect.Slice:
		return listOf(g.schemaOf(t.Elem()))
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

// object returns the schema of a struct, with its fields.
func (g *generator) object(t reflect.Type) *schema {
	s := &schema{Type: "object", Properties: make(map[string]*schema), AdditionalProperties: nothing()}
	for i := range t.NumField() {
		field := t.Field(i)
		words := strings.Split(field.Tag.Get("yaml"), ",")
		name, options := words[0], words[1:]
		if name == "" || name == "-" {
			continue
		}
		what := field.Tag.Get("jsonschema")
		if what == "" {
			g.errs = append(g.errs, fmt.Errorf("%s.%s has no description; write one into a jsonschema tag", nameOf(t), name))
		}
		form := g.field(nameOf(t)+"."+name, field.Type)
		if slices.Contains(options, "empty") {
			form = anyOf(ref("text"), listOf(ref("text")))
		}
		s.Properties[name] = describe(form, what)
		s.PropertyOrder = append(s.PropertyOrder, name)
	}
	if len(s.Properties) == 0 {
		g.errs = append(g.errs, fmt.Errorf("type %s has its own decoder; add it to typeForms, or its fields to forms", t))
	}
	return s
}

func (g *generator) field(name string, t reflect.Type) *schema {
	form, ok := g.unused[name]
	if !ok {
		return g.schemaOf(t)
	}
	delete(g.unused, name)
	return form
}

// describe adds a description to a schema. Draft 7 ignores everything beside a $ref, so the $ref
// moves into an allOf.
func describe(s *schema, what string) *schema {
	if s.Ref != "" {
		return &schema{Description: what, AllOf: []*schema{s}}
	}
	with := *s
	with.Description = what
	return &with
}

// nameOf returns the name of a struct in forms. Structs called Config or Section are named after
// their section of a policy.
func nameOf(t reflect.Type) string {
	switch t {
	case reflect.TypeFor[httplimit.Config]():
		return "http"
	case reflect.TypeFor[settings.Section]():
		return "server"
	case reflect.TypeFor[jwt.Config]():
		return "tokens"
	}
	return t.Name()
}
