package envoyrls

import (
	"time"

	"github.com/penstock/penstock/grpclimit/envoyconfig"
)

// A Request is a RateLimitRequest. The engine keeps nothing of it after Decide.
type Request struct {
	Domain      string
	Descriptors []Descriptor
	Hits        uint32 // the cost of descriptors without HasHits; 0 means 1
}

// A Descriptor is one descriptor of a request.
type Descriptor struct {
	Entries []envoyconfig.Entry

	// Override replaces the configured limit, if it is set.
	Override *Override

	HasHits    bool   // Hits is set; 0 checks the limit without a charge
	Hits       uint64 // of this descriptor
	IsNegative bool   // the hits are refunded
}

// An Override is a limit that comes with a request.
type Override struct {
	RequestsPerUnit uint32
	Unit            envoyconfig.Unit
	UnitMultiplier  uint32 // 0 means 1
}

// A Response is a RateLimitResponse.
type Response struct {
	IsOver   bool     // the overall code is OVER_LIMIT, else OK
	Statuses []Status // one for each descriptor, in the order of the request

	Headers  []Header       // for the response to the client
	Metadata map[string]any // dynamic metadata, in the form of JSON; nil: none
}

// reset makes room for n statuses.
func (r *Response) reset(n int) {
	r.IsOver, r.Metadata = false, nil
	r.Headers = r.Headers[:0]
	r.Statuses = r.Statuses[:0]
	for range n {
		r.Statuses = append(r.Statuses, Status{})
	}
}

// A Status is the result for one descriptor.
type Status struct {
	IsOver    bool          // OVER_LIMIT, else OK
	Limit     *CurrentLimit // nil: no limit applied
	Remaining uint32
	Reset     uint32 // seconds; 0: unknown
}

// A CurrentLimit is the limit that applied. It must not be changed.
type CurrentLimit struct {
	Name            string
	RequestsPerUnit uint32
	Unit            envoyconfig.Unit
	UnitMultiplier  uint32 // 0 means 1
}

// period is the length of the limit's window.
func (l *CurrentLimit) period() time.Duration {
	return l.Unit.Period() * time.Duration(max(l.UnitMultiplier, 1))
}

// A Header is a header field.
type Header struct{ Name, Value string }
