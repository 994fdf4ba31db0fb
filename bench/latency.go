package main

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/guard"
	"github.com/penstock/penstock/internal/testing/redistest"
	"github.com/penstock/penstock/redisguard"
)

const (
	saturatedRounds = 5 // windows as fast as possible, which find the rate
	pacedWindow     = 400 * time.Millisecond
	paceWarmup      = 50 * time.Millisecond // decisions due before it are not counted: the callers start

	mostLatency = 1000 // µs: the goal for p99 at half of the saturated rate
)

// latencySection measures how long a decision takes at half of the rate that the same callers can
// reach. The load is open: slow decisions do not delay the next ones.
func latencySection(r *report) error {
	r.beginTable("Latency: decisions on distinct keys at half of the saturated rate, one core for the callers\n(median of %d windows of %v; / saturated: ratio to the p99 without pauses; a decision counts from when it was due; late: how late the load generator itself was)", clientRounds, pacedWindow)
	r.addRow("callers", "", "saturated/s", "p99 µs", "paced/s", "p50 µs", "p99 µs", "/ saturated", "late p99 µs", "fallback")
	for _, part := range []func(*report) error{measureServerLatency, measureClusterLatency, measureAPILatency} {
		if err := part(r); err != nil {
			return err
		}
	}
	return nil
}

func measureServerLatency(r *report) error {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	server, err := redistest.Launch()
	if err != nil {
		return err
	}
	defer server.Close()
	// The system would at times run both on one core, and its rate would fall by half.
	if runtime.NumCPU() > 1 {
		pin(os.Getpid(), loadCore)
		defer unpin(os.Getpid())
		pin(server.PID(), serverCore)
	}
	c, err := guardCaller("library, one Redis", server.URL())
	if err != nil {
		return err
	}
	defer c.close()
	for _, callers := range []int{64, 256, 512} {
		if err := c.measureLatency(r, callers); err != nil {
			return err
		}
		r.atMost(fmt.Sprintf("latency: p99 in µs of %d callers at half of the saturated rate", callers), median(c.p99), mostLatency)
	}
	return nil
}

func measureClusterLatency(r *report) error {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	cluster, err := redistest.LaunchCluster()
	if err != nil {
		return err
	}
	defer cluster.Close()
	c, err := guardCaller("library, Cluster of 3 primaries with replicas", "redis+cluster://"+strings.Join(cluster.Addrs(), ","))
	if err != nil {
		return err
	}
	defer c.close()
	return c.measureLatency(r, 256)
}

// measureAPILatency measures the JSON API. Its server has a core of its own.
func measureAPILatency(r *report) error {
	b, err := newServicesBench()
	if err != nil {
		return err
	}
	defer b.end()
	api, err := b.startAPI()
	if err != nil {
		return err
	}
	for _, callers := range []int{64, 256, 512} {
		c, err := apiCaller(api, callers)
		if err != nil {
			return err
		}
		if err := c.measureLatency(r, callers); err != nil {
			return err
		}
		c.close()
	}
	return nil
}

// guardCaller returns a caller of a store with all guards.
func guardCaller(name, url string) (*caller, error) {
	store, err := redisguard.Open(url, redisguard.Options{Guard: guard.Options{Timeout: longTimeout}})
	if err != nil {
		return nil, err
	}
	c, err := storeCaller(name, store, penstock.PerDay(ampleLimit).MustCompile())
	if err != nil {
		return nil, err
	}
	c.close = func() { _ = store.Close() }
	return c, nil
}

// apiCaller returns a caller with as many connections to the JSON API. The keys are those of the
// connections.
func apiCaller(api *measuredService, connections int) (*caller, error) {
	if err := api.connectLines(apiRequest, connections, 1, readHTTP); err != nil {
		return nil, err
	}
	idle := make(chan *lineLoad, connections)
	for _, l := range api.loads {
		idle <- l.(*lineLoad)
	}
	return &caller{
		name: "JSON API",
		allow: func(context.Context, string) (bool, error) {
			l := <-idle
			defer func() { idle <- l }()
			return true, l.call()
		},
		bound: bucketBound(ampleLimit, ampleLimit, 24*time.Hour),
		close: func() {
			for _, l := range api.loads {
				_ = l.(*lineLoad).close()
			}
		},
	}, nil
}

// measureLatency adds a row. Afterwards c has the results of the paced windows.
func (c *caller) measureLatency(r *report, callers int) error {
	names := coldNames()
	for round := range saturatedRounds + 1 {
		if round == 1 {
			c.reset() // the first window opened connections
		}
		if err := c.run(callers, clientWindow, names); err != nil {
			return err
		}
	}
	saturated, saturatedP99 := median(c.rates), median(c.p99)
	c.reset()
	pace := time.Duration(float64(time.Second) / (saturated / 2))
	for range clientRounds {
		if err := c.runPaced(callers, pace, pacedWindow, names); err != nil {
			return err
		}
	}
	p99 := median(c.p99)
	r.addRow(strconv.Itoa(callers), c.name, strconv.Itoa(int(saturated)), strconv.Itoa(int(saturatedP99)),
		strconv.Itoa(int(median(c.rates))), strconv.Itoa(int(median(c.p50))), strconv.Itoa(int(p99)), number(p99/saturatedP99), strconv.Itoa(int(median(c.late))),
		strconv.FormatInt(c.withoutStore.Load(), 10))
	return nil
}
