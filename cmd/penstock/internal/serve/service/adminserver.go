package service

import (
	"context"
	"crypto/tls"
	"net/http"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/cmd/penstock/internal/console/admin"
	"github.com/penstock/penstock/cmd/penstock/internal/console/adminapi"
	"github.com/penstock/penstock/cmd/penstock/internal/console/dashboard"
	"github.com/penstock/penstock/cmd/penstock/internal/console/explain"
	"github.com/penstock/penstock/cmd/penstock/internal/console/keylimits"
	"github.com/penstock/penstock/cmd/penstock/internal/rpc/envoyrls"
	"github.com/penstock/penstock/cmd/penstock/internal/serve/metrics"
	"github.com/penstock/penstock/internal/labels"
	"github.com/penstock/penstock/redisstore"
)

// newAdmin makes the server for health checks, metrics, the admin API and the dashboard. Streams of
// events may use half of its connections. The streams and all other requests of the API and the
// dashboard may together use three quarters. The rest is for scrapes and probes.
func (s *service) newAdmin(connections int) (*server, error) {
	files := tlsFiles{cert: s.Settings.AdminTLSCert, key: s.Settings.AdminTLSKey, clientCA: s.Settings.AdminClientCA, prefix: "admin-tls", caName: "admin-client-ca"}
	config, err := s.tlsConfig("admin_listen", files)
	if err != nil {
		return nil, err
	}
	if config != nil && config.ClientCAs != nil {
		config.ClientAuth = tls.VerifyClientCertIfGiven // probes and scrapers need none
	}
	streams := connections / 2
	api := s.newAdminAPI(streams)
	var pprof func(http.Handler) http.Handler
	if s.Settings.Pprof {
		pprof = api.Protect
	}
	http1 := &http.Server{
		TLSConfig:         config,
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       10 * time.Second,
		WriteTimeout:      30 * time.Second,
		IdleTimeout:       time.Minute,
		MaxHeaderBytes:    16 << 10,
		HTTP2: &http.HTTP2Config{ // with TLS
			// 64 connections, of 16 requests with headers of 16 KB each, take at most 64 MB.
			MaxConcurrentStreams:          16,
			MaxReadFrameSize:              maxFrame,
			MaxReceiveBufferPerStream:     uploadBuffer,
			MaxReceiveBufferPerConnection: uploadBuffer,
		},
		// net/http would answer OPTIONS * by itself, without endUnread.
		DisableGeneralOptionsHandler: true,
		ErrorLog:                     serverLog(s.Log),
		ConnContext:                  adminapi.WithConn,
	}
	server := newServer("admin-listen", http1)
	server.idle.canCloseNew = true
	http1.Handler = endUnread(server.idle, admin.New(admin.Options{
		MaxRequests: streams + connections/4,
		MaxScrapes:  connections / 8,
		Checks:      s.checks(),
		Metrics:     s.metrics.Handler(),
		API:         api,
		Pages:       dashboard.New(dashboard.Options{API: api, Version: s.Version}),
		Pprof:       pprof,
	}))
	return server, nil
}

// newAdminAPI makes the handler of the admin API. It serves up to streams readers of events.
func (s *service) newAdminAPI(streams int) *adminapi.Handler {
	keys := redisstore.Options{Prefix: s.Settings.Prefix, Secret: s.Settings.KeyHashSecret}
	identities := s.Settings.Identities(s.sharedSecret)
	return adminapi.New(adminapi.Options{
		Token:      s.Settings.OperatorToken,
		MaxReaders: streams,
		IsLocal:    s.Settings.IsAdminLocal(),
		Identities: identities.Show,
		MaskSecret: identities.Secret,
		Store:      s.core.Store,
		Reader:     &keylimits.Reader{Store: s.core.Reads, DecideWithoutStore: s.core.DecideWithoutStore, Enforced: s.core.Enforced, URL: s.Settings.Store, Options: keys},
		Policy:     s.core,
		Digest:     s.core.Digest,
		Recorder:   s.core.Activity,
		Denials:    s.denials,
		EnvoyLimits: func(key string) []envoyrls.KeyLimit {
			if s.envoy == nil {
				return nil
			}
			return s.envoy.engine.KeyLimits(key)
		},
		Fleet:     s.core.Fleet,
		Health:    s.health,
		StoreInfo: s.storeInfo,
		Waiting:   s.metrics.Waiting,
		Upstream:  func() string { return s.upstream },
		Explain: func(r *http.Request, descriptor map[string][]string) (*explain.Report, []penstock.Charge, error) {
			return explain.Explain(s.core.Rules(), r, descriptor, keys, s.core.StoreState().Instances, s.core.RegionSetup())
		},
		Regions:     s.core.RegionSetup,
		RegionsNow:  s.core.RegionStatuses,
		AuthFailed:  s.metrics.AddAuthFailures(metrics.AdminCallers),
		AuditIntent: s.auditFile.writeIntent,
		Audit:       s.audit(),
		Name:        identities.Name,
		Key:         identities.Key,
	})
}

func (s *service) health(ctx context.Context) adminapi.Health {
	worst := admin.OK
	all := adminapi.Health{Checks: []adminapi.Check{}}
	for _, check := range s.checks() {
		state, detail := check.Run(ctx)
		worst = max(worst, state)
		all.Checks = append(all.Checks, adminapi.Check{Name: check.Name, Status: state.String(), Detail: detail})
	}
	all.Status = worst.String()
	return all
}

// storeInfo returns what is known of the store for the admin API.
func (s *service) storeInfo(context.Context) adminapi.StoreState {
	state := s.core.StoreState()
	info := adminapi.StoreState{
		Name:      s.Settings.StoreName(),
		IsFailing: state.Reason != "",
		Reason:    state.Reason,
		Breakers:  map[string]string{},
		Instances: state.Instances,
	}
	for node, breaker := range state.Breakers {
		info.Breakers[labels.Node(node)] = breaker.String()
	}
	if m := state.Memory; m != nil {
		info.Memory = &adminapi.Memory{Used: m.Used, Max: m.Max, Policy: m.Policy, Server: m.Address, CanEvict: m.Evicts()}
	}
	return info
}
