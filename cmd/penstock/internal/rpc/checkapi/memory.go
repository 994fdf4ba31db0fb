package checkapi

import (
	"io"

	"google.golang.org/grpc/codes"

	"github.com/penstock/penstock/grpclimit/penstockv1"
)

type Memory interface {
	Take(bytes int64) bool // returns false if there are not so many left
	Release(bytes int64)   // releases taken bytes
	Refused()              // reports that a call was refused because Take has returned false
}

const (
	// smallCall is the largest body in bytes, and the largest estimate of the answers of a batch, for
	// which nothing is taken from Options.Memory.
	smallCall = 16 << 10

	// memoryPerByte is how many bytes each byte of a body takes: itself, and the decoded request.
	memoryPerByte = 8

	// memoryOfCheck is what a request of a batch takes until its answer is written, in bytes.
	// memoryOfLimit is the same for each of its limits: the charge, and the status in the answer and
	// in JSON.
	memoryOfCheck = 1 << 10
	memoryOfLimit = 600

	// limitsOfAttributes is how many limits are assumed to apply to a request by its attributes.
	limitsOfAttributes = 4
)

var errNoMemory = &failure{
	code: codes.Unavailable, text: "large calls in flight use all memory of the instance; nothing was charged", retryAfter: unavailableRetry,
}

// heldMemory is what a call has taken from a Memory. It is nil for a small call without a batch.
type heldMemory struct {
	memory Memory
	bytes  int64
}

// take takes bytes until release. It fails with errNoMemory.
func (r *heldMemory) take(bytes int64) error {
	if r == nil || r.memory == nil {
		return nil
	}
	if !r.memory.Take(bytes) {
		r.memory.Refused()
		return errNoMemory
	}
	r.bytes += bytes
	return nil
}

func (r *heldMemory) release() {
	if r != nil && r.memory != nil {
		r.memory.Release(r.bytes)
	}
}

// takeForAnswers takes what the requests of a batch and their answers need, unless it is little.
func (s *Service) takeForAnswers(r *penstockv1.CheckBatchRequest, held *heldMemory) error {
	if len(r.GetChecks()) > maxBatch {
		return nil // CheckBatch refuses it
	}
	rules := s.controller.Rules()
	bytes := int64(0)
	for _, check := range r.GetChecks() {
		limits := len(check.GetLimits())
		if rule := rules.Rule(check.GetRule()); rule != nil {
			limits = len(rule.Limits)
		} else if check.GetAttributes() != nil {
			limits = limitsOfAttributes
		}
		bytes += memoryOfCheck + int64(limits)*memoryOfLimit
	}
	if bytes <= smallCall {
		return nil
	}
	return held.take(bytes)
}

// A meteredBody takes memory while a body is read, as soon as it has more than smallCall bytes.
type meteredBody struct {
	io.Reader
	held  *heldMemory
	read  int64
	taken int64
}

func (b *meteredBody) Read(p []byte) (int, error) {
	n, err := b.Reader.Read(p)
	b.read += int64(n)
	if b.read > smallCall {
		more := b.read*memoryPerByte - b.taken
		if takeErr := b.held.take(more); takeErr != nil {
			return n, takeErr
		}
		b.taken += more
	}
	return n, err
}
