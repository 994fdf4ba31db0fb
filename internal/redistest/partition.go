package redistest

import (
	"fmt"
	"slices"
)

// A partition needs no rights and no network of its own: every server of a
// proxied group, and every client that wants to be told apart, speaks from
// another loopback address, by which the proxies know it.

// sourceOf is the address from which the server of this number speaks.
func sourceOf(number int) string { return fmt.Sprintf("127.0.1.%d", number+1) }

// Part parts the nodes, and the clients that speak from the addresses
// given, from all other nodes and clients of a proxied cluster. Clients speak
// from 127.0.0.1 unless their dialer says otherwise; those on the far side must
// be listed in far. The connections hang, as [Proxy.Part] says, until Heal.
func (c *Cluster) Part(nodes []*Server, clients, far []string) {
	for i, n := range c.Nodes {
		near := slices.Contains(nodes, n)
		var cut []string
		for _, other := range c.Nodes {
			if slices.Contains(nodes, other) != near {
				cut = append(cut, other.Source)
			}
		}
		c.buses[i].Part(cut...)
		if near {
			c.proxies[i].Part(append(cut, far...)...)
		} else {
			c.proxies[i].Part(append(cut, clients...)...)
		}
	}
}

// Heal ends the parting.
func (c *Cluster) Heal() {
	for _, p := range append(slices.Clone(c.proxies), c.buses...) {
		p.Part()
	}
}
