//go:build unix

package audit

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// A pipe in place of the file would block each write until it is read.
func TestAPipeInPlaceOfTheFileIsAnError(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit")
	f, err := Open(path)
	if err == nil {
		err = errors.Join(os.Remove(path), syscall.Mkfifo(path, 0o600))
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Write([]byte("a\n")); err == nil {
		t.Error("a line was written to a pipe that has no reader; want an error")
	}
	reader, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	if _, err := f.Write([]byte("a\n")); err == nil || !strings.Contains(err.Error(), "is not a file") {
		t.Errorf("Write to a pipe with a reader returns %v; want that it is not a file", err)
	}
}
