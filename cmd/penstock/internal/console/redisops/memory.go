package redisops

// Memory describes a server's memory.
type Memory struct {
	Used    int64  // bytes
	Max     int64  // bytes; 0: there is no maximum
	Policy  string // maxmemory-policy: what the server does when its memory is full
	Address string // on a Cluster the server's address, else ""
}

// Evicts reports whether the server may delete counters when its memory is full. Then used units
// could be spent again. With the policy noeviction, a full server rejects calls instead, and the
// guards decide.
func (m Memory) Evicts() bool { return m.Max > 0 && m.Policy != "noeviction" }

// WorstMemory returns the memory that most needs attention: that of a server that evicts, or else
// of the fullest server. Without servers it returns the zero value.
func WorstMemory(servers []Server) Memory {
	var worst Memory
	for i, s := range servers {
		if i == 0 || s.Memory.isWorseThan(worst) {
			worst = s.Memory
		}
	}
	return worst
}

// isWorseThan reports whether m needs attention more than another.
func (m Memory) isWorseThan(other Memory) bool {
	if m.Evicts() != other.Evicts() {
		return m.Evicts()
	}
	return m.utilization() > other.utilization()
}

// utilization returns Used divided by Max. It is 0 if there is no maximum.
func (m Memory) utilization() float64 {
	if m.Max == 0 {
		return 0
	}
	return float64(m.Used) / float64(m.Max)
}
