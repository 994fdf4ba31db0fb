// The conformance program sends the same random requests to Penstock and to envoyproxy/ratelimit,
// with the same configuration files and a real Redis each. It compares every field of every
// response. It counts differences that docs/envoy-ratelimit.md describes, and fails on any other
// difference. It builds envoyproxy/ratelimit from its Go module. It needs redis-server in the PATH,
// or PENSTOCK_TEST_SERVER.
//
//	go run . [-only SECTION,SECTION] [-requests N] [-seed N] [-domain N]
//
// The sections:
//
//   - self: envoyproxy/ratelimit and itself, which shows that the comparison is sound
//   - self-clocked: the same, with a clock that is set before each request, often to the end of a
//     window
//   - exact: penstock serve in mode exact
//   - exact-standard: mode exact with grpc-go's server instead of the fast one
//   - exact-clocked: mode exact with a clock that is set
//   - atomic: penstock serve in its default mode, whose differences are predicted
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

	"github.com/penstock/penstock/internal/redistest"
)

func main() {
	var p program
	only := flag.String("only", "", "which sections to run; all by default")
	flag.IntVar(&p.requests, "requests", 50_000, "how many requests a section compares")
	flag.Uint64Var(&p.seed, "seed", rand.Uint64(), "the seed of configurations and requests")
	flag.IntVar(&p.domain, "domain", -1, "the number of the only configuration to run")
	flag.Parse()
	if err := p.run(*only); err != nil {
		fmt.Fprintln(os.Stderr, "conformance:", err)
		os.Exit(1)
	}
}

// A program has the flags and the paths of the built programs.
type program struct {
	requests     int
	seed         uint64
	domain       int // the number of the only configuration to run; -1: all
	oracle       *oracle
	penstockFile string // the program penstock; "": not built yet
}

// A section is a part of the comparison.
type section struct {
	name string
	run  func(*program) error
}

var sections = []section{
	{"self", (*program).self},
	{"self-clocked", (*program).selfClocked},
	{"exact", (*program).exact},
	{"exact-standard", (*program).exactStandard},
	{"exact-clocked", (*program).exactClocked},
	{"atomic", (*program).atomic},
	{"json", (*program).json},
	{"hostile", (*program).hostile},
	{"tools", (*program).tools},
	{"loader", (*program).loader},
}

func (p *program) run(only string) error {
	chosen := sections
	if only != "" {
		chosen = nil
		for name := range strings.SplitSeq(only, ",") {
			i := slices.IndexFunc(sections, func(s section) bool { return s.name == name })
			if i < 0 {
				return fmt.Errorf("unknown section %q", name)
			}
			chosen = append(chosen, sections[i])
		}
	}
	var err error
	if p.oracle, err = buildOracle(filepath.Join("testdata", "ratelimit"), filepath.Join("..", "bin", "conformance")); err != nil {
		return fmt.Errorf("get envoyproxy/ratelimit, so nothing is compared: %w", err)
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

// self compares envoyproxy/ratelimit with itself.
func (p *program) self() error {
	return p.compare(&comparison{}, p.oracle.start)
}

// selfClocked is self with a clock that is set before each request.
func (p *program) selfClocked() error {
	return p.compareClocked(&comparison{}, p.oracle.start)
}

// A starter starts a service on a Redis, which has the address redis. The name is for the log.
type starter func(name string, conf *startConfig, redis string) (*service, error)

// compare compares envoyproxy/ratelimit with another service, by the system's clock.
func (p *program) compare(c *comparison, other starter) error {
	c.clock = systemClock{}
	c.start = func(conf *startConfig) (responder, responder, func(), error) {
		return startPair(conf, launchRedis, p.oracle.start, other)
	}
	return p.runAndPrint(c)
}

// compareClocked compares like compare, with a clock that is set before each request.
func (p *program) compareClocked(c *comparison, other starter) error {
	dir, err := os.MkdirTemp("", "conformance")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	clock := &setClock{file: filepath.Join(dir, "clock")}
	c.clock = clock
	p.oracle.clock = clock.file
	defer func() { p.oracle.clock = "" }()
	launch := func() (*redistest.Server, error) {
		server, serverClock, err := redistest.LaunchClocked()
		if err != nil {
			return nil, err
		}
		clock.redis = append(clock.redis, serverClock)
		return server, clock.set(0)
	}
	c.start = func(conf *startConfig) (responder, responder, func(), error) {
		clock.redis, clock.second = nil, time.Now().Unix()
		return startPair(conf, launch, p.oracle.start, other)
	}
	return p.runAndPrint(c)
}

func launchRedis() (*redistest.Server, error) { return redistest.Launch() }

// startPair starts two services, each with a Redis of its own.
func startPair(conf *startConfig, launch func() (*redistest.Server, error), left, right starter) (responder, responder, func(), error) {
	var stops []func()
	stop := func() {
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

// runAndPrint runs a comparison and prints its counts.
func (p *program) runAndPrint(c *comparison) error {
	c.seed, c.only, c.out = p.seed, p.domain, os.Stdout
	err := c.run(p.requests)
	fmt.Printf("%vdescriptors and requests of each kind:\n%v", &c.tally, c.kindCounts.withOrder(kinds))
	if err == nil && c.mismatches > 0 {
		err = fmt.Errorf("%d mismatches; replay with -seed %d", c.mismatches, c.seed)
	}
	if err == nil && p.domain < 0 && c.tally.counts["compared"] < p.requests {
		err = fmt.Errorf("compared %d requests of %d", c.tally.counts["compared"], p.requests)
	}
	if missing := c.missingKinds(); err == nil && p.domain < 0 && len(missing) > 0 {
		err = fmt.Errorf("no request was of the kinds: %s", strings.Join(missing, ", "))
	}
	return err
}
