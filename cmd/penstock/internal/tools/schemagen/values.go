package main

import (
	"errors"
	"fmt"
	"slices"

	"github.com/google/jsonschema-go/jsonschema"
)

// Values are the values of the Helm chart in deploy/helm. The chart copies the fields of type
// object into the Kubernetes objects without checking them, except Settings.
type Values struct {
	Image                     ImageValues       `json:"image" jsonschema:"The container image."`
	ImagePullSecrets          []object          `json:"imagePullSecrets" jsonschema:"The imagePullSecrets of the pods."`
	FullnameOverride          string            `json:"fullnameOverride" jsonschema:"Name of the objects. The default is the release's name, with penstock in it."`
	Replicas                  int               `json:"replicas" jsonschema:"Number of instances, unless autoscaling is enabled."`
	Autoscaling               ScalingValues     `json:"autoscaling" jsonschema:"A HorizontalPodAutoscaler."`
	PodDisruptionBudget       BudgetValues      `json:"podDisruptionBudget" jsonschema:"How many pods may be evicted at the same time."`
	Listeners                 ListenersValues   `json:"listeners" jsonschema:"What the instances listen for; at least one listener."`
	Admin                     AdminValues       `json:"admin" jsonschema:"Metrics, health checks and the admin API."`
	Service                   ServiceValues     `json:"service" jsonschema:"The Service in front of the listeners."`
	Settings                  object            `json:"settings" jsonschema:"Settings of penstock serve, with their names in the section server of a policy."`
	Store                     SecretValues      `json:"store" jsonschema:"The Secret with the URL of Redis."`
	CallerToken               SecretValues      `json:"callerToken" jsonschema:"The Secret with the token of callers."`
	OperatorToken             SecretValues      `json:"operatorToken" jsonschema:"The Secret with the token of operators."`
	KeyHashSecret             SecretValues      `json:"keyHashSecret" jsonschema:"The Secret by which identities are hashed in Redis."`
	Policy                    PolicyValues      `json:"policy" jsonschema:"The policy: its text, or a ConfigMap that has it. If both are empty, there is no policy."`
	Envoy                     EnvoyValues       `json:"envoy" jsonschema:"Configuration files of envoyproxy/ratelimit."`
	Drain                     DrainValues       `json:"drain" jsonschema:"Times of a shutdown, in seconds."`
	Resources                 object            `json:"resources" jsonschema:"The resources of the container: its requests and limits of CPU and memory."`
	ExtraEnv                  []object          `json:"extraEnv" jsonschema:"Further environment variables, as in the env of a container."`
	ExtraVolumes              []object          `json:"extraVolumes" jsonschema:"Further volumes of the pods."`
	ExtraVolumeMounts         []object          `json:"extraVolumeMounts" jsonschema:"Further volumeMounts of the container."`
	PodLabels                 map[string]string `json:"podLabels" jsonschema:"Further labels of the pods."`
	PodAnnotations            map[string]string `json:"podAnnotations" jsonschema:"Annotations of the pods."`
	NodeSelector              map[string]string `json:"nodeSelector" jsonschema:"The nodeSelector of the pods."`
	Tolerations               []object          `json:"tolerations" jsonschema:"The tolerations of the pods."`
	Affinity                  object            `json:"affinity" jsonschema:"The affinity of the pods."`
	PriorityClassName         string            `json:"priorityClassName" jsonschema:"The priorityClassName of the pods."`
	TopologySpreadConstraints []object          `json:"topologySpreadConstraints" jsonschema:"The topologySpreadConstraints of the pods. By default, pods are spread over nodes and zones where possible."`
	ServiceAccount            AccountValues     `json:"serviceAccount" jsonschema:"The service account. It has no rights, and no token is mounted."`
	NetworkPolicy             NetworkValues     `json:"networkPolicy" jsonschema:"Which clients may connect to the pods."`
	ServiceMonitor            MonitorValues     `json:"serviceMonitor" jsonschema:"A ServiceMonitor for the Prometheus operator."`
	PrometheusRule            RuleValues        `json:"prometheusRule" jsonschema:"A PrometheusRule for the Prometheus operator, with the rules and alerts of deploy/prometheus."`
	Dashboard                 DashboardValues   `json:"dashboard" jsonschema:"A ConfigMap with the dashboard for Grafana's sidecar."`
	Valkey                    ValkeyValues      `json:"valkey" jsonschema:"A Valkey server that the chart runs for the limits only. It replaces store."`
	ExtraObjects              []any             `json:"extraObjects" jsonschema:"Further Kubernetes objects, each as YAML or as a text of YAML. Templates in them are rendered."`
	Global                    object            `json:"global" jsonschema:"Ignored; parent charts set it."`
}

type object map[string]any

type ImageValues struct {
	Repository string `json:"repository" jsonschema:"Name of the image, without a tag."`
	Tag        string `json:"tag" jsonschema:"Tag of the image. The default is the chart's appVersion."`
	Digest     string `json:"digest" jsonschema:"Digest of the image; it replaces the tag."`
	PullPolicy string `json:"pullPolicy" jsonschema:"The imagePullPolicy of the container."`
}

type ScalingValues struct {
	Enabled     bool `json:"enabled" jsonschema:"Make a HorizontalPodAutoscaler."`
	MinReplicas int  `json:"minReplicas" jsonschema:"Smallest number of instances."`
	MaxReplicas int  `json:"maxReplicas" jsonschema:"Largest number of instances."`
	TargetCPU   int  `json:"targetCPU" jsonschema:"CPU use to aim at, in percent of the CPU that the pods request."`
}

type BudgetValues struct {
	Enabled        bool `json:"enabled" jsonschema:"Make a PodDisruptionBudget if there is more than one instance."`
	MaxUnavailable int  `json:"maxUnavailable" jsonschema:"Largest number of pods that may be evicted at the same time."`
}

type ListenersValues struct {
	Proxy ListenerValues `json:"proxy" jsonschema:"The proxy in front of settings.upstream."`
	API   ListenerValues `json:"api" jsonschema:"The check API in JSON, and forward-auth."`
	GRPC  ListenerValues `json:"grpc" jsonschema:"Checks by gRPC, and Envoy's rate limit service."`
	RESP  ListenerValues `json:"resp" jsonschema:"Rate limit commands of Redis clients."`
}

type ListenerValues struct {
	Enabled bool `json:"enabled" jsonschema:"Open this listener."`
	Port    int  `json:"port" jsonschema:"Port of the container and the Service, from 1024 on."`
}

type AdminValues struct {
	Port int `json:"port" jsonschema:"Port of the container and the Service, from 1024 on."`
}

type ServiceValues struct {
	Type                  string            `json:"type" jsonschema:"The type of the Service."`
	Annotations           map[string]string `json:"annotations" jsonschema:"The annotations of the Service."`
	ExternalTrafficPolicy string            `json:"externalTrafficPolicy" jsonschema:"The externalTrafficPolicy of the Service. Local keeps the addresses of clients."`
}

type SecretValues struct {
	ExistingSecret string `json:"existingSecret" jsonschema:"Name of the Secret. If it is empty, no Secret is used."`
	Key            string `json:"key" jsonschema:"Key in the Secret."`
}

type PolicyValues struct {
	ExistingConfigMap string `json:"existingConfigMap" jsonschema:"Name of a ConfigMap whose key policy.yaml has the policy."`
	Text              string `json:"text" jsonschema:"The text of the policy."`
}

type EnvoyValues struct {
	ExistingConfigMap string            `json:"existingConfigMap" jsonschema:"Name of a ConfigMap with the files."`
	Files             map[string]string `json:"files" jsonschema:"The texts of the files, by file name."`
}

type DrainValues struct {
	DelaySeconds   int `json:"delaySeconds" jsonschema:"How long requests are still accepted after SIGTERM, so that load balancers notice the shutdown."`
	TimeoutSeconds int `json:"timeoutSeconds" jsonschema:"How long requests in flight may still take after delaySeconds has passed."`
	MarginSeconds  int `json:"marginSeconds" jsonschema:"How long after timeoutSeconds has passed the container is killed. It must be longer than the longest max_wait."`
}

type AccountValues struct {
	ExistingName string            `json:"existingName" jsonschema:"Name of a service account of your own. If it is empty, the chart makes one."`
	Annotations  map[string]string `json:"annotations" jsonschema:"Annotations of the service account that the chart makes."`
}

type NetworkValues struct {
	Enabled    bool     `json:"enabled" jsonschema:"Make NetworkPolicies."`
	Callers    []object `json:"callers" jsonschema:"Clients that may connect to the listeners, in the form of the field from of a NetworkPolicy. If it is empty, all may."`
	Prometheus []object `json:"prometheus" jsonschema:"Clients that may connect to the admin port, besides pods of the namespace, in the form of the field from of a NetworkPolicy."`
}

type MonitorValues struct {
	Enabled  bool              `json:"enabled" jsonschema:"Make a ServiceMonitor."`
	Labels   map[string]string `json:"labels" jsonschema:"Labels of the ServiceMonitor, by which Prometheus selects it."`
	Interval string            `json:"interval" jsonschema:"Time between two scrapes."`
}

type RuleValues struct {
	Enabled bool              `json:"enabled" jsonschema:"Make a PrometheusRule."`
	Labels  map[string]string `json:"labels" jsonschema:"Labels of the PrometheusRule, by which Prometheus selects it."`
}

type DashboardValues struct {
	Enabled     bool              `json:"enabled" jsonschema:"Make a ConfigMap with the dashboard."`
	Labels      map[string]string `json:"labels" jsonschema:"Labels of the ConfigMap, by which the sidecar selects it."`
	Annotations map[string]string `json:"annotations" jsonschema:"Annotations of the ConfigMap, such as the folder for the sidecar."`
}

type ValkeyValues struct {
	Enabled        bool              `json:"enabled" jsonschema:"Run a Valkey server without persistence."`
	Image          string            `json:"image" jsonschema:"Name of the image, with a tag."`
	ExistingSecret string            `json:"existingSecret" jsonschema:"Name of a Secret whose key password has the password of the Valkey user limiter."`
	Maxmemory      string            `json:"maxmemory" jsonschema:"Valkey's maxmemory, such as 96mb; at most three quarters of the container's memory limit."`
	Resources      object            `json:"resources" jsonschema:"The resources of the container: its requests and limits of CPU and memory."`
	NodeSelector   map[string]string `json:"nodeSelector" jsonschema:"The nodeSelector of the pod."`
	Tolerations    []object          `json:"tolerations" jsonschema:"The tolerations of the pod."`
	Affinity       object            `json:"affinity" jsonschema:"The affinity of the pod."`
}

// setFromOtherValues are the settings of penstock serve that the chart sets from other values, such
// as store. The value settings does not accept them.
var setFromOtherValues = []string{"listen", "api", "grpc", "resp", "admin_listen", "store", "caller_token", "operator_token", "key_hash_secret",
	"envoy_config", "min_instances", "drain_delay", "drain_timeout"}

// generateValues returns the schema of the chart's values.
func generateValues() ([]byte, error) {
	root, err := jsonschema.For[Values](nil)
	if err != nil {
		return nil, err
	}
	visit(root, func(s *schema) {
		s.Required = nil // the chart has defaults
		// jsonschema.For lets a slice or a map be null, which the chart's templates do not expect.
		isSlice := slices.Equal(s.Types, []string{"null", "array"})
		isMap := s.Properties == nil && s.AdditionalProperties != nil && len(s.Types) > 0
		switch {
		case isSlice:
			s.Types, s.Type = nil, "array"
		case isMap:
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
	const minPort, maxPort = 1024, 65535 // ports below 1024 need root
	setBounds(minPort, maxPort, "admin", "port")
	for name := range root.Properties["listeners"].Properties {
		setBounds(minPort, maxPort, "listeners", name, "port")
	}
	setBounds(0, 3600, "drain", "delaySeconds")
	setBounds(0, 3600, "drain", "timeoutSeconds")
	setBounds(1, 3600, "drain", "marginSeconds")
	root.Properties["image"].Properties["pullPolicy"].Enum = []any{"Always", "IfNotPresent", "Never"}
	root.Properties["image"].Properties["digest"].Pattern = "^(sha256:[0-9a-f]{64})?$"
	root.Properties["service"].Properties["type"].Enum = []any{"ClusterIP", "NodePort", "LoadBalancer"}
	root.Properties["service"].Properties["externalTrafficPolicy"].Enum = []any{"", "Local", "Cluster"}
	root.Properties["valkey"].Properties["maxmemory"].Pattern = "^[0-9]+(mb|gb)$"

	server := describe(server(), root.Properties["settings"].Description)
	var errs []error
	for _, name := range setFromOtherValues {
		if server.Properties[name] == nil {
			errs = append(errs, fmt.Errorf("%s is not a setting; remove it from setFromOtherValues", name))
		}
		delete(server.Properties, name)
	}
	server.PropertyOrder = slices.DeleteFunc(server.PropertyOrder, func(name string) bool { return slices.Contains(setFromOtherValues, name) })
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	root.Properties["settings"] = server
	root.Definitions = definitions()
	// The chart passes settings as environment variables, and penstock expands no ${NAME} in those.
	root.Definitions["variable"] = nothing()
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
