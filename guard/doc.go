// Package guard wraps stores: each guard is a Store around a Store, and gives an answer, or a
// better one, where the store alone would not.
//
// No guard repeats a charge whose outcome is unknown. What a penstock.StoreError says about the
// store's health decides what the guards do.
package guard
