package httplimit

import (
	"bytes"
	"io"
	"sync"

	"github.com/penstock/penstock/policy"
)

// A countedBody is a request body of unannounced size. It counts the bytes that are read from it.
type countedBody struct {
	io.ReadCloser
	mu        sync.Mutex
	bytesRead int64
}

func (b *countedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.mu.Lock()
	b.bytesRead += int64(n)
	b.mu.Unlock()
	return n, err
}

func (b *countedBody) size() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.bytesRead
}

// maxReadAheadBytes is the size, in bytes, of the largest body that is read while its request
// waits.
const maxReadAheadBytes = 16 << 10

// readAhead reads a small body while its request waits. Until the body is read, net/http does not
// notice that the client has left.
func readAhead(waiting policy.Attributes) {
	a := waiting.(*attributes)
	n := a.request.ContentLength
	if n <= 0 || n > maxReadAheadBytes || a.request.Body == nil {
		return
	}
	read, err := io.ReadAll(a.request.Body)
	r := *a.request
	r.Body = &readBody{Reader: bytes.NewReader(read), err: err, Closer: a.request.Body}
	a.request = &r
}

// A readBody is a body that has been read: its bytes, and the error at its end.
type readBody struct {
	*bytes.Reader
	io.Closer
	err error
}

func (b *readBody) Read(p []byte) (int, error) {
	n, err := b.Reader.Read(p)
	if err == io.EOF && b.err != nil {
		err = b.err
	}
	return n, err
}

// WriteTo also returns the error at the end, which the Reader does not know.
func (b *readBody) WriteTo(w io.Writer) (int64, error) {
	n, err := b.Reader.WriteTo(w)
	if err == nil {
		err = b.err
	}
	return n, err
}
