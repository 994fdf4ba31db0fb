// Command settle limits a service whose requests have a cost that is known only afterwards, such as
// the tokens of a language model. The limits are in code.
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
	gate, err := newGate(memstore.New(memstore.Options{}))
	if err != nil {
		log.Fatal(err)
	}
	server := &http.Server{Handler: service(gate), ReadHeaderTimeout: 5 * time.Second}
	demo.Run("POST /v1/completions", server.Serve) // in your program: server.ListenAndServe()
}

func newGate(store penstock.Store) (*httplimit.Gate, error) {
	limits := []penstock.Limit{
		penstock.PerHour(2000).WithName("tokens"),
		penstock.InFlight(2, time.Minute), // so a key can overdraw by two responses at most
	}
	return httplimit.NewSimple(store, "completions", limits, httplimit.SimpleOptions{
		Key: func(r *http.Request) string { return "key:" + r.Header.Get("X-API-Key") }, // an earlier handler must check the key
	})
}

func service(gate *httplimit.Gate) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/completions", complete)
	return gate.Middleware(mux)
}

// complete costs 1 token at first. The true cost is charged when it is known. A client that has
// overdrawn its limit is rejected until the limit has recovered.
func complete(w http.ResponseWriter, r *http.Request) {
	text, tokens := model()
	if err := httplimit.Settle(r.Context(), tokens); err != nil {
		log.Print(err)
	}
	fmt.Fprintln(w, text)
}

// model stands for your language model.
func model() (text string, tokens int64) { return "It depends.", 100 }
