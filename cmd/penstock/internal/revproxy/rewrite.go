package revproxy

import (
	"io"
	"net/http"
	"net/http/httputil"
	"net/netip"
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
	if pr.Out.Header["Upgrade"] != nil && !isWebSocket(pr.Out.Header) {
		// Through any other protocol (h2c above all), a client could send the upstream more requests that nobody sees.
		pr.Out.Header.Del("Upgrade")
		pr.Out.Header.Del("Connection")
		pr.Out.Header.Del("Http2-Settings")
	}
	pr.Out.Trailer = pr.In.Trailer // filled when the body has been read
	if pr.Out.Body != nil {
		if h.options.MaxBody > 0 {
			pr.Out.Body = http.MaxBytesReader(nil, pr.Out.Body, h.options.MaxBody)
		}
		pr.Out.Body = &body{ReadCloser: pr.Out.Body}
	}
}

// setForwarded says where the request came from. Of what it says itself nothing is left, unless its peer is trusted. Forwarded (RFC 7239)
// is never sent on: without this hop it would be wrong, and what both headers say may differ.
func (h *Handler) setForwarded(pr *httputil.ProxyRequest) {
	trusted := h.isTrusted(pr.In.RemoteAddr)
	for name := range pr.Out.Header {
		if isForwarded(name) && (!trusted || strings.Contains(name, "_")) {
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

// isForwarded tells whether a header says where a request came from. Upstreams that know headers as variables (CGI, WSGI) cannot tell
// '_' from '-', so nor does this.
func isForwarded(name string) bool {
	if c := name[0] | 0x20; c != 'x' && c != 'f' {
		return false
	}
	name = strings.ToLower(strings.ReplaceAll(name, "_", "-"))
	return strings.HasPrefix(name, "x-forwarded-") || name == "x-real-ip" || name == "forwarded"
}

func (h *Handler) isTrusted(peer string) bool {
	if len(h.options.Trusted) == 0 {
		return false
	}
	addr, err := netip.ParseAddrPort(peer)
	if err != nil {
		return false
	}
	ip := addr.Addr().Unmap().WithZone("")
	for _, network := range h.options.Trusted {
		if network.Contains(ip) {
			return true
		}
	}
	return false
}

func isWebSocket(h http.Header) bool { return strings.EqualFold(h.Get("Upgrade"), "websocket") }

// A body is the client's, and remembers why it broke off.
type body struct {
	io.ReadCloser
	broken atomic.Pointer[error]
}

func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil && err != io.EOF {
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
