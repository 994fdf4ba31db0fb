package forwardauth

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
)

// The paths that a Handler serves.
const (
	// forwardPath is for proxies that describe a request in X-Forwarded-Method, -Uri and -Host:
	// Traefik, Caddy, APISIX, and HAProxy with the script of deploy/recipes.
	forwardPath = "/auth/forward"

	// requestPath is for nginx and ingress-nginx. These proxies send the method in
	// X-Original-Method. They send the URL either in X-Original-URL, or in X-Original-URI and
	// X-Forwarded-Host. A rejection is a 403, with the true status in X-RateLimit-Status.
	requestPath = "/auth/request"

	// extPath is for proxies that send the request's own method, host and path, with extPath before
	// the path: Envoy's ext_authz over HTTP.
	extPath = "/auth/ext"
)

// IsEndpoint reports whether a Handler serves the path of a URL.
func IsEndpoint(path string) bool { return endpointOf(path) != nil }

// An endpoint is one way to describe a request.
type endpoint struct {
	path       string
	isForNginx bool // whether rejections must be 403; see nginxWriter
	read       func(*http.Request) (*http.Request, error)
}

var endpoints = [...]endpoint{
	{path: forwardPath, read: readForward},
	{path: requestPath, read: readRequest, isForNginx: true},
	{path: extPath, read: readExt},
}

func endpointOf(path string) *endpoint {
	for i := range endpoints {
		e := &endpoints[i]
		isBelowExt := e.path == extPath && strings.HasPrefix(path, extPath+"/")
		if path == e.path || isBelowExt {
			return e
		}
	}
	return nil
}

// The headers that describe a request, in canonical form.
const (
	forwardedMethod = "X-Forwarded-Method"
	forwardedURI    = "X-Forwarded-Uri"
	forwardedHost   = "X-Forwarded-Host"
	originalMethod  = "X-Original-Method"
	originalURI     = "X-Original-Uri"
	originalURL     = "X-Original-Url"
)

var (
	errURIForm = errors.New("the URI of the request is not a path with a query; send what the client sent, as in /a?b=c")
	errURL     = errors.New(originalURL + " is not a URL; send one such as https://example.com/a?b=c")
	errExt     = errors.New("the path of the request is missing; send it after " + extPath + ", as in " + extPath + "/a?b=c")
)

func readForward(r *http.Request) (*http.Request, error) {
	if err := rejectHeaders(r, forwardPath, originalMethod, originalURI, originalURL); err != nil {
		return nil, err
	}
	values, err := singleValues(r, forwardedMethod, forwardedURI, forwardedHost)
	if err != nil {
		return nil, err
	}
	return originalRequest(r, values[0], values[2], values[1])
}

func readRequest(r *http.Request) (*http.Request, error) {
	if err := rejectHeaders(r, requestPath, forwardedMethod, forwardedURI); err != nil {
		return nil, err
	}
	if r.Header[originalURL] == nil {
		values, err := singleValues(r, originalMethod, originalURI, forwardedHost)
		if err != nil {
			return nil, err
		}
		return originalRequest(r, values[0], values[2], values[1])
	}
	if r.Header[originalURI] != nil {
		return nil, fmt.Errorf("%s and %s are both set; send one of them", originalURI, originalURL)
	}
	values, err := singleValues(r, originalMethod, originalURL)
	if err != nil {
		return nil, err
	}
	host, uri, err := cutURL(values[1])
	if err != nil {
		return nil, err
	}
	return originalRequest(r, values[0], host, uri)
}

func readExt(r *http.Request) (*http.Request, error) {
	if err := rejectHeaders(r, extPath, forwardedMethod, forwardedURI, originalMethod, originalURI, originalURL); err != nil {
		return nil, err
	}
	u := *r.URL
	u.Path = strings.TrimPrefix(u.Path, extPath)
	if u.RawPath != "" {
		rest, ok := strings.CutPrefix(u.RawPath, extPath)
		if !ok {
			return nil, errExt // a part of the prefix is percent-encoded
		}
		u.RawPath = rest
	}
	if u.Path == "" {
		return nil, errExt
	}
	return withTarget(r, r.Method, r.Host, &u), nil
}

// singleValues returns the values of at most three headers, which must have exactly one each. An
// array takes no memory of the heap.
func singleValues(r *http.Request, names ...string) (all [3]string, err error) {
	for i, name := range names {
		values := r.Header[name]
		if len(values) > 1 {
			return all, fmt.Errorf("%s is set %d times; let the proxy replace what clients send", name, len(values))
		}
		if len(values) == 0 || values[0] == "" {
			return all, fmt.Errorf("%s is missing; let the proxy set it", name)
		}
		all[i] = values[0]
	}
	return all, nil
}

// rejectHeaders fails if the request has one of these headers of another endpoint: the client may
// have sent it.
func rejectHeaders(r *http.Request, path string, names ...string) error {
	for _, name := range names {
		if r.Header[name] != nil {
			return fmt.Errorf("%s does not belong to %s; let the proxy remove it, or use the other endpoint", name, path)
		}
	}
	return nil
}

// cutURL cuts an absolute URL into its host and the rest.
func cutURL(text string) (host, uri string, err error) {
	rest, ok := strings.CutPrefix(text, "https://")
	if !ok {
		rest, ok = strings.CutPrefix(text, "http://")
	}
	slash := strings.IndexByte(rest, '/')
	if !ok || slash <= 0 {
		return "", "", errURL
	}
	return rest[:slash], rest[slash:], nil
}

// originalRequest returns the request that r describes. The URI must be in origin-form (RFC 9112,
// 3.2.1). The gate checks the rest as in requests of its own.
func originalRequest(r *http.Request, method, host, uri string) (*http.Request, error) {
	if uri[0] != '/' || strings.IndexByte(uri, ' ') >= 0 {
		return nil, errURIForm
	}
	u, err := url.ParseRequestURI(uri)
	if err != nil {
		return nil, errURIForm // err quotes what the client sent
	}
	return withTarget(r, method, host, u), nil
}

// withTarget returns a copy of r with the method, host and URL of the described request. The copy
// has r's peer, context and headers, and no body, because the described body is not known.
func withTarget(r *http.Request, method, host string, u *url.URL) *http.Request {
	original := *r
	original.Method, original.Host, original.URL = method, host, u
	original.Body, original.ContentLength = http.NoBody, 0
	return &original
}
