// Package panicked keeps a panic of a user's code from ending the process, in goroutines that the
// user has not started.
package panicked

import (
	"context"
	"fmt"
	"log"
	"runtime/debug"

	"github.com/penstock/penstock"
)

// Recover is to be deferred. It ends a panic, and logs it with its stack as net/http does for
// handlers. Doing says what was being done.
func Recover(doing string) {
	if value := recover(); value != nil {
		report(doing, value)
	}
}

// Decide is store.Decide, and makes of a panic an error that wraps penstock.ErrUnavailable. It logs
// as Recover does.
func Decide(ctx context.Context, store penstock.Store, charges []penstock.Charge) (d penstock.Decision, err error) {
	defer func() {
		if value := recover(); value != nil {
			report("a store decides", value)
			d, err = penstock.Decision{}, fmt.Errorf("%w: panic: %v", penstock.ErrUnavailable, value)
		}
	}()
	return store.Decide(ctx, charges)
}

func report(doing string, value any) {
	log.Printf("penstock: panic while %s: %v\n%s", doing, value, debug.Stack())
}
