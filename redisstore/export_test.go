package redisstore

// Waiting returns how many callers wait for a script.
func Waiting(s *Store) int { return s.single.Waiting() + s.bySlot.Waiting() }

// DisableCoalescing makes a store decide each batch in a script of its own.
func DisableCoalescing(s *Store) *Store {
	s.isUncoalesced = true
	return s
}

const MaxRefunding = maxRefunding

// Refunding returns how many batches are being refunded.
func Refunding(s *Store) int64 { return s.refunding.Load() }
