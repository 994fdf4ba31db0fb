package revproxy

import (
	"io"
	"net/http"
	"net/http/httputil"
	"strings"
	"sync/atomic"
)

// rewrite makes the request that the upstream gets. Hop-by-hop headers are gone from it already.
func (h *Handler) rewrite(pr *httputil.ProxyRequest) {
	pr.SetURL(h.target)
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
		// Through any other protocol (h2c above all), a client could send the upstream more requests that
		// nobody sees.
		pr.Out.Header.Del("Upgrade")
		pr.Out.Header.Del("Connection")
		pr.Out.Header.Del("Http2-Settings")
	}
	pr.Out.Trailer = nil
	if in, ok := pr.In.Body.(*body); ok {
		pr.Out.Trailer = in.trailers.out
	}
}

// setForwarded says where the request came from. Of what it says itself nothing is left, unless its
// peer is trusted. Forwarded (RFC 7239) is never sent on: without this hop it would be wrong, and
// what both headers say may differ.
func (h *Handler) setForwarded(pr *httputil.ProxyRequest) {
	trusted := h.options.Trusted != nil && h.options.Trusted(pr.In)
	for name := range pr.Out.Header {
		if !trusted && isForwarded(name) {
			delete(pr.Out.Header, name)
		}
	}
	if trusted {
		if prior := pr.In.Header["X-Forwarded-For"]; prior != nil {
			pr.Out.Header["X-Forwarded-For"] = prior
		}
	}
	pr.SetXForwarded()
	if trusted {
		for _, name := range []string{"X-Forwarded-Host", "X-Forwarded-Proto"} {
			if said := pr.In.Header[name]; said != nil {
				pr.Out.Header[name] = said
			}
		}
	}
}

// isAmbiguous tells whether an upstream that knows headers as variables (CGI, WSGI) may take one
// for another, which the rules have read: it cannot tell '_' from '-'.
func isAmbiguous(name string) bool { return strings.Contains(name, "_") }

// isForwarded tells whether a header says where a request came from.
func isForwarded(name string) bool {
	if c := name[0] | 0x20; c != 'x' && c != 'f' {
		return false
	}
	name = strings.ToLower(name)
	return strings.HasPrefix(name, "x-forwarded-") || name == "x-real-ip" || name == "forwarded"
}

func isWebSocket(h http.Header) bool { return strings.EqualFold(h.Get("Upgrade"), "websocket") }

// trailers are what follows the client's body, without what no header may say: nobody's trailers
// tell where a request came from.
type trailers struct{ in, out http.Header }

func newTrailers(in http.Header) trailers {
	t := trailers{in: in}
	for name := range in {
		if !isAmbiguous(name) && !isForwarded(name) {
			if t.out == nil {
				t.out = make(http.Header)
			}
			t.out[name] = nil // announced
		}
	}
	return t
}

// fill is called when the body has been read: now they are known.
func (t trailers) fill() {
	for name := range t.out {
		t.out[name] = t.in[name]
	}
}

// A body is the client's, and remembers how it ended.
type body struct {
	io.ReadCloser
	trailers trailers
	left     int64                 // bytes; below 0 if nobody knows
	ended    atomic.Bool           // all of it was read, and it was well-formed
	broken   atomic.Pointer[error] // why it broke off
}

// newBody is the body of a request that may have one, of at most so many bytes if most is not 0.
func newBody(r *http.Request, most int64) *body {
	b := &body{ReadCloser: r.Body, trailers: newTrailers(r.Trailer), left: r.ContentLength}
	if most > 0 {
		b.ReadCloser = http.MaxBytesReader(nil, b.ReadCloser, most)
	}
	return b
}

func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if b.left > 0 {
		b.left -= int64(n)
	}
	switch {
	case err == io.EOF:
		b.trailers.fill()
		b.ended.Store(true)
	case err != nil:
		b.broken.CompareAndSwap(nil, &err)
	case b.left == 0:
		b.ended.Store(true)
	}
	return n, err
}

// brokenBody is why the client's body broke off, or nil.
func brokenBody(w http.ResponseWriter) error {
	if res, ok := w.(*response); ok && res.body != nil {
		if err := res.body.broken.Load(); err != nil {
			return *err
		}
	}
	return nil
}
