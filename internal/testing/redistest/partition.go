package redistest

import (
	"fmt"
	"slices"
)

// A partition is made by proxies, so it needs neither root rights nor a network namespace. A proxy
// recognizes servers and clients by their source addresses. So each server of a proxied group has a
// loopback address of its own, and so has each client that a test treats differently.

// sourceOf returns the source address of the server with this number.
func sourceOf(number int) string { return fmt.Sprintf("127.0.1.%d", number+1) }

// Partition splits a proxied cluster into two sides. Side A has the given nodes and clientsA. Side
// B has all other nodes and clientsB. The strings are the source addresses of clients: 127.0.0.1
// unless their dialer sets another one. No traffic passes between the sides until Heal. Connections
// hang, as in [Proxy.Block].
func (c *Cluster) Partition(nodes []*Server, clientsA, clientsB []string) {
	for i, n := range c.Nodes {
		isInA := slices.Contains(nodes, n)
		var cut []string
		for _, other := range c.Nodes {
			if slices.Contains(nodes, other) != isInA {
				cut = append(cut, other.Source)
			}
		}
		c.busProxies[i].Block(cut...)
		if isInA {
			c.proxies[i].Block(append(cut, clientsB...)...)
		} else {
			c.proxies[i].Block(append(cut, clientsA...)...)
		}
	}
}

// Heal ends the partition.
func (c *Cluster) Heal() {
	for _, p := range append(slices.Clone(c.proxies), c.busProxies...) {
		p.Block()
	}
}
