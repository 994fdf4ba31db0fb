package redisstore

// Waiting returns how many callers wait for a script.
func Waiting(s *Store) int { return s.serverCoalescer.Waiting() + s.slotCoalescers.Waiting() }

// DisableCoalescing makes a store decide each batch in a script of its own.
func DisableCoalescing(s *Store) *Store {
	s.isUncoalesced = true
	return s
}

const MaxOutliving = maxOutliving

// Outliving returns how many batches are still in flight after their callers have left.
func Outliving(s *Store) int64 { return s.outliving.Load() }
