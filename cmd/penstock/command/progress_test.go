package command

import (
	"bytes"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestProgressIsShownAndCleared(t *testing.T) {
	for total, want := range map[int64]string{
		0:          "\r\x1b[K12.3 MB read\r\x1b[K12.3 MB read\r\x1b[K",
		24_600_000: "\r\x1b[K12.3 MB of 24.6 MB (50 %) read\r\x1b[K12.3 MB of 24.6 MB (50 %) read\r\x1b[K",
	} {
		synctest.Test(t, func(t *testing.T) {
			var out bytes.Buffer
			show, hide := progressTo(&out)
			for range 12 {
				time.Sleep(100 * time.Millisecond)
				show(12_300_000, total)
			}
			hide()
			if out.String() != want {
				t.Errorf("the terminal got %q; want %q", &out, want)
			}
		})
	}
}

// TestProgressIsForTerminals: a file or a pipe as standard error gets no progress.
func TestProgressIsForTerminals(t *testing.T) {
	log := writeFile(t, "access.log", strings.Repeat(logLine("192.0.2.1", "07", "/a"), 3))
	if code, _, stderr := command("suggest", log); code != exitOK || stderr != "" {
		t.Errorf("exit status %d, and standard error is %q; want nothing there", code, stderr)
	}
}
