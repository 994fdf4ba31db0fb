package calls

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/admission"
	"github.com/penstock/penstock/guard"
	"github.com/penstock/penstock/memstore"
	"github.com/penstock/penstock/policy"
)

// streamOf begins a stream whose messages wait for up to a minute under limits. receive decides the
// next message.
func streamOf(t *testing.T, limits ...penstock.Limit) (receive func() (*Refusal, error)) {
	t.Helper()
	spec, err := policy.Simple("r", policy.Global(), guard.FailDefault, limits...)
	if err != nil {
		t.Fatal(err)
	}
	rules, err := policy.New(spec)
	if err != nil {
		t.Fatal(err)
	}
	controller, err := admission.New(memstore.New(memstore.Options{}), rules, admission.Options{})
	if err != nil {
		t.Fatal(err)
	}
	g, err := New("calls", controller, Options{Messages: true, MaxMessageWait: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	newCall := func() *Call {
		return &Call{Method: "/test.Shop/Chat", Metadata: none{}}
	}
	a, refusal := g.Admit(t.Context(), newCall())
	if refusal != nil {
		t.Fatalf("the stream is refused: %s", refusal.Message)
	}
	a.Done(admission.Result{})
	messages := new(Messages)
	receive = func() (*Refusal, error) { return messages.Received(t.Context(), g, newCall()) }
	if refusal, err := receive(); refusal != nil || err != nil { // the first message was charged with the stream
		t.Fatalf("the first message: %v, %v; want it admitted", refusal, err)
	}
	return receive
}

// After 50 s, when the window has room, the bucket would let the message wait for 50 s more.
func TestMaxMessageWaitBoundsTheWaitsTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		receive := streamOf(t, penstock.Per(1, 50*time.Second).With(penstock.FixedWindow), penstock.Per(1, 100*time.Second))
		begin := time.Now()
		refusal, err := receive()
		if waited := time.Since(begin); err != nil || refusal == nil || waited > time.Minute {
			t.Errorf("after %v, the message gets the refusal %v, error %v; want a refusal within a minute", waited, refusal, err)
		}
	})
}

// none are no Metadata.
type none struct{}

func (none) Values(string) []string     { return nil }
func (none) Has(func(string) bool) bool { return false }
