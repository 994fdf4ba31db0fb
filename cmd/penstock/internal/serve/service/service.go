// Package service runs penstock serve: a core that decides requests, and the servers that use it.
package service

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/algorithm"
	"github.com/penstock/penstock/cmd/penstock/internal/console/activity"
	"github.com/penstock/penstock/cmd/penstock/internal/console/admin"
	"github.com/penstock/penstock/cmd/penstock/internal/console/denials"
	"github.com/penstock/penstock/cmd/penstock/internal/rpc/checkapi"
	"github.com/penstock/penstock/cmd/penstock/internal/serve/core"
	"github.com/penstock/penstock/cmd/penstock/internal/serve/demotraffic"
	"github.com/penstock/penstock/cmd/penstock/internal/serve/logthrottle"
	"github.com/penstock/penstock/cmd/penstock/internal/serve/memory"
	"github.com/penstock/penstock/cmd/penstock/internal/serve/metrics"
	"github.com/penstock/penstock/cmd/penstock/internal/serve/settings"
	"github.com/penstock/penstock/cmd/penstock/internal/serve/telemetry"
)

type Options struct {
	Settings settings.Settings

	// Each value of Reload reloads the policy file and the folder of envoy_config. Default: only a
	// changed file is reloaded.
	Reload <-chan os.Signal

	// Log is for operators.
	Log *slog.Logger

	// LinesLost returns how many log lines were lost. Default: the metrics do not have this number.
	LinesLost func() int64

	// Algorithms are those that policies may name besides the built-in ones. Default: none.
	Algorithms []*algorithm.Algorithm

	// Version is shown in the metrics.
	Version string

	// Inherited is a listener that another process, such as systemd, has opened for requests. Default:
	// the service opens one at the address of the settings.
	Inherited net.Listener

	// Telemetry is what is exported to OpenTelemetry. Default: nothing.
	Telemetry telemetry.Exports

	// Started is called with the addresses of the listeners once they accept requests.
	Started func(Addresses)

	testHooks testHooks
}

// testHooks let tests observe and change the service. Each may be nil.
type testHooks struct {
	core   func(*core.Core)                    // is called with the core before servers use it
	store  func(penstock.Store) penstock.Store // wraps the store of the core
	limits func(http.Handler) http.Handler     // wraps the handler that applies the limits

	memory int64                   // if above 0, the budget of memory in bytes
	budget func(*connectionBudget) // changes how many connections may be open

	services func(grpc.ServiceRegistrar) // registers more services at the gRPC listener
}

// Addresses are those of the listeners. The address of a listener that is off is "".
type Addresses struct{ Listen, API, GRPC, RESP, Admin string }

// Run runs the service until ctx ends, and then drains it. /readyz fails immediately. After the
// drain delay, no new request is accepted. After the drain timeout, requests in flight are cut off.
// Run then returns nil, and leaves nothing running.
//
// An error wraps settings.ErrInvalid or penstock.ErrInvalid if the configuration cannot be used,
// and penstock.ErrUnavailable if the store is required and makes no decision.
func Run(ctx context.Context, o Options) error {
	s := &service{Options: o, metrics: metrics.New(o.Version, o.Telemetry.TraceID(), int(o.Settings.NearLimit)), misusedLine: logthrottle.Line{Every: refusalLogInterval}}
	s.Log = s.events.Logger(o.Log)
	if s.Settings.DemoTraffic && len(s.Settings.OperatorToken) == 0 {
		s.demoToken = rand.Text()
		s.Settings.OperatorToken = []byte(s.demoToken)
	}
	s.telemetry = telemetry.Open(telemetry.Options{Exports: o.Telemetry, Metrics: s.metrics, Version: o.Version, Log: o.Log})
	defer s.telemetry.Close() // last, so that it exports the drain too
	if o.LinesLost != nil {
		s.metrics.AddLinesLost(o.LinesLost)
	}
	// Requests and background work use runCtx. It outlives ctx, so that they go on during the drain.
	runCtx, cancelRun := context.WithCancelCause(context.WithoutCancel(ctx))
	s.cancelRun = cancelRun
	defer s.close()
	defer cancelRun(nil)
	if err := s.open(runCtx); err != nil {
		return err
	}
	failed := make(chan error, len(s.servers))
	for _, server := range s.servers {
		server.start(failed)
	}
	s.announce()
	if s.Settings.DemoTraffic {
		trafficCtx, stopTraffic := context.WithCancel(ctx)
		waitForTraffic := s.sendDemoTraffic(trafficCtx)
		defer func() {
			stopTraffic()
			waitForTraffic()
		}()
	}
	select {
	case <-ctx.Done():
		s.drain(s.Settings.DrainDelay)
		return nil
	case err := <-failed:
		s.drain(0)
		return err
	}
}

// errClosing is the cause with which the contexts of requests are canceled at the end.
var errClosing = errors.New("the service is shutting down")

type service struct {
	Options
	metrics      *metrics.Metrics
	core         *core.Core
	telemetry    *telemetry.Telemetry // nil if it is off
	upstream     string               // URL of the upstream; "" if there is no proxy
	servers      []*server            // the admin server, if there is one, is the last
	check        *checkapi.Service    // nil if the listeners api and grpc are off
	sharedSecret []byte               // encrypts the ids of the check API, and makes masks
	envoy        *envoy               // nil if the listeners api and grpc are off
	denials      *denials.Recorder
	memory       *memory.Budget   // of requests in flight
	events       activity.Events  // those of the log
	misusedLine  logthrottle.Line // of misused

	auditFile *auditFile

	demoToken string // the operator token that was made for a demo; "" if none was

	isDraining atomic.Bool
	inFlight   atomic.Int64            // requests, including WebSockets
	cancelRun  context.CancelCauseFunc // cancels requests in flight and background work
	closers    []func()                // called in reverse order
}

func (s *service) onClose(closer func()) { s.closers = append(s.closers, closer) }

func (s *service) close() {
	for i := len(s.closers) - 1; i >= 0; i-- {
		s.closers[i]()
	}
}

func (s *service) open(runCtx context.Context) error {
	budget := newConnectionBudget(descriptors(), s.Settings.MaxConnections, s.Settings.HasProxy(), len(s.Settings.CallerListeners()))
	if s.testHooks.budget != nil {
		s.testHooks.budget(&budget)
	}
	// Clients and callers have equal shares, unless one is 0 because nothing listens for them.
	if possible := max(budget.clients, budget.callers); possible < s.Settings.MaxConnections/2 {
		s.Log.Warn("this process may open too few files for max_connections; raise its limit (ulimit -n)", "connections", possible, "max_connections", s.Settings.MaxConnections)
	}
	envoyOptions := EnvoyOptions(&s.Settings)
	reloadPolicy := s.Reload
	var reloadEnvoy <-chan os.Signal // nil: no signal reloads Envoy's limits
	if s.Settings.EnvoyConfig != "" && s.Reload != nil {
		reloadPolicy, reloadEnvoy = s.fanOut(runCtx, s.Reload)
	}
	s.sharedSecret = s.Settings.SharedSecret()
	s.openMemory()
	if err := s.openAudit(); err != nil {
		return err
	}
	s.denials = denials.New(denials.Options{TraceID: s.telemetry.TraceOf()})
	var err error
	s.core, err = core.Open(runCtx, core.Options{
		Settings:              s.Settings,
		Reload:                reloadPolicy,
		Metrics:               s.metrics,
		Log:                   s.Log,
		Algorithms:            s.Algorithms,
		SettingsOutsidePolicy: envoyOptions.Settings,
		Version:               s.Version,
		Events:                &s.events,
		Denials:               s.denials,
		Identities:            s.Settings.Identities(s.sharedSecret),
		Spans:                 s.telemetry.Spans(),
		Check:                 s.checkRules,
		WrapStore:             s.testHooks.store,
	})
	if err != nil {
		return err
	}
	s.onClose(s.core.Close)
	s.logDenials(runCtx)
	if s.Settings.GRPC != "" || s.Settings.API != "" {
		if err := s.openCheck(); err != nil {
			return err
		}
		if err := s.openEnvoy(runCtx, envoyOptions, reloadEnvoy); err != nil {
			return err
		}
	}
	if s.testHooks.core != nil {
		s.testHooks.core(s.core)
	}
	if s.Inherited != nil && !s.Settings.HasProxy() {
		return fmt.Errorf("%w: systemd passes a socket for requests, but no upstream is set; set upstream, or disable the socket unit", settings.ErrInvalid)
	}
	return s.openServers(runCtx, budget)
}

// openServers makes the servers with their listeners. If there is a proxy, it is the first server.
// If there is an admin server, it is the last one.
func (s *service) openServers(runCtx context.Context, budget connectionBudget) error {
	if s.Settings.HasProxy() {
		proxy, err := s.newProxy(runCtx, budget)
		if err != nil {
			return err
		}
		if err := s.listen(runCtx, proxy, s.Settings.Listen, budget.clients); err != nil {
			return err
		}
	}
	for _, l := range s.Settings.CallerListeners() {
		server, err := s.newCallers(runCtx, l, budget.callers)
		if err != nil {
			return err
		}
		if err := s.listen(runCtx, server, l.Address, budget.callers); err != nil {
			return err
		}
	}
	if s.Settings.AdminListen == "" {
		return nil
	}
	server, err := s.newAdmin(int(budget.admin))
	if err != nil {
		return err
	}
	return s.listen(runCtx, server, s.Settings.AdminListen, budget.admin)
}

// listen opens the listener of a server. The listener has at most limit open connections.
func (s *service) listen(ctx context.Context, server *server, address string, limit int64) error {
	l := s.Inherited
	if l == nil || server.setting != "listen" { // only the proxy's listener can be inherited
		var err error
		if l, err = openListener(ctx, address); err != nil {
			return fmt.Errorf("%s (%s): %w; choose another address with --%s", server.setting, s.Settings.Source(server.setting), err, server.setting)
		}
	}
	s.onClose(func() { l.Close() })
	server.listener = limitConnections(l, int(limit), s.connectionsFull(server.setting, limit))
	server.listener.idle = server.idle
	s.servers = append(s.servers, server)
	return nil
}

// countInFlight counts requests in flight, including WebSockets, which http.Server does not count.
// While the service drains, each response closes its connection, so that clients send their next
// requests to other instances. For HTTP/2, http.Server sends GOAWAY.
func (s *service) countInFlight(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.inFlight.Add(1)
		defer s.inFlight.Add(-1)
		if s.isDraining.Load() && r.Header.Get("Upgrade") == "" {
			w.Header().Set("Connection", "close")
		}
		next.ServeHTTP(w, r)
	})
}

// announce logs warnings about the settings, and one line that describes the running service.
func (s *service) announce() {
	policy := s.core.Policy()
	if s.Settings.HasLonePort {
		s.Log.Info("REDIS_PORT has no effect without REDIS_HOST, so counters are in memory; to use Redis, set REDIS_HOST, REDIS_URL or PENSTOCK_STORE")
	}
	for _, name := range s.Settings.Unknown {
		s.Log.Warn("unknown environment variable; is it misspelled?", "name", name)
	}
	policy.LogWarnings(s.Log)
	var addresses Addresses
	for _, server := range s.servers {
		switch address := addressOf(server.listener); server.setting {
		case "listen":
			addresses.Listen = address
		case "api":
			addresses.API = address
		case "grpc":
			addresses.GRPC = address
		case "resp":
			addresses.RESP = address
		case "admin-listen":
			addresses.Admin = address
			if tcp, ok := server.listener.Addr().(*net.TCPAddr); ok && !tcp.IP.IsLoopback() {
				s.Log.Warn("other machines can reach health checks and metrics", "admin_listen", addresses.Admin)
			}
		}
	}
	storeLabel, storeText := "on_store_failure", policy.OnFailure
	if s.envoySource() != "" {
		storeText = strings.TrimPrefix(storeText+", limits of Envoy "+envoyOnFailure(&s.Settings), ", ")
	}
	if s.Settings.Store == "" { // memory fails only when it is full
		storeLabel = "counters"
		storeText = fmt.Sprintf("in this process, not shared; at %d counters, new clients are rejected unless on_failure is open", core.MaxCounters())
	}
	s.Log.Info("listening", activity.EventAttribute, activity.Started,
		"listen", orNone(addresses.Listen), "tls", s.Settings.TLSCert != "",
		"api", orNone(addresses.API), "grpc", orNone(addresses.GRPC), "resp", orNone(addresses.RESP),
		"admin_listen", orNone(addresses.Admin),
		"upstream", orNone(s.upstream),
		"store", s.Settings.StoreName(),
		"rules", policy.Count(), "policy", orNone(policy.File), "digest", orNone(policy.Digest),
		"envoy_limits", orNone(s.envoySource()),
		storeLabel, orNone(storeText))
	if s.Started != nil {
		s.Started(addresses)
	}
}

// sendDemoTraffic sends requests to the proxy in the background until ctx ends. The returned
// function waits for the last request. sendDemoTraffic logs the URL of the dashboard and demoToken.
func (s *service) sendDemoTraffic(ctx context.Context) (wait func()) {
	var attributes []any // of the log line
	for _, server := range s.servers {
		if server.setting == "admin-listen" {
			attributes = append(attributes, "dashboard", urlOf(server.listener.Addr(), s.Settings.AdminTLSCert != ""))
		}
	}
	if s.demoToken != "" {
		attributes = append(attributes, "operator_token", s.demoToken)
	}
	s.Log.Info("the demo sends requests to itself; open the dashboard", append(attributes, "offender", "key:"+demotraffic.Offender)...)
	var running sync.WaitGroup
	proxy := s.servers[0] // openServers puts it first
	const hasTLS = false  // package settings rejects it
	running.Go(func() { demotraffic.Run(ctx, urlOf(proxy.listener.Addr(), hasTLS)) })
	return running.Wait
}

// addressOf returns the address of a listener as settings take it: host:port or unix:/path.
func addressOf(l net.Listener) string {
	if a, ok := l.Addr().(*net.UnixAddr); ok {
		return "unix:" + a.Name
	}
	return l.Addr().String()
}

// urlOf returns the URL of a listener for clients on this machine.
func urlOf(a net.Addr, hasTLS bool) string {
	scheme := "http"
	if hasTLS {
		scheme = "https"
	}
	tcp, ok := a.(*net.TCPAddr)
	switch {
	case !ok:
		return "unix:" + a.String()
	case tcp.IP.IsUnspecified():
		return fmt.Sprintf("%s://localhost:%d/", scheme, tcp.Port)
	}
	return scheme + "://" + tcp.String() + "/"
}

func orNone(text string) string { return cmp.Or(text, "none") }

const (
	// responseTimeout is how long requests that were cut off may take to write a response.
	responseTimeout = time.Second

	// handlerTimeout is how long handlers may take to return after their connections are closed.
	handlerTimeout = 5 * time.Second
)

// drain waits for delay while requests are still accepted. Then it refuses new requests, and waits
// for those in flight. The admin server ends last.
func (s *service) drain(delay time.Duration) {
	s.isDraining.Store(true)
	for _, server := range s.servers {
		if server.announceEnd != nil {
			server.announceEnd()
		}
	}
	s.Log.Info("shutting down", "in_flight", s.inFlight.Load(), "delay", delay, "timeout", s.Settings.DrainTimeout)
	time.Sleep(delay)

	serving := s.servers
	if last := len(serving) - 1; serving[last].setting == "admin-listen" {
		defer serving[last].close()
		serving = serving[:last]
	}
	ctx, cancel := context.WithTimeout(context.Background(), s.Settings.DrainTimeout)
	defer cancel()
	shutdown(ctx, serving)
	s.awaitIdle(ctx)
	if cutOff := s.inFlight.Load(); cutOff > 0 {
		s.Log.Warn("requests in flight were cut off", "requests", cutOff, "timeout", s.Settings.DrainTimeout)
	}
	s.cancelRun(errClosing) // also ends WebSockets; queued requests get a 503
	responseCtx, cancel := context.WithTimeout(context.Background(), responseTimeout)
	defer cancel()
	shutdown(responseCtx, serving)
	for _, server := range serving {
		server.close()
	}
	handlerCtx, cancel := context.WithTimeout(context.Background(), handlerTimeout)
	defer cancel()
	s.awaitIdle(handlerCtx)
	s.Log.Info("stopped")
}

func (s *service) awaitIdle(ctx context.Context) {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for s.inFlight.Load() > 0 {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func (s *service) checks() []admin.Check {
	service := admin.Check{Name: "service", Run: func(context.Context) (admin.State, string) {
		if s.isDraining.Load() {
			return admin.Down, ""
		}
		return admin.OK, ""
	}}
	all := append([]admin.Check{service}, s.core.Checks()...)
	if s.Settings.EnvoyXDS != "" {
		all = append(all, admin.Check{Name: "envoy", Run: s.envoy.health})
	}
	if s.auditFile.to != nil {
		all = append(all, admin.Check{Name: "audit", Run: s.auditFile.health})
	}
	return all
}
