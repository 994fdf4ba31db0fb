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
	nginxProgram, err := filepath.Abs(filepath.Join(proxiesDir, "nginx"))
	if err != nil {
		return err
	}
	if _, err := os.Stat(nginxProgram); err != nil {
		return nil // scripts/proxies has reported it
	}
	app, err := startApp()
	if err != nil {
		return err
	}
	nginxRecipe := recipes[slices.IndexFunc(recipes, func(r recipe) bool { return r.program == "nginx" })]
	// prepare returns the command that runs nginx with the configuration name. In the configuration,
	// listen replaces the address at which nginx listens.
	prepare := func(name, listen string) (*exec.Cmd, error) {
		text, err := os.ReadFile(filepath.Join(recipesDir, name))
		if err != nil {
			return nil, err
		}
		ownDir := filepath.Join(dir, name+".d")
		if err := os.MkdirAll(ownDir, 0o755); err != nil {
			return nil, err
		}
		adapted := strings.NewReplacer("127.0.0.1:8080", listen, "127.0.0.1:3000", app.address).Replace(nginxRecipe.adapt(string(text)))
		if err := os.WriteFile(filepath.Join(ownDir, "nginx.conf"), []byte(adapted), 0o644); err != nil {
			return nil, err
		}
		return exec.Command(nginxProgram, nginxRecipe.args(ownDir, listen)...), nil
	}

	inFront, err := prepare("nginx-in-front.conf", "127.0.0.1:8080")
	if err != nil {
		return err
	}
	inFront.Args = append(inFront.Args, "-t") // only check the configuration
	if out, err := inFront.CombinedOutput(); err != nil {
		return fmt.Errorf("nginx-in-front.conf: %w\n%s", err, out)
	}

	nginxAddress, penstockAddress := freeAddress(), freeAddress()
	cmd, err := prepare("nginx-limit-req.conf", nginxAddress)
	if err != nil {
		return err
	}
	nginx, err := start(dir, "nginx-limit-req", nginxAddress, cmd)
	if err != nil {
		return err
	}
	defer nginx.end()
	cmd = exec.Command(filepath.Join(dir, "penstock"), "serve", "--config", filepath.Join(recipesDir, "nginx-limit-req.yaml"),
		"--upstream", "http://"+app.address, "--listen", penstockAddress, "--admin-listen", "off")
	penstock, err := start(dir, "penstock-limit-req", penstockAddress, cmd)
	if err != nil {
		return err
	}
	defer penstock.end()
	var failures []error
	for _, path := range []string{"/api/x", "/mail/x"} {
		inNginx, inPenstock := countPassed(nginxAddress, path), countPassed(penstockAddress, path)
		fmt.Printf("nginx limit_req %s: %d of %d requests pass in nginx, %d in Penstock\n", path, inNginx, requests, inPenstock)
		// Each limit admits 21 requests, or queues them and admits them later. It admits one more for
		// each 100 ms that the sending takes.
		const least, most = 21, 27
		if min(inNginx, inPenstock) < least || max(inNginx, inPenstock) > most {
			failures = append(failures, fmt.Errorf("limit_req %s: %d requests pass in nginx, and %d in Penstock; want %d to %d each", path, inNginx, inPenstock, least, most))
		}
	}
	return errors.Join(failures...)
}

// requests is the number of requests that countPassed sends.
const requests = 60

// countPassed sends requests at the same time, and returns how many got status 200.
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
