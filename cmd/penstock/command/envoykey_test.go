package command

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/penstock/penstock/internal/testing/redistest"
)

// status and reset find the limits of Envoy's files, in the store and at a running instance.
func TestStatusAndResetOfAnEnvoyLimit(t *testing.T) {
	t.Setenv("PENSTOCK_CONFIG", "")
	const token = "a-token-of-operators"
	redis, dir := redistest.Start(t), t.TempDir()
	const limits = "domain: rides\ndescriptors:\n- {key: api_key, rate_limit: {unit: day, requests_per_unit: 2}}\n"
	if err := os.WriteFile(filepath.Join(dir, "rides.yaml"), []byte(limits), 0o600); err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(t.TempDir(), "api.sock")
	p := startProcess(t, "--store=redis://"+redis.Addr, "--envoy-config="+dir, "--api=unix:"+socket, "--admin-listen=127.0.0.1:0", "--operator-token="+token)
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}}}
	request := func(customer string, wantStatus int) {
		t.Helper()
		res, err := client.Post("http://localhost/json", "application/json", strings.NewReader(`{"domain": "rides", "descriptors": [{"entries": [{"key": "api_key", "value": "`+customer+`"}]}]}`))
		if err != nil {
			t.Fatal(err)
		}
		if res.Body.Close(); res.StatusCode != wantStatus {
			t.Fatalf("the request of %s gets status %d; want %d", customer, res.StatusCode, wantStatus)
		}
	}
	t.Setenv("PENSTOCK_OPERATOR_TOKEN", token)
	for name, args := range map[string][]string{"the store": {"--store", "redis://" + redis.Addr, "--envoy-config", dir}, "an instance": {"--admin", p.admin}} {
		// Each pass has another customer, because the instance may repeat a denial after a reset.
		customer := strings.ReplaceAll(name, " ", "-") + "-customer-4711"
		key := "rides|api_key=" + customer
		run := func(verb string, more ...string) (int, string, string) {
			return command(append(append([]string{verb, key}, more...), args...)...)
		}
		request(customer, 200)
		if code, out, errors := run("status"); code != exitOK || !strings.Contains(out, "rides.api_key.day") {
			t.Errorf("%s: status: exit status %d, %s%s; want %d with %q", name, code, out, errors, exitOK, "rides.api_key.day")
		}
		request(customer, 200)
		request(customer, 429)
		code, out, errors := run("status", "-o", "json")
		var r keyReport
		if err := json.Unmarshal([]byte(out), &r); err != nil || code != exitDenied || len(r.Limits) != 1 {
			t.Fatalf("%s: status -o json: exit status %d, %v, %s%s; want %d with one limit", name, code, err, out, errors, exitDenied)
		}
		if l := r.Limits[0]; l.Used != 2 || l.Left != 0 || !l.IsDenied {
			t.Errorf("%s: status -o json shows the limit %+v; want one that is used up and denies", name, l)
		}
		if code, out, errors := run("reset", "--reason", "support-4711", "--yes"); code != exitOK || !strings.Contains(out, "rides.api_key.day was reset: 2 used before, 2 left now") || strings.Contains(errors, "customer-4711") {
			t.Errorf("%s: reset: exit status %d, %s%s; want %d with %q", name, code, out, errors, exitOK, "rides.api_key.day was reset: 2 used before, 2 left now")
		}
		if code, out, _ := run("status", "--rule", "rides.api_key"); code != exitOK || !strings.Contains(out, "rides.api_key.day") {
			t.Errorf("%s: status after the reset: exit status %d, %s; want %d with %q", name, code, out, exitOK, "rides.api_key.day")
		}
		for line, want := range map[string]string{"rides|other=1": "no limit", key + " --rule none": "no "} {
			if code, out, errors := command(append(append([]string{"status"}, strings.Fields(line)...), args...)...); code != exitUsage || out != "" || !strings.Contains(errors, want) {
				t.Errorf("%s: status %s: exit status %d, %s%s; want %d with %q", name, line, code, out, errors, exitUsage, want)
			}
		}
	}
	if code, _, errors := command("status", "rides|api_key=a", "--store", "redis://"+redis.Addr, "--envoy-config", dir+"/none"); code != exitInvalid || !strings.Contains(errors, "envoy-config (--envoy-config)") {
		t.Errorf("status without the folder of Envoy: exit status %d, %s; want %d with %q", code, errors, exitInvalid, "envoy-config (--envoy-config)")
	}
}
