package adminapi

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"time"
)

const (
	maxReaders   = 32
	snapshots    = time.Second      // between two
	comments     = 15 * time.Second // between two, which keep a connection open through proxies
	writeTimeout = 5 * time.Second  // a reader that is slower is dropped
)

// A live sends the state to readers of server-sent events. Each reader has room for one snapshot.
// A snapshot that it has not taken is replaced by the next one, so a slow reader delays nobody.
type live struct {
	handler *Handler

	mu      sync.Mutex
	readers map[chan []byte]struct{}
	stop    context.CancelFunc // ends the goroutine that makes snapshots; nil: it does not run
	ended   chan struct{}
}

// serve answers /api/v1/events until the reader leaves.
func (l *live) serve(w http.ResponseWriter, q *http.Request) {
	if q.URL.RawQuery != "" {
		fail(w, http.StatusBadRequest, "events have no parameters")
		return
	}
	reader := make(chan []byte, 1)
	if !l.join(reader) {
		refuseReader(w, maxReaders, "the events")
		return
	}
	defer l.leave(reader)
	follow(w, q, reader, func(text []byte) []byte { return text })
}

// refuseReader answers a reader for whom there is no place.
func refuseReader(w http.ResponseWriter, most int, what string) {
	w.Header().Set("Retry-After", "10")
	fail(w, http.StatusServiceUnavailable, fmt.Sprintf("%d readers follow %s; close one of them", most, what))
}

// follow sends what comes from a channel as server-sent events, until the reader leaves. A reader
// that is too slow is dropped.
func follow[T any](w http.ResponseWriter, q *http.Request, from <-chan T, encode func(T) []byte) {
	control := http.NewResponseController(w)
	_ = control.SetReadDeadline(time.Time{}) // the request has been read
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("X-Accel-Buffering", "no") // of nginx
	send := func(text []byte) error {
		if err := control.SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil {
			return err
		}
		if _, err := w.Write(text); err != nil {
			return err
		}
		return control.Flush()
	}
	if send([]byte("retry: 3000\n\n")) != nil {
		return
	}
	comment := time.NewTicker(comments)
	defer comment.Stop()
	for {
		var text []byte
		select {
		case <-q.Context().Done():
			return
		case <-comment.C:
			text = []byte(": still here\n\n")
		case next := <-from:
			text = encode(next)
		}
		if send(text) != nil {
			return
		}
	}
}

// join adds a reader, and begins to make snapshots for the first one. It is false if there are too
// many.
func (l *live) join(reader chan []byte) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.readers) >= maxReaders {
		return false
	}
	if l.readers == nil {
		l.readers = make(map[chan []byte]struct{})
	}
	l.readers[reader] = struct{}{}
	if l.stop == nil {
		ctx, stop := context.WithCancel(context.Background())
		l.stop, l.ended = stop, make(chan struct{})
		go l.run(ctx, l.ended)
	}
	return true
}

// leave removes a reader. It stops making snapshots with the last one, and waits for that.
func (l *live) leave(reader chan []byte) {
	l.mu.Lock()
	delete(l.readers, reader)
	var ended chan struct{}
	if len(l.readers) == 0 {
		l.stop()
		l.stop, ended = nil, l.ended
	}
	l.mu.Unlock()
	if ended != nil {
		<-ended
	}
}

// run makes snapshots until ctx ends.
func (l *live) run(ctx context.Context, ended chan struct{}) {
	defer close(ended)
	tick := time.NewTicker(snapshots)
	defer tick.Stop()
	for {
		state := l.handler.state(ctx)
		text := fmt.Appendf(nil, "event: state\nid: %s\ndata: %s\n", state.tag, state.text) // the text ends with a newline
		l.offer(text)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// offer gives each reader a snapshot in place of the one that it has not taken.
func (l *live) offer(text []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for reader := range l.readers {
		select {
		case <-reader:
		default:
		}
		reader <- text // there is room: only offer sends
	}
}
