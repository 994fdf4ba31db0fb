package policyfile

import (
	"reflect"
	"time"

	"github.com/penstock/penstock/internal/policy/jwt"
)

// Form returns the type of the struct that a policy file is read into, for programs that describe
// the format. The tags of its fields name the keys (yaml) and describe them (jsonschema).
func Form() reflect.Type { return reflect.TypeFor[policyConfig]() }

// A policyConfig is a policy as it is written. parse reads one from YAML. compile makes Rules of
// it.
//
// docs/configuration.md and the pages of docs/configuration describe every field for those who
// write the file.
type policyConfig struct {
	Version    int                         `yaml:"version" jsonschema:"The version of this format: 1, which is also the default."`
	Apply      string                      `yaml:"apply" jsonschema:"Which of the rules that match a request apply: most-specific (default: the most specific rule, and those with always) or all."`
	OnFailure  string                      `yaml:"on_failure" jsonschema:"What happens while the store gives no answer: local (default: each instance enforces its share of the limits), open (requests pass) or closed (requests are rejected). A limit may have its own."`
	Identities namedList[identityConfig]   `yaml:"identities" jsonschema:"The identities, by name. Limits and lists refer to these names."`
	Tokens     *jwt.Config                 `yaml:"tokens" jsonschema:"How tokens (JWT) are verified. Only claims of verified tokens are used."`
	Tiers      namedList[conditionsConfig] `yaml:"tiers" jsonschema:"Classes of clients, such as free and premium. A client has the first tier whose conditions hold. The condition 'default' always holds."`
	Allow      conditionsConfig            `yaml:"allow" jsonschema:"Clients that are never limited."`
	Deny       conditionsConfig            `yaml:"deny" jsonschema:"Clients that are always refused, with status 403. This list is checked before allow."`
	Rules      []ruleConfig                `yaml:"rules" jsonschema:"The rules. A request that no rule matches is not limited."`

	sections []Section
	options  Options
	reporter *reporter
}

// A ruleConfig says which limits apply to which requests and identities.
type ruleConfig struct {
	Name          string         `yaml:"name" jsonschema:"The name of the rule in metrics, headers and keys of the store: 1 to 64 of a-z, 0-9, '_', '.' and '-'. Unique."`
	Match         matchConfig    `yaml:"match" jsonschema:"Which requests the rule matches. Default: all."`
	Always        bool           `yaml:"always" jsonschema:"Applies the rule to every request that it matches, in addition to the most specific rule."`
	BeforeAuth    bool           `yaml:"before_auth" jsonschema:"Decides the rule in a separate call before a token is verified, so forged tokens cause at most as many signature checks as the rule admits. The rule always applies. Its limits use no claims and no tiers."`
	Unlimited     bool           `yaml:"unlimited" jsonschema:"Instead of limits: the requests that the rule matches are not limited by less specific rules."`
	Shadow        bool           `yaml:"shadow" jsonschema:"Counts and reports what the rule would deny, and denies nothing. The rule does not replace less specific rules."`
	Per           identityConfig `yaml:"per" jsonschema:"The identity of the rule's limits, unless a limit has its own."`
	NewIdentities string         `yaml:"new_identities" jsonschema:"How many new identities one address may send to the rule, as a rate: 20/min. Identities that clients cannot invent do not count. Default: any number."`
	Limits        []limitConfig  `yaml:"limits" jsonschema:"The limits, decided together: all of them are charged, or none."`
}

// A matchConfig says which requests a rule matches. All fields that are set must hold.
type matchConfig struct {
	Method []string        `yaml:"method" jsonschema:"One of these methods."`
	Path   []string        `yaml:"path" jsonschema:"One of these paths. {name} is one segment, * any part of one, ** at the end everything below."`
	Host   []string        `yaml:"host" jsonschema:"One of these hosts; *.example.com is any host below example.com."`
	Where  conditionConfig `yaml:"-" jsonschema:"-"`
}

// A limitConfig is one limit of a rule. Rates, bursts and slots are one number, or one for each
// tier.
type limitConfig struct {
	Name         string           `yaml:"name" jsonschema:"The name of the limit within its rule. Default: the name of its period (second, minute, ...), or in-flight."`
	Rate         tierTexts        `yaml:"rate" jsonschema:"Units per time: 10/s, 5 per minute, 10k/day, 1000 per calendar month."`
	Burst        tierTexts        `yaml:"burst" jsonschema:"Units that are admitted without a pause (token-bucket; default: the rate's count), or places in the queue (leaky-bucket; default: 0)."`
	InFlight     tierTexts        `yaml:"in_flight" jsonschema:"Instead of a rate: how many requests may be in progress at the same time."`
	TTL          time.Duration    `yaml:"ttl" jsonschema:"With in_flight: how long the slot of an instance that died stays taken. Default: 1m."`
	Algorithm    string           `yaml:"algorithm" jsonschema:"How the rate is enforced. Default: token-bucket."`
	SubWindows   int              `yaml:"sub_windows" jsonschema:"With sub-window: into how many sub-windows the window is divided. Default: 10."`
	Timezone     string           `yaml:"timezone" jsonschema:"With a calendar rate: the time zone, such as Europe/Berlin. Default: UTC."`
	CountDenied  bool             `yaml:"count_denied" jsonschema:"Denied requests count too, until twice the limit is used. So a client that keeps retrying stays out. Default: false."`
	Across       string           `yaml:"across" jsonschema:"how all regions enforce one limit together, each with a Redis of its own. exchange: each tells the others what it has granted, and a little more than the limit may pass. share: each has a share, and lends what it does not need, so never more than the limit passes. Needs penstock serve with region_peers. Default: each region enforces the limit on its own."`
	Per          identityConfig   `yaml:"per" jsonschema:"The identity that the limit counts by. Default: the rule's."`
	Cost         costConfig       `yaml:"cost" jsonschema:"How many units a request costs. Default: 1."`
	OnStatus     []string         `yaml:"on_status" jsonschema:"Charges only requests whose response has one of these statuses: 401, 5xx, 400-499."`
	MaxWait      time.Duration    `yaml:"max_wait" jsonschema:"How long a request may wait for its turn (token-bucket, leaky-bucket). Default: 0, so that no request waits."`
	OnFailure    string           `yaml:"on_failure" jsonschema:"What happens while the store gives no answer: local, open or closed. Default: the policy's."`
	Ceiling      string           `yaml:"ceiling" jsonschema:"With on_failure: open: how much each instance admits for each key while the store gives no answer, as a rate. Default: no limit."`
	Lease        int64            `yaml:"lease" jsonschema:"The most units that an instance may draw in advance in one call, for busy keys. Default: none."`
	SplitInto    int              `yaml:"split_into" jsonschema:"Into how many counters the limit is split, for keys that keep a whole server busy. Default: one counter."`
	DenyCacheTTL *time.Duration   `yaml:"deny_cache_ttl" jsonschema:"The longest time that a denial is cached; 0s caches none. Default: 1s."`
	Shadow       bool             `yaml:"shadow" jsonschema:"Counts and reports what the limit would deny, and denies nothing."`
	Candidate    *candidateConfig `yaml:"candidate" jsonschema:"Another form of the limit that is counted beside it with counters of its own, and never enforced."`
	Headers      *bool            `yaml:"headers" jsonschema:"Whether responses report the limit. Default: true, but false for per: global."`
}

// A candidateConfig is another form of a limit. The candidate takes the fields that it does not set
// from the limit. It does not take fields that its rate or its algorithm cannot have.
type candidateConfig struct {
	Rate        tierTexts     `yaml:"rate" jsonschema:"As in the limit."`
	Burst       tierTexts     `yaml:"burst" jsonschema:"As in the limit."`
	InFlight    tierTexts     `yaml:"in_flight" jsonschema:"As in the limit."`
	TTL         time.Duration `yaml:"ttl" jsonschema:"As in the limit."`
	Algorithm   string        `yaml:"algorithm" jsonschema:"As in the limit."`
	SubWindows  int           `yaml:"sub_windows" jsonschema:"As in the limit."`
	Timezone    string        `yaml:"timezone" jsonschema:"As in the limit."`
	CountDenied *bool         `yaml:"count_denied" jsonschema:"As in the limit."`
}

// A costConfig says what a request costs: a number of units, or how to find the number.
type costConfig struct {
	Units   *int64           `yaml:"units" jsonschema:"A fixed number of units for every request. The short form of the cost is this number alone."`
	Methods namedList[int64] `yaml:"methods" jsonschema:"The units by method. 'default' is for all other methods, and is 1 if it is not set."`
	Header  string           `yaml:"header" jsonschema:"The request header with the number of units. Clients control the header, so min and max bound the number."`
	Body    byteSize         `yaml:"body" jsonschema:"The size of a body that costs one unit, such as 64KB. The number of units is rounded up."`
	Min     int64            `yaml:"min" jsonschema:"The lower bound for header or body. Default: 1."`
	Max     int64            `yaml:"max" jsonschema:"The upper bound for header. Required with header."`
	Actual  string           `yaml:"actual" jsonschema:"The response header with the true cost, to which the charge is corrected. A handler in Go can also set the true cost."`
}
