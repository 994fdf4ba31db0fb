package command

import (
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"github.com/penstock/penstock/internal/testing/effort"
	"github.com/penstock/penstock/internal/testing/redistest"
)

// TestFirstRequestsAreDecidedByTheStore: an empty Redis decides the first requests after a start,
// even while other processes use two CPUs. No request has to wait until a script is generated or
// loaded. With PENSTOCK_SOAK the service starts 100 times with the default timeout; otherwise it
// starts twice, with a long timeout.
func TestFirstRequestsAreDecidedByTheStore(t *testing.T) {
	const callers, requestsEach = 32, 2
	config := writeFile(t, "rules.yaml", `
rules:
  - name: api
    per: ip
    limits:
      - {rate: 10000/s, burst: 20000}
      - {rate: 1000000/d, algorithm: fixed-window}
      - {rate: 100000/m, algorithm: sliding-window}
`)
	args := []string{"--config=" + config, "--admin-listen=127.0.0.1:0"}
	if !effort.IsSoak {
		args = append(args, "--store-timeout=20s")
	}
	const busyCPUs = 2
	for range busyCPUs {
		loop := exec.Command("sh", "-c", "while :; do :; done")
		if err := loop.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			loop.Process.Kill()
			loop.Wait()
		})
	}
	for start := range effort.Of(2, 100) {
		ok := t.Run(fmt.Sprint(start), func(t *testing.T) {
			redis := redistest.Start(t)
			p := startProcess(t, append(args, "--store="+redis.URL())...)
			var all sync.WaitGroup
			for range callers {
				all.Go(func() {
					client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
					for range requestsEach {
						res, err := client.Get("http://" + p.listen + "/api/fares/estimate")
						if err != nil {
							t.Error(err)
							continue
						}
						io.Copy(io.Discard, res.Body)
						res.Body.Close()
						if res.StatusCode != http.StatusOK {
							t.Errorf("the response is %s; want 200", res.Status)
						}
					}
				})
			}
			all.Wait()
			page := mustGet(t, "http://"+p.admin+"/metrics")
			want := map[string]string{
				`rate_limiter_decisions_total{source="store"}`:  fmt.Sprint(callers * requestsEach),
				`rate_limiter_decisions_unknown_outcome_total`:  "0",
				`rate_limiter_scripts_total{event="eval"}`:      "0",
				`rate_limiter_breaker_changes_total{to="open"}`: "0",
			}
			for line := range strings.Lines(page) {
				series, value, _ := strings.Cut(strings.TrimSpace(line), " ")
				if wanted, ok := want[series]; ok && value != wanted {
					t.Errorf("the series %s is %s; want %s", series, value, wanted)
				}
				delete(want, series)
				if strings.HasPrefix(series, "rate_limiter_errors_total{") && value != "0" {
					t.Errorf("the series %s is %s; want 0", series, value)
				}
			}
			for series := range want {
				t.Errorf("the metrics lack %s", series)
			}
		})
		if !ok {
			return
		}
	}
}
