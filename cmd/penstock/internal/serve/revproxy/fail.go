package revproxy

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strconv"

	"github.com/penstock/penstock/cmd/penstock/internal/serve/logthrottle"
	"github.com/penstock/penstock/cmd/penstock/internal/text/redact"
)

// statusClientGone is the status of a response to a client that has disconnected. HTTP has no such
// status; nginx logs this one.
const statusClientGone = 499

// fail responds to a request for which there is no response of the upstream. The log gets the
// cause; the client gets the status and a general text only.
func (h *Handler) fail(w http.ResponseWriter, r *http.Request, err error) {
	if !errors.As(err, new(*unreachedError)) {
		h.options.NoResponse(r)
	}
	if errors.Is(err, errNoConnection) {
		h.overloaded(w, r)
		return
	}
	status, detail := classify(w, r, err)
	switch {
	case status == statusClientGone:
		h.log.Debug("the client disconnected", "status", status, "method", r.Method)
		w.WriteHeader(status)
		return
	case status >= 500:
		h.failures.Log(h.log.Warn, "no response from the upstream", "status", status, "method", r.Method, "err", redact.Quoted(err.Error()))
	}
	h.problem(w, r, status, detail)
}

func classify(w http.ResponseWriter, r *http.Request, err error) (status int, detail string) {
	var tooLarge *http.MaxBytesError
	var timeout net.Error
	bodyErr := bodyError(w)
	switch {
	case errors.As(bodyErr, &tooLarge):
		return http.StatusRequestEntityTooLarge, "the body is too large"
	case errors.Is(bodyErr, os.ErrDeadlineExceeded):
		return http.StatusRequestTimeout, "the body arrived too slowly"
	case r.Context().Err() != nil && context.Cause(r.Context()) != context.Canceled: // not by the client
		return http.StatusServiceUnavailable, "the service is shutting down"
	case r.Context().Err() != nil:
		return statusClientGone, ""
	case bodyErr != nil:
		return http.StatusBadRequest, "the body is malformed"
	case errors.Is(err, context.DeadlineExceeded) || errors.As(err, &timeout) && timeout.Timeout():
		return http.StatusGatewayTimeout, "the upstream did not answer in time"
	}
	return http.StatusBadGateway, "the upstream did not answer"
}

// overloaded responds to a request for which no connection to the upstream is free.
func (h *Handler) overloaded(w http.ResponseWriter, r *http.Request) {
	h.options.Overloaded()
	w.Header().Set("Retry-After", "1")
	h.problem(w, r, http.StatusServiceUnavailable, "too many requests are in flight")
}

// problem responds with a problem document and the headers of AddHeaders.
func (h *Handler) problem(w http.ResponseWriter, r *http.Request, status int, detail string) {
	h.options.AddHeaders(w.Header(), r)
	Problem(w, status, detail)
}

// Problem responds with a problem document (RFC 9457).
func Problem(w http.ResponseWriter, status int, detail string) {
	text, _ := json.Marshal(struct {
		Type   string `json:"type"`
		Title  string `json:"title"`
		Status int    `json:"status"`
		Detail string `json:"detail"`
	}{"about:blank", http.StatusText(status), status, detail})
	header := w.Header()
	header.Set("Content-Type", "application/problem+json")
	header.Set("Content-Length", strconv.Itoa(len(text)))
	header.Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	w.Write(text)
}

// A throttledHandler limits the lines that httputil logs about responses that ended early.
type throttledHandler struct {
	slog.Handler
	line *logthrottle.Line
}

func (t throttledHandler) Handle(ctx context.Context, record slog.Record) error {
	skipped, isDue := t.line.Due()
	if !isDue {
		return nil
	}
	line := slog.NewRecord(record.Time, record.Level, "the upstream's response ended early", 0)
	line.AddAttrs(slog.String("err", redact.Quoted(record.Message)), slog.Int64("unlogged", skipped))
	return t.Handler.Handle(ctx, line)
}
