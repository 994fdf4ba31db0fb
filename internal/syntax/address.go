package syntax

import "net/netip"

func AddressText(a netip.Addr, prefix4, prefix6 int) string {
	var buffer [len("2001:0db8:0000:0000:0000:0000:0000:0000/128")]byte
	return string(AppendAddress(buffer[:0], a, prefix4, prefix6))
}

// AppendAddress appends the text that stands for an address in keys. The text is the network of
// prefix4 or prefix6 bits around the address, such as 198.51.100.0/24 or 2001:db8::/64. With a
// prefix of 32 bits for IPv4, or 128 for IPv6, the text is the address itself. A prefix out of
// range, such as 0, means the default: 32 bits for IPv4, and 64 for IPv6. The default for IPv6 is
// 64 because one subscriber has at least a /64.
//
// All forms of an address have the same text. IPv6 addresses that stand for IPv4 (::ffff:192.0.2.1,
// and 64:ff9b::192.0.2.1 of NAT64) are written as IPv4. Zones are dropped. An invalid address has
// no text.
func AppendAddress(b []byte, a netip.Addr, prefix4, prefix6 int) []byte {
	if !a.IsValid() {
		return b
	}
	a = FoldAddress(a)
	bits, defaultBits := prefix4, 32
	if a.Is6() {
		bits, defaultBits = prefix6, 64
	}
	if bits <= 0 || bits > a.BitLen() {
		bits = defaultBits
	}
	if bits == a.BitLen() {
		return a.AppendTo(b)
	}
	return netip.PrefixFrom(a, bits).Masked().AppendTo(b)
}

// FoldAddress converts all forms of an address to one: IPv4 if possible, and without a zone.
func FoldAddress(a netip.Addr) netip.Addr {
	a = a.Unmap().WithZone("")
	if nat64.Contains(a) {
		bytes := a.As16()
		a = netip.AddrFrom4([4]byte(bytes[12:]))
	}
	return a
}

// nat64 is the range of IPv6 addresses that stand for IPv4 hosts (RFC 6052).
var nat64 = netip.MustParsePrefix("64:ff9b::/96")

// ParseNetwork reads an address, or a network in CIDR notation whose bits after the prefix are
// zero. IPv4 in IPv6 becomes IPv4. If a network breaks these rules, ParseNetwork returns it with
// false. If the text is no network, the result is not valid.
func ParseNetwork(text string) (netip.Prefix, bool) {
	if a, err := netip.ParseAddr(text); err == nil && a.Zone() == "" {
		a = a.Unmap()
		return netip.PrefixFrom(a, a.BitLen()), true
	}
	p, err := netip.ParsePrefix(text)
	if err != nil {
		return p, false
	}
	if p.Addr().Is4In6() {
		const bitsBeforeIPv4 = 96
		if p.Bits() < bitsBeforeIPv4 {
			return p, false
		}
		p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-bitsBeforeIPv4)
	}
	return p, p == p.Masked()
}
