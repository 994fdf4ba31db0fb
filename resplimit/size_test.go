package resplimit

import (
	"testing"
	"unsafe"
)

// Options.MaxConnections documents how much memory a connection takes.
func TestAConnectionTakesWhatIsDocumented(t *testing.T) {
	input, keys, replies := maxBuffer, maxBuffer, maxReply+maxBulk
	if decisions := maxJobs * int(unsafe.Sizeof(job{})); decisions > 96<<10 || input+keys+decisions+replies > 250<<10 {
		t.Errorf("%d bytes of input, %d of keys, %d of decisions and %d of replies; want at most 96 KB of decisions and 250 KB in all", input, keys, decisions, replies)
	}
}
