// Command echo limits a service made with Echo v5, by Echo middleware.
package main

import (
	"log"
	"net/http"
	"time"

	"github.com/labstack/echo/v5"
	"github.com/labstack/echo/v5/middleware"

	"github.com/penstock/penstock/admission"
	"github.com/penstock/penstock/examples/internal/demo"
	"github.com/penstock/penstock/httplimit"
	"github.com/penstock/penstock/httplimit/echolimit"
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
	server := &http.Server{Handler: service(gate), ReadHeaderTimeout: 5 * time.Second}
	demo.Run("POST /api/rides/request", server.Serve) // in your program: server.ListenAndServe()
}

func service(gate *httplimit.Gate) *echo.Echo {
	e := echo.New()
	e.Pre(middleware.Recover(), echolimit.Middleware(gate)) // Pre: before routing, so that routing uses the path that the rules matched
	e.POST("/api/rides/request", respond("a car is on its way"))
	e.GET("/api/fares/estimate", respond("about 12.50"))
	e.GET("/api/drivers/nearby", respond("3 of them"))
	e.GET("/api/trips/history", respond("none yet"))
	return e
}

func respond(what string) echo.HandlerFunc {
	return func(c *echo.Context) error { return c.String(http.StatusOK, what+"\n") }
}
