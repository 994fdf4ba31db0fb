// Package fiberlimit puts limits in front of handlers of Fiber.
package fiberlimit

import (
	"net/http"
	"net/url"

	"github.com/gofiber/fiber/v3"

	"github.com/penstock/penstock/httplimit"
)

// Middleware returns a Fiber handler that serves the requests that the gate admits. Use it first,
// after recover.New: then Fiber routes by the path that the rules matched. httplimit.SettleContext
// works in the handlers, with c.Context().
//
// By default, rules distinguish /a from /A and /a/. So set CaseSensitive and StrictRouting in
// fiber.Config. Without them, clients can evade rules by another spelling.
//
// Fiber does not use the requests of net/http. The gate gets a copy of the request, without its
// body. With StreamRequestBody, the size of a body counts only if Content-Length states it.
func Middleware(gate *httplimit.Gate) fiber.Handler {
	// Fiber's own adaptor for middleware does not work here: it ends the middleware before the next
	// handler begins. Slots would be released too early, and every status would be 200.
	return func(c fiber.Ctx) error {
		r, err := copyRequest(c)
		if err != nil {
			return fiber.ErrBadRequest
		}
		w := response{c, make(http.Header)}
		admission := gate.Admit(w, r)
		for name, values := range w.header {
			for _, value := range values {
				c.Response().Header.Add(name, value)
			}
		}
		if admission == nil { // the gate has rejected the request, and w has its response
			return nil
		}
		status := 0 // if the handler panics
		defer func() { admission.Done(status) }()
		c.Path(admission.Request.URL.EscapedPath())
		c.SetContext(admission.Request.Context())
		if err := c.Next(); err != nil {
			if err := c.App().ErrorHandler(c, err); err != nil { // handle it here, to know the status
				c.Status(fiber.StatusInternalServerError)
			}
		}
		status = c.Response().StatusCode()
		clear(w.header)
		for name, value := range c.Response().Header.All() {
			w.header.Add(string(name), string(value)) // for policies with cost.actual
		}
		return nil
	}
}

// copyRequest copies the request without its body. Fiber reuses the memory of the original when the
// handler has returned, and a store may still read the request then.
func copyRequest(c fiber.Ctx) (*http.Request, error) {
	u, err := url.ParseRequestURI(string(c.Request().RequestURI()))
	if err != nil {
		return nil, err
	}
	r := &http.Request{Method: string(c.Request().Header.Method()), URL: u, Host: string(c.Request().Host()), Header: make(http.Header),
		RemoteAddr: c.RequestCtx().RemoteAddr().String(), ContentLength: bodySize(c)}
	for name, value := range c.Request().Header.All() {
		r.Header.Add(string(name), string(value))
	}
	return r.WithContext(c.Context()), nil
}

// bodySize returns the size of the body, or -1 if it is not known yet.
func bodySize(c fiber.Ctx) int64 {
	if c.Request().IsBodyStream() {
		return max(int64(c.Request().Header.ContentLength()), -1)
	}
	return int64(len(c.BodyRaw()))
}

// A response passes the gate's response to Fiber.
type response struct {
	ctx    fiber.Ctx
	header http.Header
}

func (w response) Header() http.Header         { return w.header }
func (w response) WriteHeader(status int)      { w.ctx.Status(status) }
func (w response) Write(p []byte) (int, error) { return w.ctx.Write(p) }
