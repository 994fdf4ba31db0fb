// Package demotraffic sends requests to the service's own proxy for serve --demo-traffic, so that
// the dashboard has something to show. One client is far over a limit.
package demotraffic

import (
	"context"
	"io"
	"math"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/penstock/penstock/internal/background"
)

// Offender is the API key of the client that is over the limit of receipt-export.
const Offender = "partner-export-2291"

// clients are the API keys of the other clients. All of them have one address. They are fewer than
// new_identities of the demo policy allows for an address.
var clients = []string{
	"rider-app-ios-1184", "rider-app-android-7720", "driver-app-0931", "driver-app-legacy-0042", "fleet-console-3310", "partner-maps-5167", "support-desk-0007",
}

// paths are those of the sample rules. The first ones are requested most.
var paths = []struct{ method, path string }{
	{"GET", "/api/drivers/nearby"}, {"GET", "/api/fares/estimate"}, {"POST", "/api/rides/request"}, {"GET", "/api/trips/history"},
}

const (
	step        = 50 * time.Millisecond // between two rounds of requests
	maxInFlight = 64                    // requests beyond that are not sent
	wave        = 90 * time.Second      // in which the rates rise and fall once
)

// Run sends requests to a URL until ctx ends, and returns when the last one has ended. It sends
// about 40 a second, whether or not they succeed.
func Run(ctx context.Context, target string) {
	transport := &http.Transport{MaxIdleConnsPerHost: maxInFlight, MaxConnsPerHost: maxInFlight}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport, Timeout: 10 * time.Second}
	inFlight := make(chan struct{}, maxInFlight)
	var running sync.WaitGroup
	defer running.Wait()
	send := func(method, path, key string) {
		select {
		case inFlight <- struct{}{}:
		default:
			return
		}
		running.Go(func() {
			defer func() { <-inFlight }()
			req, err := http.NewRequestWithContext(ctx, method, strings.TrimSuffix(target, "/")+path, http.NoBody)
			if err != nil {
				return // cannot happen: the target is the service's own address
			}
			req.Header.Set("X-API-Key", key)
			if res, err := client.Do(req); err == nil {
				_, _ = io.Copy(io.Discard, res.Body)
				_ = res.Body.Close()
			}
		})
	}
	start := time.Now()
	background.Every(ctx, step, func() {
		for _, s := range sources(time.Since(start)) {
			for range randomCount(s.rate * step.Seconds()) {
				send(s.choose())
			}
		}
	})
}

type source struct {
	rate   float64 // requests a second
	choose func() (method, path, key string)
}

func sources(at time.Duration) []source {
	angle := 2 * math.Pi * at.Seconds() / wave.Seconds()
	burst := 0.0
	if math.Sin(angle) > 0.8 { // for about 18 s of each wave
		burst = 20
	}
	driver, console, support := clients[3], clients[4], clients[6]
	return []source{
		{20 + 10*math.Sin(angle), func() (string, string, string) {
			p := paths[min(rand.IntN(len(paths)), rand.IntN(len(paths)))] // prefers the first paths
			return p.method, p.path, clients[rand.IntN(len(clients))]
		}},
		{burst, func() (string, string, string) { return "GET", "/api/drivers/nearby", driver }},
		{7 + 5*math.Sin(2*angle), func() (string, string, string) {
			return "POST", "/api/notifications/push", console
		}},
		{6, func() (string, string, string) { return "POST", "/api/receipts/export", Offender }},
		{0.2, func() (string, string, string) { return "POST", "/api/receipts/export", support }},
		{2, func() (string, string, string) { return "GET", "/", clients[0] }},
	}
}

// randomCount returns a random whole number that is n on average.
func randomCount(n float64) int {
	whole := math.Floor(n)
	if rand.Float64() < n-whole {
		whole++
	}
	return int(whole)
}
