//go:build checks

// Package browsers checks which responses web pages of other origins can read. Pages in a real
// Chromium send requests to penstock serve.
package browsers

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock/penstock/scripts/internal/process"
)

// page fetches one URL after another, and reports the results to its own server. The server
// replaces TARGET by the URL of penstock serve.
const page = `<!doctype html><title>fetch</title><script>
const steps = [
	["PUT", "/limited", {}], ["PUT", "/limited", {}], ["PUT", "/limited", {}],
	["GET", "/a%00", {}],
	["GET", "/free", {"X-Banned": "yes"}],
	["GET", "/closed", {}],
];
(async () => {
	const seen = [];
	for (const [method, path, headers] of steps) {
		try {
			const r = await fetch("TARGET" + path, {method, headers, credentials: "include"});
			const body = await r.text();
			const title = (r.headers.get("Content-Type") || "").includes("problem") ? JSON.parse(body).title : body;
			seen.push([r.status, r.headers.get("RateLimit"), r.headers.get("RateLimit-Policy"), r.headers.get("Retry-After"), title].join(" | "));
		} catch (e) {
			seen.push(e.name);
		}
	}
	await fetch("/seen", {method: "POST", body: JSON.stringify(seen)});
})();
</script>`

// policy gets the address of the allowed origin for %s.
const policy = `
http: {cors: {origins: "http://%s", credentials: true}}
deny: {header X-Banned: "yes"}
rules:
  - {name: limited, match: {path: /limited}, per: ip, limits: [{rate: 2/h, algorithm: anchored-window}]}
  - {name: closed, match: {path: /closed}, per: ip, limits: [{rate: 2/h, on_failure: closed}]}
`

func TestPagesReadResponsesOfTheirOrigins(t *testing.T) {
	allowed, other := servePages(t), servePages(t) // the origin in http.cors, and another one
	var preflights, requests atomic.Int64
	upstream := process.ServeHTTP(t, upstream(allowed.address, &preflights, &requests))
	file := filepath.Join(t.TempDir(), "rules.yaml")
	process.WriteFile(t, file, fmt.Sprintf(policy, allowed.address))
	// A new process has new counters. Its store is down, so that limits whose on_failure is closed
	// respond with 503.
	serve := func() *process.Service {
		preflights.Store(0)
		requests.Store(0)
		return process.Serve(t, "--listen=127.0.0.1:0", "--store=redis://127.0.0.1:1", "--config="+file, "--upstream=http://"+upstream)
	}

	// A page of another origin cannot read the responses, but its requests are charged.
	const blockedByCORS = "TypeError"
	if seen := other.visit(t, serve().Listen); !slices.Equal(seen, slices.Repeat([]string{blockedByCORS}, 6)) {
		t.Errorf("a page of another origin saw %q; want 6 times %s", seen, blockedByCORS)
	}
	seen := allowed.visit(t, serve().Listen)
	const window = `"limited.hour";q=2;w=3600`
	// Each response is: status | RateLimit | RateLimit-Policy | Retry-After | title or body. A *
	// stands for a number.
	want := []string{
		`200 | "limited.hour";r=1;t=3600 | ` + window + ` |  | served`,
		`200 | "limited.hour";r=0;t=* | ` + window + ` |  | served`,
		`429 | "limited.hour";r=0;t=* | ` + window + ` | * | Quota Exceeded`,
		`400 |  |  |  | Bad Request`,
		`403 |  |  |  | Forbidden`,
		`503 |  |  | 1 | Temporary Reduced Capacity`,
	}
	pattern := strings.ReplaceAll(regexp.QuoteMeta(strings.Join(want, "\n")), `\*`, `\d+`)
	if got := strings.Join(seen, "\n"); !regexp.MustCompile(`^` + pattern + `$`).MatchString(got) {
		t.Errorf("a page of the origin in http.cors saw\n%s\nwant\n%s", got, strings.Join(want, "\n"))
	}
	if preflights.Load() < 2 || requests.Load() != 2 {
		t.Errorf("the upstream received %d preflights and %d requests; want at least 2 preflights, and only the 2 admitted requests", preflights.Load(), requests.Load())
	}
}

// upstream returns an API that allows the pages of one origin, and answers their preflights.
func upstream(origin string, preflights, requests *atomic.Int64) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		header := w.Header()
		header.Set("Vary", "Origin")
		if r.Header.Get("Origin") == "http://"+origin {
			header.Set("Access-Control-Allow-Origin", "http://"+origin)
			header.Set("Access-Control-Allow-Credentials", "true")
		}
		if r.Method == http.MethodOptions {
			preflights.Add(1)
			header.Set("Access-Control-Allow-Methods", "GET, PUT")
			header.Set("Access-Control-Allow-Headers", "X-Banned")
			return
		}
		requests.Add(1)
		io.WriteString(w, "served")
	})
}

// pages serves the pages of one origin.
type pages struct {
	address string
	target  atomic.Value  // the address of penstock serve
	seen    chan []string // the responses that the page reported
}

func servePages(t *testing.T) *pages {
	p := &pages{seen: make(chan []string, 1)}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		io.WriteString(w, strings.ReplaceAll(page, "TARGET", fmt.Sprint("http://", p.target.Load())))
	})
	mux.HandleFunc("POST /seen", func(_ http.ResponseWriter, r *http.Request) {
		var seen []string
		if err := json.NewDecoder(r.Body).Decode(&seen); err != nil {
			seen = []string{err.Error()}
		}
		p.seen <- seen
	})
	p.address = process.ServeHTTP(t, mux)
	return p
}

// visit opens the page in a new browser, and returns the responses that the page saw.
func (p *pages) visit(t *testing.T, target string) []string {
	p.target.Store(target)
	// Chromium may still write to its profile when it is killed, so t.TempDir does not suit.
	profile, err := os.MkdirTemp("", "profile-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(profile)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	browser := exec.CommandContext(ctx, "chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
		"--disable-background-networking", "--disable-component-update", "--disable-sync", "--remote-debugging-port=0", "--user-data-dir="+profile,
		"http://"+p.address+"/")
	browser.WaitDelay = 5 * time.Second // Chromium's child processes keep its standard error open
	var output strings.Builder
	browser.Stderr = &output
	if err := browser.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- browser.Wait() }()
	select {
	case seen := <-p.seen:
		cancel()
		<-ended
		return seen
	case err := <-ended:
		t.Fatalf("chromium ended and reported nothing: %v\n%s", err, output.String())
		return nil
	}
}
