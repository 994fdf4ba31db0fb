package syntax

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"

	"github.com/penstock/penstock/internal/testing/effort"
)

func TestKeysOfAddressesAreAsDocumented(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		address          string
		prefix4, prefix6 int // in bits; 0 means the default
		want             string
	}{
		{address: "192.0.2.1", want: "192.0.2.1"},
		{address: "192.0.2.1", prefix4: 32, prefix6: 64, want: "192.0.2.1"},
		{address: "192.0.2.1", prefix4: 24, prefix6: 64, want: "192.0.2.0/24"},
		{address: "192.0.2.255", prefix4: 31, want: "192.0.2.254/31"},
		{address: "192.0.2.1", prefix4: 1, want: "128.0.0.0/1"},
		{address: "192.0.2.1", prefix4: 33, want: "192.0.2.1"},
		{address: "192.0.2.1", prefix4: -1, want: "192.0.2.1"},
		{address: "::ffff:192.0.2.1", want: "192.0.2.1"},
		{address: "::ffff:192.0.2.1", prefix4: 24, prefix6: 56, want: "192.0.2.0/24"},
		{address: "::ffff:192.0.2.1%eth0", want: "192.0.2.1"},
		{address: "64:ff9b::192.0.2.1", want: "192.0.2.1"},
		{address: "64:ff9b::192.0.2.1%eth0", want: "192.0.2.1"},
		{address: "64:ff9b:0:0:0:1:c000:201", want: "64:ff9b::/64"},
		{address: "2001:db8:1:2:3:4:5:6", want: "2001:db8:1:2::/64"},
		{address: "2001:db8:1:2:3:4:5:6", prefix6: 56, want: "2001:db8:1::/56"},
		{address: "2001:db8:1:2:3:4:5:6", prefix6: 48, want: "2001:db8:1::/48"},
		{address: "2001:db8:1:2:3:4:5:6", prefix6: 128, want: "2001:db8:1:2:3:4:5:6"},
		{address: "2001:db8:1:2:3:4:5:6", prefix6: 129, want: "2001:db8:1:2::/64"},
		{address: "2001:db8:1:2:3:4:5:6", prefix6: -1, want: "2001:db8:1:2::/64"},
		{address: "2001:0DB8:0:0:FFFF::", prefix6: 127, want: "2001:db8:0:0:ffff::/127"},
		{address: "fe80::1%eth0", want: "fe80::/64"},
		{address: "fe80::1%eth0", prefix6: 128, want: "fe80::1"},
		{address: "::1", want: "::/64"},
		{address: "::192.0.2.1", want: "::/64"},
		{address: "", want: ""},
	} {
		a, _ := netip.ParseAddr(row.address)
		if got := AddressText(a, row.prefix4, row.prefix6); got != row.want {
			t.Errorf("%s with prefixes %d and %d has the key %q; want %q", row.address, row.prefix4, row.prefix6, got, row.want)
		}
		if got := AppendAddress([]byte("ip="), a, row.prefix4, row.prefix6); string(got) != "ip="+row.want {
			t.Errorf("%s is appended as %q; want %q after the prefix", row.address, got, row.want)
		}
	}
}

// forms returns texts that all stand for one address: short, in full, in upper case, with an IPv4
// tail, or with a zone.
func forms(a netip.Addr) (texts []string) {
	if a.Is4() {
		b := a.As4()
		texts = append(texts, a.String())
		for _, prefix := range []string{"::ffff:", "0:0:0:0:0:ffff:", "0::FFFF:", "64:ff9b::", "0064:ff9b:0::0:"} {
			texts = append(texts, prefix+a.String(), fmt.Sprintf("%s%x%02x:%x%02x", prefix, b[0], b[1], b[2], b[3]))
		}
	} else {
		b := a.As16()
		groups := make([]string, 8)
		for i := range groups {
			groups[i] = fmt.Sprintf("%x", uint16(b[2*i])<<8|uint16(b[2*i+1]))
		}
		tail := netip.AddrFrom4([4]byte(b[12:])).String()
		texts = append(texts, a.String(), a.StringExpanded(), strings.Join(groups, ":"), strings.Join(groups[:6], ":")+":"+tail)
	}
	for _, text := range texts {
		texts = append(texts, strings.ToUpper(text))
		if strings.Contains(text, ":") {
			texts = append(texts, text+"%eth0")
		}
	}
	return texts
}

func TestAllFormsOfAnAddressHaveOneKey(t *testing.T) {
	t.Parallel()
	seed := effort.Seed()
	r := rand.New(rand.NewPCG(seed, 0))
	n := 0
	for i := range 2000 {
		var b [16]byte
		for j := range b {
			b[j] = byte(r.Uint32()) * byte(r.IntN(2)) // half of the bytes are zero, so there are forms with ::
		}
		a := netip.AddrFrom16(b)
		if i%2 == 0 {
			a = netip.AddrFrom4([4]byte(b[:]))
		}
		if a.Is4In6() || nat64.Contains(a) {
			continue
		}
		prefix4, prefix6 := 1+r.IntN(32), 1+r.IntN(128)
		want := AddressText(a, prefix4, prefix6)
		for _, text := range forms(a) {
			form, err := netip.ParseAddr(text)
			if err != nil {
				t.Fatal(err)
			}
			if got := AddressText(form, prefix4, prefix6); got != want {
				t.Fatalf("%s with prefixes %d and %d has the key %q, and its form %s has %q; want one key (seed %d)", a, prefix4, prefix6, want, text, got, seed)
			}
			n++
		}
	}
	t.Logf("counted: %d forms of addresses", n)
}

func TestAddressesOfOneNetworkShareAKey(t *testing.T) {
	t.Parallel()
	seed := effort.Seed()
	r := rand.New(rand.NewPCG(seed, 0))
	seen := make(map[string]netip.Addr) // by key: an IPv4 address, or the first address of an IPv6 network
	for range 100_000 {
		v := r.Uint32()
		a := netip.AddrFrom4([4]byte{byte(v >> 24), byte(v >> 16), byte(v >> 8), byte(v)})
		if other, ok := seen[AddressText(a, 0, 0)]; ok && other != a {
			t.Fatalf("the addresses %s and %s have one key; want two keys (seed %d)", a, other, seed)
		}
		seen[AddressText(a, 0, 0)] = a
	}
	ipv4 := len(seen)
	for range 20_000 {
		var b [16]byte
		for j := range b {
			b[j] = byte(r.Uint32())
		}
		a := netip.AddrFrom16(b)
		for j := 8; j < 16; j++ { // the bytes after the /64 prefix
			b[j] = byte(r.Uint32())
		}
		if neighbor := netip.AddrFrom16(b); AddressText(a, 0, 0) != AddressText(neighbor, 0, 0) {
			t.Fatalf("%s and %s are in one /64 network and have two keys; want one key (seed %d)", a, neighbor, seed)
		}
		if other, ok := seen[AddressText(a, 0, 0)]; ok && other != netip.PrefixFrom(a, 64).Masked().Addr() {
			t.Fatalf("%s and the address or network of %s have one key; want two keys (seed %d)", a, other, seed)
		}
		seen[AddressText(a, 0, 0)] = netip.PrefixFrom(a, 64).Masked().Addr()
		b[r.IntN(8)] ^= 1 << r.IntN(8) // one bit of the /64 prefix
		if other := netip.AddrFrom16(b); AddressText(a, 0, 0) == AddressText(other, 0, 0) {
			t.Fatalf("%s and %s are in different /64 networks and have one key; want two keys (seed %d)", a, other, seed)
		}
	}
	t.Logf("counted: %d addresses and networks, each with its own key (%d of IPv4, seed %d)", len(seen), ipv4, seed)
}

func BenchmarkAppendAddress(b *testing.B) {
	for _, text := range []string{"192.0.2.1", "::ffff:192.0.2.1", "2001:db8:1:2:3:4:5:6"} {
		b.Run(text, func(b *testing.B) {
			a := netip.MustParseAddr(text)
			buffer := make([]byte, 0, 64)
			b.ReportAllocs()
			for b.Loop() {
				buffer = AppendAddress(buffer[:0], a, 0, 0)
			}
		})
	}
}
