// Command mutants checks that tests find mistakes. It changes the code in one small place at a
// time, and runs the tests. Such a change is a mutant, and a failing test kills it. The command
// prints each mutant that survives, with the seed that makes it again. It fails if fewer than 95 %
// of the mutants are killed.
//
// It does not change the tree: the go command reads the changed file by -overlay. A mutant that
// does not compile does not count. A mutant whose tests hang counts as killed. equivalent.txt lists
// mutants that behave like the original code, each with its reason. The command skips them.
package main

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// A target is a package, and the tests that should find its mutants.
type target struct {
	files string   // a pattern, from the root of the tree
	tests []string // packages of tests, run in this order until one fails; the quickest first
}

// targets are the packages to change. The command tries the same number of mutants of each target.
var targets = []target{
	{"*.go", []string{".", "./memstore"}},
	{"algorithm/*.go", []string{"./algorithm"}},
	{"algorithm/*.lua", []string{"./redisstore"}},
	{"memstore/*.go", []string{"./memstore", "."}},
	{"redisstore/*.go", []string{"./redisstore"}},
	{"internal/redisclient/*.go", []string{"./internal/redisclient", "./redisstore"}},
	{"redisstore/internal/coalesce/*.go", []string{"./redisstore/internal/coalesce", "./redisstore"}},
	{"internal/luagen/*.go", []string{"./redisstore"}},
	{"internal/luagen/*.lua", []string{"./redisstore"}},
	{"guard/*.go", []string{"./guard"}},
	{"guard/internal/*/*.go", []string{"./guard/internal/...", "./guard"}},
	{"internal/lease/*.go", []string{"./internal/lease", "./guard"}},
	{"internal/deadline/*.go", []string{"./internal/deadline", "./guard"}},
	{"internal/regions/*.go", []string{"./internal/regions", "./redisstore", "./cmd/penstock/internal/tools/simulate"}},
	{"policy/*.go", []string{"./policy", "./policy/policyfile", "./httplimit"}},
	{"internal/policy/*/*.go", []string{"./internal/policy/...", "./policy/policyfile"}},
	{"internal/match/*.go", []string{"./internal/match", "./policy"}},
	{"internal/syntax/*.go", []string{"./internal/syntax", "./policy", "./httplimit"}},
	{"policy/policyfile/*.go", []string{"./policy/policyfile", "./cmd/penstock/internal/tools/cases"}},
	{"admission/*.go", []string{"./admission", "./httplimit", "./cmd/penstock/internal/rpc/envoyrls", "./cmd/penstock/internal/rpc/checkapi"}},
	{"httplimit/*.go", []string{"./httplimit"}},
	{"httplimit/outbound/*.go", []string{"./httplimit/outbound"}},
	{"resplimit/*.go", []string{"./resplimit"}},
	{"cmd/penstock/internal/rpc/envoyrls/*.go", []string{"./cmd/penstock/internal/rpc/envoyrls"}},
	{"cmd/penstock/internal/rpc/checkapi/*.go", []string{"./cmd/penstock/internal/rpc/checkapi"}},
	{"cmd/penstock/internal/console/adminapi/*.go", []string{"./cmd/penstock/internal/console/adminapi", "./cmd/penstock/internal/console/dashboard"}},
	{"cmd/penstock/internal/console/*/*.go", []string{"./cmd/penstock/internal/console/...", "./cmd/penstock/internal/serve/..."}},
	{"cmd/penstock/internal/serve/*/*.go", []string{"./cmd/penstock/internal/serve/..."}},
	{"cmd/penstock/internal/tools/*/*.go", []string{"./cmd/penstock/internal/tools/...", "./cmd/penstock/internal/tools/schemagen", "./cmd/penstock/command"}},
}

//go:embed equivalent.txt
var equivalentText string

const (
	tree    = ".."            // its root
	goal    = 95.             // percentage of the mutants that must be killed
	timeout = 5 * time.Minute // for the tests of one mutant
)

var (
	each = flag.Int("each", 20, "number of mutants of each target")
	seed = flag.Uint64("seed", uint64(rand.Uint32()), "seed of the random choice of mutants; default: a random seed")
	only = flag.String("only", "", "try only targets whose pattern begins with this text, such as redisstore/")
)

func main() {
	flag.Parse()
	log.SetFlags(0)
	var chosen []target
	for _, t := range targets {
		if strings.HasPrefix(t.files, *only) {
			chosen = append(chosen, t)
		}
	}
	killed, tried, err := run(chosen, parseEquivalents(equivalentText))
	if err != nil {
		log.Fatal(err)
	}
	percentage := 100 * float64(killed) / float64(max(tried, 1))
	fmt.Printf("counted: %d mutants killed of %d (%.1f %%, seed %d)\n", killed, tried, percentage, *seed)
	if tried == 0 || percentage < goal {
		log.Fatalf("fewer than %v %% of the mutants are killed", goal)
	}
}

// run tries mutants of each target, and prints the survivors.
func run(targets []target, equivalent map[string]bool) (killed, tried int, err error) {
	for _, t := range targets {
		if err := checkTests(t); err != nil {
			return killed, tried, err
		}
		all, err := mutantsOf(tree, t.files)
		if err != nil {
			return killed, tried, err
		}
		rng := rand.New(rand.NewPCG(*seed, 0))
		rng.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		killedHere, triedHere := 0, 0
		for _, m := range all {
			if triedHere == *each {
				break
			}
			if equivalent[m.id()] {
				continue
			}
			fate, err := runMutant(t, m)
			if err != nil {
				return killed, tried, err
			}
			if fate == unbuilt {
				continue
			}
			triedHere++
			if fate == dead {
				killedHere++
				continue
			}
			fmt.Printf("survived: %s:%d, %s (seed %d)\n-%s\n+%s\n", m.file, m.line, m.kind, *seed, m.before, m.after)
		}
		fmt.Printf("%-30s %3d of %3d killed, of %d possible mutants\n", t.files, killedHere, triedHere, len(all))
		killed, tried = killed+killedHere, tried+triedHere
	}
	return killed, tried, nil
}

// checkTests checks that the tests pass without a mutant. If they failed, every mutant would seem
// killed.
func checkTests(t target) error {
	out, err := goTest(t)
	if err != nil {
		const shown = 4000 // bytes of the end of the output
		return fmt.Errorf("the tests of %s fail without a mutant: %w\n%s", t.files, err, out[max(len(out)-shown, 0):])
	}
	return nil
}

// A fate is the result of the tests for a mutant.
type fate int

const (
	alive   fate = iota // all tests pass
	dead                // a test fails
	unbuilt             // the mutant does not compile
)

// runMutant runs the target's tests with the mutant.
func runMutant(t target, m mutant) (fate, error) {
	dir, err := os.MkdirTemp("", "mutant-")
	if err != nil {
		return alive, err
	}
	defer os.RemoveAll(dir)
	original, err := filepath.Abs(filepath.Join(tree, m.file))
	if err != nil {
		return alive, err
	}
	replacement, overlay := filepath.Join(dir, filepath.Base(m.file)), filepath.Join(dir, "overlay.json")
	list, err := json.Marshal(map[string]any{"Replace": map[string]string{original: replacement}})
	if err != nil {
		return alive, err
	}
	if err := os.WriteFile(replacement, m.text, 0o600); err != nil {
		return alive, err
	}
	if err := os.WriteFile(overlay, list, 0o600); err != nil {
		return alive, err
	}
	out, err := goTest(t, "-overlay", overlay)
	switch {
	case bytes.Contains(out, []byte("[build failed]")) || bytes.Contains(out, []byte("[setup failed]")):
		return unbuilt, nil
	case err != nil:
		return dead, nil
	}
	return alive, nil
}

// goTest runs the target's tests until one fails, and returns the output of the last go command.
func goTest(t target, args ...string) (out []byte, err error) {
	// See the Makefile for -parallel and -ldflags.
	args = append([]string{"test", "-vet=off", "-count=1", "-failfast", "-parallel", "6", "-ldflags=-w", "-timeout", timeout.String()}, args...)
	for _, packages := range t.tests {
		if out, err = goCommand(append(args, packages)...); err != nil {
			break
		}
	}
	return out, err
}

// goCommand runs a go command, and returns its output. After timeout, go test ends a test that
// hangs, and prints its name. If go test hangs too, it is ended a minute later.
func goCommand(args ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout+time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = tree
	cmd.WaitDelay = 10 * time.Second // programs that a test did not end could keep the output open
	return cmd.CombinedOutput()
}

// parseEquivalents returns the ids of the mutants in a text. The lines of the text have the form
//
//	file | line before | line after | why the behavior is the same
//
// A line that begins with # is a comment.
func parseEquivalents(text string) map[string]bool {
	ids := make(map[string]bool)
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		parts := strings.Split(line, " | ")
		if len(parts) != 4 {
			log.Fatalf("equivalent.txt has the line %q; want the form: file | before | after | reason", line)
		}
		ids[strings.Join(parts[:3], " | ")] = true
	}
	return ids
}
