package main

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
)

// checkLimitReq compares limit_req of nginx with the policy that replaces it. It also makes nginx
// check the configuration for a proxy in front of Penstock. It does nothing if nginx is not
// installed.
func checkLimitReq(dir, recipesDir, proxiesDir string) error {
	nginx, err := filepath.Abs(filepath.Join(proxiesDir, "nginx"))
	if err != nil {
		return err
	}
	if _, err := os.Stat(nginx); err != nil {
		return nil // scripts/proxies has reported it
	}
	app, err := startApp()
	if err != nil {
		return err
	}
	ofNginx := recipes[slices.IndexFunc(recipes, func(r recipe) bool { return r.program == "nginx" })]
	// prepare returns the command that runs nginx with a configuration, at another address.
	prepare := func(name, listen string) (*exec.Cmd, error) {
		text, err := os.ReadFile(filepath.Join(recipesDir, name))
		if err != nil {
			return nil, err
		}
		own := filepath.Join(dir, name+".d")
		if err := os.MkdirAll(own, 0o755); err != nil {
			return nil, err
		}
		adapted := strings.NewReplacer("127.0.0.1:8080", listen, "127.0.0.1:3000", app.address).Replace(ofNginx.adapt(string(text)))
		if err := os.WriteFile(filepath.Join(own, "nginx.conf"), []byte(adapted), 0o644); err != nil {
			return nil, err
		}
		return exec.Command(nginx, ofNginx.args(own, listen)...), nil
	}

	inFront, err := prepare("nginx-in-front.conf", "127.0.0.1:8080")
	if err != nil {
		return err
	}
	inFront.Args = append(inFront.Args, "-t")
	if out, err := inFront.CombinedOutput(); err != nil {
		return fmt.Errorf("nginx-in-front.conf: %w\n%s", err, out)
	}

	before, after := freeAddress(), freeAddress()
	cmd, err := prepare("nginx-limit-req.conf", before)
	if err != nil {
		return err
	}
	first, err := start(dir, "nginx-limit-req", before, cmd)
	if err != nil {
		return err
	}
	defer first.end()
	cmd = exec.Command(filepath.Join(dir, "penstock"), "serve", "--config", filepath.Join(recipesDir, "nginx-limit-req.yaml"),
		"--upstream", "http://"+app.address, "--listen", after, "--admin-listen", "off")
	second, err := start(dir, "penstock-limit-req", after, cmd)
	if err != nil {
		return err
	}
	defer second.end()
	var failures []error
	for _, path := range []string{"/api/x", "/mail/x"} {
		inNginx, inPenstock := countPassed(before, path), countPassed(after, path)
		fmt.Printf("nginx limit_req %s: %d of %d requests pass in nginx, %d in Penstock\n", path, inNginx, requests, inPenstock)
		// 21 requests pass at once (or are queued, and pass later), and one more for each 100 ms that
		// sending the requests takes.
		const least, most = 21, 27
		if min(inNginx, inPenstock) < least || max(inNginx, inPenstock) > most {
			failures = append(failures, fmt.Errorf("limit_req %s: %d requests pass in nginx, and %d in Penstock; want %d to %d each", path, inNginx, inPenstock, least, most))
		}
	}
	return errors.Join(failures...)
}

const requests = 60

// countPassed sends requests at the same time, and returns how many got 200.
func countPassed(address, path string) (n int) {
	var mu sync.Mutex
	var all sync.WaitGroup
	for range requests {
		all.Go(func() {
			response, err := http.Get("http://" + address + path)
			if err != nil {
				return
			}
			defer response.Body.Close()
			_, _ = io.Copy(io.Discard, response.Body)
			if response.StatusCode == http.StatusOK {
				mu.Lock()
				n++
				mu.Unlock()
			}
		})
	}
	all.Wait()
	return n
}
