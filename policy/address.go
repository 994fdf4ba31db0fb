package policy

import "net/netip"

// AddressText is the text under which an address pays; see AppendAddress.
func AddressText(a netip.Addr, prefix4, prefix6 int) string {
	var room [len("2001:0db8:0000:0000:0000:0000:0000:0000/128")]byte
	return string(AppendAddress(room[:0], a, prefix4, prefix6))
}

// AppendAddress appends the text under which an address pays: that of the network of prefix4 or
// prefix6 bits around it, as in 198.51.100.0/24 and 2001:db8::/64, or the address itself if the
// prefix is all of it. A prefix out of range, as 0, is the default: 32 bits of IPv4, and 64 of
// IPv6, which is what one subscriber has at the least.
//
// Every form of an address has one text: IPv6 that stands for IPv4 (::ffff:192.0.2.1, and
// 64:ff9b::192.0.2.1 of NAT64) is IPv4, and zones are dropped. An invalid address has none.
func AppendAddress(b []byte, a netip.Addr, prefix4, prefix6 int) []byte {
	if !a.IsValid() {
		return b
	}
	a = folded(a)
	bits, fallback := prefix4, 32
	if a.Is6() {
		bits, fallback = prefix6, 64
	}
	if bits <= 0 || bits > a.BitLen() {
		bits = fallback
	}
	if bits == a.BitLen() {
		return a.AppendTo(b)
	}
	return netip.PrefixFrom(a, bits).Masked().AppendTo(b)
}

// folded is the one form of an address.
func folded(a netip.Addr) netip.Addr {
	a = a.Unmap().WithZone("")
	if nat64.Contains(a) {
		bytes := a.As16()
		a = netip.AddrFrom4([4]byte(bytes[12:]))
	}
	return a
}

// nat64 are the addresses by which IPv6 hosts see those of IPv4 (RFC 6052).
var nat64 = netip.MustParsePrefix("64:ff9b::/96")
