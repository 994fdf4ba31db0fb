// Command fiber limits a service made with Fiber, whose requests are not those of net/http: the
// gate is shown copies.
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
)

func main() {
	rules, err := policy.Load(demo.File("rides.yaml"))
	if err != nil {
		log.Fatal(err)
	}
	gate, err := httplimit.New(httplimit.Options{
		Store: memstore.New(memstore.Options{}),
		Rules: func() *policy.Rules { return rules },
	})
	if err != nil {
		log.Fatal(err)
	}
	app := service(gate)
	demo.Run("POST /api/rides/request", func(l net.Listener) error { // yours: app.Listen(":8080")
		return app.Listener(l, fiber.ListenConfig{DisableStartupMessage: true})
	})
}

func service(gate *httplimit.Gate) *fiber.App {
	// Rules tell /a from /A and /a/, unless the policy says otherwise; so must the routes, or a
	// spelling is a way around the rules.
	app := fiber.New(fiber.Config{CaseSensitive: true, StrictRouting: true})
	app.Use(recover.New(), limit(gate)) // first, so that routes are found by the path that the rules matched
	app.Post("/api/rides/request", say("a car is on its way"))
	app.Get("/api/fares/estimate", say("about 12.50"))
	app.Get("/api/drivers/nearby", say("3 of them"))
	app.Get("/api/trips/history", say("none yet"))
	return app
}

// limit is the gate as a handler of Fiber. (Fiber's own adaptor for middleware ends it before the
// next handler begins, so that slots would be given back at once and every status be 200.)
func limit(gate *httplimit.Gate) fiber.Handler {
	return func(c fiber.Ctx) error {
		r, err := request(c)
		if err != nil {
			return fiber.ErrBadRequest
		}
		w := answer{c, make(http.Header)}
		admission := gate.Admit(w, r)
		for name, values := range w.header {
			c.Response().Header.Set(name, values[0])
		}
		if admission == nil {
			return nil
		}
		status := 0 // if the handler panics
		defer func() { admission.Done(status) }()
		c.Path(admission.Request.URL.EscapedPath())
		c.SetContext(admission.Request.Context())
		if err := c.Next(); err != nil {
			if err := c.App().ErrorHandler(c, err); err != nil { // now, to know the status
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

// request is a copy of the request, but for its body. Fiber uses the memory of the original again,
// which a store may not have finished with.
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

// An answer is the gate's, which Fiber sends.
type answer struct {
	c      fiber.Ctx
	header http.Header
}

func (a answer) Header() http.Header         { return a.header }
func (a answer) WriteHeader(status int)      { a.c.Status(status) }
func (a answer) Write(p []byte) (int, error) { return a.c.Write(p) }

func say(what string) fiber.Handler {
	return func(c fiber.Ctx) error { return c.SendString(what + "\n") }
}
