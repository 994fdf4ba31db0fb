package policyfile

import (
	"reflect"

	"github.com/penstock/penstock/internal/fieldvalues"
	"github.com/penstock/penstock/policy"
)

// A Section is a part of the file that another package defines and uses, such as http of package
// httplimit. A Section is a pointer to a struct. The tags of its fields name the keys (yaml) and
// describe them for editors (jsonschema). The values of the struct are the defaults: each file is
// read into a copy of the struct.
type Section interface {
	// SectionName is the key of the section in the file.
	SectionName() string

	// Apply checks the values, and sets what depends on them in the policy. Apply calls report for
	// each mistake. The parameter field of report points to the wrong field, or is the Section itself.
	// The message says what is wrong and how to fix it. Apply is also called if the file does not have
	// the section.
	Apply(spec *policy.Spec, report func(field any, format string, args ...any))
}

func textsOf(p any) *fieldvalues.Texts {
	if s, ok := p.(interface{ Self() *fieldvalues.Texts }); ok {
		return s.Self()
	}
	return nil
}

// fieldsOfTexts returns the known keys as the fields of a mapping.
func fieldsOfTexts(t *fieldvalues.Texts) map[string]field {
	if t.Values == nil {
		t.Values = make(map[string]*string)
		for key := range t.Known {
			t.Values[key] = new(string)
		}
	}
	fields := make(map[string]field)
	for key, isSecret := range t.Known {
		fields[key] = field{t.Values[key], fieldOptions{isSecret: isSecret}}
	}
	return fields
}

func newSections(prototypes []Section) (list []Section) {
	for _, p := range prototypes {
		fresh := reflect.New(reflect.TypeOf(p).Elem())
		fresh.Elem().Set(reflect.ValueOf(p).Elem())
		list = append(list, fresh.Interface().(Section))
	}
	return list
}

func (c *compiler) compileSections() {
	for _, s := range c.config.sections {
		s.Apply(&c.spec, func(field any, format string, args ...any) {
			if !c.isWritten(field) {
				field = s
			}
			c.fail(field, format, args...)
		})
		c.spec.Sections = append(c.spec.Sections, s)
	}
}

func (c *compiler) isWrittenIn(name, key string) bool {
	for _, s := range c.config.sections {
		if s.SectionName() != name {
			continue
		}
		f, ok := fieldsIn(s)[key]
		return ok && c.isWritten(f.value)
	}
	return false
}
