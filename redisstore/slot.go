package redisstore

import "github.com/penstock/penstock/internal/hashslot"

// slots is the number of hash slots of a Cluster.
const slots = hashslot.Slots

func slotOf(key []byte) uint16 { return hashslot.Of(key) }
