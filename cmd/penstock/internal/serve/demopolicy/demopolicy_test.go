package demopolicy

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/penstock/penstock/admission"
	"github.com/penstock/penstock/httplimit"
	"github.com/penstock/penstock/memstore"
	"github.com/penstock/penstock/policy/policyfile"
)

func TestDemoHasTheRulesOfTheExample(t *testing.T) {
	example, err := os.ReadFile("../../../../../examples/rides.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(text, example) {
		t.Error("rides.yaml differs from examples/rides.yaml; copy it here")
	}
	for hasTraffic, rules := range map[bool]int{false: 4, true: 6} {
		p, err := Load(policyfile.Options{Sections: []policyfile.Section{httplimit.DefaultConfig()}}, hasTraffic)
		if err != nil {
			t.Fatalf("with traffic %v, Load returns %v; want no error", hasTraffic, err)
		}
		if n := len(p.Rules.Spec().Rules); n != rules || p.Warnings != nil {
			t.Errorf("with traffic %v, there are %d rules and the warnings %v; want %d rules and no warnings", hasTraffic, n, p.Warnings, rules)
		}
		if namesTraffic := strings.Contains(p.Files[0], "demo-traffic"); namesTraffic != hasTraffic {
			t.Errorf("with traffic %v, the name in the log is %q; want demo-traffic in it only with traffic", hasTraffic, p.Files[0])
		}
	}
}

// The users of a load generator have one address. Made-up keys run out anyway.
func TestLoadTestFromOneAddressFindsItsLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, err := Load(policyfile.Options{Sections: []policyfile.Section{httplimit.DefaultConfig()}}, false)
		if err != nil {
			t.Fatal(err)
		}
		controller, err := admission.New(memstore.New(memstore.Options{}), p.Rules, admission.Options{})
		if err != nil {
			t.Fatal(err)
		}
		gate, err := httplimit.New(controller, httplimit.Options{})
		if err != nil {
			t.Fatal(err)
		}
		handler := gate.Middleware(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
		allowed := func(header string, users int) (count int) {
			for i := range users {
				r, w := httptest.NewRequest("POST", "/api/rides/request", nil), httptest.NewRecorder()
				r.Header.Set(header, fmt.Sprint("user-", i))
				handler.ServeHTTP(w, r)
				if w.Code == http.StatusOK {
					count++
				}
			}
			return count
		}
		if n := allowed("X-User-Id", 2000); n != 2000 {
			t.Errorf("2,000 users of one address sent a request each, and %d were allowed; want all", n)
		}
		if n := allowed("X-API-Key", 10_000); n != 3000 {
			t.Errorf("of 10,000 made-up keys of the same address, %d were allowed; want 3,000, because it may bring 5,000 identities", n)
		}
	})
}
