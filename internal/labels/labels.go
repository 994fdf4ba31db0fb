// Package labels has what all series of metrics, log lines and pages name and compute alike.
package labels

import (
	"errors"

	"github.com/penstock/penstock"
)

// The reasons of errors that have no penstock.Reason.
const (
	Invalid = "invalid" // errors that wrap penstock.ErrInvalid
	Other   = "other"   // also the label of rules and nodes without a series of their own
)

// Reason returns the reason of a store's error, as it is named in metrics.
func Reason(err error) string {
	if e := penstock.AsStoreError(err); e != nil {
		return e.Reason.String()
	}
	if errors.Is(err, penstock.ErrInvalid) {
		return Invalid
	}
	return Other
}

// MaxNodes is how many nodes have their own series. A Cluster has one node for each primary, and
// one for each set of primaries that decide together.
const MaxNodes = 64

// Node returns the label of a node, or "default" for a store that has only one node.
func Node(name string) string {
	if name == "" {
		return "default"
	}
	return name
}

// IsNear reports whether at least percent of a limit with this capacity is used. percent is from 50
// to 100.
func IsNear(capacity, remaining int64, percent int) bool {
	if remaining > capacity>>1 { // the usual case, without a multiplication
		return false
	}
	leftPercent := int64(100 - percent)
	if capacity > 1<<50 { // a product would overflow
		return remaining <= capacity/100*leftPercent
	}
	return remaining*100 <= capacity*leftPercent
}
