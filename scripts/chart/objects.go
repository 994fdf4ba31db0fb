//go:build chart

package main

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/yaml"
)

// A ServiceMonitor has the fields of the Prometheus operator's type that the chart uses.
type ServiceMonitor struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		JobLabel          string               `json:"jobLabel"`
		Selector          metav1.LabelSelector `json:"selector"`
		NamespaceSelector struct {
			MatchNames []string `json:"matchNames"`
		} `json:"namespaceSelector"`
		Endpoints []struct {
			Port      string `json:"port"`
			Path      string `json:"path"`
			Interval  string `json:"interval"`
			Scheme    string `json:"scheme"`
			TLSConfig struct {
				InsecureSkipVerify bool `json:"insecureSkipVerify"`
			} `json:"tlsConfig"`
		} `json:"endpoints"`
	} `json:"spec"`
}

// A PrometheusRule has the fields of the Prometheus operator's type that the rules use.
type PrometheusRule struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		Groups []struct {
			Name  string `json:"name"`
			Rules []struct {
				Record      string            `json:"record"`
				Alert       string            `json:"alert"`
				Expr        string            `json:"expr"`
				For         string            `json:"for"`
				Labels      map[string]string `json:"labels"`
				Annotations map[string]string `json:"annotations"`
			} `json:"rules"`
		} `json:"groups"`
	} `json:"spec"`
}

// objects are the decoded objects that the chart renders for one set of values.
type objects struct {
	list []metav1.Object // all objects

	configMaps   map[string]*corev1.ConfigMap
	services     []*corev1.Service
	accounts     []*corev1.ServiceAccount
	policies     []*networkingv1.NetworkPolicy
	budgets      []*policyv1.PodDisruptionBudget
	scalers      []*autoscalingv2.HorizontalPodAutoscaler
	monitors     []*ServiceMonitor
	rules        []*PrometheusRule
	deployment   *appsv1.Deployment
	statefulSets []*appsv1.StatefulSet
}

// decode decodes objects strictly: unknown fields and values of the wrong type are errors.
func decode(text []byte) (*objects, error) {
	all := &objects{configMaps: make(map[string]*corev1.ConfigMap)}
	for _, document := range bytes.Split(append([]byte("\n"), text...), []byte("\n---\n")) {
		var kind metav1.TypeMeta
		if err := yaml.Unmarshal(document, &kind); err != nil {
			return nil, fmt.Errorf("%w\n%s", err, document)
		}
		if kind.Kind == "" {
			continue
		}
		if err := all.add(kind.APIVersion+" "+kind.Kind, document); err != nil {
			return nil, fmt.Errorf("%s %s: %w\n%s", kind.APIVersion, kind.Kind, err, document)
		}
	}
	if all.deployment == nil {
		return nil, errors.New("there is no Deployment")
	}
	names := make(map[string]bool)
	for _, o := range all.list {
		name := fmt.Sprintf("%T %s", o, o.GetName())
		if names[name] || o.GetName() == "" {
			return nil, fmt.Errorf("%s: two objects have this name, or it is empty", name)
		}
		names[name] = true
	}
	return all, nil
}

// add decodes a document, and adds it to the objects of its kind.
func (all *objects) add(kind string, document []byte) error {
	switch kind {
	case "v1 ConfigMap":
		return decodeInto(all, document, func(o *corev1.ConfigMap) { all.configMaps[o.Name] = o })
	case "v1 Service":
		return decodeInto(all, document, func(o *corev1.Service) { all.services = append(all.services, o) })
	case "v1 ServiceAccount":
		return decodeInto(all, document, func(o *corev1.ServiceAccount) { all.accounts = append(all.accounts, o) })
	case "apps/v1 Deployment":
		return decodeInto(all, document, func(o *appsv1.Deployment) { all.deployment = o })
	case "apps/v1 StatefulSet":
		return decodeInto(all, document, func(o *appsv1.StatefulSet) { all.statefulSets = append(all.statefulSets, o) })
	case "policy/v1 PodDisruptionBudget":
		return decodeInto(all, document, func(o *policyv1.PodDisruptionBudget) { all.budgets = append(all.budgets, o) })
	case "autoscaling/v2 HorizontalPodAutoscaler":
		return decodeInto(all, document, func(o *autoscalingv2.HorizontalPodAutoscaler) { all.scalers = append(all.scalers, o) })
	case "networking.k8s.io/v1 NetworkPolicy":
		return decodeInto(all, document, func(o *networkingv1.NetworkPolicy) { all.policies = append(all.policies, o) })
	case "monitoring.coreos.com/v1 ServiceMonitor":
		return decodeInto(all, document, func(o *ServiceMonitor) { all.monitors = append(all.monitors, o) })
	case "monitoring.coreos.com/v1 PrometheusRule":
		return decodeInto(all, document, func(o *PrometheusRule) { all.rules = append(all.rules, o) })
	}
	return errors.New("the kind is unknown here; add it to objects")
}

// decodeInto decodes a document into an object of its type.
func decodeInto[T any, P interface {
	*T
	metav1.Object
}](all *objects, document []byte, keep func(P)) error {
	o := P(new(T))
	if err := yaml.UnmarshalStrict(document, o); err != nil {
		return err
	}
	all.list = append(all.list, o)
	keep(o)
	return nil
}

// A workload is a Deployment or a StatefulSet.
type workload struct {
	name     string
	selector *metav1.LabelSelector
	template corev1.PodTemplateSpec
}

func (all *objects) workloads() []workload {
	list := []workload{{all.deployment.Name, all.deployment.Spec.Selector, all.deployment.Spec.Template}}
	for _, s := range all.statefulSets {
		list = append(list, workload{s.Name, s.Spec.Selector, s.Spec.Template})
	}
	return list
}

// workloadOf returns the only workload whose pods a selector matches.
func (all *objects) workloadOf(selector map[string]string) (workload, error) {
	var found []workload
	for _, w := range all.workloads() {
		if matches(selector, w.template.Labels) {
			found = append(found, w)
		}
	}
	if len(found) != 1 {
		return workload{}, fmt.Errorf("the selector %v matches %d workloads; want 1", selector, len(found))
	}
	return found[0], nil
}

// matches returns true if labels have all labels of a selector. An empty selector matches nothing.
func matches(selector, labels map[string]string) bool {
	for key, value := range selector {
		if labels[key] != value {
			return false
		}
	}
	return len(selector) > 0
}

// hasPort returns true if the containers of a workload have a port of this name.
func (w workload) hasPort(name string) bool {
	for _, c := range w.template.Spec.Containers {
		if slices.ContainsFunc(c.Ports, func(p corev1.ContainerPort) bool { return p.Name == name }) {
			return true
		}
	}
	return false
}

// checkFit checks that the objects fit together.
func (all *objects) checkFit() error {
	var errs []error
	addError := func(o metav1.Object, format string, args ...any) {
		errs = append(errs, fmt.Errorf("%T %s: %s", o, o.GetName(), fmt.Sprintf(format, args...)))
	}
	for _, o := range all.list {
		isExtra := o.GetName() == "ratelimit-notes" // extraObjects of ci/envoy-values.yaml
		if o.GetNamespace() != "edge" && !isExtra {
			addError(o, "the namespace is %q; want edge", o.GetNamespace())
		}
	}
	for _, w := range all.workloads() {
		errs = append(errs, w.check()...)
		if own, err := all.workloadOf(w.selector.MatchLabels); err != nil || own.name != w.name {
			errs = append(errs, fmt.Errorf("%s: its selector matches the workload %q; want its own: %v", w.name, own.name, err))
		}
	}
	for _, s := range all.services {
		w, err := all.workloadOf(s.Spec.Selector)
		if err != nil {
			addError(s, "%v", err)
		}
		if len(s.Spec.Ports) == 0 {
			addError(s, "it has no port")
		}
		for _, p := range s.Spec.Ports {
			if !w.hasPort(p.TargetPort.StrVal) {
				addError(s, "no container has the port %s", p.TargetPort.StrVal)
			}
		}
	}
	for _, p := range all.policies {
		errs = append(errs, all.checkPolicy(p)...)
	}
	for _, b := range all.budgets {
		if w, err := all.workloadOf(b.Spec.Selector.MatchLabels); err != nil || w.name != all.deployment.Name {
			addError(b, "it does not select the Deployment: %v", err)
		}
	}
	for _, s := range all.scalers {
		if s.Spec.ScaleTargetRef.Name != all.deployment.Name || all.deployment.Spec.Replicas != nil {
			addError(s, "it scales %s, or the Deployment has replicas; want that it scales the Deployment, which has none", s.Spec.ScaleTargetRef.Name)
		}
	}
	errs = append(errs, all.checkMonitoring()...)
	return errors.Join(errs...)
}

// check checks that pods mount their volumes, have probes at their ports, and have few rights.
func (w workload) check() (errs []error) {
	addError := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("%s: %s", w.name, fmt.Sprintf(format, args...)))
	}
	spec := w.template.Spec
	volumes := make(map[string]bool)
	for _, v := range spec.Volumes {
		volumes[v.Name] = true
	}
	isTrue := func(b *bool) bool { return b != nil && *b }
	if spec.AutomountServiceAccountToken == nil || *spec.AutomountServiceAccountToken {
		addError("a token of the service account is mounted")
	}
	if spec.SecurityContext == nil || !isTrue(spec.SecurityContext.RunAsNonRoot) || spec.SecurityContext.SeccompProfile == nil {
		addError("it may run as root, or without seccomp")
	}
	for _, c := range spec.Containers {
		for _, m := range c.VolumeMounts {
			if !volumes[m.Name] || m.SubPath != "" {
				addError("the mount %s has no volume, or has a subPath, which Kubernetes never updates", m.Name)
			}
			delete(volumes, m.Name)
		}
		if s := c.SecurityContext; s == nil || !isTrue(s.ReadOnlyRootFilesystem) || s.AllowPrivilegeEscalation == nil || *s.AllowPrivilegeEscalation ||
			s.Capabilities == nil || !slices.Equal(s.Capabilities.Drop, []corev1.Capability{"ALL"}) {
			addError("the container %s has more rights than it needs", c.Name)
		}
		for what, probe := range map[string]*corev1.Probe{"liveness": c.LivenessProbe, "readiness": c.ReadinessProbe} {
			var port intstr.IntOrString
			switch {
			case probe == nil:
			case probe.HTTPGet != nil:
				port = probe.HTTPGet.Port
			case probe.TCPSocket != nil:
				port = probe.TCPSocket.Port
			}
			if !w.hasPort(port.StrVal) {
				addError("the %s probe is missing, or no container has its port %q", what, port.StrVal)
			}
		}
	}
	if len(volumes) > 0 {
		addError("no container mounts %v", slices.Sorted(maps.Keys(volumes)))
	}
	return errs
}

// checkPolicy checks that a NetworkPolicy opens all ports of the pods that it selects. It may open
// the ports admin and redis only to peers that it names.
func (all *objects) checkPolicy(p *networkingv1.NetworkPolicy) (errs []error) {
	w, err := all.workloadOf(p.Spec.PodSelector.MatchLabels)
	if err != nil {
		return []error{err}
	}
	open := make(map[string]bool)
	for _, rule := range p.Spec.Ingress {
		for _, port := range rule.Ports {
			if port.Port == nil || !w.hasPort(port.Port.StrVal) {
				errs = append(errs, fmt.Errorf("NetworkPolicy %s: no container has the port %v", p.Name, port.Port))
				continue
			}
			open[port.Port.StrVal] = true
			if name := port.Port.StrVal; (name == "admin" || name == "redis") && len(rule.From) == 0 {
				errs = append(errs, fmt.Errorf("NetworkPolicy %s: the port %s is open to all peers", p.Name, name))
			}
		}
		if len(rule.Ports) == 0 {
			errs = append(errs, fmt.Errorf("NetworkPolicy %s: a rule opens all ports", p.Name))
		}
	}
	for _, c := range w.template.Spec.Containers {
		for _, port := range c.Ports {
			if !open[port.Name] {
				errs = append(errs, fmt.Errorf("NetworkPolicy %s: no rule opens the port %s", p.Name, port.Name))
			}
		}
	}
	return errs
}

// checkMonitoring checks that the ServiceMonitor selects one Service. A label of that Service must
// give the job the name that the alerts use.
func (all *objects) checkMonitoring() (errs []error) {
	for _, m := range all.monitors {
		var found []*corev1.Service
		for _, s := range all.services {
			if matches(m.Spec.Selector.MatchLabels, s.Labels) {
				found = append(found, s)
			}
		}
		if len(found) != 1 || len(m.Spec.Endpoints) != 1 {
			errs = append(errs, fmt.Errorf("the ServiceMonitor selects %d Services; want 1, and one endpoint", len(found)))
			continue
		}
		s, endpoint := found[0], m.Spec.Endpoints[0]
		if s.Labels[m.Spec.JobLabel] != "penstock" {
			errs = append(errs, fmt.Errorf("the job is named %q; the alerts need penstock", s.Labels[m.Spec.JobLabel]))
		}
		if endpoint.Path != "/metrics" || !slices.ContainsFunc(s.Spec.Ports, func(p corev1.ServicePort) bool { return p.Name == endpoint.Port }) {
			errs = append(errs, fmt.Errorf("the Service %s has no port %s", s.Name, endpoint.Port))
		}
	}
	alerts, ofJob := 0, 0
	for _, r := range all.rules {
		for _, g := range r.Spec.Groups {
			for _, rule := range g.Rules {
				if rule.Alert != "" {
					alerts++
				}
				if strings.Contains(rule.Expr, `job="penstock"`) {
					ofJob++
				}
			}
		}
	}
	if len(all.rules) > 0 && (len(all.rules) != 2 || alerts < 10 || ofJob == 0) {
		errs = append(errs, fmt.Errorf("%d PrometheusRules have %d alerts, and %d name the job penstock; want 2, at least 10 and at least 1", len(all.rules), alerts, ofJob))
	}
	return errs
}

// checkKustomization checks the file of the plain manifests.
func (c *checks) checkKustomization(dir string) error {
	text, err := os.ReadFile(filepath.Join(dir, "kustomization.yaml"))
	if err != nil {
		return err
	}
	var k struct {
		metav1.TypeMeta `json:",inline"`
		Resources       []string `json:"resources"`
		Images          []struct {
			Name    string `json:"name"`
			NewName string `json:"newName"`
			NewTag  string `json:"newTag"`
		} `json:"images"`
	}
	if err := yaml.UnmarshalStrict(text, &k); err != nil {
		return err
	}
	if k.APIVersion != "kustomize.config.k8s.io/v1beta1" || k.Kind != "Kustomization" || len(k.Resources) == 0 {
		return fmt.Errorf("kustomization.yaml is a %s %s with %d resources; want a kustomize.config.k8s.io/v1beta1 Kustomization with at least one", k.APIVersion, k.Kind, len(k.Resources))
	}
	for _, name := range k.Resources {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	return nil
}
