package admission_test

import (
	"context"
	"testing"

	"github.com/penstock/penstock/admission"
	"github.com/penstock/penstock/internal/testing/effort"
	"github.com/penstock/penstock/memstore"
	"github.com/penstock/penstock/policy"
)

// Events must not add allocations to a request.
func TestAdmitAllocatesOnlyTheKey(t *testing.T) {
	effort.SkipUnderRace(t)
	rules := rulesOf(t, "rules: [{name: a, per: {user: header X-User}, limits: [{rate: 1M/s}]}]")
	sum := 0 // so that the observer uses the decision
	c, err := admission.New(memstore.New(memstore.Options{}), rules, admission.Options{
		Observe: func(e *admission.Event) { sum += int(e.Decision.Remaining() & 1) },
	})
	if err != nil {
		t.Fatal(err)
	}
	var request policy.Attributes = constant{}
	a, ctx := new(admission.Admission), context.Background()
	n := testing.AllocsPerRun(1000, func() {
		*a = admission.Admission{}
		c.Admit(ctx, admission.Request{Attributes: request, RequestOptions: admission.RequestOptions{Reuse: a}})
		a.Done(admission.Result{})
	})
	if n > 1 {
		t.Errorf("a request makes %v allocations; want at most 1, for the key", n)
	}
}

// constant are attributes whose Lookup does not allocate.
type constant struct{ attributes }

var (
	constantUser   = []string{"a"}
	constantMethod = []string{"POST"}
	constantPath   = []string{"/"}
)

func (constant) Lookup(kind policy.Kind, _ string) []string {
	switch kind {
	case policy.KindHeader:
		return constantUser
	case policy.KindMethod:
		return constantMethod
	case policy.KindPath:
		return constantPath
	}
	return nil
}
