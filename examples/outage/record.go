package main

import (
	"encoding/json"
	"math"
	"os"
	"time"

	"github.com/penstock/penstock/internal/testing/loadaverage"
)

// A record has the results of an experiment, from which a picture is drawn. Times are in seconds
// since the start.
type record struct {
	loadaverage.Record
	Rate, Burst, Requested, Instances int
	OnFailure                         []string // on_failure of each limit
	Seconds                           []recordedSecond
	Events                            []recordedEvent
}

type recordedSecond struct {
	At       float64 // end of the second
	Admitted []int64
	Bounds   []*int64 // nil if any number may pass
}

type recordedEvent struct {
	At   float64
	What string
}

// add adds the results of the next fallback in fallbacks.
func (s *recordedSecond) add(admitted int64, b bound) {
	s.Admitted = append(s.Admitted, admitted)
	if b.isUnlimited {
		s.Bounds = append(s.Bounds, nil)
	} else {
		s.Bounds = append(s.Bounds, &b.units)
	}
}

func (r record) save(file string) error {
	r.Rate, r.Burst, r.Requested, r.Instances, r.OnFailure = rate, burst, requested, instances, fallbacks[:]
	text, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return os.WriteFile(file, append(text, '\n'), 0o644)
}

// round returns seconds with two decimals.
func round(d time.Duration) float64 { return math.Round(d.Seconds()*100) / 100 }
