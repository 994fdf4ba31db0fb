package service

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/cmd/penstock/internal/console/adminapi"
)

// The response comes, and the connection is closed, although the rest of the body never comes. The
// server of this test has no timeouts, so it would wait forever.
func TestUnreadBodiesDelayNoResponse(t *testing.T) {
	t.Parallel()
	page := strings.Repeat("x", 10_000) // larger than what net/http buffers before it sends the head
	server := httptest.NewServer(endUnread(newIdleList(), http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/page":
			io.WriteString(w, page)
		case "/wrong-token":
			w.WriteHeader(http.StatusUnauthorized)
		case "/part":
			r.Body.Read(make([]byte, 1))
		case "/whole":
			io.Copy(w, r.Body)
		}
	})))
	defer server.Close()
	for _, test := range []struct {
		request string
		status  int
		closes  bool
	}{
		{"GET /page HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n", http.StatusOK, true},
		{"HEAD /page HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n", http.StatusOK, true},
		{"GET / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n", http.StatusOK, true},
		{"POST /wrong-token HTTP/1.1\r\nHost: x\r\nContent-Length: 10000\r\n\r\nt", http.StatusUnauthorized, true},
		{"POST /part HTTP/1.1\r\nHost: x\r\nContent-Length: 10000\r\n\r\nt", http.StatusOK, true},
		{"POST /whole HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\nt", http.StatusOK, false},
		{"GET /page HTTP/1.1\r\nHost: x\r\n\r\n", http.StatusOK, false},
	} {
		conn, err := net.Dial("tcp", server.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		conn.SetDeadline(time.Now().Add(patience))
		fmt.Fprint(conn, test.request)
		if !test.closes {
			fmt.Fprint(conn, "GET /next HTTP/1.1\r\nHost: x\r\n\r\n")
		}
		reader := bufio.NewReader(conn)
		method, _, _ := strings.Cut(test.request, " ")
		res, err := http.ReadResponse(reader, &http.Request{Method: method})
		if err != nil || res.StatusCode != test.status {
			t.Errorf("%q got %v (error %v); want status %d", test.request, res, err, test.status)
			continue
		}
		if _, err := io.Copy(io.Discard, res.Body); err != nil {
			t.Errorf("%q: the response ends with %v; want it whole", test.request, err)
		}
		res, err = http.ReadResponse(reader, nil)
		if isOpen := err == nil && res.StatusCode == http.StatusOK; isOpen == test.closes {
			t.Errorf("%q: the next request on the connection got %v (error %v); want a response: %v", test.request, res, err, !test.closes)
		}
	}
}

// A connection whose body was not read may be closed to make room for a new one.
func TestUnreadBodiesLeaveRoom(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		body     string
		reads    int64
		mayClose bool
	}{
		{"", 0, false},
		{"body", 0, true},
		{"body", 2, true},
		{"body", 10, false},
	} {
		idle := newIdleList()
		conn, other := net.Pipe()
		defer other.Close()
		r := httptest.NewRequest(http.MethodPost, "/", strings.NewReader(test.body))
		r = r.WithContext(adminapi.WithConn(r.Context(), conn))
		endUnread(idle, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			io.CopyN(io.Discard, r.Body, test.reads)
		})).ServeHTTP(httptest.NewRecorder(), r)
		if got, _ := idle.closeLongest(); got != test.mayClose {
			t.Errorf("after %d bytes of %q were read, the connection may be closed: %v; want %v", test.reads, test.body, got, test.mayClose)
		}
	}
}
