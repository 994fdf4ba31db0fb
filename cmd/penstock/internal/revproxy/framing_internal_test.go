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
	var cause error // with which the request was given up
	conn.expect(func(err error) { cause = err })
	there.Close()
	if _, err := conn.Read(make([]byte, 1)); err != io.EOF || cause != nil {
		t.Fatalf("Read returned %v, and the request was given up with %v; want EOF and nil", err, cause)
	}
	for _, write := range []func() error{
		func() error { _, err := conn.Write([]byte("x")); return err },
		func() error { _, err := conn.ReadFrom(io.LimitReader(nil, 0)); return err },
	} {
		if err := write(); !errors.Is(err, net.ErrClosed) || cause != nil {
			t.Errorf("the write returned %v, and the request was given up with %v; want ErrClosed and nil", err, cause)
		}
	}
}

// TestConnectionMayBeWrittenAfterItsResponseHasBegun: the other side of a WebSocket may have
// stopped sending.
func TestConnectionMayBeWrittenAfterItsResponseHasBegun(t *testing.T) {
	here, there := net.Pipe()
	conn := &framedConn{Conn: here}
	conn.expect(func(err error) { t.Errorf("the request was given up with %v; want it kept", err) })
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
