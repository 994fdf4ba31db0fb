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

// FuzzHeadParser: the place of Connection: close does not depend on how the bytes arrive.
func FuzzHeadParser(f *testing.F) {
	f.Add([]byte("HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n"), 3)
	f.Add([]byte("HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 200 OK\nTransfer-Encoding : x\n y\nContent-Length:\n\n"), 1)
	f.Add([]byte("HTTP/1.1 101 x\r\nContent-Length: 1\r\nTransfer-Encoding: x\r\n\r\n"), 7)
	f.Fuzz(func(t *testing.T, text []byte, size int) {
		if size < 1 {
			return
		}
		whole := headParser{isReading: true, inStatusLine: true}
		want := whole.parse(text)
		parts, got := headParser{isReading: true, inStatusLine: true}, -1
		for start := 0; start < len(text) && got < 0; start += size {
			if at := parts.parse(text[start:min(start+size, len(text))]); at >= 0 {
				got = start + at
			}
		}
		if got != want {
			t.Errorf("in parts of %d bytes, %q has its place at %d; want %d", size, text, got, want)
		}
	})
}
