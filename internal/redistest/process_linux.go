package redistest

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// CPU is the processor time the process has used so far, in user and kernel
// mode, over its living threads.
func (s *Server) CPU() (time.Duration, error) {
	cmd, done := s.process()
	if isClosed(done) {
		return 0, fmt.Errorf("redistest: processor time of process %d: %w", cmd.Process.Pid, os.ErrProcessDone)
	}
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", cmd.Process.Pid))
	if err != nil {
		return 0, err
	}
	var sum time.Duration
	for _, task := range tasks {
		text, err := os.ReadFile(task)
		if err != nil {
			return 0, err
		}
		var ns int64
		if _, err := fmt.Sscan(string(text), &ns); err != nil {
			return 0, err
		}
		sum += time.Duration(ns)
	}
	return sum, nil
}

// tied also keeps an interrupt typed at the terminal away from the server, so
// that the program can end in its own order.
func tied() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
}

// stopped says whether a stop signal has taken effect, or never will.
func stopped(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err != nil || bytes.Contains(stat, []byte(") T ")) || bytes.Contains(stat, []byte(") Z "))
}
