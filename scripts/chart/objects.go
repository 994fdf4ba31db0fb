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
	netPolicies  []*networkingv1.NetworkPolicy
	budgets      []*policyv1.PodDisruptionBudget
	scalers      []*autoscalingv2.HorizontalPodAutoscaler
	monitors     []*ServiceMonitor
	promRules    []*PrometheusRule
	deployment   *appsv1.Deployment // the only one
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
		return nil, errors.New("the chart rendered no Deployment")
	}
	names := make(map[string]bool)
	for _, o := range all.list {
		name := fmt.Sprintf("%T %s", o, o.GetName())
		if names[name] || o.GetName() == "" {
			return nil, fmt.Errorf("%s: this object has no name, or a second object of its type has the same name", name)
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
		return decodeInto(all, document, func(o *networkingv1.NetworkPolicy) { all.netPolicies = append(all.netPolicies, o) })
	case "monitoring.coreos.com/v1 ServiceMonitor":
		return decodeInto(all, document, func(o *ServiceMonitor) { all.monitors = append(all.monitors, o) })
	case "monitoring.coreos.com/v1 PrometheusRule":
		return decodeInto(all, document, func(o *PrometheusRule) { all.promRules = append(all.promRules, o) })
	}
	return errors.New("this test does not know the kind; add it to type objects")
}

// decodeInto decodes a document into a new T, appends it to all.list, and calls keep with it.
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

// matches reports whether labels have all labels of a selector. An empty selector matches nothing.
func matches(selector, labels map[string]string) bool {
	for key, value := range selector {
		if labels[key] != value {
			return false
		}
	}
	return len(selector) > 0
}

// hasPort reports whether a container of the workload has a port of this name.
func (w workload) hasPort(name string) bool {
	for _, c := range w.template.Spec.Containers {
		if slices.ContainsFunc(c.Ports, func(p corev1.ContainerPort) bool { return p.Name == name }) {
			return true
		}
	}
	return false
}

// checkLinks checks that objects that refer to others refer to the right ones.
func (all *objects) checkLinks() error {
	var errs []error
	addError := func(o metav1.Object, format string, args ...any) {
		errs = append(errs, fmt.Errorf("%T %s: %s", o, o.GetName(), fmt.Sprintf(format, args...)))
	}
	for _, o := range all.list {
		isExtra := o.GetName() == "ratelimit-notes" // extraObjects of ci/envoy-values.yaml
		if o.GetNamespace() != namespace && !isExtra {
			addError(o, "the namespace is %q; want %q", o.GetNamespace(), namespace)
		}
	}
	for _, w := range all.workloads() {
		errs = append(errs, w.check()...)
		selected, err := all.workloadOf(w.selector.MatchLabels)
		switch {
		case err != nil:
			errs = append(errs, fmt.Errorf("workload %s: %w", w.name, err))
		case selected.name != w.name:
			errs = append(errs, fmt.Errorf("workload %s: its selector matches the pods of workload %s; want its own pods", w.name, selected.name))
		}
	}
	for _, s := range all.services {
		w, err := all.workloadOf(s.Spec.Selector)
		if err != nil {
			addError(s, "%v", err)
		}
		if len(s.Spec.Ports) == 0 {
			addError(s, "the Service has no port")
		}
		for _, p := range s.Spec.Ports {
			if !w.hasPort(p.TargetPort.StrVal) {
				addError(s, "no container of the selected pods has a port named %q", p.TargetPort.StrVal)
			}
		}
	}
	for _, p := range all.netPolicies {
		errs = append(errs, all.checkNetworkPolicy(p)...)
	}
	for _, b := range all.budgets {
		w, err := all.workloadOf(b.Spec.Selector.MatchLabels)
		switch {
		case err != nil:
			addError(b, "%v", err)
		case w.name != all.deployment.Name:
			addError(b, "it selects the pods of %s; want those of the Deployment", w.name)
		}
	}
	for _, s := range all.scalers {
		if target := s.Spec.ScaleTargetRef.Name; target != all.deployment.Name {
			addError(s, "it scales %s; want the Deployment %s", target, all.deployment.Name)
		}
		if all.deployment.Spec.Replicas != nil {
			addError(s, "the Deployment sets its replicas; want that only the HorizontalPodAutoscaler sets them")
		}
	}
	errs = append(errs, all.checkMonitoring()...)
	return errors.Join(errs...)
}

// check checks that pods mount their volumes, have probes at their ports, and have few rights.
func (w workload) check() (errs []error) {
	addError := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("workload %s: %s", w.name, fmt.Sprintf(format, args...)))
	}
	spec := w.template.Spec
	volumes := make(map[string]bool) // names of the volumes without a mount
	for _, v := range spec.Volumes {
		volumes[v.Name] = true
	}
	if spec.AutomountServiceAccountToken == nil || *spec.AutomountServiceAccountToken {
		addError("Kubernetes mounts a token of the service account; want automountServiceAccountToken: false")
	}
	if spec.SecurityContext == nil || !isTrue(spec.SecurityContext.RunAsNonRoot) || spec.SecurityContext.SeccompProfile == nil {
		addError("the pods may run as root, or without a seccomp profile")
	}
	for _, c := range spec.Containers {
		for _, m := range c.VolumeMounts {
			if !volumes[m.Name] {
				addError("the mount %s has no volume of its own", m.Name)
			}
			if m.SubPath != "" {
				addError("the mount %s has a subPath, so Kubernetes never updates its files", m.Name)
			}
			delete(volumes, m.Name)
		}
		if !hasFewRights(c.SecurityContext) {
			addError("the container %s has a writable root file system, privilege escalation or capabilities; want none of them", c.Name)
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
		addError("no container mounts the volumes %v", slices.Sorted(maps.Keys(volumes)))
	}
	return errs
}

func isTrue(b *bool) bool { return b != nil && *b }

// hasFewRights reports whether a container cannot write its root file system, cannot escalate
// privileges, and has no capabilities.
func hasFewRights(s *corev1.SecurityContext) bool {
	if s == nil || s.AllowPrivilegeEscalation == nil || s.Capabilities == nil {
		return false // the default of Kubernetes allows more
	}
	return isTrue(s.ReadOnlyRootFilesystem) && !*s.AllowPrivilegeEscalation && slices.Equal(s.Capabilities.Drop, []corev1.Capability{"ALL"})
}

// checkNetworkPolicy checks that a NetworkPolicy opens all ports of the pods that it selects. A
// NetworkPolicy may open the ports admin and redis only to peers that it names.
func (all *objects) checkNetworkPolicy(p *networkingv1.NetworkPolicy) (errs []error) {
	w, err := all.workloadOf(p.Spec.PodSelector.MatchLabels)
	if err != nil {
		return []error{err}
	}
	isOpen := make(map[string]bool) // by the name of the port
	for _, rule := range p.Spec.Ingress {
		for _, port := range rule.Ports {
			if port.Port == nil || !w.hasPort(port.Port.StrVal) {
				errs = append(errs, fmt.Errorf("NetworkPolicy %s: it opens the port %v, which no container has", p.Name, port.Port))
				continue
			}
			isOpen[port.Port.StrVal] = true
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
			if !isOpen[port.Name] {
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
			errs = append(errs, fmt.Errorf("the ServiceMonitor selects %d Services and has %d endpoints; want one of each", len(found), len(m.Spec.Endpoints)))
			continue
		}
		s, endpoint := found[0], m.Spec.Endpoints[0]
		if s.Labels[m.Spec.JobLabel] != "penstock" {
			errs = append(errs, fmt.Errorf("the ServiceMonitor gives the job the name %q; the alerts need the name penstock", s.Labels[m.Spec.JobLabel]))
		}
		if endpoint.Path != "/metrics" {
			errs = append(errs, fmt.Errorf("the path of the ServiceMonitor is %q; want /metrics", endpoint.Path))
		}
		if !slices.ContainsFunc(s.Spec.Ports, func(p corev1.ServicePort) bool { return p.Name == endpoint.Port }) {
			errs = append(errs, fmt.Errorf("the ServiceMonitor names the port %q, which the Service %s does not have", endpoint.Port, s.Name))
		}
	}
	alerts, rulesOfJob := 0, 0
	for _, r := range all.promRules {
		for _, g := range r.Spec.Groups {
			for _, rule := range g.Rules {
				if rule.Alert != "" {
					alerts++
				}
				if strings.Contains(rule.Expr, `job="penstock"`) {
					rulesOfJob++
				}
			}
		}
	}
	if len(all.promRules) > 0 && (len(all.promRules) != 2 || alerts < 10 || rulesOfJob == 0) {
		errs = append(errs, fmt.Errorf("there are %d PrometheusRules with %d alerts, and %d of their rules name the job penstock; want 2 PrometheusRules, at least 10 alerts, and at least 1 such rule",
			len(all.promRules), alerts, rulesOfJob))
	}
	return errs
}

// checkKustomization checks the file kustomization.yaml in a folder of manifests, and that the
// files that it names exist.
func (c *checks) checkKustomization(dir string) error {
	text, err := os.ReadFile(filepath.Join(dir, "kustomization.yaml"))
	if err != nil {
		return err
	}
	var kustomization struct { // strict decoding needs all fields of the file, even those not read below
		metav1.TypeMeta `json:",inline"`
		Resources       []string `json:"resources"`
		Images          []struct {
			Name    string `json:"name"`
			NewName string `json:"newName"`
			NewTag  string `json:"newTag"`
		} `json:"images"`
	}
	if err := yaml.UnmarshalStrict(text, &kustomization); err != nil {
		return err
	}
	const want = "kustomize.config.k8s.io/v1beta1 Kustomization"
	if kind := kustomization.APIVersion + " " + kustomization.Kind; kind != want {
		return fmt.Errorf("kustomization.yaml is a %q; want a %q", kind, want)
	}
	if len(kustomization.Resources) == 0 {
		return errors.New("kustomization.yaml names no resources; want at least one")
	}
	for _, name := range kustomization.Resources {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	return nil
}
