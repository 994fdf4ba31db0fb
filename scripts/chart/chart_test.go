//go:build checks

// Package chart checks the Helm chart and deploy/kubernetes with helm. For each set of
// values in the chart's folder ci, helm lint accepts it, the objects have only fields of
// Kubernetes' API and fit together, and the pod runs on this machine.
package chart

import (
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/penstock/penstock/scripts/internal/process"
)

const (
	deploy    = "../../deploy/"
	chart     = deploy + "helm/penstock"
	namespace = "edge" // where all objects are installed
)

var (
	helm     = flag.String("helm", "helm", "the path of helm")
	isUpdate = flag.Bool("update", false, "write deploy/kubernetes, instead of comparing it with the chart")
)

// render returns the objects that helm renders from the chart for a release.
func render(release string, args ...string) (string, error) {
	return process.Try(*helm, append([]string{"template", release, chart, "--namespace", namespace}, args...)...)
}

func TestSetsOfValues(t *testing.T) {
	sets, err := filepath.Glob(chart + "/ci/*-values.yaml")
	if err != nil || len(sets) < 6 {
		t.Fatalf("the chart's folder ci has the sets of values %q (error %v); want at least 6", sets, err)
	}
	for _, path := range sets {
		t.Run(strings.TrimSuffix(filepath.Base(path), "-values.yaml"), func(t *testing.T) {
			process.Run(t, *helm, "lint", "--strict", "--values", path, chart)
			text, err := render("front", "--values", path)
			if err != nil {
				t.Fatal(err)
			}
			all := decode(t, text)
			all.checkLinks(t)
			runPod(t, all)
		})
	}
}

func TestBadValuesAreExplained(t *testing.T) {
	for _, bad := range []struct {
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
	} {
		if _, err := render("front", "--set", bad.values); err == nil || !strings.Contains(err.Error(), bad.text) {
			t.Errorf("helm template --set %q returned the error %v; want one that contains %q", bad.values, err, bad.text)
		}
	}
}

// helmLine matches a line that Helm adds to objects. Manifests for kubectl do not have such lines.
var helmLine = regexp.MustCompile(`(?m)^ *(app\.kubernetes\.io/managed-by: Helm|helm\.sh/chart: .*|namespace: ` + namespace + `)\n|^# Source: .*\n`)

// deploy/kubernetes has the objects of the default values.
func TestManifestsAreCurrent(t *testing.T) {
	text, err := render("penstock")
	if err != nil {
		t.Fatal(err)
	}
	body := regexp.MustCompile(`\n+---\n+`).ReplaceAllString("\n"+helmLine.ReplaceAllString(text, ""), "\n---\n") // without empty lines between objects
	body = strings.TrimPrefix(strings.TrimSpace(body), "---\n")
	want := "# The Helm chart with its default values, written by: make chart CHART=-update\n" + body + "\n"
	path := deploy + "kubernetes/penstock.yaml"
	if *isUpdate {
		process.WriteFile(t, path, want)
	}
	if process.ReadFile(t, path) != want {
		t.Error("deploy/kubernetes/penstock.yaml is not what the chart renders; run make chart CHART=-update")
	}
	decode(t, want)
	if text := process.ReadFile(t, deploy+"kubernetes/kustomization.yaml"); !strings.Contains(text, "penstock.yaml") {
		t.Errorf("kustomization.yaml does not name penstock.yaml:\n%s", text)
	}
}

// helm renders the objects that the commands of the docs install.
func TestCommandsOfTheDocs(t *testing.T) {
	dir := t.TempDir()
	absolute, err := filepath.Abs(deploy)
	if err == nil {
		err = os.Symlink(absolute, filepath.Join(dir, "deploy"))
	}
	if err != nil {
		t.Fatal(err)
	}
	process.WriteFile(t, dir+"/policy.yaml", "version: 1\n") // the commands name it
	page := process.ReadFile(t, "../../docs/howto/kubernetes.md")
	commands := regexp.MustCompile(`(?m)^helm (?:install|upgrade) (.*)$`).FindAllStringSubmatch(page, -1)
	for _, m := range commands {
		args := strings.Fields(strings.ReplaceAll(m[1], "--reset-then-reuse-values ", "")) // helm template has no such flag
		cmd := exec.Command(*helm, append([]string{"template"}, args...)...)
		cmd.Dir = dir
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%s: %v", m[0], err)
		}
		decode(t, string(out))
	}
	if len(commands) < 3 {
		t.Errorf("the page has %d commands helm install and helm upgrade; want at least 3", len(commands))
	}
}
