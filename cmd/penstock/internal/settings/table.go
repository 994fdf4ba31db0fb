package settings

import (
	"strings"
	"time"
)

// A Row is one setting. Its flag is --name; its variable PENSTOCK_NAME, with '_' for '-'; its key
// in the policy file's server section the name with '_' for '-'.
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

// Table is every setting, in the order that help shows them. Durations are written as 100ms, 5s,
// 2m; sizes as 512, 16KB, 8MB (1 KB is 1024).
var Table = []Row{
	{Name: "config", Value: "file", NotFile: true, set: text(func(s *Settings) *string { return &s.Config }),
		Help: "the file with the limits; its server section may hold the settings below"},

	{Name: "listen", Default: ":8080", Value: "host:port", Aliases: []Alias{{"PORT", readPort}},
		set:  address(func(s *Settings) *string { return &s.Listen }),
		Help: "where requests come in; without a host, on every address of the machine"},
	{Name: "upstream", Value: "url", set: setUpstream,
		Help: "where requests go: http://host:port, https://host, h2c://host:port or unix:/path/of.sock"},
	{Name: "preserve-host", Default: "false", set: toggle(func(s *Settings) *bool { return &s.PreserveHost }),
		Help: "send the client's Host to the upstream. Otherwise it gets its own name as Host, so that no client chooses among the sites " +
			"that it may serve, and the client's in X-Forwarded-Host"},
	{Name: "demo", Default: "false", NotFile: true, set: toggle(func(s *Settings) *bool { return &s.Demo }),
		Help: "bring a small upstream along, and rules if config is not set, to try limits on"},

	{Name: "store", Default: "memory", Value: "url", Secret: true, Aliases: []Alias{{"REDIS_URL", nil}, {"REDIS_HOST", readRedisHost}}, set: setStore,
		Help: "where counters live: redis://host:6379, rediss://…, redis+sentinel://…, redis+cluster://…, unix:///path/of.sock; memory is for one process"},
	{Name: "prefix", Default: "ps", Value: "text", set: setPrefix,
		Help: "how the names of keys in Redis begin; gates that share limits share it"},
	{Name: "secret", Value: "text", Secret: true, set: func(s *Settings, text string) error { s.Secret = []byte(text); return nil },
		Help: "if set, identities stand in Redis only as their HMAC with it; gates that share limits share it"},
	{Name: "require-store", Default: "false", set: toggle(func(s *Settings) *bool { return &s.RequireStore }),
		Help: "do not start without the store. Otherwise the gate starts, says so, and uses the store as soon as it answers"},
	{Name: "store-timeout", Default: "250ms", Value: "duration",
		set:  duration(func(s *Settings) *time.Duration { return &s.StoreTimeout }, false, time.Minute),
		Help: "how long a decision may wait for the store; then it is made without, as on_failure says"},
	{Name: "instances", Default: "1", Value: "number", set: count(func(s *Settings) *int64 { return &s.Instances }, 10_000),
		Help: "how many gates there are at least: with on_failure local, each allows its share while the store gives no answer. Those on one Redis are counted " +
			"too, and the larger number holds"},

	{Name: "admin", Default: "127.0.0.1:9180", Value: "host:port", set: setAdmin,
		Help: "where /metrics, /livez and /readyz are; off for nowhere. To open it to others, write their side's host, as in 0.0.0.0:9180"},
	{Name: "pprof", Default: "false", set: toggle(func(s *Settings) *bool { return &s.Pprof }),
		Help: "serve /debug/pprof beside them"},

	{Name: "tls-cert", Value: "file", set: text(func(s *Settings) *string { return &s.TLSCert }),
		Help: "certificate chain in PEM form, for HTTPS and HTTP/2; a changed file is taken up without a restart"},
	{Name: "tls-key", Value: "file", set: text(func(s *Settings) *string { return &s.TLSKey }),
		Help: "its private key"},
	{Name: "tls-client-ca", Value: "file", set: text(func(s *Settings) *string { return &s.TLSClientCA }),
		Help: "if set, only clients with a certificate signed by one of these are served"},

	{Name: "header-timeout", Default: "5s", Value: "duration",
		set:  duration(func(s *Settings) *time.Duration { return &s.HeaderTimeout }, false, time.Hour),
		Help: "how long a client may take to send a request's headers"},
	{Name: "stall-timeout", Default: "30s", Value: "duration",
		set:  duration(func(s *Settings) *time.Duration { return &s.StallTimeout }, true, time.Hour),
		Help: "how long a client may pause in a body that it sends, or in taking a response; 0 is forever"},
	{Name: "min-rate", Default: "240", Value: "size", set: size(func(s *Settings) *int64 { return &s.MinRate }, true, kb*kb),
		Help: "bytes a second: a body that comes more slowly uses its stall-timeout up, however evenly; 0 is any"},
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
		Help: "on SIGTERM, go on accepting for so long while /readyz already fails: the time that load balancers need to notice"},
	{Name: "drain-timeout", Default: "15s", Value: "duration",
		set:  duration(func(s *Settings) *time.Duration { return &s.DrainTimeout }, true, time.Hour),
		Help: "then, how long requests under way may take to end"},

	{Name: "max-header", Default: "16KB", Value: "size", set: size(func(s *Settings) *int64 { return &s.MaxHeader }, false, kb*kb),
		Help: "how large a request's headers may be; more gets 431"},
	{Name: "max-body", Default: "0", Value: "size", set: size(func(s *Settings) *int64 { return &s.MaxBody }, true, 1<<50),
		Help: "how large a request's body may be; more gets 413. The default, 0, is any: bodies stream through and are never held, and " +
			"the upstream knows what it takes"},
	{Name: "max-connections", Default: "10000", Value: "number", set: count(func(s *Settings) *int64 { return &s.MaxConnections }, 1e6),
		Help: "how many clients may be connected; more wait in the kernel's queue until one leaves"},

	{Name: "log-format", Default: "text", Value: "text|json",
		set:  choice(func(s *Settings) *string { return &s.LogFormat }, "text", "json"),
		Help: "how lines are logged to standard error; text is coloured on a terminal"},
	{Name: "log-level", Default: "info", Value: "debug|info|warn|error",
		set:  choice(func(s *Settings) *string { return &s.LogLevel }, "debug", "info", "warn", "error"),
		Help: "what is logged; requests that pass are not, at any level"},
}
