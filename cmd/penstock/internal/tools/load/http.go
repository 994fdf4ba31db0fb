package load

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/net/http/httpguts"

	"github.com/penstock/penstock/internal/wording"
)

// HTTP sends requests over HTTP. In URLs, values of headers and the body, $client stands for the
// number of the client, and $address for an address of its own.
type HTTP struct {
	Targets []HTTPTarget
	Headers []Header
	Body    string
	Timeout time.Duration // of a request, with its answer
	Sources []netip.Addr  // of the connections; clients take turns. Default: the system chooses

	transports []*http.Transport // one for each source
}

// An HTTPTarget is where requests go.
type HTTPTarget struct {
	Weight      int
	Method, URL string
}

func (t HTTPTarget) String() string { return t.Method + " " + t.URL }

// A Header is a field of each request.
type Header struct{ Name, Value string }

// MaxAddresses is how many clients have an $address of their own, in 198.18.0.0/15. This network is
// reserved for benchmarks.
const MaxAddresses = 1 << 17

// ParseTarget reads a target: a URL, with an optional weight and method before it.
func ParseTarget(text string) (t HTTPTarget, err error) {
	const hint = "write a URL, with a weight and a method before it if you need them, as in '5 POST http://localhost:8080/api/rides'"
	words := strings.Fields(text)
	t = HTTPTarget{Weight: 1, Method: http.MethodGet}
	if len(words) > 0 {
		t.URL, words = words[len(words)-1], words[:len(words)-1]
	}
	if len(words) > 0 {
		if n, err := strconv.Atoi(words[0]); err == nil {
			t.Weight, words = n, words[1:]
		}
	}
	if len(words) > 0 {
		t.Method, words = strings.ToUpper(words[0]), words[1:]
	}
	u, err := url.Parse(expand(t.URL, 1))
	const maxWeight = 1_000_000
	switch {
	case err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https":
		return t, fmt.Errorf("the target %q has no URL with http:// or https://; %s", wording.Clip(text), hint)
	case len(words) > 0 || !httpguts.ValidHeaderFieldName(t.Method):
		return t, fmt.Errorf("the target %q has too many words; %s", wording.Clip(text), hint)
	case t.Weight < 1 || t.Weight > maxWeight:
		return t, fmt.Errorf("the target %q has a weight beyond 1 to %d; %s", wording.Clip(text), maxWeight, hint)
	}
	return t, nil
}

// ParseHeader reads a header, as in X-API-Key: load-$client.
func ParseHeader(text string) (Header, error) {
	name, value, ok := strings.Cut(text, ":")
	value = strings.Trim(value, " \t")
	switch {
	case !ok || !httpguts.ValidHeaderFieldName(name) || !httpguts.ValidHeaderFieldValue(value):
		return Header{}, fmt.Errorf("%q is no header; write 'Name: value', as in 'X-API-Key: load-$client'", wording.Clip(text))
	case strings.Contains(expand(value, 1), "$"):
		return Header{}, fmt.Errorf("the header %q has a variable that is not known; $client and $address are", wording.Clip(text))
	}
	return Header{name, value}, nil
}

// maxSources bounds the sources, because each has connections of its own.
const maxSources = 256

// ParseSources reads addresses of this machine, and networks such as 127.0.1.0/24.
func ParseSources(texts []string) (all []netip.Addr, err error) {
	for _, text := range texts {
		network, err := netip.ParsePrefix(text)
		if a, addrErr := netip.ParseAddr(text); addrErr == nil {
			network, err = netip.PrefixFrom(a, a.BitLen()), nil
		}
		if err != nil {
			return nil, fmt.Errorf("%q is neither an address nor a network; write one such as 127.0.1.0/24", wording.Clip(text))
		}
		for a := network.Masked().Addr(); network.Contains(a); a = a.Next() {
			if all = append(all, a); len(all) > maxSources {
				return nil, fmt.Errorf("there are more than %d source addresses; write fewer", maxSources)
			}
		}
	}
	return all, nil
}

// UsesAddresses reports whether requests have an $address.
func (h *HTTP) UsesAddresses() bool {
	all := h.Body
	for _, t := range h.Targets {
		all += t.URL
	}
	for _, x := range h.Headers {
		all += x.Value
	}
	return strings.Contains(all, "$address")
}

// Open prepares to send. maxInFlight is how many requests are in flight at most.
func (h *HTTP) Open(maxInFlight int) {
	sources := h.Sources
	if len(sources) == 0 {
		sources = []netip.Addr{{}}
	}
	for _, a := range sources {
		dialer := net.Dialer{Timeout: h.Timeout}
		if a.IsValid() {
			dialer.LocalAddr = net.TCPAddrFromAddrPort(netip.AddrPortFrom(a, 0))
		}
		h.transports = append(h.transports, &http.Transport{
			DialContext: dialer.DialContext, MaxIdleConnsPerHost: maxInFlight, DisableCompression: true, ForceAttemptHTTP2: true,
			TLSHandshakeTimeout: h.Timeout, MaxResponseHeaderBytes: 64 << 10,
		})
	}
}

// Close closes connections that are not in use.
func (h *HTTP) Close() {
	for _, t := range h.transports {
		t.CloseIdleConnections()
	}
}

// Send sends a request, and reads its answer to the end. Redirects are answers.
func (h *HTTP) Send(ctx context.Context, target int, client int64) Answer {
	ctx, cancel := context.WithTimeout(ctx, h.Timeout)
	defer cancel()
	t := &h.Targets[target]
	request, err := http.NewRequestWithContext(ctx, t.Method, expand(t.URL, client), strings.NewReader(expand(h.Body, client)))
	if err != nil {
		return Answer{Failure: Other, Error: err}
	}
	request.Header.Set("User-Agent", "penstock-load")
	for _, x := range h.Headers {
		if value := expand(x.Value, client); strings.EqualFold(x.Name, "Host") {
			request.Host = value
		} else {
			request.Header.Add(x.Name, value)
		}
	}
	response, err := h.transports[client%int64(len(h.transports))].RoundTrip(request)
	if err == nil {
		_, err = io.Copy(io.Discard, response.Body)
		response.Body.Close()
	}
	if err != nil {
		return Answer{Failure: failureOf(err), Error: err}
	}
	answer := Answer{Status: response.StatusCode, Policies: strings.Join(response.Header.Values("RateLimit-Policy"), ",")}
	if response.StatusCode == http.StatusTooManyRequests {
		seconds, _ := strconv.Atoi(response.Header.Get("Retry-After"))
		answer.RetryAfter = time.Duration(min(max(seconds, 0), int(maxLatency.Seconds()))) * time.Second
	}
	return answer
}

func failureOf(err error) Failure {
	timeout, isNet := errors.AsType[net.Error](err)
	switch {
	case errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE):
		return NoFiles
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return NoPorts
	case errors.Is(err, syscall.ECONNREFUSED):
		return Refused
	case errors.Is(err, context.DeadlineExceeded), isNet && timeout.Timeout():
		return Timeout
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE), errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return Broken
	}
	return Other
}

// expand replaces $client and $address.
func expand(text string, client int64) string {
	if !strings.Contains(text, "$") {
		return text
	}
	var address [4]byte
	binary.BigEndian.PutUint32(address[:], 198<<24|18<<16|uint32(client%MaxAddresses))
	text = strings.ReplaceAll(text, "$client", strconv.FormatInt(client, 10))
	return strings.ReplaceAll(text, "$address", netip.AddrFrom4(address).String())
}
