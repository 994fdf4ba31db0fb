package envoyrls

import (
	"time"

	"github.com/penstock/penstock/cmd/penstock/internal/rpc/envoyconfig"
)

// A Request is a RateLimitRequest. The engine keeps nothing of it after Decide.
type Request struct {
	Domain      string
	Descriptors []Descriptor
	Hits        uint32 // the cost of descriptors without HasHits; 0 means 1
}

type Descriptor struct {
	Entries []envoyconfig.Entry

	// Override replaces the configured limit, if it is set.
	Override *Override

	HasHits    bool   // Hits replaces the Hits of the request
	Hits       uint64 // the cost of this descriptor; 0 checks the limit without a charge
	IsNegative bool   // the hits are refunded
}

// An Override is a limit that comes with a request.
type Override struct {
	RequestsPerUnit uint32
	Unit            envoyconfig.Unit
	UnitMultiplier  uint32 // 0 means 1
}

type Response struct {
	IsOver   bool     // true: the overall code is OVER_LIMIT; false: OK
	Statuses []Status // one for each descriptor, in the order of the request

	Headers  []Header       // for the response to the client
	Metadata map[string]any // dynamic metadata, in the form of JSON; nil: none
}

// prepare empties the response and gives it n empty statuses.
func (r *Response) prepare(n int) {
	r.IsOver, r.Metadata = false, nil
	r.Headers = r.Headers[:0]
	r.Statuses = r.Statuses[:0]
	for range n {
		r.Statuses = append(r.Statuses, Status{})
	}
}

type Status struct {
	IsOver    bool          // true: the code is OVER_LIMIT; false: OK
	Limit     *CurrentLimit // nil: no limit applied
	Remaining uint32        // requests that the limit would still admit
	Reset     uint32        // seconds until the limit has room again, or until none of it is used; 0: unknown
}

// A CurrentLimit is the limit that applied. A CurrentLimit must not be changed.
type CurrentLimit struct {
	Name            string
	RequestsPerUnit uint32
	Unit            envoyconfig.Unit
	UnitMultiplier  uint32 // 0 means 1
}

func (l *CurrentLimit) period() time.Duration {
	return l.Unit.Period() * time.Duration(max(l.UnitMultiplier, 1))
}

type Header struct{ Name, Value string }
