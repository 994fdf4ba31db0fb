package syntax

import (
	"fmt"
	"net/netip"
	"strings"
)

// CleanHost converts a request's host to the form that is compared: in lower case, without its port
// or a final dot. An IPv6 address has no brackets and the form of netip.Addr.String. CleanHost
// returns false if servers may read the host in different ways.
func CleanHost(host string) (name string, ok bool) {
	port := ""
	if literal, isLiteral := strings.CutPrefix(host, "["); isLiteral {
		name, port, ok = strings.Cut(literal, "]")
		address, err := netip.ParseAddr(name)
		isIPv6 := err == nil && address.Is6() && address.Zone() == ""
		ok = ok && isIPv6 && (port == "" || port[0] == ':')
		name, port = address.String(), strings.TrimPrefix(port, ":")
	} else {
		name, port, _ = strings.Cut(host, ":")
		name = strings.TrimSuffix(name, ".")
		ok = isHostname(name) && (name != "" || host == "")
	}
	return strings.ToLower(name), ok && hasOnly(port, digits)
}

// isHostname reports whether a name has only characters of host names, and no empty part.
func isHostname(name string) bool {
	previous := byte('.')
	for i := range len(name) {
		c := name[i]
		isEmptyPart := c == '.' && previous == '.'
		if isEmptyPart || !IsAlphanumeric(rune(c)) && c != '-' && c != '_' && c != '.' {
			return false
		}
		previous = c
	}
	return previous != '.' || name == ""
}

// MatchesHost reports whether a request's host equals that of a rule, or is below it if the rule's
// host begins with *.
func MatchesHost(pattern, host string) bool {
	if domain, isWildcard := strings.CutPrefix(pattern, "*"); isWildcard {
		return len(host) > len(domain) && strings.HasSuffix(host, domain)
	}
	return pattern == host
}

// ParseHost reads a host of a rule: api.example.com, or *.example.com for all hosts below it. The
// result has the form that CleanHost returns. The error says how to write it.
func ParseHost(text string) (string, error) {
	if address, err := netip.ParseAddr(text); err == nil && address.Is6() {
		text = "[" + text + "]"
	}
	name := strings.TrimPrefix(text, "*.")
	host, ok := CleanHost(name)
	_, port, hasColon := strings.Cut(name[strings.LastIndexByte(name, ']')+1:], ":")
	hasPort := hasColon && (ok || host != "" && !strings.Contains(port, "/")) // with a slash, it is a URL
	isWildcardIPv6 := name != text && strings.Contains(host, ":")
	switch {
	case strings.Contains(name, "%") && strings.Contains(name, ":"):
		return "", fmt.Errorf("the host %.60q has a zone, which no request has; remove the part from %% on", text)
	case hasPort:
		return "", fmt.Errorf("the host %.60q has a port; remove it: requests are matched without their port", text)
	case strings.ContainsFunc(name, func(r rune) bool { return r > 0x7f }):
		return "", fmt.Errorf("the host %.60q has letters that no request's host has; write it in punycode, which begins with xn--", text)
	case !ok || host == "" || isWildcardIPv6:
		return "", fmt.Errorf("%.60q is not a host; write api.example.com, or *.example.com for all below it, without scheme and port", text)
	case name != text:
		return "*." + host, nil
	}
	return host, nil
}
