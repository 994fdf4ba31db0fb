package redistest

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"time"
)

// A replyError is an error reply of Redis.
type replyError string

func (e replyError) Error() string { return string(e) }

// call runs a command on a new connection, within timeout.
func call(network, addr string, timeout time.Duration, args ...string) (any, error) {
	end := time.Now().Add(timeout)
	conn, err := net.DialTimeout(network, addr, timeout)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	if err := conn.SetDeadline(end); err != nil {
		return nil, err
	}
	if _, err := conn.Write(request(args)); err != nil {
		return nil, err
	}
	reply, err := readReply(bufio.NewReader(conn))
	if err != nil {
		return nil, fmt.Errorf("redistest: reply to %s: %w", strings.Join(args, " "), err)
	}
	if e, ok := reply.(replyError); ok {
		return nil, e
	}
	return reply, nil
}

func request(args []string) []byte {
	b := fmt.Appendf(nil, "*%d\r\n", len(args))
	for _, arg := range args {
		b = fmt.Appendf(b, "$%d\r\n%s\r\n", len(arg), arg)
	}
	return b
}

// readReply reads one RESP2 reply. It returns an error of Redis as a value of type replyError, even
// if the error is an item of an array.
func readReply(r *bufio.Reader) (any, error) {
	line, err := r.ReadString('\n')
	if err != nil {
		return nil, err
	}
	line = strings.TrimSuffix(line, "\r\n")
	if line == "" {
		return nil, fmt.Errorf("empty line instead of a reply")
	}
	kind, rest := line[0], line[1:]
	switch kind {
	case '+': // a string of one line
		return rest, nil
	case '-': // an error
		return replyError(rest), nil
	}
	n, err := strconv.ParseInt(rest, 10, 64)
	if err != nil {
		return nil, fmt.Errorf("reply %q: %w", line, err)
	}
	switch {
	case kind == ':': // an integer
		return n, nil
	case n < 0 && (kind == '$' || kind == '*'): // null
		return nil, nil
	case kind == '$': // a string of n bytes, followed by \r\n
		body := make([]byte, n+2)
		_, err := io.ReadFull(r, body)
		return string(body[:n]), err
	case kind == '*': // an array of n items
		items := make([]any, n)
		for i := range items {
			if items[i], err = readReply(r); err != nil {
				return nil, err
			}
		}
		return items, nil
	}
	return nil, fmt.Errorf("unknown reply %q", line)
}

// fieldsOf reads the name:value lines of INFO and CLUSTER INFO.
func fieldsOf(reply any) map[string]string {
	text, _ := reply.(string)
	fields := make(map[string]string)
	for line := range strings.Lines(text) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			fields[name] = value
		}
	}
	return fields
}

// pairsOf reads a flat list of names and values, the form of SENTINEL replies.
func pairsOf(reply any) map[string]string {
	list, _ := reply.([]any)
	pairs := make(map[string]string)
	for i := 0; i+1 < len(list); i += 2 {
		pairs[fmt.Sprint(list[i])] = fmt.Sprint(list[i+1])
	}
	return pairs
}
