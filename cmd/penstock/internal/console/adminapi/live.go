package adminapi

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/penstock/penstock/internal/panicked"
)

const (
	snapshotInterval = time.Second      // from one snapshot to the next
	commentInterval  = 15 * time.Second // between comments, which keep connections open in proxies
	writeTimeout     = 5 * time.Second  // for one event; a slower reader is dropped
	sendBuffer       = 16 << 10         // bytes that the kernel may hold for one reader; Linux doubles it
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
	place := l.handler.readers.take(l.handler.MaxReaders)
	defer l.handler.readers.leave(place)
	reader := make(chan []byte, 1)
	l.join(reader)
	defer l.leave(reader)
	follow(w, req, place, reader, func(text []byte) []byte { return text })
}

// places bound the readers of events and denials. If all places are taken, a new reader gets that
// of the oldest reader, whose stream ends. So idle readers cannot block others. A reader that has
// lost its place may connect again.
type places struct {
	mu  sync.Mutex
	all []chan struct{} // the oldest first; each is closed when another reader takes the place
}

func (p *places) take(max int) chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.all) == max {
		close(p.all[0])
		p.all = slices.Delete(p.all, 0, 1)
	}
	place := make(chan struct{})
	p.all = append(p.all, place)
	return place
}

// leave releases a place, unless another reader has taken it.
func (p *places) leave(place chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.all = slices.DeleteFunc(p.all, func(other chan struct{}) bool { return other == place })
}

type connKey struct{}

// WithConn is http.Server.ConnContext of the server of a Handler. Streams need the connection to
// bound what the kernel holds for a reader that reads nothing.
func WithConn(ctx context.Context, conn net.Conn) context.Context {
	return context.WithValue(ctx, connKey{}, conn)
}

// Conn returns the connection that WithConn added to a context, or nil.
func Conn(ctx context.Context) net.Conn {
	conn, _ := ctx.Value(connKey{}).(net.Conn)
	return conn
}

// limitBuffer makes the send buffer of a stream's connection small. Otherwise events for an idle
// reader would fill it for many minutes before a write blocks.
func limitBuffer(ctx context.Context) {
	conn := Conn(ctx)
	if secure, ok := conn.(*tls.Conn); ok {
		conn = secure.NetConn()
	}
	if conn, ok := conn.(interface{ SetWriteBuffer(int) error }); ok {
		_ = conn.SetWriteBuffer(sendBuffer) // without it, the reader is only dropped later
	}
}

// follow sends the values of a channel as server-sent events, until the reader disconnects, or
// another reader takes its place. It drops a reader that is too slow.
func follow[T any](w http.ResponseWriter, req *http.Request, place <-chan struct{}, from <-chan T, encode func(T) []byte) {
	limitBuffer(req.Context())
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
		case <-place:
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
