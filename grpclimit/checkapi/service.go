package checkapi

import (
	"crypto/rand"
	"fmt"
	"sync/atomic"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/admission"
	"github.com/penstock/penstock/internal/bearer"
)

// Options configure a Service. If neither CallerToken nor AllowAnonymous is set, all calls without
// the operator token are refused.
type Options struct {
	// CallerToken authenticates callers. Default: none.
	CallerToken []byte

	// OperatorToken authenticates operators, who may also call Peek, Reset and Explain. Default:
	// none, and all calls of these are refused.
	OperatorToken []byte

	// AllowAnonymous accepts calls without a token. It is for listeners that only trusted programs
	// can reach: on loopback, on a unix socket, or with client certificates. Peek, Reset and Explain
	// still need the operator token.
	AllowAnonymous bool

	// AllowStatedLimits accepts limits that callers state in their requests. The counters have the
	// group policy.StatedGroup. Default: only the limits of the policy.
	AllowStatedLimits bool

	// AuthFailed is called for each call over HTTP that is refused for its token. Callers can cause
	// this at will, so log it at a bounded rate. Many goroutines call it at once. It must be quick.
	// Default: none.
	AuthFailed func(AuthFailure)

	// Secret encrypts the ids of reservations and holds. Processes with the same secret can settle
	// each other's reservations, also after a restart. It must be hard to guess, such as 16 random
	// bytes. Default: a random secret.
	Secret []byte

	// Parallel is how many requests of a batch are decided at once. A redisstore then decides many
	// requests in one script call. 1 is best for a memstore. Default: 64.
	Parallel int

	// MaxParallel is how many requests are decided at once in all batches together, in addition to
	// one in each batch. Default: 1,024.
	MaxParallel int
}

const (
	defaultParallel    = 64
	defaultMaxParallel = 1024
)

// A Service implements the calls of the API. Make one with New. Many goroutines may use it at
// once.
type Service struct {
	store      penstock.Store
	controller *admission.Controller
	options    Options
	tokens     tokens
	stated     *statedLimits
	sealer     *sealer

	parallel atomic.Int64 // goroutines that decide requests of batches
}

// New makes a Service. The controller decides requests. The store must be the one that the
// controller has, with its guards. It gets the corrections of Settle. An error wraps
// penstock.ErrInvalid.
func New(store penstock.Store, controller *admission.Controller, o Options) (*Service, error) {
	if store == nil || controller == nil {
		return nil, fmt.Errorf("%w: checkapi: the store or the controller is nil; memstore.New and admission.New make them", penstock.ErrInvalid)
	}
	for name, token := range map[string][]byte{"CallerToken": o.CallerToken, "OperatorToken": o.OperatorToken} {
		if len(token) > bearer.MaxToken {
			return nil, fmt.Errorf("%w: checkapi: Options.%s has %d bytes; the longest has %d", penstock.ErrInvalid, name, len(token), bearer.MaxToken)
		}
	}
	if o.Parallel <= 0 {
		o.Parallel = defaultParallel
	}
	if o.MaxParallel <= 0 {
		o.MaxParallel = defaultMaxParallel
	}
	if o.AuthFailed == nil {
		o.AuthFailed = func(AuthFailure) {}
	}
	secret := o.Secret
	if len(secret) == 0 {
		secret = []byte(rand.Text())
	}
	return &Service{
		store: store, controller: controller, options: o, tokens: newTokens(o), stated: newStatedLimits(), sealer: newSealer(secret),
	}, nil
}
