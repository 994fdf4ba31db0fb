package doctor

import (
	"context"
	"fmt"
	"strings"
	"time"
)

const (
	clockReadings  = 20
	clockTolerance = 10 * time.Millisecond  // between servers; at a failover the clock jumps by the difference
	clockSkew      = 100 * time.Millisecond // from this machine's clock
	clockFault     = time.Second            // a larger difference of either kind is a fault
)

// An offset is how far a server's clock is ahead of this machine's clock, ± margin.
type offset struct {
	by, margin time.Duration
	isKnown    bool
}

// readClock reads a server's clock several times, and keeps the reading with the shortest round
// trip. It returns the error of the first reading that fails.
func (d *doctor) readClock(ctx context.Context, s *server) error {
	for range clockReadings {
		sent := time.Now()
		reply, err := d.do(ctx, s, "TIME").AsStrSlice()
		trip := time.Since(sent)
		if err != nil {
			return err
		}
		var seconds, micros int64
		if _, err := fmt.Sscan(strings.Join(reply, " "), &seconds, &micros); err != nil {
			return fmt.Errorf("TIME replied %.40q", reply)
		}
		if !s.offset.isKnown || trip/2 < s.offset.margin {
			s.offset = offset{by: time.Unix(seconds, micros*1000).Sub(sent.Add(trip / 2)), margin: trip / 2, isKnown: true}
		}
	}
	return nil
}

func (d *doctor) checkClocks(ctx context.Context) {
	var earliest, latest *server // the servers whose clocks are furthest behind and ahead
	for _, s := range d.servers {
		if s.client == nil {
			continue
		}
		if err := d.readClock(ctx, s); err != nil && !s.offset.isKnown {
			d.addUnreadable("clock", s, "the clock", "+time", err)
			continue
		}
		d.judgeClock(s)
		if earliest == nil || s.offset.by < earliest.offset.by {
			earliest = s
		}
		if latest == nil || s.offset.by > latest.offset.by {
			latest = s
		}
	}
	if earliest == nil || earliest == latest {
		return
	}
	apart := latest.offset.by - earliest.offset.by
	margin := latest.offset.margin + earliest.offset.margin
	leastApart := apart - margin
	if leastApart < clockTolerance {
		return
	}
	c := Check{Name: "clock", Status: Warning, Summary: fmt.Sprintf("the clocks of %s and %s differ by %v ± %v", latest.address, earliest.address, rounded(apart), rounded(margin)),
		Why: "at a failover the clock jumps by this difference: limits refill early, or stop refilling for up to 5 s", Remedy: "synchronize the servers' clocks, by chrony or another NTP client",
		Facts: map[string]any{"apart_us": apart.Microseconds(), "error_us": margin.Microseconds()}}
	if leastApart >= clockFault {
		c.Status = Failed
	}
	d.add(c)
}

func (d *doctor) judgeClock(s *server) {
	by := s.offset.by.Abs()
	c := Check{Name: "clock", Server: s.address, Status: OK, Facts: map[string]any{"offset_us": s.offset.by.Microseconds(), "error_us": s.offset.margin.Microseconds()}}
	side := "ahead of"
	if s.offset.by < 0 {
		side = "behind"
	}
	c.Summary = fmt.Sprintf("%v ± %v %s this machine's clock", rounded(by), rounded(s.offset.margin), side)
	switch leastApart := by - s.offset.margin; {
	case leastApart >= clockFault:
		c.Status = Failed
	case leastApart >= clockSkew:
		c.Status = Warning
	}
	if c.Status != OK {
		c.Why = "one of the two clocks is wrong; limits use the server's clock, so calendar windows may begin at the wrong time. When the clock is corrected, it jumps"
		c.Remedy = "on both machines: chronyc tracking, or timedatectl"
	}
	d.add(c)
}

// rounded returns a duration rounded to about three digits.
func rounded(d time.Duration) time.Duration {
	switch {
	case d >= time.Second:
		return d.Round(10 * time.Millisecond)
	case d >= time.Millisecond:
		return d.Round(10 * time.Microsecond)
	}
	return d.Round(time.Microsecond)
}
