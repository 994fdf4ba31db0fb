package policyfile

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/guard"
	"github.com/penstock/penstock/memstore"
	"github.com/penstock/penstock/policy"
)

// lineEnd matches a line end of YAML.
var lineEnd = regexp.MustCompile("\r\n|[\n\r\u0085\u2028\u2029]")

// Whatever a file contains, nothing panics, and each mistake has a place in the file. Rules that
// compile make only charges and settings that stores and guards accept.
func FuzzParse(f *testing.F) {
	f.Add(richPolicy)
	for _, g := range goldens(f) {
		text, err := os.ReadFile(filepath.Join(g.dir, g.policy))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(text))
	}
	bad, _ := filepath.Glob("testdata/bad/*.txt")
	for _, name := range bad {
		for _, c := range readBadCases(f, name) {
			f.Add(c.text(f))
		}
	}
	env := func(name string) (string, bool) { return "1/s", name != "UNSET" }
	f.Fuzz(func(t *testing.T, text string) {
		if strings.Contains(text, "/dev") || strings.Contains(text, "/proc") || len(text) > 1<<16 {
			t.Skip("the policy may name a file that never ends, or is too long for this test")
		}
		config, parseErr := parse("policy.yaml", []byte(text), env, allSections)
		p, err := config.compile()
		if parseErr != nil && err == nil {
			t.Fatalf("a file that Parse rejects was compiled: %v", parseErr)
		}
		if err != nil {
			lines := lineEnd.Split(text, -1)
			for _, e := range err.(Errors) {
				if e.Line < 1 || e.Line > len(lines) || e.Column < 1 || e.Column > utf8.RuneCountInString(text)+1 {
					t.Fatalf("%v: there is no such place in the file of %d lines", e, len(lines))
				}
				if !strings.Contains(e.Message, ";") || strings.Contains(e.Message, "%!") {
					t.Fatalf("%v: the error has no text on how to fix it", e)
				}
			}
			return
		}
		defer p.Close()
		rules := p.Rules
		if !utf8.ValidString(descriptionOf(rules)) {
			t.Fatalf("the description is not UTF-8: %q", descriptionOf(rules))
		}
		guarded := guardedBy(t, rules, memstore.New(memstore.Options{Locks: 1}))
		broken := guardedBy(t, rules, penstock.StoreFunc(func(context.Context, []penstock.Charge) (penstock.Decision, error) {
			return penstock.Decision{}, penstock.ErrUnavailable
		}))
		defer guarded.Close()
		defer broken.Close()
		r := rand.New(rand.NewPCG(1, 1))
		var v policy.Evaluation
		for range 20 {
			a := randomRequest(r)
			rules.Evaluate(a, &v)
			for _, batch := range append(v.Shadows, policy.Shadow{Charges: v.Charges}) {
				if len(batch.Charges) == 0 {
					continue
				}
				if err := penstock.Check(batch.Charges); err != nil {
					t.Fatalf("%v makes a charge that stores reject: %v", a, err)
				}
				for _, store := range []penstock.Store{guarded, broken} {
					for _, mode := range []penstock.Mode{penstock.Spend, penstock.Force, penstock.Refund} {
						for i := range batch.Charges {
							batch.Charges[i].Mode = mode
						}
						if _, err := store.Decide(t.Context(), batch.Charges); errors.Is(err, penstock.ErrInvalid) {
							t.Fatalf("%v makes a charge that guards reject: %v", a, err)
						}
					}
				}
			}
		}
	})
}

func guardedBy(t *testing.T, rules *policy.Rules, store penstock.Store) *guard.Guarded {
	g, err := guard.Standard(store, guard.Options{Limits: rules.Settings, Instances: 1})
	if err != nil {
		t.Fatal(err)
	}
	return g
}
