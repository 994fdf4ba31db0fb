package revproxy

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/netip"
	"net/url"
	"sync"
	"sync/atomic"
	"time"
)

// newTransport makes the transport to the upstream. It returns the URL for requests, too.
func newTransport(o Options) (*url.URL, *http.Transport) {
	target := *o.Upstream
	dialer := &net.Dialer{Timeout: o.ConnectTimeout, KeepAlive: 30 * time.Second} // as http.DefaultTransport
	t := &http.Transport{
		Proxy:                  nil,                // ignore HTTP_PROXY
		DialContext:            dialer.DialContext, // for h2c; the other schemes replace it
		ResponseHeaderTimeout:  o.HeaderTimeout,
		ExpectContinueTimeout:  time.Second, // after that, the body is sent without 100 Continue
		DisableCompression:     true,        // pass on the encoding that the client accepts
		MaxIdleConnsPerHost:    1024,        // the default of 2 would close most connections after a burst
		MaxConnsPerHost:        o.MaxConnections,
		IdleConnTimeout:        90 * time.Second, // as http.DefaultTransport
		MaxResponseHeaderBytes: 256 << 10,        // the default is 10 MB
		TLSClientConfig:        o.TLS,
		Protocols:              new(http.Protocols),
	}
	if t.TLSClientConfig == nil {
		t.TLSClientConfig = &tls.Config{MinVersion: tls.VersionTLS12}
	}
	t.Protocols.SetHTTP1(true)
	t.Protocols.SetHTTP2(true)
	switch target.Scheme {
	case "http":
		t.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
			return frame(dialer.DialContext(ctx, network, address))
		}
	case "https":
		t.DialTLSContext = dialTLS(dialer, t.TLSClientConfig, o.ConnectTimeout)
	case "h2c":
		target.Scheme = "http"
		t.Protocols.SetHTTP1(false)
		t.Protocols.SetUnencryptedHTTP2(true)
	case "unix":
		socket := target.Path
		t.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return frame(dialer.DialContext(ctx, "unix", socket))
		}
		target = url.URL{Scheme: "http", Host: "localhost"}
	}
	return &target, t
}

// frame wraps a new connection to an HTTP/1 upstream.
func frame(conn net.Conn, err error) (net.Conn, error) {
	if err != nil {
		return nil, err
	}
	return &framedConn{Conn: conn}, nil
}

// dialTLS connects, and wraps connections that do not use HTTP/2. net/http handles HTTP/2 itself.
func dialTLS(dialer *net.Dialer, config *tls.Config, timeout time.Duration) func(ctx context.Context, network, address string) (net.Conn, error) {
	config = config.Clone()
	config.NextProtos = []string{"h2", "http/1.1"}
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		plain, err := dialer.DialContext(ctx, network, address)
		if err != nil {
			return nil, err
		}
		config := config.Clone()
		if config.ServerName == "" {
			config.ServerName, _, _ = net.SplitHostPort(address)
		}
		if timeout > 0 {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, timeout)
			defer cancel()
		}
		conn := tls.Client(plain, config)
		if err := conn.HandshakeContext(ctx); err != nil {
			plain.Close()
			return nil, err
		}
		if conn.ConnectionState().NegotiatedProtocol == "h2" {
			return conn, nil
		}
		return &framedConn{Conn: conn}, nil
	}
}

// A trackedTransport knows which requests failed before they had a connection. It does not repeat
// a request that an HTTP/1 upstream may have received.
//
// It repeats a request once if an HTTP/2 upstream reports that the request was not processed
// (GOAWAY, REFUSED_STREAM). net/http treats PROTOCOL_ERROR in the same way.
type trackedTransport struct {
	*http.Transport
	observe func(status int, took time.Duration)
	isHTTP1 *atomic.Bool // set with the first connection of HTTP/1
}

// maxWait is how long a request waits until a connection to the upstream is free, if all are in
// use. It does not include connecting.
const maxWait = time.Second

var errNoConnection = errors.New("all connections to the upstream are in use")

func (t trackedTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	var progress struct {
		isConnected atomic.Bool
		sent        atomic.Int32 // how often the headers of the request were written
	}
	ctx, giveUp := context.WithCancelCause(r.Context()) // canceled with its parent
	wait := time.AfterFunc(maxWait, func() { giveUp(errNoConnection) })
	defer wait.Stop()
	trace := &httptrace.ClientTrace{
		GetConn: func(string) {
			if progress.isConnected.Load() { // the connection was closed before the request was sent
				wait.Reset(maxWait)
			}
		},
		DNSStart:     func(httptrace.DNSStartInfo) { wait.Stop() }, // ConnectTimeout bounds it
		ConnectStart: func(string, string) { wait.Stop() },
		GotConn: func(got httptrace.GotConnInfo) {
			wait.Stop()
			progress.isConnected.Store(true)
			if conn, ok := got.Conn.(*framedConn); ok {
				t.isHTTP1.Store(true)
				conn.expect(giveUp)
			} else if progress.sent.Load() > 1 { // an HTTP/2 upstream has refused the request twice
				giveUp(errRefusedAgain)
			}
		},
		WroteHeaders: func() { progress.sent.Add(1) },
	}
	start := time.Now()
	res, err := t.Transport.RoundTrip(r.WithContext(httptrace.WithClientTrace(ctx, trace)))
	switch {
	case err == nil:
		t.observe(res.StatusCode, time.Since(start))
	case r.Context().Err() == nil && !errors.Is(err, errNoConnection):
		t.observe(0, time.Since(start))
	}
	if err != nil && !progress.isConnected.Load() {
		err = &unreachedError{err}
	}
	return res, err
}

var errRefusedAgain = errors.New("the upstream has refused the request twice")

// unreachedError is the error of a request that has not reached the upstream.
type unreachedError struct{ error }

func (e *unreachedError) Unwrap() error { return e.error }

// bufferSize is the size of a buffer for the body of a response, in bytes. smallBufferSize is used
// while there is no memory for more.
const (
	bufferSize      = 32 << 10
	smallBufferSize = 4 << 10
)

// buffers are reused by httputil. Passing them by pointer avoids an allocation.
type buffers struct {
	free   sync.Pool
	memory Memory
}

func (b *buffers) Get() []byte {
	if !b.memory.Take(bufferSize) {
		return make([]byte, smallBufferSize)
	}
	if buffer, ok := b.free.Get().(*[bufferSize]byte); ok {
		return buffer[:]
	}
	return make([]byte, bufferSize)
}

func (b *buffers) Put(buffer []byte) {
	if len(buffer) == smallBufferSize {
		return
	}
	b.free.Put((*[bufferSize]byte)(buffer))
	b.memory.Release(bufferSize)
}

// shares counts the requests of each address that are in flight.
type shares struct {
	max       int // of one address
	mu        sync.Mutex
	byAddress map[netip.Prefix]int
}

// take counts a request of an address. It returns false if max are in flight.
func (s *shares) take(address netip.Prefix) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byAddress[address] >= s.max {
		return false
	}
	if s.byAddress == nil {
		s.byAddress = make(map[netip.Prefix]int)
	}
	s.byAddress[address]++
	return true
}

func (s *shares) release(address netip.Prefix) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byAddress[address]--; s.byAddress[address] == 0 {
		delete(s.byAddress, address)
	}
}

// addressOf returns the address of the peer of a request, or its /64 for IPv6. All peers whose
// address is unknown, such as those of a Unix socket, have the same one.
func addressOf(r *http.Request) netip.Prefix {
	peer, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return netip.Prefix{}
	}
	address, bits := peer.Addr().Unmap(), 32
	if address.Is6() {
		bits = 64
	}
	prefix, _ := address.Prefix(bits)
	return prefix
}
