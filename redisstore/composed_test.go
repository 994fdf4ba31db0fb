package redisstore

import (
	"flag"
	"go/build"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/algorithm"
)

var luaDir = flag.String("lua", "", "where TestScriptsAreWritten writes the composed scripts, for luacheck to read")

// Scripts are composed of every algorithm, alone and in a batch of two, for one caller and for
// several that go together; and of all at once.
func TestScriptsAreWritten(t *testing.T) {
	write := func(name, text string) {
		if strings.Contains(text, "@") || strings.Contains(text, "ALGORITHM") || strings.Contains(text, "POISON\n") {
			t.Errorf("%s: something was left unwritten:\n%s", name, text)
		}
		if *luaDir == "" {
			return
		}
		if err := os.MkdirAll(*luaDir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(*luaDir, name+".lua"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	var all []*algorithm.Algorithm
	for _, limit := range []penstock.Limit{
		penstock.PerSecond(1), penstock.PerSecond(1).With(penstock.LeakyBucket), penstock.PerSecond(1).With(penstock.FixedWindow),
		penstock.PerSecond(1).With(penstock.SlidingWindow), penstock.PerSecond(1).With(penstock.SubWindow(10)),
		penstock.PerSecond(1).With(penstock.SlidingLog), penstock.InFlight(1, time.Second),
	} {
		plan, err := limit.Plan()
		if err != nil {
			t.Fatal(err)
		}
		a := plan.Limit.Algorithm
		all = append(all, a)
		twice := []*algorithm.Algorithm{a, a}
		if !isRow([]charge{{&penstock.Charge{}, plan}}) {
			write(a.Name, composeMany(twice[:1]))
			continue
		}
		write(a.Name, composeRow(twice[:1], false))
		write(a.Name+"-twice", composeRow(twice, false))
		write(a.Name+"-together", composeRow(twice[:1], true))
		write(a.Name+"-twice-together", composeRow(twice, true))
	}
	write("all", composeMany(all))
	write("live", liveLua)
	write("layout", layoutLua)
}

// mixed are algorithms that a row may have, the most expensive to compose first.
var mixed = []*algorithm.Algorithm{penstock.SlidingWindow, penstock.LeakyBucket, penstock.TokenBucket, penstock.FixedWindow}

// A caller may be the first to need a script. Time is not asserted, since machines are busy:
// allocations stand for it. The composer that had a caller wait for 70 ms made 6,500 of them.
func TestComposingIsCheap(t *testing.T) {
	for name, compose := range map[string]func(){
		"one":               func() { composeRow(mixed[:1], false) },
		"four":              func() { composeRow(mixed, false) },
		"four, for several": func() { composeRow(mixed, true) },
		"any batches":       func() { composeMany(append(mixed, penstock.SlidingLog, penstock.Concurrency)) },
	} {
		if n := testing.AllocsPerRun(1, compose); n > 1500 {
			t.Errorf("composing a script for %s takes %.0f allocations; want 1500 at most", name, n)
		}
	}
}

// Regular expressions made the composer slow, and cost each process that starts.
func TestStoreHasNoRegularExpressions(t *testing.T) {
	store, err := build.ImportDir(".", 0)
	if err != nil {
		t.Fatal(err)
	}
	if slices.Contains(store.Imports, "regexp") {
		t.Errorf("the package imports regexp: %v", store.Imports)
	}
}

func BenchmarkCompose(b *testing.B) {
	run := func(name string, compose func()) {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				compose()
			}
		})
	}
	run("one", func() { composeRow(mixed[2:3], false) })
	run("one, for several", func() { composeRow(mixed[2:3], true) })
	run("four", func() { composeRow(mixed, false) })
	run("four, for several", func() { composeRow(mixed, true) })
	run("any batches", func() { composeMany(append(mixed, penstock.SlidingLog, penstock.Concurrency)) })
}
