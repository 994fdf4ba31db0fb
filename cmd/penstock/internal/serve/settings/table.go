package settings

import "strings"

// A Row is one setting. Its flag is --name. Its variable is PENSTOCK_NAME, with '_' for '-'. Its
// key in the policy file's server section is the name with '_' for '-'. The help, the docs and the
// schema of the policy file are made from the Rows too.
type Row struct {
	Name    string
	Default string
	Form
	Help        string
	Group       string  // the heading above this setting and those that follow it, in the docs
	IsSecret    bool    // never shown; may also be in a file that the variable NAME_FILE names
	IsNotInFile bool    // not allowed in the policy file
	Aliases     []Alias // other variables, after PENSTOCK_NAME
}

// An Alias is another variable for a setting. Other programs and platforms set it. Read makes the
// setting's value from it. If Read is nil, the variable has the value itself.
type Alias struct {
	Name string
	Read func(get func(name string) string) (text string, ok bool)
}

func (r Row) Env() string { return "PENSTOCK_" + strings.ToUpper(r.Key()) }

func (r Row) Key() string { return strings.ReplaceAll(r.Name, "-", "_") }

func (r Row) Sentence() string {
	return strings.ToUpper(r.Help[:1]) + strings.TrimSuffix(r.Help[1:], ".") + "."
}

// Choices returns the values that the setting accepts, or nil if it accepts other texts too.
func (r Row) Choices() []string {
	if choices := strings.Split(r.Value, "|"); len(choices) > 1 {
		return choices
	}
	return nil
}

var Table = new(Settings).rows()

// rows returns a Row for each setting, in the order of the help. They set the fields of s.
// Durations are written like 100ms, 5s, 2m; sizes like 512, 16KB, 8MB (1 KB is 1024).
func (s *Settings) rows() []Row {
	return []Row{
		{Group: "Policy and upstream", Name: "config", IsNotInFile: true, Form: text(&s.Config, "file"),
			Help: "policy file; its server section may contain the settings below"},

		{Name: "listen", Default: ":8080", Aliases: []Alias{{"PORT", readPort}}, Form: address(&s.Listen),
			Help: "address for requests; without a host, all addresses of the machine"},
		{Name: "upstream", Form: Form{Value: "url", set: s.setUpstream},
			Help: "backend: http://host:port, https://host, h2c://host:port or unix:/path/of.sock"},
		{Name: "preserve-host", Default: "false", Form: toggle(&s.PreserveHost),
			Help: "pass the client's Host header to the upstream (default: the upstream's own name; the original goes into X-Forwarded-Host)"},
		{Name: "demo", IsNotInFile: true, Default: "false", Form: toggle(&s.Demo),
			Help: "start a test backend, with sample rules if config is not set, and listen at " + demoListen + " by default"},
		{Name: "demo-traffic", IsNotInFile: true, Default: "false", Form: toggle(&s.DemoTraffic),
			Help: "with demo: send requests to the demo, so that the dashboard has something to show, and print an operator token if none is set"},

		{Group: "The store", Name: "store", Default: "memory", IsSecret: true, Aliases: []Alias{{"REDIS_URL", nil}, {"REDIS_HOST", readRedisHost}}, Form: Form{Value: "url", set: s.setStore},
			Help: "where counters live: redis://host:6379, rediss://…, redis+sentinel://…, redis+cluster://…, unix:///path/of.sock; memory is " +
				"for one instance"},
		{Name: "prefix", Default: "ps", Form: Form{Value: "text", set: s.setPrefix},
			Help: "prefix of all keys in Redis; instances that share limits need the same prefix"},
		{Name: "key-hash-secret", IsSecret: true, Form: Form{Value: "text", set: s.setKeyHashSecret},
			Help: "if set, Redis keys contain identities only as their HMAC with this secret; instances that share limits need the same secret"},
		{Name: "require-store", Default: "false", Form: toggle(&s.RequireStore),
			Help: "do not start if the store does not answer (default: start, log it, and use the store as soon as it answers)"},
		{Name: "store-timeout", Default: "250ms", Form: duration(&s.StoreTimeout, mustNotBeZero, "1m"),
			Help: "how long a decision waits for the store; after that, on_failure decides"},
		{Name: "min-instances", Default: "1", Form: count(&s.MinInstances, 1, 10_000),
			Help: "smallest number of instances to assume. With on_failure local, each instance enforces its share of the limits while the store does not answer. " +
				"The instances that share a Redis are counted too, and the larger number applies"},

		{Group: "Several regions", Name: "region", Form: Form{Value: "name", set: s.setRegion},
			Help: "name of this instance's region, for limits with across; all instances that share the store have one name"},
		{Name: "region-peers", IsSecret: true, Form: Form{Value: "name=url,…", set: s.setRegionPeers},
			Help: "the other regions and the URLs of their stores, such as us=rediss://limiter:password@redis.us:6379,ap=rediss://…; without them, " +
				"this region has limits with across alone. All regions need the same policy, prefix and key-hash-secret"},
		{Name: "region-interval", Default: "1s", Form: duration(&s.RegionInterval, mustNotBeZero, "1m"),
			Help: "how often each other region is asked for what it has granted; without an answer for three intervals, each side has its share of the limits"},
		{Name: "region-delay", Default: "100ms", Form: duration(&s.RegionDelay, canBeZero, "10s"),
			Help: "how long a message to the farthest region takes at most; it is used only for the bounds that are printed, until the delay is measured. " +
				"If it is longer than 0.28 × region-interval, the regions lose contact"},

		{Group: "Addresses for callers", Name: "api", Form: callerAddress(&s.API),
			Help: "address of the check API in JSON, and of forward-auth for other proxies; host:port or unix:/path/of.sock"},
		{Name: "grpc", Form: callerAddress(&s.GRPC),
			Help: "address for gRPC clients; host:port or unix:/path/of.sock"},
		{Name: "resp", Form: callerAddress(&s.RESP),
			Help: "address for Redis clients, such as for CL.THROTTLE; host:port or unix:/path/of.sock"},
		{Group: "Envoy's rate limit service", Name: "envoy-config", Form: text(&s.EnvoyConfig, "folder"),
			Help: "folder with files of envoyproxy/ratelimit; Envoy's rate limit service, at grpc and api, enforces their limits"},
		{Name: "envoy-xds", Form: text(&s.EnvoyXDS, "host:port"),
			Help: "control plane that sends Envoy's limits, as Envoy Gateway does; replaces envoy-config"},
		{Name: "envoy-xds-node", Default: "default", Form: text(&s.EnvoyXDSNode, "text"),
			Help: "id by which the control plane knows this service"},
		{Name: "envoy-xds-optional", Default: "false", Form: toggle(&s.EnvoyXDSOptional),
			Help: "be ready before the control plane has sent limits; until then, calls of Envoy's rate limit service fail"},
		{Name: "envoy-xds-metadata", Form: text(&s.EnvoyXDSMetadata, "text"),
			Help: "metadata that the control plane gets, as name=value, separated by commas"},
		{Name: "envoy-xds-ca", Form: text(&s.EnvoyXDSCA, "file"),
			Help: "authorities of the control plane's certificate in PEM form; without them, the connection has no TLS"},
		{Name: "envoy-xds-cert", Form: text(&s.EnvoyXDSCert, "file"),
			Help: "certificate chain for the control plane in PEM form; a changed file is read for the next connection"},
		{Name: "envoy-xds-key", Form: text(&s.EnvoyXDSKey, "file"),
			Help: "private key of envoy-xds-cert in PEM form"},
		{Name: "envoy-xds-server-name", Form: text(&s.EnvoyXDSServerName, "text"),
			Help: "name in the control plane's certificate (default: the host in envoy-xds)"},
		{Name: "envoy-mode", Default: "atomic", Form: choice(&s.EnvoyMode, "atomic", "exact"),
			Help: "how Envoy's descriptors are decided: atomic charges all descriptors of a request or none; exact counts each separately, as envoyproxy/ratelimit does"},
		{Name: "envoy-algorithm", Default: "fixed-window", Form: envoyAlgorithm(&s.EnvoyAlgorithm),
			Help: "what enforces Envoy's limits in mode atomic"},
		{Name: "envoy-reports", Default: "force", Form: choice(&s.EnvoyReports, "force", "spend"),
			Help: "how hits_addend of a descriptor is charged in mode atomic: force always charges it, because it may report units that were used already; spend charges it only if it fits"},
		{Name: "envoy-on-failure", Default: "default", Form: choice(&s.EnvoyOnFailure, "default", "local", "open", "closed", "error"),
			Help: "what Envoy gets while the store gives no answer: local decides by this instance's share, open is OK, closed is OVER_LIMIT, error leaves the " +
				"decision to Envoy; default is local in mode atomic, and error in mode exact"},
		{Name: "envoy-headers", Default: "none", Form: choice(&s.EnvoyHeaders, "none", "plain", "draft-03", "draft-11"),
			Help: "header fields about limits that Envoy adds to responses; plain is the form of envoyproxy/ratelimit"},
		{Name: "envoy-metadata", Default: "false", Form: toggle(&s.EnvoyMetadata),
			Help: "send dynamic metadata with each answer to Envoy"},
		{Name: "envoy-shadow-mode", Default: "false", Form: toggle(&s.EnvoyShadowMode),
			Help: "count Envoy's requests, but deny none"},
		{Name: "envoy-quota-mode", Default: "false", Form: toggle(&s.EnvoyQuotaMode),
			Help: "treat all of Envoy's limits as limits with quota_mode: a request is denied only if all its limits are used up"},
		{Name: "envoy-merge-domains", Default: "false", Form: toggle(&s.EnvoyMergeDomains),
			Help: "accept several files in envoy-config with the same domain"},
		{Group: "Tokens and TLS for callers", Name: "caller-token", IsSecret: true, Form: token(&s.CallerToken),
			Help: "password of callers. Redis clients send it by AUTH. Programs that call in JSON and gRPC send it as Authorization: Bearer. Forward-auth trusts the addresses in trusted_proxies instead"},
		{Name: "operator-token", IsSecret: true, Form: token(&s.OperatorToken),
			Help: "token of operators, who may also peek, reset and explain in JSON and gRPC. Without a token, these calls are refused. The admin API requires the token at addresses that other machines can reach"},
		{Name: "allow-caller-limits", Default: "false", Form: toggle(&s.AllowCallerLimits),
			Help: "accept limits that callers in JSON and gRPC send with their requests, and that are not in the policy"},
		{Name: "allow-open-callers", Default: "false", Form: toggle(&s.AllowOpenCallers),
			Help: "answer callers in JSON, gRPC and RESP without a token or certificate at addresses that other machines can reach"},
		{Name: "caller-tls-cert", Form: text(&s.CallerTLSCert, "file"),
			Help: "certificate chain in PEM form, for TLS at api, grpc and resp; a changed file is reloaded"},
		{Name: "caller-tls-key", Form: text(&s.CallerTLSKey, "file"),
			Help: "private key of caller-tls-cert in PEM form"},
		{Name: "api-without-tls", Default: "false", Form: toggle(&s.APIWithoutTLS),
			Help: "serve api without TLS although caller-tls-cert is set, for probes without TLS; the network can then read all requests and answers of api"},
		{Name: "caller-client-ca", Form: text(&s.CallerClientCA, "file"),
			Help: "if set, callers at api, grpc and resp need a certificate signed by one of these authorities"},

		{Group: "Admin address", Name: "admin-listen", Default: "127.0.0.1:9180", Form: Form{Value: "host:port", set: s.setAdmin},
			Help: "address for /metrics, /livez, /readyz and the admin API; host:port, unix:/path/of.sock, or off. Use 0.0.0.0:9180 for Kubernetes or remote scraping. Commands such as status reach it by --admin"},
		{Name: "admin-tls-cert", Form: text(&s.AdminTLSCert, "file"),
			Help: "certificate chain in PEM form, for TLS at admin-listen; a changed file is reloaded"},
		{Name: "admin-tls-key", Form: text(&s.AdminTLSKey, "file"),
			Help: "private key of admin-tls-cert in PEM form"},
		{Name: "admin-client-ca", Form: text(&s.AdminClientCA, "file"),
			Help: "if set, clients with a certificate signed by one of these authorities may also read the admin API"},
		{Name: "shown-identities", Default: "masked", Form: choice(&s.ShownIdentities, "off", "masked", "full"),
			Help: "how the admin API shows identities. off: not at all, and none are kept in memory; masked: in part; full: completely, to callers with the operator token"},
		{Name: "near-limit", Default: "80", Form: count(&s.NearLimit, 50, 100),
			Help: "percentage of a limit; a request counts as near its limit if at least this much of the limit is used after the request is charged"},
		{Name: "pprof", Default: "false", Form: toggle(&s.Pprof),
			Help: "serve /debug/pprof on the admin address"},

		{Group: "TLS for clients", Name: "tls-cert", Form: text(&s.TLSCert, "file"),
			Help: "certificate chain in PEM form, for HTTPS and HTTP/2; a changed file is reloaded"},
		{Name: "tls-key", Form: text(&s.TLSKey, "file"),
			Help: "private key of tls-cert in PEM form"},
		{Name: "tls-client-ca", Form: text(&s.TLSClientCA, "file"),
			Help: "if set, clients need a certificate signed by one of these authorities"},

		{Group: "Timeouts", Name: "header-timeout", Default: "5s", Form: duration(&s.HeaderTimeout, mustNotBeZero, "1h"),
			Help: "time for a client to send the headers of a request"},
		{Name: "stall-timeout", Default: "30s", Form: duration(&s.StallTimeout, canBeZero, "1h"),
			Help: "how long a client may pause while it sends a body or reads a response; 0 is forever"},
		{Name: "min-body-rate", Default: "240", Form: size(&s.MinRate, canBeZero, "1MB"),
			Help: "minimum upload speed in bytes/s; a slower request body is cut off after stall-timeout; 0 disables"},
		{Name: "idle-timeout", Default: "2m", Form: duration(&s.IdleTimeout, mustNotBeZero, "24h"),
			Help: "how long an idle connection is kept"},
		{Name: "upstream-connect-timeout", Default: "5s", Form: duration(&s.UpstreamConnectTimeout, mustNotBeZero, "1h"),
			Help: "time to connect to the upstream"},
		{Name: "upstream-header-timeout", Default: "30s", Form: duration(&s.UpstreamHeaderTimeout, canBeZero, "24h"),
			Help: "how long the upstream may take to begin its response; 0 is forever"},
		{Group: "Shutdown", Name: "drain-delay", Default: "0s", Form: duration(&s.DrainDelay, canBeZero, "1h"),
			Help: "after SIGTERM, how long requests are still accepted while /readyz fails, so that load balancers notice"},
		{Name: "drain-timeout", Default: "15s", Form: duration(&s.DrainTimeout, canBeZero, "1h"),
			Help: "after drain-delay, how long requests in flight may take to end"},

		{Group: "Sizes and connections", Name: "max-header", Default: "16KB", Form: size(&s.MaxHeader, mustNotBeZero, "1MB"),
			Help: "maximum size of a request's headers; larger ones get 431"},
		{Name: "max-body", Default: "0", Form: size(&s.MaxBody, canBeZero, "1048576GB"),
			Help: "maximum size of a request's body; larger ones get 413. 0 is no limit: bodies are streamed, and the upstream can limit them"},
		{Name: "max-connections", Default: "10000", Form: count(&s.MaxConnections, 1, 1_000_000),
			Help: "maximum number of client connections. At HTTP addresses, a further one takes the place of the one that has been idle longest. If none is idle, or at other addresses, it waits until one is closed"},

		{Group: "Log", Name: "log-format", Default: "text", Form: choice(&s.LogFormat, "text", "json"),
			Help: "format of log lines on standard error; text is colored on a terminal"},
		{Name: "log-level", Default: "info", Form: choice(&s.LogLevel, "debug", "info", "warn", "error"),
			Help: "lowest level that is logged; requests that were served are not logged at any level"},
		{Name: "denial-log", Default: "sampled", Form: choice(&s.DenialLog, "off", "sampled", "all"),
			Help: "log denied requests, with masked keys: sampled is at most 10 lines a second, one for each limit; all is at most 1000 lines a second"},
		{Name: "audit-file", Form: text(&s.AuditFile, "file"),
			Help: "file to which audit lines are appended as JSON, besides the log; it is made with mode 0600"},
	}
}
