package redisstore

// Waiting is how many callers wait for a script.
func Waiting(s *Store) (n int) {
	count := func(g *gatherer) {
		g.mu.Lock()
		defer g.mu.Unlock()
		for _, b := range g.queue {
			n += b.callers
		}
	}
	count(&s.whole)
	if list := s.parts.list.Load(); list != nil {
		for i := range list {
			if g := list[i].Load(); g != nil {
				count(g)
			}
		}
	}
	return n
}

// PrefixOf is the prefix that a store was made with.
func PrefixOf(s *Store) string { return s.prefix[:len(s.prefix)-len(schemaVersion)] }

const MaxGivingBack = maxGivingBack
