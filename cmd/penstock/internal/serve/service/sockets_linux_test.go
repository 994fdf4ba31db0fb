package service

import (
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// A process that listens on a socket may be too busy to accept connections. Linux then rejects a
// connection with EAGAIN. The socket must not be taken for one that was left after a crash.
func TestSocketOfABusyProcessIsNotReplaced(t *testing.T) {
	path := filepath.Join(t.TempDir(), "busy.sock")
	address := &syscall.SockaddrUnix{Name: path}
	newSocket := func() int {
		t.Helper()
		fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_NONBLOCK|syscall.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { syscall.Close(fd) })
		return fd
	}
	busy := newSocket()
	if err := syscall.Bind(busy, address); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Listen(busy, 0); err != nil {
		t.Fatal(err)
	}
	for { // fill the queue of connections that wait to be accepted
		err := syscall.Connect(newSocket(), address)
		if err == syscall.EAGAIN {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if l, err := openListener(t.Context(), "unix:"+path); err == nil {
		l.Close()
		t.Error("the socket of a busy process was replaced; want an error")
	}
	if info, err := os.Lstat(path); err != nil || info.Mode().Type() != fs.ModeSocket {
		t.Errorf("the file of the socket is %v (error %v); want it unchanged", info, err)
	}
}
