package core

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock/cmd/penstock/internal/testing/logbuffer"
)

// Late returns are logged at most every 10 s, and each line has the slots since the last one.
func TestLateReturnsAreLoggedRarely(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := new(logbuffer.Buffer)
		c := &Core{Options: Options{Log: log.Logger()}}
		report := c.returnedLate()
		for range 21 { // one each second
			report(2)
			time.Sleep(time.Second)
		}
		const line = "slots of in_flight limits were returned late"
		if got := len(log.Lines(line)); got != 3 || log.Lines(line, "slots=2") == nil || len(log.Lines(line, "slots=20")) != 2 {
			t.Errorf("21 returns of 2 slots gave %d lines:\n%s\nwant one of 2 slots, and two of 20", got, log)
		}
	})
}
