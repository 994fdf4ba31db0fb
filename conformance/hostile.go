package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// processEnds is the expected code if a message ends the process. gRPC has no code of this number.
const processEnds = codes.Code(100)

// A hostileCase is a message that few clients send.
type hostileCase struct {
	name         string
	request      *rls.RateLimitRequest
	theirs, ours codes.Code // that envoyproxy/ratelimit and Penstock should return
}

func entries(pairs ...string) *ratelimitv3.RateLimitDescriptor {
	d := &ratelimitv3.RateLimitDescriptor{}
	for i := 0; i < len(pairs); i += 2 {
		d.Entries = append(d.Entries, &ratelimitv3.RateLimitDescriptor_Entry{Key: pairs[i], Value: pairs[i+1]})
	}
	return d
}

func withHits(d *ratelimitv3.RateLimitDescriptor, hits uint64) *ratelimitv3.RateLimitDescriptor {
	d.HitsAddend = wrapperspb.UInt64(hits)
	return d
}

func withUnit(d *ratelimitv3.RateLimitDescriptor, unit typev3.RateLimitUnit) *ratelimitv3.RateLimitDescriptor {
	d.Limit = &ratelimitv3.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: 5, Unit: unit}
	return d
}

func inDomain(domain string, descriptors ...*ratelimitv3.RateLimitDescriptor) *rls.RateLimitRequest {
	return &rls.RateLimitRequest{Domain: domain, Descriptors: descriptors}
}

func hostileCases() []hostileCase {
	many := func(n int) (all []*ratelimitv3.RateLimitDescriptor) {
		for i := range n {
			all = append(all, entries("k", fmt.Sprint(i)))
		}
		return all
	}
	deep := entries()
	for range 200 {
		deep.Entries = append(deep.Entries, &ratelimitv3.RateLimitDescriptor_Entry{Key: "k", Value: "v"})
	}
	return []hostileCase{
		{"an empty message", &rls.RateLimitRequest{}, codes.Unknown, codes.InvalidArgument},
		{"no domain", inDomain("", entries("k", "v")), codes.Unknown, codes.InvalidArgument},
		{"no descriptors", inDomain("d"), codes.Unknown, codes.InvalidArgument},
		{"an empty descriptor", inDomain("d", entries()), codes.OK, codes.OK},
		{"an empty entry", inDomain("d", entries("", "")), codes.OK, codes.OK},
		{"an override without unit", inDomain("d", withUnit(entries("k", "v"), 0)), processEnds, codes.InvalidArgument},
		{"an override with an unknown unit", inDomain("d", withUnit(entries("k", "v"), 99)), processEnds, codes.InvalidArgument},
		{"an override without unit in an unknown domain", inDomain("other", withUnit(entries("k", "v"), 0)), codes.OK, codes.OK},
		{"2^63 hits", inDomain("d", withHits(entries("k", "a"), 1<<63)), codes.Unknown, codes.InvalidArgument},
		{"2^64-1 hits", inDomain("d", withHits(entries("k", "b"), 1<<64-1)), codes.Unknown, codes.InvalidArgument},
		{"2^62 hits", inDomain("d", withHits(entries("k", "c"), 1<<62)), codes.OK, codes.InvalidArgument},
		{"2^63 hits for a descriptor without limit", inDomain("d", withHits(entries("none", "a"), 1<<63)), codes.OK, codes.OK},
		{"200 entries", inDomain("d", deep), codes.OK, codes.OK},
		{"64 descriptors", inDomain("d", many(64)...), codes.OK, codes.OK},
		{"1,000 descriptors", inDomain("d", many(1000)...), codes.OK, codes.InvalidArgument},
		{"a value of 10 KB", inDomain("d", entries("k", strings.Repeat("x", 10_000))), codes.OK, codes.OK},
		{"a value of 500 KB", inDomain("d", entries("k", strings.Repeat("x", 500_000))), codes.OK, codes.InvalidArgument},
		{"a value of 1 MB without a limit", inDomain("d", entries("none", strings.Repeat("x", 1<<20))), codes.OK, codes.ResourceExhausted},
		{"a value of 5 MB", inDomain("d", entries("k", strings.Repeat("x", 5<<20))), codes.ResourceExhausted, codes.ResourceExhausted},
		{"a value with zero bytes and newlines", inDomain("d", entries("k", "\x00\n|=~")), codes.OK, codes.OK},
	}
}

// withConfigs calls run with a configuration of one file.
func withConfigs(text string, run func(*startConfig) error) error {
	dir, err := os.MkdirTemp("", "conformance")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	configs := filepath.Join(dir, "config")
	if err := os.Mkdir(configs, 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(configs, "config.yaml"), []byte(text), 0o600); err != nil {
		return err
	}
	return run(&startConfig{dir: configs})
}

// hostile sends messages that few clients send to envoyproxy/ratelimit and to both gRPC servers of
// Penstock. Penstock must reject messages that it cannot count, and continue to serve.
func (p *program) hostile() error {
	return withConfigs(bodiesConfig, func(conf *startConfig) error {
		var services []*loneService
		defer func() {
			for _, s := range services {
				s.stop()
			}
		}()
		for _, server := range []string{"fast", "standard"} {
			s, err := p.startAlone(conf, "penstock-"+server, p.penstock("exact", server))
			if err != nil {
				return err
			}
			services = append(services, s)
		}
		var failed error
		var theirs *loneService
		for _, c := range hostileCases() {
			if theirs == nil || theirs.hasEnded() { // the last message ended its process
				var err error
				if theirs, err = p.startAlone(conf, "ratelimit", p.oracle.start); err != nil {
					return err
				}
				services = append(services, theirs)
			}
			failed = errors.Join(failed, theirs.check(c, c.theirs), services[0].check(c, c.ours), services[1].check(c, c.ours))
			fmt.Printf("  %-50s envoyproxy/ratelimit: %-18s penstock: %s\n", c.name, nameOf(c.theirs), nameOf(c.ours))
		}
		return failed
	})
}

// check sends a message, and returns an error if the answer is not the expected one.
func (s *service) check(c hostileCase, want codes.Code) error {
	got := s.respond(c.request).code()
	if want == processEnds && s.awaitEnd() || s.hasEnded() {
		got = processEnds
	}
	if got != want {
		return fmt.Errorf("%s: %s answered %s; want %s", c.name, s.name, nameOf(got), nameOf(want))
	}
	return nil
}

func nameOf(c codes.Code) string {
	if c == processEnds {
		return "the process ends"
	}
	return c.String()
}

// A loneService is a service with a Redis of its own.
type loneService struct {
	*service
	stop func()
}

func (p *program) startAlone(conf *startConfig, name string, start starter) (*loneService, error) {
	redis, err := launchRedis()
	if err != nil {
		return nil, err
	}
	s, err := start(name, conf, redis.Addr)
	if err != nil {
		redis.Close()
		return nil, err
	}
	return &loneService{s, func() {
		s.stop()
		redis.Close()
	}}, nil
}

// awaitEnd returns true if the process ends in time.
func (s *service) awaitEnd() bool {
	select {
	case <-s.ended:
		return true
	case <-time.After(answerTimeout):
		return false
	}
}

// tools runs the command line programs of envoyproxy/ratelimit: its client calls both services, and
// its checker reads the files in examples.
func (p *program) tools() error {
	return withConfigs(bodiesConfig, func(conf *startConfig) error {
		left, right, stop, err := startPair(conf, launchRedis, p.oracle.start, p.penstock("exact", "fast"))
		if err != nil {
			return err
		}
		defer stop()
		for n, args := range [][]string{
			{"-domain", "d", "-descriptors", "k=v"}, {"-domain", "d", "-descriptors", "k=v", "-descriptors", "k=v,x=y"}, {"-domain", "d", "-descriptors", "k=v"},
			{"-domain", "d", "-descriptors", "k=v"}, {"-domain", "d", "-descriptors", "full=x"}, {"-domain", "other", "-descriptors", "k=v"},
		} {
			var lines [2]string
			for i, a := range []responder{left, right} {
				if lines[i], err = p.runClient(append([]string{"-dial_string", a.(*service).grpc}, args...)); err != nil {
					return err
				}
			}
			if lines[0] != lines[1] {
				return fmt.Errorf("client_cmd, call %d: envoyproxy/ratelimit answered %s, penstock %s", n, lines[0], lines[1])
			}
			fmt.Printf("  client_cmd %s: both services answered %s\n", strings.Join(args, " "), lines[0])
		}
		return p.checkExamples()
	})
}

var resetSeconds = regexp.MustCompile(`duration_until_reset: ?\{[^}]*\}`)

// runClient runs the client and returns the line with the response.
func (p *program) runClient(args []string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), answerTimeout)
	defer cancel()
	out, err := exec.CommandContext(ctx, filepath.Join(p.oracle.dir, "client_cmd"), args...).CombinedOutput()
	text := resetSeconds.ReplaceAllString(string(out), "duration_until_reset:{…}") // the two calls may be in different seconds
	lines := strings.Split(strings.TrimSpace(text), "\n")
	if err != nil {
		return "", fmt.Errorf("client_cmd: %w\n%s", err, out)
	}
	return lines[len(lines)-1], nil
}

// checkExamples checks the configurations of examples/envoy.
func (p *program) checkExamples() error {
	dir := filepath.Join("..", "examples", "envoy")
	out, err := exec.Command(filepath.Join(p.oracle.dir, "config_check_cmd"), "-config_dir", dir).CombinedOutput()
	if err != nil {
		return fmt.Errorf("config_check_cmd rejects %s: %w\n%s", dir, err, out)
	}
	fmt.Printf("  config_check_cmd accepts %s\n", dir)
	return nil
}
