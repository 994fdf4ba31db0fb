package main

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
)

// A model predicts the answers of a service from its documentation. It explains differences between
// real services, and replaces a service in the tests of this program.
type model struct {
	rules       rules
	settings    settings
	domains     map[string]*domain
	counters    map[string]uint64 // by their names
	named       map[string]string // by name in Redis: the identity of the counter, or several; see shared
	denied      map[string]int64  // when charges were last denied together, by their limits
	maybeCached []bool            // of the last request, by descriptor; see decideTogether
	unused      []bool            // of the last request, by descriptor: its window has no hits
}

// rules are the documented differences from envoyproxy/ratelimit. The zero value is
// envoyproxy/ratelimit itself.
type rules struct {
	hasOwnCounters     bool // different entries and units have different counters
	hasAnyWildcards    bool // an asterisk may be anywhere
	hasWeekNames       bool // metadata name the unit of an override WEEK
	hasAllHeaders      bool // headers are sent even if the least that remains is 4294967295
	canQuotaDeny       bool // a request is denied if all its limits with quota_mode are over
	isAtomic           bool // all descriptors of a request are charged, or none
	shouldChargeShadow bool // in an atomic request that is denied, limits with shadow_mode or quota_mode are charged
}

// settings are the settings of a whole service.
type settings struct {
	hasHeaders  bool // LIMIT_RESPONSE_HEADERS_ENABLED
	hasMetadata bool // RESPONSE_DYNAMIC_METADATA
	isShadow    bool // SHADOW_MODE
	isQuota     bool // QUOTA_MODE
}

// exactRules and atomicRules are the rules of Penstock's modes.
var (
	exactRules  = rules{hasOwnCounters: true, hasAnyWildcards: true, hasAllHeaders: true, hasWeekNames: true, canQuotaDeny: true}
	atomicRules = rules{hasOwnCounters: true, hasAnyWildcards: true, hasAllHeaders: true, hasWeekNames: true, canQuotaDeny: true, isAtomic: true, shouldChargeShadow: true}
)

func newModel(rules rules, settings settings, domains ...*domain) *model {
	m := &model{rules: rules, settings: settings, domains: make(map[string]*domain), counters: make(map[string]uint64), named: make(map[string]string), denied: make(map[string]int64)}
	for _, d := range domains {
		m.domains[d.name] = d
	}
	return m
}

// A match is the limit of one descriptor of a request.
type match struct {
	limit             *limit // nil if there is none
	isShadow, isQuota bool
	patterns          []string // by entry: the text in the counter's name; "": the entry's value
	isOverride        bool
	isUnlimited       bool
	isReplaced        bool
}

// hasCounter tells whether the descriptor is counted.
func (m match) hasCounter() bool { return m.limit != nil && !m.isUnlimited && !m.isReplaced }

// find returns the limits of all descriptors.
func (m *model) find(request *rls.RateLimitRequest) []match {
	matches := make([]match, len(request.Descriptors))
	d := m.domains[request.Domain]
	if d == nil {
		return matches
	}
	replaced := make(map[string]bool)
	for i, descriptor := range request.Descriptors {
		matches[i] = d.find(descriptor, m.rules)
		if l := matches[i].limit; l != nil {
			matches[i].isUnlimited = l.isUnlimited
			for _, name := range l.replaces {
				replaced[name] = true
			}
		}
	}
	for i := range matches {
		if matches[i].hasCounter() && matches[i].limit.name != "" && replaced[matches[i].limit.name] {
			matches[i].isReplaced = true
		}
	}
	return matches
}

func (d *domain) find(descriptor *ratelimitv3.RateLimitDescriptor, rules rules) match {
	if o := descriptor.Limit; o != nil {
		return match{limit: &limit{unit: unitNames[o.Unit], count: o.RequestsPerUnit}, isOverride: true}
	}
	patterns := make([]string, len(descriptor.Entries))
	nodes := d.nodes
	for i, entry := range descriptor.Entries {
		n, isPattern := step(nodes, entry, rules)
		if n == nil {
			return match{}
		}
		if n.isShared && isPattern {
			patterns[i] = strings.TrimPrefix(n.label(), entry.Key+"_")
			if rules.hasAnyWildcards && n.value != "" {
				patterns[i] = n.value
			}
		}
		if i == len(descriptor.Entries)-1 {
			return match{limit: n.limit, isShadow: n.isShadow, isQuota: n.isQuota, patterns: patterns}
		}
		nodes = n.nodes
	}
	return match{}
}

// step finds the node of an entry on one level: the one with the label key_value, else the first
// wildcard that matches, else the one with the key alone. isPattern is true for a wildcard.
func step(nodes []*node, entry *ratelimitv3.RateLimitDescriptor_Entry, rules rules) (found *node, isPattern bool) {
	whole := entry.Key + "_" + entry.Value
	for _, n := range nodes {
		if n.label() == whole {
			return n, false
		}
	}
	for _, n := range nodes {
		isMatch := n.isWildcard() && strings.HasPrefix(whole, strings.TrimSuffix(n.label(), "*"))
		if rules.hasAnyWildcards {
			isMatch = strings.Contains(n.label(), "*") && matchesPattern(n.label(), whole)
		}
		if isMatch {
			return n, true
		}
	}
	for _, n := range nodes {
		if n.label() == entry.Key {
			return n, false
		}
	}
	return nil, false
}

// matchesPattern tells whether a text matches a pattern. An asterisk matches any text.
func matchesPattern(pattern, text string) bool {
	switch {
	case pattern == "":
		return text == ""
	case pattern[0] == '*':
		return matchesPattern(pattern[1:], text) || text != "" && matchesPattern(pattern, text[1:])
	}
	return text != "" && text[0] == pattern[0] && matchesPattern(pattern[1:], text[1:])
}

// redisName returns the name of a counter in Redis, as envoyproxy/ratelimit makes it. Different
// descriptors may have the same name.
func (m match) redisName(request *rls.RateLimitRequest, i int, now int64) string {
	var b strings.Builder
	b.WriteString(request.Domain + "_")
	for j, entry := range request.Descriptors[i].Entries {
		b.WriteString(entry.Key + "_" + m.value(j, entry) + "_")
	}
	window := seconds[m.limit.unit]
	fmt.Fprint(&b, now/window*window)
	return b.String()
}

// identity returns an unambiguous name of the counter: the unit and the quoted entries.
func (m match) identity(request *rls.RateLimitRequest, i int) string {
	parts := []string{request.Domain, m.limit.unit}
	for j, entry := range request.Descriptors[i].Entries {
		parts = append(parts, entry.Key, m.value(j, entry))
	}
	return fmt.Sprintf("%q", parts)
}

// value returns the text of the j-th entry in the counter's name.
func (m match) value(j int, entry *ratelimitv3.RateLimitDescriptor_Entry) string {
	if j < len(m.patterns) && m.patterns[j] != "" {
		return m.patterns[j]
	}
	return entry.Value
}

// hits returns the cost of a descriptor. isOwn is true if the descriptor has hits of its own.
func hits(request *rls.RateLimitRequest, i int) (cost uint64, isOwn bool) {
	if h := request.Descriptors[i].HitsAddend; h != nil {
		return h.Value, true
	}
	return uint64(max(1, request.HitsAddend)), false
}

// several stands for the identities of counters that have the same name in Redis.
const several = "several"

// shared tells, by descriptor, whether its counter has also counted for other entries or units.
// envoyproxy/ratelimit names counters by plain strings, so a=b_c and a_b=c have one counter.
// In the first second of a day, the counter of that second and the one of the day have one name. It
// expires with the shorter window, plus a random time.
func (m *model) shared(request *rls.RateLimitRequest, now int64) []bool {
	shared := make([]bool, len(request.Descriptors))
	for i, match := range m.find(request) {
		if !match.hasCounter() {
			continue
		}
		name, identity := match.redisName(request, i, now), match.identity(request, i)
		if m.named[name] == "" {
			m.named[name] = identity
		}
		if m.named[name] != identity {
			m.named[name], shared[i] = several, true
		}
	}
	for i, match := range m.find(request) { // a later descriptor may have made the name of an earlier one ambiguous
		shared[i] = shared[i] || match.hasCounter() && m.named[match.redisName(request, i, now)] == several
	}
	return shared
}

// A result is the decision for a descriptor.
type result struct {
	match
	hasQuota  bool // its configuration has quota_mode
	isOver    bool
	remaining uint32
}

// decide returns the answer to a request at a second.
func (m *model) decide(request *rls.RateLimitRequest, now int64) *rls.RateLimitResponse {
	results := make([]result, len(request.Descriptors))
	m.maybeCached, m.unused = make([]bool, len(results)), make([]bool, len(results))
	for i, match := range m.find(request) {
		results[i].match, results[i].hasQuota = match, match.isQuota
		results[i].isQuota = match.isQuota || m.settings.isQuota
	}
	if m.rules.isAtomic {
		m.decideTogether(request, results, now)
	} else {
		for i := range results {
			if res := &results[i]; res.hasCounter() {
				cost, _ := hits(request, i)
				m.counters[m.counterName(res.match, request, i, now)] += cost
				m.read(res, request, i, now)
			}
		}
	}
	return m.answer(request, results, now)
}

// counterName returns the name of a counter in the model.
func (m *model) counterName(match match, request *rls.RateLimitRequest, i int, now int64) string {
	if m.rules.hasOwnCounters {
		return fmt.Sprint(match.identity(request, i), now/seconds[match.limit.unit])
	}
	return match.redisName(request, i, now)
}

// read sets the result from the value of its counter.
func (m *model) read(res *result, request *rls.RateLimitRequest, i int, now int64) {
	used, count := m.counters[m.counterName(res.match, request, i, now)], uint64(res.limit.count)
	res.isOver, res.remaining = used > count, uint32(count-min(used, count))
	m.unused[i] = used == 0
}

func (m *model) answer(request *rls.RateLimitRequest, results []result, now int64) *rls.RateLimitResponse {
	isQuotaDenying := m.rules.canQuotaDeny // all limits with quota_mode are over
	for i := range results {
		res := &results[i]
		if res.hasCounter() && res.isQuota && !res.isOver {
			isQuotaDenying = false
		}
	}
	response := &rls.RateLimitResponse{OverallCode: rls.RateLimitResponse_OK}
	var strictest *rls.RateLimitResponse_DescriptorStatus // for headers
	var violations []any
	hasQuota := false
	for i := range results {
		res, status := &results[i], &rls.RateLimitResponse_DescriptorStatus{Code: rls.RateLimitResponse_OK}
		response.Statuses = append(response.Statuses, status)
		switch {
		case res.isUnlimited:
			status.LimitRemaining = math.MaxUint32
			continue
		case !res.hasCounter():
			continue
		}
		window := seconds[res.limit.unit]
		status.CurrentLimit = &rls.RateLimitResponse_RateLimit{
			RequestsPerUnit: res.limit.count,
			Unit:            rls.RateLimitResponse_RateLimit_Unit(unitNumber(res.limit.unit)),
			Name:            res.limit.name,
		}
		status.LimitRemaining = res.remaining
		status.DurationUntilReset = &durationpb.Duration{Seconds: window - now%window}
		// The headers show the last limit that denied, or else the one with the least remaining.
		hasDenied := response.OverallCode == rls.RateLimitResponse_OVER_LIMIT
		isStrictest := strictest == nil && (res.remaining < math.MaxUint32 || m.rules.hasAllHeaders) || strictest != nil && res.remaining < strictest.LimitRemaining
		if !hasDenied && isStrictest {
			strictest = status
		}
		hasQuota = hasQuota || res.hasQuota
		switch {
		case !res.isOver || res.isShadow:
			continue
		case res.isQuota:
			violations = append(violations, float64(i))
		}
		if res.isQuota && !isQuotaDenying {
			status.DurationUntilReset = nil
		} else {
			status.Code, response.OverallCode = rls.RateLimitResponse_OVER_LIMIT, rls.RateLimitResponse_OVER_LIMIT
			strictest = status
		}
	}
	if m.settings.hasHeaders && strictest != nil {
		window := seconds[unitNames[strictest.CurrentLimit.Unit]]
		for name, value := range map[string]int64{
			"Limit": int64(strictest.CurrentLimit.RequestsPerUnit), "Remaining": int64(strictest.LimitRemaining), "Reset": window - now%window,
		} {
			response.ResponseHeadersToAdd = append(response.ResponseHeadersToAdd, &core.HeaderValue{Key: "RateLimit-" + name, Value: strconv.FormatInt(value, 10)})
		}
		slices.SortFunc(response.ResponseHeadersToAdd, func(a, b *core.HeaderValue) int { return strings.Compare(a.Key, b.Key) })
	}
	if m.settings.hasMetadata {
		response.DynamicMetadata = m.metadata(request, violations, hasQuota)
	}
	if m.settings.isShadow {
		response.OverallCode = rls.RateLimitResponse_OK
	}
	return response
}

// metadata returns the dynamic metadata of a response.
func (m *model) metadata(request *rls.RateLimitRequest, violations []any, hasQuota bool) *structpb.Struct {
	descriptors := []any{}
	for _, d := range request.Descriptors {
		entries := []any{}
		for _, e := range d.Entries {
			entries = append(entries, e.Key+"="+e.Value)
		}
		fields := map[string]any{"entries": entries}
		if d.Limit != nil {
			text := oneSpace(d.Limit.String())
			if m.rules.hasWeekNames && unitNames[d.Limit.Unit] == "WEEK" {
				text = strings.TrimSuffix(text, "7") + "WEEK" // instead of its number
			}
			fields["limit"] = text
		}
		if d.HitsAddend != nil {
			fields["hitsAddend"] = float64(d.HitsAddend.Value)
		}
		descriptors = append(descriptors, fields)
	}
	fields := map[string]any{"domain": request.Domain, "descriptors": descriptors, "quotaModeEnabled": hasQuota}
	if request.HitsAddend > 0 {
		fields["hitsAddend"] = float64(request.HitsAddend)
	}
	if len(violations) > 0 {
		fields["quotaModeViolations"] = violations
	}
	s, err := structpb.NewStruct(fields)
	if err != nil {
		panic(err) // impossible: all texts are valid UTF-8
	}
	return s
}

// oneSpace removes the second space that some builds of protobuf print between fields.
func oneSpace(text string) string { return strings.Join(strings.Fields(text), " ") }
