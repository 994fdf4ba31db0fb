//go:build checks

package recipes

import (
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/penstock/penstock/scripts/internal/process"
)

// limit_req of nginx and the policy that replaces it admit the same. nginx also accepts the
// configuration for a proxy in front of Penstock.
func TestLimitReq(t *testing.T) {
	program, dir, app := programOf(t, "nginx"), publicDir(t), startApp(t)
	nginxRecipe := recipes[slices.IndexFunc(recipes, func(r recipe) bool { return r.program == "nginx" })]
	// prepare returns the command that runs nginx with the configuration name. In the configuration,
	// listen replaces the address at which nginx listens.
	prepare := func(name, listen string) *exec.Cmd {
		adapted := strings.NewReplacer("127.0.0.1:8080", listen, "127.0.0.1:3000", app).Replace(nginxRecipe.adapt(process.ReadFile(t, recipesDir+name)))
		ownDir := dir + "/" + name + ".d"
		process.WriteFile(t, ownDir+"/nginx.conf", adapted)
		return exec.Command(program, nginxRecipe.args(ownDir, listen)...)
	}
	inFront := prepare("nginx-in-front.conf", "127.0.0.1:8080")
	inFront.Args = append(inFront.Args, "-t") // only check the configuration
	if out, err := inFront.CombinedOutput(); err != nil {
		t.Errorf("nginx-in-front.conf: %v\n%s", err, out)
	}

	nginx := process.FreeAddress(t)
	start(t, "nginx-limit-req", nginx, prepare("nginx-limit-req.conf", nginx))
	penstock := process.Serve(t, "--config="+recipesDir+"nginx-limit-req.yaml", "--upstream=http://"+app, "--listen=127.0.0.1:0")
	for _, path := range []string{"/api/x", "/mail/x"} {
		inNginx, inPenstock := countPassed(nginx, path), countPassed(penstock.Listen, path)
		fmt.Printf("nginx limit_req %s: %d of %d requests pass in nginx, %d in Penstock\n", path, inNginx, requests, inPenstock)
		// Each limit admits 21 requests, or queues them and admits them later. It admits one more for
		// each 100 ms that the sending takes.
		const least, most = 21, 27
		if min(inNginx, inPenstock) < least || max(inNginx, inPenstock) > most {
			t.Errorf("limit_req %s: %d requests pass in nginx, and %d in Penstock; want %d to %d each", path, inNginx, inPenstock, least, most)
		}
	}
}

// requests is the number of requests that countPassed sends.
const requests = 60

// countPassed sends requests at the same time, and returns how many got status 200.
func countPassed(address, path string) int {
	var passed atomic.Int64
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
				passed.Add(1)
			}
		})
	}
	all.Wait()
	return int(passed.Load())
}
