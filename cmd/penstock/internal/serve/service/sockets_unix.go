//go:build unix

package service

import (
	"errors"
	"syscall"
)

// isAbandoned reports whether no process listens on a socket, by the error of a connection to it.
// Other errors do not show that: a busy process accepts no connection for a while (EAGAIN), and the
// socket of another user cannot be opened (EACCES).
func isAbandoned(err error) bool { return errors.Is(err, syscall.ECONNREFUSED) }
