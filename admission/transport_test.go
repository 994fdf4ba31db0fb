package admission_test

import (
	"encoding/json"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"github.com/penstock/penstock/admission"
	"github.com/penstock/penstock/policy"
)

// A transport decides requests for services that describe them in JSON. Of an admitted request it
// keeps the Admission under the request's ID, until the service posts how the request ended.
type transport struct {
	controller *admission.Controller
	open       sync.Map // of *admission.Admission, by ID
}

type question struct {
	ID, Path, User string
	Ended          bool   // the request has been served, with:
	Status         int    // its status
	Cost           *int64 // its true cost, if that is known
}

type answer struct {
	Outcome, Error, Rule string
	Policies             []string
	RetryAfter           time.Duration
	Remaining            map[string]int64
}

func (t *transport) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var q question
	var reply answer
	if err := json.NewDecoder(r.Body).Decode(&q); err != nil {
		reply.Error = err.Error()
	} else if q.Ended {
		reply = t.end(q)
	} else {
		reply = t.admit(r, q)
	}
	json.NewEncoder(w).Encode(reply)
}

func (t *transport) admit(r *http.Request, q question) answer {
	a, outcome, err := t.controller.Admit(r.Context(), admission.Request{Attributes: attributes{q}})
	why := a.Rejection()
	reply := answer{Outcome: outcome.String(), Rule: why.Rule, Policies: why.Policies, RetryAfter: why.RetryAfter, Remaining: make(map[string]int64)}
	for _, s := range a.AppendVisible(nil) {
		reply.Remaining[s.Limit.Policy] = s.Status.Remaining
	}
	if err != nil {
		reply.Error = err.Error()
	}
	if outcome.IsAdmitted() {
		t.open.Store(q.ID, a)
	} else {
		a.Done(admission.Result{})
	}
	return reply
}

func (t *transport) end(q question) (reply answer) {
	if a, ok := t.open.LoadAndDelete(q.ID); ok {
		a := a.(*admission.Admission)
		if q.Cost != nil {
			if err := a.Settle(*q.Cost); err != nil {
				reply.Error = err.Error()
			}
		}
		a.Done(admission.Result{Status: q.Status})
	}
	return reply
}

// attributes are a question's.
type attributes struct{ question }

func (a attributes) Lookup(kind policy.Kind, name string) []string {
	switch {
	case kind == policy.KindHeader && name == "X-User" && a.User != "":
		return []string{a.User}
	case kind == policy.KindMethod:
		return []string{"POST"}
	case kind == policy.KindPath:
		return []string{a.question.Path}
	}
	return nil
}

func (a attributes) Address() (none netip.Addr) { return none }
func (a attributes) BodySize() int64            { return 0 }
