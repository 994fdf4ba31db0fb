package httplimit_test

import (
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/admission"
	"github.com/penstock/penstock/guard"
	"github.com/penstock/penstock/httplimit"
	"github.com/penstock/penstock/memstore"
	"github.com/penstock/penstock/policy/policyfile"
	"github.com/penstock/penstock/redisguard"
)

// The gate of this example uses Redis with all guards. While Redis does not answer, each limit
// falls back as the policy defines.
func ExampleNew() {
	sections := []policyfile.Section{httplimit.DefaultConfig()}
	file, err := policyfile.Load("rules.yaml", policyfile.Options{Sections: sections})
	if err != nil {
		log.Fatal(err)
	}
	rules := file.Rules
	// With a policyfile.Watcher w, set Limits to a function that uses the latest rules:
	// func(l *penstock.Plan) guard.Settings { return w.Rules().Settings(l) }
	store, err := redisguard.Open("redis://localhost:6379", redisguard.Options{Guard: guard.Options{Limits: rules.Settings}})
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()
	controller, err := admission.New(store, rules, admission.Options{})
	if err != nil {
		log.Fatal(err)
	}
	gate, err := httplimit.New(controller, httplimit.Options{})
	if err != nil {
		log.Fatal(err)
	}
	api := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprintln(w, "hello") })
	log.Fatal(http.ListenAndServe(":8080", gate.Middleware(api)))
}

// newGate limits each client address to 100 requests per second. gate.Middleware(handler) limits a
// handler.
func newGate() (*httplimit.Gate, error) {
	store := memstore.New(memstore.Options{}) // or redisstore.Open
	limits := []penstock.Limit{penstock.PerSecond(100)}
	return httplimit.NewSimple(store, "api", limits, httplimit.SimpleOptions{})
}

// The smallest middleware: one limit for each client address.
func ExamplePerKey() {
	handler, err := limited(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprintln(w, "hello") }))
	if err != nil {
		log.Fatal(err)
	}
	server := httptest.NewServer(handler)
	defer server.Close()
	res, err := http.Get(server.URL)
	if err != nil {
		log.Fatal(err)
	}
	defer res.Body.Close()
	fmt.Println(res.Status, res.Header["Ratelimit"])
	// Output: 200 OK ["api.minute";r=99;t=1]
}

// NewSimple takes several limits. Each request is charged to all of them, or to none.
func ExampleNewSimple() {
	gate, err := newGate()
	if err != nil {
		log.Fatal(err)
	}
	hello := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprintln(w, "hello") })
	server := httptest.NewServer(gate.Middleware(hello))
	defer server.Close()
	res, err := http.Get(server.URL)
	if err != nil {
		log.Fatal(err)
	}
	defer res.Body.Close()
	fmt.Println(res.Status, res.Header["Ratelimit"])
	// Output: 200 OK ["api.second";r=99;t=1]
}

// This handler responds to rejected requests in place of the built-in bodies. The header fields
// about limits are set already.
func ExampleRejectionOf() {
	rejected := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		why, _ := httplimit.RejectionOf(r.Context())
		w.WriteHeader(why.Status)
		fmt.Fprintf(w, "rejected by %v; retry in %v\n", why.Policies, why.RetryAfter)
	})
	limits := []penstock.Limit{penstock.PerMinute(100)}
	gate, err := httplimit.NewSimple(memstore.New(memstore.Options{}), "api", limits, httplimit.SimpleOptions{Rejected: rejected})
	if err != nil {
		log.Fatal(err)
	}
	http.Handle("/", gate.Middleware(http.NotFoundHandler()))
}
