package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// modulePath is the path of the module envoyproxy/ratelimit. The module in testdata/ratelimit
// requires one version of it. That module is separate, so that its requirements do not affect this
// program or the workspace.
const modulePath = "github.com/envoyproxy/ratelimit"

// An oracle has the programs of envoyproxy/ratelimit, built from its module.
type oracle struct {
	version   string   // or the folder of a checkout
	source    string   // the folder of the module
	flags     []string // of the go command; they select a go.mod in which a checkout replaces the module
	dir       string   // has the programs
	clockFile string   // the file with the time of the service; "": it uses the system's clock
}

// buildOracle builds the programs into dir. source is the folder of the module that requires
// envoyproxy/ratelimit. The go command downloads missing modules. If checkout is not "", it is a
// folder with the source of envoyproxy/ratelimit, which replaces the required version.
func buildOracle(source, checkout, dir string) (*oracle, error) {
	source, err := filepath.Abs(source)
	if err != nil {
		return nil, err
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	o := &oracle{source: source, dir: dir, version: checkout}
	if checkout != "" {
		if checkout, err = filepath.Abs(checkout); err != nil {
			return nil, err
		}
		if o.flags, err = o.replaceModule("checkout", checkout); err != nil {
			return nil, err
		}
	} else {
		version, err := o.runGo("list", "-m", "-f", "{{.Version}}", modulePath)
		if err != nil {
			return nil, err
		}
		o.version = strings.TrimSpace(version)
	}
	if err := o.build(o.flags, dir+"/", ".", modulePath+"/src/service_cmd", modulePath+"/src/client_cmd", modulePath+"/src/config_check_cmd"); err != nil {
		return nil, fmt.Errorf("%w\nthe flag -source names a checkout of %s, for example if the module proxy does not have this version", err, modulePath)
	}
	return o, o.buildClocked()
}

func (o *oracle) build(flags []string, to string, packages ...string) error {
	_, err := o.runGo(slices.Concat([]string{"build"}, flags, []string{"-o", to}, packages)...)
	return err
}

// replaceModule makes a copy of the module's go.mod, in which the folder to replaces
// envoyproxy/ratelimit. The copy, and its go.sum, have this base name. replaceModule returns the
// flags of the go command that select the copy.
func (o *oracle) replaceModule(name, to string) (flags []string, _ error) {
	mod := filepath.Join(o.dir, name+".mod")
	if err := copyFile(mod, filepath.Join(o.source, "go.mod")); err != nil {
		return nil, err
	}
	if err := copyFile(filepath.Join(o.dir, name+".sum"), filepath.Join(o.source, "go.sum")); err != nil {
		return nil, err
	}
	_, err := o.runGo("mod", "edit", "-replace", modulePath+"="+to, mod)
	return []string{"-mod=mod", "-modfile=" + mod}, err
}

// runGo runs the go command in the module, which is outside the workspace. It returns the command's
// output.
func (o *oracle) runGo(args ...string) (string, error) {
	cmd := exec.Command("go", args...)
	cmd.Dir, cmd.Env = o.source, append(os.Environ(), "GOWORK=off")
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("go %s: %w\n%s", strings.Join(args, " "), err, &stderr)
	}
	return string(out), nil
}

// start starts the service. It is a starter.
func (o *oracle) start(name string, conf *startConfig, redis string) (*service, error) {
	addresses, err := freeAddresses(3)
	if err != nil {
		return nil, err
	}
	grpc, http, debug := addresses[0], addresses[1], addresses[2]
	dir, base := filepath.Split(filepath.Clean(conf.dir))
	portOf := func(address string) string { return address[strings.LastIndex(address, ":")+1:] }
	environment := []string{
		"GRPC_HOST=127.0.0.1", "GRPC_PORT=" + portOf(grpc), "HOST=127.0.0.1", "PORT=" + portOf(http), "DEBUG_HOST=127.0.0.1", "DEBUG_PORT=" + portOf(debug),
		"DISABLE_STATS=true", "USE_STATSD=false", "LOG_LEVEL=error",
		"RUNTIME_ROOT=" + dir, "RUNTIME_SUBDIRECTORY=", "RUNTIME_APPDIRECTORY=" + base, "RUNTIME_WATCH_ROOT=false",
		"REDIS_SOCKET_TYPE=tcp", "REDIS_URL=" + redis,
		fmt.Sprint("LIMIT_RESPONSE_HEADERS_ENABLED=", conf.settings.hasHeaders), fmt.Sprint("RESPONSE_DYNAMIC_METADATA=", conf.settings.hasMetadata),
		fmt.Sprint("SHADOW_MODE=", conf.settings.isShadow), fmt.Sprint("QUOTA_MODE=", conf.settings.isQuota),
	}
	program := "service_cmd"
	if o.clockFile != "" {
		program, environment = "service_clocked", append(environment, "CLOCK_FILE="+o.clockFile)
	}
	s := &service{name: name, grpc: grpc, http: http}
	return s, s.start(dir, environment, filepath.Join(o.dir, program))
}
