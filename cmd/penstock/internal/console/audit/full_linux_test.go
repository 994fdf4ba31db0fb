package audit

import (
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// After a disk was full, the next line does not continue the one that was cut.
func TestLineAfterAFullDiskIsWhole(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.json")
	f, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	// The largest size of a file cuts writes as a full disk does.
	signal.Ignore(syscall.SIGXFSZ)
	defer signal.Reset(syscall.SIGXFSZ)
	var before syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_FSIZE, &before); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &syscall.Rlimit{Cur: 10, Max: before.Max}); err != nil {
		t.Fatal(err)
	}
	_, first := f.Write([]byte("{\"one\"}\n"))
	_, second := f.Write([]byte("{\"two\"}\n"))
	_, third := f.Write([]byte("{\"three\"}\n"))
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &before); err != nil {
		t.Fatal(err)
	}
	if first != nil || second == nil || third == nil {
		t.Errorf("the lines return %v, %v and %v; want errors for the two on the full disk", first, second, third)
	}
	for range 2 {
		if _, err := f.Write([]byte("{\"four\"}\n")); err != nil {
			t.Error(err)
		}
	}
	text, err := os.ReadFile(path)
	if want := "{\"one\"}\n{\"\n{\"four\"}\n{\"four\"}\n"; err != nil || string(text) != want {
		t.Errorf("the file has %q, %v; want %q", text, err, strings.TrimSpace(want))
	}
}
