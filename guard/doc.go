// Package guard wraps stores: each guard is a Store around a Store, and gives an answer, or a
// better one, where the store alone would not.
//
// No guard repeats a charge whose outcome is unknown. An error tells a guard more by two optional
// methods, found with [errors.As]: Counts() bool, false where it says nothing of the store's
// health, and Lasting() bool, true where only a human can mend it.
package guard
