package settings

import (
	"errors"
	"fmt"
	"math"
	"net"
	"net/url"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// FromRatelimit makes flags from the environment variables of envoyproxy/ratelimit. A variable of
// Penstock for the same setting takes precedence. The notes name the variables that are set but
// have no effect. The error lists all variables that have a value without an equivalent. It wraps
// ErrInvalid.
func FromRatelimit(environ []string) (flags map[string]string, notes []string, err error) {
	r := &ratelimitTranslation{env: environment(environ), flags: make(map[string]string)}
	r.setListeners()
	r.setLimitSource()
	r.setRedis()
	r.setBehavior()
	for _, row := range Table {
		if r.isGiven(row) {
			delete(r.flags, row.Name)
		}
	}
	for _, name := range ratelimitIgnored {
		if r.env[name] != "" {
			notes = append(notes, name+" has no effect")
		}
	}
	if r.isTrue("REDIS_PERSECOND") {
		notes = append(notes, "REDIS_PERSECOND has no effect: the store has the limits per second too")
	}
	if err := errors.Join(r.errs...); err != nil {
		return nil, nil, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	return r.flags, notes, nil
}

// ratelimitIgnored are variables that have no equivalent and change no decision.
var ratelimitIgnored = []string{
	"USE_DOG_STATSD", "EXTRA_TAGS", "PROMETHEUS_PATH", "PROMETHEUS_MAPPER_YAML", "LOCAL_CACHE_SIZE_IN_BYTES",
	"LIMIT_LIMIT_HEADER", "LIMIT_REMAINING_HEADER", "LIMIT_RESET_HEADER", "TRACING_ENABLED",
	"CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS", "REDIS_HEALTH_CHECK_ACTIVE_CONNECTION", "HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED",
}

type ratelimitTranslation struct {
	env   map[string]string // the variables, by name
	flags map[string]string // the flags made so far, by name
	errs  []error
}

func (r *ratelimitTranslation) fail(name, format string, args ...any) {
	r.errs = append(r.errs, fmt.Errorf("%s: %s", name, fmt.Sprintf(format, args...)))
}

// isGiven reports whether a variable of Penstock has the value of a setting, or names its file.
func (r *ratelimitTranslation) isGiven(row Row) bool {
	return r.env[row.Env()] != "" || row.IsSecret && r.env[row.Env()+"_FILE"] != ""
}

// get returns a variable, or the default that envoyproxy/ratelimit has for it.
func (r *ratelimitTranslation) get(name, defaultText string) string {
	if text := r.env[name]; text != "" {
		return text
	}
	return defaultText
}

func (r *ratelimitTranslation) isTrue(name string) bool {
	text := r.get(name, "false")
	isTrue, err := strconv.ParseBool(text)
	if err != nil {
		r.fail(name, "%q is neither true nor false; write one of them", text)
	}
	return isTrue
}

// setListeners sets the addresses. As with envoyproxy/ratelimit, callers need no token.
func (r *ratelimitTranslation) setListeners() {
	r.flags["api"] = net.JoinHostPort(r.get("HOST", "0.0.0.0"), r.get("PORT", "8080"))
	r.flags["grpc"] = net.JoinHostPort(r.get("GRPC_HOST", "0.0.0.0"), r.get("GRPC_PORT", "8081"))
	if path := r.get("GRPC_UDS", ""); path != "" {
		r.flags["grpc"] = "unix:" + path
	}
	r.flags["allow-open-callers"] = "true"
	r.flags["admin-listen"] = net.JoinHostPort(r.get("DEBUG_HOST", "0.0.0.0"), r.get("DEBUG_PORT", "6070"))
	if r.isTrue("USE_PROMETHEUS") {
		address := r.get("PROMETHEUS_ADDR", ":9090")
		if host, port, err := net.SplitHostPort(address); err == nil && host == "" {
			address = net.JoinHostPort("0.0.0.0", port)
		}
		r.flags["admin-listen"] = address
	}
	if r.isTrue("GRPC_SERVER_USE_TLS") {
		r.flags["caller-tls-cert"] = r.get("GRPC_SERVER_TLS_CERT", "")
		r.flags["caller-tls-key"] = r.get("GRPC_SERVER_TLS_KEY", "")
		r.flags["api-without-tls"] = "true" // envoyproxy/ratelimit has TLS for gRPC only
		if ca := r.get("GRPC_CLIENT_TLS_CACERT", ""); ca != "" {
			r.flags["caller-client-ca"] = ca
		}
		if r.env["GRPC_CLIENT_TLS_SAN"] != "" {
			r.fail("GRPC_CLIENT_TLS_SAN", "it is not supported; remove it, and set GRPC_CLIENT_TLS_CACERT to an authority that signs only the clients that may call")
		}
	}
}

func (r *ratelimitTranslation) setLimitSource() {
	switch kind := r.get("CONFIG_TYPE", "FILE"); kind {
	case "FILE":
	case "GRPC_XDS_SOTW":
		r.setControlPlane()
		return
	default:
		r.fail("CONFIG_TYPE", "%q is unknown; write FILE or GRPC_XDS_SOTW", kind)
	}
	r.flags["envoy-config"] = filepath.Join(r.get("RUNTIME_ROOT", "/srv/runtime_data/current"), r.get("RUNTIME_SUBDIRECTORY", ""), r.get("RUNTIME_APPDIRECTORY", "config"))
	r.flags["envoy-merge-domains"] = strconv.FormatBool(r.isTrue("MERGE_DOMAIN_CONFIG"))
}

func (r *ratelimitTranslation) setControlPlane() {
	r.flags["envoy-xds"] = r.get("CONFIG_GRPC_XDS_SERVER_URL", "localhost:18000")
	r.flags["envoy-xds-node"] = r.get("CONFIG_GRPC_XDS_NODE_ID", "default")
	r.flags["envoy-xds-optional"] = strconv.FormatBool(r.isTrue("FORCE_START_WITHOUT_INITIAL_CONFIG"))
	r.flags["envoy-xds-metadata"] = r.get("CONFIG_GRPC_XDS_NODE_METADATA", "")
	r.flags["envoy-merge-domains"] = strconv.FormatBool(r.isTrue("MERGE_DOMAIN_CONFIG"))
	if !r.isTrue("CONFIG_GRPC_XDS_SERVER_USE_TLS") {
		return
	}
	for flag, name := range map[string]string{
		"envoy-xds-ca": "CONFIG_GRPC_XDS_SERVER_TLS_CACERT", "envoy-xds-cert": "CONFIG_GRPC_XDS_CLIENT_TLS_CERT", "envoy-xds-key": "CONFIG_GRPC_XDS_CLIENT_TLS_KEY",
		"envoy-xds-server-name": "CONFIG_GRPC_XDS_SERVER_TLS_SAN",
	} {
		if text := r.get(name, ""); text != "" {
			r.flags[flag] = text
		}
	}
	if r.flags["envoy-xds-ca"] == "" {
		r.fail("CONFIG_GRPC_XDS_SERVER_TLS_CACERT", "it is not set; name the file with the authorities of the control plane")
	}
}

// setRedis sets the store's timeout, and the store's URL unless a variable of Penstock has it.
func (r *ratelimitTranslation) setRedis() {
	if kind := r.get("BACKEND_TYPE", "redis"); kind != "redis" {
		r.fail("BACKEND_TYPE", "%q is not supported; write redis, and name a Redis in REDIS_URL", kind)
		return
	}
	if r.env["REDIS_TIMEOUT"] != "" {
		r.flags["store-timeout"] = r.env["REDIS_TIMEOUT"]
	}
	if !r.isGiven(Row{Name: "store", IsSecret: true}) {
		r.setStore()
	}
}

func (r *ratelimitTranslation) setStore() {
	if r.isTrue("REDIS_TLS_SKIP_HOSTNAME_VERIFICATION") {
		r.fail("REDIS_TLS_SKIP_HOSTNAME_VERIFICATION", "it is not supported; omit it, and write the store's URL into PENSTOCK_STORE, with ?server_name= and a name in the server's certificate")
	}
	scheme, user, address := r.redisAddress()
	u := url.URL{Scheme: scheme, User: user, Host: address}
	redisURL := r.get("REDIS_URL", "")
	isSocketPath := strings.HasPrefix(redisURL, "unix://") || r.get("REDIS_SOCKET_TYPE", "unix") == "unix" && !strings.Contains(redisURL, "://")
	switch kind := r.get("REDIS_TYPE", "SINGLE"); strings.ToUpper(kind) {
	case "SINGLE":
		if isSocketPath {
			u.Scheme, u.Host, u.Path = "unix", "", address
		} else if host, database, ok := strings.Cut(address, "/"); ok {
			u.Host, u.Path = host, "/"+database
		}
	case "CLUSTER":
		u.Scheme += "+cluster"
	case "SENTINEL":
		name, hosts, _ := strings.Cut(address, ",") // the name of the primary, then the sentinels
		u.Scheme, u.Host, u.Path = scheme+"+sentinel", hosts, "/"+name
	default:
		r.fail("REDIS_TYPE", "%q is unknown; write SINGLE, CLUSTER or SENTINEL", kind)
	}
	query := make(url.Values)
	if u.Scheme != "unix" && scheme == "rediss" {
		for option, name := range map[string]string{"ca": "REDIS_TLS_CACERT", "cert": "REDIS_TLS_CLIENT_CERT", "key": "REDIS_TLS_CLIENT_KEY"} {
			if file := r.get(name, ""); file != "" {
				query.Set(option, file)
			}
		}
	}
	if auth := r.get("REDIS_SENTINEL_AUTH", ""); auth != "" && strings.HasSuffix(u.Scheme, "+sentinel") {
		sentinels := userinfo(auth)
		password, _ := sentinels.Password()
		query.Set("sentinel_password", password)
		if name := sentinels.Username(); name != "" {
			query.Set("sentinel_username", name)
		}
	}
	u.RawQuery = query.Encode()
	r.flags["store"] = u.String()
}

// redisAddress returns the parts of REDIS_URL. The address is the path of a socket, or a list of
// host:port, or host:port/database. REDIS_TLS and REDIS_AUTH take precedence.
func (r *ratelimitTranslation) redisAddress() (scheme string, user *url.Userinfo, address string) {
	scheme, address = "redis", r.get("REDIS_URL", "/var/run/nutcracker/ratelimit.sock")
	if r.isTrue("REDIS_TLS") || strings.HasPrefix(address, "rediss://") {
		scheme = "rediss"
	}
	_, rest, isURL := strings.Cut(address, "://")
	if isURL {
		address = rest
	}
	if before, after, ok := strings.Cut(address, "@"); ok {
		if plain, err := url.PathUnescape(before); isURL && err == nil {
			before = plain
		}
		user, address = userinfo(before), after
	}
	if auth := r.get("REDIS_AUTH", ""); auth != "" {
		user = userinfo(auth)
	}
	return scheme, user, address
}

// userinfo parses "password" or "user:password".
func userinfo(text string) *url.Userinfo {
	name, password, ok := strings.Cut(text, ":")
	if !ok {
		return url.UserPassword("", text)
	}
	return url.UserPassword(name, password)
}

// setBehavior sets how requests are decided and what is logged.
func (r *ratelimitTranslation) setBehavior() {
	for name, flag := range map[string]string{"SHADOW_MODE": "envoy-shadow-mode", "QUOTA_MODE": "envoy-quota-mode", "RESPONSE_DYNAMIC_METADATA": "envoy-metadata"} {
		r.flags[flag] = strconv.FormatBool(r.isTrue(name))
	}
	if r.isTrue("LIMIT_RESPONSE_HEADERS_ENABLED") {
		r.flags["envoy-headers"] = "plain"
	}
	if r.isTrue("STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT") && r.get(Row{Name: "envoy-mode"}.Env(), "atomic") == "exact" {
		r.fail("STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT", "mode exact charges denied requests; write PENSTOCK_ENVOY_MODE=atomic, which never charges them, or omit the variable")
	}
	if text := r.get("NEAR_LIMIT_RATIO", ""); text != "" {
		ratio, err := strconv.ParseFloat(text, 64)
		if percent := math.Round(ratio * 100); err == nil && percent >= 50 && percent <= 100 {
			r.flags["near-limit"] = strconv.Itoa(int(percent))
		} else {
			r.fail("NEAR_LIMIT_RATIO", "%q is not supported; write a number from 0.5 to 1", text)
		}
	}
	if prefix := r.get("CACHE_KEY_PREFIX", ""); prefix != "" {
		r.flags["prefix"] = prefix
	}
	level := strings.ToLower(r.get("LOG_LEVEL", "warn"))
	equivalents := map[string]string{"warning": "warn", "trace": "debug", "fatal": "error", "panic": "error"}
	if equivalent, ok := equivalents[level]; ok {
		level = equivalent
	}
	if !slices.Contains([]string{"debug", "info", "warn", "error"}, level) {
		r.fail("LOG_LEVEL", "%q is unknown; write debug, info, warn or error", level)
	}
	r.flags["log-level"] = level
	r.flags["log-format"] = r.get("LOG_FORMAT", "text")
}
