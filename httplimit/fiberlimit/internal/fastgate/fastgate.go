// Package fastgate puts a gate in front of a handler of fasthttp, on which both versions of Fiber
// are built.
package fastgate

import (
	"context"
	"net/http"
	"net/url"

	"github.com/valyala/fasthttp"

	"github.com/penstock/penstock/httplimit"
)

// Serve calls next with the request that the gate admits. The context of this request is made from
// ctx. If the gate rejects the request, Serve writes the response. It returns an error if the URI
// of the request cannot be parsed.
//
// Fiber's own adaptor for middleware does not work here: it ends the middleware before the next
// handler begins. Slots would be released too early, and every status would be 200.
func Serve(ctx context.Context, gate *httplimit.Gate, c *fasthttp.RequestCtx, next func(*http.Request)) error {
	r, err := copyRequest(c)
	if err != nil {
		return err
	}
	w := response{&c.Response, make(http.Header)}
	admission := gate.Admit(w, r.WithContext(ctx))
	for name, values := range w.header {
		for _, value := range values {
			c.Response.Header.Add(name, value)
		}
	}
	if admission == nil { // the gate has rejected the request, and w has its response
		return nil
	}
	status := 0 // if the handler panics
	defer func() { admission.Done(status) }()
	next(admission.Request)
	status = c.Response.StatusCode()
	clear(w.header)
	for name, value := range c.Response.Header.All() {
		w.header.Add(string(name), string(value)) // for policies with cost.actual
	}
	return nil
}

// copyRequest copies the request without its body. Fiber reuses the memory of the original when the
// handler has returned, and a store may still read the request then.
func copyRequest(c *fasthttp.RequestCtx) (*http.Request, error) {
	u, err := url.ParseRequestURI(string(c.Request.RequestURI()))
	if err != nil {
		return nil, err
	}
	r := &http.Request{Method: string(c.Request.Header.Method()), URL: u, Host: string(c.Request.Host()), Header: make(http.Header),
		RemoteAddr: c.RemoteAddr().String(), ContentLength: bodySize(&c.Request)}
	for name, value := range c.Request.Header.All() {
		r.Header.Add(string(name), string(value))
	}
	return r, nil
}

func bodySize(r *fasthttp.Request) int64 {
	if r.IsBodyStream() {
		return max(int64(r.Header.ContentLength()), -1)
	}
	return int64(len(r.Body()))
}

// A response passes the gate's response to fasthttp.
type response struct {
	to     *fasthttp.Response
	header http.Header
}

func (w response) Header() http.Header    { return w.header }
func (w response) WriteHeader(status int) { w.to.SetStatusCode(status) }
func (w response) Write(p []byte) (int, error) {
	w.to.AppendBody(p)
	return len(p), nil
}
