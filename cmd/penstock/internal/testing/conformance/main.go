// The conformance program sends the same random requests to Penstock and to envoyproxy/ratelimit,
// with the same configuration files and a real Redis each. It compares every field of every
// response. It counts differences that docs/envoy-ratelimit.md describes, and fails on any other
// difference. It builds envoyproxy/ratelimit from its Go module. It needs redis-server in the PATH,
// or PENSTOCK_TEST_SERVER.
//
//	go run . [-only SECTION,SECTION] [-requests N] [-seed N] [-domain N] [-source DIR]
//
// The sections:
//
//   - self: envoyproxy/ratelimit and itself, which shows that the comparison is sound
//   - self-clocked: the same, with a clock that the program sets before each request, often to the
//     end of a window
//   - exact: penstock serve in mode exact
//   - exact-clocked: mode exact with a clock that the program sets
//   - atomic: penstock serve in its default mode, atomic; a model predicts its differences
//   - json: POST /json in mode exact
//   - hostile: messages that few clients send. Some end the process of envoyproxy/ratelimit
//   - tools: the client and the configuration checker of envoyproxy/ratelimit
//   - loader: which configuration files each service loads, with which limits
package main

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/penstock/penstock/internal/testing/redistest"
)

// defaultRequests is how many requests a section compares. Fewer need not be of every kind.
const defaultRequests = 50_000

func main() {
	var p program
	only := flag.String("only", "", "run only these `sections`, separated by commas")
	flag.StringVar(&p.checkout, "source", "", "compare with the `folder`, which has the source of envoyproxy/ratelimit, instead of the required version")
	flag.IntVar(&p.requests, "requests", defaultRequests, "how many requests a section compares")
	flag.Uint64Var(&p.seed, "seed", rand.Uint64(), "the seed of the random configurations and requests")
	flag.IntVar(&p.onlyDomain, "domain", -1, "compare only the configuration, or the file of the section loader, with this `number`; -1 compares all")
	flag.Parse()
	if err := p.run(*only); err != nil {
		fmt.Fprintln(os.Stderr, "conformance:", err)
		os.Exit(1)
	}
}

// A program has the flags and the paths of the built programs.
type program struct {
	requests     int // how many requests a section compares
	seed         uint64
	checkout     string // the folder with the source of envoyproxy/ratelimit; "": the required version
	onlyDomain   int    // the number of the only configuration, or file of the section loader, to compare; -1: all
	oracle       *oracle
	penstockFile string // the program penstock; "": not built yet
}

type section struct {
	name string
	run  func(*program) error
}

var sections = []section{
	{"self", func(p *program) error { return p.compare(&comparison{}, p.oracle.start) }},
	{"self-clocked", func(p *program) error { return p.compareClocked(&comparison{}, p.oracle.start) }},
	{"exact", func(p *program) error {
		return p.compare(&comparison{rightRules: exactRules}, p.penstockStarter("exact"))
	}},
	{"exact-clocked", func(p *program) error {
		return p.compareClocked(&comparison{rightRules: exactRules, hasOwnClock: true}, p.penstockStarter("exact"))
	}},
	{"atomic", func(p *program) error {
		return p.compare(&comparison{rightRules: atomicRules}, p.penstockStarter("atomic"))
	}},
	{"json", (*program).compareJSON},
	{"hostile", (*program).compareHostile},
	{"tools", (*program).runTools},
	{"loader", (*program).compareLoaders},
}

// run runs the sections of a list that is separated by commas. "" runs all.
func (p *program) run(only string) error {
	chosen := sections
	if only != "" {
		chosen = nil
		for name := range strings.SplitSeq(only, ",") {
			i := slices.IndexFunc(sections, func(s section) bool { return s.name == name })
			if i < 0 {
				return fmt.Errorf("unknown section %q; the program's documentation lists the sections", name)
			}
			chosen = append(chosen, sections[i])
		}
	}
	var err error
	if p.oracle, err = buildOracle(filepath.Join("testdata", "ratelimit"), p.checkout, filepath.Join("..", "..", "..", "..", "..", "bin", "conformance")); err != nil {
		return fmt.Errorf("nothing is compared: build envoyproxy/ratelimit: %w", err)
	}
	fmt.Printf("%s %s, seed %d\n", modulePath, p.oracle.version, p.seed)
	var failed error
	for _, s := range chosen {
		fmt.Printf("\n%s\n", s.name)
		if err := s.run(p); err != nil {
			failed = errors.Join(failed, fmt.Errorf("%s: %w", s.name, err))
		}
	}
	return failed
}

// A starter starts a service whose Redis has the address redis. The name is for logs and errors.
type starter func(name string, conf *startConfig, redis string) (*service, error)

// compare compares envoyproxy/ratelimit with another service. Both use the system's clock.
func (p *program) compare(c *comparison, other starter) error {
	c.clock = systemClock{}
	c.start = func(conf *startConfig) (responder, responder, func(), error) {
		return startPair(conf, launchRedis, p.oracle.start, other)
	}
	return p.runAndPrint(c)
}

// compareClocked is compare with a clock that is set before each request.
func (p *program) compareClocked(c *comparison, other starter) error {
	dir, err := os.MkdirTemp("", "conformance")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	clock := &manualClock{file: filepath.Join(dir, "clock")}
	c.clock = clock
	p.oracle.clockFile = clock.file
	defer func() { p.oracle.clockFile = "" }()
	launch := func() (*redistest.Server, error) {
		server, serverClock, err := redistest.LaunchClocked()
		if err != nil {
			return nil, err
		}
		clock.redis = append(clock.redis, serverClock)
		if err := clock.set(0); err != nil {
			server.Close()
			return nil, err
		}
		return server, nil
	}
	c.start = func(conf *startConfig) (responder, responder, func(), error) {
		clock.redis, clock.second = nil, time.Now().Unix()
		return startPair(conf, launch, p.oracle.start, other)
	}
	return p.runAndPrint(c)
}

func launchRedis() (*redistest.Server, error) { return redistest.Launch() }

// startPair starts two services, each with a Redis of its own that launch starts.
func startPair(conf *startConfig, launch func() (*redistest.Server, error), left, right starter) (_, _ responder, stop func(), _ error) {
	var stops []func()
	stop = func() {
		for _, f := range slices.Backward(stops) {
			f()
		}
	}
	start := func(name string, run starter) (*service, error) {
		redis, err := launch()
		if err != nil {
			return nil, err
		}
		stops = append(stops, redis.Close)
		s, err := run(name, conf, redis.Addr)
		if err == nil {
			stops = append(stops, s.stop)
		}
		return s, err
	}
	leftService, err := start("left", left)
	if err != nil {
		stop()
		return nil, nil, nil, err
	}
	rightService, err := start("right", right)
	if err != nil {
		stop()
		return nil, nil, nil, err
	}
	return leftService, rightService, stop, nil
}

func (p *program) runAndPrint(c *comparison) error {
	c.seed, c.onlyDomain, c.out = p.seed, p.onlyDomain, os.Stdout
	err := c.run(p.requests)
	fmt.Printf("%vdescriptors and requests of each kind:\n%v", &c.tally, c.kindCounts.withOrder(kinds))
	if err == nil && c.mismatches > 0 {
		err = fmt.Errorf("%d mismatches; replay with -seed %d", c.mismatches, c.seed)
	}
	areAllCompared := p.onlyDomain < 0
	if err == nil && areAllCompared && c.tally.counts["compared"] < p.requests {
		err = fmt.Errorf("compared only %d requests; want %d", c.tally.counts["compared"], p.requests)
	}
	if missing := c.missingKinds(); err == nil && areAllCompared && p.requests >= defaultRequests && len(missing) > 0 {
		err = fmt.Errorf("no request was of the kinds: %s", strings.Join(missing, ", "))
	}
	return err
}
