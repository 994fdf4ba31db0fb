package settings

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
)

func TestVariablesOfRatelimitBecomeSettings(t *testing.T) {
	withoutVariables := map[string]string{
		"api": "0.0.0.0:8080", "grpc": "0.0.0.0:8081", "admin-listen": "0.0.0.0:6070", "allow-open-callers": "true",
		"store": "unix:///var/run/nutcracker/ratelimit.sock", "envoy-config": "/srv/runtime_data/current/config", "envoy-merge-domains": "false",
		"envoy-shadow-mode": "false", "envoy-quota-mode": "false", "envoy-metadata": "false", "log-level": "warn", "log-format": "text",
	}
	for _, row := range []struct {
		environ string            // separated by blanks
		want    map[string]string // differences from withoutVariables
	}{
		{"", nil},
		{"HOST=127.0.0.1 PORT=1 GRPC_HOST=::1 GRPC_PORT=2 DEBUG_HOST=127.0.0.1 DEBUG_PORT=3", map[string]string{"api": "127.0.0.1:1", "grpc": "[::1]:2", "admin-listen": "127.0.0.1:3"}},
		{"GRPC_UDS=/run/rls.sock", map[string]string{"grpc": "unix:/run/rls.sock"}},
		{"USE_PROMETHEUS=true PROMETHEUS_ADDR=:19001", map[string]string{"admin-listen": "0.0.0.0:19001"}},
		{"RUNTIME_ROOT=/data RUNTIME_SUBDIRECTORY=ratelimit RUNTIME_APPDIRECTORY=x MERGE_DOMAIN_CONFIG=true", map[string]string{"envoy-config": "/data/ratelimit/x", "envoy-merge-domains": "true"}},
		{"REDIS_SOCKET_TYPE=tcp REDIS_URL=redis:6379", map[string]string{"store": "redis://redis:6379"}},
		{"REDIS_SOCKET_TYPE=tcp REDIS_URL=redis:6379 REDIS_AUTH=pass REDIS_TLS=true", map[string]string{"store": "rediss://:pass@redis:6379"}},
		{"REDIS_URL=redis://redis:6379 REDIS_AUTH=me:p@ss", map[string]string{"store": "redis://me:p%40ss@redis:6379"}},
		{"REDIS_URL=redis://me:p%40ss@redis:6379/1", map[string]string{"store": "redis://me:p%40ss@redis:6379/1"}},
		{"REDIS_SOCKET_TYPE=tcp REDIS_URL=unix:///run/redis.sock", map[string]string{"store": "unix:///run/redis.sock"}},
		{"REDIS_URL=redis://old:x@redis:6379", map[string]string{"store": "redis://old:x@redis:6379"}},
		{"REDIS_TYPE=CLUSTER REDIS_SOCKET_TYPE=tcp REDIS_URL=a:1,b:2", map[string]string{"store": "redis+cluster://a:1,b:2"}},
		{"REDIS_TYPE=sentinel REDIS_SOCKET_TYPE=tcp REDIS_URL=main,a:1,b:2 REDIS_TIMEOUT=1s", map[string]string{"store": "redis+sentinel://a:1,b:2/main", "store-timeout": "1s"}},
		{"REDIS_SOCKET_TYPE=tcp REDIS_URL=redis:6379 REDIS_TLS=true REDIS_TLS_CACERT=/ca.pem REDIS_TLS_CLIENT_CERT=/c.pem REDIS_TLS_CLIENT_KEY=/k.pem",
			map[string]string{"store": "rediss://redis:6379?ca=%2Fca.pem&cert=%2Fc.pem&key=%2Fk.pem"}},
		{"REDIS_SOCKET_TYPE=tcp REDIS_URL=redis:6379 REDIS_TLS_CACERT=/ca.pem REDIS_SENTINEL_AUTH=a", map[string]string{"store": "redis://redis:6379"}},
		{"REDIS_TYPE=sentinel REDIS_SOCKET_TYPE=tcp REDIS_URL=main,a:1 REDIS_SENTINEL_AUTH=p@ss", map[string]string{"store": "redis+sentinel://a:1/main?sentinel_password=p%40ss"}},
		{"REDIS_TYPE=sentinel REDIS_SOCKET_TYPE=tcp REDIS_URL=main,a:1 REDIS_SENTINEL_AUTH=me:pass", map[string]string{"store": "redis+sentinel://a:1/main?sentinel_password=pass&sentinel_username=me"}},
		{"STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT=true NEAR_LIMIT_RATIO=0.9", map[string]string{"near-limit": "90"}},
		{"STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT=false PENSTOCK_ENVOY_MODE=exact", nil},
		{"GRPC_SERVER_USE_TLS=true GRPC_SERVER_TLS_CERT=a GRPC_SERVER_TLS_KEY=b GRPC_CLIENT_TLS_CACERT=c", map[string]string{"caller-tls-cert": "a", "caller-tls-key": "b", "caller-client-ca": "c", "api-without-tls": "true"}},
		{"SHADOW_MODE=true QUOTA_MODE=1 RESPONSE_DYNAMIC_METADATA=true LIMIT_RESPONSE_HEADERS_ENABLED=true", map[string]string{"envoy-shadow-mode": "true", "envoy-quota-mode": "true", "envoy-metadata": "true", "envoy-headers": "plain"}},
		{"CACHE_KEY_PREFIX=x LOG_LEVEL=WARNING LOG_FORMAT=json", map[string]string{"prefix": "x", "log-format": "json"}},
	} {
		want := maps.Clone(withoutVariables)
		maps.Copy(want, row.want)
		flags, notes, err := FromRatelimit(strings.Fields(row.environ))
		if err != nil || !maps.Equal(flags, want) || len(notes) > 0 {
			t.Errorf("with %q the flags are\n%v\nwith the notes %v and the error %v; want no notes, no error, and the flags\n%v", row.environ, flags, notes, err, want)
		}
		if _, err := Load(Sources{Flags: flags}); err != nil {
			t.Errorf("with %q the flags are rejected: %v", row.environ, err)
		}
	}
	gateway := strings.Fields("CONFIG_TYPE=GRPC_XDS_SOTW CONFIG_GRPC_XDS_SERVER_URL=envoy-gateway:18001 CONFIG_GRPC_XDS_NODE_ID=envoy-ratelimit CONFIG_GRPC_XDS_NODE_METADATA=a=b " +
		"CONFIG_GRPC_XDS_SERVER_USE_TLS=true CONFIG_GRPC_XDS_CLIENT_TLS_CERT=/certs/tls.crt CONFIG_GRPC_XDS_CLIENT_TLS_KEY=/certs/tls.key CONFIG_GRPC_XDS_SERVER_TLS_CACERT=/certs/ca.crt " +
		"FORCE_START_WITHOUT_INITIAL_CONFIG=true")
	fromGateway, _, err := FromRatelimit(gateway)
	if err != nil || fromGateway["envoy-xds"] != "envoy-gateway:18001" || fromGateway["envoy-xds-node"] != "envoy-ratelimit" || fromGateway["envoy-xds-ca"] != "/certs/ca.crt" || fromGateway["envoy-xds-key"] != "/certs/tls.key" || fromGateway["envoy-xds-optional"] != "true" || fromGateway["envoy-config"] != "" {
		t.Errorf("with the variables of Envoy Gateway, the flags are %v (error %v); want its control plane with certificates, which is optional, and no envoy-config", fromGateway, err)
	}
	if _, err := Load(Sources{Flags: fromGateway}); err != nil {
		t.Errorf("with the variables of Envoy Gateway, the flags are rejected: %v", err)
	}
	if _, _, err := FromRatelimit([]string{"CONFIG_TYPE=GRPC_XDS_SOTW", "CONFIG_GRPC_XDS_SERVER_USE_TLS=true"}); !errors.Is(err, ErrInvalid) {
		t.Errorf("with TLS and without an authority, the error is %v; want ErrInvalid", err)
	}
	flags, notes, err := FromRatelimit([]string{"PENSTOCK_GRPC=127.0.0.1:9", "EXTRA_TAGS=a:b", "REDIS_PERSECOND=true", "REDIS_PERSECOND_URL=other:6379"})
	want := []string{"EXTRA_TAGS has no effect", "REDIS_PERSECOND has no effect: the store has the limits per second too"}
	if _, ok := flags["grpc"]; ok || err != nil || !slices.Equal(notes, want) {
		t.Errorf("the flags are %v, the notes %q, and the error %v; want no flag grpc, because PENSTOCK_GRPC is set, and the notes %q", flags, notes, err, want)
	}
}

// The store of Penstock's variables replaces all variables for the address of Redis, also those
// without an equivalent.
func TestStoreOfPenstockReplacesThatOfRatelimit(t *testing.T) {
	for _, variable := range []string{"PENSTOCK_STORE=redis://redis:6379", "PENSTOCK_STORE_FILE=/run/secrets/store"} {
		flags, _, err := FromRatelimit([]string{variable, "REDIS_URL=other:6379", "REDIS_TLS_SKIP_HOSTNAME_VERIFICATION=true", "REDIS_TIMEOUT=1s"})
		if _, ok := flags["store"]; ok || err != nil || flags["store-timeout"] != "1s" {
			t.Errorf("with %s the flags are %v (error %v); want no flag store, and store-timeout 1s", variable, flags, err)
		}
	}
}

func TestVariablesWithoutAnEquivalentAreRejected(t *testing.T) {
	for environ, want := range map[string]string{
		"CONFIG_TYPE=X":         "CONFIG_TYPE: \"X\" is unknown",
		"BACKEND_TYPE=memcache": "BACKEND_TYPE",
		"REDIS_TYPE=x":          "REDIS_TYPE",
		"SHADOW_MODE=maybe":     "SHADOW_MODE: \"maybe\" is neither true nor false",
		"LOG_LEVEL=loud":        "LOG_LEVEL",
		"NEAR_LIMIT_RATIO=0.4":  "NEAR_LIMIT_RATIO",
		"NEAR_LIMIT_RATIO=x":    "NEAR_LIMIT_RATIO",
		"STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT=1 PENSTOCK_ENVOY_MODE=exact": "STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT: mode exact",
		"REDIS_TLS_SKIP_HOSTNAME_VERIFICATION=true":                           "REDIS_TLS_SKIP_HOSTNAME_VERIFICATION",
		"GRPC_SERVER_USE_TLS=true GRPC_CLIENT_TLS_SAN=envoy":                  "GRPC_CLIENT_TLS_SAN",
	} {
		if _, _, err := FromRatelimit(strings.Fields(environ)); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("with %s the error is %v; want ErrInvalid, with the text %q", environ, err, want)
		}
	}
}
