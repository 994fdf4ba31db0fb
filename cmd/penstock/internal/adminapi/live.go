package adminapi

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/penstock/penstock/internal/panicked"
)

const (
	maxReaders       = 32               // of events and denials
	snapshotInterval = time.Second      // from one snapshot to the next
	commentInterval  = 15 * time.Second // between comments, which keep connections open in proxies
	writeTimeout     = 5 * time.Second  // for one event; a slower reader is dropped
)

// A broadcaster sends the state to readers of server-sent events. Each reader has room for one
// snapshot. If the reader has not taken it, the next snapshot replaces it. So a slow reader delays
// no other.
type broadcaster struct {
	handler *Handler

	mu      sync.Mutex
	readers map[chan []byte]struct{}
	stop    context.CancelFunc // ends the goroutine that makes snapshots; nil: no goroutine runs
	ended   chan struct{}      // closed when that goroutine has ended
}

// serve serves /api/v1/events until the reader disconnects.
func (l *broadcaster) serve(w http.ResponseWriter, req *http.Request) {
	if req.URL.RawQuery != "" {
		fail(w, http.StatusBadRequest, "events have no parameters")
		return
	}
	if !l.handler.addReader(w) {
		return
	}
	defer l.handler.readers.Add(-1)
	reader := make(chan []byte, 1)
	l.join(reader)
	defer l.leave(reader)
	follow(w, req, reader, func(text []byte) []byte { return text })
}

// addReader counts a reader of events or denials. At MaxReaders it refuses the reader, and returns
// false.
func (h *Handler) addReader(w http.ResponseWriter) bool {
	if h.readers.Add(1) > int32(h.MaxReaders) {
		h.readers.Add(-1)
		h.refuseReader(w)
		return false
	}
	return true
}

func (h *Handler) refuseReader(w http.ResponseWriter) {
	w.Header().Set("Retry-After", "10")
	fail(w, http.StatusServiceUnavailable, fmt.Sprintf("%d readers follow events or denials; close one of them", h.MaxReaders))
}

// follow sends the values of a channel as server-sent events, until the reader disconnects. It
// drops a reader that is too slow.
func follow[T any](w http.ResponseWriter, req *http.Request, from <-chan T, encode func(T) []byte) {
	control := http.NewResponseController(w)
	_ = control.SetReadDeadline(time.Time{}) // the request has been read
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("X-Accel-Buffering", "no") // nginx must not buffer
	send := func(text []byte) error {
		if err := control.SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil {
			return err
		}
		if _, err := w.Write(text); err != nil {
			return err
		}
		return control.Flush()
	}
	if send([]byte("retry: 3000\n\n")) != nil { // after a lost connection, browsers wait 3000 ms
		return
	}
	comment := time.NewTicker(commentInterval)
	defer comment.Stop()
	for {
		var text []byte
		select {
		case <-req.Context().Done():
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

// join adds a reader, and starts to make snapshots for the first one.
func (l *broadcaster) join(reader chan []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.readers == nil {
		l.readers = make(map[chan []byte]struct{})
	}
	l.readers[reader] = struct{}{}
	if l.stop == nil {
		ctx, stop := context.WithCancel(context.Background())
		l.stop, l.ended = stop, make(chan struct{})
		go l.run(ctx, l.ended)
	}
}

// leave removes a reader. After the last reader, leave ends the goroutine that makes snapshots, and
// waits until that goroutine has ended.
func (l *broadcaster) leave(reader chan []byte) {
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
func (l *broadcaster) run(ctx context.Context, ended chan struct{}) {
	defer close(ended)
	tick := time.NewTicker(snapshotInterval)
	defer tick.Stop()
	for {
		l.makeSnapshot(ctx)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// makeSnapshot makes a snapshot, and offers it to the readers. A panic, because of what the store
// replies, ends only this snapshot.
func (l *broadcaster) makeSnapshot(ctx context.Context) {
	defer panicked.Recover("a snapshot of the state is made")
	state := l.handler.state(ctx)
	l.offer(fmt.Appendf(nil, "event: state\nid: %s\ndata: %s\n", state.tag, state.text)) // the text ends with a newline
}

// offer gives each reader the latest snapshot, in place of one that the reader has not taken.
func (l *broadcaster) offer(text []byte) {
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
