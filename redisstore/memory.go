package redisstore

// Memory describes a server's memory.
type Memory struct {
	Used   int64  // bytes
	Max    int64  // bytes; 0: it has no bound
	Policy string // maxmemory-policy: what happens when it is full
	Server string // its address, on a Cluster; else ""
}

// Evicts tells whether the server may delete counters. Then used units could be spent again. Only
// the policy noeviction never does: then a full server rejects calls, and the guards decide.
func (m Memory) Evicts() bool { return m.Max > 0 && m.Policy != "noeviction" }

// WorstMemory returns the memory of the server that is most of a problem: one that evicts, or else
// the fullest. Without servers it returns the zero value.
func WorstMemory(servers []Server) Memory {
	var worst Memory
	for i, s := range servers {
		if i == 0 || s.Memory.isWorse(worst) {
			worst = s.Memory
		}
	}
	return worst
}

// isWorse tells whether m is more of a problem than another.
func (m Memory) isWorse(than Memory) bool {
	if m.Evicts() != than.Evicts() {
		return m.Evicts()
	}
	return m.utilization() > than.utilization()
}

// utilization returns the used part of the bound.
func (m Memory) utilization() float64 {
	if m.Max == 0 {
		return 0
	}
	return float64(m.Used) / float64(m.Max)
}
