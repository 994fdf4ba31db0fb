package main

import (
	"context"
	"fmt"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/memstore"
)

// The picture shows 90 seconds. They are numbered from 0, which is 10:00:30.
const (
	shownSeconds   = 90
	firstRequest   = 25 // the second in which the client begins: 10:00:55
	windowBoundary = 30 // the second in which a new window begins: 10:01:00

	perMinute = 100 // the limit
	perSecond = 20  // requests of the client
)

var start = time.Date(2026, 1, 1, 10, 0, 30, 0, time.UTC)

// countAdmitted returns how many requests of the client the limit admits in each second.
func countAdmitted(limit penstock.Limit) (admitted [shownSeconds]int, err error) {
	now := start
	limiter, err := penstock.NewLimiter(memstore.New(memstore.Options{Now: func() time.Time { return now }}), "boundary", limit)
	if err != nil {
		return admitted, err
	}
	for second := firstRequest; second < shownSeconds; second++ {
		for i := range perSecond {
			now = start.Add(time.Duration(second)*time.Second + time.Duration(i)*time.Second/perSecond)
			decision, err := limiter.Allow(context.Background(), "client")
			if err != nil {
				return admitted, err
			}
			if decision.Allowed {
				admitted[second]++
			}
		}
	}
	return admitted, nil
}

// boundary compares a fixed window with a sliding window and sub-windows at the boundary of a
// window.
func boundary() (string, error) {
	d := &drawing{width: 860, height: 430, title: "Three windows at a boundary",
		about: "A client sends 20 requests a second from 10:00:55 on. The limit is 100 per minute. A fixed window admits 200 of them within ten seconds. A sliding window admits 100, and then the rest evenly. A sub-window never admits more than 100 in 60 seconds."}
	d.text(24, 34, "h", "The boundary burst: 100 per minute, and a client that sends 20 requests a second")
	d.text(24, 56, "s muted", "Computed by the algorithms of this tree. The client begins at 10:00:55.")
	for i, panel := range []struct {
		name  string
		limit penstock.Limit
	}{
		{"fixed-window", penstock.PerMinute(perMinute).With(penstock.FixedWindow)},
		{"sliding-window", penstock.PerMinute(perMinute).With(penstock.SlidingWindow)},
		{"sub-window", penstock.PerMinute(perMinute).With(penstock.SubWindow(10))},
	} {
		admitted, err := countAdmitted(panel.limit)
		if err != nil {
			return "", err
		}
		const left, width, height, distance = 64., 222., 230., 270. // pixels
		const axisTop = 220.                                        // requests
		x0, y0 := left+float64(i)*distance, 360.
		x := func(second float64) float64 { return x0 + second*width/shownSeconds }
		y := func(n float64) float64 { return y0 - n*height/axisTop }
		d.text(x0, 98, "b", panel.name)
		for _, n := range []float64{0, 50, 100, 150, 200} {
			d.line(x0, y(n), x0+width, y(n), "axis")
			d.text(x0-8, y(n)+4, "s end muted", num(n))
		}
		timeAt := func(second int) string { return start.Add(time.Duration(second) * time.Second).Format("15:04:05") }
		d.text(x(windowBoundary), y0+20, "s mid muted", timeAt(windowBoundary))
		d.text(x(shownSeconds), y0+20, "s end muted", timeAt(shownSeconds))
		d.line(x(windowBoundary), y(axisTop), x(windowBoundary), y0, "edge")
		inMinute := 0     // requests admitted in the last 60 seconds
		mostInMinute := 0 // the largest value of inMinute
		curve := [][2]float64{{x(0), y(0)}}
		for second, n := range admitted {
			if n > 0 {
				d.rect(x(float64(second)), y(float64(n)), width/shownSeconds-0.6, y0-y(float64(n)), "blue")
			}
			inMinute += n
			if second >= 60 {
				inMinute -= admitted[second-60]
			}
			mostInMinute = max(mostInMinute, inMinute)
			curve = append(curve, [2]float64{x(float64(second) + 1), y(float64(inMinute))})
		}
		d.line(x0, y(perMinute), x0+width, y(perMinute), "bound")
		d.path("curve", curve)
		d.text(x0, 116, "s muted", fmt.Sprintf("at most %d in 60 seconds", mostInMinute))
	}
	for i, entry := range []struct{ class, text string }{{"blue", "admitted in each second"}, {"orange", "admitted in the last 60 seconds"}} {
		d.rect(64+float64(i)*220, 402, 12, 12, entry.class)
		d.text(82+float64(i)*220, 413, "s", entry.text)
	}
	d.line(506, 408, 526, 408, "bound")
	d.text(534, 413, "s", "the limit")
	return d.String(), nil
}
