package settings

import (
	"strings"
	"time"
)

// A Row is one setting. Its flag is --name. Its variable is PENSTOCK_NAME, with '_' for '-'. Its
// key in the policy file's server section is the name with '_' for '-'.
type Row struct {
	Name        string
	Default     string
	Value       string // form of a value, for help; "" for true and false
	Help        string
	IsSecret    bool    // never shown; may also be in a file that the variable NAME_FILE names
	IsNotInFile bool    // not allowed in the policy file
	Aliases     []Alias // other variables, after PENSTOCK_NAME

	set func(s *Settings, text string) error
}

// An Alias is another variable for a setting. Other programs and platforms set it. Read makes the
// setting's value from it. If Read is nil, the variable has the value itself.
type Alias struct {
	Name string
	Read func(get func(name string) string) (text string, ok bool)
}

// Env returns the name of the setting's own variable.
func (r Row) Env() string { return "PENSTOCK_" + strings.ToUpper(r.Key()) }

// Key returns the setting's name in the policy file.
func (r Row) Key() string { return strings.ReplaceAll(r.Name, "-", "_") }

const (
	kb = 1 << 10
	mb = 1 << 20
	gb = 1 << 30
	pb = 1 << 50
)

// Table lists every setting, in the order of the help. Durations are written like 100ms, 5s, 2m;
// sizes like 512, 16KB, 8MB (1 KB is 1024).
var Table = []Row{
	{Name: "config", Value: "file", IsNotInFile: true, set: text(func(s *Settings) *string { return &s.Config }),
		Help: "policy file; its server section may contain the settings below"},

	{Name: "listen", Default: ":8080", Value: "host:port", Aliases: []Alias{{"PORT", readPort}},
		set:  address(func(s *Settings) *string { return &s.Listen }),
		Help: "address for requests; without a host, all addresses of the machine"},
	{Name: "upstream", Value: "url", set: setUpstream,
		Help: "backend: http://host:port, https://host, h2c://host:port or unix:/path/of.sock"},
	{Name: "preserve-host", Default: "false", set: toggle(func(s *Settings) *bool { return &s.PreserveHost }),
		Help: "pass the client's Host header to the upstream (default: the upstream's own name; the original goes into X-Forwarded-Host)"},
	{Name: "demo", Default: "false", IsNotInFile: true, set: toggle(func(s *Settings) *bool { return &s.Demo }),
		Help: "start a test backend, with sample rules if config is not set, and listen at " + demoListen + " by default"},
	{Name: "demo-traffic", Default: "false", IsNotInFile: true, set: toggle(func(s *Settings) *bool { return &s.DemoTraffic }),
		Help: "with demo: send requests to the demo, so that the dashboard has something to show, and print an operator token if none is set"},

	{Name: "store", Default: "memory", Value: "url", IsSecret: true, Aliases: []Alias{{"REDIS_URL", nil}, {"REDIS_HOST", readRedisHost}}, set: setStore,
		Help: "where counters live: redis://host:6379, rediss://…, redis+sentinel://…, redis+cluster://…, unix:///path/of.sock; memory is " +
			"for one instance"},
	{Name: "prefix", Default: "ps", Value: "text", set: setPrefix,
		Help: "prefix of all keys in Redis; instances that share limits need the same prefix"},
	{Name: "key-hash-secret", Value: "text", IsSecret: true, set: func(s *Settings, text string) error { s.KeyHashSecret = []byte(text); return nil },
		Help: "if set, Redis keys contain identities only as their HMAC with this secret; instances that share limits need the same secret"},
	{Name: "require-store", Default: "false", set: toggle(func(s *Settings) *bool { return &s.RequireStore }),
		Help: "do not start if the store does not answer (default: start, log it, and use the store as soon as it answers)"},
	{Name: "store-timeout", Default: "250ms", Value: "duration",
		set:  duration(func(s *Settings) *time.Duration { return &s.StoreTimeout }, mustNotBeZero, time.Minute),
		Help: "how long a decision waits for the store; after that, on_failure decides"},
	{Name: "min-instances", Default: "1", Value: "number", set: count(func(s *Settings) *int64 { return &s.MinInstances }, 10_000),
		Help: "smallest number of instances to assume. With on_failure local, each instance enforces its share of the limits while the store does not answer. " +
			"The instances that share a Redis are counted too, and the larger number applies"},

	{Name: "api", Value: "host:port", set: optional(callerAddress(func(s *Settings) *string { return &s.API })),
		Help: "address of the check API in JSON, and of forward-auth for other proxies; host:port or unix:/path/of.sock"},
	{Name: "grpc", Value: "host:port", set: optional(callerAddress(func(s *Settings) *string { return &s.GRPC })),
		Help: "address for gRPC clients; host:port or unix:/path/of.sock"},
	{Name: "resp", Value: "host:port", set: optional(callerAddress(func(s *Settings) *string { return &s.RESP })),
		Help: "address for Redis clients, such as for CL.THROTTLE; host:port or unix:/path/of.sock"},
	{Name: "envoy-config", Value: "folder", set: text(func(s *Settings) *string { return &s.EnvoyConfig }),
		Help: "folder with files of envoyproxy/ratelimit; Envoy's rate limit service, at grpc and api, enforces their limits"},
	{Name: "envoy-xds", Value: "host:port", set: text(func(s *Settings) *string { return &s.EnvoyXDS }),
		Help: "control plane that sends Envoy's limits, as Envoy Gateway does; replaces envoy-config"},
	{Name: "envoy-xds-node", Default: "default", Value: "text", set: text(func(s *Settings) *string { return &s.EnvoyXDSNode }),
		Help: "id by which the control plane knows this service"},
	{Name: "envoy-xds-optional", Default: "false", set: toggle(func(s *Settings) *bool { return &s.EnvoyXDSOptional }),
		Help: "be ready before the control plane has sent limits; until then, calls of Envoy's rate limit service fail"},
	{Name: "envoy-xds-metadata", Value: "text", set: text(func(s *Settings) *string { return &s.EnvoyXDSMetadata }),
		Help: "metadata that the control plane gets, as name=value, separated by commas"},
	{Name: "envoy-xds-ca", Value: "file", set: text(func(s *Settings) *string { return &s.EnvoyXDSCA }),
		Help: "authorities of the control plane's certificate in PEM form; without them, the connection has no TLS"},
	{Name: "envoy-xds-cert", Value: "file", set: text(func(s *Settings) *string { return &s.EnvoyXDSCert }),
		Help: "certificate chain for the control plane in PEM form; a changed file is read for the next connection"},
	{Name: "envoy-xds-key", Value: "file", set: text(func(s *Settings) *string { return &s.EnvoyXDSKey }),
		Help: "private key of envoy-xds-cert in PEM form"},
	{Name: "envoy-xds-server-name", Value: "text", set: text(func(s *Settings) *string { return &s.EnvoyXDSServerName }),
		Help: "name in the control plane's certificate (default: the host in envoy-xds)"},
	{Name: "envoy-mode", Default: "atomic", Value: "atomic|exact", set: choice(func(s *Settings) *string { return &s.EnvoyMode }, "atomic", "exact"),
		Help: "how Envoy's descriptors are decided: atomic charges all descriptors of a request or none; exact counts each separately, as envoyproxy/ratelimit does"},
	{Name: "envoy-algorithm", Default: "fixed-window", Value: "fixed-window|token-bucket|sliding-window|sliding-log",
		set:  choice(func(s *Settings) *string { return &s.EnvoyAlgorithm }, "fixed-window", "token-bucket", "sliding-window", "sliding-log"),
		Help: "what enforces Envoy's limits in mode atomic"},
	{Name: "envoy-reports", Default: "force", Value: "force|spend", set: choice(func(s *Settings) *string { return &s.EnvoyReports }, "force", "spend"),
		Help: "how hits_addend of a descriptor is charged in mode atomic: force always charges it, because it may report units that were used already; spend charges it only if it fits"},
	{Name: "envoy-on-failure", Default: "default", Value: "default|local|open|closed|error",
		set: choice(func(s *Settings) *string { return &s.EnvoyOnFailure }, "default", "local", "open", "closed", "error"),
		Help: "what Envoy gets while the store gives no answer: local decides by this instance's share, open is OK, closed is OVER_LIMIT, error leaves the " +
			"decision to Envoy; default is local in mode atomic, and error in mode exact"},
	{Name: "envoy-headers", Default: "none", Value: "none|plain|draft-03|draft-11",
		set:  choice(func(s *Settings) *string { return &s.EnvoyHeaders }, "none", "plain", "draft-03", "draft-11"),
		Help: "header fields about limits that Envoy adds to responses; plain is the form of envoyproxy/ratelimit"},
	{Name: "envoy-metadata", Default: "false", set: toggle(func(s *Settings) *bool { return &s.EnvoyMetadata }),
		Help: "send dynamic metadata with each answer to Envoy"},
	{Name: "envoy-shadow-mode", Default: "false", set: toggle(func(s *Settings) *bool { return &s.EnvoyShadowMode }),
		Help: "count Envoy's requests, but deny none"},
	{Name: "envoy-quota-mode", Default: "false", set: toggle(func(s *Settings) *bool { return &s.EnvoyQuotaMode }),
		Help: "treat all of Envoy's limits as if they had quota_mode"},
	{Name: "envoy-merge-domains", Default: "false", set: toggle(func(s *Settings) *bool { return &s.EnvoyMergeDomains }),
		Help: "accept several files in envoy-config with the same domain"},
	{Name: "caller-token", Value: "text", IsSecret: true, set: token(func(s *Settings) *[]byte { return &s.CallerToken }),
		Help: "password that Redis clients send by AUTH, and programs as Authorization: Bearer in JSON and gRPC; forward-auth trusts the addresses in trusted_proxies instead"},
	{Name: "operator-token", Value: "text", IsSecret: true, set: token(func(s *Settings) *[]byte { return &s.OperatorToken }),
		Help: "token of operators, who may also peek, reset and explain in JSON and gRPC. Without a token, these calls are refused. The admin API requires the token at addresses that other machines can reach"},
	{Name: "allow-stated-limits", Default: "false", set: toggle(func(s *Settings) *bool { return &s.AllowStatedLimits }),
		Help: "let callers in JSON and gRPC state limits that are not in the policy"},
	{Name: "allow-open-callers", Default: "false", set: toggle(func(s *Settings) *bool { return &s.AllowOpenCallers }),
		Help: "answer callers in JSON, gRPC and RESP without a token or certificate at addresses that other machines can reach"},
	{Name: "caller-tls-cert", Value: "file", set: text(func(s *Settings) *string { return &s.CallerTLSCert }),
		Help: "certificate chain in PEM form, for TLS at api, grpc and resp; a changed file is reloaded"},
	{Name: "caller-tls-key", Value: "file", set: text(func(s *Settings) *string { return &s.CallerTLSKey }),
		Help: "private key of caller-tls-cert in PEM form"},
	{Name: "api-without-tls", Default: "false", set: toggle(func(s *Settings) *bool { return &s.APIWithoutTLS }),
		Help: "serve api without TLS although caller-tls-cert is set, for probes without TLS; the network can then read all requests and answers of api"},
	{Name: "caller-client-ca", Value: "file", set: text(func(s *Settings) *string { return &s.CallerClientCA }),
		Help: "if set, callers at api, grpc and resp need a certificate signed by one of these authorities"},

	{Name: "admin-listen", Default: "127.0.0.1:9180", Value: "host:port", set: setAdmin,
		Help: "address for /metrics, /livez, /readyz and the admin API; host:port, unix:/path/of.sock, or off. Use 0.0.0.0:9180 for Kubernetes or remote scraping. Commands such as status reach it by --admin"},
	{Name: "admin-tls-cert", Value: "file", set: text(func(s *Settings) *string { return &s.AdminTLSCert }),
		Help: "certificate chain in PEM form, for TLS at admin-listen; a changed file is reloaded"},
	{Name: "admin-tls-key", Value: "file", set: text(func(s *Settings) *string { return &s.AdminTLSKey }),
		Help: "private key of admin-tls-cert in PEM form"},
	{Name: "admin-client-ca", Value: "file", set: text(func(s *Settings) *string { return &s.AdminClientCA }),
		Help: "if set, clients with a certificate signed by one of these authorities may also read the admin API"},
	{Name: "shown-identities", Default: "masked", Value: "off|masked|full",
		set:  choice(func(s *Settings) *string { return &s.ShownIdentities }, "off", "masked", "full"),
		Help: "how the admin API shows who is limited: off, masked, or full with the operator token; off also keeps no identities in memory"},
	{Name: "near-limit", Default: "80", Value: "percent", set: percent(func(s *Settings) *int64 { return &s.NearLimit }, 50),
		Help: "percentage of a limit, 50 to 100; a request counts as near its limit if at least this much of the limit is used after the request is charged"},
	{Name: "pprof", Default: "false", set: toggle(func(s *Settings) *bool { return &s.Pprof }),
		Help: "serve /debug/pprof on the admin address"},

	{Name: "tls-cert", Value: "file", set: text(func(s *Settings) *string { return &s.TLSCert }),
		Help: "certificate chain in PEM form, for HTTPS and HTTP/2; a changed file is reloaded"},
	{Name: "tls-key", Value: "file", set: text(func(s *Settings) *string { return &s.TLSKey }),
		Help: "private key of tls-cert in PEM form"},
	{Name: "tls-client-ca", Value: "file", set: text(func(s *Settings) *string { return &s.TLSClientCA }),
		Help: "if set, clients need a certificate signed by one of these authorities"},

	{Name: "header-timeout", Default: "5s", Value: "duration",
		set:  duration(func(s *Settings) *time.Duration { return &s.HeaderTimeout }, mustNotBeZero, time.Hour),
		Help: "time for a client to send the headers of a request"},
	{Name: "stall-timeout", Default: "30s", Value: "duration",
		set:  duration(func(s *Settings) *time.Duration { return &s.StallTimeout }, canBeZero, time.Hour),
		Help: "how long a client may pause while it sends a body or reads a response; 0 is forever"},
	{Name: "min-body-rate", Default: "240", Value: "size", set: size(func(s *Settings) *int64 { return &s.MinRate }, canBeZero, mb),
		Help: "minimum upload speed in bytes/s; a slower request body is cut off after stall-timeout; 0 disables"},
	{Name: "idle-timeout", Default: "2m", Value: "duration",
		set:  duration(func(s *Settings) *time.Duration { return &s.IdleTimeout }, mustNotBeZero, 24*time.Hour),
		Help: "how long an idle connection is kept"},
	{Name: "upstream-connect-timeout", Default: "5s", Value: "duration",
		set:  duration(func(s *Settings) *time.Duration { return &s.UpstreamConnectTimeout }, mustNotBeZero, time.Hour),
		Help: "time to connect to the upstream"},
	{Name: "upstream-header-timeout", Default: "30s", Value: "duration",
		set:  duration(func(s *Settings) *time.Duration { return &s.UpstreamHeaderTimeout }, canBeZero, 24*time.Hour),
		Help: "how long the upstream may take to begin its response; 0 is forever"},
	{Name: "drain-delay", Default: "0s", Value: "duration",
		set:  duration(func(s *Settings) *time.Duration { return &s.DrainDelay }, canBeZero, time.Hour),
		Help: "after SIGTERM, how long requests are still accepted while /readyz fails, so that load balancers notice"},
	{Name: "drain-timeout", Default: "15s", Value: "duration",
		set:  duration(func(s *Settings) *time.Duration { return &s.DrainTimeout }, canBeZero, time.Hour),
		Help: "after drain-delay, how long requests in flight may take to end"},

	{Name: "max-header", Default: "16KB", Value: "size", set: size(func(s *Settings) *int64 { return &s.MaxHeader }, mustNotBeZero, mb),
		Help: "maximum size of a request's headers; larger ones get 431"},
	{Name: "max-body", Default: "0", Value: "size", set: size(func(s *Settings) *int64 { return &s.MaxBody }, canBeZero, pb),
		Help: "maximum size of a request's body; larger ones get 413. 0 is no limit: bodies are streamed, and the upstream can limit them"},
	{Name: "max-connections", Default: "10000", Value: "number", set: count(func(s *Settings) *int64 { return &s.MaxConnections }, 1e6),
		Help: "maximum number of client connections. At HTTP addresses, a further one takes the place of the one that has been idle longest. Otherwise it waits until one is closed"},

	{Name: "log-format", Default: "text", Value: "text|json",
		set:  choice(func(s *Settings) *string { return &s.LogFormat }, "text", "json"),
		Help: "format of log lines on standard error; text is colored on a terminal"},
	{Name: "log-level", Default: "info", Value: "debug|info|warn|error",
		set:  choice(func(s *Settings) *string { return &s.LogLevel }, "debug", "info", "warn", "error"),
		Help: "lowest level that is logged; requests that were served are not logged at any level"},
	{Name: "denial-log", Default: "sampled", Value: "off|sampled|all",
		set:  choice(func(s *Settings) *string { return &s.DenialLog }, "off", "sampled", "all"),
		Help: "log denied requests, with masked keys: sampled is at most 10 lines a second, one for each limit; all is at most 1000 lines a second"},
	{Name: "audit-file", Value: "file", set: text(func(s *Settings) *string { return &s.AuditFile }),
		Help: "file to which audit lines are appended as JSON, besides the log; it is made with mode 0600"},
}
