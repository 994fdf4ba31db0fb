//go:build checks

package chart

import (
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/penstock/penstock/internal/testing/redistest"
	"github.com/penstock/penstock/scripts/internal/process"
)

// valkeyPassword has characters that a shell and an ACL file would read as something else.
const valkeyPassword = `a 'long' "pass$word" #1`

// A pod runs the pods of the chart on this machine.
type pod struct {
	list     *objects
	dir      string            // of the mounted files
	replaced map[string]string // paths and addresses of this machine, by those of the pods
}

// runPod runs penstock serve with the arguments, variables and files of the Deployment, after
// Valkey if the chart has one. The probes must succeed, and the store must decide.
func runPod(t *testing.T, list *objects) {
	p := &pod{list: list, dir: t.TempDir(), replaced: make(map[string]string)}
	main := list.workloads[0].spec
	for _, valkey := range list.workloads[1:] {
		p.startValkey(t, valkey)
	}
	p.mount(t, "penstock", main)
	c := main.Containers[0]
	cmd := exec.Command(process.Penstock(t), c.Args...)
	value := make(map[string]string) // of the variables
	for _, e := range c.Env {
		value[e.Name] = p.localize(t, e.Value)
		cmd.Env = append(cmd.Env, e.Name+"="+value[e.Name])
	}
	var drain time.Duration
	for _, name := range []string{"PENSTOCK_DRAIN_DELAY", "PENSTOCK_DRAIN_TIMEOUT"} {
		d, err := time.ParseDuration(value[name])
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		drain += d
	}
	if grace := main.TerminationGracePeriodSeconds; grace == nil || time.Duration(*grace)*time.Second <= drain {
		t.Errorf("terminationGracePeriodSeconds is missing or too short; want more than %v, the drain's delay and timeout", drain)
	}
	if file := value["PENSTOCK_CONFIG"]; file != "" {
		process.Run(t, process.Penstock(t), "validate", "--strict", file)
	}
	serve := process.Start(t, "serve", cmd)
	for _, probe := range []*corev1.Probe{c.LivenessProbe, c.ReadinessProbe} {
		scheme := strings.ToLower(string(probe.HTTPGet.Scheme))
		if scheme == "" {
			scheme = "http"
		}
		serve.Await(probe.HTTPGet.Path+" responds ok", func() error {
			text, err := process.Get(scheme + "://" + value["PENSTOCK_ADMIN_LISTEN"] + probe.HTTPGet.Path)
			if err == nil && strings.TrimSpace(text) != "ok" {
				err = fmt.Errorf("the body of the response is %q; want ok", text)
			}
			return err
		})
	}
	metrics, err := process.Get("http://" + value["PENSTOCK_ADMIN_LISTEN"] + "/metrics")
	if err != nil || !strings.Contains(metrics, "\nrate_limiter_store_degraded 0\n") {
		t.Errorf("/metrics does not report rate_limiter_store_degraded 0 (error %v)", err)
	}
	bad := regexp.MustCompile(`(?m)^rate_limiter_store_(can_evict|right_missing)\{.*[^ ]\} [^0].*$`).FindString(metrics)
	if len(list.workloads) > 1 && bad != "" {
		t.Errorf("the Valkey of the chart may evict keys, or its user lacks a right: %s", bad)
	}
	if log := serve.Log(); strings.Contains(log, "misspelled") || strings.Contains(log, `"level":"ERROR"`) {
		t.Errorf("penstock serve logged an error, or an unknown environment variable:\n%s", log)
	}
	t.Logf("%d objects, %d variables", len(list.all), len(c.Env))
}

// mount makes the folders that the first container mounts.
func (p *pod) mount(t *testing.T, name string, spec corev1.PodSpec) {
	for _, m := range spec.Containers[0].VolumeMounts {
		folder := filepath.Join(p.dir, name, m.Name)
		p.replaced[m.MountPath] = folder
		if err := os.MkdirAll(folder, 0o755); err != nil {
			t.Fatal(err)
		}
		for _, v := range spec.Volumes {
			if v.Name != m.Name {
				continue
			}
			for name, text := range p.content(t, v) {
				process.WriteFile(t, filepath.Join(folder, name), text)
			}
		}
	}
}

// content returns the files of a volume. For Secrets and ConfigMaps that are not in the chart, it
// makes up the content.
func (p *pod) content(t *testing.T, v corev1.Volume) map[string]string {
	files := make(map[string]string)
	switch {
	case v.ConfigMap != nil && p.list.configMaps[v.ConfigMap.Name] != nil:
		return p.list.configMaps[v.ConfigMap.Name]
	case v.ConfigMap != nil:
		files["policy.yaml"] = "version: 1\nrules:\n  - {name: all, per: ip, limits: [{rate: 10/s}]}\n"
	case v.Projected != nil:
		for _, source := range v.Projected.Sources {
			for _, item := range source.Secret.Items {
				switch item.Path {
				case "store":
					files[item.Path] = redistest.Start(t).URL()
				case "valkey-password":
					files[item.Path] = valkeyPassword
				default:
					files[item.Path] = "0123456789abcdef-" + item.Path // the shortest secret has 16 bytes
				}
			}
		}
	case v.Secret != nil && v.Name == "tls":
		files["tls.crt"], files["tls.key"] = testCertificate(t)
	case v.Secret != nil:
		files["password"] = valkeyPassword
	case v.EmptyDir == nil:
		t.Fatalf("this test does not know the kind of the volume %s; add it here", v.Name)
	}
	return files
}

// testCertificate returns the certificate of httptest and its key, in PEM form.
func testCertificate(t *testing.T) (certificate, key string) {
	s := httptest.NewTLSServer(http.NotFoundHandler())
	defer s.Close()
	pair := s.TLS.Certificates[0]
	der, err := x509.MarshalPKCS8PrivateKey(pair.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	encode := func(kind string, der []byte) string {
		return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
	}
	return encode("CERTIFICATE", pair.Certificate[0]), encode("PRIVATE KEY", der)
}

// listenAddress matches an address at which a container listens, such as :8080.
var listenAddress = regexp.MustCompile(`^(0\.0\.0\.0)?:[0-9]+$`)

// localize replaces the paths and addresses of the pods in a text by those of this machine.
func (p *pod) localize(t *testing.T, text string) string {
	if listenAddress.MatchString(text) {
		return process.FreeAddress(t)
	}
	names := slices.Sorted(maps.Keys(p.replaced))
	slices.Reverse(names) // /etc/penstock/policy is replaced before /etc/penstock
	for _, name := range names {
		text = strings.ReplaceAll(text, name, p.replaced[name])
	}
	return text
}

// startValkey runs the script of the Valkey container. The script runs valkey-server, which is a
// link to redis-server here.
func (p *pod) startValkey(t *testing.T, w workload) {
	p.mount(t, w.name, w.spec)
	program, err := exec.LookPath(redistest.Program())
	bin := filepath.Join(p.dir, "bin")
	if err := errors.Join(err, os.MkdirAll(bin, 0o755), os.Symlink(program, filepath.Join(bin, "valkey-server"))); err != nil {
		t.Fatal(err)
	}
	address := process.FreeAddress(t)
	_, port, _ := net.SplitHostPort(address)
	c := w.spec.Containers[0]
	script := strings.TrimSpace(p.localize(t, c.Args[0])) + " --bind 127.0.0.1 --port " + port
	p.replaced[w.name+":6379"] = address
	cmd := exec.Command(c.Command[0], append(c.Command[1:], script)...)
	cmd.Env = []string{"PATH=" + bin + ":" + os.Getenv("PATH")}
	process.Start(t, "valkey", cmd).AwaitListening(address)
}
