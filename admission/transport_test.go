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

// A transport decides requests that services describe in JSON. It keeps the Admission of an
// admitted request until the service sends a second JSON request, with IsEnded and the same ID.
type transport struct {
	controller *admission.Controller
	admitted   sync.Map // from ID to *admission.Admission, until the request has ended
}

type jsonRequest struct {
	ID, Path, User string
	IsEnded        bool   // the request with this ID has been served
	Status         int    // if IsEnded: the status of the response
	Cost           *int64 // if IsEnded: the true cost, or nil if it is unknown
}

type jsonResponse struct {
	Outcome, Error, Rule string
	Policies             []string
	RetryAfter           time.Duration
	Remaining            map[string]int64
}

func (t *transport) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var q jsonRequest
	var reply jsonResponse
	if err := json.NewDecoder(r.Body).Decode(&q); err != nil {
		reply.Error = err.Error()
	} else if q.IsEnded {
		reply = t.end(q)
	} else {
		reply = t.admit(r, q)
	}
	json.NewEncoder(w).Encode(reply)
}

func (t *transport) admit(r *http.Request, q jsonRequest) jsonResponse {
	a, outcome, err := t.controller.Admit(r.Context(), admission.Request{Attributes: attributes{q}})
	why := a.Rejection()
	reply := jsonResponse{Outcome: outcome.String(), Rule: why.Rule, Policies: why.Policies, RetryAfter: why.RetryAfter, Remaining: make(map[string]int64)}
	for _, s := range a.AppendVisible(nil) {
		reply.Remaining[s.Limit.FullName] = s.Status.Remaining
	}
	if err != nil {
		reply.Error = err.Error()
	}
	if outcome.IsAdmitted() {
		t.admitted.Store(q.ID, a)
	} else {
		a.Done(admission.Result{})
	}
	return reply
}

func (t *transport) end(q jsonRequest) (reply jsonResponse) {
	if a, ok := t.admitted.LoadAndDelete(q.ID); ok {
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

// attributes implements policy.Attributes for a request in JSON.
type attributes struct{ jsonRequest }

func (a attributes) Lookup(kind policy.Kind, name string) []string {
	switch {
	case kind == policy.KindHeader && name == "X-User" && a.User != "":
		return []string{a.User}
	case kind == policy.KindMethod:
		return []string{"POST"}
	case kind == policy.KindPath:
		return []string{a.jsonRequest.Path}
	}
	return nil
}

func (a attributes) Address() (none netip.Addr)       { return none }
func (a attributes) HasHeader(func(string) bool) bool { return false }
func (a attributes) BodySize() int64                  { return 0 }
