// Package demoupstream is a small ride-hailing backend for serve --demo.
package demoupstream

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"time"
)

// A Server listens on a free port of the loopback address.
type Server struct {
	server http.Server
	addr   string
	ended  chan struct{}
}

// Start starts a Server. The caller must close it.
func Start() (*Server, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	s := &Server{addr: listener.Addr().String(), ended: make(chan struct{})}
	s.server = http.Server{Handler: newHandler(), ReadHeaderTimeout: 5 * time.Second}
	go func() {
		defer close(s.ended)
		s.server.Serve(listener)
	}()
	return s, nil
}

func (s *Server) Addr() string { return s.addr }

// Close ends the server. It waits up to a second for requests in flight.
func (s *Server) Close() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if s.server.Shutdown(ctx) != nil {
		s.server.Close()
	}
	<-s.ended
}

type object map[string]any

func newHandler() http.Handler {
	mux := http.NewServeMux()
	for path, answer := range map[string]object{
		"/api/rides/request":  {"ride": "R-1001", "driver": "D-17", "arrives_in_minutes": 4},
		"/api/fares/estimate": {"currency": "EUR", "low": 11.5, "high": 14},
		"/api/drivers/nearby": {"drivers": []object{{"id": "D-17", "meters": 230}, {"id": "D-23", "meters": 410}}},
		"/api/trips/history":  {"trips": []object{{"id": "T-900", "fare": 12.75}}},
	} {
		mux.HandleFunc(path, func(w http.ResponseWriter, _ *http.Request) { answerWith(w, http.StatusOK, answer) })
	}
	mux.HandleFunc("/login", func(w http.ResponseWriter, r *http.Request) {
		r.Body = http.MaxBytesReader(w, r.Body, 4<<10)
		if r.FormValue("password") != "penstock" {
			answerWith(w, http.StatusUnauthorized, object{"error": "the password is penstock"})
			return
		}
		answerWith(w, http.StatusOK, object{"welcome": r.FormValue("user")})
	})
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		answerWith(w, http.StatusOK, object{"method": r.Method, "path": r.URL.Path, "from": r.Header.Get("X-Forwarded-For")})
	})
	return mux
}

func answerWith(w http.ResponseWriter, status int, o object) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	json.NewEncoder(w).Encode(o)
}
