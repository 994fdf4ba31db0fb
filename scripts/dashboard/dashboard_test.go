//go:build checks

// Package dashboard opens the pages of the dashboard in a real Chromium, at two instances of
// penstock serve that share a Redis server and have traffic. testdata/pages.mjs has the checks, and
// writes pictures of the pages to bin/dashboard/pictures. The pictures show the latency of this
// machine, so those for docs need a load average of at most 1, which the test prints.
package dashboard

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/testing/loadaverage"
	"github.com/penstock/penstock/internal/testing/redistest"
	"github.com/penstock/penstock/scripts/internal/process"
)

const (
	operatorToken = "operator-0123456789"
	offender      = "partner-export-2291" // an API key that is over its limit
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

func TestPages(t *testing.T) {
	measurement, err := loadaverage.Begin(os.Stdout, "")
	if err != nil {
		t.Fatal(err)
	}
	defer measurement.End()
	folder, err := filepath.Abs("../../bin/dashboard")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(folder+"/pictures", 0o755); err != nil {
		t.Fatal(err)
	}
	process.Run(t, "npm", "install", "--silent", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix", folder, "playwright-core@1.65.1", "axe-core@4.14.1")
	rules := filepath.Join(t.TempDir(), "rules.yaml")
	process.WriteFile(t, rules, policy)
	redis := redistest.Start(t)
	var instances [2]*process.Service
	for i := range instances {
		// The timeout of the store is long, so that a busy machine causes no fallback.
		instances[i] = process.Serve(t, "--demo", "--config="+rules, "--store="+redis.URL(), "--store-timeout=5s",
			"--listen=127.0.0.1:0", "--admin-listen=127.0.0.1:0", "--operator-token="+operatorToken)
	}
	traffic := &trafficControl{redis: redis, target: instances[0].Listen}
	go traffic.send(t.Context())
	config, err := json.Marshal(map[string]string{
		"modules":  folder + "/node_modules",
		"pictures": folder + "/pictures",
		"token":    operatorToken,
		"offender": offender,
		"admin":    "http://" + instances[0].Admin + "/",
		"other":    "http://" + instances[1].Admin + "/",
		"prefixed": "http://" + process.ServeHTTP(t, prefixProxy("/penstock/", instances[0].Admin)) + "/penstock/",
		"control":  "http://" + process.ServeHTTP(t, traffic) + "/",
	})
	if err != nil {
		t.Fatal(err)
	}
	node := exec.CommandContext(t.Context(), "node", "testdata/pages.mjs", string(config))
	node.Stdout, node.Stderr = os.Stdout, os.Stderr
	if err := node.Run(); err != nil {
		t.Error(err)
	}
}

// A trafficControl sends the traffic. Through its HTTP API, the checks pause the traffic, stop and
// start Redis, and send one request.
type trafficControl struct {
	redis    *redistest.Server
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
		c.redis.Kill()
	case "/start":
		if err := c.redis.Restart(); err != nil {
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
	r := &http.Request{URL: &url.URL{Scheme: "http", Host: c.target, Path: path}, Header: http.Header{"X-Api-Key": {key}}}
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
		for path, key := range map[string]string{"/api/search": fmt.Sprintf("rider-app-%04d", n%9), "/api/push": "any", "/api/export": offender} {
			select {
			case inFlight <- struct{}{}:
				go func() {
					c.request(path, key)
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
