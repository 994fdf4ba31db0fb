// Package fieldvalues has the fixed choices and the bounds of fields in policy files. The code that
// checks the fields and the generator of their schema read them here.
package fieldvalues

import (
	"fmt"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/algorithm"
)

// The fixed choices of fields. If a field has a default, it is the first choice.
var (
	Apply     = []string{"most-specific", "all"}
	OnFailure = []string{"local", "open", "closed"}
	Across    = []string{"exchange", "share"}

	EncodedSlash   = []string{"refuse", "keep"}
	TrailingSlash  = []string{"keep", "ignore"}
	PathParameters = []string{"keep", "strip"}
	Headers        = []string{"draft-11", "draft-07", "draft-06", "x-ratelimit", "none"}
	Reset          = []string{"epoch", "seconds"}
	ResetUntil     = []string{"next", "full"}
)

const DefaultMaxWaiting = 1000

type Range struct{ Least, Most int64 }

var (
	CostUnits    = Range{0, penstock.MaxCost}
	Lease        = Range{2, penstock.MaxCost} // units
	SplitInto    = Range{2, 32}               // counters
	SubWindows   = Range{1, algorithm.MaxParts}
	IPv4Prefix   = Range{8, 32}   // bits
	IPv6Prefix   = Range{16, 128} // bits
	MaxWaiting   = Range{1, 1_000_000}
	DeniedStatus = Range{400, 599}
)

func (r Range) Has(n int64) bool { return r.Least <= n && n <= r.Most }

func (r Range) String() string { return fmt.Sprintf("%d to %d", r.Least, r.Most) }

// Texts are the values of a section of a policy file whose keys come from a list, not from the
// fields of a struct. The struct of the section embeds Texts.
type Texts struct {
	Known   map[string]bool    // the keys that the file may have; true: the value is a secret
	Removed map[string]string  // keys of earlier versions, and what to do about each
	Values  map[string]*string // by key, for every known key; "": the file does not have it
}

// Self returns t. Package policyfile finds the Texts of a section by this method.
func (t *Texts) Self() *Texts { return t }
