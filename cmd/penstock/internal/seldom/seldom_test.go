package seldom

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestLineIsDueOnceInAnInterval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		line := Line{Every: time.Minute}
		logged, told := 0, int64(0)
		for range 3*60 + 1 { // one a second, for three minutes
			if held, due := line.Due(); due {
				logged++
				told += held
			}
			time.Sleep(time.Second)
		}
		if logged != 4 || told != 177 {
			t.Errorf("of 181 lines %d were logged and %d told of; want 4 and 177", logged, told)
		}
	})
}
