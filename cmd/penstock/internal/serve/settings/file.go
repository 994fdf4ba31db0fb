package settings

import (
	_ "embed"
	"os"
	"strings"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/algorithm"
	"github.com/penstock/penstock/httplimit"
	"github.com/penstock/penstock/internal/fieldvalues"
	"github.com/penstock/penstock/internal/regions"
	"github.com/penstock/penstock/policy"
	"github.com/penstock/penstock/policy/policyfile"
)

// A Section is the section server of a policy file. Each value has the form of the flag with that
// name. Missing settings come from flags, the environment or the defaults.
type Section struct{ fieldvalues.Texts }

func newSection() *Section {
	s := &Section{fieldvalues.Texts{Known: make(map[string]bool), Removed: make(map[string]string)}}
	for name := range removed {
		s.Removed[Row{Name: name}.Key()] = Removed(name)
	}
	for _, row := range Table {
		if !row.IsNotInFile {
			s.Known[row.Key()] = row.IsSecret
		}
	}
	return s
}

// SectionName returns the key of a Section in a policy file.
func (s *Section) SectionName() string { return "server" }

// Apply reports values of the Section that are invalid by themselves, whatever the flags and
// variables are. It does not change the policy.
func (s *Section) Apply(_ *policy.Spec, report func(field any, format string, args ...any)) {
	found := s.values()
	for _, row := range new(Settings).rows() {
		text, ok := found[row.Key()]
		if !ok {
			continue
		}
		err := row.set(text)
		if isBool := row.Value == ""; isBool && text != "true" && text != "false" {
			err = errNotBool // a flag also accepts words such as 1 and T
		}
		if err != nil {
			report(s.Values[row.Key()], "%s%s: %v", row.Key(), row.show(text), err)
		}
	}
}

// Describe passes the names of the Section's settings to line, without their values.
func (s *Section) Describe(line func(label string, texts ...string)) {
	found := s.values()
	var names []string
	for _, row := range Table {
		if _, ok := found[row.Key()]; ok {
			names = append(names, row.Key())
		}
	}
	if len(names) > 0 {
		line("server", strings.Join(names, ", "))
	}
}

// RegionBound says how much all regions together admit of a limit, with the settings of the
// environment and of the file.
func (s *Section) RegionBound(plan *penstock.Plan) string {
	_, text := s.Regions().Bound(plan)
	return text
}

// Regions returns how the regions exchange, with the settings of the environment and of the file.
// If one of them is invalid, which is reported elsewhere, the number of regions is not known.
func (s *Section) Regions() regions.Setup {
	made, err := Load(Sources{
		Flags: map[string]string{"config": "-"}, Environ: os.Environ(),
		File: func(string) (*Section, error) { return s, nil },
		Only: []string{"region", "region-peers", "region-interval", "region-delay"},
	})
	if err != nil {
		return regions.Setup{}
	}
	return made.Regions()
}

// values returns the settings of the Section by key, in the form of flags.
func (s *Section) values() map[string]string {
	found := make(map[string]string)
	if s == nil {
		return found
	}
	for _, row := range Table {
		text := s.Values[row.Key()]
		if text == nil || *text == "" {
			continue
		}
		found[row.Key()] = *text
		if row.Value == "number" {
			found[row.Key()] = strings.ReplaceAll(*text, "_", "") // as in 10_000
		}
	}
	return found
}

// schema is generated from policyfile.Form, httplimit.Config and Table by tools/schemagen; run make
// schema.
//
//go:embed schema.json
var schema string

// Schema returns the JSON Schema (draft 7) of a policy file, for editors. penstock rejects
// everything that the schema rejects, and more.
func Schema() []byte { return []byte(schema) }

// PolicyOptions returns the options for reading a policy file. The file may name these algorithms
// in addition to the built-in ones.
func PolicyOptions(algorithms ...*algorithm.Algorithm) policyfile.Options {
	return policyfile.Options{Algorithms: algorithms, Sections: []policyfile.Section{httplimit.DefaultConfig(), newSection()}}
}
