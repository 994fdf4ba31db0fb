package httplimit

import "net/http"

// Middleware is a handler that lets requests through to next as the limits say.
func (g *Gate) Middleware(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		a := g.Admit(w, r)
		if a == nil {
			return
		}
		if len(a.granted) == 0 {
			a.free()
			next.ServeHTTP(w, a.Request)
			return
		}
		watched := &recorder{ResponseWriter: w, admission: a}
		defer func() { a.Done(watched.status) }() // also if the handler panics; then it may not have answered
		next.ServeHTTP(watched, a.Request)
		watched.note(http.StatusOK) // what the server sends for a handler that says nothing
	})
}

// A recorder notes the status of a response. http.ResponseController finds what it wraps.
type recorder struct {
	http.ResponseWriter
	admission *Admission
	status    int
}

// note notes the final status, before the client learns of it: its next request finds what this one
// gives back.
func (w *recorder) note(status int) {
	if w.status == 0 {
		w.status = status
		w.admission.answers(status)
	}
}

// Unwrap is for http.ResponseController.
func (w *recorder) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// WriteHeader notes the status, unless it is an informational one.
func (w *recorder) WriteHeader(status int) {
	if status >= 200 || status == http.StatusSwitchingProtocols {
		w.note(status)
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *recorder) Write(p []byte) (int, error) {
	w.note(http.StatusOK)
	return w.ResponseWriter.Write(p)
}

// Flush implements http.Flusher, for handlers that ask for it.
func (w *recorder) Flush() {
	w.note(http.StatusOK)
	http.NewResponseController(w.ResponseWriter).Flush()
}
