package redisclient

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"
)

// A reply that is in the socket is read even if the deadline of the read has passed. This state
// occurs after the process was stopped for a time.
func TestReplyIsReadAfterItsDeadline(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	client, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	server, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	g := checkConn(context.Background(), client)
	defer g.Close()
	if _, err := g.Write([]byte("*1\r\n$4\r\nPING\r\n")); err != nil {
		t.Fatal(err)
	}
	if _, err := server.Write([]byte("+PONG\r\n")); err != nil {
		t.Fatal(err)
	}
	var reply [7]byte
	if _, err := g.Read(reply[:1]); err != nil { // it has arrived
		t.Fatal(err)
	}
	if err := g.SetDeadline(time.Now().Add(-time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(g, reply[1:]); err != nil || string(reply[:]) != "+PONG\r\n" {
		t.Errorf("read %q, %v; want the reply to PING", reply, err)
	}
	if err := g.SetDeadline(time.Now().Add(-time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := g.Read(reply[:]); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("without a reply: %v; want os.ErrDeadlineExceeded", err)
	}
}
