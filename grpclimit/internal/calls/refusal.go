package calls

import (
	"context"
	"errors"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/admission"
	"github.com/penstock/penstock/internal/transport/quotaheaders"
)

// A Refusal is the reason why a call was not admitted, and the response to its client. It is not
// only for admission.Refused: every outcome that does not admit a call has a Refusal.
type Refusal struct {
	Outcome    admission.Outcome
	Err        error // the error of the context, if the client abandoned the call
	Message    string
	RetryAfter time.Duration       // not rounded; 0 if unknown, penstock.Never if a retry cannot succeed
	Fields     map[string][]string // metadata about the limits, and retry-after
	Details    []protoadapt.MessageV1
}

// The reasons of ErrorInfo.
const (
	reasonDenied      = "RATE_LIMIT_EXCEEDED"
	reasonUnavailable = "RATE_LIMITS_UNAVAILABLE"
)

func (g *Gate) refusal(ctx context.Context, a *admission.Admission, outcome admission.Outcome) *Refusal {
	why := a.Rejection()
	r := &Refusal{Outcome: outcome, RetryAfter: why.RetryAfter}
	switch outcome {
	case admission.Denied, admission.DeniedNewIdentity:
		r.Message = "too many requests"
		if names := why.VisiblePolicies(); len(names) > 0 {
			r.Message += ": " + strings.Join(names, ", ")
		}
		if why.RetryAfter == penstock.Never {
			r.Message += "; it costs more than the limit, do not retry"
		}
		r.Fields = g.fields(a, true, why.RetryAfter)
		r.Details = append(r.Details, g.quotaFailure(a, &why), g.errorInfo(reasonDenied, &why))
	case admission.FailedClosed:
		r.Message = "limits cannot be checked at the moment"
		r.Details = append(r.Details, g.errorInfo(reasonUnavailable, &why))
	case admission.Refused:
		r.Message = "this client is on the deny list"
	case admission.Abandoned:
		r.Message, r.Err = "the call ended before it was admitted", ctx.Err()
		if r.Err == nil {
			r.Err = context.Canceled
		}
	default:
		r.Message = why.Detail
	}
	if len(r.Details) > 0 && why.RetryAfter > 0 && why.RetryAfter != penstock.Never {
		r.Details = append([]protoadapt.MessageV1{&errdetails.RetryInfo{RetryDelay: durationpb.New(why.RetryAfter)}}, r.Details...)
	}
	return r
}

// quotaFailure names the limits that denied a call. It contains nothing that identifies the client.
func (g *Gate) quotaFailure(a *admission.Admission, why *admission.Rejection) *errdetails.QuotaFailure {
	f := new(errdetails.QuotaFailure)
	for _, name := range why.VisiblePolicies() {
		f.Violations = append(f.Violations, &errdetails.QuotaFailure_Violation{Subject: "rule:" + why.Rule, Description: "the limit is used up", QuotaId: name})
	}
	for _, s := range a.AppendVisible(nil) {
		for _, v := range f.Violations {
			if v.QuotaId == s.Limit.FullName {
				v.QuotaMetric, v.QuotaValue = s.Limit.Name, s.Plan.Capacity()
			}
		}
	}
	if len(f.Violations) == 0 {
		f.Violations = []*errdetails.QuotaFailure_Violation{{Subject: "rule:" + why.Rule, Description: "a limit is used up"}}
	}
	return f
}

func (g *Gate) errorInfo(reason string, why *admission.Rejection) *errdetails.ErrorInfo {
	info := &errdetails.ErrorInfo{Reason: reason, Domain: g.options.Domain, Metadata: map[string]string{"rule": why.Rule}}
	if names := why.VisiblePolicies(); len(names) > 0 {
		info.Metadata["policies"] = strings.Join(names, ",")
	}
	return info
}

func (r *Refusal) Code() codes.Code {
	switch r.Outcome {
	case admission.Denied, admission.DeniedNewIdentity:
		return codes.ResourceExhausted
	case admission.FailedClosed:
		return codes.Unavailable
	case admission.Refused:
		return codes.PermissionDenied
	case admission.Abandoned:
		if errors.Is(r.Err, context.DeadlineExceeded) {
			return codes.DeadlineExceeded
		}
		return codes.Canceled
	}
	return codes.InvalidArgument
}

// IsTemporary reports whether a limit denied the call and may admit the same call after RetryAfter.
func (r *Refusal) IsTemporary() bool {
	return r.Outcome == admission.Denied && r.RetryAfter > 0 && r.RetryAfter != penstock.Never
}

// HTTPStatus returns the HTTP status that google.rpc.Code documents for a code. Rules with
// on_status list such statuses.
func HTTPStatus(code codes.Code) int {
	if int(code) < len(httpStatuses) {
		return httpStatuses[code]
	}
	return http.StatusInternalServerError
}

var httpStatuses = [...]int{
	codes.OK:                 http.StatusOK,
	codes.Canceled:           499, // nginx uses it for a client that closed the connection
	codes.Unknown:            http.StatusInternalServerError,
	codes.InvalidArgument:    http.StatusBadRequest,
	codes.DeadlineExceeded:   http.StatusGatewayTimeout,
	codes.NotFound:           http.StatusNotFound,
	codes.AlreadyExists:      http.StatusConflict,
	codes.PermissionDenied:   http.StatusForbidden,
	codes.ResourceExhausted:  http.StatusTooManyRequests,
	codes.FailedPrecondition: http.StatusBadRequest,
	codes.Aborted:            http.StatusConflict,
	codes.OutOfRange:         http.StatusBadRequest,
	codes.Unimplemented:      http.StatusNotImplemented,
	codes.Internal:           http.StatusInternalServerError,
	codes.Unavailable:        http.StatusServiceUnavailable,
	codes.DataLoss:           http.StatusInternalServerError,
	codes.Unauthenticated:    http.StatusUnauthorized,
}

// RetrySeconds returns RetryAfter in whole seconds, rounded up.
func (r *Refusal) RetrySeconds() string {
	return strconv.FormatInt(quotaheaders.CeilSeconds(r.RetryAfter), 10)
}

// Pushback returns the text of grpc-retry-pushback-ms: how long a client should wait before it
// retries, in milliseconds, rounded up. The text is "-1" if the client should not retry. It is
// empty if the time is unknown, or if the call was neither denied nor failed closed.
func (r *Refusal) Pushback() string {
	switch {
	case len(r.Details) == 0: // neither denied nor failed closed
		return ""
	case r.RetryAfter == penstock.Never:
		return "-1"
	case r.RetryAfter <= 0:
		return ""
	}
	ms := int64((r.RetryAfter-1)/time.Millisecond) + 1
	return strconv.FormatInt(min(ms, math.MaxInt32), 10) // the field has 32 bits
}
