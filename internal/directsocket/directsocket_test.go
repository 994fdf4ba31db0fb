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

// A write that is larger than all buffers arrives whole, in both directions at once.
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
					t.Errorf("%s: other bytes have arrived than were written, error %v", network, err)
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

// Each situation has the results and the error of the connection itself.
func TestErrorsAreThoseOfTheConnection(t *testing.T) {
	past := time.Unix(1, 0)
	for _, situation := range []struct {
		name    string
		prepare func(conn, peer net.Conn)
		do      func(io.ReadWriter) (int, error)
	}{
		{"read after the peer closed", func(_, peer net.Conn) { peer.Close() }, read},
		{"read after Close", func(conn, _ net.Conn) { conn.Close() }, read},
		{"write after Close", func(conn, _ net.Conn) { conn.Close() }, write},
		{"read after the deadline", func(conn, _ net.Conn) { conn.SetReadDeadline(past) }, read},
		{"write after the deadline", func(conn, _ net.Conn) { conn.SetWriteDeadline(past) }, write},
		{"read of nothing", func(_, peer net.Conn) { peer.Write([]byte("x")) }, func(rw io.ReadWriter) (int, error) { return rw.Read(nil) }},
		{"write of nothing", func(_, _ net.Conn) {}, func(rw io.ReadWriter) (int, error) { return rw.Write(nil) }},
		{"read of part of the data", func(_, peer net.Conn) { peer.Write(make([]byte, 100)) }, read},
		{"write to a peer that has closed", func(conn, peer net.Conn) {
			peer.Close()
			for { // until the reset has arrived
				if _, err := conn.Write([]byte("x")); err != nil {
					return
				}
			}
		}, write},
		{"write when the buffers are full, until the deadline", func(conn, _ net.Conn) {
			conn.SetWriteDeadline(time.Now().Add(10 * time.Millisecond))
			for {
				if _, err := conn.Write(make([]byte, 1<<16)); err != nil {
					return
				}
			}
		}, write},
	} {
		for _, network := range networks {
			plain, peer := connect(t, network)
			situation.prepare(plain, peer)
			wantN, wantErr := situation.do(plain)

			conn, peer := connect(t, network)
			situation.prepare(conn, peer)
			n, err := situation.do(New(conn))

			if n != wantN || describe(err, conn) != describe(wantErr, plain) {
				t.Errorf("%s, %s: %d, %q; want %d, %q", network, situation.name, n, describe(err, conn), wantN, describe(wantErr, plain))
			}
			var timeout, wantTimeout net.Error
			if errors.As(err, &timeout) != errors.As(wantErr, &wantTimeout) || timeout != nil && timeout.Timeout() != wantTimeout.Timeout() {
				t.Errorf("%s, %s: the error is another net.Error than that of the connection: %v; want %v", network, situation.name, err, wantErr)
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

// A deadline and Close end a Read that waits. Meanwhile the other direction works.
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
			t.Errorf("Write during a Read: %v", err)
		}
		if _, err := read(New(server)); err != nil {
			t.Errorf("Read of the peer: %v", err)
		}
		end(client)
		if err := <-done; err == nil {
			t.Errorf("after %s, the waiting Read returns no error", name)
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
