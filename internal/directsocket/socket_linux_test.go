//go:build !race

package directsocket

import (
	"io"
	"testing"
)

func TestCallsAreDirectOnLinux(t *testing.T) {
	for _, network := range networks {
		conn, _ := connect(t, network)
		if got := New(conn); got == io.ReadWriter(conn) {
			t.Errorf("%s: New returns the connection itself; want direct system calls", network)
		}
	}
}
