package service

// A connectionBudget is how many connections of each kind may be open at once. It leaves file
// descriptors for the store, files and health checks. Otherwise clients could use all descriptors,
// and /livez could not respond.
//
// callers is the number for each listener that decides for callers, such as those of the check API.
type connectionBudget struct{ clients, upstream, callers, admin int64 }

// maxReserved is the most descriptors that are reserved for other uses than the connections of
// clients, callers and the upstream. With few descriptors, a quarter of them is reserved.
const maxReserved = 256

// minAdmin is how many connections the admin address has at least, so that it can answer probes
// beside other requests.
const minAdmin = 8

// newConnectionBudget divides the descriptors that the process may open. The clients of the proxy,
// the upstream, and the callers of each listener get equal shares.
func newConnectionBudget(descriptors, maxConnections int64, hasProxy bool, callerListeners int) connectionBudget {
	reserved := min(descriptors/4, maxReserved)
	shares := int64(callerListeners)
	if hasProxy {
		shares += 2 // for clients and for the upstream
	}
	share := max((descriptors-reserved)/max(shares, 1), 1)
	b := connectionBudget{admin: max(reserved/4, minAdmin)} // a part of reserved
	if hasProxy {
		b.clients, b.upstream = min(maxConnections, share), share
	}
	if callerListeners > 0 {
		b.callers = min(maxConnections, share)
	}
	return b
}
