package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// modulePath is envoyproxy/ratelimit. Its version is in testdata/ratelimit/go.mod. That module is
// separate, so that its requirements do not affect this program or the workspace.
const modulePath = "github.com/envoyproxy/ratelimit"

// An oracle has the programs of envoyproxy/ratelimit, built from its module.
type oracle struct {
	version string
	dir     string
	clock   string // the file with its time; "": the system's clock
}

// buildOracle builds the programs in dir. It downloads missing modules.
func buildOracle(source, dir string) (*oracle, error) {
	source, err := filepath.Abs(source)
	if err != nil {
		return nil, err
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return nil, err
	}
	version, err := inModule(source, "list", "-m", "-f", "{{.Version}}", modulePath)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	programs := []string{"build", "-o", dir + "/", ".", modulePath + "/src/service_cmd", modulePath + "/src/client_cmd", modulePath + "/src/config_check_cmd"}
	if _, err := inModule(source, programs...); err != nil {
		return nil, err
	}
	o := &oracle{version: strings.TrimSpace(version), dir: dir}
	return o, o.buildClocked(source)
}

// inModule runs the go command in a module outside the workspace.
func inModule(dir string, args ...string) (string, error) {
	cmd := exec.Command("go", args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "GOWORK=off")
	var problems strings.Builder
	cmd.Stderr = &problems
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("go %s: %w\n%s", strings.Join(args, " "), err, &problems)
	}
	return string(out), nil
}

// start starts the service.
func (o *oracle) start(name string, conf *startConfig, redis string) (*service, error) {
	addresses, err := freeAddresses(3)
	if err != nil {
		return nil, err
	}
	dir, base := filepath.Split(filepath.Clean(conf.dir))
	port := func(i int) string { return addresses[i][strings.LastIndex(addresses[i], ":")+1:] }
	environment := []string{
		"GRPC_HOST=127.0.0.1", "GRPC_PORT=" + port(0), "HOST=127.0.0.1", "PORT=" + port(1), "DEBUG_HOST=127.0.0.1", "DEBUG_PORT=" + port(2),
		"DISABLE_STATS=true", "USE_STATSD=false", "LOG_LEVEL=error",
		"RUNTIME_ROOT=" + dir, "RUNTIME_SUBDIRECTORY=", "RUNTIME_APPDIRECTORY=" + base, "RUNTIME_WATCH_ROOT=false",
		"REDIS_SOCKET_TYPE=tcp", "REDIS_URL=" + redis,
		fmt.Sprint("LIMIT_RESPONSE_HEADERS_ENABLED=", conf.settings.hasHeaders), fmt.Sprint("RESPONSE_DYNAMIC_METADATA=", conf.settings.hasMetadata),
		fmt.Sprint("SHADOW_MODE=", conf.settings.isShadow), fmt.Sprint("QUOTA_MODE=", conf.settings.isQuota),
	}
	program := "service_cmd"
	if o.clock != "" {
		program, environment = "service_clocked", append(environment, "CLOCK_FILE="+o.clock)
	}
	s := &service{name: name, grpc: addresses[0], http: addresses[1]}
	return s, s.start(dir, environment, filepath.Join(o.dir, program))
}
