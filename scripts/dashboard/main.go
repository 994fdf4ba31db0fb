// Command dashboard opens the pages of the dashboard in a real Chromium, at two instances of
// penstock serve that share a Redis server and have traffic. Its arguments are the penstock program
// and a folder. It installs npm packages in the folder, and writes pictures of the pages there.
// pages.mjs has the checks. The pictures show the latency of this machine, so those for docs need a
// load average of at most 1, which the command prints.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock/internal/loadaverage"
)

const (
	// npm packages
	playwright = "playwright-core@1.65.1"
	axe        = "axe-core@4.14.1"

	operatorToken = "operator-0123456789"
	offender      = "partner-export-2291" // an API key that is over its limit
	timeout       = 15 * time.Minute      // of the whole program, on a busy machine
)

const policy = `
tiers: {gold: {header X-API-Key: [partner-gold-1]}, free: default}
deny: {ip: 203.0.113.0/24}
rules:
  - name: export
    match: {path: /api/export}
    per: {key: header X-API-Key}
    limits: [{rate: 20/h, algorithm: anchored-window, candidate: {rate: 40/h, algorithm: anchored-window}}]
  - name: search
    match: {path: /api/search}
    per: {key: header X-API-Key}
    limits: [{rate: {gold: 500/s, free: 50/s}}, {name: day, rate: 100000/d, on_failure: closed}]
  - name: push
    match: {path: /api/push}
    per: global
    limits: [{rate: 5/s, burst: 2, max_wait: 2s}]
  - {name: address, always: true, per: ip, limits: [{rate: 100000/h, shadow: true}]}
`

func main() {
	log.SetFlags(0)
	log.SetPrefix("dashboard: ")
	if len(os.Args) != 3 {
		log.Fatal("usage: dashboard PENSTOCK FOLDER")
	}
	folder, err := filepath.Abs(os.Args[2])
	if err == nil {
		err = run(os.Args[1], folder)
	}
	if err != nil {
		log.Fatal(err)
	}
}

func run(penstock, folder string) error {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	measurement, err := loadaverage.Begin(os.Stdout, "")
	if err != nil {
		return err
	}
	defer measurement.End()
	if err := os.MkdirAll(filepath.Join(folder, "pictures"), 0o755); err != nil {
		return err
	}
	install := exec.CommandContext(ctx, "npm", "install", "--silent", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix", folder, playwright, axe)
	if out, err := install.CombinedOutput(); err != nil {
		return fmt.Errorf("npm install: %w\n%s", err, out)
	}
	dir, err := os.MkdirTemp("", "dashboard-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	rules := filepath.Join(dir, "rules.yaml")
	if err := os.WriteFile(rules, []byte(policy), 0o600); err != nil {
		return err
	}
	redis := &redisServer{dir: dir, socket: filepath.Join(dir, "redis.sock")}
	if err := redis.start(); err != nil {
		return err
	}
	defer redis.stop()
	var instances [2]*instance
	for i := range instances {
		if instances[i], err = startInstance(penstock, rules, redis.socket); err != nil {
			return err
		}
		defer instances[i].stop()
	}
	traffic := &trafficControl{redis: redis, target: instances[0].listen}
	go traffic.send(ctx)
	prefixedAddress, err := serve(prefixProxy("/penstock/", instances[0].admin))
	if err != nil {
		return err
	}
	controlAddress, err := serve(traffic)
	if err != nil {
		return err
	}
	config, err := json.Marshal(map[string]string{
		"modules":  filepath.Join(folder, "node_modules"),
		"pictures": filepath.Join(folder, "pictures"),
		"token":    operatorToken,
		"offender": offender,
		"admin":    "http://" + instances[0].admin + "/",
		"other":    "http://" + instances[1].admin + "/",
		"prefixed": "http://" + prefixedAddress + "/penstock/",
		"control":  "http://" + controlAddress + "/",
	})
	if err != nil {
		return err
	}
	node := exec.CommandContext(ctx, "node", "dashboard/pages.mjs", string(config))
	node.Stdout, node.Stderr = os.Stdout, os.Stderr
	return node.Run()
}

// A redisServer can be stopped and started again. It listens only on a Unix socket.
type redisServer struct {
	dir, socket string
	process     *exec.Cmd
}

func (s *redisServer) start() error {
	server := os.Getenv("PENSTOCK_TEST_SERVER")
	if server == "" {
		server = "redis-server"
	}
	s.process = exec.Command(server, "--port", "0", "--unixsocket", s.socket, "--save", "", "--dir", s.dir)
	if err := s.process.Start(); err != nil {
		return err
	}
	for range 6000 { // 6000 × 10 ms = 1 min
		if conn, err := net.Dial("unix", s.socket); err == nil {
			return conn.Close()
		}
		time.Sleep(10 * time.Millisecond)
	}
	return errors.New("redis-server did not listen on its socket within a minute")
}

func (s *redisServer) stop() {
	s.process.Process.Kill()
	s.process.Wait()
}

// An instance is a running penstock serve.
type instance struct {
	listen, admin string // addresses of the proxy and of the dashboard
	process       *exec.Cmd
}

// startInstance starts penstock serve. The timeout of its store is long, so that a busy machine
// causes no fallback.
func startInstance(penstock, rules, socket string) (*instance, error) {
	i := &instance{process: exec.Command(penstock, "serve", "--demo", "--config", rules,
		"--store", "unix://"+socket, "--store-timeout", "5s",
		"--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0",
		"--operator-token", operatorToken, "--log-format", "json")}
	pipe, err := i.process.StderrPipe()
	if err != nil {
		return nil, err
	}
	if err := i.process.Start(); err != nil {
		return nil, err
	}
	for lines := json.NewDecoder(pipe); ; {
		var line struct {
			Msg, Listen string
			Admin       string `json:"admin_listen"`
		}
		if err := lines.Decode(&line); err != nil {
			i.stop()
			return nil, errors.Join(errors.New("penstock serve did not start"), err)
		}
		if line.Msg == "listening" {
			i.listen, i.admin = line.Listen, line.Admin
			go io.Copy(io.Discard, pipe)
			return i, nil
		}
	}
}

func (i *instance) stop() {
	i.process.Process.Kill()
	i.process.Wait()
}

// A trafficControl sends the traffic. Through its HTTP API, the checks pause the traffic, stop and
// start Redis, and send one request.
type trafficControl struct {
	redis    *redisServer
	target   string // address of an instance
	isPaused atomic.Bool
}

func (c *trafficControl) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case "/pause":
		c.isPaused.Store(true)
	case "/resume":
		c.isPaused.Store(false)
	case "/kill":
		c.redis.stop()
	case "/start":
		if err := c.redis.start(); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
		}
	case "/export":
		w.WriteHeader(c.request("/api/export", offender))
	default:
		http.NotFound(w, r)
	}
}

// request sends a request to the instance, with an API key. Without a response, the status is 502.
func (c *trafficControl) request(path, key string) (status int) {
	r, err := http.NewRequest("GET", "http://"+c.target+path, nil)
	if err != nil {
		return http.StatusInternalServerError
	}
	r.Header.Set("X-API-Key", key)
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		return http.StatusBadGateway
	}
	defer res.Body.Close()
	io.Copy(io.Discard, res.Body)
	return res.StatusCode
}

// send sends about 60 requests a second until ctx ends.
func (c *trafficControl) send(ctx context.Context) {
	inFlight := make(chan struct{}, 32) // has an element for each request in flight
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for n := 0; ; n++ {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if c.isPaused.Load() {
			continue
		}
		for _, r := range []struct{ path, key string }{
			{"/api/search", fmt.Sprintf("rider-app-%04d", n%9)},
			{"/api/push", "any"},
			{"/api/export", offender},
		} {
			select {
			case inFlight <- struct{}{}:
				go func() {
					c.request(r.path, r.key)
					<-inFlight
				}()
			default: // too many are in flight
			}
		}
	}
}

// prefixProxy returns a proxy that removes a prefix from the paths of requests, and sends the
// requests to an address. The prefix ends with a slash, which stays. The header Host becomes the
// address. The proxy logs no errors, because pages close their event streams.
func prefixProxy(prefix, address string) http.Handler {
	return http.StripPrefix(prefix[:len(prefix)-1], &httputil.ReverseProxy{
		FlushInterval: -1, // flush after each write
		ErrorLog:      log.New(io.Discard, "", 0),
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(&url.URL{Scheme: "http", Host: address}) },
	})
}

// serve serves HTTP on a free port until the program ends.
func serve(h http.Handler) (address string, err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	go http.Serve(l, h)
	return l.Addr().String(), nil
}
