package resplimit

import (
	"testing"
	"unsafe"
)

// Options.MaxConnections documents how much memory a connection takes.
func TestAConnectionTakesWhatIsDocumented(t *testing.T) {
	input, keys, replies := maxBuffer, maxBuffer, maxReplyBytes+maxBulk
	if decisions := maxJobs * int(unsafe.Sizeof(job{})); decisions > 96<<10 || input+keys+decisions+replies > 250<<10 {
		t.Errorf("a connection takes %d bytes of input, %d of keys, %d of decisions and %d of replies; want at most 96 KB of decisions, and at most 250 KB together", input, keys, decisions, replies)
	}
}
