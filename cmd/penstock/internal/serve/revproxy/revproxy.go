// Package revproxy forwards requests to one upstream. It streams bodies, trailers, server-sent
// events and WebSockets.
//
// Configuration alone decides where a request goes; nothing in the request can change it.
// X-Forwarded-* headers of the request are replaced, unless they come from a trusted proxy.
package revproxy

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock/cmd/penstock/internal/serve/logthrottle"
)

// All functions of Options must be set, and so must Memory and Log.
type Options struct {
	// Upstream is where requests go. Its scheme is http, https, h2c (HTTP/2 without TLS) or unix
	// (HTTP on the socket at that path). Its path is prepended to the paths of requests.
	Upstream *url.URL

	// PreserveHost sends the client's Host to the upstream. Default: the upstream's own name; the
	// client's Host is in X-Forwarded-Host.
	PreserveHost bool

	// IsTrusted returns true if the request's peer is a trusted proxy: its X-Forwarded-* headers
	// are then kept and extended.
	IsTrusted func(r *http.Request) bool

	// ReadsHeader returns true for headers that rules read. Trailers with such a name are not sent on,
	// because some upstreams treat trailers like headers.
	ReadsHeader func(name string) bool

	// SetMarker changes the header that marks requests of this process for the upstream. It gets the
	// context of the request.
	SetMarker func(context.Context, http.Header)

	// ConnectTimeout limits connecting, and separately the TLS handshake. 0: the system's limit.
	ConnectTimeout time.Duration

	// HeaderTimeout limits the time from the end of the request to the beginning of the response.
	// 0: no limit.
	HeaderTimeout time.Duration

	// MaxBody is how many bytes a request's body may have. 0: no limit.
	MaxBody int64

	// MaxConnections is how many connections to the upstream may be open at the same time. Further
	// requests wait for a free one for a second, and then get 503. If the upstream uses HTTP/1, at
	// most half of them are for the requests of one address (IPv6: its /64), unless IsTrusted
	// returns true. 0: no limit.
	MaxConnections int

	// Overloaded is called for each request that gets 503 because connections to the upstream are in
	// use: all of them, or the share of its address.
	Overloaded func()

	// Memory gives buffers for bodies of responses.
	Memory Memory

	// NoResponse is called for requests that the upstream may have received, but did not respond
	// to. The proxy responds to them itself.
	NoResponse func(r *http.Request)

	// Observe is called for each request that was sent to the upstream, with the time until the
	// headers of its response. status is 0 if there is no response. Observe is not called if the
	// client disconnects before these headers arrive.
	Observe func(status int, took time.Duration)

	// AddHeaders is called before the proxy responds by itself, to add headers to that response.
	AddHeaders func(header http.Header, r *http.Request)

	// Trace writes the trace that a request belongs to into the headers for the upstream.
	Trace func(ctx context.Context, header http.Header)

	// TLS is the configuration for https. Default: TLS 1.2 or later, and the system's roots.
	TLS *tls.Config

	// Log gets failures, at most one line of each kind a second.
	Log *slog.Logger
}

type Memory interface {
	Take(bytes int64) bool // returns false if there are not so many left
	Release(bytes int64)   // releases taken bytes
}

// A Handler is an http.Handler that forwards requests. Close it when the last request has ended.
type Handler struct {
	options             Options
	target              *url.URL
	transport           *http.Transport
	forward             http.Handler
	forwardWithoutQuota http.Handler // drops headers about the upstream's own quotas
	log                 *slog.Logger
	buffers             buffers
	isHTTP1             atomic.Bool // a connection to the upstream uses HTTP/1
	shares              shares
	failures            logthrottle.Line // no response from the upstream
	endedEarly          logthrottle.Line // a response that ended early
}

// New makes a Handler. It does not connect.
func New(o Options) *Handler {
	h := &Handler{options: o, log: o.Log}
	h.buffers.memory = o.Memory
	h.shares.max = o.MaxConnections / 2
	h.isHTTP1.Store(o.Upstream.Scheme == "http" || o.Upstream.Scheme == "unix") // https: see trackedTransport
	h.target, h.transport = newTransport(o)
	proxy := func(modify func(*http.Response) error) http.Handler {
		return &httputil.ReverseProxy{
			Rewrite:        h.rewrite,
			Transport:      trackedTransport{h.transport, h.options.Observe, &h.isHTTP1},
			ModifyResponse: modify,
			ErrorHandler:   h.fail,
			ErrorLog:       slog.NewLogLogger(throttledHandler{h.log.Handler(), &h.endedEarly}, slog.LevelWarn),
			BufferPool:     &h.buffers,
		}
	}
	h.forward = proxy(checkStatus)
	h.forwardWithoutQuota = proxy(func(r *http.Response) error {
		maps.DeleteFunc(r.Header, func(name string, _ []string) bool { return isQuota(name) })
		return checkStatus(r)
	})
	return h
}

func (h *Handler) Close() { h.transport.CloseIdleConnections() }

// ServeHTTP forwards the request. Headers that are already set on w come before those of the
// upstream. If they contain quota headers, in any of the usual dialects, the quota headers of the
// upstream are dropped: a client should get one answer. Retry-After is always kept.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch {
	case r.Method == http.MethodConnect || r.URL.Host != "":
		h.problem(w, r, http.StatusMisdirectedRequest, "this is not a forward proxy: send only the path")
		return
	case !strings.HasPrefix(r.URL.Path, "/"):
		h.problem(w, r, http.StatusBadRequest, "the path does not begin with /")
		return
	case h.options.MaxBody > 0 && r.ContentLength > h.options.MaxBody:
		h.problem(w, r, http.StatusRequestEntityTooLarge, "the body is too large")
		return
	}
	if h.shares.max > 0 && h.isHTTP1.Load() && !h.options.IsTrusted(r) {
		address := addressOf(r)
		if !h.shares.take(address) {
			h.overloaded(w, r)
			return
		}
		defer h.shares.release(address)
	}
	own, isHTTP1 := w.Header(), r.ProtoMajor == 1
	if len(own) == 0 && r.ContentLength == 0 && isHTTP1 {
		h.forward.ServeHTTP(w, r)
		return
	}
	res := &response{ResponseWriter: w, own: maps.Clone(own), isHTTP1: isHTTP1}
	if r.ContentLength != 0 {
		if res.isHTTP1 {
			// Without full duplex, an early response of the upstream would make the server discard
			// up to 256 KB of the body.
			http.NewResponseController(w).EnableFullDuplex()
		}
		res.body = h.newBody(r)
		r = r.WithContext(r.Context()) // a copy: the server needs the Body of its own request
		r.Body = res.body
	}
	proxy := h.forward
	for name := range own {
		if isQuota(name) {
			proxy = h.forwardWithoutQuota
		}
	}
	proxy.ServeHTTP(res, r)
}

// isQuota returns true for headers that report a quota, in any of the usual dialects.
func isQuota(name string) bool {
	if hasPrefix(name, "x-") {
		name = name[2:]
	}
	return hasPrefix(name, "ratelimit") || hasPrefix(name, "rate-limit")
}

// hasPrefix ignores the case of name. The prefix must be in lower case.
func hasPrefix(name, prefix string) bool {
	return len(name) >= len(prefix) && strings.EqualFold(name[:len(prefix)], prefix)
}

// A response keeps the headers that were set before the upstream was called: httputil forgets them
// after an interim response (100, 103).
//
// For HTTP/2 it drops interim responses. If the client resets the stream at that moment, the server
// may still read the headers while httputil clears them. Headers are a map, and Go ends a process
// that reads and writes a map at the same time. Clients get status 100 nevertheless: the server
// sends it by itself.
//
// For HTTP/1.1 it closes the client's connection if the response begins before the request's body
// has ended cleanly. With full duplex the server would continue after such a body, and parse the
// rest of it as the next request.
type response struct {
	http.ResponseWriter
	own        http.Header // set before the upstream was called
	hasInterim bool        // an interim response was sent
	isHTTP1    bool        // the client uses HTTP/1.0 or HTTP/1.1
	body       *body       // of the request; nil if it has none
}

func (w *response) WriteHeader(status int) {
	if status < 200 {
		w.hasInterim = true
		if w.isHTTP1 {
			w.ResponseWriter.WriteHeader(status)
		}
		return
	}
	header := w.Header()
	if w.hasInterim {
		for name, values := range w.own {
			header[name] = append(values[:len(values):len(values)], header[name]...)
		}
	}
	if w.isHTTP1 && w.body != nil && !w.body.isComplete.Load() {
		header.Set("Connection", "close") // for HTTP/2, this would end all streams of the connection
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *response) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// checkStatus fails for a protocol switch that was not requested, and for an invalid status:
// net/http panics if it must send one.
func checkStatus(r *http.Response) error {
	if r.StatusCode == http.StatusSwitchingProtocols && !isWebSocket(r.Request.Header) {
		return errors.New("the upstream switched protocols without a request")
	}
	if r.StatusCode < 100 || r.StatusCode > 999 {
		return fmt.Errorf("the upstream returned status %d", r.StatusCode)
	}
	return nil
}
