package command

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/testing/redistest"
)

func TestRatelimitReadsTheVariablesOfEnvoysService(t *testing.T) {
	t.Setenv("RUNTIME_ROOT", "/data")
	t.Setenv("REDIS_SOCKET_TYPE", "tcp")
	t.Setenv("REDIS_URL", "redis:6379")
	t.Setenv("PENSTOCK_ENVOY_MODE", "exact")
	code, out, err := command("ratelimit", "--print-settings")
	if code != exitOK {
		t.Fatalf("ratelimit --print-settings: exit status %d, %s; want %d", code, err, exitOK)
	}
	for _, want := range []string{"envoy-config /data/config", "store redis://redis:6379", "envoy-mode exact PENSTOCK_ENVOY_MODE", "grpc 0.0.0.0:8081"} {
		if !strings.Contains(strings.Join(strings.Fields(out), " "), want) {
			t.Errorf("the settings lack %q:\n%s", want, out)
		}
	}
	t.Setenv("BACKEND_TYPE", "memcache")
	if code, _, err := command("ratelimit"); code != exitInvalid || !strings.Contains(err, "BACKEND_TYPE") {
		t.Errorf("ratelimit with BACKEND_TYPE=memcache: exit status %d, %s; want %d and the variable's name", code, err, exitInvalid)
	}
}

// If the binary is named ratelimit, it runs the command ratelimit: it serves with the variables of
// a usual deployment of envoyproxy/ratelimit.
func TestBinaryNamedRatelimitRunsThatCommand(t *testing.T) {
	root := t.TempDir()
	if err := os.MkdirAll(filepath.Join(root, "ratelimit", "config"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, "ratelimit", "config", "a.yaml"), []byte("domain: a"), 0o600); err != nil {
		t.Fatal(err)
	}
	p := exec.Command(os.Args[0])
	p.Args[0] = "/bin/ratelimit"
	p.Env = []string{
		"BE_PENSTOCK=1", "RUNTIME_ROOT=" + root, "RUNTIME_SUBDIRECTORY=ratelimit", "RUNTIME_WATCH_ROOT=false", "USE_STATSD=false", "LOG_LEVEL=info",
		"REDIS_SOCKET_TYPE=tcp", "REDIS_URL=" + redistest.Start(t).URL(), "HOST=127.0.0.1", "PORT=0", "GRPC_HOST=127.0.0.1", "GRPC_PORT=0", "DEBUG_HOST=127.0.0.1", "DEBUG_PORT=0",
	}
	pipe, err := p.StderrPipe()
	if err == nil {
		err = p.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	killer := time.AfterFunc(patience, func() { p.Process.Kill() }) // so that Scan ends if the line never comes
	defer killer.Stop()
	var log strings.Builder
	for lines := bufio.NewScanner(pipe); lines.Scan(); {
		log.WriteString(lines.Text() + "\n")
		if strings.Contains(lines.Text(), "msg=listening") {
			break
		}
	}
	p.Process.Kill()
	p.Wait()
	for _, want := range []string{"Envoy's rate limits loaded", "msg=listening", "grpc=127.0.0.1:"} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("the log lacks %q:\n%s", want, &log)
		}
	}
}
