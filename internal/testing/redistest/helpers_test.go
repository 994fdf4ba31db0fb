package redistest

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"reflect"
	"strings"
	"testing"
	"time"
)

// wantReply runs a command, and fails if the reply is another one.
func wantReply(t *testing.T, s *Server, reply any, args ...string) {
	t.Helper()
	if got, err := s.Do(args...); err != nil || !reflect.DeepEqual(got, reply) {
		t.Errorf("the reply to %v is %#v, %v; want %#v", args, got, err, reply)
	}
}

// wantThrough is wantReply through a proxy.
func wantThrough(t *testing.T, p *Proxy, reply any, args ...string) {
	t.Helper()
	if got, err := call("tcp", p.Addr(), answerTimeout, args...); err != nil || got != reply {
		t.Errorf("the reply to %v through the proxy is %#v, %v; want %#v", args, got, err, reply)
	}
}

func restart(t *testing.T, s *Server) {
	t.Helper()
	if err := s.Restart(); err != nil {
		t.Fatal(err)
	}
}

func startProxy(t *testing.T, s *Server) *Proxy {
	t.Helper()
	p, err := NewProxy("unix", s.Socket)
	return mustStart(t, p, err)
}

// awaitLoss waits until a connection has lost a reply. On a busy machine, a client may give up
// before its command has reached the server.
func awaitLoss(t *testing.T, p *Proxy) {
	t.Helper()
	if err := await(answerTimeout, func() error {
		if p.Losses() == 0 {
			return errors.New("no reply has been lost yet")
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

func dial(t *testing.T, p *Proxy) (net.Conn, *bufio.Reader) {
	t.Helper()
	conn, err := net.Dial("tcp", p.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(answerTimeout)); err != nil {
		t.Fatal(err)
	}
	return conn, bufio.NewReader(conn)
}

func send(t *testing.T, conn net.Conn, args ...string) {
	t.Helper()
	if _, err := conn.Write(request(args)); err != nil {
		t.Fatal(err)
	}
}

// setOwnKey finds a key whose slot this primary serves, and sets it to 1.
func setOwnKey(t *testing.T, primary *Server) (key string) {
	t.Helper()
	for i := range 1000 {
		key = fmt.Sprint("k", i)
		_, err := primary.Do("SET", key, "1")
		if err == nil {
			return key
		}
		if !strings.HasPrefix(err.Error(), "MOVED") {
			t.Fatal(err)
		}
	}
	t.Fatal("the primary serves none of 1000 keys")
	return ""
}

// announcedPorts returns the ports that CLUSTER SLOTS names.
func announcedPorts(t *testing.T, node *Server) map[string]bool {
	t.Helper()
	reply, err := node.Do("CLUSTER", "SLOTS")
	if err != nil {
		t.Fatal(err)
	}
	ports := make(map[string]bool)
	for _, slots := range reply.([]any) { // the first slot, the last slot, and the nodes
		for _, node := range slots.([]any)[2:] {
			port := node.([]any)[1] // after the host
			ports[fmt.Sprint(port)] = true
		}
	}
	return ports
}
