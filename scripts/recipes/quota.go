package main

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/penstock/penstock/internal/redistest"
)

// quotaLimits are the quotas of two services. A window of a year does not end during the trial.
const quotaLimits = `
domain: quotas
descriptors:
- {key: service, value: one, quota_mode: true, rate_limit: {unit: year, requests_per_unit: 1}, metadata: {next: {service: one}}}
- {key: service, value: two, quota_mode: true, rate_limit: {unit: year, requests_per_unit: 2}, metadata: {next: {service: two}}}
`

// quotaEnvoy is a configuration of Envoy, with the ports of Envoy, the service one, the service two
// and Penstock for %s. A request asks for the quotas of both services with 0 hits. The metadata of
// the response select the service that gets the request. Afterwards the quota of this service is
// charged.
const quotaEnvoy = `
static_resources:
  listeners:
  - address: {socket_address: {address: 127.0.0.1, port_value: %s}}
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: quotas
          route_config:
            virtual_hosts:
            - name: services
              domains: ["*"]
              routes:
              - match: {prefix: /}
                route: {cluster: services}
                typed_per_filter_config:
                  envoy.filters.http.ratelimit:
                    "@type": type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimitPerRoute
                    rate_limits:
                    - actions: [{generic_key: {descriptor_key: service, descriptor_value: one}}]
                      hits_addend: {number: 0}
                    - actions: [{generic_key: {descriptor_key: service, descriptor_value: two}}]
                      hits_addend: {number: 0}
                    - actions:
                      - metadata: {descriptor_key: service, source: CLUSTER_LOCALITY_ENTRY, metadata_key: {key: names, path: [{key: name}]}}
                      hits_addend: {number: 1}
                      apply_on_stream_done: true
          http_filters:
          - name: envoy.filters.http.ratelimit
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimit
              domain: quotas
              timeout: 10s
              failure_mode_deny: true
              rate_limit_service: {transport_api_version: V3, grpc_service: {envoy_grpc: {cluster_name: penstock}}}
          - name: envoy.filters.http.header_mutation
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.filters.http.header_mutation.v3.HeaderMutation
              mutations:
                request_mutations:
                - append:
                    header: {key: x-service, value: "%%DYNAMIC_METADATA(envoy.filters.http.ratelimit:metadata:next:service)%%"}
                    append_action: OVERWRITE_IF_EXISTS_OR_ADD
          - name: envoy.filters.http.header_to_metadata
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.filters.http.header_to_metadata.v3.Config
              request_rules: [{header: x-service, on_header_present: {metadata_namespace: envoy.lb, key: service, type: STRING}}]
          - name: envoy.filters.http.router
            typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}
  clusters:
  - name: services
    lb_subset_config: {fallback_policy: NO_FALLBACK, subset_selectors: [{keys: [service]}]}
    load_assignment:
      cluster_name: services
      endpoints:
      - locality: {region: one}
        metadata: {filter_metadata: {names: {name: one}}}
        lb_endpoints:
        - endpoint: {address: {socket_address: {address: 127.0.0.1, port_value: %s}}}
          metadata: {filter_metadata: {envoy.lb: {service: one}}}
      - locality: {region: two}
        metadata: {filter_metadata: {names: {name: two}}}
        lb_endpoints:
        - endpoint: {address: {socket_address: {address: 127.0.0.1, port_value: %s}}}
          metadata: {filter_metadata: {envoy.lb: {service: two}}}
  - name: penstock
    typed_extension_protocol_options:
      envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
        "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
        explicit_http_config: {http2_protocol_options: {}}
    load_assignment: {cluster_name: penstock, endpoints: [{lb_endpoints: [{endpoint: {address: {socket_address: {address: 127.0.0.1, port_value: %s}}}}]}]}
`

// runQuotas checks that Envoy routes by the quotas of two services: their quota_mode, their
// metadata, and the charge after each request.
func runQuotas(dir, envoy, mode string) error {
	redis, err := redistest.Launch()
	if err != nil {
		return err
	}
	defer redis.Close()
	dir = filepath.Join(dir, "quotas-"+mode)
	limits := filepath.Join(dir, "limits")
	if err := os.MkdirAll(limits, 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(limits, "quotas.yaml"), []byte(quotaLimits), 0o600); err != nil {
		return err
	}
	t := &quotaTrial{api: freeAddress(), envoy: freeAddress()}
	grpc := freeAddress()
	penstock, err := start(dir, "penstock", grpc, exec.Command(filepath.Join(filepath.Dir(dir), "penstock"), "serve", "--grpc", grpc, "--api", t.api, "--admin-listen", "off",
		"--envoy-config", limits, "--envoy-mode", mode, "--envoy-metadata", "--store", redis.URL(), "--store-timeout", "5s"))
	if err != nil {
		return err
	}
	defer penstock.end()
	ports := []any{portOf(t.envoy)}
	for _, name := range []string{"one", "two"} {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return err
		}
		defer listener.Close()
		go http.Serve(listener, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, name) }))
		ports = append(ports, portOf(listener.Addr().String()))
	}
	file := filepath.Join(dir, "envoy.yaml")
	if err := os.WriteFile(file, fmt.Appendf(nil, quotaEnvoy, append(ports, portOf(grpc))...), 0o644); err != nil {
		return err
	}
	proxy, err := start(dir, "envoy", t.envoy, exec.Command(envoy, append(envoyArgs("envoy.yaml")(dir, ""), "--service-cluster", "quotas", "--service-node", "quotas")...))
	if err != nil {
		return err
	}
	defer proxy.end()

	for i, want := range []struct{ response, left string }{
		{"200 one", "0 2"}, // left: what the two quotas have after the request
		{"200 one", "over 2"},
		{"200 two", "over 1"},
		{"200 two", "over 0"},
		{"200 two", "over over"},
		{"429 ", "over over"},
	} {
		if err := t.send(want.response); err != nil {
			return fmt.Errorf("Envoy with quotas in mode %s, request %d: %w", mode, i+1, err)
		}
		// Envoy charges after it has sent the response.
		if err := await(fmt.Sprintf("after request %d, the quotas do not have %q left", i+1, want.left), func() bool { return t.left() == want.left }); err != nil {
			return err
		}
	}
	fmt.Printf("Envoy with quotas in mode %s: 6 requests were routed by what the quotas of two services had left\n", mode)
	return nil
}

// A quotaTrial has the addresses of Envoy and of Penstock's API.
type quotaTrial struct{ envoy, api string }

// send sends a request to Envoy, and compares the status and the body of the response.
func (t *quotaTrial) send(want string) error {
	a := (&row{address: t.envoy, client: &http.Client{Timeout: time.Minute}}).send("GET", "/", "services.example")
	if got := a.status + " " + a.body; got != want {
		return fmt.Errorf("the response is %q; want %q", got, want)
	}
	return nil
}

// left returns what the two quotas have left, or "over".
func (t *quotaTrial) left() string {
	body := `{"domain": "quotas", "descriptors": [{"entries": [{"key": "service", "value": "one"}], "hitsAddend": "0"}, {"entries": [{"key": "service", "value": "two"}], "hitsAddend": "0"}]}`
	response, err := http.Post("http://"+t.api+"/json", "application/json", strings.NewReader(body))
	if err != nil {
		return err.Error()
	}
	defer response.Body.Close()
	var answer struct {
		Statuses []struct {
			Code           string
			LimitRemaining int
		}
	}
	if err := json.NewDecoder(response.Body).Decode(&answer); err != nil {
		return err.Error()
	}
	var left []string
	for _, s := range answer.Statuses {
		if s.Code == "OVER_LIMIT" {
			left = append(left, "over")
		} else {
			left = append(left, fmt.Sprint(s.LimitRemaining))
		}
	}
	return strings.Join(left, " ")
}

func portOf(address string) string {
	_, port, _ := net.SplitHostPort(address) // the address is that of a listener
	return port
}
