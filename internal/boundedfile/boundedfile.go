// Package boundedfile reads files that a user names, without trusting their kind or size.
package boundedfile

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// ErrTooLong is wrapped by the error for a file with more bytes than allowed, such as "FILE is
// longer than 100 bytes; split it".
var ErrTooLong = errors.New("is longer")

// Read reads a regular file of at most max bytes. Read opens only regular files, because opening a
// pipe, for example, may block forever.
func Read(path string, max int64) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if info.IsDir() {
		return nil, fmt.Errorf("%s is a folder; name a file", path)
	}
	if !info.Mode().IsRegular() {
		return nil, notRegular(path)
	}
	// Since Stat, a pipe may have replaced the file. Without O_NONBLOCK, opening it would wait for
	// a writer.
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	if info, err = file.Stat(); err != nil {
		return nil, err
	} else if !info.Mode().IsRegular() {
		return nil, notRegular(path)
	}
	text, err := readAll(file, max+1, patience)
	if err == nil && int64(len(text)) > max {
		err = fmt.Errorf("%s %w than %d bytes; split it", path, ErrTooLong, max)
	}
	return text, err
}

// patience is how long a read may wait for more bytes. Files of /proc such as kmsg look regular,
// and never end. Only such files can be waited for: disks know no deadline.
const patience = 2 * time.Second

func readAll(file *os.File, max int64, patience time.Duration) ([]byte, error) {
	_ = file.SetReadDeadline(time.Now().Add(patience))
	text, err := io.ReadAll(io.LimitReader(file, max))
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return nil, fmt.Errorf("%s does not end within %v; write the name of a regular file", file.Name(), patience)
	}
	return text, err
}

func notRegular(path string) error {
	return fmt.Errorf("%s is not a regular file; write the name of one", path)
}

// Join returns name, or if it is relative, name within the folder dir.
func Join(dir, name string) string {
	if filepath.IsAbs(name) {
		return name
	}
	return filepath.Join(dir, name)
}
