// Command settle limits a service whose requests cost what is known only afterwards, as tokens of a
// language model. Limits are in code.
package main

import (
	"fmt"
	"log"
	"net/http"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/examples/internal/demo"
	"github.com/penstock/penstock/httplimit"
	"github.com/penstock/penstock/memstore"
)

func main() {
	gate, err := limits(memstore.New(memstore.Options{}))
	if err != nil {
		log.Fatal(err)
	}
	server := &http.Server{Handler: service(gate), ReadHeaderTimeout: 5 * time.Second}
	demo.Run("POST /v1/completions", server.Serve) // yours: server.ListenAndServe()
}

func limits(store penstock.Store) (*httplimit.Gate, error) {
	return httplimit.New(httplimit.Options{
		Store: store,
		Name:  "completions",
		Key:   func(r *http.Request) string { return "key:" + r.Header.Get("X-API-Key") }, // checked before, by whoever knows the keys
		Limits: []penstock.Limit{
			penstock.PerHour(2000).WithName("tokens"),
			penstock.InFlight(2, time.Minute), // so a key overdraws by two answers at most
		},
	})
}

func service(gate *httplimit.Gate) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/completions", complete)
	return gate.Middleware(mux)
}

// complete costs 1 token to be let in. What the answer took is charged when it is known: a caller
// who has overdrawn waits until that is paid.
func complete(w http.ResponseWriter, r *http.Request) {
	text, tokens := model()
	if err := httplimit.Settle(r, tokens); err != nil {
		log.Print(err)
	}
	fmt.Fprintln(w, text)
}

// model stands for yours.
func model() (text string, tokens int64) { return "It depends.", 100 }
