package redistest

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/testing/eventually"
)

func TestServerAnswersOnSocketAndPort(t *testing.T) {
	t.Parallel()
	s := Start(t)
	wantReply(t, s, "OK", "SET", "k", "v\r\n")
	wantReply(t, s, "v\r\n", "GET", "k")
	wantReply(t, s, nil, "GET", "absent")
	wantReply(t, s, int64(1), "INCR", "n")
	if got, err := s.Do("EVAL", "return {1, 'a', {false}}", "0"); fmt.Sprint(got, err) != "[1 a [<nil>]] <nil>" {
		t.Errorf("nested array: %v, %v; want [1 a [<nil>]] without an error", got, err)
	}
	if _, err := s.Do("INCR", "k"); err == nil || !strings.HasPrefix(err.Error(), "ERR value is not an integer") {
		t.Errorf("INCR of a text: %v; want the error reply", err)
	}
	if got, err := call("tcp", s.Addr, answerTimeout, "GET", "n"); got != "1" {
		t.Errorf("GET over TCP: %v, %v; want 1", got, err)
	}
	if s.URL() != "unix://"+s.Socket {
		t.Errorf("URL %q; want %q", s.URL(), "unix://"+s.Socket)
	}
}

func TestServerMeasuresItself(t *testing.T) {
	t.Parallel()
	s := Start(t)
	before, err := s.CPU()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Do("EVAL", "for i = 1, 1e6 do end", "0"); err != nil {
		t.Fatal(err)
	}
	after, err := s.CPU()
	if used := after - before; err != nil || used < time.Millisecond || used > time.Minute {
		t.Errorf("a loop of a million steps took %v of processor time, %v; want 1ms to 1m", used, err)
	}
	if calls, usec, err := s.CommandStats("EVAL"); calls != 1 || usec < 1000 || err != nil {
		t.Errorf("commandstats of EVAL: %d calls, %d µs, %v; want 1 call of at least 1000 µs", calls, usec, err)
	}
	if calls, _, err := s.CommandStats("zadd"); calls != 0 || err != nil {
		t.Errorf("commandstats of ZADD: %d calls, %v; want 0", calls, err)
	}
	if n, err := s.UsedMemory(); n < 100_000 || err != nil {
		t.Errorf("used memory: %d bytes, %v; want at least 100000", n, err)
	}
}

func TestLaterArgumentsWin(t *testing.T) {
	t.Parallel()
	s := Start(t, "--port", "0", "--appendonly", "yes", "--appendfsync", "always")
	if s.Addr != "" {
		t.Errorf("Addr %q of a server without a port; want none", s.Addr)
	}
	wantReply(t, s, "OK", "SET", "k", "kept")
	s.Kill()
	restart(t, s)
	wantReply(t, s, "kept", "GET", "k")
}

func TestRestartKeepsAddressAndLosesState(t *testing.T) {
	t.Parallel()
	s := Start(t)
	wantReply(t, s, "OK", "SET", "k", "v")
	addr, pid := s.Addr, s.PID()
	if err := s.Restart(); err == nil {
		t.Error("Restart of a running server succeeded; want an error")
	}
	s.Kill()
	if _, err := s.Do("PING"); err == nil {
		t.Error("PING to a killed server succeeded; want an error")
	}
	if _, err := s.CPU(); !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("CPU of a killed server: %v; want %v", err, os.ErrProcessDone)
	}
	restart(t, s)
	wantReply(t, s, nil, "GET", "k")
	if got, err := call("tcp", addr, answerTimeout, "PING"); got != "PONG" {
		t.Errorf("PING on the old port: %v, %v; want PONG", got, err)
	}
	if s.PID() == pid {
		t.Error("the restarted server has the old process ID; want a new one")
	}
}

func TestPausedServerIsSilentUntilResumed(t *testing.T) {
	t.Parallel()
	s := Start(t)
	s.Pause()
	if _, err := call("unix", s.Socket, 50*time.Millisecond, "PING"); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("PING to a paused server: %v; want a timeout", err)
	}
	s.Resume()
	wantReply(t, s, "PONG", "PING")
}

func TestCloseLeavesNothing(t *testing.T) {
	t.Parallel()
	s, err := Launch()
	if err != nil {
		t.Fatal(err)
	}
	s.Close()
	s.Close()
	if _, err := os.Stat(s.dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("stat of the folder after Close: %v; want that it does not exist", err)
	}
	process, err := os.FindProcess(s.PID())
	if err == nil {
		err = process.Signal(syscall.Signal(0))
	}
	if !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("signal to the process after Close: %v; want that it has ended", err)
	}
}

func TestLaunchErrorShowsTheLog(t *testing.T) {
	t.Parallel()
	if _, err := Launch("--no-such-option", "1"); err == nil || !strings.Contains(err.Error(), "no-such-option") {
		t.Errorf("launch with an unknown option: %v; want the server's log", err)
	}
	taken := Start(t)
	if _, err := Launch("--port", portOf(taken.Addr)); !errors.Is(err, errPortTaken) {
		t.Errorf("launch with a port in use: %v; want %v", err, errPortTaken)
	}
}

// The test binary runs itself as a program that launches a server and is then killed.
func TestServerDiesWithItsProgram(t *testing.T) {
	if os.Getenv("REDISTEST_CHILD") != "" {
		s := Start(t)
		fmt.Printf("pid %d %s\n", s.PID(), s.dir)
		select {}
	}
	t.Parallel()
	if sysProcAttr() == nil {
		t.Skip("no death signal on this system")
	}
	child := exec.Command(os.Args[0], "-test.run=^TestServerDiesWithItsProgram$")
	child.Env = append(os.Environ(), "REDISTEST_CHILD=1")
	out, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	var pid int
	var dir string
	_, err = fmt.Fscanf(out, "pid %d %s\n", &pid, &dir)
	_ = child.Process.Kill()
	_ = child.Wait()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	err = await(answerTimeout, func() error {
		if stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)); err == nil && !strings.Contains(string(stat), ") Z ") {
			return fmt.Errorf("process %d still runs", pid)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

func TestProxiedClusterAnnouncesItsProxies(t *testing.T) {
	t.Parallel()
	c, proxies := StartProxiedCluster(t)
	for _, n := range c.Nodes {
		for port := range announcedPorts(t, n) {
			if !slices.Contains(c.Addrs(), "127.0.0.1:"+port) {
				t.Errorf("CLUSTER SLOTS names port %s; want only ports of the proxies %v", port, c.Addrs())
			}
		}
		if count := len(announcedPorts(t, n)); count != 2*primaries {
			t.Errorf("CLUSTER SLOTS names %d ports; want %d", count, 2*primaries)
		}
	}

	// A client that follows MOVED uses the proxies.
	out, err := exec.Command(CLI(), "-c", "-p", portOf(proxies[0].Addr()), "SET", "foo", "bar").CombinedOutput()
	if strings.TrimSpace(string(out)) != "OK" {
		t.Errorf("SET by a client that follows MOVED: %s, %v; want OK", out, err)
	}

	p, key := proxies[1], setOwnKey(t, c.Nodes[1])
	p.Only("INCR")
	p.DropReplies(true)
	if _, err := call("tcp", p.Addr(), 50*time.Millisecond, "INCR", key); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("INCR through a proxy that loses replies: %v; want a timeout", err)
	}
	awaitLoss(t, p)
	wantReply(t, c.Nodes[1], "2", "GET", key)
}

func TestProxyLosesRepliesNotCommands(t *testing.T) {
	t.Parallel()
	s := Start(t)
	p := startProxy(t, s)
	wantThrough(t, p, int64(1), "INCR", "n")

	p.DropReplies(true)
	if _, err := call("tcp", p.Addr(), 50*time.Millisecond, "INCR", "n"); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("INCR with DropReplies: %v; want a timeout", err)
	}
	awaitLoss(t, p)
	wantReply(t, s, "2", "GET", "n")
	p.DropReplies(false)

	p.CutOnReply(true)
	if _, err := call("tcp", p.Addr(), answerTimeout, "INCR", "n"); !errors.Is(err, io.EOF) {
		t.Errorf("INCR with CutOnReply: %v; want EOF", err)
	}
	wantReply(t, s, "3", "GET", "n")
	p.CutOnReply(false)

	wantThrough(t, p, int64(4), "INCR", "n")
	if p.Losses() != 2 {
		t.Errorf("%d connections lost a reply; want 2", p.Losses())
	}
}

func TestOnlyMatchingRequestsLoseTheirReply(t *testing.T) {
	t.Parallel()
	s := Start(t)
	p := startProxy(t, s)
	p.Only("incr")
	p.CutOnReply(true)
	wantThrough(t, p, "PONG", "PING")
	if _, err := call("tcp", p.Addr(), answerTimeout, "INCR", "n"); !errors.Is(err, io.EOF) {
		t.Errorf("INCR, which matches Only: %v; want EOF", err)
	}
	wantReply(t, s, "1", "GET", "n")
	p.Only("")
	if _, err := call("tcp", p.Addr(), answerTimeout, "PING"); !errors.Is(err, io.EOF) {
		t.Errorf("PING without Only: %v; want EOF", err)
	}
}

func TestCutOnceEndsWithTheFirstLostReply(t *testing.T) {
	t.Parallel()
	s := Start(t)
	p := startProxy(t, s)
	p.Only("incr")
	stop, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for p.Losses() == 0 { // each CutOnce gives up after 20 ms
			p.CutOnce(stop)
		}
	}()
	sent := 0
	for err := error(nil); err == nil; sent++ {
		_, err = call("tcp", p.Addr(), answerTimeout, "INCR", "n")
	}
	wantThrough(t, p, int64(sent+1), "INCR", "n") // the proxy cuts no further reply
	<-ended
	if p.Losses() != 1 {
		t.Errorf("%d replies were lost; want the last of %d", p.Losses(), sent)
	}
	close(stop)
	p.CutOnce(stop)
	wantThrough(t, p, int64(sent+2), "INCR", "n")

	// Of two replies at the same time, one is lost.
	p.Only("")
	p.set(func() { p.isCutting, p.firstLost = true, make(chan struct{}) })
	if first, second := (&link{proxy: p}).decideFate(), (&link{proxy: p}).decideFate(); first != disconnected || second != passed {
		t.Errorf("the fates of two replies are %v and %v; want %v and %v", first, second, disconnected, passed)
	}
}

// If a connection that lost a reply got another one, the client would take it for the lost one.
func TestConnectionThatLostAReplyGetsNoMore(t *testing.T) {
	t.Parallel()
	s := Start(t)
	p := startProxy(t, s)
	conn, replies := dial(t, p)
	p.DropReplies(true)
	send(t, conn, "INCR", "n")
	awaitLoss(t, p)
	p.DropReplies(false)
	send(t, conn, "PING")
	if err := conn.SetReadDeadline(time.Now().Add(50 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	if got, err := readReply(replies); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("after a lost reply: %v, %v; want a timeout", got, err)
	}
}

func TestMatchMayArriveInPieces(t *testing.T) {
	t.Parallel()
	s := Start(t)
	p := startProxy(t, s)
	p.Only("EVALSHA")
	p.CutOnReply(true)
	conn, replies := dial(t, p)
	for _, piece := range []string{"PI", "NG\r\n", "eva", "lsh", "a x 0\r\n"} {
		if _, err := conn.Write([]byte(piece)); err != nil {
			t.Fatal(err)
		}
		if piece == "NG\r\n" {
			if got, err := readReply(replies); got != "PONG" {
				t.Fatalf("PING: %v, %v; want PONG", got, err)
			}
		}
		time.Sleep(5 * time.Millisecond) // so that each piece is a separate read; the test holds either way
	}
	if got, err := readReply(replies); !errors.Is(err, io.EOF) {
		t.Errorf("evalsha in pieces: %v, %v; want EOF", got, err)
	}
}

func TestProxyOutlivesItsServer(t *testing.T) {
	t.Parallel()
	s := Start(t)
	p := startProxy(t, s)
	wantThrough(t, p, "PONG", "PING")
	s.Kill()
	if got, err := call("tcp", p.Addr(), answerTimeout, "PING"); err == nil {
		t.Errorf("the reply of a killed server is %v; want an error", got)
	}
	restart(t, s)
	wantThrough(t, p, "PONG", "PING")
	p.Close()
	p.Close()
	if _, err := call("tcp", p.Addr(), answerTimeout, "PING"); err == nil {
		t.Error("PING through a closed proxy succeeded; want an error")
	}
}

// No other server gets the port of one that is down. After Close the port is free.
func TestPortOfAServerThatIsDownStaysReserved(t *testing.T) {
	t.Parallel()
	c := StartCluster(t)
	n := c.Nodes[0]
	bus, err := strconv.Atoi(option(n.args, "--cluster-port"))
	if err != nil {
		t.Fatal(err)
	}
	n.Kill()
	for _, port := range []int{n.port, bus} {
		if err := reserved.reserve(port); err == nil {
			t.Errorf("port %d was reserved again while its server is down; want an error", port)
		}
	}
	n.Close()
	n.Close()
	for _, port := range []int{n.port, bus} {
		// A process that is being started has all sockets of its parent for a moment.
		eventually.NoError(t, func() error { return reserved.reserve(port) })
		reserved.release(port)
	}
}
