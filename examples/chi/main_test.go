package main

import (
	"io"
	"net"
	"net/http"
	"testing"

	"github.com/penstock/penstock/httplimit"
	"github.com/penstock/penstock/internal/testing/gatetest"
)

func TestChi(t *testing.T) {
	gatetest.Run(t, func(gate *httplimit.Gate, wait func()) func(net.Listener) error {
		router := service(gate)
		router.Get("/fails", func(w http.ResponseWriter, r *http.Request) { http.Error(w, "no", http.StatusBadGateway) })
		router.Get("/panics", func(w http.ResponseWriter, r *http.Request) { panic("on purpose") })
		router.Get("/waits", func(w http.ResponseWriter, r *http.Request) { wait() })
		router.Get("/costs-twice", func(w http.ResponseWriter, r *http.Request) { w.Header()["X-Cost"] = []string{"5", "5"} })
		router.Get("/costs", func(w http.ResponseWriter, r *http.Request) { w.Header().Set("X-Cost", "5") })
		router.Get("/settles", func(w http.ResponseWriter, r *http.Request) {
			if err := httplimit.Settle(r.Context(), 5); err != nil {
				panic(err)
			}
		})
		router.Post("/body", func(w http.ResponseWriter, r *http.Request) { io.Copy(w, r.Body) })
		router.Get("/files/*", respond("a file"))
		return (&http.Server{Handler: router}).Serve
	})
}
