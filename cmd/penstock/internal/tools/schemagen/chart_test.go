package schemagen

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"
)

// chart is the folder of the Helm chart.
const chart = "../../../../../deploy/helm/penstock/"

// setFromOtherValues are the settings of penstock serve that the chart sets from other values, such
// as store. They are rejected in the value named settings.
var setFromOtherValues = []string{"listen", "api", "grpc", "resp", "admin_listen", "store", "caller_token", "operator_token", "key_hash_secret",
	"envoy_config", "min_instances", "drain_delay", "drain_timeout"}

// generateValues returns the schema of the chart's values. Each value has the type of its default
// in values.yaml, and the comment there as its description.
func generateValues() ([]byte, error) {
	text, err := os.ReadFile(chart + "values.yaml")
	if err != nil {
		return nil, err
	}
	var document yaml.Node
	if err := yaml.Load(text, &document); err != nil {
		return nil, err
	}
	root := valueForm(document.Content[0], "")
	root.Properties["global"] = &schema{Type: "object", Description: "Ignored; parent charts set it."}
	root.PropertyOrder = append(root.PropertyOrder, "global")
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

// anyFields are the values that the chart copies into Kubernetes objects without looking at their
// fields. The fields of other objects without fixed names are texts.
var anyFields = []string{"resources", "affinity"}

// valueForm returns the form of a value of values.yaml. The name is that of its field.
func valueForm(n *yaml.Node, name string) *schema {
	switch n.Kind {
	case yaml.ScalarNode:
		return &schema{Type: map[string]string{"!!str": "string", "!!int": "integer", "!!bool": "boolean"}[n.Tag]}
	case yaml.SequenceNode:
		if name == "extraObjects" { // YAML, or a text of YAML
			return listOf(&schema{})
		}
		return listOf(&schema{Type: "object"})
	}
	switch {
	case slices.Contains(anyFields, name):
		return &schema{Type: "object"}
	case len(n.Content) == 0 || name == "labels":
		return &schema{Type: "object", AdditionalProperties: &schema{Type: "string"}}
	}
	s := &schema{Type: "object", Properties: make(map[string]*schema), AdditionalProperties: nothing()}
	for i := 0; i < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		comment := strings.ReplaceAll(strings.TrimPrefix(key.HeadComment, "# "), "\n# ", " ")
		s.Properties[key.Value] = describe(valueForm(value, key.Value), comment)
		s.PropertyOrder = append(s.PropertyOrder, key.Value)
	}
	return s
}
