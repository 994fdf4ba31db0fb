package main

import (
	"errors"
	"fmt"
	"reflect"
	"slices"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/penstock/penstock/cmd/penstock/internal/settings"
)

// Values are the values of the Helm chart in deploy/helm. Fields of Kubernetes itself are passed on
// as they are.
type Values struct {
	Image                     ImageValues       `json:"image" jsonschema:"The container image."`
	ImagePullSecrets          []object          `json:"imagePullSecrets" jsonschema:"Secrets for the registry, as in a pod."`
	FullnameOverride          string            `json:"fullnameOverride" jsonschema:"Name of the objects; default the release's name, with penstock in it."`
	Replicas                  int               `json:"replicas" jsonschema:"Number of instances, unless autoscaling is enabled."`
	Autoscaling               ScalingValues     `json:"autoscaling" jsonschema:"A HorizontalPodAutoscaler."`
	PodDisruptionBudget       BudgetValues      `json:"podDisruptionBudget" jsonschema:"How many pods may be evicted at the same time."`
	Listeners                 ListenersValues   `json:"listeners" jsonschema:"The addresses that answer; at least one."`
	Admin                     AdminValues       `json:"admin" jsonschema:"Metrics, health checks and the admin API."`
	Service                   ServiceValues     `json:"service" jsonschema:"The Service in front of the listeners."`
	Settings                  object            `json:"settings" jsonschema:"Settings of penstock serve by their names, as in the section server of a policy."`
	Store                     SecretValues      `json:"store" jsonschema:"The Secret with the URL of Redis."`
	CallerToken               SecretValues      `json:"callerToken" jsonschema:"The Secret with the token of callers."`
	OperatorToken             SecretValues      `json:"operatorToken" jsonschema:"The Secret with the token of operators."`
	KeyHashSecret             SecretValues      `json:"keyHashSecret" jsonschema:"The Secret by which identities are hashed in Redis."`
	Policy                    PolicyValues      `json:"policy" jsonschema:"The policy. Without a text and a ConfigMap there is none."`
	Envoy                     EnvoyValues       `json:"envoy" jsonschema:"Files of envoyproxy/ratelimit."`
	Drain                     DrainValues       `json:"drain" jsonschema:"Shutdown, in seconds."`
	Resources                 object            `json:"resources" jsonschema:"Requests and limits of the container, as in a pod."`
	ExtraEnv                  []object          `json:"extraEnv" jsonschema:"Further variables, as in a container."`
	ExtraVolumes              []object          `json:"extraVolumes" jsonschema:"Further volumes, as in a pod."`
	ExtraVolumeMounts         []object          `json:"extraVolumeMounts" jsonschema:"Further mounts, as in a container."`
	PodLabels                 map[string]string `json:"podLabels" jsonschema:"Further labels of the pods."`
	PodAnnotations            map[string]string `json:"podAnnotations" jsonschema:"Annotations of the pods."`
	NodeSelector              map[string]string `json:"nodeSelector" jsonschema:"As in a pod."`
	Tolerations               []object          `json:"tolerations" jsonschema:"As in a pod."`
	Affinity                  object            `json:"affinity" jsonschema:"As in a pod."`
	PriorityClassName         string            `json:"priorityClassName" jsonschema:"As in a pod."`
	TopologySpreadConstraints []object          `json:"topologySpreadConstraints" jsonschema:"As in a pod; default: spread over nodes and zones where possible."`
	ServiceAccount            AccountValues     `json:"serviceAccount" jsonschema:"The service account. It has no rights, and no token is mounted."`
	NetworkPolicy             NetworkValues     `json:"networkPolicy" jsonschema:"Who reaches the pods."`
	ServiceMonitor            MonitorValues     `json:"serviceMonitor" jsonschema:"A ServiceMonitor for the Prometheus operator."`
	PrometheusRule            RuleValues        `json:"prometheusRule" jsonschema:"The rules and alerts of deploy/prometheus for the Prometheus operator."`
	Dashboard                 DashboardValues   `json:"dashboard" jsonschema:"A ConfigMap with the dashboard for Grafana's sidecar."`
	Valkey                    ValkeyValues      `json:"valkey" jsonschema:"One Valkey for limits alone; it replaces store."`
	ExtraObjects              []any             `json:"extraObjects" jsonschema:"Further objects, as text or YAML; templates in them are rendered."`
	Global                    object            `json:"global" jsonschema:"Ignored; parent charts set it."`
}

type object map[string]any

type ImageValues struct {
	Repository string `json:"repository" jsonschema:"Name without a tag."`
	Tag        string `json:"tag" jsonschema:"Default: the chart's appVersion."`
	Digest     string `json:"digest" jsonschema:"Digest of the image; it replaces the tag."`
	PullPolicy string `json:"pullPolicy" jsonschema:"As in a container."`
}

type ScalingValues struct {
	Enabled     bool `json:"enabled" jsonschema:"Make a HorizontalPodAutoscaler."`
	MinReplicas int  `json:"minReplicas" jsonschema:"Smallest number of instances."`
	MaxReplicas int  `json:"maxReplicas" jsonschema:"Largest number of instances."`
	TargetCPU   int  `json:"targetCPU" jsonschema:"Percent of the CPU that the pods request."`
}

type BudgetValues struct {
	Enabled        bool `json:"enabled" jsonschema:"Make a PodDisruptionBudget if there is more than one instance."`
	MaxUnavailable int  `json:"maxUnavailable" jsonschema:"Number of pods."`
}

type ListenersValues struct {
	Proxy ListenerValues `json:"proxy" jsonschema:"The proxy in front of settings.upstream."`
	API   ListenerValues `json:"api" jsonschema:"The check API in JSON, and forward-auth."`
	GRPC  ListenerValues `json:"grpc" jsonschema:"Checks by gRPC, and Envoy's rate limit service."`
	RESP  ListenerValues `json:"resp" jsonschema:"Redis clients."`
}

type ListenerValues struct {
	Enabled bool `json:"enabled" jsonschema:"Open this listener."`
	Port    int  `json:"port" jsonschema:"Port of the container and the Service, from 1024 on."`
}

type AdminValues struct {
	Port int `json:"port" jsonschema:"Port of the container and the Service, from 1024 on."`
}

type ServiceValues struct {
	Type                  string            `json:"type" jsonschema:"As in a Service."`
	Annotations           map[string]string `json:"annotations" jsonschema:"As in a Service."`
	ExternalTrafficPolicy string            `json:"externalTrafficPolicy" jsonschema:"Local keeps the addresses of clients."`
}

type SecretValues struct {
	ExistingSecret string `json:"existingSecret" jsonschema:"Name of the Secret; empty is none."`
	Key            string `json:"key" jsonschema:"Key in the Secret."`
}

type PolicyValues struct {
	ExistingConfigMap string `json:"existingConfigMap" jsonschema:"A ConfigMap with the policy under policy.yaml."`
	Text              string `json:"text" jsonschema:"The text of the policy."`
}

type EnvoyValues struct {
	ExistingConfigMap string            `json:"existingConfigMap" jsonschema:"A ConfigMap with the files."`
	Files             map[string]string `json:"files" jsonschema:"The texts of files, by their names."`
}

type DrainValues struct {
	DelaySeconds   int `json:"delaySeconds" jsonschema:"How long requests are still accepted after SIGTERM, so that load balancers notice."`
	TimeoutSeconds int `json:"timeoutSeconds" jsonschema:"How long requests in flight may take after delaySeconds."`
	MarginSeconds  int `json:"marginSeconds" jsonschema:"How long after timeoutSeconds the container is killed; longer than the longest max_wait."`
}

type AccountValues struct {
	ExistingName string            `json:"existingName" jsonschema:"A service account of your own."`
	Annotations  map[string]string `json:"annotations" jsonschema:"Annotations of the service account that the chart makes."`
}

type NetworkValues struct {
	Enabled    bool     `json:"enabled" jsonschema:"Make NetworkPolicies."`
	Callers    []object `json:"callers" jsonschema:"Who reaches the listeners, as from of a NetworkPolicy; default everyone."`
	Prometheus []object `json:"prometheus" jsonschema:"Who reaches the admin port besides pods of the namespace, as from of a NetworkPolicy."`
}

type MonitorValues struct {
	Enabled  bool              `json:"enabled" jsonschema:"Make a ServiceMonitor."`
	Labels   map[string]string `json:"labels" jsonschema:"Labels that the Prometheus selects."`
	Interval string            `json:"interval" jsonschema:"Time between two scrapes."`
}

type RuleValues struct {
	Enabled bool              `json:"enabled" jsonschema:"Make a PrometheusRule."`
	Labels  map[string]string `json:"labels" jsonschema:"Labels that the Prometheus selects."`
}

type DashboardValues struct {
	Enabled     bool              `json:"enabled" jsonschema:"Make a ConfigMap with the dashboard."`
	Labels      map[string]string `json:"labels" jsonschema:"Labels that the sidecar selects."`
	Annotations map[string]string `json:"annotations" jsonschema:"Annotations of the ConfigMap, such as the folder for the sidecar."`
}

type ValkeyValues struct {
	Enabled        bool              `json:"enabled" jsonschema:"Run a Valkey without persistence."`
	Image          string            `json:"image" jsonschema:"Image with a tag."`
	ExistingSecret string            `json:"existingSecret" jsonschema:"A Secret with the password of the user limiter, under password."`
	Maxmemory      string            `json:"maxmemory" jsonschema:"Three quarters of the memory limit or less."`
	Resources      object            `json:"resources" jsonschema:"Requests and limits of the container, as in a pod."`
	NodeSelector   map[string]string `json:"nodeSelector" jsonschema:"As in a pod."`
	Tolerations    []object          `json:"tolerations" jsonschema:"As in a pod."`
	Affinity       object            `json:"affinity" jsonschema:"As in a pod."`
}

// byOtherValues are settings that the chart sets from other values.
var byOtherValues = []string{"listen", "api", "grpc", "resp", "admin_listen", "store", "caller_token", "operator_token", "key_hash_secret",
	"envoy_config", "min_instances", "drain_delay", "drain_timeout"}

// generateValues returns the schema of the chart's values.
func generateValues() ([]byte, error) {
	root, err := jsonschema.For[Values](nil)
	if err != nil {
		return nil, err
	}
	visit(root, func(s *schema) {
		s.Required = nil // the chart has defaults
		if slices.Equal(s.Types, []string{"null", "array"}) {
			s.Types, s.Type = nil, "array"
		}
		if s.Properties == nil && s.AdditionalProperties != nil && len(s.Types) > 0 {
			s.Types, s.Type = nil, "object"
		}
	})
	setBounds := func(least, most float64, path ...string) {
		s := root
		for _, name := range path {
			s = s.Properties[name]
		}
		s.Minimum, s.Maximum = &least, &most
	}
	setBounds(1, 1000, "replicas")
	setBounds(1, 1000, "autoscaling", "minReplicas")
	setBounds(1, 1000, "autoscaling", "maxReplicas")
	setBounds(1, 1000, "autoscaling", "targetCPU")
	setBounds(1, 1000, "podDisruptionBudget", "maxUnavailable")
	setBounds(1024, 65535, "admin", "port")
	for name := range root.Properties["listeners"].Properties {
		setBounds(1024, 65535, "listeners", name, "port")
	}
	for _, name := range []string{"delaySeconds", "timeoutSeconds", "marginSeconds"} {
		setBounds(0, 3600, "drain", name)
	}
	setBounds(1, 3600, "drain", "marginSeconds")
	root.Properties["image"].Properties["pullPolicy"].Enum = []any{"Always", "IfNotPresent", "Never"}
	root.Properties["image"].Properties["digest"].Pattern = "^(sha256:[0-9a-f]{64})?$"
	root.Properties["service"].Properties["type"].Enum = []any{"ClusterIP", "NodePort", "LoadBalancer"}
	root.Properties["service"].Properties["externalTrafficPolicy"].Enum = []any{"", "Local", "Cluster"}
	root.Properties["valkey"].Properties["maxmemory"].Pattern = "^[0-9]+(mb|gb)$"

	g := &generator{unused: forms()}
	server := describe(g.schemaOf(reflect.TypeFor[settings.Section]()), root.Properties["settings"].Description)
	for _, name := range byOtherValues {
		if server.Properties[name] == nil {
			g.errs = append(g.errs, fmt.Errorf("%s is not a setting; remove it from byOtherValues", name))
		}
		delete(server.Properties, name)
	}
	server.PropertyOrder = slices.DeleteFunc(server.PropertyOrder, func(name string) bool { return slices.Contains(byOtherValues, name) })
	if err := errors.Join(g.errs...); err != nil {
		return nil, err
	}
	root.Properties["settings"] = server
	root.Definitions = definitions()
	root.Definitions["variable"] = nothing() // the chart passes settings by the environment, which is not expanded again
	return render(root, "Values of the chart of Penstock")
}

// visit calls do for a schema and all of its properties and items.
func visit(s *schema, do func(*schema)) {
	if s == nil {
		return
	}
	do(s)
	for _, property := range s.Properties {
		visit(property, do)
	}
	visit(s.Items, do)
}
