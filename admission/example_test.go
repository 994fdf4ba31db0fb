package admission_test

import (
	"context"
	"fmt"
	"log"
	"net/netip"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/admission"
	"github.com/penstock/penstock/guard"
	"github.com/penstock/penstock/memstore"
	"github.com/penstock/penstock/policy"
)

// A job is a request of a protocol that this module does not know.
type job struct{ user string }

func (j job) Lookup(policy.Kind, string) []string { return nil }
func (j job) Address() (none netip.Addr)          { return none }
func (j job) HasHeader(func(string) bool) bool    { return false }
func (j job) BodySize() int64                     { return 0 }

// A worker admits two jobs per hour and user.
func ExampleController_Admit() {
	byUser := policy.ByFunc(func(a policy.Attributes) string { return a.(job).user })
	spec, err := policy.Simple("jobs", byUser, guard.FailClosed, penstock.PerHour(2))
	if err != nil {
		log.Fatal(err)
	}
	rules, err := policy.New(spec)
	if err != nil {
		log.Fatal(err)
	}
	store := memstore.New(memstore.Options{}) // with a store in Redis, all workers share the limits
	controller, err := admission.New(store, rules, admission.Options{

		Observe: func(e *admission.Event) { fmt.Println(e.Rule, e.Limit, e.Key, e.Outcome) },
	})
	if err != nil {
		log.Fatal(err)
	}
	for range 3 {
		a, outcome, err := controller.Admit(context.Background(), admission.Request{Attributes: job{"ann"}})
		switch {
		case err != nil:
			log.Print(err)
		case outcome.IsAdmitted():
			// The worker would do the job here.
		default:
			fmt.Println("try again in", a.Rejection().RetryAfter.Round(time.Second))
		}
		a.Done(admission.Result{})
	}
	// Output:
	// jobs hour ann allowed
	// jobs hour ann allowed
	// jobs hour ann denied
	// try again in 30m0s
}
