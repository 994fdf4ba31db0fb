package service

// places are how many connections may be open at once. They leave descriptors for the store, for
// files and for health checks: otherwise clients could take all of them, and /livez would not
// answer.
type places struct{ clients, upstream, admin int64 }

// maxReserved is how many descriptors are kept free of clients and of the upstream; at most a
// quarter of all.
const maxReserved = 256

// divide divides the descriptors that the process may open. Each client may need a connection to
// the upstream.
func divide(descriptors, maxConnections int64) places {
	reserved := min(descriptors/4, maxReserved)
	half := max((descriptors-reserved)/2, 1)
	return places{clients: min(maxConnections, half), upstream: half, admin: max(reserved/4, 1)}
}
