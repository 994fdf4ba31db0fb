package calls

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock/admission"
	"github.com/penstock/penstock/memstore"
	"github.com/penstock/penstock/policy"
	"github.com/penstock/penstock/policy/policyfile"
)

// streamOf begins a stream whose messages wait for up to a minute under limits. receive decides the
// next message.
func streamOf(t *testing.T, limits string) (g *Gate, receive func() (*Refusal, error)) {
	t.Helper()
	config, err := policyfile.Parse("test.yaml", []byte(`rules: [{name: r, per: global, limits: [`+limits+`]}]`), nil, policyfile.Options{})
	if err != nil {
		t.Fatal(err)
	}
	compiled, err := config.Compile()
	if err != nil {
		t.Fatal(err)
	}
	controller, err := admission.New(memstore.New(memstore.Options{}), policy.Fixed(compiled.Rules), admission.Options{})
	if err != nil {
		t.Fatal(err)
	}
	g, err = New("calls", controller, Options{Messages: WaitForMessages, MaxMessageWait: time.Minute})
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
	return g, receive
}

// After 50 s, when the window has room, the bucket would let the message wait for 50 s more.
func TestMaxMessageWaitBoundsTheWaitsTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, receive := streamOf(t, "{rate: 1/50s, algorithm: fixed-window}, {rate: 1/100s}")
		begin := time.Now()
		refusal, err := receive()
		if waited := time.Since(begin); err != nil || refusal == nil || waited > time.Minute {
			t.Errorf("after %v, the message gets the refusal %v, error %v; want a refusal within a minute", waited, refusal, err)
		}
	})
}

// A message waits for a reservation of a bucket, or until a window has room.
func TestWaitingCountsMessages(t *testing.T) {
	for _, limit := range []string{"{rate: 1/50s}", "{rate: 1/50s, algorithm: fixed-window}"} {
		synctest.Test(t, func(t *testing.T) {
			g, receive := streamOf(t, limit)
			go receive()
			synctest.Wait()
			if n := g.controller.Waiting() + g.Waiting(); n != 1 {
				t.Errorf("%s: while a message waits, %d are counted; want 1", limit, n)
			}
			time.Sleep(time.Minute)
			if n := g.controller.Waiting() + g.Waiting(); n != 0 {
				t.Errorf("%s: after the wait, %d are counted; want 0", limit, n)
			}
		})
	}
}

// none are no Metadata.
type none struct{}

func (none) Values(string) []string     { return nil }
func (none) Has(func(string) bool) bool { return false }
