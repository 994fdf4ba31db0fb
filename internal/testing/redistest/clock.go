package redistest

import (
	_ "embed"
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

//go:embed clock/shim.c
var clockShim []byte

// A Clock is the wall clock of a server. The monotonic clock of the server cannot be changed.
type Clock struct {
	file string // the server reads its time from it; see write
}

// LaunchClocked launches a server whose clock can be set. It needs Linux and gcc.
func LaunchClocked(args ...string) (*Server, *Clock, error) {
	var c Clock
	s, err := launchEnv(func(dir string, port int) ([]string, []string, error) {
		c.file = filepath.Join(dir, "clock")
		shim := filepath.Join(dir, "shim")
		if err := c.Set(0); err != nil {
			return nil, nil, err
		}
		if err := os.WriteFile(shim+".c", clockShim, 0o600); err != nil {
			return nil, nil, err
		}
		if out, err := exec.Command("gcc", "-O1", "-shared", "-fPIC", "-o", shim+".so", shim+".c").CombinedOutput(); err != nil {
			return nil, nil, fmt.Errorf("redistest: compile the clock: %w\n%s", err, out)
		}
		return append(defaults(dir, port), args...), []string{"LD_PRELOAD=" + shim + ".so", "CLOCK_FILE=" + c.file}, nil
	})
	return s, &c, err
}

// StartClocked is LaunchClocked for a test.
func StartClocked(t testing.TB, args ...string) (*Server, *Clock) {
	t.Helper()
	s, c, err := LaunchClocked(args...)
	return mustStart(t, s, err), c
}

// Set sets how far the server's clock is ahead of the system's, or behind it if ahead is negative.
// From its next command on, the server uses the new time.
func (c *Clock) Set(ahead time.Duration) error { return c.write(ahead.Microseconds(), 0) }

// Freeze stops the server's clock at a time, to the microsecond, until Freeze or Set is called
// again.
func (c *Clock) Freeze(at time.Time) error { return c.write(0, at.UnixMicro()) }

// write writes the file that clock/shim.c reads: two numbers in µs.
func (c *Clock) write(ahead, frozenAt int64) error {
	// The file is written in place, because the server has mapped it.
	f, err := os.OpenFile(c.file, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	words := binary.NativeEndian.AppendUint64(nil, uint64(ahead))
	_, err = f.Write(binary.NativeEndian.AppendUint64(words, uint64(frozenAt)))
	return err
}
