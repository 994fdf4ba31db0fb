package resplimit

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/admission"
	"github.com/penstock/penstock/internal/batches"
	"github.com/penstock/penstock/internal/workers"
)

// Options configure a Server. Either Credentials or AllowAnonymous must be set.
type Options struct {
	// Credentials are what clients may authenticate with. A client that has not authenticated gets
	// the error NOAUTH, and no decision.
	Credentials []Credential

	// AllowAnonymous serves clients without a credential. Set it only for listeners that only trusted
	// clients reach: on loopback, on a unix socket, or with client certificates.
	AllowAnonymous bool

	// LimitName is the Name of the limit that CL.THROTTLE and THROTTLE charge. A limit of this name
	// has one counter for a key, whatever numbers come with the call. Default: "cl.throttle".
	LimitName string

	// Parallel is how many commands of one pipeline are decided in parallel. A redisstore decides
	// them together in few scripts. 1 is best for a memstore, because it never waits. Default: 64.
	Parallel int

	// MaxConnections is how many clients may be connected. Further clients get an error and are
	// disconnected. An idle connection takes about 12 KB. A connection takes at most 250 KB: 66 KB of
	// input, 66 KB of keys, 96 KB of decisions and 20 KB of replies. Default: 10,000.
	MaxConnections int

	// IdleTimeout is how long a client may be silent between commands. Default: 5 minutes.
	IdleTimeout time.Duration

	// ReadTimeout is how long one command may take to arrive, and how long a client may take to
	// authenticate. Default: 10 seconds.
	ReadTimeout time.Duration

	// Observe is called with the decision about each CL.THROTTLE and THROTTLE, unless its quantity is
	// 0. Rule and Limit of the event are LimitName. If the client gets an error because the store gave
	// no decision, the outcome is FailedClosed and the event has Err. The controller emits the events
	// of PENSTOCK.CHECK. Several goroutines may call Observe at the same time. Observe must be quick,
	// and must not keep the Event. Default: none.
	Observe func(*admission.Event)

	// AuthFailed is called each time that a client is rejected for its password, with the client's
	// address. The reason is wrong_password, or no_password for a command without authentication.
	// Clients can cause many such calls, so log them at a bounded rate. Several goroutines may call
	// AuthFailed at the same time. AuthFailed must be quick. Default: none.
	AuthFailed func(reason string, client net.Addr)

	maxParallel  int           // how many commands of all connections are decided in parallel; for tests
	writeTimeout time.Duration // how long a client may take to receive replies; for tests
}

// The defaults of Options.
const (
	defaultLimitName      = "cl.throttle"
	defaultParallel       = 64
	defaultMaxParallel    = 1024
	defaultMaxConnections = 10_000
	defaultIdleTimeout    = 5 * time.Minute
	defaultReadTimeout    = 10 * time.Second
	defaultWriteTimeout   = 10 * time.Second
)

func (o *Options) setDefaults() {
	o.LimitName = cmp.Or(o.LimitName, defaultLimitName)
	setDefault(&o.Parallel, defaultParallel)
	setDefault(&o.maxParallel, defaultMaxParallel)
	setDefault(&o.MaxConnections, defaultMaxConnections)
	setDefault(&o.IdleTimeout, defaultIdleTimeout)
	setDefault(&o.ReadTimeout, defaultReadTimeout)
	setDefault(&o.writeTimeout, defaultWriteTimeout)
}

func setDefault[T int | time.Duration](field *T, value T) {
	if *field <= 0 {
		*field = value
	}
}

// A Server serves Redis clients. Make one with New. Several goroutines may use it at the same time.
type Server struct {
	store       penstock.Store
	decideStore batches.Func // of the store, if it decides lists; else nil
	controller  *admission.Controller
	options     Options
	credentials credentials
	plans       *plans
	startedAt   time.Time

	ctx    context.Context // of decisions; Close cancels it
	cancel context.CancelFunc

	lastID  atomic.Int64
	workers *workers.Pool[func()] // decide for connections

	extraJobs atomic.Int64 // jobs in lists that are being decided; the first job of each list does not count

	isClosing atomic.Bool // set with mu held

	mu         sync.Mutex
	closing    chan struct{} // closed by stop, so that Serve does not wait until its pause ends
	listeners  map[net.Listener]struct{}
	connected  map[*client]struct{}
	goroutines sync.WaitGroup // the goroutines of connections
}

// New makes a Server. The store decides CL.THROTTLE and THROTTLE. The controller decides
// PENSTOCK.CHECK. Either may be nil: then the reply to its commands is an error. The store should
// have the guards of guard.Standard, so that each decision ends in time. The error of New wraps
// penstock.ErrInvalid.
func New(store penstock.Store, controller *admission.Controller, o Options) (*Server, error) {
	o.setDefaults()
	if len(o.Credentials) == 0 && !o.AllowAnonymous {
		return nil, fmt.Errorf("%w: resplimit: any client could connect; set Options.Credentials, or AllowAnonymous if that is intended", penstock.ErrInvalid)
	}
	for _, c := range o.Credentials {
		if c.Password == "" || len(c.Password) > maxBulk {
			return nil, fmt.Errorf("%w: resplimit: a credential of user %q has a password of %d bytes; write 1 to %d", penstock.ErrInvalid, c.User, len(c.Password), maxBulk)
		}
	}
	plans, err := newPlans(o.LimitName)
	if err != nil {
		return nil, fmt.Errorf("resplimit: Options.LimitName: %w", err)
	}
	s := &Server{
		store: store, controller: controller, options: o, credentials: hashCredentials(o.Credentials), plans: plans, startedAt: time.Now(),
		closing: make(chan struct{}), listeners: make(map[net.Listener]struct{}), connected: make(map[*client]struct{}),
	}
	s.decideStore = batches.Find(store)
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.workers = workers.New(o.maxParallel, func(help func()) { help() })
	return s, nil
}

// ErrServerClosed is returned by Serve after Shutdown or Close.
var ErrServerClosed = errors.New("resplimit: the server is closed")

// Serve accepts clients until the Server is closed or the listener fails, and closes the listener.
// Serve may be called for several listeners.
func (s *Server) Serve(l net.Listener) error {
	defer l.Close()
	if !s.addListener(l) {
		return ErrServerClosed
	}
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.listeners, l)
	}()
	var pause time.Duration // after the last error of Accept; 0 after a success
	for {
		conn, err := l.Accept()
		switch {
		case err == nil:
			pause = 0
			s.serveConn(conn)
		case s.isClosing.Load():
			return ErrServerClosed
		case !isTemporary(err):
			return fmt.Errorf("resplimit: accept: %w", err)
		default: // a temporary error, such as too many open files
			pause = min(max(2*pause, minPause), maxPause)
			select {
			case <-time.After(pause):
			case <-s.closing:
			}
		}
	}
}

// The shortest and the longest pause after a temporary error of Accept.
const (
	minPause = 5 * time.Millisecond
	maxPause = time.Second
)

// isTemporary reports whether a later Accept may succeed. The method Temporary is deprecated,
// except for errors of Accept.
func isTemporary(err error) bool {
	t, ok := errors.AsType[interface {
		error
		Temporary() bool
	}](err)
	return ok && t.Temporary()
}

func (s *Server) addListener(l net.Listener) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.isClosing.Load() {
		return false
	}
	s.listeners[l] = struct{}{}
	return true
}

// serveConn serves a connection in a goroutine of its own, unless there are too many.
func (s *Server) serveConn(conn net.Conn) {
	c := newClient(s, conn)
	s.mu.Lock()
	isFull := len(s.connected) >= s.options.MaxConnections
	if isFull || s.isClosing.Load() {
		s.mu.Unlock()
		reject(conn, isFull)
		return
	}
	s.connected[c] = struct{}{}
	s.goroutines.Go(func() {
		defer s.disconnect(c)
		c.serve()
	})
	s.mu.Unlock()
}

func (s *Server) disconnect(c *client) {
	c.conn.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.connected, c)
}

// reject closes a connection. The error fits in the empty buffer of a new socket, so writing it
// does not block. A TLS connection gets none, because it would need a handshake first.
func reject(conn net.Conn, isFull bool) {
	if _, isTLS := conn.(*tls.Conn); isFull && !isTLS {
		conn.SetWriteDeadline(time.Now().Add(rejectTimeout))
		conn.Write([]byte("-ERR max number of clients reached\r\n"))
	}
	conn.Close()
}

// rejectTimeout bounds the time of writing to a client that is rejected. A new socket does not make
// the write wait. But a short timeout could pass before the write begins if the machine is busy.
const rejectTimeout = time.Second

// Connections returns how many clients are connected.
func (s *Server) Connections() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.connected)
}

// Shutdown stops accepting clients, answers the commands that have been received, and closes each
// connection once it is idle. If ctx ends first, Shutdown returns the error of ctx. Close can then
// end the remaining connections.
func (s *Server) Shutdown(ctx context.Context) error {
	s.stop(func(c *client) { c.conn.SetReadDeadline(past) })
	idle := make(chan struct{})
	go func() {
		s.goroutines.Wait()
		close(idle)
	}()
	select {
	case <-idle:
		s.cancel()
		s.workers.Stop()
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// past is a deadline that ends a read immediately.
var past = time.Unix(1, 0)

// Close closes all listeners and connections, and returns when their goroutines have ended.
// Commands whose decision is in flight get no reply.
func (s *Server) Close() error {
	s.stop(func(c *client) { c.conn.Close() })
	s.cancel()
	s.goroutines.Wait()
	s.workers.Stop()
	return nil
}

// stop closes the listeners, and calls endClient with each connection.
func (s *Server) stop(endClient func(*client)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.isClosing.Load() {
		s.isClosing.Store(true)
		close(s.closing)
	}
	for l := range s.listeners {
		l.Close()
	}
	for c := range s.connected {
		endClient(c)
	}
}
