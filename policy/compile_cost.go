package policy

import (
	"cmp"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/penstock/penstock"
)

// costs finds what a request costs.
func (c *compiler) costs(l *Limit, config *LimitConfig) {
	k := &config.Cost
	l.cost = cost{units: 1, min: 1, max: penstock.MaxCost}
	l.Actual, l.Body = "", int64(k.Body)
	ways := 0
	for _, way := range []bool{k.Units != nil, k.Methods != nil, k.Header != "", k.Body != 0} {
		if way {
			ways++
		}
	}
	if ways > 1 {
		c.fail(k, "the cost is told in %d ways; keep one of units, methods, header and body", ways)
	}
	if k.Units != nil {
		l.cost.units = c.units(k.Units, *k.Units)
	}
	if k.Methods != nil {
		if len(k.Methods) == 0 {
			c.fail(&k.Methods, "no method is named; write what each costs, as in {POST: 5, otherwise: 1}")
		}
		l.cost.methods = make(map[string]int64)
		for i := range k.Methods {
			e := &k.Methods[i]
			n := c.units(&e.Value, e.Value)
			if e.Name == "otherwise" {
				l.cost.units = n
				continue
			}
			name := strings.ToUpper(e.Name)
			c.method(&e.Name, name)
			if _, twice := l.cost.methods[name]; twice && name != e.Name {
				c.fail(&e.Name, "the cost of %s stands here twice; keep one", clip(name))
			}
			l.cost.methods[name] = n
		}
	}
	if c.written(&k.Min) || k.Min != 0 {
		l.cost.min = c.units(&k.Min, k.Min)
	}
	if k.Max != 0 {
		l.cost.max = c.units(&k.Max, k.Max)
	}
	c.costFields(l, k)
	if config.InFlight.set() && c.written(k) {
		c.fail(k, "in_flight counts requests, each as one; remove cost")
	}
	c.fits(l, k, c.orWritten(config, k))
}

func (c *compiler) units(p any, n int64) int64 {
	if n < 0 || n > penstock.MaxCost {
		c.fail(p, "a cost of %d is not possible; write 0 to %d", n, int64(penstock.MaxCost))
		return 1
	}
	return n
}

func (c *compiler) costFields(l *Limit, k *CostConfig) {
	switch {
	case k.Header != "" && !token(k.Header):
		c.fail(&k.Header, "%q cannot be the name of a header; use letters, digits and -", clip(k.Header))
	case k.Header != "" && !c.written(&k.Max) && k.Max == 0:
		c.fail(&k.Header, "callers choose what they write into a header, so its cost needs a bound; add max:")
	case k.Header != "" && k.Max < 1:
		c.fail(&k.Max, "max is %d; write the most that a header may cost", k.Max)
	case k.Header == "" && !c.written(&k.Header) && (k.Max != 0 || c.written(&k.Max)):
		c.fail(&k.Max, "max belongs to header; remove it")
	case k.Header == "" && k.Body == 0 && !c.written(&k.Header) && !c.written(&k.Body) && (k.Min != 0 || c.written(&k.Min)):
		c.fail(&k.Min, "min belongs to header and body; remove it")
	case l.cost.min > l.cost.max:
		c.fail(&k.Max, "max is %d and min is %d; max has to be the larger", l.cost.max, l.cost.min)
	}
	if k.Body < 0 {
		c.fail(&k.Body, "the size is %d; write for how many bytes one unit is charged, as in 64KB", k.Body)
	}
	l.cost.header = http.CanonicalHeaderKey(k.Header)
	if k.Actual != "" {
		if !token(k.Actual) {
			c.fail(&k.Actual, "%q cannot be the name of a header; use letters, digits and -", clip(k.Actual))
		}
		l.Actual, l.Settled = http.CanonicalHeaderKey(k.Actual), true
	}
}

// fits complains of a fixed cost that the limit could never admit.
func (c *compiler) fits(l *Limit, k *CostConfig, at any) {
	for i := range l.forms {
		plan, err := l.forms[i].Plan()
		if err != nil {
			continue // which has been told
		}
		most := plan.Capacity
		worst := l.cost.units
		if k.Header != "" || k.Body != 0 {
			worst = l.cost.min
		}
		for _, n := range l.cost.methods {
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

// outcomes reads on_status.
func (c *compiler) outcomes(l *Limit, config *LimitConfig) {
	if len(config.OnStatus) > 0 {
		l.Status = new(Statuses)
	}
	for i := range config.OnStatus {
		m := statusForm.FindStringSubmatch(config.OnStatus[i])
		if m == nil {
			c.fail(&config.OnStatus[i], "%q is not a status; write 401, 5xx or 400-499", clip(config.OnStatus[i]))
			continue
		}
		if m[1] != "" {
			from, _ := strconv.Atoi(m[1])
			l.Status.add(100*from, 100*from+99)
			continue
		}
		from, _ := strconv.Atoi(m[2])
		to, _ := strconv.Atoi(cmp.Or(m[3], m[2]))
		if to < from {
			c.fail(&config.OnStatus[i], "%q ends before it begins; write the smaller status first", config.OnStatus[i])
			continue
		}
		l.Status.add(from, to)
	}
	if l.Status == nil && !l.Settled || len(l.forms) == 0 {
		return
	}
	if a := l.forms[0].Algorithm; !givesBack(a) {
		at := c.orWritten(config, &config.OnStatus)
		if l.Status == nil {
			at = c.orWritten(config, &config.Cost.Actual)
		}
		c.fail(at, "%s cannot give back what turns out not to count, so on_status and cost.actual are not possible; use token-bucket or a window", a.Title)
	}
}

func (c *compiler) patience(l *Limit, config *LimitConfig) {
	if len(l.forms) == 0 {
		return
	}
	if config.Wait == 0 {
		if a := l.forms[0].Algorithm; a.Is(penstock.LeakyBucket) && l.forms[0].Burst > 0 {
			c.warn(config, "the queue of limit %s is never used, since no request waits; say how long one would, as in wait: 2s", l.Name)
		}
		return
	}
	most := l.maxPatience()
	switch {
	case most == 0:
		c.fail(&config.Wait, "a request can wait for its turn only with token-bucket and leaky-bucket; remove wait, or change the algorithm")
		return
	case l.forms[0].Algorithm.Is(penstock.LeakyBucket) && l.forms[0].Burst == 0:
		c.fail(&config.Wait, "the leaky bucket has no room for those who wait; say how many may, as in burst: 10")
		return
	case config.Wait > most:
		c.fail(&config.Wait, "at this rate a request can wait %s at most; shorten wait", period(most.Truncate(time.Millisecond)))
		return
	}
	if l.Status != nil {
		c.fail(&config.Wait, "a limit that counts only some answers cannot make requests wait; remove wait or on_status")
	}
}
