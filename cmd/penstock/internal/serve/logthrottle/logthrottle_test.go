package logthrottle

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestLineIsDueOnceInAnInterval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		line := Line{Every: time.Minute}
		logged, skipped := 0, int64(0)
		for range 3*60 + 1 { // one a second, for three minutes
			if n, isDue := line.Due(); isDue {
				logged++
				skipped += n
			}
			time.Sleep(time.Second)
		}
		if logged != 4 || skipped != 177 {
			t.Errorf("of 181 lines %d were logged and %d counted as skipped; want 4 and 177", logged, skipped)
		}
	})
}
