// Package revproxy passes requests on to one upstream, and its responses back, as they stream:
// bodies, trailers, server-sent events and WebSockets.
//
// Where a request goes is fixed by configuration; nothing in it can choose another place. What it
// says of its own way here (X-Forwarded-*) is replaced, unless a trusted proxy says so.
package revproxy

import (
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"time"

	"github.com/penstock/penstock/cmd/penstock/internal/seldom"
)

// Options of a Handler.
type Options struct {
	// Upstream is where requests go: its scheme is http, https, h2c (HTTP/2 without TLS) or unix (HTTP
	// on the socket of that path). Its path is put before those of requests.
	Upstream *url.URL

	// PreserveHost sends the client's Host. Default: the upstream's own, and the client's in
	// X-Forwarded-Host.
	PreserveHost bool

	// Trusted tells whether a request's X-Forwarded-* headers are kept and added to, because its peer
	// is a proxy that is believed. Default: none is.
	Trusted func(r *http.Request) bool

	// ConnectTimeout is for connecting, and then for the TLS handshake. 0: the system's own.
	ConnectTimeout time.Duration

	// HeaderTimeout is for the answer to begin once the request has been sent. 0: forever.
	HeaderTimeout time.Duration

	// MaxBody is how many bytes a request's body may have. 0: any.
	MaxBody int64

	// MaxConnections is how many connections to the upstream may be open at once. Requests wait for
	// one beyond that. 0: any.
	MaxConnections int

	// Unanswered is told of requests that the upstream has, or may have, and that it gave no answer
	// to: the answer that they get is the proxy's own. Default: nobody is.
	Unanswered func(r *http.Request)

	// Own is called before the proxy answers by itself, and may add headers to that answer. Default:
	// it adds none.
	Own func(header http.Header, r *http.Request)

	// TLS is for https. Default: TLS 1.2 or later, and the system's roots.
	TLS *tls.Config

	// Log is told, at most once a second, what went wrong. Default: nobody.
	Log *slog.Logger
}

// A Handler is an http.Handler that passes requests on. Close it when the last one has ended.
type Handler struct {
	options   Options
	target    *url.URL
	transport *http.Transport
	plain     http.Handler
	quota     http.Handler // drops what the upstream says about its own quotas
	log       *slog.Logger
	buffers   buffers
	failures  seldom.Line // no response from the upstream
	broken    seldom.Line // a response that broke off
}

// New makes a Handler. It does not connect.
func New(o Options) *Handler {
	h := &Handler{options: o, log: o.Log}
	if h.log == nil {
		h.log = slog.New(slog.DiscardHandler)
	}
	if h.options.Unanswered == nil {
		h.options.Unanswered = func(*http.Request) {}
	}
	if h.options.Own == nil {
		h.options.Own = func(http.Header, *http.Request) {}
	}
	h.target, h.transport = dial(o)
	proxy := func(modify func(*http.Response) error) http.Handler {
		return &httputil.ReverseProxy{
			Rewrite:        h.rewrite,
			Transport:      tracked{h.transport},
			ModifyResponse: modify,
			ErrorHandler:   h.fail,
			ErrorLog:       slog.NewLogLogger(brokenOff{h.log.Handler(), &h.broken}, slog.LevelWarn),
			BufferPool:     &h.buffers,
		}
	}
	h.plain = proxy(check)
	h.quota = proxy(func(r *http.Response) error {
		maps.DeleteFunc(r.Header, func(name string, _ []string) bool { return isQuota(name) })
		return check(r)
	})
	return h
}

// Close ends idle connections to the upstream.
func (h *Handler) Close() { h.transport.CloseIdleConnections() }

// ServeHTTP passes the request on. Headers that are already set on w go before those of the
// upstream: if they speak of quotas, in whatever dialect, the upstream's that do are dropped, since
// two answers to one question help nobody. Retry-After is always kept.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch {
	case r.Method == http.MethodConnect || r.URL.Host != "":
		h.problem(w, r, http.StatusMisdirectedRequest, "this is no forward proxy: write the path only")
		return
	case !strings.HasPrefix(r.URL.Path, "/"):
		h.problem(w, r, http.StatusBadRequest, "the path does not begin with /")
		return
	case h.options.MaxBody > 0 && r.ContentLength > h.options.MaxBody:
		h.problem(w, r, http.StatusRequestEntityTooLarge, "the body is too large")
		return
	}
	own := w.Header()
	if len(own) == 0 && r.ContentLength == 0 {
		h.plain.ServeHTTP(w, r)
		return
	}
	res := &response{ResponseWriter: w, own: maps.Clone(own)}
	if r.ContentLength != 0 {
		if r.ProtoMajor == 1 {
			// Otherwise the server, when an upstream answers before it has read all, throws away up to 256
			// KB of the body that it still reads.
			http.NewResponseController(w).EnableFullDuplex()
		}
		res.body = newBody(r, h.options.MaxBody)
		r = r.WithContext(r.Context()) // a copy: the server looks at its own request's Body
		r.Body = res.body
	}
	proxy := h.plain
	for name := range own {
		if isQuota(name) {
			proxy = h.quota
		}
	}
	proxy.ServeHTTP(res, r)
}

// isQuota tells whether a header says what is left of a quota, in any of the usual dialects.
func isQuota(name string) bool {
	if hasPrefix(name, "x-") {
		name = name[2:]
	}
	return hasPrefix(name, "ratelimit") || hasPrefix(name, "rate-limit")
}

// hasPrefix is for prefixes in lower case.
func hasPrefix(name, prefix string) bool {
	return len(name) >= len(prefix) && strings.EqualFold(name[:len(prefix)], prefix)
}

// A response keeps the headers that were set before the upstream was asked: interim answers (100,
// 103) make httputil forget them.
//
// It closes the client's connection if it begins before the request's body has come to a clean end.
// With full duplex the server would go on after such a body, and take what is left of it for the
// next request.
type response struct {
	http.ResponseWriter
	own     http.Header
	interim bool
	body    *body // of the request; nil if it has none
}

func (w *response) WriteHeader(status int) {
	if status < 200 {
		w.interim = true
		w.ResponseWriter.WriteHeader(status)
		return
	}
	header := w.Header()
	if w.interim {
		for name, values := range w.own {
			header[name] = append(values[:len(values):len(values)], header[name]...)
		}
	}
	if w.body != nil && !w.body.ended.Load() {
		header.Set("Connection", "close")
	}
	w.ResponseWriter.WriteHeader(status)
}

// Unwrap is for http.ResponseController.
func (w *response) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// check refuses a switch to a protocol that was not asked for, and a status that is none: net/http
// panics when told to pass it on.
func check(r *http.Response) error {
	if r.StatusCode == http.StatusSwitchingProtocols && !isWebSocket(r.Request.Header) {
		return errors.New("the upstream switched protocols unasked")
	}
	if r.StatusCode < 100 || r.StatusCode > 999 {
		return fmt.Errorf("the upstream answered with status %d", r.StatusCode)
	}
	return nil
}
