package revproxy

import (
	"net/http"
	"net/netip"
	"sync"
)

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

// release ends a request that take has counted.
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
