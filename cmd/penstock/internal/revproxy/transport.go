package revproxy

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"sync"
	"sync/atomic"
	"time"
)

// dial makes the transport to the upstream, and the URL under which the transport knows it.
func dial(o Options) (*url.URL, *http.Transport) {
	target := *o.Upstream
	dialer := &net.Dialer{Timeout: o.ConnectTimeout, KeepAlive: 30 * time.Second}
	t := &http.Transport{
		Proxy:                  nil, // HTTP_PROXY is not for requests to the upstream
		DialContext:            dialer.DialContext,
		TLSHandshakeTimeout:    o.ConnectTimeout,
		ResponseHeaderTimeout:  o.HeaderTimeout,
		ExpectContinueTimeout:  time.Second, // then the body is sent unasked
		DisableCompression:     true,        // what the client asked for, it gets
		MaxIdleConnsPerHost:    1024,
		IdleConnTimeout:        90 * time.Second,
		MaxResponseHeaderBytes: 256 << 10,
		TLSClientConfig:        o.TLS,
		Protocols:              new(http.Protocols),
	}
	if t.TLSClientConfig == nil {
		t.TLSClientConfig = &tls.Config{MinVersion: tls.VersionTLS12}
	}
	t.Protocols.SetHTTP1(true)
	t.Protocols.SetHTTP2(true)
	switch target.Scheme {
	case "h2c":
		target.Scheme = "http"
		t.Protocols.SetHTTP1(false)
		t.Protocols.SetUnencryptedHTTP2(true)
	case "unix":
		socket := target.Path
		t.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return dialer.DialContext(ctx, "unix", socket)
		}
		target = url.URL{Scheme: "http", Host: "localhost"}
	}
	return &target, t
}

// A tracked transport knows which requests failed before there was a connection to send them on.
type tracked struct{ *http.Transport }

func (t tracked) RoundTrip(r *http.Request) (*http.Response, error) {
	var connected atomic.Bool
	trace := &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { connected.Store(true) }}
	res, err := t.Transport.RoundTrip(r.WithContext(httptrace.WithClientTrace(r.Context(), trace)))
	if err != nil && !connected.Load() {
		err = &unreached{err}
	}
	return res, err
}

// unreached is an error after which it is certain that the upstream got nothing of the request.
type unreached struct{ error }

func (e *unreached) Unwrap() error { return e.error }

// bufferSize is how much of a response's body is held at once.
const bufferSize = 32 << 10

// buffers are kept for httputil. One that is handed over by pointer costs no allocation.
type buffers struct{ free sync.Pool }

func (b *buffers) Get() []byte {
	if buffer, ok := b.free.Get().(*[bufferSize]byte); ok {
		return buffer[:]
	}
	return make([]byte, bufferSize)
}

func (b *buffers) Put(buffer []byte) { b.free.Put((*[bufferSize]byte)(buffer)) }
