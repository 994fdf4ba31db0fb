//go:build !race

package directsocket

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"unsafe"
)

// New returns a ReadWriter for conn's Read and Write. It has their results and errors, and keeps
// conn's deadlines. New returns conn itself
//   - if conn is neither a *net.TCPConn nor a *net.UnixConn,
//   - on systems other than Linux, and
//   - under the race detector, which must see all transfers.
func New(conn net.Conn) io.ReadWriter {
	var file syscall.Conn
	switch conn := conn.(type) { // types that embed one of these may have a Read and Write of their own
	case *net.TCPConn:
		file = conn
	case *net.UnixConn:
		file = conn
	default:
		return conn
	}
	raw, err := file.SyscallConn()
	if err != nil {
		return conn
	}
	s := &socket{conn: conn, raw: raw}
	s.reading.try, s.writing.try = s.reading.read, s.writing.write
	return s
}

// A socket makes the system calls for Read and Write itself.
type socket struct {
	conn             net.Conn
	raw              syscall.RawConn
	reading, writing transfer
}

// A transfer is a Read or a Write. Its memory is reused, so that no call allocates.
type transfer struct {
	mu          sync.Mutex
	try         func(fd uintptr) (isDone bool) // read or write; false: call it again when the socket is ready
	data        []byte
	transferred int // bytes so far
	errno       syscall.Errno
}

func (s *socket) Read(b []byte) (int, error) {
	if len(b) == 0 {
		return s.conn.Read(b)
	}
	t := &s.reading
	t.mu.Lock()
	defer t.mu.Unlock()
	t.begin(b)
	defer t.end()
	if err := s.raw.Read(t.try); err != nil || t.errno != 0 {
		return 0, s.errorOf("read", err, t.errno)
	}
	if t.transferred == 0 {
		return 0, io.EOF
	}
	return t.transferred, nil
}

func (s *socket) Write(b []byte) (int, error) {
	if len(b) == 0 {
		return s.conn.Write(b)
	}
	t := &s.writing
	t.mu.Lock()
	defer t.mu.Unlock()
	t.begin(b)
	defer t.end()
	if err := s.raw.Write(t.try); err != nil || t.errno != 0 {
		return t.transferred, s.errorOf("write", err, t.errno)
	}
	return t.transferred, nil
}

func (t *transfer) begin(b []byte) { t.data, t.transferred, t.errno = b, 0, 0 }

func (t *transfer) end() { t.data = nil }

// read reads what has arrived, at most len(data) bytes.
func (t *transfer) read(fd uintptr) (isDone bool) {
	t.transferred, t.errno = call(syscall.SYS_READ, fd, t.data)
	return t.errno != syscall.EAGAIN
}

// write writes all of data that is not written yet.
func (t *transfer) write(fd uintptr) (isDone bool) {
	for t.transferred < len(t.data) && t.errno == 0 {
		var n int
		n, t.errno = call(syscall.SYS_WRITE, fd, t.data[t.transferred:])
		t.transferred += n
	}
	if t.errno == syscall.EAGAIN {
		t.errno = 0
		return false
	}
	return true
}

// call makes a system call that transfers bytes, and repeats it if a signal interrupts it. b must
// not be empty.
func call(number, fd uintptr, b []byte) (n int, errno syscall.Errno) {
	for {
		r, _, errno := syscall.RawSyscall(number, fd, uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)))
		switch errno {
		case 0:
			return int(r), 0
		case syscall.EINTR:
		default:
			return 0, errno
		}
	}
}

// errorOf returns the error that package net would return. err is the error of the RawConn, which
// names another operation, such as "raw-read". If err is nil, the system call failed with errno.
func (s *socket) errorOf(operation string, err error, errno syscall.Errno) error {
	if e, ok := errors.AsType[*net.OpError](err); ok {
		err = e.Err
	} else if err == nil {
		err = os.NewSyscallError(operation, errno)
	}
	local := s.conn.LocalAddr()
	return &net.OpError{Op: operation, Net: local.Network(), Source: local, Addr: s.conn.RemoteAddr(), Err: err}
}
