package httplimit

import (
	"net/http"
	"time"

	"github.com/penstock/penstock"
)

// decideFirst charges the rules with before_auth. If they deny, it answers the request and returns
// false. What they grant stays charged. Their limits are in no header.
func (a *Admission) decideFirst(w http.ResponseWriter, s *setup) bool {
	a.question.Context = a.Request.Context()
	start := time.Now()
	d, err := a.gate.store.Decide(&a.question, a.verdict.Charges)
	latency := time.Since(start)
	if err != nil {
		if !a.undecided(w, s, err, latency) {
			return false
		}
	} else if a.Decision, a.limited = d, true; !d.Allowed {
		a.denied(w, s, latency)
		return false
	}
	a.Decision, a.limited = penstock.Decision{}, false
	return true
}
