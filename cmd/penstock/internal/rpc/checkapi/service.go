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

	// OperatorToken authenticates operators, who may also call Peek, Reset and Explain. Default: none,
	// so that all calls of Peek, Reset and Explain are refused.
	OperatorToken []byte

	// AllowAnonymous accepts calls without a token. It is for listeners that only trusted programs
	// can reach: on loopback, on a unix socket, or with client certificates. Peek, Reset and Explain
	// still need the operator token.
	AllowAnonymous bool

	// AllowCallerLimits accepts limits that callers send with their requests. Their counters are in
	// the group reserved.CallerLimits. Default: callers can only use the limits of the policy.
	AllowCallerLimits bool

	// AuthFailed is called for each call over HTTP that is refused because its token is missing,
	// wrong or insufficient: no_token, wrong_token or not_operator. Anyone can send such calls, so
	// log them at a bounded rate. Many goroutines may call AuthFailed at the same time, and it must
	// be quick. Default: none.
	AuthFailed func(reason string)

	// Secret encrypts the ids of reservations and holds. Processes with the same secret can settle
	// each other's reservations, also after a restart. It must be hard to guess, such as 16 random
	// bytes. Default: a random secret.
	Secret []byte

	// Region is the name of the region whose store the Service uses. Services of other regions refuse
	// its reservations and holds. Default: none, so that any Service with the Secret accepts them.
	Region string

	// Memory bounds what large calls and batches take. A call for which nothing is left fails with
	// 503, over gRPC with UNAVAILABLE, before it charges anything. Default: no bound.
	Memory Memory

	// Parallel is how many requests of a batch are decided at the same time. A redisstore then decides
	// many requests in one script call. 1 is best for a memstore. Default: 64.
	Parallel int

	// MaxParallel is how many goroutines all batches together may start to decide requests. The
	// goroutine that called CheckBatch also decides requests, and is not counted. Default: 1,024.
	MaxParallel int
}

const (
	defaultParallel    = 64
	defaultMaxParallel = 1024
)

// A Service implements the calls of the API. Make one with New. It is safe for concurrent use. The
// methods with the names of calls need an authenticated caller: for Peek, Reset and Explain an
// operator.
type Service struct {
	store        penstock.Store
	controller   *admission.Controller
	options      Options
	tokens       tokens
	callerLimits *callerLimits
	idCipher     *idCipher

	parallel *atomic.Int64 // goroutines that batches have started; at most MaxParallel
}

// New makes a Service. The controller decides requests. Settle, Renew, Release and Reset call the
// store directly, so it must be the controller's store, with the guards around it. An error wraps
// penstock.ErrInvalid.
func New(store penstock.Store, controller *admission.Controller, o Options) (*Service, error) {
	for name, token := range map[string][]byte{"CallerToken": o.CallerToken, "OperatorToken": o.OperatorToken} {
		if len(token) > bearer.MaxToken {
			return nil, fmt.Errorf("%w: checkapi: Options.%s has %d bytes; at most %d are allowed", penstock.ErrInvalid, name, len(token), bearer.MaxToken)
		}
	}
	if o.Parallel <= 0 {
		o.Parallel = defaultParallel
	}
	if o.MaxParallel <= 0 {
		o.MaxParallel = defaultMaxParallel
	}
	if o.AuthFailed == nil {
		o.AuthFailed = func(string) {}
	}
	secret := o.Secret
	if len(secret) == 0 {
		secret = []byte(rand.Text())
	}
	return &Service{
		store: store, controller: controller, options: o, tokens: newTokens(o), callerLimits: newCallerLimits(), idCipher: newIDCipher(secret, o.Region),
		parallel: new(atomic.Int64),
	}, nil
}

// WithAnonymous returns a Service that differs from s only in Options.AllowAnonymous. It is for
// another listener of the process: both Services have the same caches and the same MaxParallel.
func (s *Service) WithAnonymous(isAllowed bool) *Service {
	c := *s
	c.tokens.isOpen = isAllowed
	return &c
}
