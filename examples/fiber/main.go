// Command fiber limits a service made with Fiber v3.
package main

import (
	"log"
	"net"

	"github.com/gofiber/fiber/v3"
	"github.com/gofiber/fiber/v3/middleware/recover"

	"github.com/penstock/penstock/admission"
	"github.com/penstock/penstock/examples/internal/demo"
	"github.com/penstock/penstock/httplimit"
	"github.com/penstock/penstock/httplimit/fiberlimit"
	"github.com/penstock/penstock/memstore"
	"github.com/penstock/penstock/policy/policyfile"
)

func main() {
	file, err := policyfile.Load(demo.File("rides.yaml"), policyfile.Options{Sections: []policyfile.Section{httplimit.DefaultConfig()}})
	if err != nil {
		log.Fatal(err)
	}
	controller, err := admission.New(memstore.New(memstore.Options{}), file.Rules, admission.Options{})
	if err != nil {
		log.Fatal(err)
	}
	gate, err := httplimit.New(controller, httplimit.Options{})
	if err != nil {
		log.Fatal(err)
	}
	app := service(gate)
	demo.Run("POST /api/rides/request", func(l net.Listener) error { // in your program: app.Listen(":8080")
		return app.Listener(l, fiber.ListenConfig{DisableStartupMessage: true})
	})
}

func service(gate *httplimit.Gate) *fiber.App {
	// By default, rules distinguish /a from /A and /a/. The routes must distinguish them too, or
	// clients could evade rules by another spelling.
	app := fiber.New(fiber.Config{CaseSensitive: true, StrictRouting: true})
	app.Use(recover.New(), fiberlimit.Middleware(gate)) // first, so that routing uses the path that the rules matched
	app.Post("/api/rides/request", respond("a car is on its way"))
	app.Get("/api/fares/estimate", respond("about 12.50"))
	app.Get("/api/drivers/nearby", respond("3 of them"))
	app.Get("/api/trips/history", respond("none yet"))
	return app
}

func respond(what string) fiber.Handler {
	return func(c fiber.Ctx) error { return c.SendString(what + "\n") }
}
