package service

import (
	"net/http"
	"time"

	"github.com/penstock/penstock/cmd/penstock/internal/admin"
)

// newAdmin makes the server for health checks and metrics.
func (s *service) newAdmin() *server {
	http1 := &http.Server{
		Handler:           admin.New(admin.Options{Checks: s.checks(), Metrics: s.metrics.Handler(), Pprof: s.Settings.Pprof}),
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       10 * time.Second,
		WriteTimeout:      30 * time.Second,
		IdleTimeout:       time.Minute,
		MaxHeaderBytes:    16 << 10,
		ErrorLog:          serverLog(s.Log),
	}
	if s.Settings.Pprof {
		http1.WriteTimeout = 0 // the caller chooses how long a profile takes
	}
	return newServer("admin-listen", http1)
}
