package settings

import (
	"reflect"
	"strconv"
	"strings"
)

// Server is the server section of the policy file. What it leaves out comes from the defaults; what flags or the environment say
// goes before it. Durations are written as 100ms, 5s or 2m; sizes as 512, 16KB or 8MB. [Table] says what each means.
type Server struct {
	Listen         string   `yaml:"listen,omitempty"`          // host:port where requests come in; default :8080
	Upstream       string   `yaml:"upstream,omitempty"`        // URL where requests go
	PreserveHost   *bool    `yaml:"preserve_host,omitempty"`   // send the client's Host to the upstream; default false
	TrustedProxies []string `yaml:"trusted_proxies,omitempty"` // networks whose X-Forwarded-* headers are believed; default none

	Store        string `yaml:"store,omitempty"`         // URL of Redis; default memory
	Prefix       string `yaml:"prefix,omitempty"`        // how the names of keys begin; default ps
	Secret       string `yaml:"secret,omitempty"`        // hides identities in Redis; default none. PENSTOCK_SECRET_FILE is a better place
	RequireStore *bool  `yaml:"require_store,omitempty"` // do not start without the store; default false
	StoreTimeout string `yaml:"store_timeout,omitempty"` // how long a decision may wait for the store; default 100ms

	Admin string `yaml:"admin,omitempty"` // host:port of metrics and health, or off; default 127.0.0.1:9180
	Pprof *bool  `yaml:"pprof,omitempty"` // serve /debug/pprof there; default false

	TLSCert     string `yaml:"tls_cert,omitempty"`      // PEM file of the certificate chain; default none, plain HTTP
	TLSKey      string `yaml:"tls_key,omitempty"`       // PEM file of its private key
	TLSClientCA string `yaml:"tls_client_ca,omitempty"` // PEM file of who signs clients' certificates; default none, all are served

	HeaderTimeout          string `yaml:"header_timeout,omitempty"`           // to send a request's headers; default 5s
	StallTimeout           string `yaml:"stall_timeout,omitempty"`            // longest pause of a client in a body; default 30s; 0 is forever
	MinRate                string `yaml:"min_rate,omitempty"`                 // bytes a second that a body must bring; default 240; 0 is any
	IdleTimeout            string `yaml:"idle_timeout,omitempty"`             // between requests on a connection; default 2m
	UpstreamConnectTimeout string `yaml:"upstream_connect_timeout,omitempty"` // to connect to the upstream; default 5s
	UpstreamHeaderTimeout  string `yaml:"upstream_header_timeout,omitempty"`  // for the upstream's answer to begin; default 30s; 0 is forever
	DrainDelay             string `yaml:"drain_delay,omitempty"`              // accept for so long after SIGTERM; default 0s
	DrainTimeout           string `yaml:"drain_timeout,omitempty"`            // for requests under way to end; default 15s

	MaxHeader      string `yaml:"max_header,omitempty"`      // size of a request's headers; default 16KB
	MaxBody        string `yaml:"max_body,omitempty"`        // size of a request's body; default 0, any
	MaxConnections *int64 `yaml:"max_connections,omitempty"` // clients connected at once; default 10000

	LogFormat string `yaml:"log_format,omitempty"` // text or json; default text
	LogLevel  string `yaml:"log_level,omitempty"`  // debug, info, warn or error; default info
}

// values are what the section says, by key, as it would be written in a flag.
func (s Server) values() map[string]string {
	found := make(map[string]string)
	v := reflect.ValueOf(s)
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
		case []string:
			if field != nil {
				found[key] = strings.Join(field, ",")
			}
		}
	}
	return found
}
