package main

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	rlscommon "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/proto"

	"github.com/penstock/penstock/internal/redistest"
)

// The services section compares the services that callers of other programs ask: Envoy's rate limit
// service, the JSON API and CL.THROTTLE. Each server is a process with a core of its own. Its Redis
// and the load have another one.

const (
	serviceRounds  = 9
	serviceWindow  = 400 * time.Millisecond
	serviceStreams = 64 // calls that are open at once
)

// A serving is a service under measurement.
type serving struct {
	name    string
	command *exec.Cmd
	address string
	stderr  bytes.Buffer
	loads   []loader

	rates, cpu, p50, p99 []float64 // of each window; cpu is µs per decision
}

// A loader makes calls on a connection. run makes them until a time, and returns when the last is
// answered.
type loader interface {
	run(until time.Time) error
	took() []float64 // µs of each call of the last run
}

func servicesSection(r *report) error {
	dir, err := os.MkdirTemp("", "penstock-bench")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	b := &servicesBench{dir: dir}
	defer b.stop()
	if b.self, err = os.Executable(); err != nil {
		return err
	}
	if b.redis, err = redistest.Launch(); err != nil {
		return err
	}
	defer b.redis.Close()
	if runtime.NumCPU() > 1 {
		defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
		pin(os.Getpid(), 1)
		pin(b.redis.PID(), 1)
	} else {
		fmt.Println("There is one core only, so the load takes time of the servers.")
	}
	return b.rateLimitService(r)
}

// A servicesBench is what the parts of the section share.
type servicesBench struct {
	dir, self string
	redis     *redistest.Server
	all       []*serving
}

func (b *servicesBench) stop() {
	for _, s := range b.all {
		s.stop()
	}
}

// start starts a server with one core, and waits until it listens. The environment can have
// {address} and {port}, which stand for its own.
func (b *servicesBench) start(name string, environment []string, program string, args ...string) (*serving, error) {
	address, err := freeAddress()
	if err != nil {
		return nil, err
	}
	s := &serving{name: name, address: address}
	for i := range args {
		args[i] = strings.ReplaceAll(args[i], "{address}", address)
	}
	s.command = exec.Command(program, args...)
	s.command.Dir = b.dir
	s.command.Env = append(os.Environ(), "GOMAXPROCS=1", "PENSTOCK_LISTEN="+address)
	for _, e := range environment {
		_, port, _ := net.SplitHostPort(address)
		s.command.Env = append(s.command.Env, strings.ReplaceAll(strings.ReplaceAll(e, "{address}", address), "{port}", port))
	}
	s.command.Stderr = &s.stderr
	s.command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := s.command.Start(); err != nil {
		return nil, err
	}
	b.all = append(b.all, s)
	for try := 0; ; try++ {
		conn, err := net.Dial("tcp", address)
		if err == nil {
			conn.Close()
			if runtime.NumCPU() > 1 {
				pin(s.command.Process.Pid, 0)
			}
			return s, nil
		}
		if try == 400 {
			return nil, fmt.Errorf("%s: %w\n%s", name, err, &s.stderr)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

func (s *serving) stop() {
	s.command.Process.Kill()
	s.command.Wait()
}

func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	return l.Addr().String(), nil
}

// measure measures the services in turn.
func measure(services []*serving) error {
	for round := range serviceRounds + 1 {
		for _, s := range services {
			if err := s.run(); err != nil {
				return fmt.Errorf("%s: %w\n%s", s.name, err, &s.stderr)
			}
			if round == 0 { // connects, and loads scripts
				s.rates, s.cpu, s.p50, s.p99 = nil, nil, nil, nil
			}
		}
	}
	return nil
}

// run makes calls for one window.
func (s *serving) run() error {
	before, err := cpuTime(s.command.Process.Pid)
	if err != nil {
		return err
	}
	var (
		wait  sync.WaitGroup
		errs  = make([]error, len(s.loads))
		begin = time.Now()
	)
	for i, l := range s.loads {
		wait.Go(func() { errs[i] = l.run(begin.Add(serviceWindow)) })
	}
	wait.Wait()
	elapsed := time.Since(begin)
	if err := errors.Join(errs...); err != nil {
		return err
	}
	after, err := cpuTime(s.command.Process.Pid)
	if err != nil {
		return err
	}
	var took []float64
	for _, l := range s.loads {
		took = append(took, l.took()...)
	}
	slices.Sort(took)
	n := float64(len(took))
	s.rates, s.cpu = append(s.rates, n/elapsed.Seconds()), append(s.cpu, float64((after-before).Nanoseconds())/1e3/n)
	s.p50, s.p99 = append(s.p50, took[len(took)/2]), append(s.p99, took[len(took)*99/100])
	return nil
}

// cpuTime is the processor time of a process, of all its threads.
func cpuTime(pid int) (total time.Duration, err error) {
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	if err != nil || len(tasks) == 0 {
		return 0, fmt.Errorf("process %d has ended, or this is not Linux", pid)
	}
	for _, task := range tasks {
		text, err := os.ReadFile(task)
		if err != nil {
			continue // it has ended
		}
		ns, err := strconv.ParseInt(strings.Fields(string(text))[0], 10, 64)
		if err != nil {
			return 0, err
		}
		total += time.Duration(ns)
	}
	return total, nil
}

// printServices prints a table. The first service is what the others are compared with.
func printServices(r *report, services []*serving) {
	r.row("", "per second", "/ first", "CPU µs", "p50 µs", "p99 µs")
	for _, s := range services {
		rates := slices.Sorted(slices.Values(s.rates))
		low := func(list []float64) float64 { return slices.Sorted(slices.Values(list))[len(list)/5] }
		r.row(s.name, strconv.Itoa(int(rates[len(rates)*4/5])), number(median(ratios(s.rates, services[0].rates))), number(low(s.cpu)),
			strconv.Itoa(int(low(s.p50))), strconv.Itoa(int(low(s.p99))))
	}
}

// rateLimits are the limits of the services, in the format of envoyproxy/ratelimit: one that admits
// all, and one that is used up.
const rateLimits = `
domain: bench
descriptors:
  - key: client
    rate_limit: {unit: hour, requests_per_unit: 1000000}
  - key: busy
    rate_limit: {unit: hour, requests_per_unit: 10}
`

func rlsRequest(key, value string) ([]byte, error) {
	return proto.Marshal(&rls.RateLimitRequest{Domain: "bench", Descriptors: []*rlscommon.RateLimitDescriptor{
		{Entries: []*rlscommon.RateLimitDescriptor_Entry{{Key: key, Value: value}}},
	}})
}

func (b *servicesBench) rateLimitService(r *report) error {
	configs := filepath.Join(b.dir, "config")
	if err := os.MkdirAll(configs, 0o700); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(configs, "bench.yaml"), []byte(rateLimits), 0o600); err != nil {
		return err
	}
	peer, err := b.envoyRateLimit(configs)
	if err != nil {
		return err
	}
	bare, err := b.start("constant handler, grpc-go", nil, b.self, "-bare", "grpc-go")
	if err != nil {
		return err
	}
	fast, err := b.start("constant handler, fastgrpc", nil, b.self, "-bare", "fastgrpc")
	if err != nil {
		return err
	}
	services := []*serving{peer, bare, fast}
	const zeros = "000000"
	message, err := rlsRequest("client", zeros)
	if err != nil {
		return err
	}
	for _, s := range services {
		l, err := dialH2(s.address, rlsMethod, message, bytes.Index(message, []byte(zeros)), serviceStreams)
		if err != nil {
			return err
		}
		s.loads = []loader{l}
	}
	if err := measure(services); err != nil {
		return err
	}
	r.title("RLS: ShouldRateLimit of 100,000 keys, one connection with %d streams, one core (80th percentile of %d windows; ratio: median of windows side by side)", serviceStreams, serviceRounds)
	printServices(r, services)
	return nil
}

// envoyRateLimit builds and starts envoyproxy/ratelimit. Its version is that of the conformance
// program.
func (b *servicesBench) envoyRateLimit(configs string) (*serving, error) {
	program := filepath.Join(b.dir, "ratelimit")
	build := exec.Command("go", "build", "-o", program, "github.com/envoyproxy/ratelimit/src/service_cmd")
	build.Dir, build.Stderr = filepath.Join("..", "conformance", "testdata", "ratelimit"), os.Stderr
	build.Env = append(os.Environ(), "GOWORK=off")
	if err := build.Run(); err != nil {
		return nil, fmt.Errorf("build envoyproxy/ratelimit: %w", err)
	}
	var ports []string
	for range 2 {
		address, err := freeAddress()
		if err != nil {
			return nil, err
		}
		_, port, _ := net.SplitHostPort(address)
		ports = append(ports, port)
	}
	return b.start("envoyproxy/ratelimit", []string{
		"GRPC_HOST=127.0.0.1", "GRPC_PORT={port}", "HOST=127.0.0.1", "PORT=" + ports[0], "DEBUG_HOST=127.0.0.1", "DEBUG_PORT=" + ports[1],
		"DISABLE_STATS=true", "USE_STATSD=false", "LOG_LEVEL=error",
		"RUNTIME_ROOT=" + filepath.Dir(configs), "RUNTIME_SUBDIRECTORY=", "RUNTIME_APPDIRECTORY=" + filepath.Base(configs), "RUNTIME_WATCH_ROOT=false",
		"REDIS_SOCKET_TYPE=tcp", "REDIS_URL=" + b.redis.Addr,
	}, program)
}
