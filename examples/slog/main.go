// Command slog logs the requests that a gate rejects. The log gets at most ten lines a second, so
// that an attack does not fill the disk.
//
//	go run ./slog
package main

import (
	"log"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/admission"
	"github.com/penstock/penstock/httplimit"
	"github.com/penstock/penstock/memstore"
)

func main() {
	logger := slog.New(slog.NewJSONHandler(os.Stdout, nil))
	gate, err := newGate(logger, penstock.PerSecond(10))
	if err != nil {
		log.Fatal(err)
	}
	api := gate.Middleware(http.NotFoundHandler())
	for range 5 { // the limit allows two of them
		api.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/search", nil))
	}
}

func newGate(logger *slog.Logger, lines penstock.Limit) (*httplimit.Gate, error) {
	observe, err := logRejected(logger, lines)
	if err != nil {
		return nil, err
	}
	return httplimit.NewSimple(memstore.New(memstore.Options{}), "search", []penstock.Limit{penstock.PerMinute(2)}, httplimit.SimpleOptions{Observe: observe})
}

// logRejected returns an observer that logs rejected requests. limit bounds how many
// lines are logged.
func logRejected(logger *slog.Logger, limit penstock.Limit) (func(*admission.Event), error) {
	lines, err := penstock.NewLimiter(memstore.New(memstore.Options{}), "log", limit)
	if err != nil {
		return nil, err
	}
	return func(e *admission.Event) {
		if e.Outcome.IsAdmitted() || e.Outcome == admission.ShadowAllowed || e.Outcome == admission.ShadowDenied {
			return
		}
		if d, err := lines.Allow(e.Context, "rejected"); err != nil || !d.Allowed {
			return
		}
		// Event.Key may be a secret, such as an API key, so it is not logged.
		attributes := []slog.Attr{
			slog.String("rule", e.Rule), slog.String("limit", e.Limit), slog.String("outcome", e.Outcome.String()), slog.String("source", e.Source.String()),
		}
		if e.Decision != nil {
			attributes = append(attributes, slog.String("retry_after", e.Decision.RetryAfter().String()))
		}
		if e.Err != nil {
			attributes = append(attributes, slog.Any("err", e.Err))
		}
		logger.LogAttrs(e.Context, slog.LevelWarn, "request rejected", attributes...)
	}, nil
}
