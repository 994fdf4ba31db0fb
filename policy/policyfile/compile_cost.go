package policyfile

import (
	"cmp"
	"net/textproto"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/algorithm"
	"github.com/penstock/penstock/internal/wording"
	"github.com/penstock/penstock/policy"
)

// compileCosts compiles the cost of a request.
func (c *compiler) compileCosts(l *policy.Limit, config *LimitConfig) {
	k := &config.Cost
	l.Cost = policy.Cost{Units: 1, Body: int64(k.Body), Min: 1, Max: penstock.MaxCost}
	ways := 0
	for _, isSet := range []bool{k.Units != nil, k.Methods != nil, k.Header != "", k.Body != 0} {
		if isSet {
			ways++
		}
	}
	if ways > 1 {
		c.fail(k, "the cost has %d of units, methods, header and body; keep one of units, methods, header and body", ways)
	}
	if k.Units != nil {
		l.Cost.Units = c.checkUnits(k.Units, *k.Units)
	}
	if k.Methods != nil {
		if len(k.Methods) == 0 {
			c.fail(&k.Methods, "no method is named; write the cost of each, as in {POST: 5, default: 1}")
		}
		l.Cost.Methods = make(map[string]int64)
		for i := range k.Methods {
			e := &k.Methods[i]
			n := c.checkUnits(&e.Value, e.Value)
			if e.Name == "default" {
				l.Cost.Units = n
				continue
			}
			name := strings.ToUpper(e.Name)
			c.checkMethod(&e.Name, name)
			if _, twice := l.Cost.Methods[name]; twice && name != e.Name {
				c.fail(&e.Name, "the cost of %s occurs twice; keep one", wording.Clip(name))
			}
			l.Cost.Methods[name] = n
		}
	}
	if c.isWritten(&k.Min) || k.Min != 0 {
		l.Cost.Min = c.checkUnits(&k.Min, k.Min)
	}
	if k.Max != 0 {
		l.Cost.Max = c.checkUnits(&k.Max, k.Max)
	}
	c.compileCostFields(l, k)
	if config.InFlight.isSet() && c.isWritten(k) {
		c.fail(k, "in_flight counts each request as one; remove cost")
	}
	c.checkCost(l, k, c.orWritten(config, k))
}

func (c *compiler) checkUnits(p any, n int64) int64 {
	if n < 0 || n > penstock.MaxCost {
		c.fail(p, "a cost of %d is not possible; write 0 to %d", n, int64(penstock.MaxCost))
		return 1
	}
	return n
}

func (c *compiler) compileCostFields(l *policy.Limit, k *CostConfig) {
	switch {
	case k.Header != "" && !policy.IsToken(k.Header):
		c.fail(&k.Header, "%q cannot be the name of a header; use letters, digits and -", wording.Clip(k.Header))
	case k.Header != "" && !c.isWritten(&k.Max) && k.Max == 0:
		c.fail(&k.Header, "clients control the header, so its cost needs an upper bound; add max:")
	case k.Header != "" && k.Max < 1:
		c.fail(&k.Max, "max is %d; write the upper bound for the header", k.Max)
	case k.Header == "" && !c.isWritten(&k.Header) && (k.Max != 0 || c.isWritten(&k.Max)):
		c.fail(&k.Max, "max belongs to header; remove it")
	case k.Header == "" && k.Body == 0 && !c.isWritten(&k.Header) && !c.isWritten(&k.Body) && (k.Min != 0 || c.isWritten(&k.Min)):
		c.fail(&k.Min, "min belongs to header and body; remove it")
	case l.Cost.Min > l.Cost.Max:
		c.fail(&k.Max, "max is %d and min is %d; max must be larger", l.Cost.Max, l.Cost.Min)
	}
	if k.Body < 0 {
		c.fail(&k.Body, "the size is %d; write the number of bytes for one unit, as in 64KB", k.Body)
	}
	l.Cost.Header = textproto.CanonicalMIMEHeaderKey(k.Header)
	if k.Actual != "" {
		if !policy.IsToken(k.Actual) {
			c.fail(&k.Actual, "%q cannot be the name of a header; use letters, digits and -", wording.Clip(k.Actual))
		}
		l.CostHeader, l.Adjustable = textproto.CanonicalMIMEHeaderKey(k.Actual), true
	}
}

// checkCost reports a fixed cost that the limit can never admit.
func (c *compiler) checkCost(l *policy.Limit, k *CostConfig, at any) {
	for i := range l.Variants {
		most := l.Variants[i].Capacity()
		worst := l.Cost.Units
		if k.Header != "" || k.Body != 0 {
			worst = l.Cost.Min
		}
		for _, n := range l.Cost.Methods {
			worst = max(worst, n)
		}
		if worst > most {
			who := "the limit"
			switch at.(type) {
			case *CandidateConfig:
				who = "the candidate"
			case *string:
				who = "the ceiling"
			}
			c.fail(at, "a request costs up to %d and %s admits at most %d at once, so it would always be denied; raise the limit or its burst, or lower the cost", worst, who, most)
			return
		}
	}
}

var statusForm = regexp.MustCompile(`^(?:([1-5])[xX]{2}|([1-5][0-9][0-9])(?:-([1-5][0-9][0-9]))?)$`)

// compileOutcomes compiles on_status.
func (c *compiler) compileOutcomes(l *policy.Limit, config *LimitConfig) {
	if len(config.OnStatus) > 0 {
		l.Status = new(policy.Statuses)
	}
	for i := range config.OnStatus {
		m := statusForm.FindStringSubmatch(config.OnStatus[i])
		if m == nil {
			c.fail(&config.OnStatus[i], "%q is not a status; write 401, 5xx or 400-499", wording.Clip(config.OnStatus[i]))
			continue
		}
		if m[1] != "" {
			from, _ := strconv.Atoi(m[1])
			l.Status.Add(100*from, 100*from+99)
			continue
		}
		from, _ := strconv.Atoi(m[2])
		to, _ := strconv.Atoi(cmp.Or(m[3], m[2]))
		if to < from {
			c.fail(&config.OnStatus[i], "%q ends before it begins; write the smaller status first", config.OnStatus[i])
			continue
		}
		l.Status.Add(from, to)
	}
	if l.Status == nil && !l.Adjustable || len(l.Variants) == 0 {
		return
	}
	if a := l.Variants[0].Algorithm(); !a.CanRefund() {
		at := c.orWritten(config, &config.OnStatus)
		if l.Status == nil {
			at = c.orWritten(config, &config.Cost.Actual)
		}
		c.fail(at, "%s cannot refund a charge, so on_status and cost.actual are not possible; use token-bucket or a window", a.Title())
	}
}

func (c *compiler) checkPatience(l *policy.Limit, config *LimitConfig) {
	if len(l.Variants) == 0 {
		return
	}
	if config.MaxWait == 0 {
		if f := l.Variants[0]; f.Algorithm().BurstUse() == algorithm.BurstIsQueue && f.Limit().Burst > 0 {
			c.warn(config, "the queue of limit %s is never used, because no request waits; add how long one may wait, as in max_wait: 2s", l.Name)
		}
		return
	}
	most := maxPatience(l)
	switch {
	case most == 0:
		c.fail(&config.MaxWait, "a request can wait for its turn only with token-bucket and leaky-bucket; remove max_wait, or change the algorithm")
		return
	case l.Variants[0].Algorithm().BurstUse() == algorithm.BurstIsQueue && l.Variants[0].Limit().Burst == 0:
		c.fail(&config.MaxWait, "the leaky bucket has no places for requests that wait; add some, as in burst: 10")
		return
	case config.MaxWait > most:
		c.fail(&config.MaxWait, "at this rate a request can wait %s at most; shorten max_wait", wording.Period(most.Truncate(time.Millisecond)))
		return
	}
	if l.Status != nil {
		c.fail(&config.MaxWait, "a limit with on_status cannot make requests wait; remove max_wait or on_status")
	}
}
