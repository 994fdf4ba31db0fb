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
		// Through any other protocol (h2c above all), a client could send the upstream more requests that nobody sees.
		pr.Out.Header.Del("Upgrade")
		pr.Out.Header.Del("Connection")
		pr.Out.Header.Del("Http2-Settings")
	}
	pr.Out.Trailer = nil
	if pr.Out.Body != nil {
		trailers := newTrailers(pr.In.Trailer)
		pr.Out.Trailer = trailers.out
		if h.options.MaxBody > 0 {
			pr.Out.Body = http.MaxBytesReader(nil, pr.Out.Body, h.options.MaxBody)
		}
		pr.Out.Body = &body{ReadCloser: pr.Out.Body, trailers: trailers}
	}
}

// setForwarded says where the request came from. Of what it says itself nothing is left, unless its peer is trusted. Forwarded (RFC 7239)
// is never sent on: without this hop it would be wrong, and what both headers say may differ.
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

// isAmbiguous tells whether an upstream that knows headers as variables (CGI, WSGI) may take one for another, which the rules have read: it
// cannot tell '_' from '-'.
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

// trailers are what follows the client's body, without what no header may say: nobody's trailers tell where a request came from.
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

// A body is the client's, and remembers why it broke off.
type body struct {
	io.ReadCloser
	trailers trailers
	broken   atomic.Pointer[error]
}

func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	switch {
	case err == io.EOF:
		b.trailers.fill()
	case err != nil:
		b.broken.CompareAndSwap(nil, &err)
	}
	return n, err
}

// brokenBody is why the client's body broke off, or nil.
func brokenBody(r *http.Request) error {
	if b, ok := r.Body.(*body); ok {
		if err := b.broken.Load(); err != nil {
			return *err
		}
	}
	return nil
}
