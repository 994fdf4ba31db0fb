package fastgrpc

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// Calls that arrive together form lists of one method and one deadline. A list has at most 32
// calls, and at most Parallel.
func TestCallsAreGatheredIntoLists(t *testing.T) {
	first, second := ListHandler(func(context.Context, []*Call) {}), ListHandler(func(context.Context, []*Call) {})
	handlers := map[rune]*ListHandler{'a': &first, 'b': &second, '-': nil}
	one := newDeadline(t.Context(), time.Hour)
	defer one.cancel()
	for _, c := range []struct {
		calls                 string // the handler of each; in capitals: with a deadline
		parallel, maxParallel int
		want                  string // how many calls each list has
		listed                int64  // calls besides the first of each list
	}{
		{"a", 256, 1000, "1", 0}, {"aa", 256, 1000, "2", 1}, {"ab", 256, 1000, "1 1", 0}, {"aab-a", 256, 1000, "2 1 1 1", 1}, {"a-a", 256, 1000, "2 1", 1}, {"aAAa", 256, 1000, "1 2 1", 1},
		{"---", 256, 1000, "1 1 1", 0}, {strings.Repeat("a", 32), 256, 1000, "32", 31}, {strings.Repeat("a", 65), 256, 1000, "32 32 1", 62}, {strings.Repeat("a", 12), 5, 1000, "5 5 2", 9},
		{strings.Repeat("a", 6), 256, 3, "4 1 1", 3},
	} {
		s, err := New(Options{Parallel: c.parallel, MaxParallel: c.maxParallel})
		if err != nil {
			t.Fatal(err)
		}
		conn := newConn(s, &recording{})
		for i, name := range c.calls {
			st := newStream(conn, uint32(2*i+1))
			if name == 'A' {
				st.deadline, name = one, 'a'
			}
			st.listHandler = handlers[name]
			conn.batch = append(conn.batch, st)
		}
		conn.gatherLists()
		var lengths []string
		for _, st := range conn.batch {
			if st != nil {
				lengths = append(lengths, fmt.Sprint(1+len(st.others)))
			}
		}
		if got := strings.Join(lengths, " "); got != c.want || s.listedCalls.Load() != c.listed {
			t.Errorf("%s with Parallel %d: lists of %s calls, %d of them counted; want %s and %d", c.calls, c.parallel, got, s.listedCalls.Load(), c.want, c.listed)
		}
	}
}

// A handler starts in another goroutine if the connection has room for its calls, or if none runs.
func TestHandlersStartWhileThereIsRoom(t *testing.T) {
	for _, c := range []struct {
		running, others int
		want            bool
	}{{0, 0, true}, {0, 9, true}, {3, 0, true}, {4, 0, false}, {1, 2, true}, {1, 3, false}} {
		s, err := New(Options{Parallel: 4})
		if err != nil {
			t.Fatal(err)
		}
		conn := newConn(s, &recording{})
		conn.runningHandlers = c.running
		begin := make(chan struct{})
		st := newStream(conn, 1)
		st.isRunning = true
		st.handler = func(context.Context, *Call) error { <-begin; return nil }
		list := ListHandler(func(context.Context, []*Call) { <-begin })
		st.listHandler = &list
		conn.openStreams = 1 + c.others
		for range c.others {
			st.others = append(st.others, newStream(conn, 3))
		}
		s.listedCalls.Store(int64(c.others)) // as gatherLists has counted them
		started := conn.start(st)
		conn.mu.Lock()
		running := conn.runningHandlers
		conn.mu.Unlock()
		want := c.running
		if c.want {
			want += 1 + c.others
		}
		close(begin)
		s.goroutines.Wait()
		if started != c.want || running != want || conn.runningHandlers != c.running {
			t.Errorf("beside %d calls, a list of %d starts: %t, and then %d calls run, later %d; want %t, %d and %d", c.running, 1+c.others, started, running, conn.runningHandlers, c.want, want, c.running)
		}
		if listed := s.listedCalls.Load(); c.want && listed != 0 || !c.want && listed != int64(c.others) {
			t.Errorf("after a list of %d calls that starts: %t, %d calls are counted in lists; want that its end is counted", 1+c.others, c.want, listed)
		}
		s.Close()
	}
}

// A handler that ends while another one runs lets that one end first, so that one write carries
// both responses. A goroutine can be interrupted at any time, so this is true of most pairs only.
func TestResponsesOfHandlersThatEndTogetherShareAWrite(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	s, err := New(Options{})
	if err != nil {
		t.Fatal(err)
	}
	nc := &pausedConn{}
	conn := newConn(s, nc)
	const pairs = 100
	for i := range uint32(pairs) {
		var both [2]*stream
		for j := range both {
			st := newStream(conn, 4*i+2*uint32(j)+1)
			st.isRunning, st.sendWindow = true, initialWindow
			st.handler = func(context.Context, *Call) error { return nil }
			conn.streams[st.id] = st
			both[j] = st
		}
		conn.openStreams += 2
		conn.runningHandlers = 2
		var second sync.WaitGroup
		second.Go(both[1].handle)
		both[0].handle()
		second.Wait()
	}
	if n := len(nc.written); n < pairs || n > pairs+pairs/2 {
		t.Errorf("the responses of %d pairs of calls are sent by %d writes; want one write for most pairs", pairs, n)
	}
	conn.close()
	s.Close()
}

// A deadline that calls share ends with the last of them, or when it passes.
func TestSharedDeadlineEndsWithItsLastCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDeadline(t.Context(), time.Hour)
		d.calls.Add(3)
		for _, step := range []struct {
			calls int
			want  error
		}{{2, nil}, {1, context.Canceled}} {
			if d.end(step.calls); d.Err() != step.want {
				t.Errorf("after the end of %d more calls, the error is %v; want %v", step.calls, d.Err(), step.want)
			}
		}
		d = newDeadline(t.Context(), time.Hour)
		time.Sleep(time.Hour - 1)
		if synctest.Wait(); d.Err() != nil {
			t.Errorf("before the deadline, the error is %v; want none", d.Err())
		}
		time.Sleep(time.Nanosecond)
		if synctest.Wait(); d.Err() != context.DeadlineExceeded {
			t.Errorf("after the deadline, the error is %v; want DeadlineExceeded", d.Err())
		}
		d.cancel()
	})
}

// Successive calls with one timeout share a deadline. Calls without a timeout have none.
func TestCallsWithOneTimeoutShareADeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, err := New(Options{Parallel: 1})
		if err != nil {
			t.Fatal(err)
		}
		conn := newConn(s, &recording{})
		var left []time.Duration
		var contexts []context.Context
		for i, timeout := range []time.Duration{time.Second, time.Second, -1, time.Second, time.Minute} {
			st := newStream(conn, uint32(2*i+1))
			st.timeout, st.isRunning, st.sendWindow = timeout, true, initialWindow
			st.handler = func(ctx context.Context, _ *Call) error {
				at, _ := ctx.Deadline()
				left, contexts = append(left, time.Until(at)), append(contexts, ctx)
				return nil
			}
			conn.streams[st.id] = st
			conn.openStreams++
			conn.batch = append(conn.batch, st)
		}
		conn.dispatch()
		if len(left) != 5 || left[0] != time.Second || left[1] != time.Second || left[3] != time.Second || left[4] != time.Minute || contexts[0] != contexts[1] || contexts[1] != contexts[3] || contexts[2] != conn.ctx {
			t.Errorf("the calls have %v; want a second for three of them, which share a context, none for the third, and a minute", left)
		}
		if contexts[0].Err() == nil || contexts[4].Err() == nil || len(conn.batch) != 0 || conn.openStreams != 0 || len(conn.streams) != 0 {
			t.Errorf("after the calls, the contexts have ended with %v and %v, and %d streams are open; want both ended, and none open", contexts[0].Err(), contexts[4].Err(), conn.openStreams)
		}
		conn.close()
		s.Close()
	})
}
