package adminapi

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// A pipeListener accepts connections in memory. They have no buffers, so each write waits until its
// bytes are read.
type pipeListener struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func (p *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipeListener) Close() error   { p.once.Do(func() { close(p.closed) }); return nil }
func (p *pipeListener) Addr() net.Addr { return pipeAddr{} }

type pipeAddr struct{}

func (pipeAddr) Network() string { return "pipe" }
func (pipeAddr) String() string  { return "pipe" }

// A liveServer serves a fixture in memory, with the timeouts of the admin server.
type liveServer struct {
	*fixture
	*pipeListener
}

func startLive(t *testing.T, f *fixture) *liveServer {
	s := &liveServer{f, &pipeListener{conns: make(chan net.Conn), closed: make(chan struct{})}}
	server := &http.Server{Handler: f, ReadTimeout: 10 * time.Second, WriteTimeout: 30 * time.Second}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = server.Serve(s.pipeListener)
	}()
	t.Cleanup(func() {
		server.Close()
		<-ended
	})
	return s
}

// open sends a request, and reads the status and headers of its response.
func (s *liveServer) open(t *testing.T, path string, headers ...string) (net.Conn, *http.Response) {
	t.Helper()
	client, server := net.Pipe()
	s.conns <- server
	if _, err := fmt.Fprintf(client, "GET %s%s HTTP/1.1\r\n%s\r\n\r\n", Prefix, path, strings.Join(append(headers, "Host: localhost"), "\r\n")); err != nil {
		t.Fatal(err)
	}
	response, err := http.ReadResponse(bufio.NewReader(client), nil)
	if err != nil {
		t.Fatal(err)
	}
	return client, response
}

func TestEventsSendTheStateEverySecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := startLive(t, newFixture(t, nil))
		conn, response := s.open(t, "events")
		defer conn.Close()
		if response.StatusCode != 200 || response.Header.Get("Content-Type") != "text/event-stream" {
			t.Fatalf("the response is %d %v; want 200 with a stream of events", response.StatusCode, response.Header)
		}
		start, snapshots, comments := time.Now(), 0, 0
		for lines := bufio.NewScanner(response.Body); snapshots < 60 && lines.Scan(); { // 60 s is longer than the timeouts of the server
			line := lines.Text()
			if strings.HasPrefix(line, ":") {
				comments++
			}
			data, ok := strings.CutPrefix(line, "data: ")
			if !ok {
				continue
			}
			snapshots++
			var state State
			if err := json.Unmarshal([]byte(data), &state); err != nil || state.Health.Status != "ok" {
				t.Fatalf("the snapshot is %s, with the error %v; want one with health ok", data, err)
			}
		}
		if took := time.Since(start); snapshots != 60 || took < 58*time.Second || took > 61*time.Second || comments < 3 {
			t.Errorf("%d snapshots and %d comments in %v; want 60 in 58 s to 61 s, and at least 3 comments", snapshots, comments, took)
		}
		conn.Close()
		time.Sleep(2 * time.Second)
		s.live.mu.Lock()
		defer s.live.mu.Unlock()
		if len(s.live.readers) != 0 || s.live.stop != nil {
			t.Error("snapshots are still made after the last reader has disconnected")
		}
	})
}

func TestSlowReadersOfEventsDelayNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := startLive(t, newFixture(t, nil))
		for range maxReaders {
			slow, _ := s.open(t, "events") // reads the headers, and nothing more
			defer slow.Close()
		}
		fast, response := s.open(t, "events") // takes the place of the first slow one
		defer fast.Close()
		if response.StatusCode != 200 {
			t.Errorf("a reader above the maximum gets %d; want 200", response.StatusCode)
		}
		got, body := make(chan struct{}, 1000), response.Body
		go func() {
			for lines := bufio.NewScanner(body); lines.Scan(); {
				if strings.HasPrefix(lines.Text(), "data: ") {
					got <- struct{}{}
				}
			}
		}()
		time.Sleep(4500 * time.Millisecond)
		if n := len(got); n < 4 {
			t.Errorf("beside %d slow readers, a fast one got %d snapshots in 4.5 s; want at least 4", maxReaders-1, n)
		}
		began := time.Now()
		other, response := s.open(t, "state")
		defer other.Close()
		if took := time.Since(began); response.StatusCode != 200 || took != 0 {
			t.Errorf("beside slow readers, /state took %v and got %d; want 200 without a wait", took, response.StatusCode)
		}
		time.Sleep(4 * time.Second)
		s.live.mu.Lock()
		n := len(s.live.readers)
		s.live.mu.Unlock()
		if n != 1 {
			t.Errorf("%d readers are still connected; want only the fast one", n)
		}
		if n := len(got); n < 8 {
			t.Errorf("the fast reader got %d snapshots in 8.5 s; want at least 8", n)
		}
		after, response := s.open(t, "events")
		defer after.Close()
		if response.StatusCode != 200 {
			t.Errorf("after slow readers were disconnected, a new one gets %d; want 200", response.StatusCode)
		}
	})
}

// A reader above the maximum ends the stream of the oldest reader.
func TestNewReaderReplacesTheOldest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := startLive(t, newFixture(t, func(o *Options) { withDenials(o); o.MaxReaders = 2 }))
		var ended [3]error
		for i, path := range []string{"denials", "events", "denials"} {
			conn, response := s.open(t, path)
			defer conn.Close()
			go func() {
				_, err := io.Copy(io.Discard, response.Body)
				ended[i] = cmp.Or(err, io.EOF)
			}()
		}
		synctest.Wait()
		if ended != [3]error{io.EOF, nil, nil} || s.readers.count() != 2 {
			t.Errorf("the streams have ended with %v, and %d readers are left; want only the end of the first", ended, s.readers.count())
		}
	})
}

// Snapshots are made once for all readers.
func TestReadersShareSnapshots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		made := 0
		f := newFixture(t, func(o *Options) {
			o.StoreInfo = func(context.Context) StoreState { made++; return StoreState{Breakers: map[string]string{}} }
		})
		s := startLive(t, f)
		for range 10 {
			conn, response := s.open(t, "events")
			defer conn.Close()
			go func() {
				for lines := bufio.NewScanner(response.Body); lines.Scan(); {
				}
			}()
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		before := made
		for range 5 {
			f.get("state")
		}
		if made > before+1 {
			t.Errorf("5 reads within a second read the store %d times; want at most once", made-before)
		}
		if made < 9 || made > 12 {
			t.Errorf("for 10 readers, the store was read %d times in 10 s; want 9 to 12, as for one", made)
		}
	})
}

// Snapshots are made in a goroutine of their own, where net/http does not recover.
func TestPanicOfASnapshotEndsOnlyThisSnapshot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reads := 0
		s := startLive(t, newFixture(t, func(o *Options) {
			o.StoreInfo = func(context.Context) StoreState {
				if reads++; reads < 3 {
					panic("as it should")
				}
				return StoreState{Breakers: map[string]string{}}
			}
		}))
		conn, response := s.open(t, "events")
		defer conn.Close()
		for lines := bufio.NewScanner(response.Body); lines.Scan(); {
			if strings.HasPrefix(lines.Text(), "data: ") {
				return
			}
		}
		t.Error("after two panics, no snapshot is sent; want the third")
	})
}

// count returns how many places are taken.
func (p *places) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.all)
}
