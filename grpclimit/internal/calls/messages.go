package calls

import (
	"context"
	"time"

	"github.com/penstock/penstock/admission"
)

// A MessageMode is how the messages of streams are charged. The first message of a stream is
// charged with the stream. Each further one is charged as a call of its own, except that it takes
// no slots of in_flight limits.
type MessageMode uint8

// The modes.
const (
	IgnoreMessages  MessageMode = iota // messages are not charged
	FailMessages                       // a message over a limit is refused
	WaitForMessages                    // a message over a limit waits, so flow control slows the client down
)

const defaultMessageWait = time.Minute

// ChargesMessages reports whether the mode is not IgnoreMessages.
func (g *Gate) ChargesMessages() bool { return g.options.Messages != IgnoreMessages }

// Messages charges the messages that a client sends on one stream. The zero value is for a stream
// that has received no message. Received must not be called concurrently.
type Messages struct {
	hasReceivedFirst bool // the first message, which was charged with the stream, has been received
}

// Received decides a message that was received, and may wait. Call it only if ChargesMessages. If
// Received returns a Refusal or an error, the message must not be processed. An error is the error
// of ctx, which ended during the wait.
func (m *Messages) Received(ctx context.Context, g *Gate, c *Call) (*Refusal, error) {
	if !m.hasReceivedFirst {
		m.hasReceivedFirst = true
		return nil, nil
	}
	c.IsPartOfStream = true
	if g.options.Messages == WaitForMessages {
		c.Patience = g.options.MaxMessageWait
	}
	deadline := time.Now().Add(c.Patience)
	for {
		a, refusal := g.Admit(ctx, c)
		if refusal == nil {
			a.Done(admission.Result{})
			return nil, nil
		}
		// Admit itself waits for limits that make reservations. Other limits, such as windows, are
		// checked again after RetryAfter.
		isInTime := c.Patience != 0 && refusal.RetryAfter <= time.Until(deadline)
		if !refusal.IsTemporary() || !isInTime {
			return refusal, nil
		}
		if err := g.sleep(ctx, refusal.RetryAfter); err != nil {
			return nil, err
		}
		c.Patience = max(time.Until(deadline), 1) // not 0, which would stand for each limit's max_wait
	}
}

// sleep returns after d. If ctx ends before that, sleep returns the error of ctx.
func (g *Gate) sleep(ctx context.Context, d time.Duration) error {
	g.sleeping.Add(1)
	defer g.sleeping.Add(-1)
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
