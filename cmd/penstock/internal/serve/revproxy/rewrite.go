package revproxy

import (
	"errors"
	"io"
	"net/http"
	"net/http/httputil"
	"strings"
	"sync/atomic"

	"github.com/penstock/penstock/internal/panicked"
)

// rewrite makes the request for the upstream. httputil has already removed hop-by-hop headers.
func (h *Handler) rewrite(pr *httputil.ProxyRequest) {
	pr.SetURL(h.target)
	// httputil drops parameters with ';' or '%zz', and sorts the others. The upstream gets the query
	// as it was sent: where rules read parameters, ambiguous ones were rejected.
	pr.Out.URL.RawQuery, pr.Out.URL.ForceQuery = pr.In.URL.RawQuery, pr.In.URL.ForceQuery
	if h.options.PreserveHost {
		pr.Out.Host = pr.In.Host
	}
	h.setForwarded(pr)
	for name := range pr.Out.Header {
		if isAmbiguous(name) {
			delete(pr.Out.Header, name)
		}
	}
	if pr.Out.Header["Upgrade"] != nil && !isWebSocket(pr.Out.Header) {
		// Over any other protocol (above all h2c), a client could send more requests that no limit
		// sees.
		pr.Out.Header.Del("Upgrade")
		pr.Out.Header.Del("Connection")
		pr.Out.Header.Del("Http2-Settings")
	}
	h.options.SetMarker(pr.In.Context(), pr.Out.Header)
	h.options.Trace(pr.In.Context(), pr.Out.Header)
	pr.Out.Trailer = nil
	if in, ok := pr.In.Body.(*body); ok {
		pr.Out.Trailer = in.trailers.out
	}
}

// setForwarded sets the headers that report the client's address to the upstream. Such headers of
// the request itself, and those with another path, are removed, unless its peer is trusted.
// Forwarded (RFC 7239) is never sent: it would lack this hop, and could contradict X-Forwarded-*.
func (h *Handler) setForwarded(pr *httputil.ProxyRequest) {
	isTrusted := h.options.IsTrusted(pr.In)
	for name := range pr.Out.Header {
		if !isTrusted && (isForwarded(name) || isOtherTarget(name)) {
			delete(pr.Out.Header, name)
		}
	}
	if isTrusted {
		if prior := pr.In.Header["X-Forwarded-For"]; prior != nil {
			pr.Out.Header["X-Forwarded-For"] = prior
		}
	}
	pr.SetXForwarded()
	if isTrusted {
		for _, name := range []string{"X-Forwarded-Host", "X-Forwarded-Proto"} {
			if values := pr.In.Header[name]; values != nil {
				pr.Out.Header[name] = values
			}
		}
	}
}

// isAmbiguous returns true for names with any other byte than letters, digits and '-'. Upstreams
// that turn headers into variables (CGI, WSGI) turn such a byte and '-' into the same character, so
// they could mistake such a header for another one.
func isAmbiguous(name string) bool {
	for i := range len(name) {
		b := name[i]
		if !(b >= 'a' && b <= 'z' || b >= 'A' && b <= 'Z' || b >= '0' && b <= '9' || b == '-') {
			return true
		}
	}
	return false
}

// isForwarded returns true for headers with the origin of a request, such as its address.
func isForwarded(name string) bool {
	if first := name[0] | 0x20; first != 'x' && first != 'f' { // | 0x20 makes letters lower case
		return false
	}
	name = strings.ToLower(name)
	return strings.HasPrefix(name, "x-forwarded-") || name == "x-real-ip" || name == "forwarded"
}

// isOtherTarget returns true for headers whose value some frameworks, and rewrite modules of IIS,
// use instead of the path and the query. A client could evade the rules for a path by them.
func isOtherTarget(name string) bool { return name == "X-Original-Url" || name == "X-Rewrite-Url" }

func isWebSocket(h http.Header) bool { return strings.EqualFold(h.Get("Upgrade"), "websocket") }

// trailers has the trailers of the client's body (in), and those that the upstream gets (out). out
// lacks the names that are not allowed as headers, and those of headers that rules read: a trailer
// could claim another client or a false address.
type trailers struct{ in, out http.Header }

func (h *Handler) newTrailers(in http.Header) trailers {
	t := trailers{in: in}
	for name := range in {
		if !isAmbiguous(name) && !isForwarded(name) && !isOtherTarget(name) && !h.options.ReadsHeader(name) {
			if t.out == nil {
				t.out = make(http.Header)
			}
			t.out[name] = nil // announces the name; fill sets its values
		}
	}
	return t
}

// fill copies the values, which are known when the body has been read.
func (t trailers) fill() {
	for name := range t.out {
		t.out[name] = t.in[name]
	}
}

// A body is the body of a client's request. It records how reading ended. The transport reads and
// closes it in a goroutine of its own, also after the handler has returned. A panic there would end
// the process, so it becomes an error.
type body struct {
	io.ReadCloser
	trailers   trailers
	left       int64                 // bytes; below 0 if unknown
	isComplete atomic.Bool           // all of it was read, and it was well-formed
	readErr    atomic.Pointer[error] // why reading failed
}

// newBody wraps the body of a request. It allows at most Options.MaxBody bytes.
func (h *Handler) newBody(r *http.Request) *body {
	b := &body{ReadCloser: r.Body, trailers: h.newTrailers(r.Trailer), left: r.ContentLength}
	if limit := h.options.MaxBody; limit > 0 {
		b.ReadCloser = http.MaxBytesReader(nil, b.ReadCloser, limit)
	}
	return b
}

func (b *body) Read(p []byte) (n int, err error) {
	defer func() {
		if value := recover(); value != nil {
			n, err = 0, notePanic(value)
			b.readErr.CompareAndSwap(nil, &err)
		}
	}()
	n, err = b.ReadCloser.Read(p)
	if b.left > 0 {
		b.left -= int64(n)
	}
	switch {
	case err == io.EOF:
		b.trailers.fill()
		b.isComplete.Store(true)
	case err != nil:
		b.readErr.CompareAndSwap(nil, &err)
	case b.left == 0:
		b.isComplete.Store(true)
	}
	return n, err
}

func (b *body) Close() (err error) {
	defer func() {
		if value := recover(); value != nil {
			err = notePanic(value)
		}
	}()
	return b.ReadCloser.Close()
}

func notePanic(value any) error {
	panicked.Report("a request body is read", value)
	return errors.New("reading the body panicked")
}

// bodyError returns why reading the client's body failed, or nil.
func bodyError(w http.ResponseWriter) error {
	if res, ok := w.(*response); ok && res.body != nil {
		if err := res.body.readErr.Load(); err != nil {
			return *err
		}
	}
	return nil
}
