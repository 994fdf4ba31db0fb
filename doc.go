// Package penstock limits how often things happen, exactly, across any number of processes.
//
// A [Charge] is a request to spend Cost units of a [Limit] under a Key. A [Store] decides a batch
// of charges together, all or nothing. Package redisstore does this in one atomic script on Redis
// or Valkey, and package memstore in the memory of one process. Both give the same answers. A
// [Limiter] has a store and the limits that it enforces together. Applications use a Limiter.
//
//	store := memstore.New(memstore.Options{}) // or: redisstore.Open("redis://localhost:6379", …)
//	limiter, err := penstock.NewLimiter(store, "search", penstock.PerSecond(10))
//	…
//	decision, err := limiter.Allow(ctx, "user:42")
//	if err == nil && !decision.Allowed {
//		// Try again after decision.RetryAfter().
//	}
//
// # Map
//
//   - limit.go, rate.go, plan.go: a limit, its text form, its compiled form
//   - charge.go, decision.go, store.go: the request, the decision, and the interface that decides
//   - limiter.go, allow_with.go, wait.go, hold.go: charging, waiting, holding a slot
//   - package algorithm: the arithmetic, each algorithm with its bound
//   - package memstore and package redisstore: where state lives
//   - package storetest: the tests that every store must pass
//
// # Writing a Store
//
// Applications need a [Limiter]. For batches over several keys they also need [Charge] and [Plan].
// The following is only for authors of a [Store] or a [Decorator]:
//
//   - [Check] checks a batch; every Decide must call it first
//   - [Plan.ID], [Plan.Tag], [Plan.Params] and [Charge.Request] are what a step computes with
//   - [StatusOf], [Single], [SetOutcome] and [NewDecision] make the Decision
//   - [NewStoreError] makes the error of a batch that was not decided
//
// # Denials and errors
//
// A denial is a [Decision], never an error, except in methods that return none, such as
// [Limiter.Reserve] and [Limiter.Wait]: their error is a [DeniedError]. Other errors say that there
// is no decision. [ErrInvalid] means that the limit or the charge is invalid. [ErrUnavailable]
// means that the store failed, such as when it did not answer in time. A [StoreError] reports
// whether the charges may have been made.
package penstock
