package main

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// A backend is a service with few database connections. Each request uses a connection for the time
// of a query, and waits if none is free. The backend does not notice that a client has
// disconnected.
type backend struct {
	pool     chan struct{} // has a value for each connection in use
	timeout  time.Duration // of waiting for a connection
	received atomic.Int64
	querying atomic.Int64 // ns of all queries that have begun

	mu    sync.Mutex
	waits *hdrhistogram.Histogram // for a connection, in µs; also those that timed out
}

const (
	connections = 10
	query       = 66 * time.Millisecond // mean time, ± a fifth; 10 connections handle 150 queries/s
)

func newBackend(timeout time.Duration) *backend {
	return &backend{pool: make(chan struct{}, connections), timeout: timeout, waits: newHistogram()}
}

func (b *backend) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	b.received.Add(1)
	if !b.connect() {
		http.Error(w, fmt.Sprintf("no connection to the database within %v", b.timeout), http.StatusServiceUnavailable)
		return
	}
	duration := query*4/5 + rand.N(query*2/5)
	b.querying.Add(int64(duration))
	time.Sleep(duration)
	<-b.pool
	w.Write([]byte("done\n"))
}

// connect waits for a connection. It returns false if none is free within the timeout.
func (b *backend) connect() bool {
	start := time.Now()
	timer := time.NewTimer(b.timeout)
	defer timer.Stop()
	isConnected := false
	select {
	case b.pool <- struct{}{}:
		isConnected = true
	case <-timer.C:
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.waits.RecordValue(time.Since(start).Microseconds())
	return isConnected
}

// A load is what reached the backend in a time.
type load struct {
	rate     float64       // requests/s
	inUse    float64       // connections in use on average, in percent of the pool
	waitMean time.Duration // for a connection
	waitP99  time.Duration
}

// loadSince returns the load since the backend started, d ago.
func (b *backend) loadSince(d time.Duration) load {
	b.mu.Lock()
	defer b.mu.Unlock()
	return load{
		rate:     float64(b.received.Load()) / d.Seconds(),
		inUse:    100 * float64(b.querying.Load()) / float64(d*connections),
		waitMean: time.Duration(b.waits.Mean()) * time.Microsecond,
		waitP99:  percentileOf(b.waits, 99),
	}
}
