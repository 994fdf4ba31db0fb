// Package penstock limits how often things happen, exactly, across any number of processes.
//
// A [Charge] asks to spend Cost units of a [Limit] under a Key. A [Store] decides a set of charges
// at once, all or nothing: package redisstore in one atomic script on Redis or Valkey, package
// memstore in this process, with the same answers. A [Limiter] is what applications hold: a store,
// and the limits that it enforces together.
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
//   - limit.go, rate.go: what is limited, and how people write it down
//   - charge.go, decision.go, store.go: the question, the answer, and who answers
//   - limiter.go, wait.go, hold.go: asking, waiting for one's turn, occupying a slot
//   - package algorithm: the arithmetic, each algorithm with its bound
//   - package memstore and package redisstore: where state lives
//   - package storetest: what every store must obey
//
// A denial is a [Decision], never an error. An error says that there is no answer: [ErrInvalid]
// that the question was wrong, [ErrUnavailable] that the store could not be asked or did not answer
// in time, in which case the charge may or may not have been made.
package penstock
