package luagen

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

var luaDir = flag.String("lua", "", "directory in which TestScriptsAreWritten writes the scripts for luacheck")

// Each algorithm has scripts of every kind, for one charge and for two.
func TestScriptsAreWritten(t *testing.T) {
	write := func(name, text string) {
		for _, placeholder := range []string{"@", "ALGORITHM", "FAIL\n", "STEP\n", "RECEIPTOF", "NEWRECEIPT", "RECEIPT1"} {
			if strings.Contains(text, placeholder) {
				t.Errorf("%s: the script has the placeholder %q of its template; want none:\n%s", name, placeholder, text)
			}
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
	write("heartbeat", Heartbeat)
	var all []*algorithm.Algorithm
	for _, limit := range []penstock.Limit{
		penstock.PerSecond(1), penstock.PerSecond(1).With(penstock.LeakyBucket), penstock.PerSecond(1).With(penstock.FixedWindow),
		penstock.PerSecond(1).With(penstock.SlidingWindow), penstock.PerSecond(1).With(penstock.SubWindow(10)),
		penstock.PerSecond(1).With(penstock.SlidingLog), penstock.InFlight(1, time.Second),
	} {
		plan, err := limit.Compile()
		if err != nil {
			t.Fatal(err)
		}
		a := plan.Algorithm()
		all = append(all, a)
		twice := []*algorithm.Algorithm{a, a}
		if a.IsCollection() || a.Numbers() > MaxNumbers {
			write(a.Name(), Mixed(twice[:1]))
			continue
		}
		write(a.Name()+"-single", Single(twice[:1]))
		write(a.Name()+"-twice-single", Single(twice))
		write(a.Name()+"-uniform", Uniform(twice[:1]))
		write(a.Name()+"-twice-uniform", Uniform(twice))
	}
	write("all-mixed", Mixed(all))
}

// costlyAlgorithms are four algorithms whose scripts are expensive to generate. The most expensive
// one comes first.
var costlyAlgorithms = []*algorithm.Algorithm{penstock.SlidingWindow, penstock.LeakyBucket, penstock.TokenBucket, penstock.FixedWindow}

// The first request that needs a script waits for it. The test counts allocations, because times
// vary on busy machines. A slow generator, which took 70 ms, made 6,500 allocations.
func TestWritingAScriptIsCheap(t *testing.T) {
	for name, write := range map[string]func(){
		"single of one":   func() { Single(costlyAlgorithms[:1]) },
		"single of four":  func() { Single(costlyAlgorithms) },
		"uniform of four": func() { Uniform(costlyAlgorithms) },
		"mixed":           func() { Mixed(append(costlyAlgorithms, penstock.SlidingLog, penstock.Concurrency)) },
	} {
		const most = 2500
		if n := testing.AllocsPerRun(1, write); n > most {
			t.Errorf("%s: the generator made %.0f allocations; want at most %d", name, n, most)
		}
	}
}

// Regular expressions would be slow, also at the start of each process.
func TestPackageHasNoRegularExpressions(t *testing.T) {
	pkg, err := build.ImportDir(".", 0)
	if err != nil {
		t.Fatal(err)
	}
	if slices.Contains(pkg.Imports, "regexp") {
		t.Errorf("the package imports %v; want no regexp", pkg.Imports)
	}
}

func BenchmarkWrite(b *testing.B) {
	run := func(name string, write func()) {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				write()
			}
		})
	}
	tokenBucket := costlyAlgorithms[2:3]
	run("single of one", func() { Single(tokenBucket) })
	run("uniform of one", func() { Uniform(tokenBucket) })
	run("single of four", func() { Single(costlyAlgorithms) })
	run("uniform of four", func() { Uniform(costlyAlgorithms) })
	run("mixed", func() { Mixed(append(costlyAlgorithms, penstock.SlidingLog, penstock.Concurrency)) })
}
