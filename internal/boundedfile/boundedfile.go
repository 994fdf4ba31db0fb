// Package boundedfile reads files that a user names, without trusting their kind or size.
package boundedfile

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// MaxPolicy is the size of the largest policy file and file of test cases, in bytes.
const MaxPolicy = 1 << 20

// ErrTooLong is wrapped by the error for a file with more bytes than allowed, such as "FILE is
// longer than 100 bytes; split it".
var ErrTooLong = errors.New("is longer")

// Read reads a regular file of at most max bytes. Read opens only regular files, because opening a
// pipe, for example, may block forever.
func Read(path string, max int64) ([]byte, error) {
	var text bytes.Buffer
	if err := Copy(&text, path, max); err != nil {
		return nil, err
	}
	return text.Bytes(), nil
}

// Copy writes a file to w. It obeys the rules of Read.
func Copy(w io.Writer, path string, max int64) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	if info.IsDir() {
		return fmt.Errorf("%s is a folder; name a file", path)
	}
	if !info.Mode().IsRegular() {
		return notRegular(path)
	}
	// Since Stat, a pipe may have replaced the file. Without O_NONBLOCK, opening it would wait for
	// a writer.
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer file.Close()
	if info, err = file.Stat(); err != nil {
		return err
	} else if !info.Mode().IsRegular() {
		return notRegular(path)
	}
	n, err := copyAll(w, file, max+1, patience)
	if err == nil && n > max {
		err = fmt.Errorf("%s %w than %d bytes; split it", path, ErrTooLong, max)
	}
	return err
}

// patience is how long a read may wait for more bytes. Files of /proc such as kmsg look regular,
// and never end. Only such files can be waited for: disks know no deadline.
const patience = 2 * time.Second

func copyAll(w io.Writer, file *os.File, max int64, patience time.Duration) (int64, error) {
	_ = file.SetReadDeadline(time.Now().Add(patience))
	n, err := io.Copy(w, io.LimitReader(file, max))
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return n, fmt.Errorf("%s does not end within %v; write the name of a regular file", file.Name(), patience)
	}
	return n, err
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
