package redisstore

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/algorithm"
)

var luaDir = flag.String("lua", "", "where TestScriptsAreWritten writes the composed scripts, for luacheck to read")

// Scripts are composed of every algorithm, alone and in a batch of two, for one caller and for several that go together; and of all at once.
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
