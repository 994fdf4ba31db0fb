package penstockprom_test

import (
	"context"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/admission"
	"github.com/penstock/penstock/guard"
	"github.com/penstock/penstock/httplimit"
	"github.com/penstock/penstock/memstore"
	"github.com/penstock/penstock/observe"
	penstockprom "github.com/penstock/penstock/observe/prometheus"
	"github.com/penstock/penstock/policy"
	"github.com/penstock/penstock/redisstore"
)

// The gate of a service with a policy reports each request.
func Example() {
	spec, err := policy.Simple("search", policy.ByAddress(), guard.FailLocal, penstock.PerMinute(2).WithName("minute"))
	if err != nil {
		log.Fatal(err)
	}
	rules, err := policy.New(spec)
	if err != nil {
		log.Fatal(err)
	}
	metrics := penstockprom.New(penstockprom.Options{})
	metrics.SetRules(observe.RulesOf(rules)) // call this after each reload of the policy too
	registry := prometheus.NewRegistry()
	registry.MustRegister(metrics)

	controller, err := admission.New(memstore.New(memstore.Options{}), rules, admission.Options{Observe: metrics.ObserveRequest, TokenRejected: metrics.TokenRejected})
	if err != nil {
		log.Fatal(err)
	}
	metrics.AddWaiting(controller.Waiting)
	gate, err := httplimit.New(controller, httplimit.Options{})
	if err != nil {
		log.Fatal(err)
	}
	api := gate.Middleware(http.NotFoundHandler())
	for range 3 {
		api.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/search", nil))
	}

	page := httptest.NewRecorder()
	promhttp.HandlerFor(registry, promhttp.HandlerOpts{EnableOpenMetrics: true}).ServeHTTP(page, httptest.NewRequest("GET", "/metrics", nil))
	for line := range strings.Lines(page.Body.String()) {
		if strings.Contains(line, `rule="search"`) && (strings.HasPrefix(line, "rate_limiter_allowed") || strings.HasPrefix(line, "rate_limiter_rejected")) {
			fmt.Print(line)
		}
	}
	// Output:
	// rate_limiter_allowed_total{algorithm="token-bucket",limit="minute",rule="search"} 2
	// rate_limiter_rejected_total{algorithm="token-bucket",limit="minute",rule="search"} 1
}

// This program calls a Limiter on Redis, with all guards. The guards report each decision, each
// call that Redis did not decide, and their own state.
func Example_limiter() {
	metrics := penstockprom.New(penstockprom.Options{})
	prometheus.MustRegister(metrics)

	store, err := redisstore.Open("redis://localhost:6379", redisstore.Options{})
	if err != nil {
		log.Fatal(err)
	}
	guarded, err := guard.Standard(store, guard.Options{
		Server: store, Observe: metrics.ObserveDecision, OnStoreError: metrics.ObserveStoreError,
		Breaker: guard.BreakerOptions{Changed: metrics.BreakerChanged},
	})
	if err != nil {
		log.Fatal(err)
	}
	metrics.SetGuards(observe.Guards{
		Stats: guarded.Stats, Instances: guarded.Instances, ClockSteps: store.ClockSteps, Losses: store.Losses, ScriptsInFlight: store.ScriptsInFlight,
		Scripts: store.Scripts,
	})
	limiter, err := penstock.NewLimiter(guarded, "mail", penstock.PerHour(100).WithName("hour"))
	if err != nil {
		log.Fatal(err)
	}
	metrics.SetRules(observe.RulesOfPlans(limiter.Plans()...))
	fmt.Println(limiter.Allow(context.Background(), "user:42"))
}
