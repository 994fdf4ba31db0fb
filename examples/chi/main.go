// Command chi limits a service made with chi, by the middleware of httplimit.
package main

import (
	"log"
	"net/http"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/go-chi/chi/v5/middleware"

	"github.com/penstock/penstock/admission"
	"github.com/penstock/penstock/examples/internal/demo"
	"github.com/penstock/penstock/httplimit"
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

func service(gate *httplimit.Gate) *chi.Mux {
	router := chi.NewRouter()
	router.Use(middleware.Recoverer)
	router.Use(gate.Middleware) // on the outermost router, so that routing uses the path that the rules matched
	router.Post("/api/rides/request", respond("a car is on its way"))
	router.Get("/api/fares/estimate", respond("about 12.50"))
	router.Get("/api/drivers/nearby", respond("3 of them"))
	router.Get("/api/trips/history", respond("none yet"))
	return router
}

func respond(what string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) { w.Write([]byte(what + "\n")) }
}
