package main

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/penstock/penstock/admission"
	"github.com/penstock/penstock/algorithm"
	"github.com/penstock/penstock/cmd/penstock/command"
	"github.com/penstock/penstock/httplimit"
	"github.com/penstock/penstock/memstore"
	"github.com/penstock/penstock/policy/policyfile"
)

// run runs penstock with these algorithms, and returns the exit status and the output.
func run(t *testing.T, algorithms []*algorithm.Algorithm, args ...string) (int, string) {
	var out bytes.Buffer
	code := command.Run(t.Context(), args, &out, &out, algorithms...)
	return code, out.String()
}

func TestThePolicyFileNamesTheAlgorithm(t *testing.T) {
	own := []*algorithm.Algorithm{Backoff}
	for _, args := range [][]string{{"validate", "-v", "login.yaml"}, {"explain", "--config", "login.yaml", "-X", "POST", "/login"}} {
		if code, out := run(t, own, args...); code != 0 || !strings.Contains(out, "backoff") || !strings.Contains(out, "a pause that doubles up to 10 times") {
			t.Errorf("%s exits with %d; want 0, and the name and the bound of a backoff in\n%s", args[0], code, out)
		}
	}
	if code, out := run(t, nil, "validate", "login.yaml"); code != 4 || !strings.Contains(out, `there is no algorithm "backoff"`) {
		t.Errorf("validate without the algorithm exits with %d; want 4 and an error in\n%s", code, out)
	}
}

func TestTheGateLimitsByTheAlgorithm(t *testing.T) {
	file, err := policyfile.Load("login.yaml", policyfile.Options{Algorithms: []*algorithm.Algorithm{Backoff}})
	if err != nil {
		t.Fatal(err)
	}
	controller, err := admission.New(memstore.New(memstore.Options{}), file.Rules, admission.Options{})
	if err != nil {
		t.Fatal(err)
	}
	gate, err := httplimit.New(controller, httplimit.Options{})
	if err != nil {
		t.Fatal(err)
	}
	handler := gate.Middleware(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }))
	for i, want := range []int{http.StatusNoContent, http.StatusTooManyRequests} {
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequest("POST", "/login", nil))
		if w.Code != want {
			t.Errorf("attempt %d: status %d; want %d\n%s", i+1, w.Code, want, w.Body)
		}
	}
}
