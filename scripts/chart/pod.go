//go:build chart

package main

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
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
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// A pod runs the Deployment's pod on this machine, with files in a folder and addresses on
// loopback.
type pod struct {
	*checks
	all   *objects // all objects of the chart
	dir   string   // folder of the mounted files and the logs
	spec  corev1.PodSpec
	env   []corev1.EnvVar // of the container of penstock serve
	admin string          // address of the admin listener
	notes string          // further checks that passed, for the log

	paths     map[string]string // folders on this machine, by mount path
	addresses map[string]string // addresses on this machine, by address of the container
	processes []*process
}

func (c *checks) newPod(name string, all *objects) (*pod, error) {
	p := &pod{checks: c, all: all, dir: filepath.Join(c.dir, name), spec: all.deployment.Spec.Template.Spec,
		paths: make(map[string]string), addresses: make(map[string]string)}
	p.env = p.spec.Containers[0].Env
	return p, os.MkdirAll(p.dir, 0o755)
}

func (p *pod) end() {
	for _, process := range p.processes {
		process.kill()
	}
}

// start starts the pod, and Valkey before it if the chart has one.
func (p *pod) start() error {
	if err := p.mountAll("", p.spec); err != nil {
		return err
	}
	for _, s := range p.all.statefulSets {
		if err := p.startValkey(s.Name, s.Spec.Template.Spec); err != nil {
			return err
		}
	}
	if err := p.checkDrain(); err != nil {
		return err
	}
	if err := p.validate(); err != nil {
		return err
	}
	serve, err := p.serve()
	if err != nil {
		return err
	}
	if err := p.probe(serve); err != nil {
		return err
	}
	text, err := os.ReadFile(serve.log)
	if err != nil {
		return err
	}
	const unknownVariable = "misspelled" // in the warning about an environment variable
	if strings.Contains(string(text), unknownVariable) || strings.Contains(string(text), `"level":"ERROR"`) {
		return fmt.Errorf("penstock serve logged an error, or an unknown environment variable:\n%s", text)
	}
	return p.reload(serve)
}

// checkDrain checks that Kubernetes does not kill the pod before penstock serve has drained.
func (p *pod) checkDrain() error {
	var drain time.Duration
	for _, name := range []string{"PENSTOCK_DRAIN_DELAY", "PENSTOCK_DRAIN_TIMEOUT"} {
		d, err := time.ParseDuration(p.value(name))
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		drain += d
	}
	if grace := p.spec.TerminationGracePeriodSeconds; grace == nil || time.Duration(*grace)*time.Second <= drain {
		return fmt.Errorf("terminationGracePeriodSeconds is missing or too short; want more than %v, which is the drain's delay and timeout", drain)
	}
	return nil
}

// value returns the value of an environment variable of the container, or "".
func (p *pod) value(name string) string {
	for _, e := range p.env {
		if e.Name == name {
			return e.Value
		}
	}
	return ""
}

// mountAll makes the folders that the first container mounts. Their names begin with prefix.
func (p *pod) mountAll(prefix string, spec corev1.PodSpec) error {
	for _, m := range spec.Containers[0].VolumeMounts {
		i := slices.IndexFunc(spec.Volumes, func(v corev1.Volume) bool { return v.Name == m.Name })
		files, err := p.content(spec.Volumes[i])
		if err != nil {
			return fmt.Errorf("volume %s: %w", m.Name, err)
		}
		folder := filepath.Join(p.dir, prefix+m.Name)
		p.paths[m.MountPath] = folder
		if err := mount(folder, "1", files); err != nil {
			return err
		}
	}
	return nil
}

// mount writes files into a folder as the kubelet does. The files in the folder are links into
// ..data, which is itself a link to a folder with the files of one version. A new version replaces
// the link ..data atomically.
func mount(folder, version string, files map[string]string) error {
	ofVersion := filepath.Join(folder, "..version"+version)
	if err := os.MkdirAll(ofVersion, 0o755); err != nil {
		return err
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(ofVersion, name), []byte(text), 0o600); err != nil {
			return err
		}
		if err := os.Symlink(filepath.Join("..data", name), filepath.Join(folder, name)); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	newLink := filepath.Join(folder, "..data_tmp")
	if err := os.Symlink(filepath.Base(ofVersion), newLink); err != nil {
		return err
	}
	return os.Rename(newLink, filepath.Join(folder, "..data"))
}

// content returns the files of a volume. For Secrets and ConfigMaps that are not in the chart, it
// makes up the content.
func (p *pod) content(v corev1.Volume) (map[string]string, error) {
	files := make(map[string]string)
	switch {
	case v.ConfigMap != nil:
		if configMap, ok := p.all.configMaps[v.ConfigMap.Name]; ok {
			return configMap.Data, nil
		}
		files["policy.yaml"] = "version: 1\nrules:\n  - {name: all, per: ip, limits: [{rate: 10/s}]}\n"
	case v.Projected != nil:
		for _, source := range v.Projected.Sources {
			for _, item := range source.Secret.Items {
				files[item.Path] = p.secret(item.Path)
			}
		}
	case v.Secret != nil && v.Name == "tls":
		certificate, key, err := testCertificate()
		if err != nil {
			return nil, err
		}
		files["tls.crt"], files["tls.key"] = certificate, key
	case v.Secret != nil:
		files["password"] = valkeyPassword
	case v.EmptyDir == nil:
		return nil, errors.New("this test does not know this kind of volume; add it to pod.content")
	}
	return files, nil
}

// valkeyPassword has characters that a shell and an ACL file would read as something else.
const valkeyPassword = `a 'long' "pass$word" #1`

// secret returns the content of a file of a mounted secret. The store and the password of Valkey
// work. The other secrets are texts of at least 16 bytes, the shortest that penstock accepts.
func (p *pod) secret(file string) string {
	switch file {
	case "store":
		return p.redis.URL()
	case "valkey-password":
		return valkeyPassword
	}
	return "0123456789abcdef-" + file
}

// testCertificate returns the certificate of httptest and its key, in PEM form.
func testCertificate() (certificate, key string, err error) {
	s := httptest.NewTLSServer(http.NotFoundHandler())
	defer s.Close()
	pair := s.TLS.Certificates[0]
	der, err := x509.MarshalPKCS8PrivateKey(pair.PrivateKey)
	encode := func(kind string, der []byte) string {
		return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
	}
	return encode("CERTIFICATE", pair.Certificate[0]), encode("PRIVATE KEY", der), err
}

// listenAddress matches an address at which the container listens, such as :8080.
var listenAddress = regexp.MustCompile(`^(0\.0\.0\.0)?:[0-9]+$`)

// localize replaces the pod's paths and addresses in a text by those of this machine. A listen
// address becomes a free address.
func (p *pod) localize(text string) (string, error) {
	if listenAddress.MatchString(text) {
		address, err := freeAddress()
		p.addresses[text] = address
		return address, err
	}
	paths := slices.Sorted(maps.Keys(p.paths))
	slices.Reverse(paths) // /etc/penstock/policy is replaced before /etc/penstock
	for _, path := range paths {
		text = strings.ReplaceAll(text, path, p.paths[path])
	}
	for inCluster, address := range p.addresses {
		if strings.Contains(inCluster, "-valkey:") { // the others are listen addresses
			text = strings.ReplaceAll(text, inCluster, address)
		}
	}
	return text, nil
}

// freeAddress returns an address on loopback at which nothing listens.
func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}

// environ returns the container's environment.
func (p *pod) environ() (list []string, err error) {
	for _, e := range p.env {
		if e.ValueFrom != nil {
			return nil, fmt.Errorf("the variable %s has valueFrom, which this test does not know", e.Name)
		}
		text, err := p.localize(e.Value)
		if err != nil {
			return nil, fmt.Errorf("variable %s: %w", e.Name, err)
		}
		list = append(list, e.Name+"="+text)
		if e.Name == "PENSTOCK_ADMIN_LISTEN" {
			p.admin = text
		}
	}
	return list, nil
}

// validate runs penstock validate with the policy, if the pod has one.
func (p *pod) validate() error {
	file, err := p.localize(p.value("PENSTOCK_CONFIG"))
	if err != nil || file == "" {
		return err
	}
	_, err = p.runProgram(p.penstock, "validate", "--strict", file)
	return err
}

// serve starts penstock serve with the pod's arguments and variables.
func (p *pod) serve() (*process, error) {
	environ, err := p.environ()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(p.penstock, p.spec.Containers[0].Args...)
	cmd.Env = environ
	return p.startProcess("serve", cmd)
}

// startValkey runs the script of the Valkey container, with the paths of this machine. The script
// runs valkey-server, which is a link to redis-server here.
func (p *pod) startValkey(name string, spec corev1.PodSpec) error {
	if err := p.mountAll("valkey-", spec); err != nil {
		return err
	}
	program, err := exec.LookPath("redis-server")
	if err != nil {
		return err
	}
	bin := filepath.Join(p.dir, "bin")
	if err := os.MkdirAll(bin, 0o755); err != nil {
		return err
	}
	if err := os.Symlink(program, filepath.Join(bin, "valkey-server")); err != nil {
		return err
	}
	c := spec.Containers[0]
	script, err := p.localize(c.Args[0])
	if err != nil {
		return err
	}
	address, err := freeAddress()
	if err != nil {
		return err
	}
	_, port, _ := net.SplitHostPort(address)
	p.addresses[name+":6379"] = address
	cmd := exec.Command(c.Command[0], append(c.Command[1:], strings.TrimSpace(script)+" --bind 127.0.0.1 --port "+port)...)
	cmd.Env = []string{"PATH=" + bin + ":" + os.Getenv("PATH")}
	valkey, err := p.startProcess("valkey", cmd)
	if err != nil {
		return err
	}
	if err := valkey.await("Valkey accepts connections", func() error {
		conn, err := net.Dial("tcp", address)
		if err == nil {
			err = conn.Close()
		}
		return err
	}); err != nil {
		return err
	}
	p.notes += ", Valkey with its user"
	return nil
}

// probe waits until the probes succeed, and checks that the store decides.
func (p *pod) probe(serve *process) error {
	for _, probe := range []*corev1.Probe{p.spec.Containers[0].LivenessProbe, p.spec.Containers[0].ReadinessProbe} {
		path, scheme := probe.HTTPGet.Path, strings.ToLower(string(probe.HTTPGet.Scheme))
		if scheme == "" {
			scheme = "http"
		}
		if err := serve.await(path+" responds ok", func() error {
			text, err := get(scheme + "://" + p.admin + path)
			if err == nil && strings.TrimSpace(text) != "ok" {
				err = fmt.Errorf("the body of the response is %q; want ok", text)
			}
			return err
		}); err != nil {
			return err
		}
	}
	metrics, err := get("http://" + p.admin + "/metrics")
	if err != nil {
		return err
	}
	if value := metric(metrics, "rate_limiter_store_degraded"); value != "0" {
		return fmt.Errorf("rate_limiter_store_degraded is %q; want 0", value)
	}
	if len(p.all.statefulSets) == 0 {
		return nil
	}
	for _, line := range strings.Split(metrics, "\n") {
		isWarning := strings.HasPrefix(line, "rate_limiter_store_can_evict{") || strings.HasPrefix(line, "rate_limiter_store_right_missing{")
		if isWarning && !strings.HasSuffix(line, " 0") {
			return fmt.Errorf("the Valkey of the chart may evict keys, or its user lacks a right: %s", line)
		}
	}
	return nil
}

// reload changes the ConfigMap of the policy, and waits until it is loaded.
func (p *pod) reload(serve *process) error {
	folder := p.paths["/etc/penstock/policy"]
	if folder == "" {
		return nil
	}
	text, err := os.ReadFile(filepath.Join(folder, "policy.yaml"))
	if err != nil {
		return err
	}
	if err := mount(folder, "2", map[string]string{"policy.yaml": string(text) + "  - {name: another, match: {path: /another}, per: ip, limits: [{rate: 20/s}]}\n"}); err != nil {
		return err
	}
	p.notes += ", policy reloaded"
	return serve.await("the changed policy is loaded", func() error {
		text, err := get("http://" + p.admin + "/metrics")
		if value := metric(text, `rate_limiter_config_reloads_total{outcome="success"}`); err == nil && (value == "" || value == "0") {
			err = errors.New("penstock serve has not reloaded the policy")
		}
		return err
	})
}

// metric returns the value of a series in the text of /metrics, or "".
func metric(text, series string) string {
	for line := range strings.Lines(text) {
		if value, ok := strings.CutPrefix(line, series+" "); ok {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

func get(url string) (string, error) {
	client := http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{
		TLSClientConfig:   &tls.Config{InsecureSkipVerify: true},
		DisableKeepAlives: true,
	}}
	res, err := client.Get(url)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode != http.StatusOK {
		err = fmt.Errorf("GET %s: %s: %s", url, res.Status, text)
	}
	return string(text), err
}

// A process is a program that runs until it is killed.
type process struct {
	name, log string // log is the path of the file
	cmd       *exec.Cmd
	done      chan struct{} // is closed when the process has ended
}

func (p *pod) startProcess(name string, cmd *exec.Cmd) (*process, error) {
	started := &process{name, filepath.Join(p.dir, name+".log"), cmd, make(chan struct{})}
	out, err := os.Create(started.log)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p.processes = append(p.processes, started)
	go func() {
		_ = cmd.Wait() // await reports a process that has ended
		close(started.done)
	}()
	return started, nil
}

func (p *process) kill() {
	_ = p.cmd.Process.Kill() // it may have ended
	<-p.done
}

// await waits until check returns nil, for a minute at most. The parameter what describes the
// expected state. If await fails, its error has the end of the process' log.
func (p *process) await(what string, check func() error) error {
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		err := check()
		if err == nil {
			return nil
		}
		hasEnded := false
		select {
		case <-p.done:
			hasEnded = true
		default:
		}
		if hasEnded || time.Now().After(deadline) {
			const shown = 2000 // bytes of the log
			text, _ := os.ReadFile(p.log)
			return fmt.Errorf("%s: this never became true: %s: %w\n%s", p.name, what, err, text[max(0, len(text)-shown):])
		}
	}
}

// copyTree copies the folder of the chart into another folder. Links become copies of the files
// that they name. The modification time of all files is date, in the form of RFC 3339.
func copyTree(to, chart, date string) error {
	modified, err := time.Parse(time.RFC3339, date)
	if err != nil {
		return err
	}
	return filepath.WalkDir(chart, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(filepath.Dir(chart), path)
		if err != nil {
			return err
		}
		if d.IsDir() {
			return os.MkdirAll(filepath.Join(to, name), 0o755)
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(to, name), text, 0o644); err != nil {
			return err
		}
		return os.Chtimes(filepath.Join(to, name), modified, modified)
	})
}
