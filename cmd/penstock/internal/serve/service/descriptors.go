package service

// A connectionBudget is how many connections of each kind may be open at the same time. It leaves
// file descriptors for the store, files and health checks. Otherwise clients could use all
// descriptors, and /livez could not respond. Clients send requests to the proxy; callers are
// programs that get decisions.
type connectionBudget struct {
	clients  int64 // from clients to the proxy
	upstream int64 // from the proxy to the upstream
	callers  int64 // at each listener where callers get decisions, such as the check API
	admin    int64 // at the admin address
}

// maxReserved is the largest number of descriptors that are reserved for other uses than the
// connections of clients, callers and the upstream. With few descriptors, a quarter of them is
// reserved.
const maxReserved = 256

// minAdmin is the smallest number of connections that the admin address may have. It can then
// answer probes beside other requests.
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
