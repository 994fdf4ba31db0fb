// Command gin limits a service made with gin, by a handler of gin's own kind.
package main

import (
	"log"
	"net/http"
	"time"

	"github.com/gin-gonic/gin"

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
	gin.SetMode(gin.ReleaseMode)
	server := &http.Server{Handler: service(gate), ReadHeaderTimeout: 5 * time.Second}
	demo.Run("POST /api/rides/request", server.Serve) // yours: server.ListenAndServe()
}

func service(gate *httplimit.Gate) *gin.Engine {
	router := gin.New()
	router.Use(gin.Recovery(), limit(gate))
	router.POST("/api/rides/request", say("a car is on its way"))
	router.GET("/api/fares/estimate", say("about 12.50"))
	router.GET("/api/drivers/nearby", say("3 of them"))
	router.GET("/api/trips/history", say("none yet"))
	return router
}

// limit is the gate as a handler of gin. If it is to stand before all routes,
// gate.Middleware(router) does as well.
func limit(gate *httplimit.Gate) gin.HandlerFunc {
	return func(c *gin.Context) {
		admission := gate.Admit(c.Writer, c.Request)
		if admission == nil {
			c.Abort()
			return
		}
		status := 0 // if the handler panics
		defer func() { admission.Done(status) }()
		if admission.Request.URL.Path != c.Request.URL.Path {
			c.AbortWithStatus(http.StatusNotFound) // gin chose the route by another spelling than the one that the rules matched
		}
		c.Request = admission.Request
		c.Next()
		status = c.Writer.Status()
	}
}

func say(what string) gin.HandlerFunc {
	return func(c *gin.Context) { c.String(http.StatusOK, what+"\n") }
}
