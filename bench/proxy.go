package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// The proxy section compares penstock serve with a bare httputil.ReverseProxy. Each is a separate
// process in front of one upstream.

const (
	proxyRounds      = 15 // windows of each proxy
	proxyWindow      = 400 * time.Millisecond
	proxyConnections = 32
)

// proxyPolicy limits the measured requests, and admits all of them.
const proxyPolicy = `
rules:
  - name: api
    match: {path: /api/**}
    per: {first_of: [{key: header X-API-Key}, ip]}
    limits:
      - {rate: 10M/s}
`

func proxySection(r *report) error {
	dir, err := os.MkdirTemp("", "penstock-bench")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	penstock := filepath.Join(dir, "penstock")
	build := exec.Command("go", "build", "-o", penstock, ".")
	build.Dir, build.Stderr = filepath.Join("..", "cmd", "penstock"), os.Stderr
	if err := build.Run(); err != nil {
		return fmt.Errorf("build penstock: %w", err)
	}
	policy := filepath.Join(dir, "policy.yaml")
	if err := os.WriteFile(policy, []byte(proxyPolicy), 0o600); err != nil {
		return err
	}

	upstream := &http.Server{Handler: http.HandlerFunc(answerUpstream)}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	go upstream.Serve(listener)
	defer upstream.Close()
	origin := "http://" + listener.Addr().String()

	self, err := os.Executable()
	if err != nil {
		return err
	}
	bare, serve := &measuredProxy{name: "httputil.ReverseProxy"}, &measuredProxy{name: "penstock serve"}
	if err := bare.start(self, "-bare-proxy", origin); err != nil {
		return err
	}
	defer bare.stop()
	if err := serve.start(penstock, "serve", "--config", policy, "--upstream", origin, "--admin-listen", "off"); err != nil {
		return err
	}
	defer serve.stop()

	for round := range proxyRounds + 1 {
		for _, p := range []*measuredProxy{bare, serve} {
			if err := p.run(); err != nil {
				return fmt.Errorf("%s: %w", p.name, err)
			}
			if round == 0 { // the first round opens the connections
				p.rates, p.p99s = nil, nil
			}
		}
	}
	r.beginTable("Proxy: requests through a process of its own, %d connections (80th percentile of %d windows; ratio: median of windows side by side)",
		proxyConnections, proxyRounds)
	r.addRow("", "requests/s", "/ bare", "p99 µs", "/ bare")
	for _, p := range []*measuredProxy{bare, serve} {
		r.addRow(p.name, strconv.Itoa(int(percentile(p.rates, 80))), number(median(ratios(p.rates, bare.rates))),
			strconv.Itoa(int(percentile(p.p99s, 20))), number(median(ratios(p.p99s, bare.p99s))))
	}
	r.atLeast("proxy: requests per second of serve / bare httputil.ReverseProxy", median(ratios(serve.rates, bare.rates)), 0.85)
	return nil
}

var upstreamBody = bytes.Repeat([]byte("x"), 512)

func answerUpstream(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/plain")
	w.Write(upstreamBody)
}

// serveBareProxy runs the standard library's proxy at $PENSTOCK_LISTEN. The proxy keeps all its
// idle connections to the upstream.
func serveBareProxy(origin string) error {
	to, err := url.Parse(origin)
	if err != nil {
		return err
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConns, transport.MaxIdleConnsPerHost = 1024, 1024 // more than proxyConnections
	listener, err := net.Listen("tcp", os.Getenv("PENSTOCK_LISTEN"))
	if err != nil {
		return err
	}
	return http.Serve(listener, &httputil.ReverseProxy{Transport: transport, Rewrite: func(p *httputil.ProxyRequest) {
		p.SetURL(to)
		p.SetXForwarded()
	}})
}

// A measuredProxy is a proxy whose speed is measured.
type measuredProxy struct {
	name        string
	command     *exec.Cmd
	stderr      bytes.Buffer
	connections []*connection

	// The results, with an item for each window.
	rates []float64 // requests per second
	p99s  []float64 // µs per request
}

// start runs a program that is a proxy on a free port, and connects to it.
func (p *measuredProxy) start(program string, args ...string) error {
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	address := free.Addr().String()
	free.Close()
	p.command = exec.Command(program, args...)
	p.command.Env = append(os.Environ(), "PENSTOCK_LISTEN="+address)
	p.command.Stderr = &p.stderr
	p.command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := p.command.Start(); err != nil {
		return err
	}
	for i := range proxyConnections {
		c, err := connect(address, i)
		if err != nil {
			p.stop()
			return fmt.Errorf("%s: %w\n%s", p.name, err, &p.stderr)
		}
		p.connections = append(p.connections, c)
	}
	return nil
}

func (p *measuredProxy) stop() {
	for _, c := range p.connections {
		c.Close()
	}
	p.command.Process.Kill()
	p.command.Wait()
}

// run sends requests on all connections at once for one window.
func (p *measuredProxy) run() error {
	var (
		wait sync.WaitGroup
		stop atomic.Bool
		errs = make([]error, len(p.connections))
	)
	time.AfterFunc(proxyWindow, func() { stop.Store(true) })
	begin := time.Now()
	for i, c := range p.connections {
		wait.Go(func() {
			c.times = c.times[:0]
			for !stop.Load() && errs[i] == nil {
				errs[i] = c.sendRequest()
			}
		})
	}
	wait.Wait()
	elapsed := time.Since(begin)
	if err := errors.Join(errs...); err != nil {
		return err
	}
	var times []float64
	for _, c := range p.connections {
		times = append(times, c.times...)
	}
	slices.Sort(times)
	p.rates = append(p.rates, float64(len(times))/elapsed.Seconds())
	p.p99s = append(p.p99s, times[len(times)*99/100])
	return nil
}

// A connection sends the same request repeatedly. It uses little CPU time, because it shares the
// machine with the proxy.
type connection struct {
	net.Conn
	responses *bufio.Reader
	request   []byte
	times     []float64 // µs of each request of the last window
}

// connect connects to a proxy, which may still be starting. Connection i has its own path and key.
func connect(address string, i int) (*connection, error) {
	for try := 0; ; try++ {
		c, err := net.Dial("tcp", address)
		if err == nil {
			request := fmt.Sprintf("GET /api/things/%d HTTP/1.1\r\nHost: api.example.com\r\nUser-Agent: bench\r\nX-API-Key: key-%d\r\nAccept: */*\r\n\r\n", i, i)
			return &connection{Conn: c, responses: bufio.NewReader(c), request: []byte(request)}, nil
		}
		const maxTries = 100 // with pauses of 50 ms: for 5 s
		if try == maxTries {
			return nil, err
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// sendRequest sends the request, reads the response, and records how long this took.
func (c *connection) sendRequest() error {
	begin := time.Now()
	if _, err := c.Write(c.request); err != nil {
		return err
	}
	line, err := c.responses.ReadSlice('\n')
	if err != nil {
		return err
	}
	if !bytes.HasPrefix(line, []byte("HTTP/1.1 200 ")) {
		return fmt.Errorf("the response begins with %q; want status 200", line)
	}
	length := -1
	for len(line) > len("\r\n") { // an empty line ends the headers
		if line, err = c.responses.ReadSlice('\n'); err != nil {
			return err
		}
		if name, value, ok := strings.Cut(string(line), ":"); ok && strings.EqualFold(name, "Content-Length") {
			length, _ = strconv.Atoi(strings.TrimSpace(value))
		}
	}
	if length != len(upstreamBody) {
		return fmt.Errorf("the body has %d bytes; want %d", length, len(upstreamBody))
	}
	if _, err := io.CopyN(io.Discard, c.responses, int64(length)); err != nil {
		return err
	}
	c.times = append(c.times, float64(time.Since(begin).Nanoseconds())/1e3)
	return nil
}
