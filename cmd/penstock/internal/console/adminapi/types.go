package adminapi

import (
	"time"

	"github.com/penstock/penstock/cmd/penstock/internal/console/keylimits"
	"github.com/penstock/penstock/internal/policy/describe"
)

// These types are the bodies of responses. The tag doc describes a field in the OpenAPI document.

type Health struct {
	Status string  `json:"status" doc:"ok, degraded (the fallback decides) or down"`
	Checks []Check `json:"checks"`
}

type Check struct {
	Name   string `json:"name"`
	Status string `json:"status" doc:"ok, degraded or down"`
	Detail string `json:"detail,omitempty" doc:"the reason of the status, if it is known"`
}

type State struct {
	Time        time.Time  `json:"time"`
	Health      Health     `json:"health"`
	Store       StoreState `json:"store"`
	Fleet       FleetState `json:"fleet"`
	Counts      []Count    `json:"counts" doc:"of this instance"`
	FleetCounts []Count    `json:"fleet_counts" doc:"of all instances that are shown, up to 6 s old"`
	Waiting     int        `json:"waiting" doc:"requests that wait for their turn at this instance"`
	Upstream    *Upstream  `json:"upstream,omitempty" doc:"only if this instance forwards requests"`
	Recent      History    `json:"recent" doc:"the last 10 seconds: a line for each rule, and a line without a rule, which is the sum of all rules"`
	Regions     []Region   `json:"regions,omitempty" doc:"the other regions, if limits hold for several"`
	Times       Timings    `json:"recent_timings" doc:"how long calls took in the last 10 seconds"`
}

type Region struct {
	Name        string `json:"name"`
	IsInContact bool   `json:"in_contact" doc:"both regions know what the other has granted. Without contact, each has its share of the limits"`
	LagMS       int64  `json:"lag_ms" doc:"milliseconds since both regions knew all that the other had granted; -1: never"`
	Changed     int64  `json:"pending_counters" doc:"counters that have changed since the other region has asked"`
	HasDropped  bool   `json:"has_dropped" doc:"some counters were not noted for the other region, because too many have changed"`
}

type Upstream struct {
	Name    string  `json:"name" doc:"its URL"`
	Latency Latency `json:"latency" doc:"the time until the headers of a response. A call fails if it gets no response, or a status of 500 or more"`
}

// A Latency is how long calls took in the last 10 seconds. Its quantiles have the accuracy of
// activity.Times.
type Latency struct {
	Calls  uint64 `json:"calls_10s"`
	Failed uint64 `json:"failed_10s"`
	P50    int64  `json:"p50_us" doc:"microseconds, rounded up by at most a quarter; 0 without calls"`
	P95    int64  `json:"p95_us" doc:"like p50_us"`
	P99    int64  `json:"p99_us" doc:"like p50_us"`
}

type FleetState struct {
	Shown      int    `json:"shown" doc:"instances whose numbers are in fleet_counts"`
	Registered int    `json:"registered" doc:"instances that have sent a heartbeat within 15 s"`
	Problem    string `json:"problem,omitempty" doc:"why the other instances are not shown"`
}

// A Count is how often an event has occurred in the last 10 and 60 seconds.
type Count struct {
	Rule   string `json:"rule,omitempty" doc:"empty for counts of the whole instance"`
	Limit  string `json:"limit,omitempty"`
	Name   string `json:"name" doc:"what is counted: an outcome, such as allowed or denied; near_limit; waited; uncounted for requests that passed although a limit that fails open did not count them; source:NAME for decisions by their source; error:REASON for failed calls of the store by their reason"`
	Last10 uint64 `json:"last_10s" doc:"in the last 10 seconds"`
	Last60 uint64 `json:"last_60s" doc:"in the last 60 seconds"`
}

type StoreState struct {
	Name      string            `json:"name" doc:"the URL without its password and options, or memory"`
	IsFailing bool              `json:"failing" doc:"the latest call failed, or a call failed within the last 10 s"`
	Reason    string            `json:"reason,omitempty" doc:"why calls fail: a reason of rate_limiter_errors_total"`
	Breakers  map[string]string `json:"breakers" doc:"state by node: closed, open or half_open"`
	Memory    *Memory           `json:"memory,omitempty" doc:"only if the Redis user has the right +info; up to a minute old"`
	Instances int               `json:"instances" doc:"how many instances share the limits if the store fails"`
	Latency   Latency           `json:"latency" doc:"of the store's decisions, measured at this instance"`
	Over      *OverAdmission    `json:"over_admission,omitempty" doc:"what limits may admit in excess until the store decides again; only while it fails"`
}

type OverAdmission struct {
	Limits  []LimitBound `json:"limits" doc:"at most 50"`
	Skipped int          `json:"skipped" doc:"how many limits are not listed"`
}

type LimitBound struct {
	Rule      string  `json:"rule"`
	Limit     string  `json:"limit"`
	OnFailure string  `json:"on_failure" doc:"open, closed or local"`
	Bounds    []Bound `json:"bounds" doc:"while the store fails, and when it returns"`
}

type Memory struct {
	Used     int64  `json:"used_bytes" doc:"memory in use"`
	Max      int64  `json:"max_bytes" doc:"0: no bound"`
	Policy   string `json:"policy" doc:"the server's maxmemory-policy"`
	Server   string `json:"server,omitempty" doc:"on a Cluster: its address"`
	CanEvict bool   `json:"evicts" doc:"the server may delete counters, so clients may use their limits again"`
}

type Rules struct {
	Digest string   `json:"digest" doc:"of the policy's files; instances with one digest have one policy"`
	Allow  []string `json:"allow" doc:"clients that are never limited, in words; values that may be secrets are only counted"`
	Deny   []string `json:"deny" doc:"clients that are always rejected, in words like allow"`
	Tiers  []Tier   `json:"tiers" doc:"a client has the first tier that it belongs to"`
	Rules  []Rule   `json:"rules"`
}

type Tier struct {
	Name    string `json:"name"`
	Clients string `json:"clients" doc:"who belongs to it, in words like allow"`
}

type Rule struct {
	Name          string               `json:"name"`
	Always        bool                 `json:"always,omitempty"`
	Shadow        bool                 `json:"shadow,omitempty"`
	Unlimited     bool                 `json:"unlimited,omitempty"`
	When          string               `json:"when" doc:"whether the rule applies to each request that it matches, or only in some cases"`
	Match         []describe.Condition `json:"match" doc:"conditions that a request must meet"`
	NewIdentities string               `json:"new_identities,omitempty" doc:"how many new identities an address may bring to each instance, as a rate"`
	Limits        []Limit              `json:"limits"`
}

type Limit struct {
	Name      string  `json:"name"`
	Kind      string  `json:"kind" doc:"enforced, shadow or candidate"`
	Identity  string  `json:"identity" doc:"the identity that the limit counts by"`
	Algorithm string  `json:"algorithm"`
	Rates     []Rate  `json:"rates" doc:"one for each tier, or one if they do not differ"`
	OnFailure string  `json:"on_failure" doc:"open, closed or local"`
	Ceiling   string  `json:"ceiling,omitempty" doc:"with on_failure open: what each instance admits while the store gives no answer"`
	Failure   string  `json:"store_failure" doc:"what happens to requests while the store gives no answer"`
	WaitMS    int64   `json:"max_wait_ms,omitempty" doc:"the longest time that a request may wait"`
	Bounds    []Bound `json:"bounds" doc:"of the first rate"`
	Counts    []Count `json:"counts" doc:"of this instance. A request is counted once: for the limit that denies it, or for the one that has least left"`
	Needs     *Needs  `json:"needs,omitempty" doc:"what the clients of this instance have needed; only for limits per client"`
	Candidate *Limit  `json:"candidate,omitempty" doc:"another form of the limit, which counts and denies nothing"`
}

type Rate struct {
	Tier string `json:"tier,omitempty" doc:"the clients that have the rate; empty: all"`
	Text string `json:"text" doc:"such as: 10 per 1s, burst 20"`
}

func (r Rate) String() string {
	if r.Tier == "" {
		return r.Text
	}
	return r.Tier + " " + r.Text
}

// A Bound is how much a limit admits at most in one situation.
type Bound struct {
	When string `json:"when" doc:"the situation, such as: store fails"`
	Over *int64 `json:"over" doc:"units in excess of the limit; null: no bound"`
	Text string `json:"text" doc:"the bound in words"`
}

type Offenders struct {
	Kind         string     `json:"kind" doc:"what is counted: units, or requests that were denied, shadow_denied or near_limit"`
	Window       string     `json:"window" doc:"5m or 1h"`
	Scope        string     `json:"scope" doc:"fleet or instance"`
	Identities   string     `json:"identities" doc:"how identities are shown: off, masked or full"`
	Offenders    []Offender `json:"offenders" doc:"the most active first"`
	Total        uint64     `json:"total" doc:"the count of all keys together, of all rules; what limits of all clients together (per: global) count is not in it"`
	OthersAtMost uint64     `json:"others_at_most" doc:"a key that is not listed has at most this count"`
	Missed       uint64     `json:"missed" doc:"events that were not counted because another one was being counted; at_most and others_at_most include them"`
	Distinct     *Distinct  `json:"distinct,omitempty" doc:"only with kind denied: how many different keys were denied; a key counts once for each limit"`
	Instances    int        `json:"instances" doc:"how many instances were counted"`
	Problem      string     `json:"problem,omitempty" doc:"why the other instances are not shown"`
}

type Offender struct {
	Rule     string `json:"rule"`
	Limit    string `json:"limit"`
	Identity string `json:"identity,omitempty" doc:"the key, masked unless the token allows more"`
	Ref      string `json:"ref" doc:"a short name of the key, for /api/v1/key?ref="`
	Count    uint64 `json:"count" doc:"an estimate: at least the number of recorded events"`
	AtLeast  uint64 `json:"at_least" doc:"the lower bound of the true count"`
	AtMost   uint64 `json:"at_most" doc:"the upper bound of the true count"`
	IsExact  bool   `json:"exact" doc:"at_least and at_most are certain; otherwise events were sampled, and the bounds hold for all but one of three million keys"`
}

type Distinct struct {
	Count     uint64          `json:"count"`
	Deviation uint64          `json:"standard_error" doc:"0: the count is exact"`
	ByLimit   []DistinctLimit `json:"by_limit"`
}

type DistinctLimit struct {
	Rule      string `json:"rule"`
	Limit     string `json:"limit"`
	Count     uint64 `json:"count"`
	Deviation uint64 `json:"standard_error" doc:"0: the count is exact"`
}

type Key struct {
	Identity       string             `json:"identity,omitempty"`
	Ref            string             `json:"ref,omitempty" doc:"a short name of the key; a request by key gets it only with the token"`
	Stored         string             `json:"stored,omitempty" doc:"the name of the key in the store; a request by key gets it only with the token"`
	Source         string             `json:"source" doc:"where the state was read: store, deny_cache, lease, fallback, open or closed"`
	DeniedBy       []string           `json:"denied_by" doc:"enforced limits, as RULE.LIMIT, that would deny a request of one unit now, whatever the tier of its client; empty if it would be allowed in one of the tiers"`
	List           string             `json:"list,omitempty" doc:"allow: the client is never limited; deny: all its requests are rejected; unlisted: no request has the key, because the policy lists the values that count; absent: the client is on no list, or the key alone does not tell"`
	Results        []keylimits.Result `json:"results" doc:"what the enforced limits would decide about a request of one unit now, for each tier that the client may have. They decide nothing if list is set"`
	Limits         []keylimits.Limit  `json:"limits"`
	Global         []keylimits.Limit  `json:"global,omitempty" doc:"limits that all clients share: those of the same rules, and enforced ones of rules that may apply to the same requests. They may deny the key's requests too"`
	Unread         []string           `json:"unread,omitempty" doc:"limits of new_identities, as RULE.LIMIT, that may deny this address too. Each instance counts them in its own memory, so they are neither read nor reset"`
	UnderOtherKeys []string           `json:"elsewhere,omitempty" doc:"enforced limits, as RULE.LIMIT, that may count the client's requests under another key, such as its address; that key cannot be computed from this one, so they are not read"`
	Repair         string             `json:"repair,omitempty" doc:"if a limit is corrupt: the command that deletes the values that Penstock did not write; absent if it would show a hidden key"`
	Skipped        int                `json:"skipped" doc:"limits that were not read, because there are too many; name a rule"`
}

type Instances struct {
	Instances  []Instance `json:"instances" doc:"this one first"`
	Registered int        `json:"registered" doc:"instances that have sent a heartbeat within 15 s"`
	Problem    string     `json:"problem,omitempty" doc:"why the other instances are not shown"`
	Ignored    Ignored    `json:"ignored" doc:"summaries of other instances that could not be used, since the start"`
}

type Ignored struct {
	OtherVersion int64 `json:"other_version" doc:"of another version of Penstock"`
	Corrupt      int64 `json:"corrupt" doc:"that are damaged"`
	OtherSecret  int64 `json:"other_secret" doc:"of an instance with another key_hash_secret or caller_token"`
}

type Instance struct {
	Name    string    `json:"name" doc:"random; empty if it is not registered"`
	IsSelf  bool      `json:"self" doc:"true for the instance that sends this response"`
	Version string    `json:"version"`
	Host    string    `json:"host"`
	PID     int       `json:"pid,omitempty" doc:"its process ID on the host"`
	Digest  string    `json:"digest" doc:"of its policy"`
	Started time.Time `json:"started"`
	Written time.Time `json:"written" doc:"when the summary was written, by the clock of that instance"`
	Reason  string    `json:"store_reason,omitempty" doc:"why the store fails, as that instance sees it"`
	Counts  []Count   `json:"counts"`
}

// A History is how much each counter has grown, by the second or minute.
type History struct {
	Span  string    `json:"span" doc:"seconds or minutes"`
	End   time.Time `json:"end" doc:"end of the last second or minute"`
	Last  int64     `json:"last" doc:"index of the last second or minute, counted from the start of the instance"`
	Lines []Line    `json:"lines"`
	IsCut bool      `json:"cut" doc:"lines are missing because there are too many; name a rule"`
}

type Line struct {
	Rule   string   `json:"rule,omitempty"`
	Limit  string   `json:"limit,omitempty"`
	Name   string   `json:"name"`
	Counts []uint32 `json:"counts" doc:"the oldest first"`
}

type Timings struct {
	Span     string    `json:"span" doc:"seconds or minutes"`
	End      time.Time `json:"end" doc:"end of the last second or minute"`
	Last     int64     `json:"last" doc:"index of the last second or minute, counted from the start of the instance"`
	Store    Times     `json:"store"`
	Upstream *Times    `json:"upstream,omitempty" doc:"only if this instance forwards requests"`
}

// Times are how long calls took in each second or minute, the oldest first.
type Times struct {
	Calls  []uint64 `json:"calls"`
	Failed []uint64 `json:"failed"`
	P50    []int64  `json:"p50_us" doc:"microseconds, rounded up by at most a quarter; 0 without calls"`
	P95    []int64  `json:"p95_us" doc:"like p50_us"`
	P99    []int64  `json:"p99_us" doc:"like p50_us"`
}

// A Timeline has the events of all instances: the latest 256 of this one, and of each other one the
// latest that fit into its summary.
type Timeline struct {
	Events  []TimelineEvent `json:"events" doc:"the latest first"`
	Problem string          `json:"problem,omitempty" doc:"why the events of other instances are not shown"`
}

// A TimelineEvent is a log line that may explain a change in the charts.
type TimelineEvent struct {
	Time     time.Time         `json:"time" doc:"by the clock of the instance"`
	Instance string            `json:"instance" doc:"the host and the process ID of the instance, if they are known"`
	IsSelf   bool              `json:"self" doc:"true for the instance that sends this response"`
	Kind     string            `json:"kind" doc:"started, reloaded, weakened, reload_failed, key_reset, breaker_open, breaker_closed, store_fails, store_works, unlimited, limited_again, server_changed, keys_lost, charged_twice, region_fails or region_works"`
	IsBad    bool              `json:"bad" doc:"the event is a sign of trouble"`
	Text     string            `json:"text" doc:"the message of the log line"`
	Details  map[string]string `json:"details" doc:"attributes of the log line; most of them only with the token"`
}

// A Problem is the body of an error, application/problem+json.
type Problem struct {
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail" doc:"what is wrong, and how to fix it"`
}
