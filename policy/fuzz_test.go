package policy

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
)

// lineEnds are what YAML takes for the end of a line.
var lineEnds = regexp.MustCompile("\r\n|[\n\r\u0085\u2028\u2029]")

// Whatever a file says: nothing panics, mistakes have places in the file, and rules that were
// compiled demand only charges that a store takes, and guards by their settings.
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
			t.Skip("files that never end")
		}
		config, parsed := Parse("policy.yaml", []byte(text), env)
		rules, err := config.Compile()
		if parsed != nil && err == nil {
			t.Fatalf("what could not be read was compiled: %v", parsed)
		}
		if err != nil {
			lines := lineEnds.Split(text, -1)
			for _, e := range err.(Errors) {
				if e.Line < 1 || e.Line > len(lines) || e.Column < 1 || e.Column > utf8.RuneCountInString(text)+1 {
					t.Fatalf("%v: there is no such place in the file of %d lines", e, len(lines))
				}
				if !strings.Contains(e.Message, ";") || strings.Contains(e.Message, "%!") {
					t.Fatalf("%v: it is not said how to mend it", e)
				}
			}
			return
		}
		defer rules.Close()
		if !utf8.ValidString(rules.String()) {
			t.Fatalf("the description is not UTF-8: %q", rules.String())
		}
		guarded := guardedBy(t, rules, memstore.New(memstore.Options{Shards: 1}))
		broken := guardedBy(t, rules, penstock.StoreFunc(func(context.Context, []penstock.Charge) (penstock.Decision, error) {
			return penstock.Decision{}, penstock.ErrUnavailable
		}))
		defer guarded.Close()
		defer broken.Close()
		r := rand.New(rand.NewPCG(1, 1))
		var v Verdict
		for range 20 {
			a := randomRequest(r)
			rules.Assess(a, &v)
			for _, batch := range append(v.Trials, Trial{Charges: v.Charges}) {
				if len(batch.Charges) == 0 {
					continue
				}
				if _, err := penstock.Prepare(batch.Charges, nil); err != nil {
					t.Fatalf("%v demands what no store takes: %v", a, err)
				}
				for _, store := range []penstock.Store{guarded, broken} {
					for _, mode := range []penstock.Mode{penstock.Spend, penstock.Force, penstock.Refund} {
						for i := range batch.Charges {
							batch.Charges[i].Mode = mode
						}
						if _, err := store.Decide(t.Context(), batch.Charges); errors.Is(err, penstock.ErrInvalid) {
							t.Fatalf("%v demands what no guard takes: %v", a, err)
						}
					}
				}
			}
		}
	})
}

// Two values never have one spelling, and no spelling has a letter that parts values.
func FuzzEscape(f *testing.F) {
	long := strings.Repeat("x", maxValue+1)
	for _, value := range []string{"", "a", "a,b", "%2C", "#", "é", "\xff", "a b", "key:a", long, long + ",", escape(long), escape(long)[1:]} {
		f.Add(value, "a")
		f.Add("%2C", value)
	}
	f.Fuzz(func(t *testing.T, a, b string) {
		x, y := escape(a), escape(b)
		if (x == y) != (a == b) {
			t.Fatalf("%q and %q are both spelt %q", a, b, x)
		}
		// Pairs are told apart by the comma, and a missing value by nothing behind the kind.
		if pair := x + "," + y; strings.Count(pair, ",") != 1 {
			t.Fatalf("%q and %q look like several: %q", a, b, pair)
		}
		for _, c := range []byte(x) {
			if c <= ' ' || c >= 0x7f {
				t.Fatalf("%q is spelt with %q", a, c)
			}
		}
		if len(x) > 3*maxValue || a != "" && x == "" {
			t.Fatalf("%q is spelt in %d letters", a, len(x))
		}
	})
}

func guardedBy(t *testing.T, rules *Rules, store penstock.Store) *guard.Guarded {
	g, err := guard.Standard(store, guard.Options{Limits: rules.Settings, Instances: 1})
	if err != nil {
		t.Fatal(err)
	}
	return g
}
