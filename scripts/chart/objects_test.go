//go:build checks

package chart

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

// A serviceMonitor has the fields of the Prometheus operator's type that the chart uses.
type serviceMonitor struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		JobLabel          string               `json:"jobLabel"`
		Selector          metav1.LabelSelector `json:"selector"`
		NamespaceSelector any                  `json:"namespaceSelector"`
		Endpoints         []struct {
			Port, Path, Interval, Scheme string
			TLSConfig                    any `json:"tlsConfig"`
		} `json:"endpoints"`
	} `json:"spec"`
}

// kinds makes an empty object of each kind that the chart may have.
var kinds = map[string]func() metav1.Object{
	"v1 ConfigMap":                            func() metav1.Object { return new(corev1.ConfigMap) },
	"v1 Service":                              func() metav1.Object { return new(corev1.Service) },
	"v1 ServiceAccount":                       func() metav1.Object { return new(corev1.ServiceAccount) },
	"apps/v1 Deployment":                      func() metav1.Object { return new(appsv1.Deployment) },
	"apps/v1 StatefulSet":                     func() metav1.Object { return new(appsv1.StatefulSet) },
	"policy/v1 PodDisruptionBudget":           func() metav1.Object { return new(policyv1.PodDisruptionBudget) },
	"autoscaling/v2 HorizontalPodAutoscaler":  func() metav1.Object { return new(autoscalingv2.HorizontalPodAutoscaler) },
	"networking.k8s.io/v1 NetworkPolicy":      func() metav1.Object { return new(networkingv1.NetworkPolicy) },
	"monitoring.coreos.com/v1 ServiceMonitor": func() metav1.Object { return new(serviceMonitor) },
	"monitoring.coreos.com/v1 PrometheusRule": func() metav1.Object { return new(unstructured.Unstructured) },
}

// objects are the objects that the chart renders for one set of values.
type objects struct {
	all        []metav1.Object
	workloads  []workload // the Deployment, and the StatefulSet of Valkey if there is one
	configMaps map[string]map[string]string

	hasReplicas bool // of the Deployment
}

// A workload is a Deployment or a StatefulSet.
type workload struct {
	name     string
	selector *metav1.LabelSelector
	labels   map[string]string
	spec     corev1.PodSpec
}

// decode decodes objects strictly: unknown fields and values of the wrong type are errors.
func decode(t *testing.T, text string) *objects {
	t.Helper()
	list := &objects{configMaps: make(map[string]map[string]string)}
	names := make(map[string]bool)
	for document := range strings.SplitSeq("\n"+text, "\n---\n") {
		var kind metav1.TypeMeta
		if err := yaml.Unmarshal([]byte(document), &kind); err != nil {
			t.Fatalf("%v\n%s", err, document)
		}
		if kind.Kind == "" {
			continue
		}
		newObject := kinds[kind.APIVersion+" "+kind.Kind]
		if newObject == nil {
			t.Fatalf("this test does not know the kind %v; add it to kinds", kind)
		}
		o := newObject()
		if err := yaml.UnmarshalStrict([]byte(document), o); err != nil {
			t.Fatalf("%v: %v\n%s", kind, err, document)
		}
		if name := kind.Kind + " " + o.GetName(); names[name] || o.GetName() == "" {
			t.Errorf("%s has no name, or that of another object", name)
		} else {
			names[name] = true
		}
		list.all = append(list.all, o)
		switch o := o.(type) {
		case *corev1.ConfigMap:
			list.configMaps[o.Name] = o.Data
		case *appsv1.Deployment:
			list.hasReplicas = o.Spec.Replicas != nil
			list.workloads = append([]workload{{o.Name, o.Spec.Selector, o.Spec.Template.Labels, o.Spec.Template.Spec}}, list.workloads...)
		case *appsv1.StatefulSet:
			list.workloads = append(list.workloads, workload{o.Name, o.Spec.Selector, o.Spec.Template.Labels, o.Spec.Template.Spec})
		}
	}
	if len(list.workloads) == 0 {
		t.Fatal("the chart rendered no workload")
	}
	return list
}

// selected returns the workload whose pods a selector matches. There must be exactly one.
func (list *objects) selected(t *testing.T, by string, selector map[string]string) (found workload) {
	t.Helper()
	n := 0
	for _, w := range list.workloads {
		if matches(selector, w.labels) {
			found = w
			n++
		}
	}
	if n != 1 {
		t.Errorf("the selector %v of %s matches %d workloads; want 1", selector, by, n)
	}
	return found
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

// ports returns the names of the ports of all containers.
func (w workload) ports() (names []string) {
	for _, c := range w.spec.Containers {
		for _, p := range c.Ports {
			names = append(names, p.Name)
		}
	}
	return names
}

// checkLinks checks that objects that refer to others refer to the right ones.
func (list *objects) checkLinks(t *testing.T) {
	main := list.workloads[0].name
	var services []*corev1.Service
	for _, o := range list.all {
		if s, ok := o.(*corev1.Service); ok {
			services = append(services, s)
		}
	}
	for _, w := range list.workloads {
		w.check(t)
		if other := list.selected(t, w.name, w.selector.MatchLabels); other.name != w.name {
			t.Errorf("%s selects the pods of %s; want its own", w.name, other.name)
		}
	}
	for _, o := range list.all {
		name := fmt.Sprintf("%T %s", o, o.GetName())
		isExtra := o.GetName() == "ratelimit-notes" // extraObjects of ci/envoy-values.yaml
		if o.GetNamespace() != namespace && !isExtra {
			t.Errorf("the namespace of %s is %q; want %q", name, o.GetNamespace(), namespace)
		}
		switch o := o.(type) {
		case *corev1.Service:
			ports := list.selected(t, name, o.Spec.Selector).ports()
			for _, p := range o.Spec.Ports {
				if !slices.Contains(ports, p.TargetPort.StrVal) {
					t.Errorf("%s leads to the port %q, which no container has", name, p.TargetPort.StrVal)
				}
			}
		case *policyv1.PodDisruptionBudget:
			if w := list.selected(t, name, o.Spec.Selector.MatchLabels); w.name != main {
				t.Errorf("%s selects the pods of %s; want %s", name, w.name, main)
			}
		case *autoscalingv2.HorizontalPodAutoscaler:
			if o.Spec.ScaleTargetRef.Name != main || list.hasReplicas {
				t.Errorf("%s scales %s, and the Deployment sets its replicas: %v; want that it scales %s, which sets none", name, o.Spec.ScaleTargetRef.Name, list.hasReplicas, main)
			}
		case *networkingv1.NetworkPolicy:
			list.checkNetworkPolicy(t, o)
		case *serviceMonitor:
			at := slices.IndexFunc(services, func(s *corev1.Service) bool { return matches(o.Spec.Selector.MatchLabels, s.Labels) })
			if at < 0 || len(o.Spec.Endpoints) != 1 {
				t.Fatalf("%s selects no Service, or has %d endpoints; want 1", name, len(o.Spec.Endpoints))
			}
			s, endpoint := services[at], o.Spec.Endpoints[0]
			hasPort := slices.ContainsFunc(s.Spec.Ports, func(p corev1.ServicePort) bool { return p.Name == endpoint.Port })
			if s.Labels[o.Spec.JobLabel] != "penstock" || endpoint.Path != "/metrics" || !hasPort {
				t.Errorf("%s scrapes %+v of %s as the job %q; want /metrics at a port of it, as the job penstock that the alerts name", name, endpoint, s.Name, s.Labels[o.Spec.JobLabel])
			}
		}
	}
}

// check checks that pods mount their volumes, have probes at their ports, and have few rights.
func (w workload) check(t *testing.T) {
	spec, ports := w.spec, w.ports()
	if spec.AutomountServiceAccountToken == nil || *spec.AutomountServiceAccountToken {
		t.Errorf("%s mounts a token of the service account; want automountServiceAccountToken: false", w.name)
	}
	if s := spec.SecurityContext; s == nil || !isTrue(s.RunAsNonRoot) || s.SeccompProfile == nil {
		t.Errorf("the pods of %s may run as root, or without a seccomp profile", w.name)
	}
	for _, c := range spec.Containers {
		for _, v := range spec.Volumes {
			isMount := func(m corev1.VolumeMount) bool { return m.Name == v.Name && m.SubPath == "" } // files at a subPath are never updated
			if !slices.ContainsFunc(c.VolumeMounts, isMount) || len(c.VolumeMounts) != len(spec.Volumes) {
				t.Errorf("%s mounts %v; want each volume, such as %s, without a subPath", w.name, c.VolumeMounts, v.Name)
			}
		}
		s := c.SecurityContext
		if s == nil || !isTrue(s.ReadOnlyRootFilesystem) || s.AllowPrivilegeEscalation == nil || *s.AllowPrivilegeEscalation || s.Capabilities == nil || !slices.Equal(s.Capabilities.Drop, []corev1.Capability{"ALL"}) {
			t.Errorf("the container %s has a writable root file system, privilege escalation or capabilities; want none of them", c.Name)
		}
		for _, probe := range []*corev1.Probe{c.LivenessProbe, c.ReadinessProbe} {
			port := ""
			switch {
			case probe != nil && probe.HTTPGet != nil:
				port = probe.HTTPGet.Port.StrVal
			case probe != nil && probe.TCPSocket != nil:
				port = probe.TCPSocket.Port.StrVal
			}
			if !slices.Contains(ports, port) {
				t.Errorf("a probe of %s is missing, or no container has its port %q", c.Name, port)
			}
		}
	}
}

func isTrue(b *bool) bool { return b != nil && *b }

// checkNetworkPolicy checks that a NetworkPolicy opens exactly the ports of the pods that it
// selects. It may open the ports admin and redis only to peers that it names.
func (list *objects) checkNetworkPolicy(t *testing.T, p *networkingv1.NetworkPolicy) {
	var open []string
	for _, rule := range p.Spec.Ingress {
		if len(rule.Ports) == 0 {
			t.Errorf("a rule of the NetworkPolicy %s opens all ports", p.Name)
		}
		for _, port := range rule.Ports {
			name := port.Port.StrVal
			open = append(open, name)
			if (name == "admin" || name == "redis") && len(rule.From) == 0 {
				t.Errorf("the NetworkPolicy %s opens the port %s to all peers", p.Name, name)
			}
		}
	}
	want := list.selected(t, p.Name, p.Spec.PodSelector.MatchLabels).ports()
	slices.Sort(open)
	slices.Sort(want)
	if open = slices.Compact(open); !slices.Equal(open, want) {
		t.Errorf("the NetworkPolicy %s opens the ports %q; want %q", p.Name, open, want)
	}
}
