package main

import (
	"context"
	"fmt"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/memstore"
)

const (
	perMinute   = 100
	perSecond   = 20 // requests of the client in each second
	firstSecond = 25 // when the client begins: 10:00:55
	shown       = 90 // seconds, which begin at 10:00:30
)

// admissions returns how many requests of an eager client the limit admits in each second.
func admissions(limit penstock.Limit) (admitted [shown]int, err error) {
	start := time.Date(2026, 1, 1, 10, 0, 30, 0, time.UTC)
	now := start
	limiter, err := penstock.NewLimiter(memstore.New(memstore.Options{Now: func() time.Time { return now }}), "boundary", limit)
	if err != nil {
		return admitted, err
	}
	for second := firstSecond; second < shown; second++ {
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

// boundary compares a fixed window with two sliding ones at the boundary of a window.
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
		admitted, err := admissions(panel.limit)
		if err != nil {
			return "", err
		}
		const left, width, height, distance = 64., 222., 230., 270. // pixels
		const most = 220.                                           // requests at the top of the axis
		x0, y0 := left+float64(i)*distance, 360.
		x := func(second float64) float64 { return x0 + second*width/shown }
		y := func(n float64) float64 { return y0 - n*height/most }
		d.text(x0, 98, "b", panel.name)
		for _, n := range []float64{0, 50, 100, 150, 200} {
			d.line(x0, y(n), x0+width, y(n), "axis")
			d.text(x0-8, y(n)+4, "s end muted", num(n))
		}
		for _, second := range []int{30, shown} {
			at := time.Date(2026, 1, 1, 10, 0, 30+second, 0, time.UTC)
			anchor := map[int]string{30: "s mid muted", shown: "s end muted"}[second]
			d.text(x(float64(second)), y0+20, anchor, at.Format("15:04:05"))
		}
		d.line(x(30), y(most), x(30), y0, "edge")
		sum, most60 := 0, 0 // admitted in the last 60 seconds: now, and at most so far
		curve := [][2]float64{{x(0), y(0)}}
		for second, n := range admitted {
			if n > 0 {
				d.rect(x(float64(second)), y(float64(n)), width/shown-0.6, y0-y(float64(n)), "blue")
			}
			sum += n
			if second >= 60 {
				sum -= admitted[second-60]
			}
			most60 = max(most60, sum)
			curve = append(curve, [2]float64{x(float64(second) + 1), y(float64(sum))})
		}
		d.line(x0, y(perMinute), x0+width, y(perMinute), "bound")
		d.path("curve", curve)
		d.text(x0, 116, "s muted", fmt.Sprintf("at most %d in 60 seconds", most60))
	}
	for i, entry := range []struct{ class, text string }{{"blue", "admitted in each second"}, {"orange", "admitted in the last 60 seconds"}} {
		d.rect(64+float64(i)*220, 402, 12, 12, entry.class)
		d.text(82+float64(i)*220, 413, "s", entry.text)
	}
	d.line(506, 408, 526, 408, "bound")
	d.text(534, 413, "s", "the limit")
	return d.String(), nil
}
