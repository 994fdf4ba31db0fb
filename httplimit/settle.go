package httplimit

import (
	"context"
	"fmt"
	"net/http"
	"strconv"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/admission"
)

// Done ends the Admission. It returns slots, and refunds the charges of on_status limits that do
// not list this status. It adjusts charges to the cost that Settle or the response's header states.
// The status is that of the response, or 0 if there was no response or its status is unknown. With
// 0, nothing is refunded by status. Call Done before the response is sent, so that the client's
// next request can use the refunded units.
func (a *Admission) Done(status int) {
	result := admission.Result{Status: status, Cost: a.announcedCost}
	if a.body != nil {
		result.BodySize = a.body.size()
	}
	a.admission.Done(result)
}

func (a *Admission) announcedCost(name string) (units int64, ok bool) {
	values := a.header[name]
	if len(values) != 1 {
		return 0, false
	}
	units, err := strconv.ParseInt(values[0], 10, 64)
	return units, err == nil
}

// Settle sets the true cost of the request that has this context. When the request has been served,
// its charges are adjusted to this cost. With a policy, only the charges of limits with cost.actual
// are adjusted. Without one, the charges of all limits that can refund are adjusted. Then a request
// costs at least the one unit that was charged, unless SimpleOptions.Refunds is set. A second
// Settle replaces the first. Settle fails if the request has no such limit.
func Settle(ctx context.Context, actual int64) error {
	a := admissionOf(ctx)
	if a == nil {
		return fmt.Errorf("%w: httplimit: no limit applies to the request; settle only requests that came through a Gate", penstock.ErrInvalid)
	}
	return a.admission.Settle(actual)
}

// MarkStatusUnknown records that the final status of a request is unknown, whatever its handler
// writes. Limits with on_status then keep their charges. A proxy calls MarkStatusUnknown if the
// upstream may have received a request, and does not respond.
func MarkStatusUnknown(r *http.Request) {
	if a := admissionOf(r.Context()); a != nil {
		a.admission.MarkStatusUnknown()
	}
}
