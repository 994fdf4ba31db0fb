//go:build checks

package recipes

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/testing/redistest"
	"github.com/penstock/penstock/scripts/internal/process"
)

// Envoy routes by the quotas of two services: their quota_mode, their metadata, and the charge
// after each request.
func TestEnvoyRoutesByQuotas(t *testing.T) {
	envoy := programOf(t, "envoy")
	for _, mode := range []string{"atomic", "exact"} {
		penstock := process.Serve(t, "--grpc=127.0.0.1:0", "--api=127.0.0.1:0", "--envoy-config=testdata/quotas", "--envoy-mode="+mode, "--envoy-metadata",
			"--store="+redistest.Start(t).URL(), "--store-timeout=5s")
		address := process.FreeAddress(t)
		ports := []string{"PORT_OF_ENVOY", portOf(address), "PORT_OF_PENSTOCK", portOf(penstock.GRPC)}
		for _, name := range []string{"one", "two"} {
			service := process.ServeHTTP(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, name) }))
			ports = append(ports, "PORT_OF_"+strings.ToUpper(name), portOf(service))
		}
		file := filepath.Join(t.TempDir(), "envoy.yaml")
		process.WriteFile(t, file, strings.NewReplacer(ports...).Replace(process.ReadFile(t, "testdata/quota-envoy.yaml")))
		start(t, "envoy", address, envoyCommand(envoy, file, "--service-cluster", "quotas", "--service-node", "quotas"))
		client := &row{address: address, client: &http.Client{Timeout: time.Minute}}
		for i, want := range []struct{ response, left string }{
			{"200 one", "0 2"}, // left: what the two quotas have after the request
			{"200 one", "over 2"},
			{"200 two", "over 1"},
			{"200 two", "over 0"},
			{"200 two", "over over"},
			{"429 ", "over over"},
		} {
			a := client.send("GET", "/", "services.example")
			if got := a.status + " " + a.body; got != want.response {
				t.Fatalf("in mode %s, the response to request %d is %q; want %q", mode, i+1, got, want.response)
			}
			// Envoy charges after it has sent the response.
			await(t, fmt.Sprintf("after request %d, the quotas have %q left", i+1, want.left), func() bool { return quotasLeft(penstock.API) == want.left })
		}
	}
}

// quotasLeft returns what the two quotas have left, or "over".
func quotasLeft(api string) string {
	body := `{"domain": "quotas", "descriptors": [{"entries": [{"key": "service", "value": "one"}], "hitsAddend": "0"}, {"entries": [{"key": "service", "value": "two"}], "hitsAddend": "0"}]}`
	response, err := http.Post("http://"+api+"/json", "application/json", strings.NewReader(body))
	if err != nil {
		return err.Error()
	}
	defer response.Body.Close()
	var answer struct {
		Statuses []struct {
			Code           string
			LimitRemaining int
		}
	}
	if err := json.NewDecoder(response.Body).Decode(&answer); err != nil {
		return err.Error()
	}
	var left []string
	for _, s := range answer.Statuses {
		if s.Code == "OVER_LIMIT" {
			left = append(left, "over")
		} else {
			left = append(left, fmt.Sprint(s.LimitRemaining))
		}
	}
	return strings.Join(left, " ")
}

func portOf(address string) string {
	_, port, _ := net.SplitHostPort(address) // the address is that of a listener
	return port
}
