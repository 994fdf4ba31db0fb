package policyfile

import (
	"strings"
	"testing"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/httplimit"
	"github.com/penstock/penstock/policy"
)

// allSections are the sections that policies of these tests may have.
var allSections = Options{Sections: []Section{httplimit.DefaultConfig(), &serverSection{}}}

// A serverSection is the section of a program that uses this package.
type serverSection struct {
	Listen   string `yaml:"listen" jsonschema:"Where requests come in."`
	Upstream string `yaml:"upstream" jsonschema:"Where requests go."`
	Store    string `yaml:"store,secret" jsonschema:"URL of Redis."`
	Secret   string `yaml:"secret,secret" jsonschema:"Hides identities."`
	Cert     string `yaml:"tls_cert" jsonschema:"A certificate."`
	Key      string `yaml:"tls_key" jsonschema:"Its key."`
	Format   string `yaml:"log_format" jsonschema:"Text or json."`
	Workers  int    `yaml:"workers" jsonschema:"How many there are."`
}

func (s *serverSection) SectionName() string { return "server" }

// RegionBound makes the section that of a program whose regions exchange.
func (s *serverSection) RegionBound(*penstock.Plan) string { return "as much as in one" }

func (s *serverSection) Apply(_ *policy.Spec, report func(field any, format string, args ...any)) {
	if s.Workers > 8 {
		report(&s.Workers, "there are %d workers; the most are 8", s.Workers)
	}
	if s.Workers > 1 && s.Store == "" {
		report(&s.Store, "store is missing; several workers need one")
	}
}

// Only a program whose regions exchange can enforce a limit across regions.
func TestLimitsAcrossRegionsNeedTheProgramsSection(t *testing.T) {
	const text = "rules: [{name: a, per: global, limits: [{rate: 9/s, across: exchange}]}]\n"
	for _, o := range []Options{{}, allSections} {
		p, err := Parse("p.yaml", []byte(text), nil, o)
		if isRefused := err != nil && strings.Contains(err.Error(), "only penstock serve can enforce one limit in several regions"); isRefused != (len(o.Sections) == 0) {
			t.Errorf("with %d sections, the error is %v; want one only without the section of the service", len(o.Sections), err)
		}
		if err == nil {
			p.Close()
		}
	}
}

// Each file is read into a section of its own. The section begins with the values of its prototype.
func TestSectionsBelongToOneFile(t *testing.T) {
	prototype := &serverSection{Listen: ":80", Store: "s", Workers: 2}
	o := Options{Sections: []Section{prototype}}
	read := func(text string) *serverSection {
		t.Helper()
		config, err := parse("p.yaml", []byte(text+"rules: [{name: a, per: global, limits: [{rate: 1/s}]}]\n"), nil, o)
		if err != nil {
			t.Fatal(err)
		}
		p, err := config.compile()
		if err != nil {
			t.Fatal(err)
		}
		section, ok := policy.SectionOf[*serverSection](p.Rules)
		if !ok {
			t.Fatal("the rules have no section")
		}
		return section
	}
	first, second := read("server: {workers: 5}\n"), read("")
	if want := (serverSection{Listen: ":80", Store: "s", Workers: 5}); *first != want {
		t.Errorf("the section is %+v; want %+v", *first, want)
	}
	if want := (serverSection{Listen: ":80", Store: "s", Workers: 2}); *second != want || *prototype != want {
		t.Errorf("another file has %+v, and the prototype is %+v; want %+v", *second, *prototype, want)
	}
}

// Mistakes of sections are reported at their places, together with those of the policy.
func TestMistakesOfSectionsHaveTheirPlaces(t *testing.T) {
	err := mistakesOf("p.yaml", "server:\n  workers: 9\n  upstream: x\n  port: 1\nrules: []\n", nil)
	want := "p.yaml:2:3: store is missing; several workers need one\n" +
		"p.yaml:2:12: there are 9 workers; the most are 8\n" +
		"p.yaml:4:3: there is no field \"port\" here; there are listen, log_format, secret, store, tls_cert, tls_key, upstream and workers\n" +
		"p.yaml:5:8: there are no rules; add rules: with a name, a match and limits"
	if err == nil || err.Error() != want {
		t.Errorf("the error is\n%v\nwant\n%s", err, want)
	}
}
