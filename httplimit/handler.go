package httplimit

import "net/http"

// Middleware returns a handler that passes the admitted requests to next.
func (g *Gate) Middleware(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		a := g.Admit(w, r)
		if a == nil {
			return
		}
		if !a.admission.NeedsResult() {
			a.Done(0)
			next.ServeHTTP(w, a.Request)
			return
		}
		recorded := &recorder{ResponseWriter: w, admission: a}
		defer func() { a.Done(recorded.status) }() // also if the handler panics, with or without a response
		next.ServeHTTP(recorded, a.Request)
		recorded.recordStatus(http.StatusOK) // what the server sends for a handler that writes nothing
	})
}

// A recorder records the status of a response. http.ResponseController finds the wrapped writer.
type recorder struct {
	http.ResponseWriter
	admission *Admission
	status    int
}

// recordStatus records the final status, and refunds units if this status costs none. The refund is
// made before the client gets the status, so that the client's next request can use these units.
func (w *recorder) recordStatus(status int) {
	if w.status == 0 {
		w.status = status
		w.admission.admission.RefundByStatus(status)
	}
}

// Unwrap returns the wrapped writer, for http.ResponseController.
func (w *recorder) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// WriteHeader records the status, unless it is an informational one.
func (w *recorder) WriteHeader(status int) {
	if status >= 200 || status == http.StatusSwitchingProtocols {
		w.recordStatus(status)
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *recorder) Write(p []byte) (int, error) {
	w.recordStatus(http.StatusOK)
	return w.ResponseWriter.Write(p)
}

// Flush implements http.Flusher, for handlers that assert it.
func (w *recorder) Flush() {
	w.recordStatus(http.StatusOK)
	http.NewResponseController(w.ResponseWriter).Flush()
}
