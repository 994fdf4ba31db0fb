package policy

import "time"

// A Config is a policy as people write it. Parse reads one from YAML; Compile makes Rules of it.
//
// docs/configuration.md describes every field for those who write the file.
type Config struct {
	Version    int                   `yaml:"version" jsonschema:"The version of this format: 1, which is also the default."`
	Apply      string                `yaml:"apply" jsonschema:"Which rules are applied to a request: most-specific (default), the one that says most and those with always, or all that match."`
	OnFailure  string                `yaml:"on_failure" jsonschema:"What happens when the store gives no answer: local (default) has this process decide by its share of the limits, open lets requests pass, closed refuses them. A limit may say otherwise."`
	Identities Named[IdentityConfig] `yaml:"identities" jsonschema:"Who pays, by name. Limits and lists refer to these names."`
	Tokens     *Tokens               `yaml:"tokens" jsonschema:"How tokens (JWT) are verified. Only claims of verified tokens are ever used."`
	Tiers      Named[Conditions]     `yaml:"tiers" jsonschema:"Classes of callers, such as free and premium. The first whose conditions hold is the caller's; 'otherwise' as condition always holds."`
	Allow      Conditions            `yaml:"allow" jsonschema:"Who is never limited."`
	Deny       Conditions            `yaml:"deny" jsonschema:"Who is always refused, with status 403. It counts before allow."`
	Rules      []RuleConfig          `yaml:"rules" jsonschema:"What is limited. A request that no rule matches is not limited."`
	HTTP       HTTPConfig            `yaml:"http" jsonschema:"How HTTP requests are read and answered."`
	Server     ServerConfig          `yaml:"server" jsonschema:"Settings of penstock serve; flags and the environment go before them. The library does not use them."`

	source *source
}

// A RuleConfig says when limits apply, who pays, and which limits.
type RuleConfig struct {
	Name          string         `yaml:"name" jsonschema:"Names the rule in metrics, headers and keys of the store: 1 to 64 of a-z, 0-9, '_', '.' and '-'. Unique."`
	Match         MatchConfig    `yaml:"match" jsonschema:"Which requests the rule is for. Default: all."`
	Always        bool           `yaml:"always" jsonschema:"Applies the rule to every request that it matches, besides the most specific one."`
	BeforeAuth    bool           `yaml:"before_auth" jsonschema:"Decides the rule by itself before a token is verified, so that forged tokens cost no more signature checks than it admits. It always applies; its limits go by address or everyone."`
	Unlimited     bool           `yaml:"unlimited" jsonschema:"Instead of limits: what the rule matches is not limited by less specific rules."`
	Shadow        bool           `yaml:"shadow" jsonschema:"Counts and reports what the rule would deny, and denies nothing. The rule takes no other's place: less specific ones apply as without it."`
	Per           IdentityConfig `yaml:"per" jsonschema:"Who pays, for limits that do not say."`
	NewIdentities string         `yaml:"new_identities" jsonschema:"How many new identities one address may bring to the rule, as a rate: 20/min. Identities that clients cannot invent do not count. Default: any number."`
	Limits        []LimitConfig  `yaml:"limits" jsonschema:"The limits, decided together: all of them are charged, or none."`
}

// A MatchConfig says which requests a rule is for. All that it names must hold.
type MatchConfig struct {
	Method Strings   `yaml:"method" jsonschema:"One of these methods."`
	Path   Strings   `yaml:"path" jsonschema:"One of these paths. {name} is one segment, * any part of one, ** at the end everything below."`
	Host   Strings   `yaml:"host" jsonschema:"One of these hosts; *.example.com is any host below example.com."`
	Where  Condition `yaml:"-" jsonschema:"-"`
}

// A LimitConfig is one limit of a rule. Rates, bursts and slots are one number, or one for each
// tier.
type LimitConfig struct {
	Name      string           `yaml:"name" jsonschema:"Names the limit within its rule. Default: after its period (second, minute, ...), or in-flight."`
	Rate      PerTier          `yaml:"rate" jsonschema:"How much per how long: 10/s, 5 per minute, 10k/day, 1000 per calendar month."`
	Burst     PerTier          `yaml:"burst" jsonschema:"How much at once (token-bucket; default: the rate's count), or how much may queue (leaky-bucket; default: 0)."`
	InFlight  PerTier          `yaml:"in_flight" jsonschema:"Instead of a rate: how many requests may be in progress at once."`
	Expires   time.Duration    `yaml:"expires" jsonschema:"With in_flight: when the slot of a process that died is free again. Default: 1m."`
	Algorithm string           `yaml:"algorithm" jsonschema:"How the rate is enforced. Default: token-bucket."`
	Parts     int              `yaml:"parts" jsonschema:"With sub-window: into how many parts the window is cut, 1 to 60. Default: 10."`
	Zone      string           `yaml:"zone" jsonschema:"With a calendar rate: the time zone, such as Europe/Berlin. Default: UTC."`
	Per       IdentityConfig   `yaml:"per" jsonschema:"Who pays. Default: as the rule says."`
	Cost      CostConfig       `yaml:"cost" jsonschema:"How many units a request costs. Default: 1."`
	OnStatus  Strings          `yaml:"on_status" jsonschema:"Charges only requests that are answered with one of these: 401, 5xx, 400-499."`
	Wait      time.Duration    `yaml:"wait" jsonschema:"How long a request may wait for its turn (token-bucket, leaky-bucket). Default: 0, which denies at once."`
	OnFailure string           `yaml:"on_failure" jsonschema:"What happens when the store gives no answer: local, open or closed. Default: as the policy says."`
	Ceiling   string           `yaml:"ceiling" jsonschema:"With on_failure: open: how much each payer may have from each process while the store gives no answer, as a rate. Default: all it asks for."`
	Lease     int64            `yaml:"lease" jsonschema:"How many units a process may draw in advance at once, for payers that are busy. Default: none."`
	Shards    int              `yaml:"shards" jsonschema:"In how many counters the limit is split, for payers that keep a whole server busy: 2 to 32. Default: one counter."`
	DenyFor   *time.Duration   `yaml:"deny_for" jsonschema:"How long a denial may be remembered without asking the store, at most; 0s remembers none. Default: 1s."`
	Shadow    bool             `yaml:"shadow" jsonschema:"Counts and reports what the limit would deny, and denies nothing."`
	Candidate *CandidateConfig `yaml:"candidate" jsonschema:"Another form of the limit that is tried beside it with counters of its own, and never enforced."`
	Headers   *bool            `yaml:"headers" jsonschema:"Whether responses tell of the limit. Default: true, but false if everyone pays together."`
}

// A CandidateConfig is what a limit might become. What it does not say is as in the limit, as far
// as it fits.
type CandidateConfig struct {
	Rate      PerTier       `yaml:"rate" jsonschema:"As in the limit."`
	Burst     PerTier       `yaml:"burst" jsonschema:"As in the limit."`
	InFlight  PerTier       `yaml:"in_flight" jsonschema:"As in the limit."`
	Expires   time.Duration `yaml:"expires" jsonschema:"As in the limit."`
	Algorithm string        `yaml:"algorithm" jsonschema:"As in the limit."`
	Parts     int           `yaml:"parts" jsonschema:"As in the limit."`
	Zone      string        `yaml:"zone" jsonschema:"As in the limit."`
}

// A CostConfig says what a request costs: a number of units, or how to find it.
type CostConfig struct {
	Units   *int64       `yaml:"units" jsonschema:"This many, whatever the request. A number alone means the same."`
	Methods Named[int64] `yaml:"methods" jsonschema:"By method; 'otherwise' stands for those not named, and is 1 by default."`
	Header  string       `yaml:"header" jsonschema:"The number in this request header. Callers can write what they like there, so min and max bound it."`
	Body    Size         `yaml:"body" jsonschema:"One unit for each begun part of the body of this size, such as 64KB."`
	Min     int64        `yaml:"min" jsonschema:"The least that a header or a body costs. Default: 1."`
	Max     int64        `yaml:"max" jsonschema:"The most that a header costs. Needed with header."`
	Actual  string       `yaml:"actual" jsonschema:"The response header with the true cost, which the handler may also tell; what was charged before is then corrected."`
}

// HTTPConfig says how HTTP requests are read and answered.
type HTTPConfig struct {
	TrustedProxies Strings       `yaml:"trusted_proxies" jsonschema:"Addresses of proxies whose address header is believed: CIDRs, or unix for peers on a unix socket. Default: none."`
	AddressHeader  string        `yaml:"address_header" jsonschema:"The header in which trusted proxies tell the client's address: X-Forwarded-For (default), Forwarded, or one with a single address."`
	IPv4Prefix     int           `yaml:"ipv4_prefix" jsonschema:"How many leading bits of an IPv4 address pay together: 8 to 32. Default: 32."`
	IPv6Prefix     int           `yaml:"ipv6_prefix" jsonschema:"How many leading bits of an IPv6 address pay together: 16 to 128. Default: 64."`
	EncodedSlash   string        `yaml:"encoded_slash" jsonschema:"What becomes of paths with %2F or %5C: refuse (default; status 400), or keep."`
	TrailingSlash  string        `yaml:"trailing_slash" jsonschema:"Whether /a/ is /a: keep (default) tells them apart, ignore removes the slash."`
	Case           string        `yaml:"case" jsonschema:"Whether /A is /a: keep (default) tells them apart, ignore makes letters small."`
	PathParameters string        `yaml:"path_parameters" jsonschema:"What becomes of ;v=1 behind a segment: keep (default), or strip."`
	Headers        Strings       `yaml:"headers" jsonschema:"Which fields tell of limits: draft-11 (default), draft-07, draft-06, x-ratelimit, or none."`
	Reset          string        `yaml:"reset" jsonschema:"What X-RateLimit-Reset means: epoch (default), the time in seconds since 1970, or seconds from now."`
	RetryJitter    time.Duration `yaml:"retry_jitter" jsonschema:"Lengthens Retry-After by up to this, at random, so that callers do not all come back at once. Default: 0."`
	Denied         DeniedConfig  `yaml:"denied" jsonschema:"How a request over a limit is answered."`
	CORS           CORSConfig    `yaml:"cors" jsonschema:"Which web pages may read the answers that do not come from the upstream, and what they learn of limits. Default: none."`
	MaxWaiting     int           `yaml:"max_waiting" jsonschema:"How many requests may wait for their turn at once; others are denied. Default: 1000."`
}

// A DeniedConfig says how a request over a limit is answered. Requests that are denied for other
// reasons have an answer of their own.
type DeniedConfig struct {
	Status      int    `yaml:"status" jsonschema:"The status, 400 to 599. Default: 429."`
	Body        string `yaml:"body" jsonschema:"problem (default; problem+json, or text for those who ask for it), text, or a template."`
	ContentType string `yaml:"content_type" jsonschema:"The type of a template's text. Default: application/json."`
}

// A CORSConfig says which web pages of other origins may read what the gate answers by itself.
// Without origins, none may.
type CORSConfig struct {
	Origins     Strings `yaml:"origins" jsonschema:"The origins of these pages, such as https://app.example.com, or * alone for any."`
	Credentials bool    `yaml:"credentials" jsonschema:"Whether they may send cookies and other credentials, and still read the answer. Not with *. Default: false."`
	Expose      Strings `yaml:"expose" jsonschema:"Headers of responses that they may read, besides those that tell of limits. Default: none."`
}

// ServerConfig is what penstock serve may find in the file: its settings, each as it would be
// written in a flag of that name. What is left out comes from flags, the environment or the
// defaults. The library only reads it.
type ServerConfig struct {
	Listen                 string `yaml:"listen" jsonschema:"Host:port where requests come in; default :8080."`
	Upstream               string `yaml:"upstream" jsonschema:"URL where requests go."`
	PreserveHost           *bool  `yaml:"preserve_host" jsonschema:"Send the client's Host to the upstream; default false."`
	Store                  string `yaml:"store" jsonschema:"URL of Redis; default memory."`
	Prefix                 string `yaml:"prefix" jsonschema:"How the names of keys begin; default ps."`
	Secret                 string `yaml:"secret" jsonschema:"Hides identities in Redis; default none. PENSTOCK_SECRET_FILE is a better place."`
	RequireStore           *bool  `yaml:"require_store" jsonschema:"Do not start without the store; default false."`
	StoreTimeout           string `yaml:"store_timeout" jsonschema:"How long a decision may wait for the store; default 250ms."`
	Instances              *int64 `yaml:"instances" jsonschema:"How many gates there are at least, to share the limits while the store gives no answer; default 1."`
	Admin                  string `yaml:"admin" jsonschema:"Host:port of metrics and health, or off; default 127.0.0.1:9180."`
	Pprof                  *bool  `yaml:"pprof" jsonschema:"Serve /debug/pprof there; default false."`
	TLSCert                string `yaml:"tls_cert" jsonschema:"PEM file of the certificate chain; default none, plain HTTP."`
	TLSKey                 string `yaml:"tls_key" jsonschema:"PEM file of its private key."`
	TLSClientCA            string `yaml:"tls_client_ca" jsonschema:"PEM file of who signs clients' certificates; default none, all are served."`
	HeaderTimeout          string `yaml:"header_timeout" jsonschema:"To send a request's headers; default 5s."`
	StallTimeout           string `yaml:"stall_timeout" jsonschema:"Longest pause of a client in a body; default 30s; 0 is forever."`
	MinRate                string `yaml:"min_rate" jsonschema:"Bytes a second that a body must bring; default 240; 0 is any."`
	IdleTimeout            string `yaml:"idle_timeout" jsonschema:"Between requests on a connection; default 2m."`
	UpstreamConnectTimeout string `yaml:"upstream_connect_timeout" jsonschema:"To connect to the upstream; default 5s."`
	UpstreamHeaderTimeout  string `yaml:"upstream_header_timeout" jsonschema:"For the upstream's answer to begin; default 30s; 0 is forever."`
	DrainDelay             string `yaml:"drain_delay" jsonschema:"Accept for so long after SIGTERM; default 0s."`
	DrainTimeout           string `yaml:"drain_timeout" jsonschema:"For requests under way to end; default 15s."`
	MaxHeader              string `yaml:"max_header" jsonschema:"Size of a request's headers; default 16KB."`
	MaxBody                string `yaml:"max_body" jsonschema:"Size of a request's body; default 0, any."`
	MaxConnections         *int64 `yaml:"max_connections" jsonschema:"Clients connected at once; default 10000."`
	LogFormat              string `yaml:"log_format" jsonschema:"Text or json; default text."`
	LogLevel               string `yaml:"log_level" jsonschema:"Debug, info, warn or error; default info."`
}
