package load

import (
	"math"
	"time"

	"github.com/dunglas/httpsfv"

	"github.com/penstock/penstock"
)

// A policy is a limit that an answer states in RateLimit-Policy.
type policy struct {
	name  string
	bound Bound
}

// A Bound is the most that a limit admits in any time: Burst, and Rate more per second.
type Bound struct {
	Burst float64 `json:"burst"`
	Rate  float64 `json:"rate_per_second"`
}

func (b Bound) within(d time.Duration) float64 { return b.Burst + b.Rate*d.Seconds() }

// parsePolicies reads the field RateLimit-Policy of the current draft: "name";q=20;w=2. The field
// does not name the algorithm, and the w of a bucket is rounded up. So its bound is that of a fixed
// window, or of the fastest bucket: twice q, and q for each w-1 seconds. A policy without such a
// bound is left out.
func parsePolicies(text string) (all []policy) {
	list, err := httpsfv.UnmarshalList([]string{text})
	if err != nil {
		return nil
	}
	for _, member := range list {
		item, ok := member.(httpsfv.Item)
		if !ok {
			continue
		}
		name, isName := item.Value.(string)
		quota, hasQuota := parameter(item.Params, "q").(int64)
		window, hasWindow := parameter(item.Params, "w").(int64)
		if isName && len(name) <= maxName && hasQuota && hasWindow && window > 1 && parameter(item.Params, "qu") == nil && len(all) < maxPolicies {
			all = append(all, policy{name, Bound{2 * float64(quota), float64(quota) / float64(window-1)}})
		}
	}
	return all
}

// parameter returns a parameter, or nil if there is none.
func parameter(p *httpsfv.Params, name string) any {
	value, _ := p.Get(name)
	return value
}

const (
	maxPolicies = 16        // of one answer, and of a LimitReport
	maxTexts    = 100       // with policies that a judge keeps
	maxName     = 128       // bytes of a policy's name
	maxStates   = 1_000_000 // of a judge
)

// A judge finds out whether clients were admitted more often than their limit allows. It never
// accuses a server that is right: the server admits a request between the times at which it was
// sent and answered, so the judge counts only requests that were sent and answered within one
// interval.
type judge struct {
	limit    *Bound              // given by the user; nil: what the answers state
	policies map[string][]policy // by the text that states them, which is nearly always the same
	states   map[counter]*state
	missed   int64 // admitted requests of further counters
}

// A counter is what a limit counts separately.
type counter struct {
	client int64
	target int
	policy string
}

// A state is what a counter has admitted since it was last full.
type state struct {
	bound    Bound
	level    float64       // used units, if each were admitted when its answer came
	earliest time.Duration // when the first of the requests was sent
	last     time.Duration // when the last answer came
	admitted int64
	excess   Excess // the largest one
}

// An Excess is an interval in which a client was admitted more often than the limit allows.
type Excess struct {
	Client   int64   `json:"client"`
	Policy   string  `json:"policy"` // "" is the given limit
	Admitted int64   `json:"admitted"`
	Seconds  float64 `json:"seconds"`
	Bound    float64 `json:"bound"` // the most that the limit allows in this time
}

func (e *Excess) size() float64 { return float64(e.Admitted) - e.Bound }

// clockMargin is how much faster the clock of the server may be than that of the client.
const clockMargin = 1.001

func newJudge(limit *penstock.Plan) judge {
	j := judge{states: make(map[counter]*state), policies: make(map[string][]policy)}
	if limit != nil {
		l := limit.Limit()
		j.limit = &Bound{float64(limit.Capacity()), float64(l.Count) / l.Period.Seconds()}
	}
	return j
}

// admit counts a request that was admitted.
func (j *judge) admit(s *sample) {
	if j.limit != nil {
		j.count(counter{s.client, s.target, ""}, *j.limit, s)
		return
	}
	text := s.answer.Policies
	policies, isKnown := j.policies[text]
	if !isKnown {
		policies = parsePolicies(text)
		if len(j.policies) < maxTexts {
			j.policies[text] = policies
		}
	}
	for _, p := range policies {
		j.count(counter{s.client, s.target, p.name}, p.bound, s)
	}
}

func (j *judge) count(c counter, bound Bound, r *sample) {
	s := j.states[c]
	if s == nil {
		if len(j.states) == maxStates {
			j.missed++
			return
		}
		s = &state{bound: bound, last: r.received}
		j.states[c] = s
	}
	s.bound = Bound{max(s.bound.Burst, bound.Burst), max(s.bound.Rate, bound.Rate)} // a client may change its tier
	s.level -= s.bound.Rate * max(r.received-s.last, 0).Seconds()
	if s.level <= 0 {
		s.level, s.admitted, s.earliest = 0, 0, r.sent
	}
	s.level++
	s.admitted++
	s.earliest, s.last = min(s.earliest, r.sent), max(s.last, r.received)
	length := s.last - s.earliest
	most := s.bound.within(time.Duration(float64(length) * clockMargin))
	if e := (Excess{c.client, c.policy, s.admitted, length.Seconds(), most}); e.size() > max(s.excess.size(), 0) {
		s.excess = e
	}
}

// A LimitReport says whether limits were kept.
type LimitReport struct {
	Bounds   map[string]Bound `json:"bounds"`     // by policy; "" is the given limit
	Counters int64            `json:"counters"`   // clients at each target and policy
	Over     int64            `json:"over"`       // counters that admitted too much
	Excess   int64            `json:"over_limit"` // requests that were admitted beyond the bounds
	Worst    *Excess          `json:"worst,omitempty"`
	Unjudged int64            `json:"unjudged"` // admitted requests that were not judged, because there were too many clients
}

func (j *judge) report() *LimitReport {
	v := &LimitReport{Bounds: make(map[string]Bound), Counters: int64(len(j.states)), Unjudged: j.missed}
	for c, s := range j.states {
		if len(v.Bounds) < maxPolicies {
			v.Bounds[c.policy] = s.bound
		}
		if s.excess.Admitted == 0 {
			continue
		}
		v.Over++
		v.Excess += int64(math.Ceil(s.excess.size()))
		if v.Worst == nil || s.excess.size() > v.Worst.size() || s.excess.size() == v.Worst.size() && c.client < v.Worst.Client {
			v.Worst = &s.excess
		}
	}
	return v
}
