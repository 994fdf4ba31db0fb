// Package clientaddress finds the address of a client behind proxies.
package clientaddress

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/penstock/penstock/internal/syntax"
)

// Proxies is the set of proxies that are trusted to name their clients. The zero value trusts none.
//
// If the peer of a connection is not a trusted proxy, the client is the peer. If the peer is a
// trusted proxy, the client is the address that the proxy names in a header.
//
// X-Forwarded-For and Forwarded are lists. Each proxy appends the address of its own peer. So the
// list is read from the right. The first address that is not trusted is the client: that client may
// have forged everything to the left of its address. If all addresses are trusted, the leftmost is
// the client. Elements that are read before the client must be addresses. If one is not, such as
// "unknown" or a name like _hidden, the peer is the client. The peer is also the client if the
// first maxHops addresses or maxListBytes bytes from the right do not contain it.
//
// Any other header must have one line with one address. If it does not, the peer is the client.
// Proxies must overwrite such a header, because a client can send it too.
type Proxies struct {
	networks     []netip.Prefix
	canTrustUnix bool   // peers on a unix socket are trusted
	header       string // the key of the header
	form         form
}

// A form is how a header names addresses.
type form uint8

const (
	formSingle       form = iota // one address
	formForwardedFor             // a list, as in X-Forwarded-For
	formForwarded                // a list, as in Forwarded
)

// At most this much of a list is read.
const (
	maxHops      = 32      // addresses
	maxListBytes = 8 << 10 // including commas
)

// New returns Proxies that trust these networks to name the client in the header. A network is
// written "10.0.0.0/8", "2001:db8::1", or "unix" for all peers on a unix socket. New ignores texts
// that ParseNetwork rejects. The header is written like the keys of the maps that Client reads.
func New(trusted []string, header string) *Proxies {
	p := &Proxies{header: header}
	switch strings.ToLower(header) {
	case "x-forwarded-for":
		p.form = formForwardedFor
	case "forwarded":
		p.form = formForwarded
	}
	for _, text := range trusted {
		if text == "unix" {
			p.canTrustUnix = true
		} else if network, err := ParseNetwork(text); err == nil {
			p.networks = append(p.networks, network)
		}
	}
	return p
}

type Peer struct {
	Address  netip.Addr // without a zone, and never IPv4-mapped; invalid if it has none
	IsSocket bool       // the connection is a unix socket
}

// PeerOf parses a peer in the form of Request.RemoteAddr in net/http. A peer on a unix socket is
// the path of the socket, "@" with a name, or the empty string. Any other peer is an address with a
// port. The port is missing if another handler has replaced RemoteAddr by an address.
func PeerOf(remote string) Peer {
	if remote == "" || remote[0] == '@' || remote[0] == '/' {
		return Peer{IsSocket: true}
	}
	if peer, err := netip.ParseAddrPort(remote); err == nil {
		return Peer{Address: normalize(peer.Addr())}
	}
	address, _ := netip.ParseAddr(remote)
	return Peer{Address: normalize(address)}
}

func PeerAt(remote net.Addr) Peer {
	switch remote := remote.(type) {
	case nil:
		return Peer{}
	case *net.TCPAddr:
		return Peer{Address: normalize(remote.AddrPort().Addr())}
	case *net.UnixAddr:
		return Peer{IsSocket: true}
	}
	return PeerOf(remote.String())
}

// normalize returns an address in the form in which addresses are compared.
func normalize(a netip.Addr) netip.Addr { return a.Unmap().WithZone("") }

// Client returns the address of the client behind a peer that sent these headers. The address has
// no zone, and is never IPv4-mapped. The address is invalid if the client is a peer without an
// address, as on a unix socket.
func (p *Proxies) Client(peer Peer, headers map[string][]string) netip.Addr {
	if !p.Trusts(peer) {
		return peer.Address
	}
	var client netip.Addr
	switch lines := headers[p.header]; {
	case p.form == formForwardedFor:
		client = p.findClient(lines, lastComma, parseNode)
	case p.form == formForwarded:
		client = p.findClient(lines, lastUnquotedComma, parseForwarded)
	case len(lines) == 1 && len(lines[0]) <= maxListBytes:
		client = parseNode(lines[0])
	}
	if !client.IsValid() {
		return peer.Address
	}
	return client
}

func (p *Proxies) Trusts(peer Peer) bool {
	return peer.IsSocket && p.canTrustUnix || p.trustsAddress(peer.Address)
}

func (p *Proxies) trustsAddress(address netip.Addr) bool {
	return slices.ContainsFunc(p.networks, func(network netip.Prefix) bool { return network.Contains(address) })
}

// findClient reads a list from the right, and returns the first address that is not trusted. If all
// are trusted, it returns the leftmost. If it reads a malformed element or exceeds a bound, it
// returns the zero Addr.
func (p *Proxies) findClient(lines []string, findComma func(string) int, parse func(string) netip.Addr) (hop netip.Addr) {
	hops, bytes := 0, 0
	for _, line := range slices.Backward(lines) {
		rest := line[max(0, len(line)-(maxListBytes-bytes)):]
		isWhole := len(rest) == len(line)
		bytes += len(line)
		for hasMore := true; hasMore; {
			comma := findComma(rest)
			hasMore = comma >= 0
			isTruncated := !hasMore && !isWhole // the leftmost element of a line that is too long
			if hops++; hops > maxHops || isTruncated {
				return netip.Addr{}
			}
			hop = parse(rest[comma+1:])
			if !hop.IsValid() || !p.trustsAddress(hop) {
				return hop
			}
			rest = rest[:max(0, comma)]
		}
	}
	return hop
}

func lastComma(list string) int { return strings.LastIndexByte(list, ',') }

// lastUnquotedComma returns the last comma that is not in a quoted string. The list is read from
// the right. In a list read from the left, a client could hide the elements of proxies behind a
// quote without an end. A quote after a backslash is a part of the quoted string.
func lastUnquotedComma(list string) int {
	isQuoted := false
	for i := len(list) - 1; i >= 0; i-- {
		switch {
		case list[i] == '"' && !(isQuoted && strings.HasSuffix(list[:i], `\`)):
			isQuoted = !isQuoted
		case list[i] == ',' && !isQuoted:
			return i
		}
	}
	return -1
}

// parseForwarded parses the address in an element of Forwarded, such as
// for="[2001:db8::1]:80";proto=https (RFC 7239). parseForwarded accepts spaces around a parameter,
// and addresses without the quotes that they need. The result is invalid if there is no address or
// the element is malformed.
func parseForwarded(element string) (address netip.Addr) {
	hasFor := false
	for element = strings.TrimLeft(element, "; \t"); element != ""; element = strings.TrimLeft(element, "; \t") {
		name, after, _ := strings.Cut(element, "=")
		value, rest, ok := cutValue(after)
		if !ok || name == "" || !isName(name) {
			return netip.Addr{}
		}
		if strings.EqualFold(name, "for") {
			if hasFor {
				return netip.Addr{}
			}
			hasFor, address = true, parseNode(value)
		}
		element = rest
	}
	return address
}

// cutValue cuts the value at the start of text. ok is false if there is no value, or if something
// other than a semicolon follows it. If ok is true, the rest is empty or begins with a semicolon.
func cutValue(text string) (value, rest string, ok bool) {
	if quoted, isQuoted := strings.CutPrefix(text, `"`); isQuoted {
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

// cutQuoted cuts a string at the quote that ends it. Escapes stay in the value: no address needs
// any.
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

// parseNode parses an address, which may have a port, brackets and quotes: 192.0.2.1, 192.0.2.1:80,
// 2001:db8::1, "[2001:db8::1]:80".
func parseNode(text string) netip.Addr {
	text = strings.Trim(text, " \t")
	if n := len(text); n >= 2 && text[0] == '"' && text[n-1] == '"' {
		text = text[1 : n-1]
	}
	host, port, isBracketed := text, "", false
	switch {
	case strings.HasPrefix(text, "["):
		if host, port, isBracketed = strings.Cut(text[1:], "]"); !isBracketed {
			return netip.Addr{}
		}
	case strings.Count(text, ":") == 1:
		i := strings.IndexByte(text, ':')
		host, port = text[:i], text[i:]
	}
	address, err := netip.ParseAddr(host)
	isBracketedIPv4 := isBracketed && address.Is4() // only IPv6 addresses may have brackets
	hasBadPort := port != "" && !isPort(port)
	if err != nil || isBracketedIPv4 || hasBadPort || !isName(address.Zone()) {
		return netip.Addr{}
	}
	return normalize(address)
}

// isPort reports whether text is a colon and a port. The port may be obfuscated as in RFC 7239,
// such as :_name.
func isPort(text string) bool {
	port, ok := strings.CutPrefix(text, ":")
	if hidden, isHidden := strings.CutPrefix(port, "_"); isHidden {
		return ok && hidden != "" && isName(hidden)
	}
	_, err := strconv.ParseUint(port, 10, 16)
	return ok && err == nil
}

// isName reports whether text has only characters that are allowed in names of parameters, zones
// and obfuscated ports.
func isName(text string) bool {
	for i := range len(text) {
		if c := text[i]; !syntax.IsAlphanumeric(rune(c)) && strings.IndexByte("-._~%", c) < 0 {
			return false
		}
	}
	return true
}

// ParseNetwork parses a network. It reads a single address as a network of one address. The error
// has no subject, as in "is not a network": the caller writes the text before it.
func ParseNetwork(text string) (netip.Prefix, error) {
	network, _ := syntax.ParseNetwork(text)
	if !network.IsValid() {
		return netip.Prefix{}, errors.New("is not a network; write one such as 10.0.0.0/8, 2001:db8::/32 or 192.0.2.1, or unix")
	}
	if network.Bits() == 0 {
		return netip.Prefix{}, errors.New("would let every client choose its address; write the networks of your proxies")
	}
	if network != network.Masked() {
		return netip.Prefix{}, fmt.Errorf("is an address within a network; write %s or %s", network.Masked(), network.Addr())
	}
	return network, nil
}
