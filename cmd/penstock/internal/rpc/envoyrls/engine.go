package envoyrls

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/admission"
	"github.com/penstock/penstock/cmd/penstock/internal/rpc/envoyconfig"
	"github.com/penstock/penstock/guard"
)

// An Engine decides requests by a configuration. Make one with New. It is safe for concurrent use.
type Engine struct {
	controller *admission.Controller
	options    Options
	compiled   atomic.Pointer[compiledConfig]
	ruleset    atomic.Pointer[ruleset] // of the policy that was used last
	calls      sync.Pool               // of *call
}

// New makes an Engine without a configuration. The controller decides requests and emits events.
// For the limits of the engine, the controller's admission.Options.Settings must return what
// o.Settings returns, and so must guard.Options.Limits of its store. The error of New wraps
// penstock.ErrInvalid.
func New(controller *admission.Controller, o Options) (*Engine, error) {
	if err := o.setDefaults(); err != nil {
		return nil, err
	}
	e := &Engine{controller: controller, options: o}
	e.calls.New = func() any { return new(call) }
	return e, nil
}

// SetConfig replaces the configuration. Requests in flight keep the old one. If SetConfig fails,
// the old one stays in force, and the error wraps penstock.ErrInvalid.
func (e *Engine) SetConfig(c *envoyconfig.Config) error {
	compiled, err := e.compileConfig(c)
	if err != nil {
		return err
	}
	e.compiled.Store(compiled)
	return nil
}

// Config returns the configuration in force, or nil if there is none yet.
func (e *Engine) Config() *envoyconfig.Config {
	if compiled := e.compiled.Load(); compiled != nil {
		return compiled.config
	}
	return nil
}

const MaxDescriptors = penstock.MaxCharges

// Decide decides a request. If ctx has a deadline, the store must answer earlier. The margin is a
// fifth of the time left, and at most 5 ms. The margin leaves time for the fallback of
// Options.OnFailure.
//
// The error is an *Error, or the cause of ctx if ctx has ended. The error is nil if and only if the
// response is complete.
func (e *Engine) Decide(ctx context.Context, r *Request, to *Response) error {
	c, err := e.begin(r)
	if err != nil {
		return err
	}
	defer c.release()
	if err := c.decide(withEarlierAnswer(ctx)); err != nil {
		return err
	}
	to.prepare(len(r.Descriptors))
	c.writeResponse(to)
	return nil
}

// begin finds the limits of a request. The call must be released.
func (e *Engine) begin(r *Request) (*call, error) {
	switch {
	case r.Domain == "":
		return nil, errNoDomain
	case len(r.Descriptors) == 0:
		return nil, errNoDescriptors
	case len(r.Descriptors) > MaxDescriptors:
		return nil, invalid("the request has %d descriptors; send at most %d", len(r.Descriptors), MaxDescriptors)
	}
	compiled := e.compiled.Load()
	if compiled == nil {
		return nil, errNoConfig
	}
	c := e.calls.Get().(*call)
	c.engine, c.compiled, c.request = e, compiled, r
	if err := c.match(); err != nil {
		c.release()
		return nil, err
	}
	return c, nil
}

// withEarlierAnswer returns a context in which the store must answer before the deadline of ctx.
// The margin is for the fallback and for sending the response: a fifth of the time left, at most
// 5 ms.
func withEarlierAnswer(ctx context.Context) context.Context {
	at, ok := ctx.Deadline()
	if !ok {
		return ctx
	}
	return guard.WithAnswerDeadline(ctx, at.Add(-min(time.Until(at)/5, maxMargin)))
}

// maxMargin is the longest time that withEarlierAnswer leaves before the deadline.
const maxMargin = 5 * time.Millisecond

func failed(outcome admission.Outcome, err error) error {
	switch {
	case outcome == admission.Malformed:
		return invalid("the request cannot be decided: %v", err)
	case err != nil:
		return err // the call was canceled
	}
	return errors.New("envoyrls: the request has no decision")
}

// A Code is the class of an Error. The numbers are those of gRPC.
type Code uint32

const (
	InvalidArgument    Code = 3
	FailedPrecondition Code = 9 // there is no configuration yet
	Unavailable        Code = 14
)

// An Error is the reason why a request has no response. The text of an Error may contain numbers of
// the request, but no strings.
type Error struct {
	Code Code
	Text string
}

func (e *Error) Error() string { return e.Text }

func invalid(format string, args ...any) *Error {
	return &Error{InvalidArgument, fmt.Sprintf(format, args...)}
}

var (
	errNoDomain      = &Error{InvalidArgument, "rate limit domain must not be empty"}
	errNoDescriptors = &Error{InvalidArgument, "rate limit descriptor list must not be empty"}
	errNoConfig      = &Error{FailedPrecondition, "no rate limit configuration loaded"}
	errUnavailable   = &Error{Unavailable, "the store gives no answer, and on_failure is error"}
)
