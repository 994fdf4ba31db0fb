package service

// A connectionBudget is how many connections may be open at once. It leaves file descriptors for
// the store, files and health checks. Otherwise clients could use all descriptors, and /livez could
// not respond.
type connectionBudget struct{ clients, upstream, admin int64 }

// maxReserved is how many descriptors are reserved, besides those for clients and the upstream. It
// is at most a quarter of all.
const maxReserved = 256

// newConnectionBudget divides the descriptors that the process may open. Each client may need a
// connection to the upstream.
func newConnectionBudget(descriptors, maxConnections int64) connectionBudget {
	reserved := min(descriptors/4, maxReserved)
	half := max((descriptors-reserved)/2, 1)
	return connectionBudget{clients: min(maxConnections, half), upstream: half, admin: max(reserved/4, 1)}
}
