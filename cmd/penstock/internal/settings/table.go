package settings

import (
	"strings"
	"time"
)

// A Row is one setting. Its flag is --name; its variable PENSTOCK_NAME, with '_' for '-'; its key in the policy file's server
// section the name with '_' for '-'.
type Row struct {
	Name    string
	Default string
	Value   string // what a value looks like, for help; "" is a switch, whose values are true and false
	Help    string
	Secret  bool    // its variables may also be given as NAME_FILE, naming a file that holds the value; it is never shown
	NotFile bool    // it cannot stand in the policy file
	Aliases []Alias // other variables, after PENSTOCK_NAME

	set func(s *Settings, text string) error
}

// An Alias is a variable that other programs and platforms use, and what is made of it.
type Alias struct {
	Name string
	Read func(get func(name string) string) (text string, ok bool)
}

// Env is the setting's own variable.
func (r Row) Env() string { return "PENSTOCK_" + strings.ToUpper(r.Key()) }

// Key is its name in the policy file.
func (r Row) Key() string { return strings.ReplaceAll(r.Name, "-", "_") }

const kb = 1 << 10

// Table is every setting, in the order that help shows them. Durations are written as 100ms, 5s, 2m; sizes as 512, 16KB, 8MB (1 KB is 1024).
var Table = []Row{
	{Name: "policy", Value: "file", NotFile: true, set: text(func(s *Settings) *string { return &s.Policy }),
		Help: "the file with the limits; its server section may hold the settings below"},

	{Name: "listen", Default: ":8080", Value: "host:port", Aliases: []Alias{{"PORT", readPort}},
		set:  address(func(s *Settings) *string { return &s.Listen }),
		Help: "where requests come in; without a host, on every address of the machine"},
	{Name: "upstream", Value: "url", set: setUpstream,
		Help: "where requests go: http://host:port, https://host, h2c://host:port or unix:/path/of.sock"},
	// Not by default: a server of several sites may have some that are not for everyone, and would serve whichever a client names.
	{Name: "preserve-host", Default: "false", set: toggle(func(s *Settings) *bool { return &s.PreserveHost }),
		Help: "send the upstream the client's Host, not its own (which comes with X-Forwarded-Host)"},
	{Name: "trusted-proxies", Value: "networks", set: setTrusted,
		Help: "whose X-Forwarded-* headers are kept, and not replaced: 10.0.0.0/8,192.168.1.7"},
	{Name: "demo", Default: "false", NotFile: true, set: toggle(func(s *Settings) *bool { return &s.Demo }),
		Help: "bring a small upstream along, to try limits on"},

	{Name: "store", Value: "url", Secret: true, Aliases: []Alias{{"REDIS_URL", nil}, {"REDIS_HOST", readRedisHost}}, set: setStore,
		Help: "where counters live: redis://host:6379, rediss://…, redis+sentinel://…, redis+cluster://…; by default in memory"},
	{Name: "prefix", Default: "ps", Value: "text", set: text(func(s *Settings) *string { return &s.Prefix }),
		Help: "how keys in Redis begin; gates that share limits share it"},
	{Name: "secret", Value: "text", Secret: true, set: func(s *Settings, text string) error { s.Secret = []byte(text); return nil },
		Help: "hides identities in Redis behind an HMAC; gates that share limits share it"},
	{Name: "require-store", Default: "false", set: toggle(func(s *Settings) *bool { return &s.RequireStore }),
		Help: "do not start while the store does not answer"},
	{Name: "store-timeout", Default: "100ms", Value: "duration",
		set:  duration(func(s *Settings) *time.Duration { return &s.StoreTimeout }, false, time.Minute),
		Help: "how long a decision may wait for the store"},

	{Name: "admin", Default: "127.0.0.1:9180", Value: "host:port", set: setAdmin,
		Help: "where /metrics, /livez and /readyz are, or off; 0.0.0.0:9180 opens them to other machines"},
	{Name: "pprof", Default: "false", set: toggle(func(s *Settings) *bool { return &s.Pprof }),
		Help: "serve /debug/pprof beside them"},

	{Name: "tls-cert", Value: "file", set: text(func(s *Settings) *string { return &s.TLSCert }),
		Help: "PEM file of the certificate chain, for HTTPS; taken up again when it changes"},
	{Name: "tls-key", Value: "file", set: text(func(s *Settings) *string { return &s.TLSKey }),
		Help: "its private key"},
	{Name: "tls-client-ca", Value: "file", set: text(func(s *Settings) *string { return &s.TLSClientCA }),
		Help: "serve only clients with a certificate that one of these has signed"},

	{Name: "header-timeout", Default: "5s", Value: "duration",
		set:  duration(func(s *Settings) *time.Duration { return &s.HeaderTimeout }, false, time.Hour),
		Help: "how long a client may take to send a request's headers"},
	{Name: "stall-timeout", Default: "30s", Value: "duration",
		set:  duration(func(s *Settings) *time.Duration { return &s.StallTimeout }, true, time.Hour),
		Help: "how long a client may pause while it sends a body or takes a response; 0 is forever"},
	{Name: "min-rate", Default: "240", Value: "size", set: size(func(s *Settings) *int64 { return &s.MinRate }, true, kb*kb),
		Help: "bytes a second below which even a steady body uses up its stall-timeout; 0 is any"},
	{Name: "idle-timeout", Default: "2m", Value: "duration",
		set:  duration(func(s *Settings) *time.Duration { return &s.IdleTimeout }, false, 24*time.Hour),
		Help: "how long a connection is kept between requests"},
	{Name: "upstream-connect-timeout", Default: "5s", Value: "duration",
		set:  duration(func(s *Settings) *time.Duration { return &s.UpstreamConnectTimeout }, false, time.Hour),
		Help: "how long connecting to the upstream may take"},
	{Name: "upstream-header-timeout", Default: "30s", Value: "duration",
		set:  duration(func(s *Settings) *time.Duration { return &s.UpstreamHeaderTimeout }, true, 24*time.Hour),
		Help: "how long the upstream may take to begin its answer; 0 is forever"},
	{Name: "drain-delay", Default: "0s", Value: "duration",
		set:  duration(func(s *Settings) *time.Duration { return &s.DrainDelay }, true, time.Hour),
		Help: "how long after SIGTERM to go on accepting, for load balancers to see that /readyz fails"},
	{Name: "drain-timeout", Default: "15s", Value: "duration",
		set:  duration(func(s *Settings) *time.Duration { return &s.DrainTimeout }, true, time.Hour),
		Help: "how long requests under way may then take to end"},

	{Name: "max-header", Default: "16KB", Value: "size", set: size(func(s *Settings) *int64 { return &s.MaxHeader }, false, kb*kb),
		Help: "how large a request's headers may be; more gets 431"},
	// Any, by default: bodies stream through and are never held, and the upstream knows what it takes.
	{Name: "max-body", Default: "0", Value: "size", set: size(func(s *Settings) *int64 { return &s.MaxBody }, true, 1<<50),
		Help: "how large a request's body may be; more gets 413; 0 is any"},
	{Name: "max-connections", Default: "10000", Value: "number", set: size(func(s *Settings) *int64 { return &s.MaxConnections }, false, 1e6),
		Help: "how many clients may be connected; more wait until one leaves"},

	{Name: "log-format", Default: "text", Value: "text|json",
		set:  choice(func(s *Settings) *string { return &s.LogFormat }, "text", "json"),
		Help: "how lines are logged, to standard error"},
	{Name: "log-level", Default: "info", Value: "debug|info|warn|error",
		set:  choice(func(s *Settings) *string { return &s.LogLevel }, "debug", "info", "warn", "error"),
		Help: "what is logged; requests that pass are not, at any level"},
}
