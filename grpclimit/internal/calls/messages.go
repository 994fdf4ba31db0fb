package calls

import (
	"context"
	"time"

	"github.com/penstock/penstock/admission"
)

func (g *Gate) ChargesMessages() bool { return g.options.Messages }

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
	c.IsPartOfStream, c.Patience = true, g.options.MaxMessageWait
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
		if err := sleep(ctx, refusal.RetryAfter); err != nil {
			return nil, err
		}
		c.Patience = max(time.Until(deadline), 1) // not 0, which would stand for each limit's max_wait
	}
}

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
