package main

import (
	"net"
	"testing"

	"github.com/gofiber/fiber/v3"

	"github.com/penstock/penstock/examples/internal/demotest"
	"github.com/penstock/penstock/httplimit"
)

func TestFiber(t *testing.T) {
	demotest.Run(t, func(gate *httplimit.Gate, wait func()) func(net.Listener) error {
		app := service(gate)
		app.Get("/fails", func(c fiber.Ctx) error { return fiber.ErrBadGateway })
		app.Get("/panics", func(c fiber.Ctx) error { panic("as it should") })
		app.Get("/waits", func(c fiber.Ctx) error { wait(); return nil })
		app.Get("/costs", func(c fiber.Ctx) error { c.Set("X-Cost", "5"); return nil })
		app.Get("/settles", func(c fiber.Ctx) error { return httplimit.SettleContext(c.Context(), 5) })
		app.Get("/files/*", respond("a file"))
		return func(l net.Listener) error {
			return app.Listener(l, fiber.ListenConfig{DisableStartupMessage: true})
		}
	})
}
