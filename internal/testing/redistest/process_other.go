//go:build !linux

package redistest

import (
	"errors"
	"syscall"
	"time"
)

// CPU works on Linux only.
func (s *Server) CPU() (time.Duration, error) { return 0, errors.ErrUnsupported }

func sysProcAttr() *syscall.SysProcAttr { return nil } // without a death signal, Close must be called

func isStopped(int) bool { return true }
