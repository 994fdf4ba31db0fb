package main

import (
	"context"
	"io"
	"net/http"
	"sync"
	"time"
)

// policies are the limits of outage.yaml, by the path of those who are asked for.
var policies = [...]string{"open", "closed", "local"}

// A load asks for each policy at a steady pace, at all gates alike, and counts the answers.
type load struct {
	client *http.Client
	work   sync.WaitGroup
	stop   context.CancelFunc

	mu     sync.Mutex
	counts [len(policies)]count // since they were last taken
}

// A count of answers. Those that were admitted were asked for and answered between from and to.
type count struct {
	admitted, denied, refused, failed int64
	from, to                          time.Time
}

// workers are how many ask for each policy at each gate.
const workers = 4

func startLoad(all []*gate) *load {
	ctx, stop := context.WithCancel(context.Background())
	l := &load{client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 2 * workers * len(policies)}, Timeout: 10 * time.Second}, stop: stop}
	every := time.Second * workers * gates / asked
	asker := 0
	for _, g := range all {
		for p := range policies {
			for range workers {
				late := every * time.Duration(asker) / (workers * gates * time.Duration(len(policies)))
				l.work.Go(func() { l.ask(ctx, "http://"+g.listen+"/"+policies[p], p, every, late) })
				asker++
			}
		}
	}
	return l
}

// ask asks at a pace that no answer changes, but for the time that one is awaited.
func (l *load) ask(ctx context.Context, url string, policy int, every, late time.Duration) {
	time.Sleep(late)
	pace := time.NewTicker(every)
	defer pace.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-pace.C:
		}
		sent := time.Now()
		status := l.send(url)
		l.note(policy, status, sent, time.Now())
	}
}

// send is the status of an answer, or 0 if there is none.
func (l *load) send(url string) int {
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

func (l *load) note(policy, status int, sent, answered time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := &l.counts[policy]
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

// take is what was counted since it was last asked.
func (l *load) take() [len(policies)]count {
	l.mu.Lock()
	defer l.mu.Unlock()
	taken := l.counts
	l.counts = [len(policies)]count{}
	return taken
}

func (l *load) end() {
	l.stop()
	l.work.Wait()
	l.client.CloseIdleConnections()
}
