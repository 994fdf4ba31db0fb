package redisclient

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/rueidis"
)

// fakeCalls is a client whose calls last until they may end.
type fakeCalls struct {
	hold   chan struct{} // not nil: calls last until it is closed
	err    error
	panics any
	ended  atomic.Int64 // calls that have ended

	mu      sync.Mutex
	log     []string
	running context.Context // of the last call
}

func (f *fakeCalls) call(ctx context.Context, format string, args ...any) (string, error) {
	f.mu.Lock()
	f.log, f.running = append(f.log, fmt.Sprintf(format, args...)), ctx
	f.mu.Unlock()
	if f.panics != nil {
		panic(f.panics)
	}
	defer f.ended.Add(1)
	if f.hold != nil {
		select {
		case <-f.hold:
		case <-ctx.Done():
			return "", ctx.Err()
		}
	}
	return "reply", f.err
}

func (f *fakeCalls) EvalSha(ctx context.Context, digest string, keys, args []string) (string, error) {
	return f.call(ctx, "evalsha %s %v %v", digest, keys, args)
}

func (f *fakeCalls) Eval(ctx context.Context, script string, keys, args []string) (string, error) {
	return f.call(ctx, "eval %s %v %v", script, keys, args)
}

func (f *fakeCalls) Load(ctx context.Context, key string, scripts []string) error {
	_, err := f.call(ctx, "load %s %v", key, scripts)
	return err
}

func (f *fakeCalls) Ping(ctx context.Context) error {
	_, err := f.call(ctx, "ping")
	return err
}

func (f *fakeCalls) Sharded(context.Context) (bool, error) { return true, f.err }
func (f *fakeCalls) Close() error                          { return errors.New("closed with an error") }

// Each call reaches the wrapped client with its arguments, and its result returns.
func TestDetachedPassesCallsOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeCalls{}
		d := Detach(f)
		for _, want := range []error{nil, errors.New("an error")} {
			f.log, f.err = nil, want
			ctx := t.Context()
			reply, err := d.EvalSha(ctx, "d", []string{"k"}, []string{"a"})
			reply2, err2 := d.Eval(ctx, "s", []string{"k2"}, []string{"a2"})
			err3, err4 := d.Load(ctx, "k3", []string{"7"}), d.Ping(ctx)
			isSharded, err5 := d.Sharded(ctx)
			if got := fmt.Sprint(f.log); got != "[evalsha d [k] [a] eval s [k2] [a2] load k3 [7] ping]" || reply != "reply" || reply2 != "reply" || !isSharded {
				t.Errorf("the calls are %s, with the replies %s, %s and %t; want each call with its arguments and its reply", got, reply, reply2, isSharded)
			}
			for i, err := range []error{err, err2, err3, err4, err5} {
				if err != want {
					t.Errorf("call %d returns %v; want %v", i, err, want)
				}
			}
		}
		if len(d.idle) != 1 {
			t.Errorf("%d workers are idle; want one, which made all calls", len(d.idle))
		}
		f.panics = "this is a test"
		if reply, err := d.EvalSha(t.Context(), "d", nil, nil); reply != "" || err == nil || !strings.HasPrefix(err.Error(), "the client panicked: this is a test\n") {
			t.Errorf("a panic returns %q, %.40v; want its text as an error", reply, err)
		}
		f.panics, f.err = nil, nil
		if err := d.Ping(t.Context()); err != nil || len(d.idle) != 1 {
			t.Errorf("after a panic: %v, and %d idle workers; want no error and the same worker", err, len(d.idle))
		}
		if err := d.Close(); err == nil || err.Error() != "closed with an error" {
			t.Errorf("Close returns %v; want the error of the client", err)
		}
		if err := d.Ping(t.Context()); !errors.Is(err, ErrClosed) || !errors.Is(err, ErrNotSent) {
			t.Errorf("after Close: %v; want ErrClosed and ErrNotSent", err)
		}
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		if err := d.Ping(ended); !errors.Is(err, ErrLate) || !errors.Is(err, ErrNotSent) || !errors.Is(err, context.Canceled) {
			t.Errorf("a call whose context has ended: %v; want ErrLate and ErrNotSent", err)
		}
	})
}

// A worker ends after 10 s without a call. Until then it makes the next call.
func TestWorkersEndWhenIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeCalls{}
		d := Detach(f)
		idle := func() int {
			synctest.Wait()
			d.mu.Lock()
			defer d.mu.Unlock()
			return len(d.idle)
		}
		f.hold = make(chan struct{})
		for range 3 {
			go d.Ping(t.Context())
		}
		synctest.Wait()
		close(f.hold)
		f.hold = nil
		if n := idle(); n != 3 {
			t.Errorf("after three calls, %d workers are idle; want 3", n)
		}
		time.Sleep(6 * time.Second)
		last := d.idle[2]
		if d.Ping(t.Context()); d.idle[2] != last || len(d.idle) != 3 {
			t.Error("the next call was made by another worker; want the one that was used last")
		}
		time.Sleep(4*time.Second - 1)
		if n := idle(); n != 3 {
			t.Errorf("before 10 s, %d workers are idle; want 3", n)
		}
		time.Sleep(time.Nanosecond)
		if n := idle(); n != 1 {
			t.Errorf("after 10 s, %d workers are idle; want 1, which had a call since", n)
		}
		time.Sleep(6*time.Second - 1)
		if n := idle(); n != 1 {
			t.Errorf("before 16 s, %d workers are idle; want 1", n)
		}
		time.Sleep(time.Nanosecond)
		if n := idle(); n != 0 {
			t.Errorf("after 16 s, %d workers are idle; want none", n)
		}
		if d.removeIdle(last) {
			t.Error("a worker that has ended was removed again; want that it is not found")
		}
	})
}

// A call outlasts its caller by five seconds at most. Its reply is dropped.
func TestAbandonedCallsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeCalls{hold: make(chan struct{})}
		d := Detach(f)
		defer d.Close()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began := time.Now()
		if reply, err := d.EvalSha(ctx, "d", nil, nil); reply != "" || err != context.DeadlineExceeded || time.Since(began) != time.Second {
			t.Errorf("a call that hangs returns %q, %v after %v; want the end of its context after a second", reply, err, time.Since(began))
		}
		synctest.Wait()
		if at, ok := f.running.Deadline(); !ok || at.Sub(began) != 2*time.Second {
			t.Errorf("the deadline of the call is after %v, %t; want a second after the caller's", at.Sub(began), ok)
		}
		if n := d.abandoned.Load(); n != 1 || f.running.Err() == nil {
			t.Errorf("%d calls are abandoned, and the error of the context is %v; want 1, and an error, so that nothing more is sent", n, f.running.Err())
		}
		time.Sleep(5*time.Second - 1)
		synctest.Wait()
		if f.ended.Load() != 0 {
			t.Error("the call ended within 5 s; want that it continues")
		}
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		if f.ended.Load() != 1 || d.abandoned.Load() != 0 || len(d.idle) != 0 {
			t.Errorf("after 5 s, %d calls have ended, %d are abandoned, and %d workers are idle; want 1, 0 and 0", f.ended.Load(), d.abandoned.Load(), len(d.idle))
		}
		// A call that ends by itself is not abandoned any more.
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		d.Ping(short)
		close(f.hold)
		synctest.Wait()
		if f.ended.Load() != 2 || d.abandoned.Load() != 0 {
			t.Errorf("%d calls have ended, and %d are abandoned; want 2 and 0", f.ended.Load(), d.abandoned.Load())
		}
	})
}

// At 1024 abandoned calls, no further call is sent.
func TestAbandonedCallsHaveABound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeCalls{hold: make(chan struct{})}
		d := Detach(f)
		defer d.Close()
		ctx, cancel := context.WithCancel(t.Context())
		for range 1023 {
			go d.Ping(ctx)
		}
		synctest.Wait()
		cancel()
		synctest.Wait()
		next, cancel := context.WithCancel(t.Context())
		errs := make(chan error, 1)
		go func() { errs <- d.Ping(next) }()
		synctest.Wait()
		if len(f.log) != 1024 {
			t.Errorf("with 1023 abandoned calls, %d calls were sent; want 1024", len(f.log))
		}
		cancel()
		if err := <-errs; err != context.Canceled {
			t.Errorf("the call returns %v; want context.Canceled", err)
		}
		if err := d.Ping(t.Context()); !errors.Is(err, ErrNotSent) || !strings.HasSuffix(err.Error(), "1024 abandoned calls still wait for the server") {
			t.Errorf("with 1024 abandoned calls, the next one returns %v; want that it was not sent", err)
		}
		close(f.hold)
		synctest.Wait()
		if err := d.Ping(t.Context()); err != nil || d.abandoned.Load() != 0 {
			t.Errorf("after the abandoned calls have ended: %v, %d abandoned; want no error and none", err, d.abandoned.Load())
		}
	})
}

// Close ends the calls of callers that wait. It waits up to a second for a client that hangs.
func TestCloseOfADetachedClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeCalls{hold: make(chan struct{})}
		d := Detach(f)
		errs := make(chan error, 1)
		go func() { errs <- d.Ping(context.Background()) }()
		synctest.Wait()
		if err := f.running.Err(); err != nil || d.Close() == nil || f.running.Err() != context.Canceled {
			t.Errorf("without a worker, the error of the call's context is %v, and after Close %v; want none, and context.Canceled", err, f.running.Err())
		}
		if err := <-errs; err != context.Canceled || len(d.idle) != 0 {
			t.Errorf("a caller whose context never ends gets %v, and %d workers are idle; want the error of the client, and no worker", err, len(d.idle))
		}
	})
	synctest.Test(t, func(t *testing.T) {
		f := &fakeCalls{hold: make(chan struct{})}
		d := Detach(f)
		errs := make(chan error, 1)
		go func() { errs <- d.Ping(t.Context()) }()
		synctest.Wait()
		if at, ok := f.running.Deadline(); !ok || time.Until(at) != time.Hour+time.Second || f.running.Err() != nil {
			t.Errorf("without a deadline, that of the call is in %v, %t, error %v; want an hour and a second, and no error", time.Until(at), ok, f.running.Err())
		}
		began := time.Now()
		d.Close()
		if err := <-errs; err != ErrClosed || time.Since(began) != 0 {
			t.Errorf("a caller that waits gets %v, and Close lasted %v; want ErrClosed without a wait", err, time.Since(began))
		}
		if err := f.running.Err(); err != context.Canceled {
			t.Errorf("after Close, the error of the call's context is %v; want context.Canceled", err)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		d := Detach(hangingCalls{&fakeCalls{}, release})
		go d.Ping(t.Context())
		synctest.Wait()
		began := time.Now()
		if d.Close(); time.Since(began) != time.Second {
			t.Errorf("Close of a client that hangs lasts %v; want a second", time.Since(began))
		}
		close(release)
	})
}

// A worker whose call ends after Close ends too.
func TestWorkerEndsAfterClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := Detach(&fakeCalls{})
		w := d.worker()
		d.Close()
		d.addIdle(w)
		synctest.Wait() // synctest reports a goroutine that is left
		if _, isOpen := <-w.calls; isOpen || len(d.idle) != 0 {
			t.Errorf("after Close, the worker gets calls: %t, and %d workers are idle; want that it has ended", isOpen, len(d.idle))
		}
	})
}

// A hangingCalls does not end its calls when their contexts end.
type hangingCalls struct {
	*fakeCalls
	release chan struct{}
}

func (h hangingCalls) Ping(context.Context) error {
	<-h.release
	return nil
}

// Within 100 ms after a failed attempt to connect, calls get its error. A later call begins another
// attempt.
func TestConnectorTriesAgainAfterAPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dials := 0
		option := rueidis.ClientOption{InitAddress: []string{"redis:1"}, DisableRetry: true, DisableCache: true}
		option.DialCtxFn = func(context.Context, string, *net.Dialer, *tls.Config) (net.Conn, error) {
			dials++
			return nil, fmt.Errorf("attempt %d", dials)
		}
		c := Connect(option, func(text string) error { return errors.New(text) })
		defer time.Sleep(time.Minute) // until the goroutines of rueidis have ended
		defer c.Close()
		synctest.Wait()
		get := func() string {
			client, err := c.Get(t.Context())
			if client != nil || !errors.Is(err, ErrNotSent) {
				t.Fatalf("Get returns %v, %v; want ErrNotSent", client, err)
			}
			return err.Error()
		}
		for _, step := range []struct {
			after time.Duration
			want  string
		}{{0, "attempt 1"}, {100 * time.Millisecond, "attempt 1"}, {1, "attempt 2"}, {99 * time.Millisecond, "attempt 2"}, {time.Hour, "attempt 3"}} {
			time.Sleep(step.after)
			if got := get(); !strings.HasSuffix(got, step.want) {
				t.Errorf("%v later, the error is %s; want that of %s", step.after, got, step.want)
			}
		}
	})
}

// Close ends an attempt to connect, and its callers.
func TestCloseEndsAnAttemptToConnect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		option := rueidis.ClientOption{InitAddress: []string{"redis:1"}, DisableRetry: true, DisableCache: true}
		option.DialFn = func(string, *net.Dialer, *tls.Config) (net.Conn, error) {
			time.Sleep(time.Second)
			return newScripted("", 1), nil
		}
		c := Connect(option, func(text string) error { return errors.New(text) })
		defer time.Sleep(time.Minute) // until the goroutines of rueidis have ended
		errs := make(chan error, 2)
		go func() {
			_, err := c.Get(t.Context())
			errs <- err
		}()
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if _, err := c.Get(ctx); !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, ErrNotSent) {
			t.Errorf("a caller whose deadline passes gets %v; want DeadlineExceeded and ErrNotSent", err)
		}
		synctest.Wait()
		c.Close()
		if err := <-errs; !errors.Is(err, ErrClosed) {
			t.Errorf("a caller that waits gets %v; want ErrClosed", err)
		}
		if client, err := c.Get(t.Context()); client != nil || !errors.Is(err, ErrClosed) || !errors.Is(err, ErrNotSent) {
			t.Errorf("after Close, Get returns %v, %v; want ErrClosed", client, err)
		}
	})
}

// The files of a URL are named in errors, with their option.
func TestErrorsOfFilesNameTheirOption(t *testing.T) {
	read := func(name string) ([]byte, error) {
		if name == "missing" {
			return nil, errors.New("no such file")
		}
		return []byte("from " + name + "\r\n"), nil
	}
	for text, want := range map[string]string{
		"redis://h?password_file=missing":                               "password_file: no such file",
		"redis+sentinel://h/m?sentinel_password_file=missing":           "sentinel_password_file: no such file",
		"redis://h?sentinel_password_file=a":                            `the option "sentinel_password_file" needs a URL of Sentinels`,
		"rediss://h?cert=missing&key=a":                                 "cert and key: no such file",
		"rediss://h?cert=a&key=missing":                                 "cert and key: no such file",
		"rediss://h?cert=a&key=b":                                       "cert and key: ",
		"rediss://h?ca=missing":                                         "ca: no such file",
		"rediss://h?ca=a":                                               "ca: a holds no certificate",
		"redis://h?ca=a":                                                `the option "ca" needs TLS`,
		"redis+sentinel://h/m?password_file=a&sentinel_password_file=b": "",
	} {
		if _, err := parse(text, read); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v; want %q", text, err, want)
		}
		if want != "" && !strings.Contains(text, "sentinel_password_file=a") && !strings.Contains(want, "needs TLS") {
			if err := CheckURL(text); err != nil {
				t.Errorf("%s, without files: %v; want no error", text, err)
			}
		}
	}
	option, err := parse("redis+sentinel://u:old@h/m?password_file=a&sentinel_username=su&sentinel_password_file=b", read)
	if err != nil || option.Password != "from a" || option.Sentinel.Password != "from b" {
		t.Fatalf("the passwords are %q and %q, %v; want those of the files", option.Password, option.Sentinel.Password, err)
	}
	address := &net.TCPAddr{Port: 1}
	for _, c := range []struct {
		address net.Addr
		want    rueidis.AuthCredentials
	}{{address, rueidis.AuthCredentials{Username: "u", Password: "from a"}}, {sentinelAddr{address}, rueidis.AuthCredentials{Username: "su", Password: "from b"}}} {
		if got, err := option.AuthCredentialsFn(rueidis.AuthCredentialsContext{Address: c.address}); err != nil || got != c.want {
			t.Errorf("the credentials for %T are %+v, %v; want %+v", c.address, got, err, c.want)
		}
	}
	// Only the file of one of them is named: the other password is that of the URL.
	option, err = parse("redis+sentinel://u:given@h/m?sentinel_password_file=b", read)
	if got, err2 := option.AuthCredentialsFn(rueidis.AuthCredentialsContext{Address: address}); err != nil || err2 != nil || got.Password != "given" {
		t.Errorf("the credentials are %+v, %v, %v; want the password of the URL", got, err, err2)
	}
	file := passwordFile{option: "o", name: "missing", read: read}
	option.AuthCredentialsFn = nil
	if _, err := file.password("given"); err == nil || err.Error() != "o: no such file" {
		t.Errorf("the password of a missing file: %v; want an error with its option", err)
	}
}

// Only connections to Sentinels have the mark.
func TestConnectionsToSentinelsAreMarked(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	option := rueidis.ClientOption{}
	option.Sentinel.MasterSet = "m"
	query := url.Values{"sentinel_password_file": {"a"}}
	if err := setPasswordFiles(&option, query, func(string) ([]byte, error) { return nil, nil }); err != nil {
		t.Fatal(err)
	}
	for _, isSentinel := range []bool{true, false} {
		dialer := &net.Dialer{}
		if isSentinel {
			*dialer = option.Sentinel.Dialer
		}
		conn, err := option.DialCtxFn(t.Context(), listener.Addr().String(), dialer, nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, isMarked := conn.RemoteAddr().(sentinelAddr); isMarked != isSentinel || conn.RemoteAddr().String() != listener.Addr().String() {
			t.Errorf("a connection to a Sentinel: %t; its address is a %T; want the mark only for a Sentinel", isSentinel, conn.RemoteAddr())
		}
		if marked, ok := conn.(sentinelConn); ok {
			if _, isTCP := marked.NetConn().(*net.TCPConn); !isTCP {
				t.Errorf("the connection below the mark is a %T; want that of TCP", marked.NetConn())
			}
		}
		conn.Close()
	}
	listener.Close()
	if conn, err := option.DialCtxFn(t.Context(), listener.Addr().String(), &option.Sentinel.Dialer, nil); err == nil {
		t.Errorf("a dial of a closed port returns %v; want an error", conn)
	}
}

// Values that are malformed never pass whole.
func TestMalformedValuesDoNotPass(t *testing.T) {
	for stream, want := range map[string]int{ // how many bytes pass
		"#t\r\n": 4, "#f\r\n": 4, "#x\r\n": 1, "#t\n": 2, "+a\r\n": 4, "+a\ra": 3, "_\r\n": 3, "_x": 1, ":1\r\n": 4, ":-1\r\n": 5, ":--1\r\n": 2, ":\r\n": 1, ":1-\r\n": 2,
		":1234567890123456789\r\n": 22, ":12345678901234567890\r\n": 20, "$1\r\nab": 5, "$0\r\n\r\n": 6, "$-1\r\n": 5, "$-2\r\n": 4, "*-1\r\n": 5, "%-1\r\n": 4, "*1\r\n>1\r\n": 4, "x": 0,
	} {
		x := new(exchange)
		x.send([]byte(commandsOf(evalsha)))
		accepted, err := receiveAll(x, stream, whole)
		if len(accepted) != want || (err == nil) != (want == len(stream)) {
			t.Errorf("%q: %d bytes pass, error %v; want %d", stream, len(accepted), err, want)
		}
	}
}

// A dial that the option defines is used, whichever of the two forms it has.
func TestCheckedConnectionsUseTheDialOfTheOption(t *testing.T) {
	var dialed []string
	conn, other := net.Pipe()
	defer other.Close()
	note := func(name string) (net.Conn, error) {
		dialed = append(dialed, name)
		return conn, nil
	}
	withCtx := func(context.Context, string, *net.Dialer, *tls.Config) (net.Conn, error) { return note("DialCtxFn") }
	withoutCtx := func(string, *net.Dialer, *tls.Config) (net.Conn, error) { return note("DialFn") }
	for _, option := range []rueidis.ClientOption{{DialCtxFn: withCtx}, {DialFn: withoutCtx}, {DialCtxFn: withCtx, DialFn: withoutCtx}} {
		life, end := context.WithCancel(t.Context())
		checkConnections(&option, life)
		got, err := option.DialCtxFn(t.Context(), "a", &net.Dialer{}, nil)
		if g, ok := got.(*checkedConn); err != nil || !ok || g.Conn != conn {
			t.Errorf("the dial returns %T, %v; want a checkedConn", got, err)
		}
		end()
	}
	if want := []string{"DialCtxFn", "DialFn", "DialCtxFn"}; !slices.Equal(dialed, want) {
		t.Errorf("the dials are %v; want %v", dialed, want)
	}
	option := rueidis.ClientOption{}
	checkConnections(&option, t.Context())
	if got, err := option.DialCtxFn(t.Context(), "127.0.0.1:0", &net.Dialer{Timeout: time.Second}, nil); err == nil {
		t.Errorf("a dial of a port that nobody has returns %v; want an error", got)
	}
}

// A push of two elements can confirm a subscription. A shorter one is ignored.
func TestShortestPushesOfSubscriptions(t *testing.T) {
	for _, c := range []struct {
		commands []string
		stream   string
		isWhole  bool // all of the stream passes
	}{
		{[]string{"SUBSCRIBE a", "GET k"}, ">2\r\n+subscribe\r\n+a\r\n+OK\r\n", true},
		{[]string{"GET k"}, ">2\r\n+subscribe\r\n+a\r\n", false},
		{[]string{"GET k"}, ">1\r\n+subscribe\r\n+OK\r\n", true},
	} {
		x := new(exchange)
		x.send([]byte(commandsOf(c.commands...)))
		if accepted, err := receiveAll(x, c.stream, whole); (accepted == c.stream) != c.isWhole || (err == nil) != c.isWhole {
			t.Errorf("after %q, %q of %q passes, error %v; want all of it: %t", c.commands, accepted, c.stream, err, c.isWhole)
		}
	}
}
