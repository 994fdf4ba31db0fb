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
	rules    rules
	settings settings
	domains  map[string]*domain // by name
	counters map[string]uint64  // hits, by the counter's name

	// identities has the identity of each counter, by the counter's name in Redis. Counters that share
	// a name have the value of the constant several instead; see findShared.
	identities map[string]string

	// metadata has the metadata of nodes, if metadata of others have been merged into them.
	metadata map[*node]map[string]any

	// denied has the second in which the charges of an entry of the deny cache were last denied. Its
	// keys are those of the entries; see markCached.
	denied map[string]int64

	// These are about the last request, by descriptor.
	maybeCached []bool // whether the status may come from a cached denial; see decideTogether
	unused      []bool // whether the window of its limit has no hits
}

// rules are the documented differences of a service from envoyproxy/ratelimit. The zero value is
// envoyproxy/ratelimit itself.
type rules struct {
	hasOwnCounters     bool // different entries and units have different counters
	hasWeekNames       bool // metadata have WEEK for the unit of an override, instead of its number
	hasAllHeaders      bool // headers are sent even if 4294967295 units are left in every limit
	hasCleanMetadata   bool // each response has the metadata of the files; see metadataOf
	isAtomic           bool // all descriptors of a request are charged, or none
	shouldChargeShadow bool // limits with shadow_mode or quota_mode are charged even in an atomic request that is denied
}

// settings are the settings of a whole service, with their names in envoyproxy/ratelimit.
type settings struct {
	hasHeaders  bool // LIMIT_RESPONSE_HEADERS_ENABLED
	hasMetadata bool // RESPONSE_DYNAMIC_METADATA
	isShadow    bool // SHADOW_MODE
	isQuota     bool // QUOTA_MODE
}

// exactRules and atomicRules are the rules of Penstock's modes.
var (
	exactRules  = rules{hasOwnCounters: true, hasAllHeaders: true, hasWeekNames: true, hasCleanMetadata: true}
	atomicRules = rules{hasOwnCounters: true, hasAllHeaders: true, hasWeekNames: true, hasCleanMetadata: true, isAtomic: true, shouldChargeShadow: true}
)

func newModel(rules rules, settings settings, domains ...*domain) *model {
	m := &model{rules: rules, settings: settings, domains: make(map[string]*domain), counters: make(map[string]uint64), identities: make(map[string]string), metadata: make(map[*node]map[string]any), denied: make(map[string]int64)}
	for _, d := range domains {
		m.domains[d.name] = d
	}
	return m
}

type match struct {
	limit       *limit   // nil: no limit applies
	node        *node    // of the limit; nil for an override
	hasPath     bool     // the metrics of the limit have the labels of the configuration; see metadataOf
	isShadow    bool     // the limit has shadow_mode
	isQuota     bool     // the limit has quota_mode
	patterns    []string // by entry: the text in the counter's name; "": the entry's value
	isOverride  bool     // the request itself has the limit, so the configuration's does not apply
	isUnlimited bool
	isReplaced  bool // another limit of the request replaces this one
}

func (m match) hasCounter() bool { return m.limit != nil && !m.isUnlimited && !m.isReplaced }

func (m *model) findMatches(request *rls.RateLimitRequest) []match {
	matches := make([]match, len(request.Descriptors))
	d := m.domains[request.Domain]
	if d == nil {
		return matches
	}
	replaced := make(map[string]bool)
	for i, descriptor := range request.Descriptors {
		matches[i] = d.findMatch(descriptor)
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

// findMatch returns the limit of one descriptor. It does not set isUnlimited and isReplaced.
func (d *domain) findMatch(descriptor *ratelimitv3.RateLimitDescriptor) match {
	if o := descriptor.Limit; o != nil {
		return match{limit: &limit{unit: unitNames[o.Unit], count: o.RequestsPerUnit}, isOverride: true}
	}
	patterns := make([]string, len(descriptor.Entries))
	nodes, hasPath := d.nodes, true
	for i, entry := range descriptor.Entries {
		n, isPattern := findNode(nodes, entry)
		if n == nil {
			return match{}
		}
		if n.isShared && isPattern {
			patterns[i] = strings.TrimPrefix(n.label(), entry.Key+"_")
		}
		hasPath = hasPath && n.label() == n.metricLabel(entry, isPattern)
		if i == len(descriptor.Entries)-1 {
			return match{limit: n.limit, node: n, hasPath: hasPath, isShadow: n.isShadow, isQuota: n.isQuota, patterns: patterns}
		}
		nodes = n.nodes
	}
	return match{}
}

// findNode finds the node of an entry on one level: the one with the label key_value, else the
// first wildcard that matches, else the one with the key alone. isPattern is true for a wildcard.
func findNode(nodes []*node, entry *ratelimitv3.RateLimitDescriptor_Entry) (found *node, isPattern bool) {
	whole := entry.Key + "_" + entry.Value
	for _, n := range nodes {
		if n.label() == whole {
			return n, false
		}
	}
	for _, n := range nodes {
		if n.isWildcard() && matchesPattern(n.label(), whole) {
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

// metricLabel returns the text of an entry in the name of the metrics of envoyproxy/ratelimit. The
// node has matched the entry.
func (n *node) metricLabel(entry *ratelimitv3.RateLimitDescriptor_Entry, isPattern bool) string {
	value := entry.Value
	switch {
	case isPattern && (n.isShared || !n.isMetric):
		value = strings.TrimPrefix(n.label(), entry.Key+"_")
	case n.label() == entry.Key && !n.isMetric:
		value = ""
	}
	if value == "" {
		return entry.Key
	}
	return entry.Key + "_" + value
}

// matchesPattern reports whether a text matches a pattern. An asterisk matches any text.
func matchesPattern(pattern, text string) bool {
	switch {
	case pattern == "":
		return text == ""
	case pattern[0] == '*': // it matches no text, or at least one byte
		return matchesPattern(pattern[1:], text) || text != "" && matchesPattern(pattern, text[1:])
	}
	return text != "" && text[0] == pattern[0] && matchesPattern(pattern[1:], text[1:])
}

// redisName returns the name in Redis that envoyproxy/ratelimit gives the counter of the i-th
// descriptor. Counters of different descriptors may have the same name.
func (m match) redisName(request *rls.RateLimitRequest, i int, now int64) string {
	var b strings.Builder
	b.WriteString(request.Domain + "_")
	for j, entry := range request.Descriptors[i].Entries {
		b.WriteString(entry.Key + "_" + m.value(j, entry) + "_")
	}
	window := windowSeconds[m.limit.unit]
	windowStart := now / window * window
	fmt.Fprint(&b, windowStart)
	return b.String()
}

// identity returns an unambiguous name of the i-th descriptor's counter in all windows: the domain,
// the unit and the entries, each in quotes.
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

// hitsOf returns the hits of the i-th descriptor. isOwn is true if the descriptor has hits of its
// own. Otherwise they are those of the request.
func hitsOf(request *rls.RateLimitRequest, i int) (cost uint64, isOwn bool) {
	if h := request.Descriptors[i].HitsAddend; h != nil {
		return h.Value, true
	}
	return uint64(max(1, request.HitsAddend)), false
}

// several stands for the identities of counters that have the same name in Redis.
const several = "several"

// findShared returns, for each descriptor, whether its counter has also counted for other entries
// or units. envoyproxy/ratelimit names counters by plain strings, so a=b_c and a_b=c have one
// counter. In the first second of a day, the counter of that second and the counter of the day have
// one name. The shared counter expires with the shorter window, plus a random time.
func (m *model) findShared(request *rls.RateLimitRequest, now int64) []bool {
	shared := make([]bool, len(request.Descriptors))
	matches := m.findMatches(request)
	for i, match := range matches {
		if !match.hasCounter() {
			continue
		}
		name, identity := match.redisName(request, i, now), match.identity(request, i)
		if m.identities[name] == "" {
			m.identities[name] = identity
		}
		if m.identities[name] != identity {
			m.identities[name], shared[i] = several, true
		}
	}
	for i, match := range matches { // a later descriptor may have made the name of an earlier one ambiguous
		if match.hasCounter() && m.identities[match.redisName(request, i, now)] == several {
			shared[i] = true
		}
	}
	return shared
}

type result struct {
	match
	isOver    bool   // the limit is exceeded
	remaining uint32 // units that are left
}

// decide returns the response to a request in the second now.
func (m *model) decide(request *rls.RateLimitRequest, now int64) *rls.RateLimitResponse {
	results := make([]result, len(request.Descriptors))
	m.maybeCached, m.unused = make([]bool, len(results)), make([]bool, len(results))
	for i, match := range m.findMatches(request) {
		results[i].match = match
		results[i].isQuota = match.isQuota || m.settings.isQuota
	}
	if m.rules.isAtomic {
		m.decideTogether(request, results, now)
	} else {
		for i := range results {
			if res := &results[i]; res.hasCounter() {
				cost, _ := hitsOf(request, i)
				m.counters[m.counterName(res.match, request, i, now)] += cost
				m.readCounter(res, request, i, now)
			}
		}
	}
	return m.makeResponse(request, results, now)
}

// counterName returns the name that the counter of the i-th descriptor has in the model.
func (m *model) counterName(match match, request *rls.RateLimitRequest, i int, now int64) string {
	if m.rules.hasOwnCounters {
		return fmt.Sprint(match.identity(request, i), now/windowSeconds[match.limit.unit])
	}
	return match.redisName(request, i, now)
}

// readCounter sets the result of the i-th descriptor from the value of its counter.
func (m *model) readCounter(res *result, request *rls.RateLimitRequest, i int, now int64) {
	used, count := m.counters[m.counterName(res.match, request, i, now)], uint64(res.limit.count)
	res.isOver, res.remaining = used > count, uint32(count-min(used, count))
	m.unused[i] = used == 0
}

func (m *model) makeResponse(request *rls.RateLimitRequest, results []result, now int64) *rls.RateLimitResponse {
	isQuotaDenying := true // all limits with quota_mode are over
	for i := range results {
		res := &results[i]
		isFree := m.settings.isQuota && !res.hasCounter() && !res.isUnlimited // QUOTA_MODE is for descriptors without a limit too
		if isFree || res.hasCounter() && res.isQuota && !res.denies() {
			isQuotaDenying = false
		}
	}
	response := &rls.RateLimitResponse{OverallCode: rls.RateLimitResponse_OK}
	var strictest *rls.RateLimitResponse_DescriptorStatus // for headers
	hasDenied := false                                    // a limit without quota_mode is over
	passed := make(map[string]any)                        // the metadata of limits that are not over
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
		window := windowSeconds[res.limit.unit]
		status.CurrentLimit = &rls.RateLimitResponse_RateLimit{
			RequestsPerUnit: res.limit.count,
			Unit:            rls.RateLimitResponse_RateLimit_Unit(unitNumber(res.limit.unit)),
			Name:            res.limit.name,
		}
		status.LimitRemaining = res.remaining
		status.DurationUntilReset = &durationpb.Duration{Seconds: window - now%window}
		// The headers show the last limit that denied, or else the one with the least remaining.
		var isStrictest bool
		if strictest == nil {
			isStrictest = res.remaining < math.MaxUint32 || m.rules.hasAllHeaders
		} else {
			isStrictest = res.remaining < strictest.LimitRemaining
		}
		if !hasDenied && isStrictest {
			strictest = status
		}
		if !res.denies() {
			mergeMetadata(passed, m.metadataOf(res.match))
			continue
		}
		status.Code = rls.RateLimitResponse_OVER_LIMIT
		if !res.isQuota {
			strictest, hasDenied = status, true
		}
		if !res.isQuota || isQuotaDenying {
			response.OverallCode = rls.RateLimitResponse_OVER_LIMIT
		}
	}
	if m.settings.hasHeaders && strictest != nil {
		window := windowSeconds[unitNames[strictest.CurrentLimit.Unit]]
		for name, value := range map[string]int64{
			"Limit": int64(strictest.CurrentLimit.RequestsPerUnit), "Remaining": int64(strictest.LimitRemaining), "Reset": window - now%window,
		} {
			response.ResponseHeadersToAdd = append(response.ResponseHeadersToAdd, &core.HeaderValue{Key: "RateLimit-" + name, Value: strconv.FormatInt(value, 10)})
		}
		slices.SortFunc(response.ResponseHeadersToAdd, func(a, b *core.HeaderValue) int { return strings.Compare(a.Key, b.Key) })
	}
	if m.settings.hasMetadata {
		response.DynamicMetadata = m.makeMetadata(request, passed)
	}
	if m.settings.isShadow {
		response.OverallCode = rls.RateLimitResponse_OK
	}
	return response
}

func (r *result) denies() bool { return r.isOver && !r.isShadow }

// metadataOf returns the metadata of a limit. envoyproxy/ratelimit loses them with detailed_metric
// on the innermost level, and if the name of the metrics is not the path in the configuration. A
// response there can add metadata of one limit to those of another, for all later responses.
func (m *model) metadataOf(match match) map[string]any {
	n := match.node
	if n == nil || len(n.metadata) == 0 {
		return nil
	}
	isLost := n.isDetailed && len(n.nodes) == 0 || !n.isDetailed && !match.hasPath
	switch {
	case m.rules.hasCleanMetadata:
		return copyMap(n.metadata)
	case isLost:
		return nil
	case m.metadata[n] == nil:
		m.metadata[n] = copyMap(n.metadata)
	}
	return m.metadata[n]
}

func copyMap(from map[string]any) map[string]any {
	to := make(map[string]any)
	for name, value := range from {
		if inner, ok := value.(map[string]any); ok {
			value = copyMap(inner)
		}
		to[name] = value
	}
	return to
}

// mergeMetadata adds fields that are missing. The maps in from become part of to.
func mergeMetadata(to, from map[string]any) {
	for name, value := range from {
		existing, exists := to[name]
		if !exists {
			to[name] = value
			continue
		}
		into, isMap := existing.(map[string]any)
		inner, areMaps := value.(map[string]any)
		if isMap && areMaps {
			mergeMetadata(into, inner)
		}
	}
}

// makeMetadata returns the dynamic metadata of a response. passed are the metadata of the limits
// that are not over.
func (m *model) makeMetadata(request *rls.RateLimitRequest, passed map[string]any) *structpb.Struct {
	descriptors := []any{}
	for _, d := range request.Descriptors {
		entries := []any{}
		for _, e := range d.Entries {
			entries = append(entries, e.Key+"="+e.Value)
		}
		fields := map[string]any{"entries": entries}
		if d.Limit != nil {
			text := withSingleSpaces(d.Limit.String())
			if m.rules.hasWeekNames && unitNames[d.Limit.Unit] == "WEEK" {
				text = strings.TrimSuffix(text, "7") + "WEEK" // 7 is the number of the unit
			}
			fields["limit"] = text
		}
		if d.HitsAddend != nil {
			fields["hitsAddend"] = float64(d.HitsAddend.Value)
		}
		descriptors = append(descriptors, fields)
	}
	fields := map[string]any{"domain": request.Domain, "descriptors": descriptors}
	if request.HitsAddend > 0 {
		fields["hitsAddend"] = float64(request.HitsAddend)
	}
	if len(passed) > 0 {
		fields["metadata"] = passed
	}
	s, err := structpb.NewStruct(fields)
	if err != nil {
		panic(err) // impossible: all texts are valid UTF-8
	}
	return s
}

// withSingleSpaces removes the second space that some builds of protobuf print between fields.
func withSingleSpaces(text string) string { return strings.Join(strings.Fields(text), " ") }
