package service

import (
	"context"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"

	"github.com/penstock/penstock/internal/panicked"
)

// isRestricted reports whether a connection may have only a few calls of a method open: health
// checks and reflection. Health checks need no token, and clients keep streams of both open. So
// without a bound, few clients could fill the memory.
func isRestricted(method string) bool {
	name := serviceName(method)
	return name == healthService || strings.HasPrefix(name, reflectionServices)
}

// reflectionServices is the prefix of the names of all versions of the reflection service.
const reflectionServices = "grpc.reflection."

const (
	// maxRestricted is how many calls of restricted methods a connection may have open.
	maxRestricted = 16

	// maxRestrictedMessage is the size in bytes of the largest message of a restricted method. It
	// holds the name of a service or a symbol.
	maxRestrictedMessage = 4 << 10

	// maxSlowRestricted is how many messages of restricted methods may be incomplete for longer than
	// slowMessage, in the whole process. grpc-go has one limit for the messages of all methods, and
	// keeps up to maxMessage bytes of each until it is complete. Slow messages of the other methods
	// may take a quarter of the memory budget.
	maxSlowRestricted = 32
	slowMessage       = 200 * time.Millisecond
)

// A grpcConnection counts the calls of one connection that are not finished.
type grpcConnection struct {
	credentials.AuthInfo
	calls      atomic.Int64
	restricted atomic.Int64
}

type connectionCredentials struct {
	credentials.TransportCredentials
}

func (c connectionCredentials) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := c.TransportCredentials.ServerHandshake(conn)
	return conn, &grpcConnection{AuthInfo: info}, err
}

func (c connectionCredentials) Clone() credentials.TransportCredentials {
	return connectionCredentials{c.TransportCredentials.Clone()}
}

// checkBeforeReading returns a function that authenticates a call before its message is read,
// unless authenticate is nil. It also bounds the open calls of restricted methods, the memory of
// all calls, and how long their messages may take. A call that it refuses keeps nothing.
func (c *grpcCalls) checkBeforeReading(authenticate authenticator) tap.ServerInHandle {
	return func(ctx context.Context, info *tap.Info) (_ context.Context, err error) {
		defer func() { // grpc-go calls this function in the goroutine of the connection
			if value := recover(); value != nil {
				panicked.Report("a gRPC call is authenticated", value)
				err = status.Error(codes.Internal, panicked.Message)
			}
		}()
		client, _ := peer.FromContext(ctx)
		if authenticate != nil {
			if err := authenticate(info.FullMethodName, info.Header.Get("authorization"), client.Addr); err != nil {
				return ctx, err
			}
		}
		if ctx.Err() != nil { // a timeout of 0; grpc-go does not handle the call
			return ctx, status.Error(codes.DeadlineExceeded, "the timeout of the call has passed")
		}
		if !c.methods[info.FullMethodName] {
			return ctx, status.Errorf(codes.Unimplemented, "there is no method %q here; the services at this address are %s", info.FullMethodName, c.services)
		}
		call := &grpcCall{calls: c, connection: client.AuthInfo.(*grpcConnection), isRestricted: isRestricted(info.FullMethodName)}
		if err := call.take(info.Header); err != nil {
			return ctx, err
		}
		return call.start(ctx), nil
	}
}

// A grpcCall takes memory from the headers of a call to the end of its handler, also if the client
// resets the call before. Its messageTimer bounds how long the message may take.
type grpcCall struct {
	messageTimer
	calls        *grpcCalls
	connection   *grpcConnection
	isRestricted bool
	memory       int64       // bytes that take has taken
	hasBegun     atomic.Bool // the handler
	hasReleased  atomic.Bool
}

type callKey struct{}

// callIn returns the call of a context that start has returned, or one derived from it.
func callIn(ctx context.Context) *grpcCall { return ctx.Value(callKey{}).(*grpcCall) }

// take returns an error if the call must be refused.
func (c *grpcCall) take(headers metadata.MD) error {
	if c.isRestricted && c.connection.restricted.Add(1) > maxRestricted {
		c.connection.restricted.Add(-1)
		return status.Errorf(codes.ResourceExhausted, "this connection has %d health checks and reflection calls open; end one of them first", maxRestricted)
	}
	// grpc-go runs at most maxStreams handlers. If there are more calls than these and this one, some
	// have ended without a handler.
	if c.connection.calls.Add(1) <= maxStreams+1 {
		c.memory = memoryOfGRPCCall
		for name, values := range headers {
			for _, value := range values {
				c.memory += memoryOfField + 2*int64(len(name)+len(value))
			}
		}
	}
	if !c.calls.service.memory.Take(c.memory) {
		c.memory = 0
		c.release()
		c.calls.service.memory.Refused()
		return status.Error(codes.Unavailable, "calls in flight use all memory for requests; try again")
	}
	return nil
}

func (c *grpcCall) start(ctx context.Context) context.Context {
	ctx, cancel := context.WithCancel(context.WithValue(ctx, callKey{}, c))
	slow := &c.calls.slow
	if c.isRestricted {
		slow = &c.calls.slowRestricted
	}
	c.startTimer(ctx, slow, c.calls.messageTimeout, cancel, c.canceled)
	return ctx
}

// canceled is called if the context of the call has ended for some time, and finish was not called.
// grpc-go answers a few calls without a handler, such as those with an unknown compression.
func (c *grpcCall) canceled() {
	if !c.hasBegun.Load() {
		c.release()
	}
}

// begin must be called when the handler of the call begins, and finish when it has ended.
func (c *grpcCall) begin() { c.hasBegun.Store(true) }

func (c *grpcCall) finish() {
	c.stopTimer()
	c.release()
}

func (c *grpcCall) release() {
	if !c.hasReleased.CompareAndSwap(false, true) {
		return
	}
	c.calls.service.memory.Release(c.memory)
	c.connection.calls.Add(-1)
	if c.isRestricted {
		c.connection.restricted.Add(-1)
	}
}

// A callRegistrar registers services whose handlers begin and finish their grpcCall. For streams,
// interceptStream does this.
type callRegistrar struct{ grpc.ServiceRegistrar }

func (r callRegistrar) RegisterService(description *grpc.ServiceDesc, server any) {
	own := *description
	own.Methods = slices.Clone(own.Methods)
	for i, method := range own.Methods {
		own.Methods[i].Handler = func(server any, ctx context.Context, decode func(any) error, interceptor grpc.UnaryServerInterceptor) (any, error) {
			call := callIn(ctx)
			call.begin()
			defer call.finish()
			return method.Handler(server, ctx, decode, interceptor)
		}
	}
	r.ServiceRegistrar.RegisterService(&own, server)
}

// slowMessages counts the messages that are incomplete after slowMessage.
type slowMessages struct {
	limit int64 // the largest count
	count atomic.Int64
}

// take counts a message. It returns false, and does not count it, if the limit is reached.
func (s *slowMessages) take() bool {
	if s.count.Add(1) > s.limit {
		s.count.Add(-1)
		return false
	}
	return true
}

// A messageTimer bounds how long a message may take.
type messageTimer struct {
	mu       sync.Mutex // guards the following
	timer    *time.Timer
	slow     *slowMessages
	isSlow   bool // counted by slow
	hasEnded bool
}

// startTimer calls cancel, which must end ctx, unless stopTimer is called in time: within timeout,
// or within slowMessage if slow has reached its limit. It calls canceled if stopTimer is not called
// within slowMessage after the end of ctx.
func (m *messageTimer) startTimer(ctx context.Context, slow *slowMessages, timeout time.Duration, cancel, canceled func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.slow = slow
	wasCanceled := false
	m.timer = time.AfterFunc(min(slowMessage, timeout), func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		switch {
		case m.hasEnded:
		case wasCanceled:
			m.stopTimerLocked()
			canceled()
		case ctx.Err() != nil || m.isSlow || !m.slow.take():
			cancel()
			wasCanceled = true
			m.timer.Reset(slowMessage)
		default:
			m.isSlow = true
			m.timer.Reset(max(0, timeout-slowMessage))
		}
	})
}

// stopTimer must be called when the message has arrived, or when the call has ended.
func (m *messageTimer) stopTimer() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.stopTimerLocked()
}

func (m *messageTimer) stopTimerLocked() {
	m.timer.Stop()
	if m.isSlow && !m.hasEnded {
		m.slow.count.Add(-1)
	}
	m.hasEnded = true
}
