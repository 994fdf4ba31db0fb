package redistest

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// CPU returns the processor time of the living threads of the process, in user and kernel mode.
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

// sysProcAttr returns attributes that kill the server when this program ends. The attributes also
// protect the server from an interrupt typed at the terminal, so that the program can shut down in
// its own order.
func sysProcAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
}

// isStopped returns true if a stop signal has taken effect, or if the process has ended.
func isStopped(pid int) bool {
	// The state is behind the name in parentheses. T: stopped. Z: ended, but not waited for.
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err != nil || bytes.Contains(stat, []byte(") T ")) || bytes.Contains(stat, []byte(") Z "))
}
