package main

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"strconv"
	"time"

	"github.com/penstock/penstock/internal/directsocket"
)

// A lineLoad makes calls on one connection, by HTTP/1.1 or with Redis commands. It sends several
// calls before it reads their responses.
type lineLoad struct {
	conn         io.ReadWriter
	close        func() error
	request      []byte
	digits       int                       // where the key's digits begin in request; negative: the request has no key
	depth        int                       // calls that are sent together
	readResponse func(*bufio.Reader) error // reads one response, and checks it

	responses *bufio.Reader
	out       []byte // the requests that are sent next
	lastKey   int
	times     []float64 // µs of each call of the last run
}

// dialLines connects to a server. The key of the first call is the one after firstKey.
func dialLines(address, request string, digits, depth, firstKey int, readResponse func(*bufio.Reader) error) (*lineLoad, error) {
	conn, err := net.Dial("tcp", address)
	if err != nil {
		return nil, err
	}
	socket := directsocket.New(conn)
	return &lineLoad{conn: socket, close: conn.Close, request: []byte(request), digits: digits, depth: depth, readResponse: readResponse,
		responses: bufio.NewReaderSize(socket, 16<<10), lastKey: firstKey}, nil
}

func (l *lineLoad) durations() []float64 { return l.times }

func (l *lineLoad) run(until time.Time) error {
	l.times = l.times[:0]
	for {
		begun := time.Now()
		if !begun.Before(until) {
			return nil
		}
		if err := l.call(); err != nil {
			return err
		}
		took := float64(time.Since(begun).Nanoseconds()) / 1e3
		for range l.depth {
			l.times = append(l.times, took)
		}
	}
}

// call sends as many calls as depth says, with the next keys, and reads the responses.
func (l *lineLoad) call() error {
	l.out = l.out[:0]
	for range l.depth {
		start := len(l.out)
		l.out = append(l.out, l.request...)
		if l.digits >= 0 {
			l.lastKey = keyAfter(l.lastKey)
			putKey(l.out[start+l.digits:], l.lastKey)
		}
	}
	if _, err := l.conn.Write(l.out); err != nil {
		return err
	}
	for range l.depth {
		if err := l.readResponse(l.responses); err != nil {
			return err
		}
	}
	return nil
}

// keyAfter returns the key of the call after that of the given key. The keys are in an order
// without a pattern. The step is a prime number that does not divide loadKeys, so all keys have
// their turn.
func keyAfter(key int) int { return (key + 7919) % loadKeys }

// putKey writes the keyDigits digits of a key.
func putKey(to []byte, key int) {
	for i := keyDigits - 1; i >= 0; i-- {
		to[i] = byte('0' + key%10)
		key /= 10
	}
}

// readHTTP reads a response, which must have status 200.
func readHTTP(r *bufio.Reader) error {
	line, err := r.ReadSlice('\n')
	if err != nil {
		return err
	}
	if !bytes.HasPrefix(line, []byte("HTTP/1.1 200 ")) {
		rest, _ := r.Peek(min(r.Buffered(), 500)) // bytes: enough for an error message
		return fmt.Errorf("the response begins with %q and goes on with %q; want status 200", line, rest)
	}
	length := -1
	for len(line) > len("\r\n") { // an empty line ends the headers
		if line, err = r.ReadSlice('\n'); err != nil {
			return err
		}
		if name, value, ok := bytes.Cut(line, []byte(":")); ok && bytes.EqualFold(name, []byte("Content-Length")) {
			length, _ = strconv.Atoi(string(bytes.TrimSpace(value)))
		}
	}
	if length < 0 {
		return fmt.Errorf("the response has no Content-Length")
	}
	_, err = io.CopyN(io.Discard, r, int64(length))
	return err
}

// readThrottle reads the reply to a CL.THROTTLE: an array of five integers.
func readThrottle(r *bufio.Reader) error {
	line, err := r.ReadSlice('\n')
	if err != nil {
		return err
	}
	if string(line) != "*5\r\n" {
		return fmt.Errorf("the reply begins with %q; want an array of five, *5", line)
	}
	for range 5 {
		if _, err = r.ReadSlice('\n'); err != nil {
			return err
		}
	}
	return nil
}
