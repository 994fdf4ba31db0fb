package fiberlimit_test

import (
	"net"
	"testing"

	"github.com/gofiber/fiber/v3"
	"github.com/gofiber/fiber/v3/middleware/recover"

	"github.com/penstock/penstock/httplimit"
	"github.com/penstock/penstock/httplimit/fiberlimit"
	"github.com/penstock/penstock/internal/testing/gatetest"
)

func TestFiber(t *testing.T) {
	for name, config := range map[string]fiber.Config{
		"BodiesInMemory": {CaseSensitive: true, StrictRouting: true},
		"StreamedBodies": {CaseSensitive: true, StrictRouting: true, StreamRequestBody: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			gatetest.Run(t, func(gate *httplimit.Gate, wait func()) func(net.Listener) error { return service(config, gate, wait) })
		})
	}
}

func service(config fiber.Config, gate *httplimit.Gate, wait func()) func(net.Listener) error {
	app := fiber.New(config)
	app.Use(recover.New(), fiberlimit.Middleware(gate))
	app.Post("/api/rides/request", respond("a car"))
	app.Post("/body", func(c fiber.Ctx) error { return c.Send(c.Body()) })
	app.Get("/fails", func(c fiber.Ctx) error { return fiber.ErrBadGateway })
	app.Get("/panics", func(c fiber.Ctx) error { panic("as it should") })
	app.Get("/waits", func(c fiber.Ctx) error { wait(); return nil })
	app.Get("/costs", func(c fiber.Ctx) error { c.Set("X-Cost", "5"); return nil })
	app.Get("/costs-twice", func(c fiber.Ctx) error {
		c.Response().Header.Add("X-Cost", "5")
		c.Response().Header.Add("X-Cost", "5")
		return nil
	})
	app.Get("/settles", func(c fiber.Ctx) error { return httplimit.Settle(c.Context(), 5) })
	app.Get("/files/*", respond("a file"))
	return func(l net.Listener) error {
		return app.Listener(l, fiber.ListenConfig{DisableStartupMessage: true})
	}
}

func respond(what string) fiber.Handler {
	return func(c fiber.Ctx) error { return c.SendString(what) }
}
