package resplimit

import (
	"context"
	"strconv"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/admission"
)

// addNamedJob adds the job of PENSTOCK.CHECK rule key [cost].
func (c *client) addNamedJob(b *batch, args [][]byte) {
	cost := int64(1)
	switch {
	case c.server.controller == nil:
		c.fail(b, "ERR this server has no policy; use CL.THROTTLE")
		return
	case len(args) != 3 && len(args) != 4:
		c.fail(b, "ERR wrong number of arguments; write PENSTOCK.CHECK rule key [cost]")
		return
	case len(args) == 4:
		n, err := strconv.ParseInt(string(args[3]), 10, 64)
		if err != nil {
			c.fail(b, errNotInteger)
			return
		}
		cost = n
	}
	j := b.add(namedCheck, string(args[2]))
	j.rule, j.cost = string(args[1]), cost
}

// A checkAnswer is what PENSTOCK.CHECK replies: the numbers of CL.THROTTLE for the strictest limit,
// the outcome, and the name of that limit.
type checkAnswer struct {
	throttleReply
	outcome admission.Outcome
	limit   string
}

func (a checkAnswer) answer(r *reply) {
	r.array(7)
	a.throttleReply.answer(r)
	r.bulk(a.outcome.String())
	r.bulk(a.limit)
}

// unlimitedReply are the numbers of a rule without limits.
var unlimitedReply = throttleReply{limit: -1, remaining: -1, retryAfter: -1}

func (s *Server) check(j *job) {
	a, outcome, err := s.controller.AdmitRule(s.ctx, admission.RuleCall{
		Rule: j.rule, Key: j.key, Cost: j.cost, RequestOptions: admission.RequestOptions{Peek: j.cost == 0},
	})
	defer a.Done(admission.Result{})
	j.err = err
	if outcome == admission.Abandoned {
		j.err = context.Canceled
	}
	j.check = checkAnswer{throttleReply: unlimitedReply, outcome: outcome}
	l := a.Strictest()
	if l == nil {
		return
	}
	d, _ := a.Decision()
	status := d.Status(d.Strictest())
	status.RetryAfter = a.Rejection().RetryAfter
	source := d.Source
	if outcome == admission.FailedOpen {
		source = penstock.FromOpen
	}
	j.check.limit = l.FullName
	j.check.throttleReply = newThrottleReply(outcome.IsAdmitted(), source, status, l.Variants[len(l.Variants)-1].Capacity())
}
