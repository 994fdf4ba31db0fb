package command

import (
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/penstock/penstock/internal/testing/eventually"
	"github.com/penstock/penstock/internal/testing/redistest"
)

func TestHealthcheckReportsReadiness(t *testing.T) {
	p := startProcess(t, "--admin-listen=127.0.0.1:0", "--drain-delay=20s")
	_, port, _ := net.SplitHostPort(p.admin)
	for _, address := range []string{p.admin, "http://" + p.admin, ":" + port, "0.0.0.0:" + port, "localhost:" + port} {
		if code, out, errors := command("healthcheck", "--admin", address); code != 0 || out != "ok\n" {
			t.Errorf("healthcheck --admin %s: exit status %d, %q, %s; want 0 with %q", address, code, out, errors, "ok\n")
		}
	}
	t.Setenv("PENSTOCK_ADMIN_LISTEN", p.admin)
	if code, out, errors := command("healthcheck"); code != 0 || out != "ok\n" {
		t.Errorf("with the address in PENSTOCK_ADMIN_LISTEN: exit status %d, %q, %s; want 0 with %q", code, out, errors, "ok\n")
	}
	if err := p.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	var code int
	var errors string
	eventually.True(t, "a health check that fails", func() bool {
		code, _, errors = command("healthcheck")
		return code != 0
	})
	if code != 1 || !strings.Contains(errors, "not ready: status 503") {
		t.Errorf("healthcheck while the service drains: exit status %d, %s; want %d with %q", code, errors, 1, "not ready: status 503")
	}
}

// A service without its Redis decides by on_failure: it is degraded and ready.
func TestHealthcheckOfADegradedService(t *testing.T) {
	s := redistest.Start(t)
	p := startProcess(t, "--admin-listen=127.0.0.1:0", "--store="+s.URL())
	s.Kill()
	if code, out, errors := command("healthcheck", "--admin", p.admin); code != 0 || out != "degraded: store\n" {
		t.Errorf("healthcheck: exit status %d, %q, %s; want 0 with %q", code, out, errors, "degraded: store\n")
	}
}

// serve listens at --admin-listen, and other commands reach this address by --admin.
func TestErrorsOfAdminFlagsNameTheOtherFlag(t *testing.T) {
	for line, want := range map[string]string{
		"status key:a --admin-listen 127.0.0.1:9180": "write --admin ADDRESS",
		"reset key:a --admin-listen=127.0.0.1:9180":  "write --admin ADDRESS",
		"top --admin-listen 127.0.0.1:9180":          "write --admin ADDRESS",
		"denials --admin-listen 127.0.0.1:9180":      "write --admin ADDRESS",
		"doctor --admin-listen 127.0.0.1:9180":       "write --admin ADDRESS",
		"healthcheck --admin-listen 127.0.0.1:9180":  "write --admin ADDRESS",
		"serve --demo --admin 127.0.0.1:9180":        "write --admin-listen ADDRESS",
		"ratelimit --admin 127.0.0.1:9180":           "unknown flag: --admin",
		"validate --admin-listen 127.0.0.1:9180":     "unknown flag: --admin-listen",
	} {
		if code, _, errors := command(strings.Fields(line)...); code == exitOK || !strings.Contains(errors, want) {
			t.Errorf("%s: exit status %d, %s; want an error with %q", line, code, errors, want)
		}
	}
	for line, want := range map[string]string{"status --help": "--admin-listen of its serve", "serve --help": "reach it by --admin"} {
		if _, out, _ := command(strings.Fields(line)...); !strings.Contains(out, want) {
			t.Errorf("%s does not contain %q:\n%s", line, want, out)
		}
	}
}

func TestHealthcheckOverUnixSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "admin.sock")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	server := &httptest.Server{Listener: l, Config: &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/readyz" || r.Host != "localhost" {
			w.WriteHeader(http.StatusTeapot)
		}
		io.WriteString(w, "ok\n")
	})}}
	server.Start()
	defer server.Close()
	for _, address := range []string{"unix:" + path, "unix://" + path} {
		if code, out, errors := command("healthcheck", "--admin", address); code != 0 || out != "ok\n" {
			t.Errorf("healthcheck --admin %s: exit status %d, %q, %s; want 0 with %q", address, code, out, errors, "ok\n")
		}
	}
}

// Docker reserves the exit status 2 of a health check, so every failure has 1.
func TestEveryFailureOfHealthcheckExitsWith1(t *testing.T) {
	hanging, err := net.Listen("tcp", "127.0.0.1:0") // it accepts connections and never answers
	if err != nil {
		t.Fatal(err)
	}
	defer hanging.Close()
	for args, want := range map[string]string{
		"--admin 127.0.0.1:1":     "does not answer",
		"--admin unix:/none.sock": "no such file",
		"--admin nowhere":         "write host:port, https://host:port or unix:/path/of.sock",
		"--admin unix:":           "write host:port, https://host:port or unix:/path/of.sock",
		"--admin a/b:1":           "does not answer",
		"--unknown":               "unknown flag",
		"127.0.0.1:9180":          "write --admin 127.0.0.1:9180",
		"--timeout 50ms --admin " + hanging.Addr().String(): "deadline exceeded",
	} {
		if code, out, errors := command(append([]string{"healthcheck"}, strings.Fields(args)...)...); code != 1 || out != "" || !strings.Contains(errors, want) {
			t.Errorf("healthcheck %s: exit status %d, %q, %s; want %d with %q", args, code, out, errors, 1, want)
		}
	}
	t.Setenv("PENSTOCK_ADMIN_LISTEN", "off")
	if code, _, errors := command("healthcheck"); code != 1 || !strings.Contains(errors, "is off") {
		t.Errorf("PENSTOCK_ADMIN_LISTEN=off: exit status %d, %s; want %d with %q", code, errors, 1, "is off")
	}
}
