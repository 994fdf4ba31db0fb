package fastgrpc

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/workers"
)

// A Handler answers one call: it appends the response message to call.Response, or returns an error
// of package status. A context's error becomes CANCELLED or DEADLINE_EXCEEDED, and any other error
// UNKNOWN. The context ends at the caller's deadline or when the connection is closed. The context
// does not end when the caller cancels the call: a decision that has begun is finished. Several
// goroutines may call a Handler at the same time. A Handler must not use the call after it has
// returned.
type Handler func(ctx context.Context, call *Call) error

// A ListHandler answers several calls of one method that arrived together. The ListHandler sets the
// Err of each call for which a Handler would return an error. The responses are sent after the
// ListHandler has returned.
type ListHandler func(ctx context.Context, calls []*Call)

// A Call is one request of a unary method.
type Call struct {
	Request  []byte // the request message
	Response []byte // empty at first; the handler appends the response message
	Err      error  // why the call fails; only a ListHandler sets it

	conn  *conn
	trace traceHeaders
}

// Header returns the value of a header of the call, or "". Only the headers of a trace are
// available, by their names in lower case: traceparent and tracestate.
func (c *Call) Header(name string) string {
	switch name {
	case "traceparent":
		return c.trace.parent
	case "tracestate":
		return c.trace.state
	}
	return ""
}

// Addr returns the address of the client.
func (c *Call) Addr() net.Addr { return c.conn.nc.RemoteAddr() }

// A Caller is what Options.Authorize knows about a call.
type Caller struct {
	Method        string   // as in /package.Service/Method
	Authorization []string // the values of the header authorization
	Addr          net.Addr
}

// Options configure a Server.
type Options struct {
	// Methods are the handlers by full method name, as in /package.Service/Method.
	Methods map[string]Handler

	// Lists are handlers for several calls of one method that arrive together, by full method name.
	// Each of these methods needs a Handler in Methods too. Default: the Handler gets each call by
	// itself.
	Lists map[string]ListHandler

	// Fallback serves all other methods, and requests that are compressed. Fallback gets only requests
	// whose content type begins with application/grpc, after their first message has arrived or the
	// client has ended them. The body of such a request has at most 1 MiB in all. Fallback can be a
	// grpc.Server. If it is, close this Server first, and call Stop of the grpc.Server after that.
	// GracefulStop cannot end the calls that this Server passes to the grpc.Server. Default: such
	// requests fail with UNIMPLEMENTED.
	Fallback http.Handler

	// Authorize is called for each call, before its message is read. To refuse the call, Authorize
	// returns an error of package status. Authorize must be quick. Several goroutines may call it at
	// the same time. Default: every call is accepted.
	Authorize func(Caller) error

	// IsRestricted reports whether a connection may have at most 16 calls of such methods open. Use it
	// for methods that need no token, and for streams that clients keep open: otherwise few clients
	// could fill the memory. Default: no method is restricted.
	IsRestricted func(method string) bool

	// Parallel is how many calls of one connection are handled in parallel. For handlers that never
	// wait, such as those of a memstore, 1 is best. Each connection's goroutine then handles the
	// connection's calls one after another. Default: 256.
	Parallel int

	// MaxParallel is how many calls, or lists of calls (see Lists), of all connections together
	// are handled in parallel. Each connection may handle one more in its own goroutine. The lists
	// together have at most MaxParallel calls besides their first ones. Fallback serves as many calls
	// in parallel, which take about 25 KB each with a grpc.Server; further ones get REFUSED_STREAM.
	// Default: 16,384.
	MaxParallel int

	// MaxConnections is how many clients may be connected. Further clients are disconnected. A
	// connection takes about 20 KB while it is idle, and at most 2.5 MB besides its calls that are
	// handled. Default: 10,000.
	MaxConnections int

	// MaxStreams is how many calls of one connection may be open. A call counts until its handler has
	// returned, even if the client has cancelled it. Default: 2,048.
	MaxStreams int

	// MaxMessage is the size of the largest request message, in bytes. Default: 64 KiB.
	MaxMessage int

	// MaxHeaderList is the size of the largest list of request headers, in bytes. As in HTTP/2,
	// each field counts 32 bytes more than its text. Default: 16 KiB.
	MaxHeaderList int

	// IdleTimeout is how long a connection may be without a call. Afterwards it is drained. Default:
	// 1 hour.
	IdleTimeout time.Duration

	// ReadTimeout is how long one frame or one request may take to arrive. Of a call of Fallback, it
	// is how long the first message may take. The TLS handshake and the first frames together may take
	// as long. Default: 10 seconds.
	ReadTimeout time.Duration

	// WriteTimeout is how long a write to a client may take, and how long a response may wait for
	// the client's flow control. Default: 10 seconds.
	WriteTimeout time.Duration

	// KeepAlive is how long a client with open calls may send nothing before it gets a ping. The
	// client must answer the ping within ReadTimeout. Default: 5 minutes.
	KeepAlive time.Duration

	// MaxAge is the age at which a connection is drained, so that its client connects again. Each
	// connection gets an age that differs from MaxAge by up to 10 %. Default: no bound.
	MaxAge time.Duration

	// MaxAgeGrace is how long the open calls of a connection may continue after its end was
	// announced. Default: 1 hour.
	MaxAgeGrace time.Duration
}

// The defaults of Options.
const (
	defaultParallel       = 256
	defaultMaxParallel    = 16_384
	defaultMaxConnections = 10_000
	defaultMaxStreams     = 2048
	defaultMaxMessage     = 64 << 10
	defaultMaxHeaderList  = 16 << 10
	defaultIdleTimeout    = time.Hour
	defaultReadTimeout    = 10 * time.Second
	defaultWriteTimeout   = 10 * time.Second
	defaultKeepAlive      = 5 * time.Minute
	defaultMaxAgeGrace    = time.Hour
)

func (o *Options) setDefaults() {
	for field, value := range map[*int]int{
		&o.Parallel: defaultParallel, &o.MaxParallel: defaultMaxParallel, &o.MaxConnections: defaultMaxConnections, &o.MaxStreams: defaultMaxStreams,
		&o.MaxMessage: defaultMaxMessage, &o.MaxHeaderList: defaultMaxHeaderList,
	} {
		if *field <= 0 {
			*field = value
		}
	}
	for field, value := range map[*time.Duration]time.Duration{
		&o.IdleTimeout: defaultIdleTimeout, &o.ReadTimeout: defaultReadTimeout, &o.WriteTimeout: defaultWriteTimeout, &o.KeepAlive: defaultKeepAlive,
		&o.MaxAgeGrace: defaultMaxAgeGrace,
	} {
		if *field <= 0 {
			*field = value
		}
	}
}

// A Server answers gRPC clients. Make one with New. Many goroutines may use it at the same
// time.
type Server struct {
	options      Options
	workers      *workers.Pool[*stream]
	listHandlers map[string]*ListHandler
	listedCalls  atomic.Int64 // calls in lists, without the first call of each list
	exchanges    atomic.Int64 // calls that the fallback serves

	ctx    context.Context // the parent of the contexts of all connections; Close cancels it
	cancel context.CancelFunc

	isClosing atomic.Bool // set with mu held

	mu         sync.Mutex
	closing    chan struct{} // closed by stop, so that Serve does not wait until its pause ends
	listeners  map[net.Listener]struct{}
	connected  map[*conn]struct{}
	goroutines sync.WaitGroup // the goroutines of connections and of handlers
}

// New makes a Server. An error wraps penstock.ErrInvalid.
func New(o Options) (*Server, error) {
	o.setDefaults()
	for name, handler := range o.Methods {
		if strings.Count(name, "/") != 2 || name[0] != '/' || handler == nil {
			return nil, fmt.Errorf("%w: fastgrpc: Options.Methods has %q; write a name such as /package.Service/Method, and a handler that is not nil", penstock.ErrInvalid, name)
		}
	}
	if o.MaxMessage > maxBufferedBytes || o.MaxHeaderList > maxBufferedBytes {
		return nil, fmt.Errorf("%w: fastgrpc: MaxMessage and MaxHeaderList may be at most %d bytes", penstock.ErrInvalid, maxBufferedBytes)
	}
	s := &Server{options: o, closing: make(chan struct{}), listeners: make(map[net.Listener]struct{}), connected: make(map[*conn]struct{})}
	s.listHandlers = make(map[string]*ListHandler, len(o.Lists))
	for name, handler := range o.Lists {
		if o.Methods[name] == nil || handler == nil {
			return nil, fmt.Errorf("%w: fastgrpc: Options.Lists has %q; it needs a handler that is not nil, and a handler in Options.Methods", penstock.ErrInvalid, name)
		}
		s.listHandlers[name] = &handler
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.workers = workers.New(o.MaxParallel, func(first *stream) {
		defer s.goroutines.Done()
		first.handle()
	})
	return s, nil
}

// ErrServerClosed is returned by Serve after Shutdown or Close.
var ErrServerClosed = errors.New("fastgrpc: the server is closed")

// Serve accepts clients until the Server is closed or the listener fails, and closes the listener.
// A listener of crypto/tls must offer the protocol h2. Serve may be called for several listeners.
func (s *Server) Serve(l net.Listener) error {
	defer l.Close()
	if !s.addListener(l) {
		return ErrServerClosed
	}
	defer s.removeListener(l)
	var pause time.Duration // after the last error of Accept; 0 after a success
	for {
		nc, err := l.Accept()
		switch {
		case err == nil:
			pause = 0
			s.serveConn(nc)
		case s.isClosing.Load():
			return ErrServerClosed
		case !isTemporary(err):
			return fmt.Errorf("fastgrpc: accept: %w", err)
		default: // for example, too many files are open
			pause = min(max(2*pause, minPause), maxPause)
			select {
			case <-time.After(pause):
			case <-s.closing:
			}
		}
	}
}

// The shortest and the longest pause after an accept with a temporary error.
const (
	minPause = 5 * time.Millisecond
	maxPause = time.Second
)

// isTemporary reports whether a later Accept may succeed. The method Temporary is deprecated,
// except for the errors of Accept.
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

func (s *Server) removeListener(l net.Listener) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.listeners, l)
}

// serveConn serves a connection in a goroutine of its own. If the server has too many connections,
// serveConn closes this one.
func (s *Server) serveConn(nc net.Conn) {
	c := newConn(s, nc)
	s.mu.Lock()
	if len(s.connected) >= s.options.MaxConnections || s.isClosing.Load() {
		s.mu.Unlock()
		nc.Close()
		return
	}
	s.connected[c] = struct{}{}
	s.goroutines.Add(1)
	s.mu.Unlock()
	go func() {
		defer s.goroutines.Done()
		defer s.disconnect(c)
		c.serve()
	}()
}

func (s *Server) disconnect(c *conn) {
	c.close()
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.connected, c)
}

// Connections returns how many clients are connected.
func (s *Server) Connections() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.connected)
}

// Shutdown stops accepting clients and sends GOAWAY to the connected ones. Each connection is
// closed after its open calls were answered. If ctx ends first, Shutdown returns the error of ctx.
// Close can then end the remaining connections.
func (s *Server) Shutdown(ctx context.Context) error {
	s.stop((*conn).drain)
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

// Close closes all listeners and connections, and returns when their goroutines have ended.
func (s *Server) Close() error {
	s.stop((*conn).close)
	s.cancel()
	s.goroutines.Wait()
	s.workers.Stop()
	return nil
}

// stop closes the listeners, and calls endConn with each connection.
func (s *Server) stop(endConn func(*conn)) {
	s.mu.Lock()
	if !s.isClosing.Load() {
		s.isClosing.Store(true)
		close(s.closing)
	}
	for l := range s.listeners {
		l.Close()
	}
	connected := make([]*conn, 0, len(s.connected))
	for c := range s.connected {
		connected = append(connected, c)
	}
	s.mu.Unlock()
	for _, c := range connected {
		endConn(c)
	}
}
