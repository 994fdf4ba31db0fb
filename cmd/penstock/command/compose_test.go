package command

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v4"

	"github.com/penstock/penstock/cmd/penstock/internal/serve/settings"
)

const deploy = "../../../deploy"

// A composeFile has the keys that our compose file uses. Any other key in it is a mistake.
type composeFile struct {
	Name     string                    `yaml:"name"`
	Services map[string]composeService `yaml:"services"`
	Volumes  map[string]struct{}       `yaml:"volumes"`
	Secrets  map[string]struct {
		File string `yaml:"file"`
	} `yaml:"secrets"`
}

type composeService struct {
	Image           string            `yaml:"image"`
	Build           string            `yaml:"build"`
	User            string            `yaml:"user"`
	Environment     map[string]string `yaml:"environment"`
	Entrypoint      []string          `yaml:"entrypoint"`
	Command         []string          `yaml:"command"`
	Ports           []string          `yaml:"ports"`
	Volumes         []string          `yaml:"volumes"`
	Tmpfs           []string          `yaml:"tmpfs"`
	Secrets         []string          `yaml:"secrets"`
	ReadOnly        bool              `yaml:"read_only"`
	CapDrop         []string          `yaml:"cap_drop"`
	SecurityOpt     []string          `yaml:"security_opt"`
	StopGracePeriod string            `yaml:"stop_grace_period"`
	MemLimit        string            `yaml:"mem_limit"`
	Restart         string            `yaml:"restart"`
	DependsOn       map[string]struct {
		Condition string `yaml:"condition"`
	} `yaml:"depends_on"`
	Healthcheck struct {
		Test     []string `yaml:"test"`
		Interval string   `yaml:"interval"`
		Timeout  string   `yaml:"timeout"`
		Retries  int      `yaml:"retries"`
	} `yaml:"healthcheck"`
}

// loadStrictly decodes a YAML file of deploy; unknown keys are errors.
func loadStrictly(t *testing.T, name string, v any) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(deploy, name))
	if err == nil {
		err = yaml.Load(text, v, yaml.WithKnownFields())
	}
	if err != nil {
		t.Fatalf("%s cannot be read as YAML: %v", name, err)
	}
}

// pinned matches an image with a whole version, such as valkey:8.1.0-alpine.
var pinned = regexp.MustCompile(`^[a-z0-9./-]+:v?[0-9]+\.[0-9]+\.[0-9]+(-alpine)?$`)

// TestComposeFile: the files, volumes, secrets, services and settings that it names exist.
func TestComposeFile(t *testing.T) {
	t.Parallel()
	var file composeFile
	loadStrictly(t, "compose/compose.yaml", &file)
	if len(file.Services) != 5 {
		t.Fatalf("compose.yaml has %d services; want 5: two instances, Valkey, Prometheus and Grafana", len(file.Services))
	}
	publishers := make(map[string]string) // service by published address and port
	for name, s := range file.Services {
		if !pinned.MatchString(s.Image) {
			t.Errorf("%s: the image is %q; want one with a whole version, such as 1.2.3", name, s.Image)
		}
		if s.Build != "" {
			if _, err := os.Stat(filepath.Join(deploy, "compose", s.Build, "Dockerfile")); err != nil {
				t.Error(err)
			}
		}
		for _, v := range s.Volumes {
			source, _, _ := strings.Cut(v, ":")
			if _, isVolume := file.Volumes[source]; isVolume {
				continue
			}
			if _, err := os.Stat(filepath.Join(deploy, "compose", source)); err != nil || !strings.HasPrefix(source, ".") || !strings.HasSuffix(v, ":ro") {
				t.Errorf("%s mounts %s, which does not exist or can be written: %v", name, v, err)
			}
		}
		for _, secret := range s.Secrets {
			if file.Secrets[secret].File != "./secrets/"+secret {
				t.Errorf("%s: the secret %s has the file %q; want ./secrets/%s", name, secret, file.Secrets[secret].File, secret)
			}
		}
		for other, d := range s.DependsOn {
			needed, ok := file.Services[other]
			if !ok || d.Condition == "service_healthy" && needed.Healthcheck.Test == nil {
				t.Errorf("%s waits for %s, which does not exist or has no health check", name, other)
			}
		}
		for _, port := range s.Ports {
			published := port[:strings.LastIndex(port, ":")]
			if !strings.HasPrefix(port, "127.0.0.1:") {
				t.Errorf("%s publishes the port %s; want one that begins with 127.0.0.1:", name, port)
			}
			if other, ok := publishers[published]; ok {
				t.Errorf("%s and %s both publish the port %s", name, other, published)
			}
			publishers[published] = name
		}
	}
	for _, name := range []string{"penstock-1", "penstock-2"} {
		checkPenstock(t, name, file.Services[name])
	}

	if code, out, errors := command("validate", "--strict", deploy+"/compose/policy/policy.yaml"); code != 0 {
		t.Errorf("validate --strict ends with %d: %s%s; want 0", code, out, errors)
	}
	if script := strings.Join(file.Services["valkey"].Command, "\n"); !strings.Contains(script, "#$$hash "+metricsRights(t)+"\n") {
		t.Errorf("the user of Valkey has other rights than penstock acl --role metrics prints:\n%s", script)
	}
}

// checkPenstock checks that the settings of an instance exist and fit together.
func checkPenstock(t *testing.T, name string, s composeService) {
	t.Helper()
	dir := t.TempDir()
	var environ []string
	for key, value := range s.Environment {
		for _, secret := range s.Secrets {
			file := filepath.Join(dir, secret)
			if err := os.WriteFile(file, []byte("0123456789abcdef"), 0o600); err != nil {
				t.Fatal(err)
			}
			value = strings.ReplaceAll(value, "/run/secrets/"+secret, file)
		}
		if strings.Contains(value, "/run/secrets/") {
			t.Errorf("%s: %s names a secret that it does not have: %s", name, key, value)
		}
		environ = append(environ, key+"="+value)
	}
	set, err := settings.Load(settings.Sources{Environ: environ})
	if err != nil || len(set.Unknown) > 0 || len(environ) < 5 {
		t.Errorf("%s: there are %d variables, the unknown settings %q, %v; want at least 5 variables, all known", name, len(environ), set.Unknown, err)
	}
	if !slices.Contains(s.Volumes, "./policy:"+filepath.Dir(set.Config)+":ro") {
		t.Errorf("%s: the folder of %s is not mounted", name, set.Config)
	}
	if set.StoreName() != "redis://valkey:6379" || set.AdminListen != "0.0.0.0:9180" {
		t.Errorf("%s: the store is %s and the admin address %s; want Valkey, and port 9180 on all interfaces", name, set.StoreName(), set.AdminListen)
	}
	if !s.ReadOnly || !slices.Equal(s.CapDrop, []string{"ALL"}) {
		t.Errorf("%s: read_only is %v and cap_drop %v; want true and [ALL]", name, s.ReadOnly, s.CapDrop)
	}
}

// metricsRights returns the rights of penstock acl --role metrics.
func metricsRights(t *testing.T) string {
	t.Helper()
	_, out, _ := command("acl", "--role", "metrics")
	_, rights, ok := strings.Cut(strings.TrimSpace(out), ">SECRET ")
	if !ok {
		t.Fatalf("acl prints %q; want a line with >SECRET", out)
	}
	return rights
}

// The chart's Valkey has the rights of penstock acl, with the prefix of its values.
func TestRightsOfTheChart(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(deploy + "/helm/penstock/files/rights")
	if err != nil {
		t.Fatal(err)
	}
	if got, want := strings.ReplaceAll(strings.TrimSpace(string(text)), "PREFIX", "ps"), metricsRights(t); got != want {
		t.Errorf("deploy/helm/penstock/files/rights has\n%s; want\n%s", got, want)
	}
}

// TestComposeMonitoring: Prometheus scrapes both instances as the job that the alerts name, and
// Grafana finds the dashboard and Prometheus.
func TestComposeMonitoring(t *testing.T) {
	t.Parallel()
	var file composeFile
	loadStrictly(t, "compose/compose.yaml", &file)
	isMounted := func(service, path string) bool {
		return slices.ContainsFunc(file.Services[service].Volumes, func(v string) bool { return strings.HasSuffix(v, ":"+path+":ro") })
	}

	var prometheus struct {
		Global struct {
			ScrapeInterval     string `yaml:"scrape_interval"`
			EvaluationInterval string `yaml:"evaluation_interval"`
		} `yaml:"global"`
		RuleFiles     []string `yaml:"rule_files"`
		ScrapeConfigs []struct {
			JobName       string `yaml:"job_name"`
			StaticConfigs []struct {
				Targets []string `yaml:"targets"`
			} `yaml:"static_configs"`
		} `yaml:"scrape_configs"`
	}
	loadStrictly(t, "compose/prometheus.yml", &prometheus)
	for _, name := range append(prometheus.RuleFiles, "prometheus.yml") {
		if !isMounted("prometheus", "/etc/prometheus/"+name) {
			t.Errorf("/etc/prometheus/%s is not mounted", name)
		}
	}
	if len(prometheus.RuleFiles) != 2 || len(prometheus.ScrapeConfigs) != 1 {
		t.Fatalf("Prometheus scrapes %+v with the rule files %q; want one job and two rule files", prometheus.ScrapeConfigs, prometheus.RuleFiles)
	}
	job := prometheus.ScrapeConfigs[0]
	if job.JobName != "penstock" || !slices.Equal(job.StaticConfigs[0].Targets, []string{"penstock-1:9180", "penstock-2:9180"}) {
		t.Errorf("Prometheus scrapes the job %+v; want penstock with both instances", job)
	}

	var sources struct {
		APIVersion  int `yaml:"apiVersion"`
		Datasources []struct {
			Name      string         `yaml:"name"`
			Type      string         `yaml:"type"`
			UID       string         `yaml:"uid"`
			Access    string         `yaml:"access"`
			URL       string         `yaml:"url"`
			IsDefault bool           `yaml:"isDefault"`
			JSONData  map[string]any `yaml:"jsonData"`
		} `yaml:"datasources"`
	}
	loadStrictly(t, "compose/grafana/datasources.yaml", &sources)
	if len(sources.Datasources) != 1 {
		t.Fatalf("Grafana has the sources %+v; want one", sources.Datasources)
	}
	if source := sources.Datasources[0]; source.Type != "prometheus" || source.URL != "http://prometheus:9090" || !source.IsDefault {
		t.Errorf("Grafana has the source %+v; want Prometheus as the default", source)
	}
	var dashboards struct {
		APIVersion int `yaml:"apiVersion"`
		Providers  []struct {
			Name           string `yaml:"name"`
			Type           string `yaml:"type"`
			AllowUIUpdates bool   `yaml:"allowUiUpdates"`
			Options        struct {
				Path string `yaml:"path"`
			} `yaml:"options"`
		} `yaml:"providers"`
	}
	loadStrictly(t, "compose/grafana/dashboards.yaml", &dashboards)
	home := file.Services["grafana"].Environment["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
	if len(dashboards.Providers) != 1 || filepath.Dir(home) != dashboards.Providers[0].Options.Path {
		t.Errorf("Grafana reads dashboards from %+v, and shows %q; want one folder that has this dashboard", dashboards.Providers, home)
	}
	for _, path := range []string{home, "/etc/grafana/provisioning/datasources/penstock.yaml", "/etc/grafana/provisioning/dashboards/penstock.yaml"} {
		if !isMounted("grafana", path) {
			t.Errorf("%s is not mounted in the service grafana", path)
		}
	}
}

// TestPlainManifests: deploy/kubernetes has settings that exist and a policy without mistakes. All
// files of deploy name the version of the chart. make chart compares the manifests with the chart.
func TestPlainManifests(t *testing.T) {
	t.Parallel()
	read := func(name string) string {
		text, err := os.ReadFile(filepath.Join(deploy, name))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	manifests := read("kubernetes/penstock.yaml")
	var environ []string
	var policy string
	for document := range strings.SplitSeq(manifests, "\n---\n") {
		var o struct {
			Data map[string]string `yaml:"data"`
			Spec struct {
				Template struct {
					Spec struct {
						Containers []struct {
							Env []struct{ Name, Value string }
						}
					}
				}
			}
		}
		if err := yaml.Load([]byte(document), &o); err != nil {
			t.Fatal(err)
		}
		policy += o.Data["policy.yaml"]
		for _, c := range o.Spec.Template.Spec.Containers {
			for _, e := range c.Env {
				environ = append(environ, e.Name+"="+e.Value)
			}
		}
	}
	store := filepath.Join(t.TempDir(), "store")
	if err := os.WriteFile(store, []byte("redis://redis:6379"), 0o600); err != nil {
		t.Fatal(err)
	}
	environ = append(environ, "PENSTOCK_STORE_FILE="+store)
	if set, err := settings.Load(settings.Sources{Environ: environ}); err != nil || len(set.Unknown) > 0 || set.API == "" {
		t.Errorf("the unknown variables are %q, API is %q, and the error is %v; want none unknown, an API address and no error", set.Unknown, set.API, err)
	}
	file := filepath.Join(t.TempDir(), "policy.yaml")
	if err := os.WriteFile(file, []byte(policy), 0o600); err != nil {
		t.Fatal(err)
	}
	if code, out, errors := command("validate", "--strict", file); code != 0 {
		t.Errorf("validate --strict ends with %d: %s%s; want 0", code, out, errors)
	}

	version := regexp.MustCompile(`(?m)^version: (.*)$`).FindStringSubmatch(read("helm/penstock/Chart.yaml"))[1]
	for name, line := range map[string]string{
		"helm/penstock/Chart.yaml": "\nappVersion: ", "kubernetes/kustomization.yaml": "\n    newTag: ", "kubernetes/penstock.yaml": "image: penstock:", "compose/compose.yaml": " penstock:",
	} {
		if !strings.Contains(read(name), line+version+"\n") {
			t.Errorf("deploy/%s does not name the version %s after %q", name, version, line)
		}
	}
}

// TestShippedPoliciesLimitEveryPath: a policy that comes with a package or with the compose file
// must not leave paths unlimited.
func TestShippedPoliciesLimitEveryPath(t *testing.T) {
	t.Parallel()
	for _, policy := range []string{"../../../packaging/policy.yaml", deploy + "/compose/policy/policy.yaml"} {
		for _, path := range []string{"/", "/users", "/users/42/orders/"} {
			if charges := explained(t, "--config", policy, path).Charges; len(charges) != 1 {
				t.Errorf("%s: %d limits apply to a request for %s; want 1", policy, len(charges), path)
			}
		}
	}
}
