package fiberv2_test

import (
	"fmt"
	"log"
	"net/http/httptest"
	"time"

	"github.com/gofiber/fiber/v2"
	"github.com/gofiber/fiber/v2/middleware/recover"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/httplimit"
	"github.com/penstock/penstock/httplimit/fiberlimit/fiberv2"
	"github.com/penstock/penstock/memstore"
)

func ExampleMiddleware() {
	// The clock does not run, so that the example prints the same every time. Leave Now out.
	store := memstore.New(memstore.Options{Now: func() time.Time { return time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC) }})
	gate, err := httplimit.PerKey(store, "api", penstock.PerMinute(2), httplimit.ByAddress)
	if err != nil {
		log.Fatal(err)
	}
	app := fiber.New(fiber.Config{CaseSensitive: true, StrictRouting: true})
	app.Use(recover.New(), fiberv2.Middleware(gate))
	app.Get("/", func(c *fiber.Ctx) error { return c.SendString("hello") })
	for range 3 {
		response, err := app.Test(httptest.NewRequest("GET", "/", nil))
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%d, Retry-After: %q\n", response.StatusCode, response.Header.Get("Retry-After"))
	}
	// Output:
	// 200, Retry-After: ""
	// 200, Retry-After: ""
	// 429, Retry-After: "30"
}
