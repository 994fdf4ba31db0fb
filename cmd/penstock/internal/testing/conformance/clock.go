package main

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/penstock/penstock/internal/testing/redistest"
)

// A clock shows the second in which the services decide. A comparison calls advance before each
// request.
type clock interface {
	now() int64 // seconds since 1970
	advance(r *rand.Rand) error
}

type systemClock struct{}

func (systemClock) now() int64               { return time.Now().Unix() }
func (systemClock) advance(*rand.Rand) error { return nil }

// The time of a manualClock changes only when advance is called. Both services use it:
// envoyproxy/ratelimit reads the second from a file, and Penstock uses the clock of its Redis.
type manualClock struct {
	file   string // that envoyproxy/ratelimit reads
	second int64
	redis  []*redistest.Clock // of the Redis servers of both services
}

func (c *manualClock) now() int64 { return c.second }

func (c *manualClock) advance(r *rand.Rand) error {
	c.second = nextSecond(r, c.second)
	return c.set(time.Duration(pick(r, []int{0, 1, 500_000, 999_999})) * time.Microsecond)
}

// set sets the clocks of both services to the current second, plus a fraction of a second for
// Redis.
func (c *manualClock) set(fraction time.Duration) error {
	if err := os.WriteFile(c.file, []byte(strconv.FormatInt(c.second, 10)), 0o600); err != nil {
		return err
	}
	for _, clock := range c.redis {
		if err := clock.Freeze(time.Unix(c.second, int64(fraction))); err != nil {
			return err
		}
	}
	return nil
}

// lastSecond is where clocks stop: in 2096. Penstock can count until 2112.
const lastSecond = 4_000_000_000

// nextSecond returns the second of the next request: often the same second or the next one, and
// sometimes one near the end of a window.
func nextSecond(r *rand.Rand, second int64) int64 {
	switch n := r.IntN(30); {
	case second > lastSecond:
		return second
	case n == 0:
		// The first second of the next window, or the last one of this window.
		window := windowSeconds[pick(r, unitNames[1:])] // 0 is the number of no unit
		nextWindow := (second/window + 1) * window
		return max(second, nextWindow-int64(r.IntN(2)))
	case n <= 3:
		return second + 1
	}
	return second
}

// buildClocked builds envoyproxy/ratelimit with one change: its time source reads the file that the
// variable CLOCK_FILE names. buildClocked makes the change in a copy of the module. The changed
// file is in the folder clock.
func (o *oracle) buildClocked() error {
	module, err := o.runGo(slices.Concat([]string{"list"}, o.flags, []string{"-m", "-f", "{{.Dir}}", modulePath})...)
	if err != nil {
		return err
	}
	copied := filepath.Join(o.dir, "clocked")
	if err := os.RemoveAll(copied); err != nil {
		return err
	}
	module = strings.TrimSpace(module)
	if err := os.CopyFS(filepath.Join(copied, "src"), os.DirFS(filepath.Join(module, "src"))); err != nil {
		return err
	}
	if err := copyFile(filepath.Join(copied, "go.mod"), filepath.Join(module, "go.mod")); err != nil {
		return err
	}
	utils := filepath.Join(copied, "src", "utils")
	text, err := os.ReadFile(filepath.Join(utils, "time.go"))
	if err != nil {
		return err
	}
	const readTime = "time.Now().Unix()"
	if n := strings.Count(string(text), readTime); n != 1 {
		return fmt.Errorf("src/utils/time.go of %s has %q in %d places; want one, so that the program can set the clock", modulePath, readTime, n)
	}
	changed := strings.Replace(string(text), readTime, "secondOf(time.Now())", 1)
	if err := os.WriteFile(filepath.Join(utils, "time.go"), []byte(changed), 0o600); err != nil {
		return err
	}
	if err := os.CopyFS(utils, os.DirFS(filepath.Join(o.source, "clock"))); err != nil {
		return err
	}
	flags, err := o.replaceModule("clocked", copied)
	if err != nil {
		return err
	}
	return o.build(flags, filepath.Join(o.dir, "service_clocked"), modulePath+"/src/service_cmd")
}

func copyFile(to, from string) error {
	text, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, text, 0o600)
}
