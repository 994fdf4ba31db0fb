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

	"github.com/penstock/penstock/cmd/penstock/internal/redact"
	"github.com/penstock/penstock/cmd/penstock/internal/seldom"
)

// statusClientGone stands for an answer that nobody waits for.
const statusClientGone = 499

// fail answers a request for which there is no response. The client is told whose fault it is and
// no more; the log, why.
func (h *Handler) fail(w http.ResponseWriter, r *http.Request, err error) {
	if !errors.As(err, new(*unreached)) {
		h.options.Unanswered(r)
	}
	status, detail := classify(w, r, err)
	switch {
	case status == statusClientGone:
		h.log.Debug("the client went away", "status", status, "method", r.Method)
		w.WriteHeader(status)
		return
	case status >= 500:
		if held, due := h.failures.Due(); due {
			h.log.Warn("no response from the upstream", "status", status, "method", r.Method, "err", redact.Quoted(err.Error()), "unlogged", held)
		}
	}
	h.problem(w, r, status, detail)
}

func classify(w http.ResponseWriter, r *http.Request, err error) (status int, detail string) {
	var tooLarge *http.MaxBytesError
	var timeout net.Error
	broken := brokenBody(w)
	switch {
	case errors.As(broken, &tooLarge):
		return http.StatusRequestEntityTooLarge, "the body is too large"
	case errors.Is(broken, os.ErrDeadlineExceeded):
		return http.StatusRequestTimeout, "the body came too slowly"
	case r.Context().Err() != nil && context.Cause(r.Context()) != context.Canceled:
		return http.StatusServiceUnavailable, "the gate closes"
	case r.Context().Err() != nil:
		return statusClientGone, ""
	case broken != nil:
		return http.StatusBadRequest, "the body is malformed"
	case errors.Is(err, context.DeadlineExceeded) || errors.As(err, &timeout) && timeout.Timeout():
		return http.StatusGatewayTimeout, "the upstream did not answer in time"
	}
	return http.StatusBadGateway, "the upstream did not answer"
}

// problem answers a request with a problem.
func (h *Handler) problem(w http.ResponseWriter, r *http.Request, status int, detail string) {
	h.options.Own(w.Header(), r)
	Problem(w, status, detail)
}

// Problem answers with a problem (RFC 9457).
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

// brokenOff thins out what httputil logs: responses that broke off while they were passed on.
type brokenOff struct {
	slog.Handler
	line *seldom.Line
}

func (b brokenOff) Handle(ctx context.Context, record slog.Record) error {
	held, due := b.line.Due()
	if !due {
		return nil
	}
	thin := slog.NewRecord(record.Time, record.Level, "a response of the upstream broke off", 0)
	thin.AddAttrs(slog.String("err", redact.Quoted(record.Message)), slog.Int64("unlogged", held))
	return b.Handler.Handle(ctx, thin)
}
