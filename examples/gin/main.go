// Command gin limits a service made with gin, by a gin handler.
package main

import (
	"log"
	"net/http"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/penstock/penstock/admission"
	"github.com/penstock/penstock/examples/internal/demo"
	"github.com/penstock/penstock/httplimit"
	"github.com/penstock/penstock/httplimit/ginlimit"
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
	gin.SetMode(gin.ReleaseMode)
	server := &http.Server{Handler: service(gate), ReadHeaderTimeout: 5 * time.Second}
	demo.Run("POST /api/rides/request", server.Serve) // in your program: server.ListenAndServe()
}

func service(gate *httplimit.Gate) *gin.Engine {
	router := gin.New()
	router.Use(gin.Recovery(), ginlimit.Middleware(gate))
	router.POST("/api/rides/request", respond("a car is on its way"))
	router.GET("/api/fares/estimate", respond("about 12.50"))
	router.GET("/api/drivers/nearby", respond("3 of them"))
	router.GET("/api/trips/history", respond("none yet"))
	return router
}

func respond(what string) gin.HandlerFunc {
	return func(c *gin.Context) { c.String(http.StatusOK, what+"\n") }
}
