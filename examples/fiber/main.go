// Command fiber limits a service made with Fiber. Fiber does not use the requests of net/http, so
// the gate gets copies.
package main

import (
	"log"
	"net"
	"net/http"
	"net/url"

	"github.com/gofiber/fiber/v3"
	"github.com/gofiber/fiber/v3/middleware/recover"

	"github.com/penstock/penstock/examples/internal/demo"
	"github.com/penstock/penstock/httplimit"
	"github.com/penstock/penstock/memstore"
	"github.com/penstock/penstock/policy"
	"github.com/penstock/penstock/policy/policyfile"
)

func main() {
	file, err := policyfile.Load(demo.File("rides.yaml"), policyfile.Options{Sections: []policyfile.Section{httplimit.DefaultConfig()}})
	if err != nil {
		log.Fatal(err)
	}
	gate, err := httplimit.New(memstore.New(memstore.Options{}), func() *policy.Rules { return file.Rules }, httplimit.Options{})
	if err != nil {
		log.Fatal(err)
	}
	app := service(gate)
	demo.Run("POST /api/rides/request", func(l net.Listener) error { // in your program: app.Listen(":8080")
		return app.Listener(l, fiber.ListenConfig{DisableStartupMessage: true})
	})
}

func service(gate *httplimit.Gate) *fiber.App {
	// Rules distinguish /a from /A and /a/, unless the policy says otherwise. The routes must do
	// the same, or clients could evade rules by another spelling.
	app := fiber.New(fiber.Config{CaseSensitive: true, StrictRouting: true})
	app.Use(recover.New(), limit(gate)) // first, so that routing uses the path that the rules matched
	app.Post("/api/rides/request", respond("a car is on its way"))
	app.Get("/api/fares/estimate", respond("about 12.50"))
	app.Get("/api/drivers/nearby", respond("3 of them"))
	app.Get("/api/trips/history", respond("none yet"))
	return app
}

// limit makes a Fiber handler of the gate. Fiber's own adaptor for middleware does not work here:
// it ends the middleware before the next handler begins. Slots would be released at once, and every
// status would be 200.
func limit(gate *httplimit.Gate) fiber.Handler {
	return func(c fiber.Ctx) error {
		r, err := request(c)
		if err != nil {
			return fiber.ErrBadRequest
		}
		w := response{c, make(http.Header)}
		admission := gate.Admit(w, r)
		for name, values := range w.header {
			c.Response().Header.Set(name, values[0])
		}
		if admission == nil { // the gate has rejected the request, and w has its answer
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
		for name, value := range c.Response().Header.All() {
			w.header.Set(string(name), string(value)) // for policies with cost.actual
		}
		return nil
	}
}

// request copies the request without its body. Fiber reuses the memory of the original, which a
// store may still read.
func request(c fiber.Ctx) (*http.Request, error) {
	u, err := url.ParseRequestURI(string(c.Request().RequestURI()))
	if err != nil {
		return nil, err
	}
	r := &http.Request{Method: string(c.Request().Header.Method()), URL: u, Host: string(c.Request().Host()), Header: make(http.Header),
		RemoteAddr: c.RequestCtx().RemoteAddr().String(), ContentLength: int64(len(c.BodyRaw()))}
	for name, value := range c.Request().Header.All() {
		r.Header.Add(string(name), string(value))
	}
	return r.WithContext(c.Context()), nil
}

// A response passes the gate's response to Fiber.
type response struct {
	c      fiber.Ctx
	header http.Header
}

func (a response) Header() http.Header         { return a.header }
func (a response) WriteHeader(status int)      { a.c.Status(status) }
func (a response) Write(p []byte) (int, error) { return a.c.Write(p) }

func respond(what string) fiber.Handler {
	return func(c fiber.Ctx) error { return c.SendString(what + "\n") }
}
