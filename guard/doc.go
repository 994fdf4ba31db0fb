// Package guard wraps stores. Each guard is a Store around a Store, and adds something, such as a
// deadline, a circuit breaker or a fallback.
//
// No guard repeats a charge whose outcome is unknown. Guards judge the store's health by the fields
// of a penstock.StoreError.
package guard
