package httplimit

import (
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// addresses tells which address a request comes from: that of the socket's peer, unless the peer is
// a trusted proxy, which says in a header whom it serves.
//
// A list (X-Forwarded-For or Forwarded) grows at its right end, and what stands left of the first
// untrusted address was written by that address. So it is read from the right, past trusted
// proxies, to the first address that is not one: the client. If all are trusted, the leftmost is.
// Whatever cannot be read on this way, "unknown" and names like _hidden included, makes the peer
// the client, and so does a list that goes on for more than maxHops addresses or maxHopBytes. What
// stands further left is not read.
//
// Any other header must have one line with one address, or the peer is the client. Proxies must set
// such a header whatever the client sent, as they must append to a list.
type addresses struct {
	trusted []netip.Prefix
	unix    bool   // whether the peer of a unix socket is trusted
	header  string // in canonical form
}

// The bounds of what is read of a list: addresses, and bytes including commas.
const (
	maxHops     = 32
	maxHopBytes = 8 << 10
)

// newAddresses trusts the proxies in the networks trusted ("10.0.0.0/8", "2001:db8::1", or "unix"
// for whoever connects to a unix socket; none by default) to say in header (X-Forwarded-For by
// default) whom they serve.
func newAddresses(trusted []string, header string) (*addresses, error) {
	if header != "" && len(trusted) == 0 {
		return nil, fmt.Errorf("client address: header %q is believed of nobody; name the networks of your proxies, or no header", header)
	}
	if header == "" {
		header = "X-Forwarded-For"
	}
	if !isName(header) {
		return nil, fmt.Errorf("client address: header %q is no header's name; write one as X-Forwarded-For, Forwarded or X-Real-IP", header)
	}
	a := &addresses{header: http.CanonicalHeaderKey(header)}
	for _, text := range trusted {
		if text == "unix" {
			a.unix = true
			continue
		}
		network, err := parseNetwork(text)
		if err != nil {
			return nil, fmt.Errorf("client address: trusted proxies: %q %w", text, err)
		}
		a.trusted = append(a.trusted, network)
	}
	return a, nil
}

// of returns the client's address, never an IPv4-mapped one or one with a zone. It is invalid if
// the peer is the client and has none, as on a unix socket.
func (a *addresses) of(r *http.Request) netip.Addr {
	peer := parsePeer(r.RemoteAddr)
	if !a.trusts(peer) && !a.trustsSocket(r) {
		return peer
	}
	var client netip.Addr
	switch lines := r.Header[a.header]; {
	case a.header == "X-Forwarded-For":
		client = a.walk(lines, lastComma, parseNode)
	case a.header == "Forwarded":
		client = a.walk(lines, lastUnquotedComma, parseForwarded)
	case len(lines) == 1 && len(lines[0]) <= maxHopBytes:
		client = parseNode(lines[0])
	}
	if !client.IsValid() {
		return peer
	}
	return client
}

// trustsPeer tells whether the peer is a proxy that is believed.
func (a *addresses) trustsPeer(r *http.Request) bool {
	return a.trusts(parsePeer(r.RemoteAddr)) || a.trustsSocket(r)
}

func (a *addresses) trustsSocket(r *http.Request) bool { return a.unix && isSocket(r.RemoteAddr) }

func (a *addresses) trusts(address netip.Addr) bool {
	for _, network := range a.trusted {
		if network.Contains(address) {
			return true
		}
	}
	return false
}

// walk returns the last address of a list that is not trusted, or else the first address; an
// invalid one if it cannot tell.
func (a *addresses) walk(lines []string, lastComma func(string) int, parse func(string) netip.Addr) (hop netip.Addr) {
	hops, bytes := 0, 0
	for _, line := range slices.Backward(lines) {
		rest := line[max(0, len(line)-(maxHopBytes-bytes)):]
		whole := len(rest) == len(line)
		bytes += len(line)
		for more := true; more; {
			comma := lastComma(rest)
			more = comma >= 0
			if hops++; hops > maxHops || !more && !whole {
				return netip.Addr{}
			}
			hop = parse(rest[comma+1:])
			if !hop.IsValid() || !a.trusts(hop) {
				return hop
			}
			rest = rest[:max(0, comma)]
		}
	}
	return hop
}

func lastComma(list string) int { return strings.LastIndexByte(list, ',') }

// lastUnquotedComma is the last comma that is not in a quoted string. It reads from the right:
// otherwise a quote that the client left open would hide what proxies appended. A quote behind a
// backslash is a part of its string.
func lastUnquotedComma(list string) int {
	quoted := false
	for i := len(list) - 1; i >= 0; i-- {
		switch {
		case list[i] == '"' && !(quoted && strings.HasSuffix(list[:i], `\`)):
			quoted = !quoted
		case list[i] == ',' && !quoted:
			return i
		}
	}
	return -1
}

// parseForwarded reads the address in an element of Forwarded, as
// for="[2001:db8::1]:80";proto=https (RFC 7239); spaces around a parameter, and an address that
// should be quoted, are let pass. It is invalid if there is none or the element is malformed.
func parseForwarded(element string) (address netip.Addr) {
	found := false
	for element = strings.TrimLeft(element, "; \t"); element != ""; element = strings.TrimLeft(element, "; \t") {
		name, after, _ := strings.Cut(element, "=")
		value, rest, ok := cutValue(after)
		if !ok || name == "" || !isName(name) {
			return netip.Addr{}
		}
		if strings.EqualFold(name, "for") {
			if found {
				return netip.Addr{}
			}
			found, address = true, parseNode(value)
		}
		element = rest
	}
	return address
}

// cutValue reads the value at the start of text. The rest is empty or begins with a semicolon.
func cutValue(text string) (value, rest string, ok bool) {
	if quoted, is := strings.CutPrefix(text, `"`); is {
		value, rest, ok = cutQuoted(quoted)
	} else {
		end := strings.IndexAny(text, "\"; \t")
		if end < 0 {
			end = len(text)
		}
		value, rest, ok = text[:end], text[end:], end > 0
	}
	rest = strings.TrimLeft(rest, " \t")
	return value, rest, ok && (rest == "" || rest[0] == ';')
}

// cutQuoted reads up to the quote that ends a string. Escapes are left in the value, as no address
// needs any.
func cutQuoted(text string) (value, rest string, ok bool) {
	for i := 0; i < len(text); i++ {
		switch text[i] {
		case '"':
			return text[:i], text[i+1:], true
		case '\\':
			i++
		}
	}
	return "", "", false
}

// parseNode reads an address, perhaps with a port, in brackets or quotes: 192.0.2.1, 192.0.2.1:80,
// 2001:db8::1, "[2001:db8::1]:80".
func parseNode(text string) netip.Addr {
	text = strings.Trim(text, " \t")
	if n := len(text); n >= 2 && text[0] == '"' && text[n-1] == '"' {
		text = text[1 : n-1]
	}
	host, port, bracketed := text, "", false
	switch {
	case strings.HasPrefix(text, "["):
		if host, port, bracketed = strings.Cut(text[1:], "]"); !bracketed {
			return netip.Addr{}
		}
	case strings.Count(text, ":") == 1:
		i := strings.IndexByte(text, ':')
		host, port = text[:i], text[i:]
	}
	address, err := netip.ParseAddr(host)
	if err != nil || bracketed && address.Is4() || !isName(address.Zone()) || port != "" && !isPort(port) {
		return netip.Addr{}
	}
	return address.Unmap().WithZone("")
}

// isPort tells whether text is a colon and a port, or a colon and a name for one as RFC 7239 has
// them: _name.
func isPort(text string) bool {
	port, ok := strings.CutPrefix(text, ":")
	if hidden, is := strings.CutPrefix(port, "_"); is {
		return ok && hidden != "" && isName(hidden)
	}
	_, err := strconv.ParseUint(port, 10, 16)
	return ok && err == nil
}

// isName tells whether text has only what names of headers, parameters, zones and hidden ports are
// made of.
func isName(text string) bool {
	for i := range len(text) {
		c := text[i]
		if !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.IndexByte("-._~%", c) >= 0) {
			return false
		}
	}
	return true
}

// parsePeer reads a [http.Request.RemoteAddr], which has a port unless somebody set it by hand.
func parsePeer(remote string) netip.Addr {
	peer, err := netip.ParseAddrPort(remote)
	if err != nil {
		address, _ := netip.ParseAddr(remote)
		return address.Unmap().WithZone("")
	}
	return peer.Addr().Unmap().WithZone("")
}

// isSocket tells whether remote is how net/http calls the peer of a unix socket: by its socket's
// path, or @ and a name, if it has one.
func isSocket(remote string) bool {
	return remote == "" || remote[0] == '@' || remote[0] == '/'
}

// parseNetwork reads a network, or an address as a network of one. Its error continues a sentence
// about text.
func parseNetwork(text string) (netip.Prefix, error) {
	network, err := netip.ParsePrefix(text)
	if address, e := netip.ParseAddr(text); e == nil && address.Zone() == "" {
		network, err = netip.PrefixFrom(address, address.BitLen()), nil
	}
	if err != nil {
		return netip.Prefix{}, errors.New("is no network; write one as 10.0.0.0/8, 2001:db8::/32 or 192.0.2.1, or unix")
	}
	if network.Addr().Is4In6() && network.Bits() >= 96 {
		network = netip.PrefixFrom(network.Addr().Unmap(), network.Bits()-96)
	}
	if network.Bits() == 0 {
		return netip.Prefix{}, errors.New("trusts everybody to be anybody; write the networks of your proxies")
	}
	if network != network.Masked() {
		return netip.Prefix{}, fmt.Errorf("is an address within a network; write %s or %s", network.Masked(), network.Addr())
	}
	return network, nil
}
