package main

import (
	"bufio"
	"bytes"
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

	"github.com/penstock/penstock/internal/testing/redistest"
)

// The services section compares rate limit services for other programs: Envoy's rate limit service,
// the JSON API and CL.THROTTLE. Each server is a process on serverCore, and only one is measured at
// a time. Redis and the load share loadCore.

const (
	serviceRounds  = 9 // windows of each service
	serviceWindow  = 400 * time.Millisecond
	serviceStreams = 64 // calls that are open at the same time

	serverCore = 0 // of the servers
	loadCore   = 1 // of Redis and of this process, which makes the load
)

// A measuredService is a service whose speed is measured.
type measuredService struct {
	name    string
	command *exec.Cmd
	address string
	stderr  bytes.Buffer
	loads   []loader

	// The results, with an item for each window.
	rates    []float64 // calls per second
	cpu      []float64 // µs of CPU time per call
	p50, p99 []float64 // µs per call
}

// A loader makes calls on a connection. run starts calls until the given time, and returns after
// the last response.
type loader interface {
	run(until time.Time) error
	durations() []float64 // µs of each call of the last run
}

func servicesSection(r *report) error {
	b, err := newServicesBench()
	if err != nil {
		return err
	}
	defer b.end()
	fmt.Println("limitador is not measured: its server is not in the registry of Rust packages.")
	for _, part := range []func(*report) error{b.measureRateLimitService, b.measureJSONAPI, b.measureThrottle} {
		if err := part(r); err != nil {
			return err
		}
	}
	return nil
}

// A servicesBench has the state that the parts of the section share.
type servicesBench struct {
	dir     string // a temporary directory
	procs   int    // GOMAXPROCS before
	redis   *redistest.Server
	started []*measuredService
}

// newServicesBench starts a Redis, and pins it and this process to loadCore. The caller must call
// end, after which this process is still pinned.
func newServicesBench() (b *servicesBench, err error) {
	b = &servicesBench{procs: runtime.GOMAXPROCS(0)}
	defer func() {
		if err != nil {
			b.end()
		}
	}()
	if b.dir, err = os.MkdirTemp("", "penstock-bench"); err != nil {
		return nil, err
	}
	if b.redis, err = redistest.Launch(); err != nil {
		return nil, err
	}
	if runtime.NumCPU() > 1 {
		runtime.GOMAXPROCS(1)
		pin(os.Getpid(), loadCore)
		pin(b.redis.PID(), loadCore)
	} else {
		fmt.Println("There is only one core, so the load slows the servers down.")
	}
	return b, nil
}

// end stops all services and the Redis.
func (b *servicesBench) end() {
	for _, s := range b.started {
		s.stop()
	}
	if b.redis != nil {
		b.redis.Close()
	}
	os.RemoveAll(b.dir)
	unpin(os.Getpid())
	runtime.GOMAXPROCS(b.procs)
}

// start starts a server on serverCore, and waits until it listens. In args it replaces {address}
// and {port} by the address and the port of the server, and {port} also in environment.
func (b *servicesBench) start(name string, environment []string, program string, args ...string) (*measuredService, error) {
	address, err := freeAddress()
	if err != nil {
		return nil, err
	}
	s := &measuredService{name: name, address: address}
	for i := range args {
		args[i] = strings.ReplaceAll(strings.ReplaceAll(args[i], "{address}", address), "{port}", portOf(address))
	}
	s.command = exec.Command(program, args...)
	s.command.Dir = b.dir
	s.command.Env = append(os.Environ(), "GOMAXPROCS=1", "PENSTOCK_LISTEN="+address)
	for _, e := range environment {
		s.command.Env = append(s.command.Env, strings.ReplaceAll(e, "{port}", portOf(address)))
	}
	s.command.Stderr = &s.stderr
	s.command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := s.command.Start(); err != nil {
		return nil, err
	}
	b.started = append(b.started, s)
	for try := 0; ; try++ {
		conn, err := net.Dial("tcp", address)
		if err == nil {
			conn.Close()
			if runtime.NumCPU() > 1 {
				pin(s.command.Process.Pid, serverCore)
			}
			return s, nil
		}
		const maxTries = 400 // with pauses of 50 ms: for 20 s
		if try == maxTries {
			return nil, fmt.Errorf("%s does not listen: %w\n%s", name, err, &s.stderr)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

func (s *measuredService) stop() {
	s.command.Process.Kill()
	s.command.Wait()
}

// freeAddress returns an address of this machine with a port that no process uses.
func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	return l.Addr().String(), nil
}

func portOf(address string) string {
	_, port, _ := net.SplitHostPort(address)
	return port
}

// measure measures the services in turn, window by window.
func measure(services []*measuredService) error {
	for round := range serviceRounds + 1 {
		for _, s := range services {
			if err := s.run(); err != nil {
				return fmt.Errorf("%s: %w\n%s", s.name, err, &s.stderr)
			}
			if round == 0 { // the first round opens connections and loads scripts
				s.rates, s.cpu, s.p50, s.p99 = nil, nil, nil, nil
			}
		}
	}
	return nil
}

// run makes calls for one window.
func (s *measuredService) run() error {
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
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	after, err := cpuTime(s.command.Process.Pid)
	if err != nil {
		return err
	}
	var durations []float64
	for _, l := range s.loads {
		durations = append(durations, l.durations()...)
	}
	slices.Sort(durations)
	calls, cpuMicros := len(durations), float64((after-before).Nanoseconds())/1e3
	s.rates = append(s.rates, float64(calls)/elapsed.Seconds())
	s.cpu = append(s.cpu, cpuMicros/float64(calls))
	s.p50 = append(s.p50, durations[calls/2])
	s.p99 = append(s.p99, durations[calls*99/100])
	return nil
}

// cpuTime returns the processor time of all threads of a process.
func cpuTime(pid int) (total time.Duration, err error) {
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	if err != nil || len(tasks) == 0 {
		return 0, fmt.Errorf("process %d has ended, or this is not Linux", pid)
	}
	for _, task := range tasks {
		text, err := os.ReadFile(task)
		if err != nil {
			continue // the thread has ended
		}
		ns, err := strconv.ParseInt(strings.Fields(string(text))[0], 10, 64)
		if err != nil {
			return 0, err
		}
		total += time.Duration(ns)
	}
	return total, nil
}

// printServices prints a table, which compares all services with the first one. Rates are their
// 80th percentile and times their 20th, because other programs only make a window worse.
func printServices(r *report, services []*measuredService) {
	r.addRow("", "per second", "/ first", "CPU µs", "p50 µs", "p99 µs")
	for _, s := range services {
		r.addRow(s.name, strconv.Itoa(int(percentile(s.rates, 80))), number(s.ratioTo(services[0])), number(percentile(s.cpu, 20)),
			strconv.Itoa(int(percentile(s.p50, 20))), strconv.Itoa(int(percentile(s.p99, 20))))
	}
}

// ratioTo returns the rate of s divided by that of another service: the median over the windows.
func (s *measuredService) ratioTo(other *measuredService) float64 {
	return median(ratios(s.rates, other.rates))
}

// zeros stand in a request where the load writes the digits of the key.
const zeros = "000000"

// connectCalls connects an h2Load to the service. Each call has one descriptor, with one entry: key
// and value.
func (s *measuredService) connectCalls(key, value string) error {
	message, err := proto.Marshal(&rls.RateLimitRequest{Domain: "bench", Descriptors: []*rlscommon.RateLimitDescriptor{
		{Entries: []*rlscommon.RateLimitDescriptor_Entry{{Key: key, Value: value}}},
	}})
	if err != nil {
		return err
	}
	l, err := dialH2(s.address, rls.RateLimitService_ShouldRateLimit_FullMethodName, message, bytes.Index(message, []byte(zeros)), serviceStreams)
	if err != nil {
		return err
	}
	s.loads = []loader{l}
	return nil
}

// rateLimits are the limits of the services, in the format of envoyproxy/ratelimit. The first
// admits all requests. The second has so few units that nearly all requests are denied.
const rateLimits = `
domain: bench
descriptors:
  - key: client
    rate_limit: {unit: hour, requests_per_unit: 1000000}
  - key: busy
    rate_limit: {unit: day, requests_per_unit: 10}
`

func (b *servicesBench) measureRateLimitService(r *report) error {
	configs := filepath.Join(b.dir, "config")
	if err := os.MkdirAll(configs, 0o700); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(configs, "bench.yaml"), []byte(rateLimits), 0o600); err != nil {
		return err
	}
	peer, err := b.startEnvoyRateLimit("envoyproxy/ratelimit", configs)
	if err != nil {
		return err
	}
	cached, err := b.startEnvoyRateLimit("envoyproxy/ratelimit, local cache", configs, "LOCAL_CACHE_SIZE_IN_BYTES=10000000")
	if err != nil {
		return err
	}
	bare, err := b.startBare("constant handler, grpc-go", "grpc-go")
	if err != nil {
		return err
	}
	ours, err := b.startPenstock("penstock", "--envoy-config", configs, "--grpc", "{address}")
	if err != nil {
		return err
	}

	services := []*measuredService{peer, bare, ours}
	for _, s := range services {
		if err := s.connectCalls("client", zeros); err != nil {
			return err
		}
	}
	if err := measure(services); err != nil {
		return err
	}
	r.beginTable("Envoy's rate limit service: 100,000 keys, one connection with %d streams, a server with one core\n(80th percentile of %d windows; ratio: median of windows side by side)",
		serviceStreams, serviceRounds)
	printServices(r, services)
	r.atLeast("services: RLS per second / envoyproxy/ratelimit", ours.ratioTo(peer), 3)

	services = []*measuredService{cached, ours}
	for _, s := range services {
		if err := s.connectCalls("busy", "one"); err != nil {
			return err
		}
	}
	if err := measure(services); err != nil {
		return err
	}
	r.beginTable("Envoy's rate limit service: the same for one key that is over its limit")
	printServices(r, services)
	r.atLeast("services: RLS per second over limit / envoyproxy/ratelimit with its local cache", ours.ratioTo(cached), 2)
	return nil
}

// startPenstock starts penstock serve, with Redis as its store unless args name another one.
func (b *servicesBench) startPenstock(name string, args ...string) (*measuredService, error) {
	program, err := b.build("penstock", ".")
	if err != nil {
		return nil, err
	}
	return b.start(name, nil, program, append([]string{"serve", "--store", b.redis.URL(), "--admin-listen", "off"}, args...)...)
}

// startBare starts one of the servers of the program bareserver.
func (b *servicesBench) startBare(name, server string) (*measuredService, error) {
	program, err := b.build("bareserver", "./internal/testing/bareserver")
	if err != nil {
		return nil, err
	}
	return b.start(name, nil, program, server)
}

// build builds a program of module cmd/penstock, unless it is built already. It returns the path of
// the program.
func (b *servicesBench) build(name, pkg string) (program string, err error) {
	program = filepath.Join(b.dir, name)
	if _, err := os.Stat(program); err == nil {
		return program, nil
	}
	build := exec.Command("go", "build", "-o", program, pkg)
	build.Dir, build.Stderr = filepath.Join("..", "cmd", "penstock"), os.Stderr
	if err := build.Run(); err != nil {
		return "", fmt.Errorf("build %s: %w", name, err)
	}
	return program, nil
}

// startEnvoyRateLimit starts envoyproxy/ratelimit in the version that the conformance program
// tests.
func (b *servicesBench) startEnvoyRateLimit(name, configs string, environment ...string) (*measuredService, error) {
	program := filepath.Join(b.dir, "ratelimit")
	if _, err := os.Stat(program); err != nil {
		build := exec.Command("go", "build", "-o", program, "github.com/envoyproxy/ratelimit/src/service_cmd")
		build.Dir, build.Stderr = filepath.Join("..", "cmd", "penstock", "internal", "testing", "conformance", "testdata", "ratelimit"), os.Stderr
		build.Env = append(os.Environ(), "GOWORK=off")
		if err := build.Run(); err != nil {
			return nil, fmt.Errorf("build envoyproxy/ratelimit: %w", err)
		}
	}
	var ports []string
	for range 2 {
		address, err := freeAddress()
		if err != nil {
			return nil, err
		}
		ports = append(ports, portOf(address))
	}
	return b.start(name, append([]string{
		"GRPC_HOST=127.0.0.1", "GRPC_PORT={port}", "HOST=127.0.0.1", "PORT=" + ports[0], "DEBUG_HOST=127.0.0.1", "DEBUG_PORT=" + ports[1],
		"DISABLE_STATS=true", "USE_STATSD=false", "LOG_LEVEL=error",
		"RUNTIME_ROOT=" + filepath.Dir(configs), "RUNTIME_SUBDIRECTORY=", "RUNTIME_APPDIRECTORY=" + filepath.Base(configs), "RUNTIME_WATCH_ROOT=false",
		"REDIS_SOCKET_TYPE=tcp", "REDIS_URL=" + b.redis.Addr,
	}, environment...), program)
}

// respConnections is the number of connections for CL.THROTTLE. It is small, because commands are
// sent in pipelines. The JSON API needs as many connections as gRPC needs streams.
const respConnections = 4

// apiPolicy limits the measured requests, and admits all of them.
const apiPolicy = `
rules:
  - name: api
    match: {path: /api/**}
    per: {first_of: [{key: header X-API-Key}, ip]}
    limits:
      - {rate: 1M/h}
`

// apiBody and apiRequest are a call of the JSON API.
const apiBody = `{"rule": "api", "key": "key:` + zeros + `"}`

var apiRequest = fmt.Sprintf("POST /v1/check HTTP/1.1\r\nHost: limits.example\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(apiBody), apiBody)

// startAPI starts penstock serve with the JSON API.
func (b *servicesBench) startAPI() (*measuredService, error) {
	policy := filepath.Join(b.dir, "policy.yaml")
	if err := os.WriteFile(policy, []byte(apiPolicy), 0o600); err != nil {
		return nil, err
	}
	return b.startPenstock("penstock, /v1/check", "--config", policy, "--api", "{address}")
}

func (b *servicesBench) measureJSONAPI(r *report) error {
	bare, err := b.startBare("constant handler, net/http", "http")
	if err != nil {
		return err
	}
	api, err := b.startAPI()
	if err != nil {
		return err
	}
	services := []*measuredService{bare, api}
	for _, s := range services {
		if err := s.connectLines(apiRequest, serviceStreams, 1, readHTTP); err != nil {
			return err
		}
	}
	if err := measure(services); err != nil {
		return err
	}
	r.beginTable("JSON API: 100,000 keys, %d connections, a server with one core", serviceStreams)
	printServices(r, services)
	return nil
}

func (b *servicesBench) measureThrottle(r *report) error {
	bare, err := b.startBare("constant answers", "resp")
	if err != nil {
		return err
	}
	redis, err := b.startPenstock("penstock", "--resp", "{address}")
	if err != nil {
		return err
	}
	memory, err := b.startPenstock("penstock, memory", "--store", "memory", "--resp", "{address}")
	if err != nil {
		return err
	}
	// This precedes the connections of the load: the build may take long, and servers close idle
	// connections.
	throttlecrab, err := b.startThrottlecrab()
	if err != nil {
		return err
	}
	services := []*measuredService{bare, redis, memory}
	command := func(name string) string { // NAME KEY 1000000 1000000 3600: a burst, and units per 3600 s
		const key = "client:" + zeros
		return fmt.Sprintf("*5\r\n$%d\r\n%s\r\n$%d\r\n%s\r\n$7\r\n1000000\r\n$7\r\n1000000\r\n$4\r\n3600\r\n", len(name), name, len(key), key)
	}
	for _, s := range services {
		if err := s.connectLines(command("CL.THROTTLE"), respConnections, serviceStreams, readThrottle); err != nil {
			return err
		}
	}
	if throttlecrab != nil {
		if err := throttlecrab.connectLines(command("THROTTLE"), respConnections, serviceStreams, readThrottle); err != nil {
			return err
		}
		services = append(services, throttlecrab)
	}
	cell, err := b.startRedisCell()
	if err != nil {
		return err
	}
	if cell != nil {
		if err := cell.connectLines(command("CL.THROTTLE"), respConnections, serviceStreams, readThrottle); err != nil {
			return err
		}
		services = append(services, cell)
	}
	if err := measure(services); err != nil {
		return err
	}
	r.beginTable("CL.THROTTLE: 100,000 keys, %d connections with %d commands in a pipeline, a server with one core\n(throttlecrab's replies wait for acknowledgements of TCP, which take 40 ms: it does not set TCP_NODELAY)", respConnections, serviceStreams)
	printServices(r, services)
	r.atLeast("services: CL.THROTTLE per second in pipelines, counters in memory", percentile(memory.rates, 80), 300_000)
	return nil
}

// connectLines connects a lineLoad to the service for each connection. depth is how many calls each
// one sends at once.
func (s *measuredService) connectLines(request string, connections, depth int, readResponse func(*bufio.Reader) error) error {
	s.loads = nil
	for i := range connections {
		l, err := dialLines(s.address, request, strings.Index(request, zeros), depth, i*loadKeys/connections, readResponse)
		if err != nil {
			return err
		}
		s.loads = append(s.loads, l)
	}
	return nil
}

// throttlecrabVersion is the version of throttlecrab-server in the registry of Rust packages.
const throttlecrabVersion = "0.4.40"

// startThrottlecrab starts throttlecrab, which keeps its counters in memory. The variable
// PENSTOCK_THROTTLECRAB has the path of the program. If the variable is not set, cargo builds the
// program. startThrottlecrab returns nil if cargo cannot.
func (b *servicesBench) startThrottlecrab() (*measuredService, error) {
	program := os.Getenv("PENSTOCK_THROTTLECRAB")
	if program == "" {
		program = filepath.Join(b.dir, "bin", "throttlecrab-server")
		install := exec.Command("cargo", "install", "--quiet", "--locked", "--root", b.dir, "--version", throttlecrabVersion, "throttlecrab-server")
		install.Stderr = os.Stderr
		if err := install.Run(); err != nil {
			fmt.Printf("throttlecrab is not measured: cargo cannot install it: %v\n", err)
			return nil, nil
		}
	}
	return b.start("throttlecrab "+throttlecrabVersion+", memory", nil, program, "--redis", "--redis-host", "127.0.0.1", "--redis-port", "{port}", "--log-level", "error")
}

// startRedisCell starts a Redis with the module redis-cell, whose file PENSTOCK_REDIS_CELL names.
// It returns nil if the variable is not set.
func (b *servicesBench) startRedisCell() (*measuredService, error) {
	module := os.Getenv("PENSTOCK_REDIS_CELL")
	if module == "" {
		fmt.Println("redis-cell is not measured: PENSTOCK_REDIS_CELL is not set to the file of its module.")
		return nil, nil
	}
	server := "redis-server"
	if other := os.Getenv("PENSTOCK_TEST_SERVER"); other != "" {
		server = other
	}
	return b.start("redis-cell in Redis", nil, server, "--port", "{port}", "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--loadmodule", module)
}
