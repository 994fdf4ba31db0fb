package settings

import (
	"reflect"
	"strconv"
	"strings"

	"github.com/penstock/penstock/policy"
)

// A Section is the section server of a policy file. Each value has the form of the flag with that
// name. Missing settings come from flags, the environment or the defaults.
//
// Section repeats the names of Table, because policyfile decodes sections into structs, and the
// schema is made from their tags. A test compares Section with Table.
type Section struct {
	Listen                 string `yaml:"listen" jsonschema:"Host:port for requests of clients; default :8080."`
	Upstream               string `yaml:"upstream" jsonschema:"URL that requests are forwarded to."`
	PreserveHost           *bool  `yaml:"preserve_host" jsonschema:"Pass the client's Host to the upstream; default false."`
	Store                  string `yaml:"store,secret" jsonschema:"URL of Redis, or memory; default memory."`
	Prefix                 string `yaml:"prefix" jsonschema:"Prefix of all keys in Redis; default ps."`
	KeyHashSecret          string `yaml:"key_hash_secret,secret" jsonschema:"Secret that hashes identities in Redis; default none. Prefer PENSTOCK_KEY_HASH_SECRET_FILE."`
	RequireStore           *bool  `yaml:"require_store" jsonschema:"Exit if the store is down at the start; default false."`
	StoreTimeout           string `yaml:"store_timeout" jsonschema:"How long a decision may wait for the store; default 250ms."`
	MinInstances           *int64 `yaml:"min_instances" jsonschema:"Smallest number of instances to assume. They share the limits while the store is down; default 1."`
	API                    string `yaml:"api" jsonschema:"Host:port, or unix:/path, of the check API in JSON, and of forward-auth for other proxies; default none."`
	GRPC                   string `yaml:"grpc" jsonschema:"Host:port, or unix:/path, for gRPC clients; default none."`
	RESP                   string `yaml:"resp" jsonschema:"Host:port, or unix:/path, for Redis clients; default none."`
	EnvoyConfig            string `yaml:"envoy_config" jsonschema:"Folder with files of envoyproxy/ratelimit; default none."`
	EnvoyXDS               string `yaml:"envoy_xds" jsonschema:"Host:port of a control plane that sends Envoy's limits; default none."`
	EnvoyXDSNode           string `yaml:"envoy_xds_node" jsonschema:"Id by which the control plane knows this service; default \"default\"."`
	EnvoyXDSOptional       *bool  `yaml:"envoy_xds_optional" jsonschema:"Be ready before the control plane has sent limits; default false."`
	EnvoyXDSMetadata       string `yaml:"envoy_xds_metadata" jsonschema:"Metadata for the control plane, as name=value, separated by commas; default none."`
	EnvoyXDSCA             string `yaml:"envoy_xds_ca" jsonschema:"PEM file of the authorities of the control plane; default none, no TLS."`
	EnvoyXDSCert           string `yaml:"envoy_xds_cert" jsonschema:"PEM file of the certificate chain for the control plane; default none."`
	EnvoyXDSKey            string `yaml:"envoy_xds_key" jsonschema:"PEM file of the private key of envoy_xds_cert."`
	EnvoyXDSServerName     string `yaml:"envoy_xds_server_name" jsonschema:"Name in the control plane's certificate; default the host in envoy_xds."`
	EnvoyMode              string `yaml:"envoy_mode" jsonschema:"How Envoy's descriptors are decided: atomic or exact; default atomic."`
	EnvoyAlgorithm         string `yaml:"envoy_algorithm" jsonschema:"Algorithm of Envoy's limits in mode atomic; default fixed-window."`
	EnvoyReports           string `yaml:"envoy_reports" jsonschema:"How hits_addend of a descriptor is charged in mode atomic: force or spend; default force."`
	EnvoyOnFailure         string `yaml:"envoy_on_failure" jsonschema:"What Envoy gets while the store gives no answer: default, local, open, closed or error; default \"default\", which is local in mode atomic and error in mode exact."`
	EnvoyHeaders           string `yaml:"envoy_headers" jsonschema:"Header fields about limits that Envoy adds to responses: none, plain, draft-03 or draft-11; default none."`
	EnvoyMetadata          *bool  `yaml:"envoy_metadata" jsonschema:"Send dynamic metadata to Envoy; default false."`
	EnvoyShadowMode        *bool  `yaml:"envoy_shadow_mode" jsonschema:"Count Envoy's requests, but deny none; default false."`
	EnvoyQuotaMode         *bool  `yaml:"envoy_quota_mode" jsonschema:"Treat all of Envoy's limits as if they had quota_mode; default false."`
	EnvoyMergeDomains      *bool  `yaml:"envoy_merge_domains" jsonschema:"Accept several files with the same domain; default false."`
	CallerToken            string `yaml:"caller_token,secret" jsonschema:"Password of callers in JSON, gRPC and RESP; default none. Prefer PENSTOCK_CALLER_TOKEN_FILE."`
	OperatorToken          string `yaml:"operator_token,secret" jsonschema:"Token of operators, who may also peek, reset and explain; default none. Prefer PENSTOCK_OPERATOR_TOKEN_FILE."`
	AllowStatedLimits      *bool  `yaml:"allow_stated_limits" jsonschema:"Let callers in JSON and gRPC state limits of their own; default false."`
	AllowOpenCallers       *bool  `yaml:"allow_open_callers" jsonschema:"Answer callers in JSON, gRPC and RESP without credentials at addresses that other machines can reach; default false."`
	CallerTLSCert          string `yaml:"caller_tls_cert" jsonschema:"PEM file of the certificate chain for callers; default none, no TLS."`
	CallerTLSKey           string `yaml:"caller_tls_key" jsonschema:"PEM file of the private key of caller_tls_cert."`
	APIWithoutTLS          *bool  `yaml:"api_without_tls" jsonschema:"Serve api without TLS although caller_tls_cert is set; default false."`
	CallerClientCA         string `yaml:"caller_client_ca" jsonschema:"PEM file of the authorities of callers' certificates; default none."`
	AdminListen            string `yaml:"admin_listen" jsonschema:"Host:port, or unix:/path, of metrics, health checks and the admin API, or off; default 127.0.0.1:9180."`
	AdminTLSCert           string `yaml:"admin_tls_cert" jsonschema:"PEM file of the certificate chain for admin_listen; default none, no TLS."`
	AdminTLSKey            string `yaml:"admin_tls_key" jsonschema:"PEM file of the private key of admin_tls_cert."`
	AdminClientCA          string `yaml:"admin_client_ca" jsonschema:"PEM file of the authorities of operators' certificates; default none."`
	ShownIdentities        string `yaml:"shown_identities" jsonschema:"How the admin API shows who is limited: off, masked, or full with the operator token; default masked."`
	NearLimit              *int64 `yaml:"near_limit" jsonschema:"Percentage of a limit, 50 to 100; a request counts as near its limit if at least this much of the limit is used; default 80."`
	Pprof                  *bool  `yaml:"pprof" jsonschema:"Serve /debug/pprof on the admin address; default false."`
	TLSCert                string `yaml:"tls_cert" jsonschema:"PEM file of the certificate chain for HTTPS and HTTP/2; default none, plain HTTP."`
	TLSKey                 string `yaml:"tls_key" jsonschema:"PEM file of the private key of tls_cert."`
	TLSClientCA            string `yaml:"tls_client_ca" jsonschema:"PEM file of the authorities of client certificates; default none, clients need no certificate."`
	HeaderTimeout          string `yaml:"header_timeout" jsonschema:"How long a client may take to send the headers of a request; default 5s."`
	StallTimeout           string `yaml:"stall_timeout" jsonschema:"How long a client may pause while it sends a body or reads a response; default 30s; 0 is forever."`
	MinRate                string `yaml:"min_body_rate" jsonschema:"Minimum upload speed in bytes/s; default 240; 0 disables."`
	IdleTimeout            string `yaml:"idle_timeout" jsonschema:"How long an idle connection stays open; default 2m."`
	UpstreamConnectTimeout string `yaml:"upstream_connect_timeout" jsonschema:"How long connecting to the upstream may take; default 5s."`
	UpstreamHeaderTimeout  string `yaml:"upstream_header_timeout" jsonschema:"How long the upstream may take to begin its response; default 30s; 0 is forever."`
	DrainDelay             string `yaml:"drain_delay" jsonschema:"How long requests are still accepted after SIGTERM; default 0s."`
	DrainTimeout           string `yaml:"drain_timeout" jsonschema:"How long requests in flight may take to end after drain_delay; default 15s."`
	MaxHeader              string `yaml:"max_header" jsonschema:"Largest size of a request's headers; default 16KB."`
	MaxBody                string `yaml:"max_body" jsonschema:"Largest size of a request's body; default 0, unlimited."`
	MaxConnections         *int64 `yaml:"max_connections" jsonschema:"Maximum number of client connections; default 10000."`
	LogFormat              string `yaml:"log_format" jsonschema:"Format of log lines: text or json; default text."`
	LogLevel               string `yaml:"log_level" jsonschema:"Lowest level that is logged: debug, info, warn or error; default info."`
	DenialLog              string `yaml:"denial_log" jsonschema:"Which denied requests are logged: off (none), sampled or all; default sampled."`
	AuditFile              string `yaml:"audit_file" jsonschema:"File to which audit lines are appended as JSON, besides the log; default none."`
}

// SectionName returns the key of a Section in a policy file.
func (s *Section) SectionName() string { return "server" }

// Apply reports values of the Section that are invalid by themselves, whatever the flags and
// variables are. It does not change the policy.
func (s *Section) Apply(_ *policy.Spec, report func(field any, format string, args ...any)) {
	found := s.values()
	for _, row := range Table {
		text, ok := found[row.Key()]
		if !ok || row.IsNotInFile {
			continue
		}
		if err := row.set(new(Settings), text); err != nil {
			report(s.field(row.Key()), "%s%s: %v", row.Key(), row.show(text), err)
		}
	}
}

// Describe passes the names of the Section's settings to line, without their values.
func (s *Section) Describe(line func(label string, texts ...string)) {
	found := s.values()
	var names []string
	for _, row := range Table {
		if _, ok := found[row.Key()]; ok {
			names = append(names, row.Key())
		}
	}
	if len(names) > 0 {
		line("server", strings.Join(names, ", "))
	}
}

// values returns the settings of the Section by key, in the form of flags.
func (s *Section) values() map[string]string {
	found := make(map[string]string)
	if s == nil {
		return found
	}
	v := reflect.ValueOf(s).Elem()
	for i := range v.NumField() {
		key, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("yaml"), ",")
		switch field := v.Field(i).Interface().(type) {
		case string:
			if field != "" {
				found[key] = field
			}
		case *bool:
			if field != nil {
				found[key] = strconv.FormatBool(*field)
			}
		case *int64:
			if field != nil {
				found[key] = strconv.FormatInt(*field, 10)
			}
		}
	}
	return found
}

// field returns a pointer to the field of a key, or s if there is none.
func (s *Section) field(key string) any {
	v := reflect.ValueOf(s).Elem()
	for i := range v.NumField() {
		if name, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("yaml"), ","); name == key {
			return v.Field(i).Addr().Interface()
		}
	}
	return s
}
