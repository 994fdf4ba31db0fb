package guard

// LeaseStats count what the limits that are leased have drawn and spent. They are zero if none may be.
func (g *Guarded) LeaseStats() LeaseStats {
	if g.lease == nil {
		return LeaseStats{}
	}
	return g.lease.Stats()
}
