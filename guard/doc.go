// Package guard wraps stores. Each guard is a Store around a Store. It adds something, such as a
// deadline, a circuit breaker or a fallback.
//
// No guard repeats a charge whose outcome is unknown. What a penstock.StoreError says about the
// store's health decides what the guards do.
package guard
