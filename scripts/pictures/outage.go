package main

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/penstock/penstock/internal/testing/loadaverage"
)

// An outageRecord is the file that "examples/outage -save" writes. It has the seconds of one
// experiment with several limits.
type outageRecord struct {
	loadaverage.Record
	Rate, Burst, Requested, Instances int
	OnFailure                         []string // on_failure of each limit
	Seconds                           []struct {
		At       float64  // end of the second, in seconds since the start
		Admitted []int64  // requests that each limit admitted
		Bounds   []*int64 // of Admitted; nil: any number may pass
	}
	Events []struct {
		At   float64 // seconds since the start
		What string  // such as "Redis is killed"
	}
}

// outage shows what limits admit with each on_failure while Redis is killed, stopped and flushed.
func outage(dir string) (string, error) {
	var r outageRecord
	if err := readJSON(filepath.Join(dir, "outage.json"), &r); err != nil {
		return "", err
	}
	if len(r.Seconds) == 0 || len(r.OnFailure) == 0 {
		return "", errors.New("outage.json has no seconds or no limits; run make outage-data")
	}
	d := &drawing{}
	d.text(24, 34, "h", fmt.Sprintf("An outage, second by second: %d requests/s, a limit of %d/s, %d instances", r.Requested, r.Rate, r.Instances))
	d.text(24, 56, "s muted", "The red lines are the bounds that the documentation states.")
	d.text(24, 76, "s muted", fmt.Sprintf("Measured by examples/outage on %s. %v", r.Date, r.Record))
	const left, width, height, gap = 88., 740., 110., 40. // pixels
	const axisTop = 480.                                  // requests a second
	last := r.Seconds[len(r.Seconds)-1].At
	x := func(at float64) float64 { return left + at*width/last }
	labels := map[string]string{"open": "on_failure: open", "closed": "on_failure: closed", "local": "on_failure: local (default)"}
	for limit, onFailure := range r.OnFailure {
		y0 := 104 + height + float64(limit)*(height+gap)
		y := func(n float64) float64 { return y0 - min(n, axisTop)*height/axisTop }
		for i, e := range r.Events[:max(0, len(r.Events)-1)] {
			if strings.Contains(e.What, "killed") || strings.Contains(e.What, "stopped") {
				end := r.Events[i+1].At
				d.rect(x(e.At), y0-height, x(end)-x(e.At), height, "away")
			}
		}
		d.text(left, y0-height-6, "b s", labels[onFailure])
		for _, n := range []float64{0, 200, 400} {
			d.line(left, y(n), left+width, y(n), "axis")
			d.text(left-8, y(n)+4, "s end muted", num(n))
		}
		var bound [][2]float64 // points of the bound's line, which has gaps where there is no bound
		drawBound := func() {
			if len(bound) > 0 {
				d.path("bound", bound)
			}
			bound = nil
		}
		begin := 0. // of the second
		for _, s := range r.Seconds {
			if admitted := float64(s.Admitted[limit]); admitted > 0 {
				d.rect(x(begin)+1, y(admitted), x(s.At)-x(begin)-2, y0-y(admitted), "blue")
			}
			if b := s.Bounds[limit]; b == nil {
				drawBound()
			} else {
				most := float64(*b)
				bound = append(bound, [2]float64{x(begin), y(most)}, [2]float64{x(s.At), y(most)})
			}
			begin = s.At
		}
		drawBound()
	}
	for i, e := range r.Events {
		what, _, _ := strings.Cut(strings.TrimPrefix(e.What, "Redis is "), ",")
		if i%2 == 1 && what == "up" {
			continue // the end of a shaded outage
		}
		d.text(x(e.At)+3, 84, "s", "Redis "+what)
		d.line(x(e.At), 88, x(e.At), 104+3*height+2*gap, "edge")
	}
	bottom := 104 + 3*height + 2*gap
	for s := 0.; s <= last; s += 4 {
		d.text(x(s), bottom+18, "s mid muted", num(s)+" s")
	}
	d.rect(left, bottom+28, 12, 12, "blue")
	d.text(left+18, bottom+39, "s", "requests admitted in this second")
	d.line(left+230, bottom+34, left+250, bottom+34, "bound")
	d.text(left+258, bottom+39, "s", "the bound; no line: any number may pass")
	d.rect(left+520, bottom+28, 12, 12, "away")
	d.text(left+538, bottom+39, "s", "Redis does not answer")
	return d.svg(860, 560, "An outage of Redis, second by second",
		"Three limits of 200 requests a second under a load of 400. While Redis is away, open admits all, closed admits none, and local about 200."), nil
}
