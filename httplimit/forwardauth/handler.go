package forwardauth

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"

	"github.com/penstock/penstock/admission"
	"github.com/penstock/penstock/httplimit"
	"github.com/penstock/penstock/policy"
)

// Options configure a Handler. The zero value is useful.
type Options struct {
	// Misused is called with the reason for each rejected subrequest. It was rejected with 403 because
	// its peer is not trusted, or with 400 because it does not describe a request. Misused is also
	// called once for rules that Check rejects. Proxies show none of these texts, so log them, at a
	// bounded rate. The text contains no secrets. Many goroutines call Misused concurrently, so it
	// must be quick. Default: none.
	Misused func(error)
}

// A Handler tells proxies whether a request may pass. Make one with New. A Handler serves the paths
// /auth/forward (for Traefik, Caddy, APISIX and HAProxy), /auth/request (for nginx) and /auth/ext
// (for Envoy), and responds to all others with 404. docs/forward-auth.md says how each describes a
// request.
//
// The path of a request must reach it unchanged. An http.ServeMux redirects paths such as
// /auth/ext//a, and a proxy would treat that as a denial. Use IsEndpoint instead.
type Handler struct {
	gate    *httplimit.Gate
	misused func(error)
}

// New makes a Handler that applies the rules of a Controller, as httplimit.New does. An error wraps
// penstock.ErrInvalid. If Check rejects the rules, New returns its error. If Check rejects reloaded
// rules, the old rules stay in force.
func New(controller *admission.Controller, o Options) (*Handler, error) {
	h := &Handler{misused: o.Misused}
	if h.misused == nil {
		h.misused = func(error) {}
	}
	gate, err := httplimit.New(controller, httplimit.Options{Check: h.check})
	if err != nil {
		return nil, err
	}
	h.gate = gate
	return h, nil
}

// check checks rules for the gate, and reports why reloaded rules are rejected.
func (h *Handler) check(rules *policy.Rules) error {
	err := Check(rules)
	if isReloaded := h.gate != nil; isReloaded && err != nil {
		h.misused(fmt.Errorf("the old rules stay in force: %w", err))
	}
	return err
}

// ServeHTTP decides the request that r describes. r's body is never read.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	e := endpointOf(r.URL.Path)
	if e == nil {
		http.NotFound(w, r)
		return
	}
	if e.isForNginx {
		w = &nginxWriter{ResponseWriter: w, context: r.Context()}
	}
	if !h.gate.IsTrustedProxy(r) {
		h.rejectPeer(w, r)
		return
	}
	original, err := e.read(r)
	if err != nil {
		h.misused(fmt.Errorf("%s: %w", e.path, err))
		h.gate.RejectMalformed(w, r, err.Error())
		return
	}
	h.decide(w, original)
}

var (
	errMethod = errors.New("the method of the request is missing")
	errURI    = errors.New("the path of the request is missing")
	errClient = errors.New("the address that the request came from is missing")
)

// Decide decides a request that a proxy describes in another protocol than HTTP, and responds as
// ServeHTTP does at /auth/ext. r has the method and the host of the described request, the path
// with the query in RequestURI, and the headers, with the one that http.address_header names. Its
// context and RemoteAddr are those of the proxy. client is the address that the proxy got the
// request from, in the form of RemoteAddr.
func (h *Handler) Decide(w http.ResponseWriter, r *http.Request, client string) admission.Outcome {
	if !h.gate.IsTrustedProxy(r) {
		h.rejectPeer(w, r)
		return admission.Refused
	}
	original, err := describedBy(r, client)
	if err != nil {
		h.misused(err)
		h.gate.RejectMalformed(w, r, err.Error())
		return admission.Malformed
	}
	return h.decide(w, original)
}

// describedBy returns the request that the arguments of Decide describe.
func describedBy(r *http.Request, client string) (*http.Request, error) {
	switch {
	case r.Method == "":
		return nil, errMethod
	case r.RequestURI == "":
		return nil, errURI
	case client == "":
		return nil, errClient
	}
	original, err := originalRequest(r, r.Method, r.Host, r.RequestURI)
	if err != nil {
		return nil, err
	}
	original.RemoteAddr = client
	return original, nil
}

func (h *Handler) rejectPeer(w http.ResponseWriter, r *http.Request) {
	detail := explainUntrusted(r.RemoteAddr)
	h.misused(errors.New(detail))
	h.gate.RejectPeer(w, r, detail)
}

// decide responds with 200, or with what the gate writes.
func (h *Handler) decide(w http.ResponseWriter, original *http.Request) admission.Outcome {
	a, outcome := h.gate.Decide(w, original)
	if a == nil {
		return outcome
	}
	a.Done(0)                    // no limit needs the response: Check rejects such limits
	w.WriteHeader(http.StatusOK) // Envoy treats any other status as a denial, even 204
	return outcome
}

func explainUntrusted(remote string) string {
	host, _, err := net.SplitHostPort(remote)
	switch {
	case remote == "" || remote[0] == '@' || remote[0] == '/': // of a unix socket
		host = "unix"
	case err != nil:
		host = remote
	}
	return fmt.Sprintf("only trusted proxies may send requests here; if %s is your proxy, add it to http.trusted_proxies of the policy", host)
}

// An nginxWriter responds to a subrequest of nginx. nginx treats 401 and 403 as denials, and
// any other status as a failure of this service, for which many configurations admit the request.
// So each rejection is a 403 with its status in X-RateLimit-Status. If there is no decision because
// the service shuts down, the status stays 503.
type nginxWriter struct {
	http.ResponseWriter
	context context.Context // of the subrequest
}

const headerStatus = "X-Ratelimit-Status"

// WriteHeader sends a status that nginx understands.
func (w *nginxWriter) WriteHeader(status int) {
	isUndecided := status == http.StatusServiceUnavailable && w.context.Err() != nil
	if status >= 300 && !isUndecided {
		w.Header()[headerStatus] = []string{strconv.Itoa(status)}
		status = http.StatusForbidden
	}
	w.ResponseWriter.WriteHeader(status)
}

// Unwrap returns the wrapped writer, for http.ResponseController.
func (w *nginxWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
