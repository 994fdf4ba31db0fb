package directsocket

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// networks are the kinds of sockets that the tests use.
var networks = []string{"tcp", "unix"}

// connect returns the two ends of a connection.
func connect(t *testing.T, network string) (client, server net.Conn) {
	t.Helper()
	address := "127.0.0.1:0"
	if network == "unix" {
		address = filepath.Join(t.TempDir(), "s")
	}
	l, err := net.Listen(network, address)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if client, err = net.Dial(network, l.Addr().String()); err != nil {
		t.Fatal(err)
	}
	if server, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		client.Close()
		server.Close()
	})
	return client, server
}

// Writes that are larger than all buffers arrive whole, in both directions at the same time.
func TestLargeWritesArriveWhole(t *testing.T) {
	for _, network := range networks {
		client, server := connect(t, network)
		data := make([]byte, 16<<20)
		rng := rand.NewChaCha8([32]byte{})
		rng.Read(data)
		var all sync.WaitGroup
		for _, conn := range []net.Conn{client, server} {
			end := New(conn)
			all.Go(func() {
				if n, err := end.Write(data); n != len(data) || err != nil {
					t.Errorf("%s: Write returns %d and %v; want %d and no error", network, n, err, len(data))
				}
			})
			all.Go(func() {
				got := make([]byte, len(data))
				if _, err := io.ReadFull(end, got); err != nil || !bytes.Equal(got, data) {
					t.Errorf("%s: other bytes have arrived than were written, error %v; want the same bytes", network, err)
				}
			})
		}
		all.Wait()
	}
}

// Writes of several goroutines do not mix.
func TestWritesAreNotMixed(t *testing.T) {
	const writers, size = 4, 1 << 20
	client, server := connect(t, "tcp")
	end := New(client)
	var all sync.WaitGroup
	for i := range writers {
		all.Go(func() { end.Write(bytes.Repeat([]byte{byte(i)}, size)) })
	}
	got := make([]byte, writers*size)
	if _, err := io.ReadFull(New(server), got); err != nil {
		t.Fatal(err)
	}
	all.Wait()
	for i := range writers {
		if part := got[i*size : (i+1)*size]; bytes.Count(part, part[:1]) != size {
			t.Errorf("the bytes %d to %d are of several writes; want one", i*size, (i+1)*size)
		}
	}
}

// In each situation, the ReadWriter returns the same number and error as the connection itself.
func TestErrorsAreThoseOfTheConnection(t *testing.T) {
	past := time.Unix(1, 0)
	for _, situation := range []struct {
		name    string
		prepare func(conn, peer net.Conn)
		do      func(io.ReadWriter) (int, error)
	}{
		{name: "read after the peer closed", prepare: func(_, peer net.Conn) { peer.Close() }, do: read},
		{name: "read after Close", prepare: func(conn, _ net.Conn) { conn.Close() }, do: read},
		{name: "write after Close", prepare: func(conn, _ net.Conn) { conn.Close() }, do: write},
		{name: "read after the deadline", prepare: func(conn, _ net.Conn) { conn.SetReadDeadline(past) }, do: read},
		{name: "write after the deadline", prepare: func(conn, _ net.Conn) { conn.SetWriteDeadline(past) }, do: write},
		{name: "read of nothing", prepare: func(_, peer net.Conn) { peer.Write([]byte("x")) }, do: func(rw io.ReadWriter) (int, error) { return rw.Read(nil) }},
		{name: "write of nothing", prepare: func(_, _ net.Conn) {}, do: func(rw io.ReadWriter) (int, error) { return rw.Write(nil) }},
		{name: "read of part of the data", prepare: func(_, peer net.Conn) { peer.Write(make([]byte, 100)) }, do: read},
		{name: "write to a peer that has closed", prepare: func(conn, peer net.Conn) {
			peer.Close()
			for { // until the reset has arrived
				if _, err := conn.Write([]byte("x")); err != nil {
					return
				}
			}
		}, do: write},
		{name: "write when the buffers are full, until the deadline", prepare: func(conn, _ net.Conn) {
			conn.SetWriteDeadline(time.Now().Add(10 * time.Millisecond))
			for {
				if _, err := conn.Write(make([]byte, 1<<16)); err != nil {
					return
				}
			}
		}, do: write},
	} {
		for _, network := range networks {
			plain, peer := connect(t, network)
			situation.prepare(plain, peer)
			wantN, wantErr := situation.do(plain)

			conn, peer := connect(t, network)
			situation.prepare(conn, peer)
			n, err := situation.do(New(conn))

			if n != wantN || describe(err, conn) != describe(wantErr, plain) {
				t.Errorf("%s, %s: %d bytes and the error %q; want %d and %q, as of the connection", network, situation.name, n, describe(err, conn), wantN, describe(wantErr, plain))
			}
			var timeout, wantTimeout net.Error
			if errors.As(err, &timeout) != errors.As(wantErr, &wantTimeout) || timeout != nil && timeout.Timeout() != wantTimeout.Timeout() {
				t.Errorf("%s, %s: got the error %v, and the connection returns %v; want that both are a net.Error, or neither, and both a timeout, or neither", network, situation.name, err, wantErr)
			}
		}
	}
}

func read(rw io.ReadWriter) (int, error)  { return rw.Read(make([]byte, 10)) }
func write(rw io.ReadWriter) (int, error) { return rw.Write([]byte("data")) }

// describe returns the text of an error without the addresses of the connection.
func describe(err error, conn net.Conn) string {
	if err == nil {
		return ""
	}
	addresses := strings.NewReplacer(conn.LocalAddr().String()+"->", "", conn.RemoteAddr().String(), "")
	return addresses.Replace(err.Error())
}

// A deadline and Close end a Read that waits. While it waits, the other direction works.
func TestWaitingReadsEnd(t *testing.T) {
	for name, end := range map[string]func(net.Conn){
		"Close":       func(conn net.Conn) { conn.Close() },
		"SetDeadline": func(conn net.Conn) { conn.SetReadDeadline(time.Unix(1, 0)) },
	} {
		client, server := connect(t, "tcp")
		direct := New(client)
		done := make(chan error)
		go func() {
			_, err := read(direct)
			done <- err
		}()
		if _, err := write(direct); err != nil {
			t.Errorf("Write during a Read: %v; want no error", err)
		}
		if _, err := read(New(server)); err != nil {
			t.Errorf("Read of the peer: %v; want no error", err)
		}
		end(client)
		if err := <-done; err == nil {
			t.Errorf("after %s, the waiting Read returns no error; want one", name)
		}
	}
}

// A type that embeds a connection may have a Read and Write of its own.
func TestOtherConnectionsAreReturned(t *testing.T) {
	client, _ := connect(t, "tcp")
	counting := &struct{ *net.TCPConn }{client.(*net.TCPConn)}
	if got := New(counting); got != io.ReadWriter(counting) {
		t.Errorf("New returns a %T; want the connection itself", got)
	}
}

func TestTransfersDoNotAllocate(t *testing.T) {
	client, server := connect(t, "unix")
	from, to := New(client), New(server)
	data := make([]byte, 100)
	if n := testing.AllocsPerRun(100, func() {
		from.Write(data)
		to.Read(data)
	}); n != 0 {
		t.Errorf("a write and a read allocate %.0f times; want 0", n)
	}
}
