package service

import (
	"io"
	"net/http"
	"time"

	"github.com/penstock/penstock/cmd/penstock/internal/console/adminapi"
)

// endUnread ends a request with its response, also if the client has not sent the whole body.
// net/http would wait for the rest until ReadTimeout, so clients could keep connections that probes
// need. While such a connection closes, a new one may take its place.
func endUnread(idle *idleList, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ContentLength == 0 { // -1: the length is not known
			next.ServeHTTP(w, r)
			return
		}
		body := &endedBody{ReadCloser: r.Body}
		r.Body = body
		stopReading := func() {
			_ = http.NewResponseController(w).SetReadDeadline(time.Now())
		}
		if r.Method == http.MethodGet || r.Method == http.MethodHead { // their bodies are never read
			w.Header().Set("Connection", "close")
			stopReading()
		}
		next.ServeHTTP(w, r)
		if body.isAtEnd {
			return
		}
		stopReading()
		if conn := adminapi.Conn(r.Context()); conn != nil && r.ProtoMajor == 1 {
			idle.note(conn, http.StateIdle)
		}
	})
}

// An endedBody notes whether a body has been read to its end.
type endedBody struct {
	io.ReadCloser
	isAtEnd bool
}

func (b *endedBody) Read(p []byte) (n int, err error) {
	n, err = b.ReadCloser.Read(p)
	b.isAtEnd = b.isAtEnd || err == io.EOF
	return n, err
}
