// Package service runs the gate: requests come in, pass the limits, and go on to the upstream,
// until it is told to stop and has drained.
package service

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/cmd/penstock/internal/admin"
	"github.com/penstock/penstock/cmd/penstock/internal/metrics"
	"github.com/penstock/penstock/cmd/penstock/internal/pace"
	"github.com/penstock/penstock/cmd/penstock/internal/revproxy"
	"github.com/penstock/penstock/cmd/penstock/internal/seldom"
	"github.com/penstock/penstock/cmd/penstock/internal/settings"
	"github.com/penstock/penstock/cmd/penstock/internal/upstream"
	"github.com/penstock/penstock/httplimit"
	"github.com/penstock/penstock/redisstore"
)

// Options of Run.
type Options struct {
	Settings settings.Settings

	// Gate makes what requests must pass. Default: they all do.
	Gate Builder

	// Log is told what those who run the gate need to know. Default: nobody is.
	Log *slog.Logger

	// LinesLost is how many lines of the log were not written. Default: there is no metric of it.
	LinesLost func() int64

	// Version is shown in the metrics.
	Version string

	// Started is called when requests are accepted, with the addresses that are listened on.
	Started func(Addresses)
}

// Addresses are what a service listens on.
type Addresses struct {
	Listen string
	Admin  string // "" if it is off
}

// Run runs the service until ctx ends, then drains it: /readyz fails; after the drain delay nothing
// new is accepted; requests under way may end until the drain timeout, then they are cut off. It
// returns nil after that, and has left nothing behind.
//
// An error wraps settings.ErrInvalid or penstock.ErrInvalid if the configuration cannot be used,
// and penstock.ErrUnavailable if the store is required and does not answer.
func Run(ctx context.Context, o Options) error {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	s := &service{Options: o, metrics: metrics.New(o.Version), health: health{log: o.Log}, alarm: alarm{log: o.Log}, tokens: seldom.Line{Every: 10 * time.Second}}
	s.places = divide(descriptors(), o.Settings.MaxConnections)
	if s.places.clients < o.Settings.MaxConnections/2 {
		o.Log.Warn("this process may open too few files for max_connections; raise its limit (ulimit -n)", "clients", s.places.clients, "max_connections", o.Settings.MaxConnections)
	}
	if o.LinesLost != nil {
		s.metrics.LinesLost(o.LinesLost)
	}
	var life context.Context // of requests and whatever else runs
	life, s.cut = context.WithCancelCause(context.WithoutCancel(ctx))
	defer s.close()
	defer s.cut(nil)
	if err := s.open(life); err != nil {
		return err
	}
	failed := s.serve(life)
	s.announce()
	select {
	case <-ctx.Done():
		s.drain(s.Settings.DrainDelay)
		return nil
	case err := <-failed:
		s.drain(0)
		return err
	}
}

// errClosing is why requests are cut off.
var errClosing = errors.New("the gate closes")

type service struct {
	Options
	metrics *metrics.Metrics
	places  places
	health  health
	alarm   alarm
	tokens  seldom.Line // that are rejected
	memory  memory
	store   store
	scripts *scripts // nil: the store is memory
	policy  Policy   // that it began with

	mu        sync.Mutex
	reloads   int       // of the policy file
	since     time.Time // the rules in force are so
	emptyDeny []string  // of the rules in force
	refused   bool      // what the policy file holds now

	listen, admin           net.Listener // admin is nil if it is off
	gateServer, adminServer *http.Server
	draining                atomic.Bool
	active                  atomic.Int64            // requests, WebSockets among them
	cut                     context.CancelCauseFunc // ends what is under way
	closers                 []func()                // last first
	gateEnded, adminEnded   chan struct{}
	upstreamURL             string
}

func (s *service) later(closer func()) { s.closers = append(s.closers, closer) }

func (s *service) close() {
	for i := len(s.closers) - 1; i >= 0; i-- {
		s.closers[i]()
	}
}

// open makes everything that there must be before the first request.
func (s *service) open(life context.Context) error {
	var err error
	if s.store, err = openStore(s.Settings); err != nil {
		return err
	}
	s.later(s.store.close)
	var watching sync.WaitGroup
	s.later(watching.Wait)
	if redis, ok := s.store.Store.(*redisstore.Store); ok {
		s.scripts = &scripts{Store: redis, log: s.Log, decides: s.decidesNow}
		watching.Go(func() { s.scripts.retry(life) })
	}
	if err := s.reach(life); err != nil {
		return err
	}
	s.memory = memory{log: s.Log, ask: s.store.memory}
	watching.Go(func() { s.watch(life) })
	gate, err := s.build(life)
	if err != nil {
		return err
	}
	proxy, err := s.proxy(gate)
	if err != nil {
		return err
	}
	tlsConfig, err := tlsOf(s.Settings, s.Log)
	if err != nil {
		return err
	}
	handler := pace.Handler(s.counted(limitHeader(gate, s.Settings.MaxHeader, gate.Middleware(proxy))), pace.Options{Stall: s.Settings.StallTimeout, Rate: s.Settings.MinRate})
	s.gateServer = s.newGateServer(handler, tlsConfig, life)
	s.adminServer = s.newAdminServer()
	return s.openListeners(life)
}

// reach asks whether the store decides. Connections must be made first, so it takes longer than a
// decision may.
func (s *service) reach(ctx context.Context) error {
	const patience = 3 * time.Second
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	err := s.store.decides(ctx)
	if err == nil {
		return nil
	}
	if s.Settings.RequireStore {
		return fmt.Errorf("store %s (%s): %w", s.Settings.StoreName(), s.Settings.Source("store"), err)
	}
	s.health.begin(err)
	s.scripts.begin(err)
	s.Log.Warn("the store makes no decision; the gate opens without it, and uses it as soon as it does", "store", s.Settings.StoreName(), "err", err)
	return nil
}

// decides asks whether the store does. It does not while no decision is sent to it.
func (s *service) decides(ctx context.Context) error {
	if s.scripts != nil && s.scripts.closed.Load() {
		return s.scripts.unavailable()
	}
	return s.decidesNow(ctx)
}

// decidesNow asks whether the store does, for as long as a decision may.
func (s *service) decidesNow(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.Settings.StoreTimeout)
	defer cancel()
	return s.store.decides(ctx)
}

// watch looks each second after what no request may come to tell of, until ctx ends.
func (s *service) watch(ctx context.Context) {
	tick, seldom := time.NewTicker(time.Second), time.NewTicker(memoryEvery)
	defer tick.Stop()
	defer seldom.Stop()
	s.memory.look(ctx)
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			s.selfTest(ctx)
			s.alarm.quiet()
		case <-seldom.C:
			s.memory.look(ctx)
		}
	}
}

// selfTest asks the store for a decision, since no request may come that would notice an outage, or
// its end.
func (s *service) selfTest(ctx context.Context) {
	err := s.decides(ctx)
	if ctx.Err() == nil && s.health.tested(err) {
		s.unanswered(err)
	}
}

// build makes the gate.
func (s *service) build(life context.Context) (Gate, error) {
	if s.Gate == nil {
		return noRules{}, nil
	}
	s.metrics.Loaded(time.Now()) // or the process ends
	gate, policy, err := s.Gate(life, Deps{
		Store:         s.guarded,
		Load:          func(limits ...penstock.Limit) { s.load(life, limits) },
		Observe:       s.observe,
		TokenRejected: s.tokenRejected,
		Waiting:       s.metrics.Waiting,
		Reloaded:      s.reloaded,
		Log:           s.Log,
	})
	if err != nil {
		return nil, err
	}
	if closer, ok := gate.(io.Closer); ok {
		s.later(func() { closer.Close() })
	}
	s.loaded(policy)
	return gate, nil
}

// load loads the scripts of limits into the store.
func (s *service) load(ctx context.Context, limits []penstock.Limit) {
	if s.scripts != nil {
		s.scripts.load(ctx, limits)
	}
}

// proxy makes what passes requests on, and with Demo the upstream too.
func (s *service) proxy(gate Gate) (http.Handler, error) {
	to := s.Settings.Upstream
	if s.Settings.Demo {
		demo, err := upstream.Start()
		if err != nil {
			return nil, fmt.Errorf("demo upstream: %w", err)
		}
		s.later(demo.Close)
		to = &url.URL{Scheme: "http", Host: demo.Addr()}
	}
	s.upstreamURL = to.String()
	proxy := revproxy.New(revproxy.Options{
		Upstream:       to,
		PreserveHost:   s.Settings.PreserveHost,
		Trusted:        gate.Trusts,
		ConnectTimeout: s.Settings.UpstreamConnectTimeout,
		HeaderTimeout:  s.Settings.UpstreamHeaderTimeout,
		MaxBody:        s.Settings.MaxBody,
		MaxConnections: int(s.places.upstream),
		Unanswered:     httplimit.Unanswered,
		Own:            gate.AllowOrigin,
		Log:            s.Log,
	})
	s.later(proxy.Close)
	return proxy, nil
}

// counted knows how many requests are under way: http.Server does not count the WebSockets among
// them.
func (s *service) counted(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.active.Add(1)
		defer s.active.Add(-1)
		next.ServeHTTP(w, r)
	})
}

// serve starts the servers. What they fail with comes from the channel.
func (s *service) serve(life context.Context) <-chan error {
	failed := make(chan error, 2)
	start := func(name string, server *http.Server, listener net.Listener) (ended chan struct{}) {
		ended = make(chan struct{})
		go func() {
			defer close(ended)
			err := serveOn(server, listener)
			if !errors.Is(err, http.ErrServerClosed) {
				failed <- fmt.Errorf("%s %s: %w", name, listener.Addr(), err)
			}
		}()
		return ended
	}
	s.gateEnded = start("listen", s.gateServer, s.listen)
	if s.admin != nil {
		s.adminEnded = start("admin", s.adminServer, s.admin)
	}
	return failed
}

// announce says in one line what runs here.
func (s *service) announce() {
	o, set := s.Options, s.Settings
	for _, name := range set.Unknown {
		o.Log.Warn("an environment variable means nothing; is it misspelt?", "name", name)
	}
	s.warn(s.policy)
	addresses := Addresses{Listen: s.listen.Addr().String()}
	if s.admin != nil {
		addresses.Admin = s.admin.Addr().String()
		if tcp, ok := s.admin.Addr().(*net.TCPAddr); ok && !tcp.IP.IsLoopback() {
			o.Log.Warn("health and metrics are open to other machines", "admin", addresses.Admin)
		}
	}
	name, text := "if_store_fails", orNone(s.policy.OnFailure)
	if set.Store == "" { // nothing can fail but by being full
		name, text = "counters", "in this process, shared with no other; at 10 million, new clients are denied except where on_failure is open"
	}
	o.Log.Info("the gate is open", "listen", addresses.Listen, "tls", set.TLSCert != "", "admin", orNone(addresses.Admin), "upstream", s.upstreamURL,
		"store", set.StoreName(), "rules", s.policy.count(), "policy", orNone(s.policy.File), "digest", s.policy.Digest, name, text)
	if o.Started != nil {
		o.Started(addresses)
	}
}

func orNone(text string) string {
	if text == "" {
		return "none"
	}
	return text
}

// drain ends the service: first what is new, then what is under way.
func (s *service) drain(delay time.Duration) {
	s.draining.Store(true)
	s.Log.Info("the gate closes", "under_way", s.active.Load(), "delay", delay, "timeout", s.Settings.DrainTimeout)
	time.Sleep(delay)

	ctx, cancel := context.WithTimeout(context.Background(), s.Settings.DrainTimeout)
	defer cancel()
	s.gateServer.Shutdown(ctx)
	s.awaitIdle(ctx)
	if left := s.active.Load(); left > 0 {
		s.Log.Warn("requests under way were cut off", "requests", left, "timeout", s.Settings.DrainTimeout)
	}
	s.cut(errClosing) // WebSockets too. Those who were not answered yet, as they waited for their turn, get a 503
	last, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	s.gateServer.Shutdown(last)
	s.gateServer.Close()
	<-s.gateEnded
	last, cancel = context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	s.awaitIdle(last)
	if s.admin != nil {
		s.adminServer.Close()
		<-s.adminEnded
	}
	s.Log.Info("the gate is closed")
}

// awaitIdle returns when no request is under way, or ctx ends.
func (s *service) awaitIdle(ctx context.Context) {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for s.active.Load() > 0 {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// checks are what /readyz tells.
func (s *service) checks() []admin.Check {
	return []admin.Check{
		{Name: "gate", Run: func(context.Context) (admin.State, string) {
			if s.draining.Load() {
				return admin.Down, ""
			}
			return admin.OK, ""
		}},
		{Name: "store", Run: func(ctx context.Context) (admin.State, string) {
			if reason := s.health.now(); reason != "" {
				return admin.Degraded, "degraded: " + reason
			}
			if err := s.decides(ctx); err != nil {
				return admin.Degraded, "degraded: " + reasonOf(err)
			}
			return admin.OK, ""
		}},
		{Name: "policy", Run: func(context.Context) (admin.State, string) {
			s.mu.Lock()
			defer s.mu.Unlock()
			if s.refused { // a restart, or another gate, would be worse off
				return admin.OK, "refused: the rules of " + s.since.UTC().Format(time.RFC3339) + " stay"
			}
			return admin.OK, ""
		}},
	}
}
