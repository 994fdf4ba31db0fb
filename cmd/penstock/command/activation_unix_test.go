//go:build unix

package command

import (
	"errors"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/penstock/penstock/cmd/penstock/internal/serve/settings"
)

// ownPID is the process number that the tests pass to inheritedListener as that of this process.
const ownPID = 42

func TestSocketOfSystemdIsUsedIfItIsForThisProcess(t *testing.T) {
	opened, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer opened.Close()
	packets, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer packets.Close()
	for _, c := range []struct {
		pid, count, names string
		socket            interface{ File() (*os.File, error) }
		isUsed            bool
		err               string
	}{
		{pid: "", socket: opened.(*net.TCPListener)},
		{pid: "43", count: "1", names: "listen", socket: opened.(*net.TCPListener)},
		{pid: "42", count: "1", names: "listen", socket: opened.(*net.TCPListener), isUsed: true},
		{pid: "42", count: "1", names: "api", socket: opened.(*net.TCPListener), err: "FileDescriptorName=listen"},
		{pid: "42", count: "2", names: "listen:listen", socket: opened.(*net.TCPListener), err: `"2" sockets with the names ["listen" "listen"]`},
		{pid: " 42", count: "1", names: "listen", socket: opened.(*net.TCPListener)},
		{pid: "99999999999999999999", count: "1", names: "listen", socket: opened.(*net.TCPListener)},
		{pid: "42", count: "", names: "listen", socket: opened.(*net.TCPListener), err: `passes "" sockets`},
		{pid: "42", count: "0", names: "", socket: opened.(*net.TCPListener), err: `passes "0" sockets`},
		{pid: "42", count: "-1", names: "listen", socket: opened.(*net.TCPListener), err: `passes "-1" sockets`},
		{pid: "42", count: "99999999999999999999", names: "listen", socket: opened.(*net.TCPListener), err: "FileDescriptorName=listen"},
		{pid: "42", count: "1\x1b[2J\n", names: "listen", socket: opened.(*net.TCPListener), err: `passes "1\x1b[2J\n" sockets`},
		{pid: "42", count: "1", names: "listen", socket: packets.(*net.UDPConn), err: "write ListenStream"},
	} {
		f, err := c.socket.File()
		if err != nil {
			t.Fatal(err)
		}
		passedFD, err := syscall.Dup(int(f.Fd())) // inheritedListener closes it if it uses it
		if err != nil {
			t.Fatal(err)
		}
		f.Close()
		environ := map[string]string{"LISTEN_PID": c.pid, "LISTEN_FDS": c.count, "LISTEN_FDNAMES": c.names}
		l, err := inheritedListener(func(name string) string { return environ[name] }, ownPID, uintptr(passedFD))
		switch {
		case c.err != "":
			if !errors.Is(err, settings.ErrInvalid) || !strings.Contains(err.Error(), c.err) {
				t.Errorf("with %v: the error is %v; want one with %q", environ, err, c.err)
			}
		case err != nil, (l != nil) != c.isUsed:
			t.Errorf("with %v: the listener is %v, the error %v; want no error, and whether there is a listener: %v", environ, l, err, c.isUsed)
		case c.isUsed:
			if l.Addr().String() != opened.Addr().String() {
				t.Errorf("the listener has the address %v; want that of the socket, %v", l.Addr(), opened.Addr())
			}
			l.Close()
		}
	}
}

// TestSocketThatIsNotOpenIsAnError: LISTEN_FDS may count a file descriptor that is not open.
func TestSocketThatIsNotOpenIsAnError(t *testing.T) {
	environ := map[string]string{"LISTEN_PID": "42", "LISTEN_FDS": "1", "LISTEN_FDNAMES": "listen"}
	const closedFD = 1 << 20 // not open: the test opens fewer files
	if l, err := inheritedListener(func(name string) string { return environ[name] }, ownPID, closedFD); !errors.Is(err, settings.ErrInvalid) || l != nil {
		t.Errorf("the listener is %v, the error %v; want none and %v", l, err, settings.ErrInvalid)
	}
}
