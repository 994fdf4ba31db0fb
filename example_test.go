package penstock_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/algorithm"
	"github.com/penstock/penstock/memstore"
)

// fixedStore returns a store whose clock does not run, so that examples print the same every time.
func fixedStore() penstock.Store {
	return memstore.New(memstore.Options{Now: func() time.Time { return time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC) }})
}

func Example() {
	store := fixedStore() // memstore.New(memstore.Options{}), or redisstore.Open("redis://localhost:6379", redisstore.Options{})
	limiter, err := penstock.NewLimiter(store, "search", penstock.PerSecond(2), penstock.PerDay(10_000))
	if err != nil {
		log.Fatal(err)
	}
	for range 3 {
		decision, err := limiter.Allow(context.Background(), "user:42")
		switch {
		case err != nil:
			log.Fatal(err)
		case decision.Allowed:
			fmt.Println("allowed")
		default:
			fmt.Println("denied, retry after", decision.RetryAfter())
		}
	}
	// Output:
	// allowed
	// allowed
	// denied, retry after 500ms
}

// Limits are made by constructors, by ParseRate, or as literals.
func ExampleLimit() {
	for _, limit := range []penstock.Limit{
		penstock.PerSecond(10).WithBurst(50),
		penstock.PerDay(10_000).With(penstock.FixedWindow).WithName("quota"),
		penstock.Per(3, 15*time.Minute).With(penstock.SlidingLog).WithName("login"),
		penstock.Every(100 * time.Millisecond).With(penstock.LeakyBucket).WithBurst(20),
		penstock.InFlight(5, 30*time.Second),
		{Name: "monthly", Count: 1_000_000, Algorithm: penstock.CalendarWindow(algorithm.Month, time.UTC), Period: algorithm.Month.Period()},
	} {
		if err := limit.Validate(); err != nil {
			log.Fatal(err)
		}
		fmt.Println(limit)
	}
	// Output:
	// second: 10 per 1s, burst 50 (token-bucket)
	// quota: 10000 per 24h (fixed-window)
	// login: 3 per 15m (sliding-log)
	// every-100ms: 1 per 100ms, burst 20 (leaky-bucket)
	// in-flight: 5 per 30s, burst 5 (in_flight)
	// monthly: 1000000 per calendar month (calendar-window)
}

// Failed logins count, at most 3 in 15 minutes for each account. A correct login returns its unit.
func ExamplePer() {
	failures, err := penstock.NewLimiter(fixedStore(), "login", penstock.Per(3, 15*time.Minute).With(penstock.SlidingLog))
	if err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()
	for _, password := range []string{"wrong", "right", "wrong", "wrong", "right"} {
		attempt, err := failures.Allow(ctx, "account:anna")
		switch {
		case err != nil:
			fmt.Println("try again later:", err)
		case !attempt.Allowed:
			fmt.Println("too many failed logins, retry after", attempt.RetryAfter())
		case password != "right":
			fmt.Println("wrong password")
		default:
			_, err := failures.Refund(ctx, "account:anna", 1)
			fmt.Println("welcome", err)
		}
	}
	// Output:
	// wrong password
	// welcome <nil>
	// wrong password
	// wrong password
	// too many failed logins, retry after 15m0s
}

func ExampleParseRate() {
	for _, text := range []string{"100/s", "10k per day", "5 logins per 15 minutes", "3/s, burst 10", "10-M", "2.5/s"} {
		limit, err := penstock.ParseRate(text)
		if err != nil {
			fmt.Println(err)
			continue
		}
		fmt.Println(limit)
	}
	// Output:
	// second: 100 per 1s (token-bucket)
	// day: 10000 per 24h (token-bucket)
	// every-15m: 5 per 15m (token-bucket)
	// second: 3 per 1s, burst 10 (token-bucket)
	// minute: 10 per 1m (token-bucket)
	// penstock: invalid: rate "2.5/s": character 1: "2.5" is not a whole number; write 5/2s for 2.5 per second, and 1000 or 1,000 for a thousand
}

// A limit can be given with each call. Here each user has the rate of a subscription.
func ExampleLimiter_AllowWith() {
	limiter, err := penstock.NewLimiter(fixedStore(), "api", penstock.PerMinute(1))
	if err != nil {
		log.Fatal(err)
	}
	subscriptions := map[string]int64{"alice": 3, "bob": 100}
	for _, user := range []string{"alice", "alice", "bob"} {
		decision, err := limiter.AllowWith(context.Background(), user, penstock.PerMinute(subscriptions[user]))
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(user, decision)
	}
	// Output:
	// alice allowed, 2 left
	// alice allowed, 1 left
	// bob allowed, 99 left
}

// A batch job sends as many mails as the limit allows now. It may send the others later.
func ExampleLimiter_AllowAtMost() {
	limiter, err := penstock.NewLimiter(fixedStore(), "mails", penstock.PerMinute(10))
	if err != nil {
		log.Fatal(err)
	}
	for _, mails := range []int64{7, 7} {
		decision, err := limiter.AllowAtMost(context.Background(), "newsletter", mails)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("send %d of %d\n", decision.Granted(), mails)
	}
	// Output:
	// send 7 of 7
	// send 3 of 7
}

// A decision on several limits has a status for each, in their order.
func ExampleDecision() {
	limiter, err := penstock.NewLimiter(fixedStore(), "search", penstock.PerSecond(10), penstock.PerDay(3).With(penstock.FixedWindow))
	if err != nil {
		log.Fatal(err)
	}
	decision, err := limiter.AllowN(context.Background(), "user:42", 2)
	if err != nil {
		log.Fatal(err)
	}
	for i, plan := range limiter.Plans() {
		fmt.Println(plan.Name(), decision.Status(i).Remaining)
	}
	fmt.Println("closest to its limit:", limiter.Plans()[decision.Strictest()].Name())
	// Output:
	// second 8
	// day 1
	// closest to its limit: day
}

// RetryAfter is the time until the denied request would be granted. ResetAfter is the time until
// nothing is used any more.
func ExampleStatus() {
	limiter, err := penstock.NewLimiter(fixedStore(), "search", penstock.PerMinute(6))
	if err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()
	for _, n := range []int64{5, 4, 7} {
		decision, err := limiter.AllowN(ctx, "user:42", n)
		if err != nil {
			log.Fatal(err)
		}
		status := decision.Status(0)
		if status.RetryAfter == penstock.Never {
			fmt.Printf("cost %d: larger than the limit\n", n)
			continue
		}
		fmt.Printf("cost %d: granted %d, %d left, retry after %v, full again after %v\n",
			n, status.Granted, status.Remaining, status.RetryAfter, status.ResetAfter)
	}
	// Output:
	// cost 5: granted 5, 1 left, retry after 0s, full again after 50s
	// cost 4: granted 0, 1 left, retry after 30s, full again after 50s
	// cost 7: larger than the limit
}

// A batch may charge several keys: here that of a user and that of all users.
func ExampleCharge() {
	store := fixedStore()
	perUser := penstock.PerMinute(2).WithName("per-user").MustCompile() // compiled once, charged often
	total := penstock.PerMinute(3).WithName("total").MustCompile()
	for _, user := range []string{"alice", "alice", "alice", "bob", "carol"} {
		decision, err := store.Decide(context.Background(), []penstock.Charge{
			{Key: user, Plan: perUser, Cost: 1},
			{Key: "", Plan: total, Cost: 1},
		})
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(user, decision.Allowed, decision.Status(0).Remaining, decision.Status(1).Remaining)
	}
	// Output:
	// alice true 1 2
	// alice true 0 1
	// alice false 0 1
	// bob true 1 0
	// carol false 2 0
}

// Draw charges what is left. Force charges even beyond the limit. Refund returns units.
func ExampleMode() {
	store, limit := fixedStore(), penstock.PerMinute(10).MustCompile()
	call := func(mode penstock.Mode, cost int64) {
		charges := []penstock.Charge{{Key: "user:42", Plan: limit, Mode: mode, Cost: cost}}
		decision, err := store.Decide(context.Background(), charges)
		if err != nil {
			log.Fatal(err)
		}
		status := decision.Status(0)
		fmt.Printf("%s %d: %v, granted %d, %d left\n", mode, cost, decision.Allowed, status.Granted, status.Remaining)
	}
	call(penstock.Spend, 8)
	call(penstock.Peek, 5)
	call(penstock.Draw, 5)
	call(penstock.Refund, 1)
	call(penstock.Force, 4)
	call(penstock.Reset, 0)
	// Output:
	// spend 8: true, granted 8, 2 left
	// peek 5: false, granted 0, 2 left
	// draw 5: true, granted 2, 0 left
	// refund 1: true, granted 1, 1 left
	// force 4: true, granted 4, 0 left
	// reset 0: true, granted 0, 10 left
}

func ExampleLimiter() {
	limiter, err := penstock.NewLimiter(fixedStore(), "export", penstock.PerHour(100))
	if err != nil {
		log.Fatal(err)
	}
	ctx, key := context.Background(), "tenant:7"

	peek, _ := limiter.Peek(ctx, key) // this example ignores errors
	fmt.Println("would be allowed:", peek.Allowed)
	first, _ := limiter.AllowN(ctx, key, 70)
	fmt.Println("70 rows:", first.Allowed)
	second, _ := limiter.AllowN(ctx, key, 70)
	fmt.Println("70 more:", second.Allowed)
	refund, _ := limiter.Refund(ctx, key, 20)
	fmt.Println("left after a refund:", refund.Remaining())
	reset, _ := limiter.Reset(ctx, key)
	fmt.Println("left after a reset:", reset.Remaining())
	// Output:
	// would be allowed: true
	// 70 rows: true
	// 70 more: false
	// left after a refund: 50
	// left after a reset: 100
}

// Wait sleeps until the caller's turn, or fails immediately if the turn comes too late.
func ExampleLimiter_Wait() {
	limiter, err := penstock.NewLimiter(memstore.New(memstore.Options{}), "crawl", penstock.PerMinute(1))
	if err != nil {
		log.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	fmt.Println(limiter.Wait(ctx, "example.org"))
	var denied *penstock.DeniedError
	if errors.As(limiter.Wait(ctx, "example.org"), &denied) {
		fmt.Println("a minute is longer than this context lasts")
	}
	// Output:
	// <nil>
	// a minute is longer than this context lasts
}

// ReserveN charges the most that a response may cost, and Settle corrects it to the true cost. The
// deadline bounds the wait. Without one, ReserveN books turns up to a day ahead.
func ExampleReservation() {
	limiter, err := penstock.NewLimiter(fixedStore(), "tokens", penstock.PerMinute(1000))
	if err != nil {
		log.Fatal(err)
	}
	complete := func(ctx context.Context, maxTokens, tokens int64) error {
		reserveCtx, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		reservation, err := limiter.ReserveN(reserveCtx, "user:42", maxTokens)
		if err != nil {
			return err // a DeniedError if no turn comes within 5 s
		}
		time.Sleep(reservation.Delay()) // 0 in this example
		// Here the model is called. It uses as many tokens as the parameter says.
		return reservation.Settle(ctx, tokens)
	}
	ctx := context.Background()
	fmt.Println(complete(ctx, 800, 350)) // 650 are left
	var denied *penstock.DeniedError
	if errors.As(complete(ctx, 900, 350), &denied) {
		fmt.Println("250 more come in 15 s, which is longer than 5 s")
	}
	// Output:
	// <nil>
	// 250 more come in 15 s, which is longer than 5 s
}

// A hold occupies a slot while a job runs.
func ExampleHold() {
	limiter, err := penstock.NewLimiter(fixedStore(), "report", penstock.InFlight(1, time.Minute))
	if err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()
	hold, err := limiter.Acquire(ctx, "tenant:7")
	if err != nil {
		log.Fatal(err)
	}
	_, err = limiter.Acquire(ctx, "tenant:7")
	fmt.Println(err)
	if err := hold.Renew(ctx); err != nil { // every 20 s or so, in work that takes longer than a minute
		log.Fatal(err)
	}
	if err := hold.Release(ctx); err != nil {
		log.Fatal(err)
	}
	_, err = limiter.Acquire(ctx, "tenant:7")
	fmt.Println(err)
	// Output:
	// penstock: denied, retry after 1m0s
	// <nil>
}

func ExampleDeniedError() {
	limiter, err := penstock.NewLimiter(fixedStore(), "report", penstock.PerHour(1))
	if err != nil {
		log.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for range 2 {
		_, err = limiter.Reserve(ctx, "tenant:7")
	}
	var denied *penstock.DeniedError
	fmt.Println(errors.As(err, &denied), errors.Is(err, penstock.ErrUnavailable))
	// Output:
	// true false
}

// A Store has only one method, so a function can be a Store for a test.
func ExampleStoreFunc() {
	always := penstock.StoreFunc(func(_ context.Context, charges []penstock.Charge) (penstock.Decision, error) {
		return penstock.NewDecision(make([]penstock.Status, len(charges))), nil
	})
	limiter, err := penstock.NewLimiter(always, "search", penstock.PerSecond(1))
	if err != nil {
		log.Fatal(err)
	}
	for range 3 {
		decision, _ := limiter.Allow(context.Background(), "user:42")
		fmt.Println(decision.Allowed)
	}
	// Output:
	// true
	// true
	// true
}

// A Decorator wraps a Store. This one prints the Store's decisions.
func ExampleWrap() {
	printDecisions := func(next penstock.Store) penstock.Store {
		return penstock.StoreFunc(func(ctx context.Context, charges []penstock.Charge) (penstock.Decision, error) {
			decision, err := next.Decide(ctx, charges)
			fmt.Printf("%s for %s: %v\n", charges[0].Mode, charges[0].Key, decision.Allowed)
			return decision, err
		})
	}
	limiter, err := penstock.NewLimiter(penstock.Wrap(fixedStore(), printDecisions), "search", penstock.PerSecond(1))
	if err != nil {
		log.Fatal(err)
	}
	for range 2 {
		if _, err := limiter.Allow(context.Background(), "user:42"); err != nil {
			log.Fatal(err)
		}
	}
	// Output:
	// spend for user:42: true
	// spend for user:42: false
}
