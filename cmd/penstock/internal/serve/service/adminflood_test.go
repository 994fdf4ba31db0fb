//go:build unix

package service

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"
)

// dialAdmin connects to the admin address and sends a text. The connection has a small receive
// buffer.
func (r *testService) dialAdmin(text string) net.Conn {
	r.Helper()
	dialer := net.Dialer{Control: func(_, _ string, c syscall.RawConn) error {
		return c.Control(func(fd uintptr) { _ = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVBUF, 4096) })
	}}
	conn, err := dialer.DialContext(r.Context(), "tcp", r.Admin)
	if err != nil {
		r.Fatal(err)
	}
	_, _ = io.WriteString(conn, text) // the server may have closed the connection
	r.Cleanup(func() { conn.Close() })
	return conn
}

// Probes and scrapes are answered, whatever occupies the connections of the admin address.
func TestFloodedAdminAddressAnswersProbes(t *testing.T) {
	const request = "GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n"
	const limit, flood = 64, 80 // connections of the listener, and those that the test opens
	for name, open := range map[string]func(r *testService, i int){
		"silent": func(r *testService, _ int) { r.dialAdmin("") },
		"bodies that do not come": func(r *testService, _ int) {
			r.dialAdmin("OPTIONS * HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n")
		},
		"half headers": func(r *testService, _ int) { r.dialAdmin("GET /livez HTTP/1.1\r\nHost: ") },
		"idle": func(r *testService, i int) {
			conn := r.dialAdmin(fmt.Sprintf(request, "/api/v1/health"))
			if i >= limit { // it gets its response only after an idle connection was closed
				return
			}
			if res, err := http.ReadResponse(bufio.NewReader(conn), nil); err != nil || res.StatusCode != http.StatusOK {
				r.Errorf("connection %d got %v (error %v); want 200", i, res, err)
			}
		},
		"streams": func(r *testService, i int) {
			conn := r.dialAdmin(fmt.Sprintf(request, []string{"/api/v1/events", "/api/v1/denials"}[i%2]))
			go io.Copy(io.Discard, conn)
		},
		// These clients send many requests and read no response. The responses do not fit into the
		// buffers.
		"stuck readers of the API": func(r *testService, _ int) {
			r.dialAdmin(strings.Repeat(fmt.Sprintf(request, "/api/v1/openapi.json"), 100))
		},
		"stuck readers of metrics":    func(r *testService, _ int) { r.dialAdmin(strings.Repeat(fmt.Sprintf(request, "/metrics"), 400)) },
		"stuck readers of the probes": func(r *testService, _ int) { r.dialAdmin(strings.Repeat(fmt.Sprintf(request, "/livez"), 5_000)) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := startWithoutLeakCheck(t, hello, nil)
			for i := range flood {
				open(r, i)
			}
			client := http.Client{Timeout: patience, Transport: &http.Transport{DisableKeepAlives: true}}
			for _, path := range []string{"/livez", "/readyz", "/healthz", "/metrics"} {
				if name == "stuck readers of metrics" && path == "/metrics" {
					continue // these readers may use up the places for scrapes
				}
				res, err := client.Get("http://" + r.Admin + path)
				if err != nil {
					t.Errorf("a request for %s got no response: %v", path, err)
					return
				}
				if res.Body.Close(); res.StatusCode != http.StatusOK {
					t.Errorf("a request for %s got %s; want 200", path, res.Status)
				}
			}
		})
	}
}

// New readers of events beyond the bound end the oldest streams, and the API still serves other
// requests.
func TestStreamsLeaveRoomAtTheAdminAddress(t *testing.T) {
	r := start(t, hello, nil)
	const most = 32 // half of the connections
	var streams []io.Reader
	for i := range most + 8 {
		conn := r.dialAdmin(fmt.Sprintf("GET /api/v1/%s HTTP/1.1\r\nHost: localhost\r\n\r\n", []string{"events", "denials"}[i%2]))
		conn.SetReadDeadline(time.Now().Add(patience))
		res, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil || res.StatusCode != http.StatusOK {
			t.Fatalf("reader %d gets %v, %v; want 200", i, res, err)
		}
		streams = append(streams, res.Body)
	}
	for i, stream := range streams[:8] { // each was replaced by a new reader
		if _, err := io.Copy(io.Discard, stream); err != nil {
			t.Errorf("the stream of reader %d ends with %v; want its end, because %d readers came later", i, err, most)
		}
	}
	r.mustGet("http://"+r.Admin+"/api/v1/state", 200)
}

// Readers of events that read nothing do not keep others from reading them.
func TestIdleReadersBlockNoOtherReader(t *testing.T) {
	r := start(t, hello, nil)
	const readers = 32
	for range readers {
		conn := r.dialAdmin("GET /api/v1/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
		if _, err := conn.Read(make([]byte, 1)); err != nil { // the stream has begun
			t.Fatal(err)
		}
	}
	for _, path := range []string{"events", "denials"} {
		conn := r.dialAdmin("GET /api/v1/" + path + " HTTP/1.1\r\nHost: localhost\r\n\r\n")
		res, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil || res.StatusCode != http.StatusOK {
			t.Errorf("beside %d idle readers, %s returns %v, %v; want 200", readers, path, res, err)
		}
	}
}
