package revproxy

import (
	"errors"
	"io"
	"net"
	"testing"
)

// TestRequestIsNotGivenUpBeforeItIsSent: net/http may then repeat the request on another
// connection.
func TestRequestIsNotGivenUpBeforeItIsSent(t *testing.T) {
	here, there := net.Pipe()
	conn := &framedConn{Conn: here}
	var given error
	conn.expect(func(err error) { given = err })
	there.Close()
	if _, err := conn.Read(make([]byte, 1)); err != io.EOF || given != nil {
		t.Fatalf("read %v, given up by %v; want EOF and nil", err, given)
	}
	for _, write := range []func() error{
		func() error { _, err := conn.Write([]byte("x")); return err },
		func() error { _, err := conn.ReadFrom(io.LimitReader(nil, 0)); return err },
	} {
		if err := write(); !errors.Is(err, net.ErrClosed) || given != nil {
			t.Errorf("wrote with %v, given up by %v; want ErrClosed and nil", err, given)
		}
	}
}

// TestConnectionMayBeWrittenAfterItsResponseHasBegun: the other side of a WebSocket may have
// stopped sending.
func TestConnectionMayBeWrittenAfterItsResponseHasBegun(t *testing.T) {
	here, there := net.Pipe()
	conn := &framedConn{Conn: here}
	conn.expect(func(err error) { t.Errorf("given up: %v", err) })
	go io.WriteString(there, "HTTP/1.1 101 Switching Protocols\r\n\r\n")
	if _, err := conn.Read(make([]byte, 100)); err != nil {
		t.Fatal(err)
	}
	conn.noteReadLocked(0, io.EOF)
	go io.ReadFull(there, make([]byte, 1))
	if _, err := conn.Write([]byte("x")); err != nil {
		t.Errorf("Write returns %v; want no error", err)
	}
}
