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

type hostileCase struct {
	name         string
	request      *rls.RateLimitRequest
	theirs, ours codes.Code // that envoyproxy/ratelimit and Penstock should return
}

// descriptorOf returns a descriptor with entries: a key, its value, and so on.
func descriptorOf(pairs ...string) *ratelimitv3.RateLimitDescriptor {
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
	manyDescriptors := func(n int) (all []*ratelimitv3.RateLimitDescriptor) {
		for i := range n {
			all = append(all, descriptorOf("k", fmt.Sprint(i)))
		}
		return all
	}
	deep := descriptorOf()
	for range 200 {
		deep.Entries = append(deep.Entries, &ratelimitv3.RateLimitDescriptor_Entry{Key: "k", Value: "v"})
	}
	return []hostileCase{
		{name: "an empty message", request: &rls.RateLimitRequest{}, theirs: codes.Unknown, ours: codes.InvalidArgument},
		{name: "no domain", request: inDomain("", descriptorOf("k", "v")), theirs: codes.Unknown, ours: codes.InvalidArgument},
		{name: "no descriptors", request: inDomain("d"), theirs: codes.Unknown, ours: codes.InvalidArgument},
		{name: "an empty descriptor", request: inDomain("d", descriptorOf()), theirs: codes.OK, ours: codes.OK},
		{name: "an empty entry", request: inDomain("d", descriptorOf("", "")), theirs: codes.OK, ours: codes.OK},
		{name: "an override without unit", request: inDomain("d", withUnit(descriptorOf("k", "v"), 0)), theirs: processEnds, ours: codes.InvalidArgument},
		{name: "an override with an unknown unit", request: inDomain("d", withUnit(descriptorOf("k", "v"), 99)), theirs: processEnds, ours: codes.InvalidArgument},
		{name: "an override without unit in an unknown domain", request: inDomain("other", withUnit(descriptorOf("k", "v"), 0)), theirs: codes.OK, ours: codes.OK},
		{name: "2^63 hits", request: inDomain("d", withHits(descriptorOf("k", "a"), 1<<63)), theirs: codes.Unknown, ours: codes.InvalidArgument},
		{name: "2^64-1 hits", request: inDomain("d", withHits(descriptorOf("k", "b"), 1<<64-1)), theirs: codes.Unknown, ours: codes.InvalidArgument},
		{name: "2^62 hits", request: inDomain("d", withHits(descriptorOf("k", "c"), 1<<62)), theirs: codes.OK, ours: codes.InvalidArgument},
		{name: "2^63 hits for a descriptor without limit", request: inDomain("d", withHits(descriptorOf("none", "a"), 1<<63)), theirs: codes.OK, ours: codes.OK},
		{name: "200 entries", request: inDomain("d", deep), theirs: codes.OK, ours: codes.OK},
		{name: "64 descriptors", request: inDomain("d", manyDescriptors(64)...), theirs: codes.OK, ours: codes.OK},
		{name: "1,000 descriptors", request: inDomain("d", manyDescriptors(1000)...), theirs: codes.OK, ours: codes.InvalidArgument},
		{name: "a value of 10 KB", request: inDomain("d", descriptorOf("k", strings.Repeat("x", 10_000))), theirs: codes.OK, ours: codes.OK},
		{name: "a value of 500 KB", request: inDomain("d", descriptorOf("k", strings.Repeat("x", 500_000))), theirs: codes.OK, ours: codes.InvalidArgument},
		{name: "a value of 1 MB without a limit", request: inDomain("d", descriptorOf("none", strings.Repeat("x", 1<<20))), theirs: codes.OK, ours: codes.ResourceExhausted},
		{name: "a value of 5 MB", request: inDomain("d", descriptorOf("k", strings.Repeat("x", 5<<20))), theirs: codes.ResourceExhausted, ours: codes.ResourceExhausted},
		{name: "a value with zero bytes and newlines", request: inDomain("d", descriptorOf("k", "\x00\n|=~")), theirs: codes.OK, ours: codes.OK},
	}
}

// withConfigs calls run with a configuration of one file, which has this text.
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

// compareHostile sends the hostile messages to envoyproxy/ratelimit and to Penstock. Penstock must
// reject messages that it cannot count, and continue to serve.
func (p *program) compareHostile() error {
	return withConfigs(bodiesConfig, func(conf *startConfig) error {
		var started []*loneService
		defer func() {
			for _, s := range started {
				s.stop()
			}
		}()
		ours, err := p.startAlone(conf, "penstock", p.penstockStarter("exact"))
		if err != nil {
			return err
		}
		started = append(started, ours)
		var failed error
		var theirs *loneService
		for _, c := range hostileCases() {
			if theirs == nil || theirs.hasEnded() { // a message may have ended the process
				if theirs, err = p.startAlone(conf, "ratelimit", p.oracle.start); err != nil {
					return err
				}
				started = append(started, theirs)
			}
			failed = errors.Join(failed, theirs.check(c, c.theirs), ours.check(c, c.ours))
			fmt.Printf("  %-50s envoyproxy/ratelimit: %-18s penstock: %s\n", c.name, nameOf(c.theirs), nameOf(c.ours))
		}
		return failed
	})
}

// check sends a message, and returns an error if the service does not return the code want.
func (s *service) check(c hostileCase, want codes.Code) error {
	got := s.respond(c.request).code()
	if want == processEnds {
		s.awaitEnd()
	}
	if s.hasEnded() {
		got = processEnds
	}
	if got != want {
		return fmt.Errorf("%s: the result of %s is %q; want %q", c.name, s.name, nameOf(got), nameOf(want))
	}
	return nil
}

func nameOf(c codes.Code) string {
	if c == processEnds {
		return "the process ends"
	}
	return c.String()
}

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

// awaitEnd waits until the process ends, for answerTimeout at most.
func (s *service) awaitEnd() {
	select {
	case <-s.ended:
	case <-time.After(answerTimeout):
	}
}

// runTools runs the command line programs of envoyproxy/ratelimit: its client calls both services,
// and its checker reads the files in examples/envoy.
func (p *program) runTools() error {
	return withConfigs(bodiesConfig, func(conf *startConfig) error {
		left, right, stop, err := startPair(conf, launchRedis, p.oracle.start, p.penstockStarter("exact"))
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
				return fmt.Errorf("client_cmd, call %d: envoyproxy/ratelimit returned %q, and penstock %q; want equal responses", n, lines[0], lines[1])
			}
			fmt.Printf("  client_cmd %s: both services returned %s\n", strings.Join(args, " "), lines[0])
		}
		return p.checkExamples()
	})
}

var resetDuration = regexp.MustCompile(`duration_until_reset: ?\{[^}]*\}`)

func (p *program) runClient(args []string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), answerTimeout)
	defer cancel()
	out, err := exec.CommandContext(ctx, filepath.Join(p.oracle.dir, "client_cmd"), args...).CombinedOutput()
	text := resetDuration.ReplaceAllString(string(out), "duration_until_reset:{…}") // the two calls may be in different seconds
	lines := strings.Split(strings.TrimSpace(text), "\n")
	if err != nil {
		return "", fmt.Errorf("client_cmd: %w\n%s", err, out)
	}
	return lines[len(lines)-1], nil
}

func (p *program) checkExamples() error {
	dir := filepath.Join("..", "..", "..", "..", "..", "examples", "envoy")
	out, err := exec.Command(filepath.Join(p.oracle.dir, "config_check_cmd"), "-config_dir", dir).CombinedOutput()
	if err != nil {
		return fmt.Errorf("config_check_cmd rejects %s: %w\n%s", dir, err, out)
	}
	fmt.Printf("  config_check_cmd accepts %s\n", dir)
	return nil
}
