package main

import (
	"context"
	"io"
	"net/http"
	"sync"
	"time"
)

// fallbacks are those of the limits in outage.yaml. Requests to the path "/" and the name of a
// fallback are limited by the limit with that fallback.
var fallbacks = [...]string{"open", "closed", "local"}

// A load sends requests to the limit of each fallback at a constant rate, evenly to all instances.
// The load counts the responses.
type load struct {
	client *http.Client
	work   sync.WaitGroup
	stop   context.CancelFunc

	mu     sync.Mutex
	counts [len(fallbacks)]count // since the last take
}

// A count counts the responses of one limit. from is when the first admitted request was sent, and
// to is when the last one got its response.
type count struct {
	admitted, denied, refused, failed int64
	from, to                          time.Time
}

// workers is the number of goroutines that send requests for one fallback to one instance.
const workers = 4

// startLoad starts the workers, each a little later than the previous one.
func startLoad(all []*instance) *load {
	ctx, stop := context.WithCancel(context.Background())
	l := &load{client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 2 * workers * len(fallbacks)}, Timeout: 10 * time.Second}, stop: stop}
	every := time.Second * workers * instances / requested // between two requests of one worker
	started := 0                                           // workers
	for _, one := range all {
		for i, fallback := range fallbacks {
			for range workers {
				startDelay := every * time.Duration(started) / (workers * instances * time.Duration(len(fallbacks)))
				l.work.Go(func() { l.send(ctx, "http://"+one.listen+"/"+fallback, i, every, startDelay) })
				started++
			}
		}
	}
	return l
}

// send sends requests at a constant rate, except while it waits for a response. fallback is an
// index in fallbacks.
func (l *load) send(ctx context.Context, url string, fallback int, every, startDelay time.Duration) {
	time.Sleep(startDelay)
	pace := time.NewTicker(every)
	defer pace.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-pace.C:
		}
		sent := time.Now()
		status := l.request(url)
		l.record(fallback, status, sent, time.Now())
	}
}

// request sends a request. It returns the response's status, or 0 if there is none.
func (l *load) request(url string) int {
	res, err := l.client.Get(url)
	if err != nil {
		return 0
	}
	defer res.Body.Close()
	if _, err := io.Copy(io.Discard, res.Body); err != nil {
		return 0
	}
	return res.StatusCode
}

// record counts a response.
func (l *load) record(fallback, status int, sent, answered time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := &l.counts[fallback]
	switch status {
	case http.StatusOK:
		if c.admitted++; c.from.IsZero() || sent.Before(c.from) {
			c.from = sent
		}
		c.to = answered
	case http.StatusTooManyRequests:
		c.denied++
	case http.StatusServiceUnavailable:
		c.refused++
	default:
		c.failed++
	}
}

// take returns the counts since the last take.
func (l *load) take() [len(fallbacks)]count {
	l.mu.Lock()
	defer l.mu.Unlock()
	taken := l.counts
	l.counts = [len(fallbacks)]count{}
	return taken
}

// end stops the workers, and waits for their last responses.
func (l *load) end() {
	l.stop()
	l.work.Wait()
	l.client.CloseIdleConnections()
}
