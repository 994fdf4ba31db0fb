package service

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/penstock/penstock/cmd/penstock/internal/console/activity"
	"github.com/penstock/penstock/cmd/penstock/internal/console/admin"
	"github.com/penstock/penstock/cmd/penstock/internal/rpc/envoyconfig"
	"github.com/penstock/penstock/cmd/penstock/internal/rpc/envoyrls"
	"github.com/penstock/penstock/cmd/penstock/internal/rpc/envoyxds"
	"github.com/penstock/penstock/cmd/penstock/internal/serve/logthrottle"
	"github.com/penstock/penstock/cmd/penstock/internal/serve/metrics"
	"github.com/penstock/penstock/cmd/penstock/internal/serve/settings"
	"github.com/penstock/penstock/internal/background"
	"github.com/penstock/penstock/internal/bearer"
)

// EnvoyOptions returns the options of the engine for Envoy's limits.
func EnvoyOptions(s *settings.Settings) envoyrls.Options {
	o := envoyrls.Options{
		Algorithm:     s.EnvoyAlgorithm,
		ShadowMode:    s.EnvoyShadowMode,
		QuotaMode:     s.EnvoyQuotaMode,
		HasMetadata:   s.EnvoyMetadata,
		DeniesReports: s.EnvoyReports == "spend",
		Mode:          envoyrls.ParseMode(s.EnvoyMode),
		OnFailure:     envoyrls.ParseFailure(s.EnvoyOnFailure),
	}
	if s.EnvoyHeaders != "none" {
		o.Headers = []envoyrls.Dialect{envoyrls.Dialect(s.EnvoyHeaders)}
	}
	return o
}

// envoyOnFailure returns what Envoy gets while the store gives no answer.
func envoyOnFailure(s *settings.Settings) string {
	switch {
	case s.EnvoyOnFailure != "default":
		return s.EnvoyOnFailure
	case s.EnvoyMode == "exact":
		return "error"
	default:
		return "local"
	}
}

// envoy serves Envoy's rate limit service with the limits of a folder or a control plane, and with
// those of the policy.
type envoy struct {
	service *service
	dir     string // the folder; "" for none
	engine  *envoyrls.Engine
	watcher *envoyconfig.Watcher // nil without a folder

	isAwaitingLimits atomic.Bool // not ready: the control plane has not sent the first limits yet

	mu            sync.Mutex
	onFirstLimits []func()              // called when the first limits are in force
	names         []metrics.Rule        // names of the limits in force
	warnings      []envoyconfig.Warning // warnings about the limits in force, which were logged
}

// openEnvoy makes the engine, and loads and watches the folder, if one is set. The policy decides
// requests of domains that the folder does not have.
func (s *service) openEnvoy(ctx context.Context, o envoyrls.Options, reload <-chan os.Signal) error {
	e := &envoy{service: s, dir: s.Settings.EnvoyConfig}
	o.NewLimit = e.addName
	o.Policy = s.core
	var err error
	if e.engine, err = envoyrls.New(s.core.Controller, o); err != nil {
		return fmt.Errorf("envoy-config (%s): %w", s.Settings.Source("envoy-config"), err)
	}
	s.envoy = e
	if s.Settings.EnvoyXDS != "" {
		return e.followControlPlane(ctx)
	}
	if e.dir == "" {
		empty, err := envoyconfig.Load(nil, envoyconfig.Options{})
		if err != nil {
			return err
		}
		return e.engine.SetConfig(empty)
	}
	e.watcher, err = envoyconfig.Watch(e.dir, envoyconfig.WatchOptions{
		Options: envoyconfig.Options{MergeDomains: s.Settings.EnvoyMergeDomains},
		Ready:   func(c *envoyconfig.Config) error { return e.use(ctx, c) },
		Notify:  e.reloaded,
	})
	if err != nil {
		return fmt.Errorf("%w: envoy-config (%s): %w", settings.ErrInvalid, s.Settings.Source("envoy-config"), err)
	}
	var reloading sync.WaitGroup
	reloading.Go(func() { background.ForEach(ctx, reload, func(os.Signal) { e.watcher.Reload() }) }) // reloaded reports the result
	s.onClose(func() {
		reloading.Wait()
		e.watcher.Close()
	})
	return nil
}

// envoySource returns where Envoy's limits come from, for logs: a folder or a control plane. It is
// "" if there are none.
func (s *service) envoySource() string { return cmp.Or(s.Settings.EnvoyConfig, s.Settings.EnvoyXDS) }

// followControlPlane uses the limits that a control plane sends. Until it has sent the first
// limits, calls return an error, and the instance is not ready unless envoy-xds-optional is set.
func (e *envoy) followControlPlane(ctx context.Context) error {
	s := e.service
	o := envoyxds.Options{
		Target:       s.Settings.EnvoyXDS,
		NodeID:       s.Settings.EnvoyXDSNode,
		MergeDomains: s.Settings.EnvoyMergeDomains,
		Use:          func(c *envoyconfig.Config) error { return e.use(ctx, c) },
		Report:       e.reloaded,
	}
	var err error
	if o.NodeMetadata, err = s.Settings.XDSMetadata(); err != nil {
		return err
	}
	if s.Settings.EnvoyXDSCA != "" {
		config, err := xdsTLS(&s.Settings)
		if err != nil {
			return fmt.Errorf("%w: envoy-xds-ca: %w", settings.ErrInvalid, err)
		}
		o.Credentials = credentials.NewTLS(config)
	}
	e.isAwaitingLimits.Store(!s.Settings.EnvoyXDSOptional)
	client, err := envoyxds.Follow(o)
	if err != nil {
		return err
	}
	s.onClose(func() { client.Close() })
	return nil
}

// xdsTLS makes the TLS configuration for the control plane. It reads the certificate again for
// each connection, because such certificates are short-lived.
func xdsTLS(s *settings.Settings) (*tls.Config, error) {
	authorities, err := settings.ReadFile(s.EnvoyXDSCA)
	if err != nil {
		return nil, err
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: x509.NewCertPool(), ServerName: s.EnvoyXDSServerName}
	if !config.RootCAs.AppendCertsFromPEM(authorities) {
		return nil, fmt.Errorf("%s has no certificate in PEM form", s.EnvoyXDSCA)
	}
	if s.EnvoyXDSCert != "" {
		read := func() (*tls.Certificate, error) {
			pair, err := tls.LoadX509KeyPair(s.EnvoyXDSCert, s.EnvoyXDSKey)
			return &pair, err
		}
		if _, err := read(); err != nil {
			return nil, err
		}
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return read() }
	}
	return config, nil
}

func (e *envoy) use(ctx context.Context, c *envoyconfig.Config) error {
	if err := e.engine.SetConfig(c); err != nil {
		return err
	}
	s := e.service
	s.core.SetPlans(ctx, "envoy", e.engine.Plans())
	e.mu.Lock()
	defer e.mu.Unlock()
	e.names = e.names[:0]
	for _, name := range e.engine.EventNames() {
		e.names = append(e.names, metrics.Rule{Name: name.Rule, Limit: name.Limit, Algorithm: name.Algorithm})
	}
	s.metrics.SetRulesOf("envoy", e.names)
	s.Log.Info("Envoy's rate limits loaded", activity.EventAttribute, activity.Reloaded, "from", e.service.envoySource(), "domains", len(c.Domains()), "limits", len(c.Limits()))
	if e.dir != "" && len(c.Limits()) == 0 { // a control plane may have none
		s.Log.Warn("the folder of envoy-config has no limits, so its files deny nothing", "from", e.dir)
	}
	e.logWarningsLocked(c.Warnings())
	e.isAwaitingLimits.Store(false)
	for _, f := range e.onFirstLimits {
		f()
	}
	e.onFirstLimits = nil
	return nil
}

// afterFirstLimits calls f once limits are in force: now, or after the control plane sends some.
func (e *envoy) afterFirstLimits(f func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.isAwaitingLimits.Load() {
		e.onFirstLimits = append(e.onFirstLimits, f)
		return
	}
	f()
}

func (e *envoy) health(context.Context) (admin.State, string) {
	if e.isAwaitingLimits.Load() {
		return admin.Down, "down: " + e.service.Settings.EnvoyXDS + " has sent no limits yet"
	}
	return admin.OK, ""
}

// addName adds an event name of a request: its limit has detailed_metric or value_to_metric.
func (e *envoy) addName(name envoyrls.EventName) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.names = append(e.names, metrics.Rule{Name: name.Rule, Limit: name.Limit, Algorithm: name.Algorithm})
	e.service.metrics.SetRulesOf("envoy", e.names)
}

// maxEnvoyLines is the largest number of mistakes that are logged for a load, and of warnings.
const maxEnvoyLines = 5

// logWarningsLocked logs the warnings that the previous configuration did not have.
func (e *envoy) logWarningsLocked(warnings []envoyconfig.Warning) {
	logged := 0
	for _, w := range warnings {
		if slices.Contains(e.warnings, w) {
			continue
		}
		if logged++; logged <= maxEnvoyLines {
			e.service.Log.Warn(w.String())
		}
	}
	if more := logged - maxEnvoyLines; more > 0 {
		e.service.Log.Warn(fmt.Sprintf("and %d more warnings about Envoy's rate limits", more))
	}
	e.warnings = warnings
}

// reloaded counts a reload, and logs it if it has failed.
func (e *envoy) reloaded(err error) {
	e.service.metrics.Reloaded(metrics.ConfigEnvoy, err, time.Now())
	if err == nil {
		return
	}
	log := e.service.Log
	const line = "reload of Envoy's rate limits failed; the old ones stay in force"
	mistakes, ok := errors.AsType[envoyconfig.Errors](err)
	if !ok {
		log.Error(line, activity.EventAttribute, activity.ReloadFailed, "from", e.service.envoySource(), "err", err)
		return
	}
	log.Error(line, activity.EventAttribute, activity.ReloadFailed, "from", e.service.envoySource(), "mistakes", len(mistakes))
	for _, m := range mistakes[:min(len(mistakes), maxEnvoyLines)] {
		log.Error(m.Error())
	}
}

// fanOut returns two channels that both get each value of from, until ctx ends.
func (s *service) fanOut(ctx context.Context, from <-chan os.Signal) (a, b <-chan os.Signal) {
	both := [2]chan os.Signal{make(chan os.Signal, 1), make(chan os.Signal, 1)}
	var forwarding sync.WaitGroup
	forwarding.Go(func() {
		background.ForEach(ctx, from, func(signal os.Signal) {
			for _, to := range both {
				select {
				case to <- signal:
				default: // a reload is already pending
				}
			}
		})
	})
	s.onClose(forwarding.Wait)
	return both[0], both[1]
}

func registerEnvoy(s *service, to grpc.ServiceRegistrar) error {
	if s.envoy != nil {
		envoyrls.Register(to, s.envoy.engine, s.Telemetry.HasTraces())
	}
	return nil
}

// handler serves /json, /healthcheck and /rlconfig. All but the health check need the token. If the
// listener requires no token, requests with an Origin header still need it: a browser on this
// machine adds this header to requests of any web page.
func (e *envoy) handler(l settings.Listener) http.Handler {
	s := e.service
	inner := s.limitBodies(envoyrls.NewHandler(e.engine, envoyrls.HandlerOptions{IsHealthy: func() bool { return !s.isDraining.Load() && !e.isAwaitingLimits.Load() }, MaxBody: maxMessage}))
	isOpen := s.Settings.AdmitsCallersWithoutToken(l)
	secret := bearer.NewSecret(s.Settings.CallerToken)
	line := &logthrottle.Line{Every: refusalLogInterval}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		token, _ := bearer.Token(r.Header.Values("Authorization"))
		isHealthCheck := r.URL.Path == "/healthcheck"
		canOmitToken := isOpen && r.Header["Origin"] == nil
		if isHealthCheck || canOmitToken || secret.Matches(token) {
			inner.ServeHTTP(w, r)
			return
		}
		line.Log(s.Log.Warn, "a JSON call of Envoy's rate limit service was refused: its caller_token is missing or wrong")
		w.Header().Set("WWW-Authenticate", `Bearer realm="penstock"`)
		http.Error(w, "the token is missing or wrong; set caller_token, and send it as Authorization: Bearer TOKEN", http.StatusUnauthorized)
	})
}
