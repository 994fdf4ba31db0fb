package penstock

import "context"

// A Store decides charges. Applications use a [Limiter]; this is what stores implement and what
// decorators wrap.
//
// Decide makes all the charges or none. A denial is a Decision; an error means that there is none,
// and wraps ErrInvalid or ErrUnavailable, or is the context's own error if the caller went away. A
// Store keeps neither the slice nor the Charges after it returns, and may be called by many
// goroutines at once. Package storetest checks all this.
type Store interface {
	Decide(ctx context.Context, charges []Charge) (Decision, error)
}

// StoreFunc is a function as a Store.
type StoreFunc func(ctx context.Context, charges []Charge) (Decision, error)

// Decide calls f.
func (f StoreFunc) Decide(ctx context.Context, charges []Charge) (Decision, error) {
	return f(ctx, charges)
}

// A Decorator puts something around a Store, and is one.
type Decorator func(Store) Store

// Wrap puts decorators around store. The first is the outermost: it sees a batch first.
func Wrap(store Store, decorators ...Decorator) Store {
	for i := len(decorators) - 1; i >= 0; i-- {
		store = decorators[i](store)
	}
	return store
}
