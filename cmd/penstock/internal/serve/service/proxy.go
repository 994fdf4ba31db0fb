package service

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"time"

	"github.com/penstock/penstock/cmd/penstock/internal/serve/demoupstream"
	"github.com/penstock/penstock/cmd/penstock/internal/serve/logthrottle"
	"github.com/penstock/penstock/cmd/penstock/internal/serve/revproxy"
	"github.com/penstock/penstock/cmd/penstock/internal/serve/slowclient"
	"github.com/penstock/penstock/httplimit"
)

// newProxy makes the server that applies the limits and forwards requests to the upstream.
func (s *service) newProxy(runCtx context.Context, budget connectionBudget) (*server, error) {
	gate, err := httplimit.New(s.core.Controller, httplimit.Options{})
	if err != nil {
		return nil, err
	}
	upstream := s.Settings.Upstream
	if s.Settings.Demo {
		demo, err := demoupstream.Start()
		if err != nil {
			return nil, fmt.Errorf("demo upstream: %w", err)
		}
		s.onClose(demo.Close)
		upstream = &url.URL{Scheme: "http", Host: demo.Addr()}
	}
	s.upstream = upstream.String()
	proxy := revproxy.New(revproxy.Options{
		Upstream:       upstream,
		PreserveHost:   s.Settings.PreserveHost,
		IsTrusted:      gate.IsTrustedProxy,
		ReadsHeader:    gate.ReadsHeader,
		ConnectTimeout: s.Settings.UpstreamConnectTimeout,
		HeaderTimeout:  s.Settings.UpstreamHeaderTimeout,
		MaxBody:        s.Settings.MaxBody,
		MaxConnections: int(budget.upstream),
		Overloaded:     s.upstreamFull(budget.upstream),
		Memory:         s.memory,
		NoResponse:     httplimit.MarkStatusUnknown,
		AddHeaders:     gate.AllowOrigin,
		Observe: func(status int, took time.Duration) {
			s.core.Activity.Upstream.Observe(took)
			if status == 0 || status >= 500 {
				s.core.Activity.Upstream.Fail()
			}
		},
		SetMarker: s.setMarker,
		Trace:     s.telemetry.Inject,
		Log:       s.Log,
	})
	s.onClose(proxy.Close)
	handler := s.telemetry.Handler(s.noteMarkers(gate.Middleware(proxy)))
	if s.testHooks.limits != nil {
		handler = s.testHooks.limits(handler)
	}
	handler = s.countInFlight(limitHeader(gate, s.Settings.MaxHeader, handler))
	files := tlsFiles{cert: s.Settings.TLSCert, key: s.Settings.TLSKey, clientCA: s.Settings.TLSClientCA, prefix: "tls", caName: "tls-client-ca"}
	config, err := s.tlsConfig("listen", files)
	if err != nil {
		return nil, err
	}
	handler = slowclient.Handler(handler, slowclient.Options{Stall: s.Settings.StallTimeout, Rate: s.Settings.MinRate})
	handler = s.limitMemory(memoryOfForwarded, 2, handler)
	return newServer("listen", s.newHTTP(runCtx, handler, config)), nil
}

// upstreamFull returns a function that counts a request for which no connection to the upstream is
// free. It logs a line at most once a minute.
func (s *service) upstreamFull(limit int64) func() {
	count := s.metrics.AddOverload("upstream")
	line := &logthrottle.Line{Every: time.Minute}
	return func() {
		count()
		line.Log(s.Log.Warn, "requests got 503: all connections to the upstream are in use, or one address has half of them (limit its requests by in_flight, or raise ulimit -n)",
			"limit", limit, "in_flight", s.inFlight.Load())
	}
}

// maxFrame is the largest frame of HTTP/2, in bytes. It is the smallest that the protocol allows:
// net/http allocates a whole frame when its head arrives, and keeps it with the connection.
const maxFrame = 16 << 10

// newHTTP makes an HTTP server. It serves HTTP/1.1, and HTTP/2 with TLS or with prior knowledge.
func (s *service) newHTTP(runCtx context.Context, handler http.Handler, config *tls.Config) *http.Server {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(true)
	protocols.SetUnencryptedHTTP2(true)
	return &http.Server{
		Handler:           handler,
		TLSConfig:         config,
		Protocols:         protocols,
		ReadHeaderTimeout: s.Settings.HeaderTimeout,
		ReadTimeout:       s.readTimeout(),
		IdleTimeout:       s.Settings.IdleTimeout,
		MaxHeaderBytes:    int(s.Settings.MaxHeader), // the server reads 4 KB more; limitHeader is exact
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams: 100,                     // of one connection; RFC 9113 recommends at least 100
			SendPingTimeout:      s.Settings.StallTimeout, // a client that is silent for this time gets a ping
			WriteByteTimeout:     s.Settings.StallTimeout,

			MaxReadFrameSize:          maxFrame,
			MaxReceiveBufferPerStream: uploadBuffer,
		},
		DisableGeneralOptionsHandler: true, // OPTIONS * is limited like other requests
		ErrorLog:                     serverLog(s.Log),
		BaseContext:                  func(net.Listener) context.Context { return runCtx },
		ConnContext:                  s.withHeldMemory,
	}
}

// readTimeout bounds how long http.Server reads the body of a request that it rejects by itself,
// such as with 417. Package slowclient bounds the bodies of all other requests.
func (s *service) readTimeout() time.Duration {
	if s.Settings.StallTimeout == 0 {
		return 0
	}
	return s.Settings.HeaderTimeout + s.Settings.StallTimeout
}

// limitHeader responds with 431 to requests whose request line and headers are larger than limit
// bytes. It counts the bytes that HTTP/1.1 would send, also for requests by HTTP/2.
func limitHeader(gate *httplimit.Gate, limit int64, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		size := len(r.Method) + len(" ") + len(r.RequestURI) + len(" HTTP/1.1\r\n") + len("Host: \r\n") + len(r.Host) + len("\r\n")
		for name, values := range r.Header {
			for _, value := range values {
				size += len(name) + len(": \r\n") + len(value)
			}
		}
		if int64(size) <= limit {
			next.ServeHTTP(w, r)
			return
		}
		gate.AllowOrigin(w.Header(), r)
		revproxy.Problem(w, http.StatusRequestHeaderFieldsTooLarge, fmt.Sprintf("the headers are larger than %d bytes", limit))
	})
}
