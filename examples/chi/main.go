// Command chi limits a service made with chi: the gate's middleware fits as it is.
package main

import (
	"log"
	"net/http"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/go-chi/chi/v5/middleware"

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

func service(gate *httplimit.Gate) *chi.Mux {
	router := chi.NewRouter()
	router.Use(middleware.Recoverer)
	router.Use(gate.Middleware) // on the outermost router, so that routes are found by the path that the rules matched
	router.Post("/api/rides/request", say("a car is on its way"))
	router.Get("/api/fares/estimate", say("about 12.50"))
	router.Get("/api/drivers/nearby", say("3 of them"))
	router.Get("/api/trips/history", say("none yet"))
	return router
}

func say(what string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) { w.Write([]byte(what + "\n")) }
}
