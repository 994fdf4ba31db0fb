// Command browsers checks which responses web pages of other origins can read. It runs penstock
// serve in front of an upstream, and opens pages in a real Chromium. The pages send requests to
// penstock serve. The only argument is the path of the penstock program.
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
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"
)

// pageTimeout is the longest time for one page.
const pageTimeout = 2 * time.Minute

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

func main() {
	log.SetFlags(0)
	log.SetPrefix("browsers: ")
	if len(os.Args) != 2 {
		log.Fatal("usage: browsers PENSTOCK")
	}
	if err := run(os.Args[1]); err != nil {
		log.Fatal(err)
	}
}

func run(penstock string) error {
	dir, err := os.MkdirTemp("", "browsers-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)

	allowed, err := servePages() // the origin in http.cors
	if err != nil {
		return err
	}
	other, err := servePages() // another origin
	if err != nil {
		return err
	}
	var preflights, requests atomic.Int64
	upstream, err := serve(upstream(allowed.address, &preflights, &requests))
	if err != nil {
		return err
	}
	file := filepath.Join(dir, "rules.yaml")
	if err := os.WriteFile(file, fmt.Appendf(nil, policy, allowed.address), 0o600); err != nil {
		return err
	}
	target, stop, err := startServe(penstock, "--config="+file, "--upstream=http://"+upstream)
	if err != nil {
		return err
	}
	defer stop()

	// A page of another origin cannot read the responses, but its requests are charged.
	const blockedByCORS = "TypeError"
	seen, err := other.visit(dir, target)
	if err != nil {
		return err
	}
	if err := compare("a page of another origin", seen, slices.Repeat([]string{blockedByCORS}, 6)); err != nil {
		return err
	}
	stop()
	// A new process has new counters.
	if target, stop, err = startServe(penstock, "--config="+file, "--upstream=http://"+upstream); err != nil {
		return err
	}
	defer stop()
	preflights.Store(0)
	requests.Store(0)
	if seen, err = allowed.visit(dir, target); err != nil {
		return err
	}
	const window = `"limited.hour";q=2;w=3600`
	// Each response is: status | RateLimit | RateLimit-Policy | Retry-After | title or body.
	if err := compare("a page of the origin in http.cors", seen, []string{
		`200 | "limited.hour";r=1;t=3600 | ` + window + ` |  | served`,
		`200 | "limited.hour";r=0;t=* | ` + window + ` |  | served`,
		`429 | "limited.hour";r=0;t=* | ` + window + ` | * | Quota Exceeded`,
		`400 |  |  |  | Bad Request`,
		`403 |  |  |  | Forbidden`,
		`503 |  |  | 1 | Temporary Reduced Capacity`,
	}); err != nil {
		return err
	}
	if preflights.Load() < 2 || requests.Load() != 2 {
		return fmt.Errorf("the upstream received %d preflights and %d requests; want at least 2 preflights, and only the 2 admitted requests", preflights.Load(), requests.Load())
	}
	fmt.Printf("browsers: 12 fetches in Chromium from two origins, %d preflights forwarded\n", preflights.Load())
	return nil
}

// compare compares the responses that a page saw with those in want. A * in want matches any
// number.
func compare(who string, seen, want []string) error {
	if len(seen) != len(want) {
		return fmt.Errorf("%s saw %d responses; want %d: %q", who, len(seen), len(want), seen)
	}
	for i, text := range want {
		if got := seen[i]; got != text && !matches(text, got) {
			return fmt.Errorf("%s: the response of fetch %d is\n\t%s\nwant\n\t%s", who, i+1, got, text)
		}
	}
	return nil
}

// matches reports whether a text has the form of a pattern, in which each * stands for a number.
func matches(pattern, text string) bool {
	for {
		before, after, hasNumber := strings.Cut(pattern, "*")
		rest, ok := strings.CutPrefix(text, before)
		if !ok || !hasNumber {
			return ok && rest == ""
		}
		afterNumber := strings.TrimLeft(rest, "0123456789")
		if afterNumber == rest {
			return false
		}
		pattern, text = after, afterNumber
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

// serve serves HTTP on a free port until the program ends.
func serve(h http.Handler) (address string, err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	go http.Serve(l, h)
	return l.Addr().String(), nil
}

// pages serves the pages of one origin.
type pages struct {
	address string
	target  atomic.Pointer[string] // the address of penstock serve
	seen    chan []string          // the responses that the page reported
}

func servePages() (*pages, error) {
	p := &pages{seen: make(chan []string, 1)}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		io.WriteString(w, strings.ReplaceAll(page, "TARGET", "http://"+*p.target.Load()))
	})
	mux.HandleFunc("POST /seen", func(_ http.ResponseWriter, r *http.Request) {
		var seen []string
		if err := json.NewDecoder(r.Body).Decode(&seen); err != nil {
			seen = []string{err.Error()}
		}
		p.seen <- seen
	})
	var err error
	p.address, err = serve(mux)
	return p, err
}

// visit opens the page in a new browser, and returns the responses that the page saw.
func (p *pages) visit(dir, target string) ([]string, error) {
	p.target.Store(&target)
	profile, err := os.MkdirTemp(dir, "profile-")
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), pageTimeout)
	defer cancel()
	browser := exec.CommandContext(ctx, "chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
		"--disable-background-networking", "--disable-component-update", "--disable-sync", "--remote-debugging-port=0", "--user-data-dir="+profile,
		"http://"+p.address+"/")
	browser.WaitDelay = 5 * time.Second // Chromium's child processes keep its standard error open
	var output strings.Builder
	browser.Stderr = &output
	if err := browser.Start(); err != nil {
		return nil, err
	}
	ended := make(chan error, 1)
	go func() { ended <- browser.Wait() }()
	defer func() {
		cancel()
		<-ended
	}()
	select {
	case seen := <-p.seen:
		return seen, nil
	case err := <-ended:
		ended <- err // for the deferred function
		return nil, fmt.Errorf("chromium ended and reported nothing: %v\n%s", err, output.String())
	}
}

// startServe starts penstock serve with a store that is down, so that limits whose on_failure is
// closed respond with 503. The address is that of the proxy.
func startServe(penstock string, args ...string) (address string, stop func(), err error) {
	process := exec.Command(penstock, append([]string{"serve", "--listen=127.0.0.1:0", "--admin-listen=off", "--log-format=json", "--store=redis://127.0.0.1:1"}, args...)...)
	pipe, err := process.StderrPipe()
	if err == nil {
		err = process.Start()
	}
	if err != nil {
		return "", nil, err
	}
	stop = func() {
		process.Process.Kill()
		process.Wait()
	}
	for lines := json.NewDecoder(pipe); ; {
		var line struct{ Listen string }
		if err := lines.Decode(&line); err != nil {
			stop()
			return "", nil, errors.Join(errors.New("penstock serve did not start"), err)
		}
		if line.Listen != "" { // penstock serve accepts connections
			go io.Copy(io.Discard, pipe)
			return line.Listen, stop, nil
		}
	}
}
