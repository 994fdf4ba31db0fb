package schemagen

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

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/cmd/penstock/internal/serve/settings"
	"github.com/penstock/penstock/cmd/penstock/internal/tools/cases"
	"github.com/penstock/penstock/httplimit"
	"github.com/penstock/penstock/internal/fieldvalues"
	"github.com/penstock/penstock/internal/policy/jwt"
	"github.com/penstock/penstock/policy/policyfile"
)

type schema = jsonschema.Schema

// generatePolicy returns the schema of policy files. It is draft 7, which most editors support.
func generatePolicy() ([]byte, error) {
	g := &generator{unused: forms()}
	root := g.schemaOf(policyfile.Form())
	root.Properties["http"] = describe(g.schemaOf(reflect.TypeFor[httplimit.Config]()), "How HTTP requests are read and answered.")
	root.Properties["server"] = describe(server(), "Settings of penstock serve; flags and the environment override them.")
	root.PropertyOrder = append(root.PropertyOrder, "http", "server")
	for _, name := range slices.Sorted(maps.Keys(g.unused)) {
		g.errs = append(g.errs, fmt.Errorf("forms() describes %s, which is not a field of a policy; remove it", name))
	}
	if err := errors.Join(g.errs...); err != nil {
		return nil, err
	}
	return render(root, "Policy of Penstock")
}

// generateCases returns the schema of the case files that penstock test runs.
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
	return indent(root)
}

func indent(root *schema) ([]byte, error) {
	text, err := json.Marshal(root)
	if err != nil {
		return nil, err
	}
	var pretty bytes.Buffer
	err = json.Indent(&pretty, text, "", "  ")
	pretty.WriteByte('\n')
	return pretty.Bytes(), err
}

// server returns the schema of the settings of penstock serve in a policy.
func server() *schema {
	s := &schema{Type: "object", Properties: make(map[string]*schema), AdditionalProperties: nothing()}
	for _, row := range settings.Table {
		if row.IsNotInFile {
			continue
		}
		description := row.Sentence()
		if row.Bounds != "" {
			description += " Bounds: " + row.Bounds + "."
		}
		switch {
		case row.Default != "":
			description += " Default: " + row.Default + "."
		case row.IsSecret:
			description += " Prefer " + row.Env() + "_FILE."
		}
		s.Properties[row.Key()] = describe(settingForm(row), description)
		s.PropertyOrder = append(s.PropertyOrder, row.Key())
	}
	return s
}

// settingForm returns the form of a setting's value.
func settingForm(row settings.Row) *schema {
	switch row.Value {
	case "":
		return ref("truth")
	case "number", "duration":
		return ref(row.Value)
	case "size":
		return ref("bytes")
	}
	if choices := row.Choices(); choices != nil {
		return words(choices...)
	}
	return ref("text")
}

// A generator makes the schemas of structs from their fields. A form is a schema that is written by
// hand. A field gets its form in forms(); a field without one gets the schema of its type.
type generator struct {
	unused map[string]*schema // what is left of forms(): no field has used these yet
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
		tag := strings.Split(field.Tag.Get("yaml"), ",")
		name, options := tag[0], tag[1:]
		if name == "" || name == "-" {
			continue
		}
		description := field.Tag.Get("jsonschema")
		if description == "" {
			g.errs = append(g.errs, fmt.Errorf("%s.%s has no description; write one into a jsonschema tag", nameOf(t), name))
		}
		form := g.field(nameOf(t)+"."+name, field.Type)
		if bounds, ok := boundsOf(form); ok {
			description += " Bounds: " + bounds.String() + "."
		}
		if slices.Contains(options, "empty") { // the list may have no elements; see policyfile.fieldOptions
			form = anyOf(ref("text"), listOf(ref("text")))
		}
		s.Properties[name] = describe(form, description)
		s.PropertyOrder = append(s.PropertyOrder, name)
	}
	if len(s.Properties) == 0 {
		g.errs = append(g.errs, fmt.Errorf("type %s has no field with a yaml tag; add the type to typeForms", t))
	}
	return s
}

// boundsOf returns the bounds of a form that number has made, unless users need not know them.
func boundsOf(form *schema) (r fieldvalues.Range, ok bool) {
	if len(form.AnyOf) == 0 || form.AnyOf[0].Minimum == nil || form.AnyOf[0].Maximum == nil {
		return r, false
	}
	r = fieldvalues.Range{Least: int64(*form.AnyOf[0].Minimum), Most: int64(*form.AnyOf[0].Maximum)}
	return r, r.Most < penstock.MaxCost
}

// field returns the schema of a field with the type t. name is the field's name in forms().
func (g *generator) field(name string, t reflect.Type) *schema {
	form, ok := g.unused[name]
	if !ok {
		return g.schemaOf(t)
	}
	delete(g.unused, name)
	return form
}

// describe returns a copy of a schema with a description. Draft 7 ignores all other fields of an
// object that has a $ref, so the $ref moves into an allOf.
func describe(s *schema, description string) *schema {
	if s.Ref != "" {
		return &schema{Description: description, AllOf: []*schema{s}}
	}
	described := *s
	described.Description = description
	return &described
}

// typeInForm returns a type of package policyfile by its name: one that is below policyfile.Form.
// It panics if there is none.
func typeInForm(name string) reflect.Type {
	seen := make(map[reflect.Type]bool)
	var find func(reflect.Type) reflect.Type
	find = func(t reflect.Type) reflect.Type {
		switch {
		case t.Name() == name || seen[t]:
			return t
		case t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice:
			return find(t.Elem())
		case t.Kind() != reflect.Struct:
			return t
		}
		seen[t] = true
		for i := range t.NumField() {
			if found := find(t.Field(i).Type); found.Name() == name {
				return found
			}
		}
		return t
	}
	found := find(policyfile.Form())
	if found.Name() != name {
		panic("package policyfile has no type " + name)
	}
	return found
}

// nameOf returns the name of a struct in forms(): the type's name. A struct that is a section of a
// policy has the section's name instead, because several of these types are called Config.
func nameOf(t reflect.Type) string {
	switch t {
	case reflect.TypeFor[httplimit.Config]():
		return "http"
	case reflect.TypeFor[jwt.Config]():
		return "tokens"
	}
	return t.Name()
}
