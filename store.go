package penstock

import "context"

// A Store decides charges. Stores implement it and decorators wrap it; applications use a
// [Limiter].
//
// Decide makes all the charges or none. A denial is a Decision. An error means that there is no
// decision. The error wraps ErrInvalid or ErrUnavailable, or is the error of ctx if ctx has ended.
// After Decide returns, the Store keeps neither the slice nor the Charges. Many goroutines may call
// Decide at the same time. Package storetest checks all this.
type Store interface {
	Decide(ctx context.Context, charges []Charge) (Decision, error)
}

// StoreFunc is a function as a Store.
type StoreFunc func(ctx context.Context, charges []Charge) (Decision, error)

// Decide calls f.
func (f StoreFunc) Decide(ctx context.Context, charges []Charge) (Decision, error) {
	return f(ctx, charges)
}

// A Decorator wraps a Store and returns the result, which is a Store too.
type Decorator func(Store) Store

// Wrap wraps store in decorators. The first is the outermost: it receives a batch first.
func Wrap(store Store, decorators ...Decorator) Store {
	for i := len(decorators) - 1; i >= 0; i-- {
		store = decorators[i](store)
	}
	return store
}
