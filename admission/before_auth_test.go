package admission_test

import (
	"encoding/base64"
	"fmt"
	"slices"
	"testing"

	"github.com/penstock/penstock/admission"
	"github.com/penstock/penstock/policy"
)

// forged has attributes with a forged token. Each request has a token of its own, because checks of
// signatures are cached. Rules with before_auth are decided separately only if a signature must be
// checked.
type forged struct{ attributes }

func (f forged) Lookup(kind policy.Kind, name string) []string {
	if kind == policy.KindHeader && name == "Authorization" {
		b64 := base64.RawURLEncoding.EncodeToString
		return []string{"Bearer " + b64([]byte(`{"alg":"HS256"}`)) + "." + b64([]byte(`{"sub":"`+f.User+`"}`)) + ".AAAA"}
	}
	return f.attributes.Lookup(kind, name)
}

func TestClientsDoNotSeeWhatIsChargedBeforeAuth(t *testing.T) {
	c, seen := memoryControllerOf(t, `
tokens: {secret: 0123456789abcdef0123456789abcdef, audience: api}
rules:
  - {name: flood, before_auth: true, per: global, limits: [{rate: 2/h, headers: true}]}
  - {name: api, match: {path: /api}, per: {first_of: [{user: claim sub}, global]}, limits: [{rate: 9/h, headers: true}]}
  - {name: vip, match: {path: /vip, claim plan: vip}, per: global, limits: [{rate: 9/h, headers: true}]}
`)
	tokens := 0
	decide := func(path string, isPeek bool) (*admission.Admission, admission.Outcome) {
		tokens++
		attributes := forged{attributes{jsonRequest{Path: path, User: fmt.Sprint(tokens)}}}
		a, outcome, err := c.Admit(t.Context(), admission.Request{Attributes: attributes, RequestOptions: admission.RequestOptions{Peek: isPeek}})
		if err != nil {
			t.Errorf("the request for %s has the error %v; want none", path, err)
		}
		return a, outcome
	}
	peek := func(path string) (*admission.Admission, admission.Outcome) { return decide(path, true) }
	admit := func(path string) (*admission.Admission, admission.Outcome) { return decide(path, false) }
	for path, visible := range map[string][]string{"/vip": nil, "/api": {"api.hour"}} {
		for range 5 {
			a, outcome := peek(path)
			if !outcome.IsAdmitted() {
				t.Fatalf("%s: a peek is %v; want it admitted", path, outcome)
			}
			a.Done(admission.Result{})
		}
		a, outcome := admit(path)
		var got []string
		for _, s := range a.AppendVisible(nil) {
			got = append(got, s.Limit.FullName)
		}
		if _, isLimited := a.Decision(); !outcome.IsAdmitted() || isLimited != (visible != nil) || !slices.Equal(got, visible) {
			t.Errorf("the request for %s is %v, has a decision: %t, and its visible limits are %v; want it admitted, with the visible limits %v, and a decision only if there are some", path, outcome, isLimited, got, visible)
		}
		a.Done(admission.Result{})
	}
	a, outcome := admit("/api")
	if why := a.Rejection(); outcome != admission.Denied || why.Rule != "flood" || why.RetryAfter <= 0 || a.Strictest().Rule.Name != "flood" {
		t.Errorf("a third request is %v with the rejection %+v; want denied by the rule \"flood\", with a RetryAfter", outcome, why)
	}
	a.Done(admission.Result{})
	if got := len(seen.take()); got != 3 {
		t.Errorf("%d events were observed; want 3, one for each request that was not a peek", got)
	}
}
