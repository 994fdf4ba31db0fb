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
	"github.com/penstock/penstock/internal/fieldvalues"
	"github.com/penstock/penstock/internal/syntax"
	"github.com/penstock/penstock/internal/wording"
	"github.com/penstock/penstock/policy"
)

func (c *compiler) compileCosts(l *policy.Limit, config *limitConfig) {
	cost := &config.Cost
	l.Cost = policy.Cost{Units: 1, Body: int64(cost.Body), Min: 1, Max: penstock.MaxCost}
	fieldCount := 0
	for _, isSet := range []bool{cost.Units != nil, cost.Methods != nil, cost.Header != "", cost.Body != 0} {
		if isSet {
			fieldCount++
		}
	}
	if fieldCount > 1 {
		c.fail(cost, "the cost has %d of the fields units, methods, header and body; keep one of them", fieldCount)
	}
	if cost.Units != nil {
		l.Cost.Units = c.checkUnits(cost.Units, *cost.Units)
	}
	if cost.Methods != nil {
		c.compileMethodCosts(l, cost)
	}
	if c.isWritten(&cost.Min) || cost.Min != 0 {
		l.Cost.Min = c.checkUnits(&cost.Min, cost.Min)
	}
	if cost.Max != 0 {
		l.Cost.Max = c.checkUnits(&cost.Max, cost.Max)
	}
	c.compileCostFields(l, cost)
	if config.InFlight.isSet() && c.isWritten(cost) {
		c.fail(cost, "in_flight counts each request as one; remove cost")
	}
	c.checkCost(l, cost, c.placeOf(config, cost), "the limit")
}

func (c *compiler) compileMethodCosts(l *policy.Limit, cost *costConfig) {
	if len(cost.Methods) == 0 {
		c.fail(&cost.Methods, "no method is named; write the cost of each, as in {POST: 5, default: 1}")
	}
	l.Cost.Methods = make(map[string]int64)
	for i := range cost.Methods {
		e := &cost.Methods[i]
		units := c.checkUnits(&e.Value, e.Value)
		if e.Name == "default" {
			l.Cost.Units = units
			continue
		}
		name := strings.ToUpper(e.Name)
		c.checkMethod(&e.Name, name)
		if _, isRepeated := l.Cost.Methods[name]; isRepeated && name != e.Name {
			c.fail(&e.Name, "the cost of %s occurs twice; keep one", wording.Clip(name))
		}
		l.Cost.Methods[name] = units
	}
}

// checkUnits returns a cost if this cost is possible. If it is not, checkUnits reports a mistake,
// and returns 1.
func (c *compiler) checkUnits(p any, n int64) int64 {
	if !fieldvalues.CostUnits.Has(n) {
		c.fail(p, "a cost of %d is not possible; write %v", n, fieldvalues.CostUnits)
		return 1
	}
	return n
}

// compileCostFields checks header, body, min and max, and compiles header and actual.
func (c *compiler) compileCostFields(l *policy.Limit, cost *costConfig) {
	hasHeader := cost.Header != ""
	hasMax, hasMin := cost.Max != 0 || c.isWritten(&cost.Max), cost.Min != 0 || c.isWritten(&cost.Min)
	// A header or a body may be written with a mistake, which is reported elsewhere.
	mayHaveHeader := hasHeader || c.isWritten(&cost.Header)
	mayHaveBody := cost.Body != 0 || c.isWritten(&cost.Body)
	switch {
	case hasHeader && !syntax.IsToken(cost.Header):
		c.fail(&cost.Header, "%q cannot be the name of a header; use letters, digits and -", wording.Clip(cost.Header))
	case hasHeader && !hasMax:
		c.fail(&cost.Header, "clients control the header, so its cost needs an upper bound; add max:")
	case hasHeader && cost.Max < 1:
		c.fail(&cost.Max, "max is %d; write the upper bound for the header", cost.Max)
	case !mayHaveHeader && hasMax:
		c.fail(&cost.Max, "max belongs to header; remove it")
	case !mayHaveHeader && !mayHaveBody && hasMin:
		c.fail(&cost.Min, "min belongs to header and body; remove it")
	case l.Cost.Min > l.Cost.Max:
		c.fail(&cost.Max, "max is %d and min is %d; raise max, or lower min", l.Cost.Max, l.Cost.Min)
	}
	if cost.Body < 0 {
		c.fail(&cost.Body, "the size is %d; write the number of bytes for one unit, as in 64KB", cost.Body)
	}
	// Cost.Header is a header of the request, and CostHeader is one of the response.
	l.Cost.Header = textproto.CanonicalMIMEHeaderKey(cost.Header)
	if cost.Actual != "" {
		if !syntax.IsToken(cost.Actual) {
			c.fail(&cost.Actual, "%q cannot be the name of a header; use letters, digits and -", wording.Clip(cost.Actual))
		}
		l.CostHeader, l.Adjustable = textproto.CanonicalMIMEHeaderKey(cost.Actual), true
	}
}

// checkCost reports a cost that the limit can never admit. The parameter what names the limit in
// the message: the limit itself, its candidate or its ceiling.
func (c *compiler) checkCost(l *policy.Limit, cost *costConfig, at any, what string) {
	// The largest cost that is certain: that of a method, or the least by a header or a body.
	certainCost := l.Cost.Units
	if cost.Header != "" || cost.Body != 0 {
		certainCost = l.Cost.Min
	}
	for _, units := range l.Cost.Methods {
		certainCost = max(certainCost, units)
	}
	for i := range l.Variants {
		if capacity := l.Variants[i].Capacity(); certainCost > capacity {
			c.fail(at, "a request costs up to %d and %s admits at most %d at once, so it would always be denied; raise the limit or its burst, or lower the cost", certainCost, what, capacity)
			return
		}
	}
}

// statusForm matches 5xx, 401 and 400-499. The groups are the class, the first and the last status.
var statusForm = regexp.MustCompile(`^(?:([1-5])[xX]{2}|([1-5][0-9][0-9])(?:-([1-5][0-9][0-9]))?)$`)

func (c *compiler) compileOnStatus(l *policy.Limit, config *limitConfig) {
	if len(config.OnStatus) > 0 {
		l.Status = new(policy.Statuses)
	}
	for i := range config.OnStatus {
		m := statusForm.FindStringSubmatch(config.OnStatus[i])
		if m == nil {
			c.fail(&config.OnStatus[i], "%q is not a status; write 401, 5xx or 400-499", wording.Clip(config.OnStatus[i]))
			continue
		}
		classText, firstText, lastText := m[1], m[2], m[3]
		if classText != "" {
			class, _ := strconv.Atoi(classText)
			l.Status.Add(100*class, 100*class+99)
			continue
		}
		from, _ := strconv.Atoi(firstText)
		to, _ := strconv.Atoi(cmp.Or(lastText, firstText))
		if to < from {
			c.fail(&config.OnStatus[i], "%q ends before it begins; write the smaller status first", config.OnStatus[i])
			continue
		}
		l.Status.Add(from, to)
	}
	if l.Status != nil && config.CountDenied {
		c.fail(&config.CountDenied, countsNoResponse)
	}
	refunds := l.Status != nil || l.Adjustable
	if !refunds || len(l.Variants) == 0 {
		return
	}
	if a := l.Variants[0].Algorithm(); !a.CanRefund() {
		at := c.placeOf(config, &config.OnStatus)
		if l.Status == nil {
			at = c.placeOf(config, &config.Cost.Actual)
		}
		c.fail(at, "%s cannot refund a charge, so on_status and cost.actual are not possible; use token-bucket or a window", a.Title())
	}
}

const countsNoResponse = "on_status counts requests by their responses, and a denied request has no response; remove count_denied or on_status"

func (c *compiler) checkPatience(l *policy.Limit, config *limitConfig) {
	if len(l.Variants) == 0 {
		return
	}
	if config.MaxWait == 0 {
		if plan := l.Variants[0]; plan.Algorithm().BurstUse() == algorithm.BurstIsQueue && plan.Limit().Burst > 0 {
			c.warn(config, "the queue of limit %s is never used, because no request waits; add how long one may wait, as in max_wait: 2s", l.Name)
		}
		return
	}
	most := maxPatience(l)
	switch {
	case most == 0:
		c.fail(&config.MaxWait, "%s cannot make a request wait for its turn; remove max_wait, or use token-bucket or leaky-bucket", l.Variants[0].Algorithm().Title())
		return
	case l.Variants[0].Algorithm().BurstUse() == algorithm.BurstIsQueue && l.Variants[0].Limit().Burst == 0:
		c.fail(&config.MaxWait, "%s has no places for requests that wait; add some, as in burst: 10", l.Variants[0].Algorithm().Title())
		return
	case config.MaxWait > most:
		c.fail(&config.MaxWait, "at this rate a request can wait %s at most; shorten max_wait", wording.Period(most.Truncate(time.Millisecond)))
		return
	}
	if l.Status != nil {
		c.fail(&config.MaxWait, "a limit with on_status cannot make requests wait; remove max_wait or on_status")
	}
}
