package admission

import (
	"context"
	"time"

	"github.com/penstock/penstock"
)

// An Event describes the decision about one request, or about one of its shadows. An observer must
// keep neither the Event nor anything that the Event points to, because the memory is reused.
type Event struct {
	// Rule, Limit, Algorithm and Key describe the limit that mattered most: the one that denies for
	// longest, or has the least left. All four are empty if no limit applied. Limit is the limit's
	// name within its rule. A Key may be a secret: it is the identity as the request named it.
	Rule, Limit, Algorithm, Key string

	// Context is the context of the request, for observers that read its values, such as the span of a
	// trace. A Controller always sets it. Transports that make events of their own may leave it nil.
	Context context.Context

	Outcome Outcome

	// Source is who decided. FromFallback means that this process decided alone. If Err is set and
	// Source is FromStore, there was no decision.
	Source penstock.Source

	// Decision is the decision about Charges, in their order. It is nil if nothing was decided by the
	// store or a guard. If the outcome is DeniedNewIdentity, Charges has the charge that this process
	// denied.
	Decision *penstock.Decision
	Charges  []penstock.Charge

	Latency time.Duration // of the decision, without the wait that follows it

	// SkippedRule is the rule of a limit that did not count the admitted request, because the store
	// gave no answer and the limit fails open. Other limits may have counted the request. It is empty
	// if no limit was skipped. If several were, it is the rule of the first.
	SkippedRule string

	// Err is why the store gave no answer. It is nil for the errors that a fallback within the store
	// has handled: such a store reports them itself, as by guard.Options.OnStoreError.
	Err error
}

// An Outcome is what became of a request.
type Outcome uint8

const (
	Allowed           Outcome = iota // admitted: within all limits
	Denied                           // rejected: over a limit
	FailedOpen                       // admitted and not counted: the store gave no answer
	FailedClosed                     // rejected: the store gave no answer
	Unlimited                        // admitted: no limit applies; Event.Rule is empty
	Exempt                           // admitted: on the allow list; Event.Rule is empty
	Refused                          // rejected: on the deny list, or a peer that is not trusted; Event.Rule is empty
	Malformed                        // rejected: servers could read it in different ways, or it names a rule that cannot be called by name; Event.Rule is empty
	Abandoned                        // not served: its context ended before it was decided, or while it waited
	DeniedNewIdentity                // rejected: its address sent too many new identities to this process
	ShadowAllowed                    // a shadow would allow the request; in events only
	ShadowDenied                     // a shadow would deny the request; in events only
	outcomeCount                     // how many outcomes there are
)

var outcomeNames = [outcomeCount]string{"allowed", "denied", "failed_open", "failed_closed", "unlimited", "exempt", "refused", "malformed",
	"abandoned", "denied_new_identity", "shadow_allowed", "shadow_denied"}

func (o Outcome) String() string {
	if o >= outcomeCount {
		return "unknown"
	}
	return outcomeNames[o]
}

// IsAdmitted reports whether the request is to be served.
func (o Outcome) IsAdmitted() bool {
	switch o {
	case Allowed, FailedOpen, Unlimited, Exempt:
		return true
	}
	return false
}

// Outcomes returns all outcomes.
func Outcomes() []Outcome {
	all := make([]Outcome, outcomeCount)
	for i := range all {
		all[i] = Outcome(i)
	}
	return all
}
