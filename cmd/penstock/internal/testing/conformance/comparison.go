package main

import (
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
)

const (
	domainsPerStart   = 50 // configurations that a service loads when it starts
	requestsPerDomain = 60
	maxMismatches     = 10 // a run stops after it has printed this number of mismatches
)

// A responder answers requests. It is a service, or a model in the tests of this program.
type responder interface {
	respond(request *rls.RateLimitRequest) answer
}

type comparison struct {
	seed       uint64
	onlyDomain int // the number of the only configuration to compare; -1: all
	out        io.Writer
	clock      clock

	// start starts both services, and returns a function that stops them.
	start func(*startConfig) (left, right responder, stop func(), err error)

	// rightRules are the rules that predict the answers of the right service.
	rightRules rules

	// hasOwnClock is true if the right service uses the system's clock for the end of a window that
	// has no hits. The comparison cannot set this clock.
	hasOwnClock bool

	// wrap returns a responder that sends requests by another protocol. nil: gRPC.
	wrap func(responder) (responder, error)

	tally      tally
	kindCounts tally // requests by kind
	mismatches int
}

// A startConfig is what both services start with: configuration files and settings.
type startConfig struct {
	dir      string // the folder with the files of the domains
	domains  []*domain
	settings settings
}

// An exchange is a request and the answers of both services within one second.
type exchange struct {
	request     *rls.RateLimitRequest
	now         int64 // the second
	left, right answer
	expected    [2]answer // what the models predict: of the left service at fromLeft, and of the right one at fromRight
	cause       string    // the documented difference that the answers may have; "": none
	shared      []bool    // by descriptor: whether other entries or units have the same counter
}

// Indexes of exchange.expected.
const fromLeft, fromRight = 0, 1

// withoutShared returns the fields without those that shared counters change.
func (x *exchange) withoutShared(fields []string) []string {
	return slices.DeleteFunc(slices.Clone(fields), func(field string) bool {
		for i := range x.shared {
			if name, ok := strings.CutPrefix(field, fmt.Sprintf("statuses[%d].", i)); ok {
				return x.shared[i] && slices.Contains([]string{"code", "limit_remaining", "duration_until_reset"}, name)
			}
		}
		isOfWholeResponse := field == "overall_code" || strings.HasPrefix(field, "response_headers_to_add") || field == "dynamic_metadata"
		return isOfWholeResponse && slices.Contains(x.shared, true)
	})
}

// run sends requests until this number of exchanges has been compared.
func (c *comparison) run(requests int) error {
	for first := 0; c.tally.counts["compared"] < requests && c.mismatches < maxMismatches; first += domainsPerStart {
		hasOnlyDomain := first <= c.onlyDomain && c.onlyDomain < first+domainsPerStart
		if c.onlyDomain >= 0 && !hasOnlyDomain {
			continue
		}
		if err := c.startOnce(first, requests); err != nil {
			return err
		}
		if c.onlyDomain >= 0 {
			return nil
		}
	}
	return nil
}

// startOnce starts the services once, with domainsPerStart domains from first on, and compares
// them.
func (c *comparison) startOnce(first, requests int) error {
	dir, err := os.MkdirTemp("", "conformance")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	configs := filepath.Join(dir, "config")
	if err := os.Mkdir(configs, 0o755); err != nil {
		return err
	}
	domains, texts := make([]*domain, domainsPerStart), make([]string, domainsPerStart)
	sources := make([]*rand.Rand, domainsPerStart)
	for i := range domains {
		sources[i] = rand.New(rand.NewPCG(c.seed, uint64(first+i)))
		domains[i] = newDomain(sources[i], fmt.Sprintf("d%d", first+i))
		texts[i] = domains[i].yaml(sources[i])
		if err := os.WriteFile(filepath.Join(configs, domains[i].name+".yaml"), []byte(texts[i]), 0o600); err != nil {
			return err
		}
	}
	start := first / domainsPerStart // the starts have different settings in turn
	conf := &startConfig{dir: configs, domains: domains, settings: settings{
		hasHeaders:  start%2 == 0,
		hasMetadata: start%3 != 1,
		isQuota:     start%4 == 1,
		isShadow:    start%4 == 3 && !c.rightRules.isAtomic, // nothing is denied then, so mode atomic has little to compare
	}}
	left, right, stop, err := c.start(conf)
	if err != nil {
		return err
	}
	defer stop()
	if c.wrap != nil {
		if left, err = c.wrap(left); err == nil {
			right, err = c.wrap(right)
		}
		if err != nil {
			return err
		}
	}
	for i := range domains {
		if c.onlyDomain >= 0 && c.onlyDomain != first+i {
			continue
		}
		if c.mismatches >= maxMismatches || c.tally.counts["compared"] >= requests {
			break
		}
		if err := c.compareDomain(first+i, conf, i, texts[i], sources[i], left, right); err != nil {
			return err
		}
	}
	return nil
}

// compareDomain sends random requests for the i-th domain of conf, and compares the answers. number
// is the domain's number for the replay, and text is the text of its file.
func (c *comparison) compareDomain(number int, conf *startConfig, i int, text string, r *rand.Rand, left, right responder) error {
	d := conf.domains[i]
	c.tally.add("configurations", 1)
	requests := &requester{random: r, domain: d}
	m := &models{left: newModel(rules{}, conf.settings, d), right: newModel(c.rightRules, conf.settings, d), causes: make(map[string]string)}
	for n := range requestsPerDomain {
		request := requests.next()
		if err := c.clock.advance(r); err != nil {
			return err
		}
		before := c.clock.now()
		leftAnswer, rightAnswer := sendToBoth(left, right, request)
		after := c.clock.now()
		if before != after {
			c.tally.add("not comparable: not decided in one second", 1)
			if m.left.straddles(request, before, after) || m.right.straddles(request, before, after) {
				c.tally.add("not comparable: after that, the counters of the configuration may differ", requestsPerDomain-1-n)
				return nil
			}
		}
		x := exchange{request: request, now: before, left: leftAnswer, right: rightAnswer, shared: m.left.findShared(request, before)}
		x.expected, x.cause = m.decide(request, before, x.shared)
		if before != after { // the models had to count the request, but the answers may be of different seconds
			continue
		}
		c.tally.add("compared", 1)
		c.countKinds(request, m.left.findMatches(request), x.expected[fromLeft].response)
		outcome, mismatched := c.classify(&x, m)
		if len(mismatched) == 0 {
			c.tally.add(outcome, 1)
			continue
		}
		c.report(outcome, number, n, text, x, mismatched)
		if c.mismatches >= maxMismatches {
			return nil
		}
	}
	return nil
}

// classify names the outcome of an exchange. If it is a mismatch, classify also returns the fields
// that differ.
func (c *comparison) classify(x *exchange, m *models) (outcome string, mismatched []string) {
	fields := differences(x.left, x.right)
	leftMismatches, rightMismatches := differences(x.left, x.expected[fromLeft]), c.unexpected(x, m.right)
	isEqual := len(fields) == 0
	if c.hasOwnClock && slices.Contains(m.right.unused, true) {
		// The end of an unused window may differ, because only one service uses the clock that is set.
		isEqual = isEqual || len(differences(x.left, x.expected[fromRight])) == 0
	}
	switch {
	case len(x.withoutShared(leftMismatches)) > 0:
		return "the left service differs from its model", leftMismatches
	case len(rightMismatches) > 0:
		return "the right service differs from its model", rightMismatches
	case isEqual:
		return "equal in every field", nil
	case slices.Contains(m.right.maybeCached, true) && len(differences(x.right, x.expected[fromRight])) > 0:
		return "documented difference: " + cachedDenial, nil
	case documented[x.cause] != "":
		return "documented difference: " + x.cause, nil
	}
	return "an undocumented difference", fields
}

// unexpected returns the fields of the right answer that differ from the model, except those that a
// cached denial or another clock explains.
func (c *comparison) unexpected(x *exchange, m *model) []string {
	fields := differences(x.right, x.expected[fromRight])
	if !c.rightRules.hasOwnCounters {
		fields = x.withoutShared(fields)
	}
	return slices.DeleteFunc(fields, func(field string) bool {
		for i := range m.maybeCached {
			name, ok := strings.CutPrefix(field, fmt.Sprintf("statuses[%d].", i))
			if !ok {
				continue
			}
			got, want := x.right.response.Statuses[i], x.expected[fromRight].response.Statuses[i]
			window := windowSeconds[unitNames[want.CurrentLimit.GetUnit()]]
			isNewWindow := window > 0 && x.now%window <= cachedSeconds // the cached denial may be of the window before
			switch name {
			case "duration_until_reset.seconds":
				hasOtherEnd := c.hasOwnClock && m.unused[i]
				isRoundedUp := m.maybeCached[i] && got.DurationUntilReset.Seconds == want.DurationUntilReset.Seconds+1 // the deny cache rounds up
				return hasOtherEnd || isRoundedUp
			case "limit_remaining":
				return m.maybeCached[i] && (isNewWindow || got.LimitRemaining > want.LimitRemaining)
			case "code":
				return m.maybeCached[i] && (isNewWindow || got.Code == rls.RateLimitResponse_OK)
			}
			return false
		}
		if field == "dynamic_metadata" && slices.Contains(m.maybeCached, true) { // a cached denial may be of other limits
			return proto.Equal(withoutLimits(x.right), withoutLimits(x.expected[fromRight]))
		}
		isHeaderValue := strings.HasPrefix(field, "response_headers_to_add") && strings.HasSuffix(field, ".value")
		mayDiffer := slices.Contains(m.maybeCached, true) || c.hasOwnClock && slices.Contains(m.unused, true)
		return isHeaderValue && mayDiffer
	})
}

// withoutLimits returns the dynamic metadata of an answer without the metadata of limits.
func withoutLimits(a answer) *structpb.Struct {
	s := proto.CloneOf(a.response.DynamicMetadata)
	delete(s.GetFields(), "metadata")
	return s
}

// sendToBoth sends a request to both services at the same time, so that they nearly always decide
// in the same second.
func sendToBoth(left, right responder, request *rls.RateLimitRequest) (a, b answer) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		b = right.respond(request)
	}()
	a = left.respond(request)
	<-done
	return a, b
}

// The documented differences, as the output names them.
const (
	ownCounters     = "counters with equal names"
	deniedIsFree    = "a denied request charges nothing"
	repeatsTogether = "repeated descriptors are charged together"
	cachedDenial    = "a repeated denial has the numbers of the first"
	namedWeek       = "metadata have WEEK instead of the unit's number"
	fullHeaders     = "headers are sent although 4294967295 units are left"
	cleanMetadata   = "metadata are those of the files"
)

// documented has the words of docs/envoy-ratelimit.md that describe each difference.
var documented = map[string]string{
	ownCounters:     "has a counter of its own",
	deniedIsFree:    "a denied request",
	repeatsTogether: "both are charged together",
	cachedDenial:    "has the statuses at the time of the denial",
	namedWeek:       "names the unit of an override `WEEK`",
	fullHeaders:     "are sent even if 4294967295 units are left",
	cleanMetadata:   "has the `metadata` of the files",
}

// models predict the answers of both services.
type models struct {
	left, right *model

	// causes has an item for each counter whose value differs in the two models: the documented
	// difference that explains it. The key is the counter's name in the right model.
	causes map[string]string
}

// decide predicts both answers, and returns the documented difference that they may have. shared is
// the result of findShared.
func (m *models) decide(request *rls.RateLimitRequest, now int64, shared []bool) (expected [2]answer, cause string) {
	rights := m.right.findMatches(request)
	for i := range rights {
		if rights[i].hasCounter() && cause == "" {
			cause = m.causes[m.right.counterName(rights[i], request, i, now)]
		}
	}
	expected[fromLeft].response, expected[fromRight].response = m.left.decide(request, now), m.right.decide(request, now)
	switch rules := m.right.rules; {
	case rules.hasOwnCounters && slices.Contains(shared, true):
		cause = ownCounters
	case rules.isAtomic && (hasUsedUpLimit(expected[fromLeft].response) || hasUsedUpLimit(expected[fromRight].response)):
		cause = deniedIsFree
	case rules.isAtomic && m.right.hasRepetition(rights, request, now):
		cause = repeatsTogether
	case rules.hasWeekNames && m.right.settings.hasMetadata && hasWeekOverride(request):
		cause = namedWeek
	case rules.hasAllHeaders && len(expected[fromLeft].response.ResponseHeadersToAdd) == 0 && len(expected[fromRight].response.ResponseHeadersToAdd) > 0:
		cause = fullHeaders
	case rules.hasCleanMetadata && slices.Contains(differences(expected[fromLeft], expected[fromRight]), "dynamic_metadata"):
		cause = cleanMetadata
	}
	for i := range rights {
		m.recordCause(rights[i], request, i, now, cause)
	}
	return expected, cause
}

func (m *models) recordCause(match match, request *rls.RateLimitRequest, i int, now int64, cause string) {
	if !match.hasCounter() {
		return
	}
	name := m.right.counterName(match, request, i, now)
	if m.causes[name] == "" && m.left.counters[m.left.counterName(match, request, i, now)] != m.right.counters[name] {
		m.causes[name] = cause
	}
}

func hasWeekOverride(request *rls.RateLimitRequest) bool {
	return slices.ContainsFunc(request.Descriptors, func(d *ratelimitv3.RateLimitDescriptor) bool { return unitNames[d.GetLimit().GetUnit()] == "WEEK" })
}

// hasUsedUpLimit reports whether a limit that applies has no units left. Limits with shadow_mode or
// quota_mode count too.
func hasUsedUpLimit(response *rls.RateLimitResponse) bool {
	return slices.ContainsFunc(response.Statuses, func(s *rls.RateLimitResponse_DescriptorStatus) bool {
		return s.CurrentLimit != nil && s.LimitRemaining == 0
	})
}

func (m *model) hasRepetition(matches []match, request *rls.RateLimitRequest, now int64) bool {
	seen := make(map[string]bool)
	for i, match := range matches {
		if !match.hasCounter() {
			continue
		}
		name := m.counterName(match, request, i, now)
		if seen[name] {
			return true
		}
		seen[name] = true
	}
	return false
}

// straddles reports whether the services may have counted a request in different windows, if one of
// them decided in the second before and the other in the second after.
func (m *model) straddles(request *rls.RateLimitRequest, before, after int64) bool {
	for _, match := range m.findMatches(request) {
		if match.hasCounter() {
			if window := windowSeconds[match.limit.unit]; before/window != after/window {
				return true
			}
		}
	}
	return false
}

// report prints the n-th request of a domain, which is a mismatch, with the flags that replay it.
// text is the file of the domain, and fields are the fields that differ.
func (c *comparison) report(outcome string, number, n int, text string, x exchange, fields []string) {
	c.mismatches++
	c.tally.add(outcome, 1)
	if c.onlyDomain >= 0 && c.mismatches == 1 {
		fmt.Fprintf(c.out, "\n%s", text)
	}
	fmt.Fprintf(c.out, "\n%s: request %d of configuration %d, in second %d: %v\nreplay:   -seed %d -domain %d\nrequest:  %v\nleft:     %v\nexpected: %v\nright:    %v\nexpected: %v\n",
		outcome, n, number, x.now, fields, c.seed, number, x.request, x.left, x.expected[fromLeft], x.right, x.expected[fromRight])
}

// kinds are the kinds of requests and descriptors. A run needs at least one of each.
var kinds = []string{
	"no limit", "within the limit", "over the limit", "limit of 0", "unlimited", "replaced", "shadow_mode over the limit", "quota_mode over the limit",
	"share_threshold", "override of the limit", "hits of the descriptor", "hits of 0", "no entries", "unknown domain", "a descriptor twice", "nested", "metadata of limits",
	"SECOND", "MINUTE", "HOUR", "DAY", "WEEK", "MONTH", "YEAR",
}

func (c *comparison) countKinds(request *rls.RateLimitRequest, matches []match, response *rls.RateLimitResponse) {
	seen := make(map[string]bool)
	countIf := func(isOfKind bool, kind string) {
		if isOfKind {
			c.kindCounts.add(kind, 1)
		}
	}
	for i, m := range matches {
		d, status := request.Descriptors[i], response.Statuses[i]
		isFull := m.hasCounter() && status.LimitRemaining == 0
		countIf(m.limit == nil, "no limit")
		countIf(m.hasCounter() && !isFull, "within the limit")
		countIf(status.Code == rls.RateLimitResponse_OVER_LIMIT, "over the limit")
		countIf(isFull && m.limit.count == 0, "limit of 0")
		countIf(m.isUnlimited, "unlimited")
		countIf(m.isReplaced, "replaced")
		countIf(isFull && m.isShadow, "shadow_mode over the limit")
		countIf(m.isQuota && status.Code == rls.RateLimitResponse_OVER_LIMIT, "quota_mode over the limit")
		countIf(m.hasCounter() && strings.Join(m.patterns, "") != "", "share_threshold")
		countIf(m.isOverride, "override of the limit")
		countIf(m.hasCounter() && d.HitsAddend != nil, "hits of the descriptor")
		countIf(m.hasCounter() && d.HitsAddend != nil && d.HitsAddend.Value == 0, "hits of 0")
		countIf(len(d.Entries) == 0, "no entries")
		countIf(seen[fmt.Sprint(d)], "a descriptor twice")
		countIf(m.hasCounter() && len(d.Entries) > 1 && !m.isOverride, "nested")
		if m.hasCounter() {
			c.kindCounts.add(m.limit.unit, 1)
		}
		seen[fmt.Sprint(d)] = true
	}
	countIf(strings.HasSuffix(request.Domain, "-unknown"), "unknown domain")
	countIf(response.DynamicMetadata.GetFields()["metadata"] != nil, "metadata of limits")
}

func (c *comparison) missingKinds() (missing []string) {
	for _, kind := range kinds {
		if c.kindCounts.counts[kind] == 0 {
			missing = append(missing, kind)
		}
	}
	return missing
}
