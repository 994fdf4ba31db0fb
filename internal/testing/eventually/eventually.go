// Package eventually is for tests that wait for something that another goroutine or process does.
package eventually

import (
	"testing"
	"time"
)

const (
	timeout  = time.Minute // so long that only a test that hangs reaches it, also on a busy machine
	minPause = time.Millisecond
	maxPause = 50 * time.Millisecond
)

// pause waits before the next attempt, for a twentieth of the time since start.
func pause(start time.Time) {
	time.Sleep(min(max(time.Since(start)/20, minPause), maxPause))
}

// True waits until the condition is true, and ends the test if that takes longer than a minute. The
// text event describes it, such as "the server accepts connections".
func True(t testing.TB, event string, condition func() bool) {
	t.Helper()
	for start := time.Now(); !condition(); pause(start) {
		if time.Since(start) > timeout {
			t.Fatalf("the test waited %v, without success, for: %s", timeout, event)
		}
	}
}

// NoError calls check until it returns no error. If that takes longer than a minute, NoError ends
// the test with the last error of check.
func NoError(t testing.TB, check func() error) {
	t.Helper()
	start := time.Now()
	for err := check(); err != nil; err = check() {
		if time.Since(start) > timeout {
			t.Fatalf("after %v, there is still this error: %v", timeout, err)
		}
		pause(start)
	}
}
