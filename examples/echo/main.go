// Command echo limits a service made with Echo, by middleware of Echo's own kind.
package main

import (
	"log"
	"net/http"
	"time"

	"github.com/labstack/echo/v5"
	"github.com/labstack/echo/v5/middleware"

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
	server := &http.Server{Handler: service(gate), ReadHeaderTimeout: 5 * time.Second}
	demo.Run("POST /api/rides/request", server.Serve) // yours: server.ListenAndServe()
}

func service(gate *httplimit.Gate) *echo.Echo {
	e := echo.New()
	e.Pre(middleware.Recover(), limit(gate)) // Pre: before routing, so that routes are found by the path that the rules matched
	e.POST("/api/rides/request", say("a car is on its way"))
	e.GET("/api/fares/estimate", say("about 12.50"))
	e.GET("/api/drivers/nearby", say("3 of them"))
	e.GET("/api/trips/history", say("none yet"))
	return e
}

// limit is the gate as middleware of Echo.
func limit(gate *httplimit.Gate) echo.MiddlewareFunc {
	return func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c *echo.Context) error {
			admission := gate.Admit(c.Response(), c.Request())
			if admission == nil {
				return nil
			}
			status := 0 // if the handler panics
			defer func() { admission.Done(status) }()
			c.SetRequest(admission.Request)
			err := next(c)
			_, status = echo.ResolveResponseStatus(c.Response(), err)
			return err
		}
	}
}

func say(what string) echo.HandlerFunc {
	return func(c *echo.Context) error { return c.String(http.StatusOK, what+"\n") }
}
