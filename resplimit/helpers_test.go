package resplimit

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/admission"
	"github.com/penstock/penstock/guard"
	"github.com/penstock/penstock/policy"
)

// A clock has a time that only the test changes.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func newClock() *clock { return &clock{now: time.Unix(1_700_000_000, 0)} }

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) advance(by time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(by)
}

// serve starts a Server on loopback, and closes it when the test ends.
func serve(t testing.TB, store penstock.Store, controller *admission.Controller, o Options) (s *Server, addr string) {
	t.Helper()
	if o.Credentials == nil {
		o.AllowAnonymous = true
	}
	s, err := New(store, controller, o)
	if err != nil {
		t.Fatal(err)
	}
	return s, listen(t, s)
}

// expectPanic keeps the report of a panic, with its stack, out of the output of the test. The test
// fails if there is no report. It must be called before serve, so that the server ends first.
func expectPanic(t *testing.T, message string) {
	t.Helper()
	var reports strings.Builder
	log.SetOutput(&reports)
	t.Cleanup(func() {
		log.SetOutput(os.Stderr)
		if !strings.Contains(reports.String(), message) || !strings.Contains(reports.String(), "goroutine ") {
			t.Errorf("the log has %q; want a panic with %q and its stack", reports.String(), message)
		}
	})
}

// listen serves clients on loopback, and closes the server when the test ends.
func listen(t testing.TB, s *Server) (addr string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(l) }()
	t.Cleanup(func() {
		s.Close()
		if err := <-ended; !errors.Is(err, ErrServerClosed) {
			t.Errorf("Serve returned %v; want ErrServerClosed", err)
		}
	})
	return l.Addr().String()
}

// A testClient is a connection to the server. Its replies are strings as readReply writes them.
type testClient struct {
	net.Conn
	t       testing.TB
	replies *bufio.Reader
}

// testTimeout ends a test that hangs.
const testTimeout = time.Minute

func connect(t testing.TB, addr string) *testClient {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	conn.SetDeadline(time.Now().Add(testTimeout))
	return &testClient{conn, t, bufio.NewReader(conn)}
}

// encode encodes a command as an array of bulk strings.
func encode(args ...string) string {
	var s strings.Builder
	fmt.Fprintf(&s, "*%d\r\n", len(args))
	for _, arg := range args {
		fmt.Fprintf(&s, "$%d\r\n%s\r\n", len(arg), arg)
	}
	return s.String()
}

func (client *testClient) send(text string) {
	client.t.Helper()
	if _, err := io.WriteString(client, text); err != nil {
		client.t.Fatal(err)
	}
}

func (client *testClient) reply() string {
	client.t.Helper()
	client.SetDeadline(time.Now().Add(testTimeout))
	text, err := readReply(client.replies)
	if err != nil {
		client.t.Fatalf("read a reply: %v", err)
	}
	return text
}

// do sends the words of a line as a command, and returns the reply.
func (client *testClient) do(line string) string {
	client.t.Helper()
	client.send(encode(strings.Fields(line)...))
	return client.reply()
}

// expect fails the test unless a command has this reply:
//
//	CL.THROTTLE  [limited limit remaining retry-after reset-after]
//	THROTTLE     [allowed limit remaining reset-after retry-after]
func (client *testClient) expect(line, want string) {
	client.t.Helper()
	if got := client.do(line); got != want {
		client.t.Errorf("%s: the reply is %q; want %q", line, got, want)
	}
}

// expectEnd fails the test unless the server closes the connection, without a further reply.
func (client *testClient) expectEnd() {
	client.t.Helper()
	if text, err := readReply(client.replies); err == nil {
		client.t.Errorf("the server sends a further reply %q; want that it closes the connection", text)
	} else if e, ok := errors.AsType[net.Error](err); ok && e.Timeout() {
		client.t.Errorf("the connection is still open after %v; want that the server closes it", testTimeout)
	}
}

// readReply reads a reply of version 2 or 3: "+OK", "-ERR …", "7", "text", "[1 2]", "{a:1}", "nil".
func readReply(r *bufio.Reader) (string, error) {
	line, err := r.ReadString('\n')
	if err != nil {
		return "", err
	}
	kind, line := line[0], strings.TrimSuffix(line[1:], "\r\n")
	n, _ := strconv.Atoi(line)
	switch {
	case kind == '+' || kind == '-':
		return string(kind) + line, nil
	case kind == ':':
		return line, nil
	case kind == '_' || kind == '$' && n < 0:
		return "nil", nil
	case kind == '$' || kind == '=':
		text := make([]byte, n+2)
		_, err := io.ReadFull(r, text)
		return string(text[:n]), err
	case kind == '*' || kind == '%':
		if kind == '%' {
			n *= 2
		}
		list := make([]string, n)
		for i := range list {
			if list[i], err = readReply(r); err != nil {
				return "", err
			}
		}
		if kind == '*' {
			return "[" + strings.Join(list, " ") + "]", nil
		}
		var pairs []string
		for i := 0; i < n; i += 2 {
			pairs = append(pairs, list[i]+":"+list[i+1])
		}
		return "{" + strings.Join(pairs, " ") + "}", nil
	}
	return "", fmt.Errorf("a reply begins with %q; want one of the RESP types", kind)
}

// newFailingStore returns a store that fails for a reason. The error contains an address, which no
// reply may contain.
func newFailingStore(reason penstock.Reason) penstock.Store {
	return penstock.StoreFunc(func(context.Context, []penstock.Charge) (penstock.Decision, error) {
		return penstock.Decision{}, penstock.NewStoreError(reason, errors.New("secret.example:6379"))
	})
}

// controllerOf returns a controller with a policy of two rules: "search" has these limits for each
// user, and "free" has none.
func controllerOf(t testing.TB, store penstock.Store, onFailure guard.FailureMode, limits ...penstock.Limit) *admission.Controller {
	t.Helper()
	spec, err := policy.Simple("search", policy.By("user", policy.Header("X-User")), onFailure, limits...)
	if err != nil {
		t.Fatal(err)
	}
	spec.Rules = append(spec.Rules, &policy.Rule{Name: "free", Unlimited: true})
	rules, err := policy.New(spec)
	if err != nil {
		t.Fatal(err)
	}
	c, err := admission.New(store, rules, admission.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return c
}
