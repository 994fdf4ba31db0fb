//go:build chart

// Command chart checks the Helm chart for each set of values in its folder ci:
//
//   - helm lint --strict accepts it
//   - the rendered objects fit together, and have only fields of Kubernetes' API
//   - penstock validate --strict accepts the policy
//   - penstock serve starts with the arguments, variables and files of the pod, on loopback, and
//     answers the probes
//   - penstock serve reloads the policy when the ConfigMap changes
//   - the Valkey of the chart starts, and the rights of its user are enough for penstock serve
//
// It also checks that helm rejects bad values, that deploy/kubernetes has the objects of the
// default values, and that the chart has the same bytes when it is packed twice.
package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/penstock/penstock/internal/redistest"
)

func main() {
	log.SetFlags(0)
	log.SetPrefix("chart: ")
	isUpdate := flag.Bool("update", false, "write deploy/kubernetes, instead of comparing it with the chart")
	flag.Parse()
	if flag.NArg() != 4 {
		log.Fatal("usage: chart [-update] HELM PENSTOCK DEPLOY OUT")
	}
	dir, err := os.MkdirTemp("", "chart-")
	if err != nil {
		log.Fatal(err)
	}
	c := &checks{helm: flag.Arg(0), penstock: flag.Arg(1), deploy: flag.Arg(2), out: flag.Arg(3), dir: dir, isUpdate: *isUpdate}
	err = c.run()
	if c.redis != nil {
		c.redis.Close()
	}
	if err := errors.Join(err, os.RemoveAll(dir)); err != nil {
		log.Fatal(err)
	}
}

// checks has the arguments of the command, and the state that its checks share.
type checks struct {
	helm, penstock string // paths of the programs
	deploy         string // folder
	out            string // folder for the packed chart
	dir            string // temporary folder

	isUpdate bool
	redis    *redistest.Server // for the sets of values whose store is not in the chart
}

func (c *checks) chartDir() string { return filepath.Join(c.deploy, "helm", "penstock") }

func (c *checks) run() error {
	if err := c.checkBadValues(); err != nil {
		return err
	}
	if err := c.checkManifests(); err != nil {
		return err
	}
	if err := c.pack(); err != nil {
		return err
	}
	if err := c.checkDocs(filepath.Join(c.deploy, "..", "docs", "howto", "kubernetes.md")); err != nil {
		return err
	}
	var err error
	if c.redis, err = redistest.Launch(); err != nil {
		return err
	}
	sets, err := filepath.Glob(filepath.Join(c.chartDir(), "ci", "*-values.yaml"))
	if err != nil {
		return err
	}
	if len(sets) < 6 {
		return fmt.Errorf("the chart's folder ci has the sets of values %q; want at least 6", sets)
	}
	for _, path := range sets {
		if err := c.checkSet(path); err != nil {
			return fmt.Errorf("%s: %w", filepath.Base(path), err)
		}
	}
	return nil
}

// namespace is where all objects of the chart are installed.
const namespace = "edge"

// checkSet checks the chart with the set of values in a file.
func (c *checks) checkSet(path string) error {
	if _, err := c.runProgram(c.helm, "lint", "--strict", "--values", path, c.chartDir()); err != nil {
		return err
	}
	text, err := c.render("front", "--values", path)
	if err != nil {
		return err
	}
	all, err := decode(text)
	if err != nil {
		return err
	}
	if err := all.checkLinks(); err != nil {
		return err
	}
	name := strings.TrimSuffix(filepath.Base(path), "-values.yaml")
	p, err := c.newPod(name, all)
	if err != nil {
		return err
	}
	defer p.end()
	if err := p.start(); err != nil {
		return err
	}
	log.Printf("%-12s %2d objects, %2d variables accepted by penstock serve%s", name, len(all.list), len(p.env), p.notes)
	return nil
}

// render returns the objects that helm renders from the chart for a release.
func (c *checks) render(release string, args ...string) ([]byte, error) {
	return c.runProgram(c.helm, append([]string{"template", release, c.chartDir(), "--namespace", namespace}, args...)...)
}

// runProgram runs a program, and returns its standard output. The error has its standard error.
func (c *checks) runProgram(program string, args ...string) ([]byte, error) {
	cmd := exec.Command(program, args...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("%s %s: %w\n%s%s", filepath.Base(program), strings.Join(args, " "), err, out, stderr.Bytes())
	}
	return out, err
}

// checkBadValues checks that helm rejects bad values with an error that explains them.
func (c *checks) checkBadValues() error {
	cases := []struct {
		values string // argument of --set
		text   string // expected part of the error
	}{
		{"listeners.api.enabled=false", "enable proxy, api, grpc or resp"},
		{"listeners.proxy.enabled=true", "listeners.proxy needs settings.upstream"},
		{"settings.upstream=http://a", "settings.upstream needs listeners.proxy"},
		{"listeners.grpc.enabled=true", "need callerToken.existingSecret"},
		{"policy.text=", "write policy.text or policy.existingConfigMap"},
		{"listeners.api.port=9180", "9180 is used twice"},
		{"valkey.enabled=true", "kubectl create secret generic"},
		{"store.existingSecret=", "2 instances need one in common"},
		{"autoscaling.enabled=true,autoscaling.minReplicas=3,autoscaling.maxReplicas=2", "is above maxReplicas"},
		{"settings.upstrem=http://a", "additional properties 'upstrem' not allowed"},
		{"settings.drain_delay=1s", "additional properties 'drain_delay' not allowed"},
		{"replicas=0", "minimum"},
	}
	for _, bad := range cases {
		_, err := c.render("front", "--set", bad.values)
		if err == nil || !strings.Contains(err.Error(), bad.text) {
			return fmt.Errorf("helm template --set %q returned the error %v; want one that contains %q", bad.values, err, bad.text)
		}
	}
	log.Printf("helm rejects %d bad sets of values", len(cases))
	return nil
}

// helmLine matches a line that Helm adds to objects. Manifests for kubectl do not have such lines.
var helmLine = regexp.MustCompile(`(?m)^ *(app\.kubernetes\.io/managed-by: Helm|helm\.sh/chart: .*|namespace: ` + namespace + `)\n|^# Source: .*\n`)

// checkManifests compares deploy/kubernetes with the objects that the default values render.
func (c *checks) checkManifests() error {
	text, err := c.render("penstock")
	if err != nil {
		return err
	}
	plain := helmLine.ReplaceAllString(string(text), "")
	body := regexp.MustCompile(`\n+---\n+`).ReplaceAllString("\n"+plain, "\n---\n") // without empty lines between objects
	body = strings.TrimPrefix(strings.TrimSpace(body), "---\n")
	want := "# The Helm chart with its default values, written by: make chart CHART=-update\n" + body + "\n"
	path := filepath.Join(c.deploy, "kubernetes", "penstock.yaml")
	if c.isUpdate {
		return os.WriteFile(path, []byte(want), 0o644)
	}
	got, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if string(got) != want {
		return errors.New("deploy/kubernetes/penstock.yaml is not what the chart renders; run make chart CHART=-update")
	}
	if _, err := decode(got); err != nil {
		return err
	}
	return c.checkKustomization(filepath.Join(c.deploy, "kubernetes"))
}

// pack packs two copies of the chart in different folders, and compares the bytes.
func (c *checks) pack() error {
	date, err := c.runProgram("git", "-C", c.deploy, "log", "-1", "--format=%cI", "--", ".")
	if err != nil {
		return err
	}
	var archives [][]byte // the bytes of the two packed charts
	for _, name := range []string{"one", "a second folder"} {
		dir := filepath.Join(c.dir, name)
		if err := copyTree(dir, c.chartDir(), strings.TrimSpace(string(date))); err != nil {
			return err
		}
		if _, err := c.runProgram(c.helm, "package", filepath.Join(dir, "penstock"), "--destination", dir); err != nil {
			return err
		}
		found, err := filepath.Glob(filepath.Join(dir, "penstock-*.tgz"))
		if err != nil {
			return err
		}
		if len(found) != 1 {
			return fmt.Errorf("helm package wrote the archives %q; want one", found)
		}
		text, err := os.ReadFile(found[0])
		if err != nil {
			return err
		}
		archives = append(archives, text)
		if err := os.MkdirAll(c.out, 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(c.out, filepath.Base(found[0])), text, 0o644); err != nil {
			return err
		}
	}
	if !slices.Equal(archives[0], archives[1]) {
		return errors.New("helm package writes different bytes in two folders; want the same")
	}
	log.Printf("the packed chart has %d bytes, the same in two folders", len(archives[0]))
	return nil
}

// checkDocs renders the objects that the helm commands of a page install. It runs the commands in a
// folder with the files that they name.
func (c *checks) checkDocs(page string) error {
	text, err := os.ReadFile(page)
	if err != nil {
		return err
	}
	dir := filepath.Join(c.dir, "documented")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	deploy, err := filepath.Abs(c.deploy)
	if err != nil {
		return err
	}
	helm, err := filepath.Abs(c.helm)
	if err != nil {
		return err
	}
	if err := os.Symlink(deploy, filepath.Join(dir, "deploy")); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "policy.yaml"), []byte("version: 1\n"), 0o644); err != nil {
		return err
	}
	commands := regexp.MustCompile(`(?m)^helm (?:install|upgrade) (.*)$`).FindAllStringSubmatch(string(text), -1)
	for _, m := range commands {
		command := m[0]
		// helm template has no such flag.
		args := strings.Fields(strings.ReplaceAll(m[1], "--reset-then-reuse-values ", ""))
		cmd := exec.Command(helm, append([]string{"template"}, args...)...)
		cmd.Dir = dir
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		if err != nil {
			return fmt.Errorf("%s: %s: %w\n%s", page, command, err, stderr.Bytes())
		}
		if _, err := decode(out); err != nil {
			return fmt.Errorf("%s: %s: %w", page, command, err)
		}
	}
	if len(commands) < 3 {
		return fmt.Errorf("%s has %d commands helm install and helm upgrade; want at least 3", page, len(commands))
	}
	log.Printf("helm renders the objects of the %d helm commands in the docs", len(commands))
	return nil
}
