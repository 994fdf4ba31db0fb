package checkapi

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/penstock/penstock"
)

// A failure is the error of a call. Its text contains no key and no text of the store.
type failure struct {
	code         codes.Code
	text         string
	mayBeCharged bool          // the request may have been charged although the call failed
	retryAfter   time.Duration // 0: do not retry
	isConflict   bool          // the status is 409: parts of the call contradict each other, which a schema cannot check
}

func (f *failure) Error() string { return f.text }

func failf(code codes.Code, format string, args ...any) error {
	return &failure{code: code, text: fmt.Sprintf(format, args...)}
}

func invalid(field, format string, args ...any) error {
	return failf(codes.InvalidArgument, "%s: %s", field, fmt.Sprintf(format, args...))
}

// conflict returns the failure for a field that contradicts another one.
func conflict(field, format string, args ...any) error {
	return &failure{code: codes.InvalidArgument, text: field + ": " + fmt.Sprintf(format, args...), isConflict: true}
}

// unavailableRetry is the time after which a caller should retry while the store gives no answer.
const unavailableRetry = time.Second

// asFailure returns the failure for an error of a store, of a context or of this package.
func asFailure(err error) *failure {
	if f, ok := errors.AsType[*failure](err); ok {
		return f
	}
	if s := penstock.AsStoreError(err); s != nil {
		f := &failure{code: codes.Unavailable, mayBeCharged: s.MayBeCharged, retryAfter: unavailableRetry}
		f.text = "the store gave no decision (" + s.Reason.String() + "); " + chargedText(s.MayBeCharged)
		return f
	}
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return &failure{code: codes.DeadlineExceeded, text: "the deadline of the call passed before there was a decision; " + chargedText(true), mayBeCharged: true}
	case errors.Is(err, context.Canceled):
		return &failure{code: codes.Canceled, text: "the call was canceled before there was a decision; " + chargedText(true), mayBeCharged: true}
	case errors.Is(err, penstock.ErrInvalid):
		return &failure{code: codes.InvalidArgument, text: withoutKind(err)}
	}
	return &failure{code: codes.Unavailable, text: "there is no decision; " + chargedText(true), mayBeCharged: true, retryAfter: unavailableRetry}
}

func chargedText(mayBeCharged bool) string {
	if mayBeCharged {
		return "the charge may have been made"
	}
	return "nothing was charged"
}

// GRPCStatus returns the gRPC status. Package status calls it.
func (f *failure) GRPCStatus() *status.Status {
	s := status.New(f.code, f.text)
	if f.code != codes.Unavailable && f.code != codes.DeadlineExceeded {
		return s
	}
	details := []protoadapt.MessageV1{&errdetails.ErrorInfo{
		Reason: "NO_DECISION", Domain: "penstock", Metadata: map[string]string{"may_be_charged": fmt.Sprint(f.mayBeCharged)},
	}}
	if f.retryAfter > 0 {
		details = append(details, &errdetails.RetryInfo{RetryDelay: durationpb.New(f.retryAfter)})
	}
	if detailed, err := s.WithDetails(details...); err == nil {
		return detailed
	}
	return s
}

var codeNames = map[codes.Code]string{
	codes.InvalidArgument: "invalid_argument", codes.Unauthenticated: "unauthenticated", codes.PermissionDenied: "permission_denied",
	codes.NotFound: "not_found", codes.FailedPrecondition: "failed_precondition", codes.Unavailable: "unavailable",
	codes.DeadlineExceeded: "deadline_exceeded", codes.Canceled: "canceled", codes.Internal: "internal",
}
