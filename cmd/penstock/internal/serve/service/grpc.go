package service

import (
	"context"
	"crypto/tls"
	"fmt"
	"maps"
	"net"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/penstock/penstock/cmd/penstock/internal/rpc/envoyrls"
	"github.com/penstock/penstock/cmd/penstock/internal/rpc/extauthz"
	_ "github.com/penstock/penstock/cmd/penstock/internal/serve/grpcqueue"
	"github.com/penstock/penstock/cmd/penstock/internal/serve/metrics"
	"github.com/penstock/penstock/cmd/penstock/internal/serve/settings"
	"github.com/penstock/penstock/cmd/penstock/internal/text/redact"
	"github.com/penstock/penstock/httplimit/forwardauth"
	"github.com/penstock/penstock/internal/bearer"
	"github.com/penstock/penstock/internal/panicked"
)

// grpcServices make and register the services of the gRPC listener, one each. For all of them, the
// listener adds authentication, health checks, reflection, metrics, recovery from panics and the
// drain.
var grpcServices = []func(*service, grpc.ServiceRegistrar) error{
	(*service).registerCheck,
	(*service).registerExtAuthz,
	registerEnvoy,
}

const (
	// maxStreams is how many calls of one connection may be in flight. A call without a message takes
	// 12 KB. If more calls are in flight, Envoy opens another connection, and clients of grpc-go wait.
	maxStreams = 100

	// maxConnectionAge is the age at which a connection ends. Clients then reconnect, and so reach new
	// instances too. Calls in flight may continue for maxConnectionAgeGrace.
	maxConnectionAge      = 24 * time.Hour
	maxConnectionAgeGrace = time.Hour

	// minPing is the shortest time that a client must let pass between two pings. Clients that ping
	// more often are disconnected.
	minPing = 10 * time.Second

	// streamWorkers is how many goroutines are kept for calls. Without them, each call starts a
	// goroutine, and growing its stack takes an eighth of the call's time.
	streamWorkers = 256

	// readBuffer is the size in bytes of each connection's read buffer.
	readBuffer = 8 << 10
)

// healthService can be called without a token, like /livez: orchestrators cannot send one.
const healthService = "grpc.health.v1.Health"

// rlsHealthName is the name by which probes for envoyproxy/ratelimit check the service.
const rlsHealthName = "ratelimit"

func (s *service) newGRPC(l settings.Listener, config *tls.Config) (*server, error) {
	calls := &grpcCalls{service: s, messageTimeout: s.Settings.HeaderTimeout, maxOpenStreams: s.Settings.MaxConnections, ending: make(chan struct{}), methods: make(map[string]bool)}
	calls.slow.limit = max(maxSlowRestricted, s.memory.Size()/4/maxMessage)
	calls.slowRestricted.limit = maxSlowRestricted
	options := []grpc.ServerOption{
		grpc.ConnectionTimeout(s.Settings.HeaderTimeout),
		grpc.MaxConcurrentStreams(maxStreams),
		grpc.MaxRecvMsgSize(maxMessage),
		grpc.MaxHeaderListSize(uint32(s.Settings.MaxHeader)),
		grpc.ReadBufferSize(readBuffer),
		grpc.KeepaliveParams(keepalive.ServerParameters{
			MaxConnectionIdle:     s.Settings.IdleTimeout,
			MaxConnectionAge:      maxConnectionAge,
			MaxConnectionAgeGrace: maxConnectionAgeGrace,
			Time:                  s.Settings.StallTimeout, // a client that is silent for this time gets a ping; 0 is two hours
			Timeout:               s.Settings.StallTimeout,
		}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: minPing, PermitWithoutStream: true}),
		grpc.NumStreamWorkers(streamWorkers),
		grpc.WaitForHandlers(true),
		grpc.ForceServerCodecV2(meteredCodec{envoyrls.Codec(), s.memory}),
		grpc.UnaryInterceptor(calls.interceptUnary),
		grpc.StreamInterceptor(calls.interceptStream),
	}
	authenticate := calls.newAuthenticator(s.Settings.CallerToken, s.Settings.OperatorToken)
	if len(s.Settings.CallerToken) == 0 {
		authenticate = nil // all callers are accepted; the metric of refused calls stays registered
	}
	options = append(options, grpc.InTapHandle(calls.checkBeforeReading(authenticate)))
	transport := insecure.NewCredentials()
	if config != nil {
		transport = credentials.NewTLS(config)
	}
	options = append(options, grpc.Creds(connectionCredentials{transport}))
	grpcServer := grpc.NewServer(options...)
	registrar := callRegistrar{grpcServer}
	for _, register := range grpcServices {
		if err := register(s, registrar); err != nil {
			return nil, err
		}
	}
	if s.testHooks.services != nil {
		s.testHooks.services(registrar)
	}
	names := slices.Sorted(maps.Keys(grpcServer.GetServiceInfo()))
	healthServer := s.newHealth(names)
	healthpb.RegisterHealthServer(registrar, healthServer)
	reflection.Register(grpcServer) // the schemas are public; the calls need the token
	info := grpcServer.GetServiceInfo()
	calls.services = strings.Join(slices.Sorted(maps.Keys(info)), ", ")
	for name, info := range info {
		for _, method := range info.Methods {
			calls.methods["/"+name+"/"+method.Name] = true
		}
	}

	var allCodes []string
	for code := codes.OK; code <= codes.Unauthenticated; code++ {
		allCodes = append(allCodes, code.String())
	}
	result := &server{setting: l.Name, announceEnd: healthServer.Shutdown}
	calls.counts = s.metrics.AddGRPC(append(names, healthService), allCodes, func() int { return result.listener.connections() })
	serveGRPC(result, grpcServer, calls)
	return result, nil
}

// newHealth makes a health service that reports the named services, and the whole server under the
// name "", as SERVING. If the limits come from a control plane, "" and Envoy's service are
// NOT_SERVING until it has sent the first limits.
func (s *service) newHealth(services []string) *health.Server {
	server := health.NewServer()
	for _, name := range services {
		server.SetServingStatus(name, healthpb.HealthCheckResponse_SERVING)
	}
	setEnvoy := func(status healthpb.HealthCheckResponse_ServingStatus) {
		for _, name := range []string{"", envoyrls.ServiceName, rlsHealthName} {
			server.SetServingStatus(name, status)
		}
	}
	setEnvoy(healthpb.HealthCheckResponse_NOT_SERVING)
	s.envoy.afterFirstLimits(func() { setEnvoy(healthpb.HealthCheckResponse_SERVING) })
	return server
}

func serveGRPC(result *server, grpcServer *grpc.Server, calls *grpcCalls) {
	drain := sync.OnceValue(func() (drained <-chan struct{}) {
		done := make(chan struct{})
		go func() { // GracefulStop returns after stop at the latest
			defer close(done)
			close(calls.ending)
			grpcServer.GracefulStop()
		}()
		return done
	})
	result.serve = func(l net.Listener) error { return grpcServer.Serve(l) } // nil after it was stopped
	result.shutdown = func(ctx context.Context) {
		select {
		case <-drain():
		case <-ctx.Done():
		}
	}
	result.stop = func() {
		grpcServer.Stop()
		<-drain()
	}
}

// grpcCalls authenticates, counts and traces all calls, and recovers from their panics.
type grpcCalls struct {
	service *service
	counts  metrics.GRPCCalls
	ending  chan struct{} // closed when the server shuts down

	methods        map[string]bool // all methods that a client may call, such as /p.S/M
	services       string          // their services
	messageTimeout time.Duration   // how long a client may take to send its message
	slow           slowMessages    // of methods that are not restricted
	slowRestricted slowMessages    // of restricted methods
	openStreams    atomic.Int64    // streams of restricted methods
	maxOpenStreams int64           // at most this many openStreams
}

// checkRestrictedSize returns an error if a message of a restricted method is too large.
func checkRestrictedSize(message any) error {
	if m, ok := message.(proto.Message); ok && proto.Size(m) > maxRestrictedMessage {
		return status.Errorf(codes.ResourceExhausted, "the message has %d bytes; a health check or a reflection call may have %d", proto.Size(m), maxRestrictedMessage)
	}
	return nil
}

// An authenticator returns an error if the values of a call's authorization header do not permit
// the method. It runs before the message is read.
type authenticator func(method string, authorization []string, client net.Addr) error

// newAuthenticator makes an authenticator that accepts any of the tokens: operators may call all
// that callers may. Empty tokens are ignored.
func (c *grpcCalls) newAuthenticator(tokens ...[]byte) authenticator {
	var secrets []bearer.Secret
	for _, token := range tokens {
		secrets = append(secrets, bearer.NewSecret(token))
	}
	reportRefusal := c.service.authFailed(metrics.GRPCCallers, "a gRPC call was refused: its caller_token is missing or wrong")
	return func(method string, values []string, client net.Addr) error {
		if serviceName(method) == healthService {
			return nil
		}
		if len(values) == 0 {
			reportRefusal("no_token", client)
			return status.Error(codes.Unauthenticated, "the token is missing; send caller_token as metadata: authorization: Bearer TOKEN")
		}
		token, _ := bearer.Token(values)
		isValid := false
		for _, secret := range secrets { // compare all, so that the duration does not show which one matches
			isValid = secret.Matches(token) || isValid
		}
		if !isValid {
			reportRefusal("wrong_token", client)
			return status.Error(codes.Unauthenticated, "the token is wrong; send caller_token as metadata: authorization: Bearer TOKEN")
		}
		return nil
	}
}

// interceptUnary handles calls that are no streams, with metrics, spans and recovery from panics.
func (c *grpcCalls) interceptUnary(ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (answer any, err error) {
	callIn(ctx).stopTimer()
	c.service.inFlight.Add(1)
	endSpan := func(codes.Code) {}
	defer func() { // deferred before a header of the client is read, which may cause a panic
		err = c.finish(info.FullMethod, recover(), err)
		endSpan(status.Code(err))
		c.service.inFlight.Add(-1)
	}()
	if t := c.service.telemetry; t != nil && serviceName(info.FullMethod) != healthService {
		incoming := ctx
		ctx, endSpan = t.Call(ctx, info.FullMethod, func(name string) string { return firstValue(metadata.ValueFromIncomingContext(incoming, name)) })
	}
	if isRestricted(info.FullMethod) {
		if err := checkRestrictedSize(request); err != nil {
			return nil, err
		}
	}
	return handler(ctx, request)
}

func firstValue(values []string) string {
	if len(values) == 0 {
		return ""
	}
	return values[0]
}

// interceptStream handles streaming calls: health checks and reflection. Clients may keep them open
// forever, so they do not count as in flight. When the server shuts down, reflection ends
// immediately. A health check ends after it has sent NOT_SERVING.
func (c *grpcCalls) interceptStream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) (err error) {
	call := callIn(stream.Context())
	call.begin()
	defer func() {
		err = c.finish(info.FullMethod, recover(), err)
		call.finish()
	}()
	if !isRestricted(info.FullMethod) {
		c.service.inFlight.Add(1)
		defer c.service.inFlight.Add(-1)
		return handler(srv, stream)
	}
	defer c.openStreams.Add(-1)
	if c.openStreams.Add(1) > c.maxOpenStreams {
		return status.Errorf(codes.ResourceExhausted, "%d streams of health checks and reflection are open, as many as max_connections; end one of them first", c.maxOpenStreams)
	}
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	open := &openStream{ServerStream: stream, calls: c, ctx: ctx, cancel: cancel, statusIsFinal: make(chan struct{})}
	if serviceName(info.FullMethod) != healthService {
		close(open.statusIsFinal)
	}
	go func() { // cancels the stream when the server shuts down and the status is final
		for _, event := range []<-chan struct{}{c.ending, open.statusIsFinal} {
			select {
			case <-event:
			case <-ctx.Done():
				return
			}
		}
		cancel()
	}()
	return handler(srv, open)
}

// An openStream is a stream of a restricted method. It ends with a context of its own.
type openStream struct {
	grpc.ServerStream
	calls         *grpcCalls
	ctx           context.Context
	cancel        func()        // of ctx
	hasMessage    bool          // whether RecvMsg has returned the first message
	statusIsFinal chan struct{} // closed when a health check has sent a status other than SERVING, which is always its last
	once          sync.Once
}

func (s *openStream) Context() context.Context { return s.ctx }

func (s *openStream) SendMsg(message any) error {
	err := s.ServerStream.SendMsg(message)
	if health, isHealth := message.(*healthpb.HealthCheckResponse); isHealth && health.Status != healthpb.HealthCheckResponse_SERVING {
		s.once.Do(func() { close(s.statusIsFinal) })
	}
	return err
}

// RecvMsg bounds the size of each message, and how long it may take.
func (s *openStream) RecvMsg(message any) error {
	if s.hasMessage { // the first message has the timer of its grpcCall
		timer := new(messageTimer)
		timer.startTimer(s.ctx, &s.calls.slowRestricted, s.calls.messageTimeout, s.cancel, func() {})
		defer timer.stopTimer()
	}
	received := make(chan error, 1)
	go func() { received <- s.ServerStream.RecvMsg(message) }() // it ends with the handler at the latest
	select {
	case err := <-received:
		if err != nil {
			return err
		}
		callIn(s.ctx).stopTimer()
		s.hasMessage = true
		return checkRestrictedSize(message)
	case <-s.ctx.Done():
	}
	select {
	case <-s.calls.ending:
		return status.Error(codes.Unavailable, errClosing.Error())
	default:
		return status.Error(codes.Canceled, "the message did not come in time")
	}
}

// finish counts a call that has ended, and returns its error. panicValue is the result of recover.
// A panic is logged, and becomes an error.
func (c *grpcCalls) finish(method string, panicValue any, err error) error {
	if panicValue != nil {
		c.service.Log.Error("panic in a gRPC call", "method", method, "err", redact.Quoted(fmt.Sprint(panicValue)), "stack", string(debug.Stack()))
		err = status.Error(codes.Internal, panicked.Message)
	}
	c.counts.Count(serviceName(method), uint32(status.Code(err)))
	return err
}

// serviceName returns the service of a method: p.S of /p.S/M.
func serviceName(method string) string {
	name, _, _ := strings.Cut(strings.TrimPrefix(method, "/"), "/")
	return name
}

func (s *service) registerExtAuthz(r grpc.ServiceRegistrar) error {
	extauthz.New(s.core.Controller, forwardauth.Options{Misused: s.misused}).Register(r)
	return nil
}
