package main

import (
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"

	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
)

const (
	domainsPerStart   = 200 // configurations that the services load at once
	requestsPerDomain = 60
	reported          = 10 // mismatches that are printed; the run stops then
)

// An asker answers requests: a service, or a model in the tests of this program.
type asker interface {
	ask(request *rls.RateLimitRequest) answer
}

// A comparison asks two services the same.
type comparison struct {
	seed  uint64
	only  int // the number of the only domain to run; -1: all
	out   io.Writer
	clock clock

	// start starts both services with the domains, whose files are in the folder configs, and returns
	// how to stop them.
	start func(configs string, domains []*domain) (left, right asker, stop func(), err error)

	// explain names the documented difference that the fields are. "" if they are a mismatch.
	explain func(x exchange) string

	tally      tally
	met        tally // what the requests met
	mismatches int
}

// An exchange is a request and what both services answered in one second.
type exchange struct {
	request     *rls.RateLimitRequest
	now         int64
	left, right answer
	fields      []string // that differ
	expected    answer   // of the left service, by the model
	shared      []bool   // by descriptor: other entries or units have the same counter
}

// unshared leaves out the fields that shared counters change.
func (x *exchange) unshared(fields []string) []string {
	return slices.DeleteFunc(slices.Clone(fields), func(field string) bool {
		for i := range x.shared {
			if name, ok := strings.CutPrefix(field, fmt.Sprintf("statuses[%d].", i)); ok {
				return x.shared[i] && slices.Contains([]string{"code", "limit_remaining", "duration_until_reset"}, name)
			}
		}
		return field == "overall_code" && slices.Contains(x.shared, true)
	})
}

// run compares until so many exchanges were comparable.
func (c *comparison) run(requests int) error {
	for first := 0; c.tally.counts["compared"] < requests && c.mismatches < reported; first += domainsPerStart {
		if c.only >= 0 && (c.only < first || c.only >= first+domainsPerStart) {
			continue
		}
		if err := c.generation(first, requests); err != nil {
			return err
		}
		if c.only >= 0 {
			return nil
		}
	}
	return nil
}

// generation starts the services once, with the domains from first on.
func (c *comparison) generation(first, requests int) error {
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
	left, right, stop, err := c.start(configs, domains)
	if err != nil {
		return err
	}
	defer stop()
	for i, d := range domains {
		if c.only >= 0 && c.only != first+i {
			continue
		}
		if c.mismatches >= reported || c.tally.counts["compared"] >= requests {
			break
		}
		if err := c.episode(first+i, d, texts[i], sources[i], left, right); err != nil {
			return err
		}
	}
	return nil
}

// episode compares one domain.
func (c *comparison) episode(number int, d *domain, text string, r *rand.Rand, left, right asker) error {
	c.tally.add("configurations", 1)
	requests, m := &requester{random: r, domain: d}, newModel(d)
	for n := range requestsPerDomain {
		request := requests.next()
		if err := c.clock.advance(r); err != nil {
			return err
		}
		before := c.clock.now()
		a, b := both(left, right, request)
		after := c.clock.now()
		if before != after {
			c.tally.add("not comparable: not decided in one second", 1)
			if m.straddles(request, before, after) {
				c.tally.add("not comparable: a later request of a configuration whose counters may differ since", requestsPerDomain-1-n)
				return nil
			}
		}
		shared := m.shared(request, before)
		expected := answer{response: m.decide(request, before)}
		if before != after {
			continue
		}
		c.tally.add("compared", 1)
		c.note(request, m.find(request), expected.response)
		x := exchange{request, before, a, b, differences(a, b), expected, shared}
		if wrong := x.unshared(differences(a, expected)); len(wrong) > 0 {
			c.report("the model is wrong", number, n, text, x, wrong)
		}
		if len(x.fields) == 0 {
			c.tally.add("equal in every field", 1)
		} else if len(x.unshared(x.fields)) == 0 {
			c.tally.add("documented difference: counters with equal names", 1)
		} else if name := c.explain(x); name != "" {
			c.tally.add("documented difference: "+name, 1)
		} else {
			c.report("mismatch", number, n, text, x, x.fields)
		}
		if c.mismatches >= reported {
			return nil
		}
	}
	return nil
}

// kinds are what the requests of a run must meet, each at least once.
var kinds = []string{
	"no limit", "within the limit", "over the limit", "limit of 0", "unlimited", "replaced", "shadow_mode over the limit", "quota_mode over the limit",
	"share_threshold", "override of the limit", "hits of the descriptor", "hits of 0", "no entries", "unknown domain", "a descriptor twice", "nested",
	"SECOND", "MINUTE", "HOUR", "DAY", "WEEK", "MONTH", "YEAR",
}

// note counts what a request met.
func (c *comparison) note(request *rls.RateLimitRequest, matches []match, response *rls.RateLimitResponse) {
	seen := make(map[string]bool)
	when := func(is bool, kind string) {
		if is {
			c.met.add(kind, 1)
		}
	}
	for i, m := range matches {
		d, status := request.Descriptors[i], response.Statuses[i]
		isFull := m.counts() && status.LimitRemaining == 0
		when(m.limit == nil, "no limit")
		when(m.counts() && !isFull, "within the limit")
		when(status.Code == rls.RateLimitResponse_OVER_LIMIT, "over the limit")
		when(isFull && m.limit.count == 0, "limit of 0")
		when(m.isUnlimited, "unlimited")
		when(m.isReplaced, "replaced")
		when(isFull && m.shadow, "shadow_mode over the limit")
		when(isFull && m.quota && status.DurationUntilReset == nil, "quota_mode over the limit")
		when(m.counts() && strings.Join(m.patterns, "") != "", "share_threshold")
		when(m.isOverride, "override of the limit")
		when(m.counts() && d.HitsAddend != nil, "hits of the descriptor")
		when(m.counts() && d.HitsAddend != nil && d.HitsAddend.Value == 0, "hits of 0")
		when(len(d.Entries) == 0, "no entries")
		when(seen[fmt.Sprint(d)], "a descriptor twice")
		when(m.counts() && len(d.Entries) > 1 && !m.isOverride, "nested")
		if m.counts() {
			c.met.add(m.limit.unit, 1)
		}
		seen[fmt.Sprint(d)] = true
	}
	when(strings.HasSuffix(request.Domain, "-unknown"), "unknown domain")
}

// notMet are the kinds that no request has met.
func (c *comparison) notMet() (missing []string) {
	for _, kind := range kinds {
		if c.met.counts[kind] == 0 {
			missing = append(missing, kind)
		}
	}
	return missing
}

// both asks both services at once, so that both are likely to decide in one second.
func both(left, right asker, request *rls.RateLimitRequest) (a, b answer) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		b = right.ask(request)
	}()
	a = left.ask(request)
	<-done
	return a, b
}

// straddles tells whether a request that was decided between two seconds may have been counted in
// different windows.
func (m *model) straddles(request *rls.RateLimitRequest, before, after int64) bool {
	for _, match := range m.find(request) {
		if match.counts() {
			if window := seconds[match.limit.unit]; before/window != after/window {
				return true
			}
		}
	}
	return false
}

func (c *comparison) report(what string, number, n int, text string, x exchange, fields []string) {
	c.mismatches++
	c.tally.add(what, 1)
	if c.only >= 0 && c.mismatches == 1 {
		fmt.Fprintf(c.out, "\n%s", text)
	}
	fmt.Fprintf(c.out, "\n%s: request %d of configuration %d, in second %d: %v\nreplay:  -seed %d -domain %d\nrequest: %v\nleft:    %v\nright:   %v\nmodel:   %v\n",
		what, n, number, x.now, fields, c.seed, number, x.request, x.left, x.right, x.expected)
}
