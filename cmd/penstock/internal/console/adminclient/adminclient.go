// Package adminclient sends requests to an address of a running instance, such as its admin
// address: over TCP, TLS or a Unix socket.
package adminclient

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"strings"
	"time"
)

type Options struct {
	// Address is host:port, http://host:port, https://host:port or unix:/path/of.sock. A URL may have
	// a path, under which a proxy serves the admin address.
	Address string

	// Flag is the name of the flag that has the address, for messages. The flags of the files begin
	// with it. Default: admin.
	Flag string

	// Token is sent as Authorization: Bearer. Default: none.
	Token string

	// CA is a PEM file of the authorities of the instance's certificate. Default: those of the system.
	// Cert and Key are PEM files of the client's own certificate. Default: none. Each of them switches
	// TLS on.
	CA, Cert, Key string
}

// maxAnswer is the longest answer that is accepted, in bytes. The longest answer of an instance has
// all limits of a policy.
const maxAnswer = 16 << 20

// maxObjects is the most objects in an answer in JSON. Even an empty object takes much more memory
// than its text.
const maxObjects = 300_000

// maxLine is the longest line of an event stream, in bytes.
const maxLine = 1 << 20

const (
	headerTimeout = 10 * time.Second // until the header of an answer
	streamTimeout = time.Minute      // between two lines of a stream; an instance sends one each 15 s
)

// A Client sends requests to one address. Many goroutines may use it at the same time.
type Client struct {
	address, base, token string
	flag                 string
	transport            *http.Transport
	streamTimeout        time.Duration
}

// New makes a Client. It does not connect.
func New(o Options) (*Client, error) {
	t, err := targetOf(o.Address)
	if err != nil {
		return nil, err
	}
	o.Flag = cmp.Or(o.Flag, "admin")
	c := &Client{address: o.Address, flag: o.Flag, token: o.Token, streamTimeout: streamTimeout, transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{Timeout: headerTimeout}).DialContext(ctx, t.network, t.address)
		},
		TLSHandshakeTimeout:    5 * time.Second,
		ResponseHeaderTimeout:  headerTimeout,
		MaxResponseHeaderBytes: 64 << 10,
		MaxIdleConns:           4,
		IdleConnTimeout:        time.Minute,
	}}
	if o.CA != "" || o.Cert != "" || o.Key != "" {
		if t.scheme == "http" && strings.HasPrefix(o.Address, "http://") {
			return nil, fmt.Errorf("--%s %s has no TLS, but a file for TLS is given; write https://", o.Flag, o.Address)
		}
		t.scheme = "https"
	}
	if t.scheme == "https" {
		if c.transport.TLSClientConfig, err = tlsConfig(o); err != nil {
			return nil, err
		}
	}
	c.base = t.scheme + "://" + t.host + t.path
	return c, nil
}

func (c *Client) Close() { c.transport.CloseIdleConnections() }

// Send sends a request and reads its answer. The request is a POST of JSON if there is a body, and
// otherwise a GET. Redirects are not followed, so no other host gets the token.
func (c *Client) Send(ctx context.Context, path string, body []byte) (status int, answer []byte, err error) {
	res, err := c.open(ctx, path, body)
	if err != nil {
		return 0, nil, err
	}
	defer res.Body.Close()
	if answer, err = io.ReadAll(io.LimitReader(res.Body, maxAnswer+1)); err != nil {
		return 0, nil, fmt.Errorf("%s did not answer in full: %w", c.address, err)
	}
	if len(answer) > maxAnswer {
		return 0, nil, fmt.Errorf("%s has sent more than %d bytes", c.address, maxAnswer)
	}
	if bytes.Count(answer, []byte("{")) > maxObjects {
		return 0, nil, fmt.Errorf("%s has sent more than %d objects", c.address, maxObjects)
	}
	if res.StatusCode == http.StatusBadRequest && bytes.Contains(answer, []byte("HTTP request to an HTTPS server")) { // from Go's TLS server
		return 0, nil, fmt.Errorf("%s expects TLS; write --%s https://HOST:PORT", c.address, c.flag)
	}
	return res.StatusCode, answer, nil
}

// ErrNoStream is the error of Follow if the answer is not a stream of events.
var ErrNoStream = errors.New("the response is not a stream of events")

// errSilent ends a stream that sends nothing for streamTimeout.
var errSilent = errors.New("the instance has sent nothing for too long")

// Follow reads server-sent events, and calls handle with each. It returns when ctx ends, handle
// fails, or the stream ends or is silent for a minute. A status other than 200 is returned with its
// answer.
func (c *Client) Follow(ctx context.Context, path string, handle func(event string, data []byte) error) (status int, answer []byte, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	res, err := c.open(ctx, path, nil)
	if err != nil {
		return 0, nil, err
	}
	defer res.Body.Close()
	silence := time.AfterFunc(c.streamTimeout, func() { cancel(errSilent) })
	defer silence.Stop()
	if res.StatusCode != http.StatusOK {
		answer, err = io.ReadAll(io.LimitReader(res.Body, maxLine))
		return res.StatusCode, answer, err
	}
	if kind := res.Header.Get("Content-Type"); !strings.HasPrefix(kind, "text/event-stream") {
		return res.StatusCode, nil, ErrNoStream
	}
	lines := bufio.NewScanner(res.Body)
	lines.Buffer(nil, maxLine)
	event := ""
	for lines.Scan() {
		silence.Reset(c.streamTimeout)
		name, value, _ := bytes.Cut(lines.Bytes(), []byte(":"))
		value = bytes.TrimPrefix(value, []byte(" "))
		switch string(name) {
		case "event":
			event = string(value)
		case "data": // the admin API sends each datum on one line
			if err := handle(event, value); err != nil {
				return res.StatusCode, nil, err
			}
		}
	}
	switch err = lines.Err(); {
	case errors.Is(context.Cause(ctx), errSilent):
		err = errSilent
	case err == nil:
		err = io.ErrUnexpectedEOF
	}
	return res.StatusCode, nil, fmt.Errorf("the stream of %s has ended: %w", c.address, err)
}

func (c *Client) open(ctx context.Context, path string, body []byte) (*http.Response, error) {
	method := http.MethodGet
	if body != nil {
		method = http.MethodPost
	}
	request, err := http.NewRequestWithContext(ctx, method, c.base+path, bytes.NewReader(body))
	if err != nil {
		return nil, errAddress(c.address)
	}
	if body != nil {
		request.Header.Set("Content-Type", "application/json")
	}
	if c.token != "" {
		request.Header.Set("Authorization", "Bearer "+c.token)
	}
	res, err := c.transport.RoundTrip(request)
	if err != nil {
		return nil, fmt.Errorf("%s does not answer: %w; %s", c.address, err, c.hint(err))
	}
	return res, nil
}

func (c *Client) hint(err error) string {
	var unknown x509.UnknownAuthorityError
	var record tls.RecordHeaderError
	switch {
	case errors.As(err, &unknown):
		return "name the authority of its certificate by --" + c.flag + "-ca"
	case errors.As(err, &record), strings.Contains(err.Error(), "HTTP response to HTTPS client"):
		return "this address has no TLS; write http://"
	case strings.Contains(err.Error(), "certificate"):
		return "check --" + c.flag + "-ca, and that the certificate is for this host"
	}
	listener := c.flag
	if listener == "admin" {
		listener = "admin-listen"
	}
	return "check that the service runs, and that --" + c.flag + " is its " + listener + " address"
}

func tlsConfig(o Options) (*tls.Config, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if o.CA != "" {
		text, err := os.ReadFile(o.CA)
		if err != nil {
			return nil, fmt.Errorf("--%s-ca: %w", o.Flag, err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(text) {
			return nil, fmt.Errorf("--%s-ca %s has no certificate in PEM form", o.Flag, o.CA)
		}
	}
	if (o.Cert == "") != (o.Key == "") {
		return nil, fmt.Errorf("--%s-cert and --%s-key belong together; write both or neither", o.Flag, o.Flag)
	}
	if o.Cert != "" {
		pair, err := tls.LoadX509KeyPair(o.Cert, o.Key)
		if err != nil {
			return nil, fmt.Errorf("--%s-cert, --%s-key: %w", o.Flag, o.Flag, err)
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return config, nil
}

type target struct {
	network, address   string // of the connection
	scheme, host, path string // of requests; the path has no slash at its end
}

// targetOf reads an address. Without a host, or with 0.0.0.0 or ::, it is the loopback address.
func targetOf(text string) (t target, err error) {
	if path, ok := strings.CutPrefix(text, "unix:"); ok {
		if path = strings.TrimPrefix(path, "//"); path == "" {
			return t, errAddress(text)
		}
		return target{network: "unix", address: path, scheme: "http", host: "localhost"}, nil
	}
	t = target{network: "tcp", scheme: "http"}
	hostPort := text
	if strings.Contains(text, "://") {
		u, err := url.Parse(text)
		if err != nil {
			return t, errAddress(text)
		}
		isHTTP := u.Scheme == "http" || u.Scheme == "https"
		hasMoreThanPath := u.User != nil || u.RawQuery != "" || u.Fragment != ""
		if !isHTTP || hasMoreThanPath || u.Hostname() == "" {
			return t, errAddress(text)
		}
		t.scheme, t.path = u.Scheme, strings.TrimSuffix(u.EscapedPath(), "/")
		if hostPort = u.Host; u.Port() == "" {
			hostPort = net.JoinHostPort(u.Hostname(), map[string]string{"http": "80", "https": "443"}[u.Scheme])
		}
	}
	host, port, err := net.SplitHostPort(hostPort)
	if err != nil || port == "" {
		return t, errAddress(text)
	}
	ip, err := netip.ParseAddr(host)
	switch {
	case host == "", err == nil && ip.Is4() && ip.IsUnspecified():
		host = "127.0.0.1"
	case err == nil && ip.IsUnspecified():
		host = "::1"
	}
	t.address = net.JoinHostPort(host, port)
	t.host = t.address
	return t, nil
}

func errAddress(text string) error {
	return fmt.Errorf("%q is not an address; write host:port, https://host:port or unix:/path/of.sock", text)
}
