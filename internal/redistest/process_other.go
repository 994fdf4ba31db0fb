//go:build !linux

package redistest

import (
	"errors"
	"syscall"
	"time"
)

// CPU is known on Linux only.
func (s *Server) CPU() (time.Duration, error) { return 0, errors.ErrUnsupported }

func tied() *syscall.SysProcAttr { return nil } // no death signal here: Close must be called

func stopped(int) bool { return true }
