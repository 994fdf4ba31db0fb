//go:build unix

package service

import (
	"errors"
	"syscall"
)

// isAbandoned reports whether the error of a connection to a socket shows that no process listens on
// it. Other errors do not: a busy process accepts no connection for a while (EAGAIN), and the socket
// of another user cannot be opened (EACCES).
func isAbandoned(err error) bool { return errors.Is(err, syscall.ECONNREFUSED) }
