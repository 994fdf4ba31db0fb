package service

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/protobuf/proto"

	"github.com/penstock/penstock/grpclimit/penstockv1"
	"github.com/penstock/penstock/internal/testing/eventually"
)

// closedWindow is the setting of a client that accepts no body of a response.
var closedWindow = http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0}

// withMemory sets the budget of memory, in bytes.
func withMemory(size int64) func(*Options) {
	return func(o *Options) { o.testHooks.memory = size }
}

// request writes a request. more are names and values of headers.
func (c *frameClient) request(id uint32, method, path string, body []byte, more ...string) {
	c.block.Reset()
	encodeRequest(c.encoder, method, path)
	for i := 0; i < len(more); i += 2 {
		c.encoder.WriteField(hpack.HeaderField{Name: more[i], Value: more[i+1]})
	}
	c.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: c.block.Bytes(), EndHeaders: true, EndStream: body == nil})
	for len(body) > 0 {
		n := min(len(body), 16<<10)
		c.WriteData(id, n == len(body), body[:n])
		body = body[n:]
	}
}

// statuses reads frames until n responses have begun. It returns how many have each status, and how
// many of those have ended with their headers.
func (c *frameClient) statuses(n int) (byStatus, ended map[string]int) {
	c.Helper()
	byStatus, ended = map[string]int{}, map[string]int{}
	for range n {
		for {
			frame, err := c.ReadFrame()
			if err != nil {
				c.Fatalf("after the statuses %v: %v; want %d responses", byStatus, err, n)
			}
			if headers, ok := frame.(*http2.MetaHeadersFrame); ok {
				status := headers.PseudoValue("status")
				byStatus[status]++
				if headers.StreamEnded() {
					ended[status]++
				}
				break
			}
		}
	}
	return byStatus, ended
}

// awaitNoMemory waits until no request has memory.
func (r *testService) awaitNoMemory() {
	r.Helper()
	eventually.True(r.T, "all memory to be released", func() bool {
		runtime.GC()
		return r.metric("rate_limiter_request_memory_bytes") == "0"
	})
}

// Clients with a closed window get at most as many responses with a body as the budget of memory
// allows. The others get 503 without a body. Then other clients get 503 at once, and probes are
// answered.
func TestClosedWindowsTakeBoundedMemory(t *testing.T) {
	const connections, streams, counted = 8, 100, 400
	const policy = "deny: [{header X-Denied: \"yes\"}]\nrules: [{name: none, match: {path: /none}, per: global, limits: [{rate: 1/s}]}]\n"
	for _, c := range []struct {
		name, status  string
		cost, headers int64 // cost is the least that one request takes, in bytes
		flags         map[string]string
	}{
		{name: "proxy", status: "403", cost: memoryOfForwarded},
		{name: "proxy, with many headers", status: "403", cost: memoryOfForwarded + 100*memoryOfField, headers: 100},
		{name: "api", status: "404", cost: memoryOfCall, flags: map[string]string{"api": "127.0.0.1:0"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			budget := counted * c.cost
			var upstream http.Handler = hello
			if c.flags != nil {
				upstream = nil
			}
			r := start(t, upstream, limitedBy(t, policy, c.flags), withMemory(budget))
			address := r.Listen + r.API // one of them is ""
			var clients []*frameClient
			held := 0
			for range connections {
				client := r.framesTo(address, closedWindow)
				clients = append(clients, client)
				headers := []string{"x-denied", "yes"}
				for i := range c.headers {
					headers = append(headers, fmt.Sprintf("x%d", i), "v")
				}
				for i := range uint32(streams) {
					client.request(2*i+1, "GET", "/a", nil, headers...)
				}
				client.flush()
				byStatus, ended := client.statuses(streams)
				if ended["503"] != byStatus["503"] || byStatus["503"]+byStatus[c.status] != streams {
					t.Errorf("the statuses are %v, of which %v have no body; want %s or 503, and no body with 503", byStatus, ended, c.status)
				}
				held += byStatus[c.status]
			}
			if most := counted + manyGoroutines; held < counted/3 || held > most {
				t.Errorf("%d requests are in flight; want %d to %d", held, counted/3, most)
			}
			for range 5 { // small requests use what is left
				filler := r.framesTo(address, closedWindow)
				clients = append(clients, filler)
				for i := range uint32(streams) {
					filler.request(2*i+1, "GET", "/a", nil, "x-denied", "yes")
				}
				filler.flush()
				filler.statuses(streams)
			}
			if res := mustSendTo(t, address); res.StatusCode != 503 || !res.Close || res.Header.Get("Retry-After") != "1" {
				t.Errorf("another client got %s and the headers %v; want 503 that closes the connection", res.Status, res.Header)
			}
			r.mustGet("http://"+r.Admin+"/livez", 200)
			r.mustGet("http://"+r.Admin+"/readyz", 200)
			if lines := r.log.Lines("requests in flight use all memory"); len(lines) != 1 {
				t.Errorf("the log has %q; want one line about the memory", lines)
			}
			if n := r.metric(`rate_limiter_overload_refusals_total{resource="memory"}`); n == "0" || n == "" {
				t.Errorf("the metric of refused requests is %q; want more than 0", n)
			}
			for _, client := range clients {
				client.Close()
			}
			r.awaitNoMemory()
			if res := mustSendTo(t, address); res.StatusCode == 503 {
				t.Errorf("after the clients have left, a request got %s", res.Status)
			}
		})
	}
}

// mustSendTo sends a GET by HTTP/1.
func mustSendTo(t *testing.T, address string) *http.Response {
	t.Helper()
	res, err := send("GET", "http://"+address+"/a")
	if err != nil {
		t.Fatal(err)
	}
	return res
}

// By HTTP/1, a request keeps its memory until its connection is idle: net/http reads the rest of
// the body after the handler.
func TestDeniedBodiesThatDoNotComeKeepTheirMemory(t *testing.T) {
	const policy = "deny: [{header X-Denied: \"yes\"}]\nrules: [{name: none, match: {path: /none}, per: global, limits: [{rate: 1/s}]}]\n"
	var ended atomic.Int64 // handlers
	r := start(t, hello, limitedBy(t, policy, nil), withMemory(3*memoryOfForwarded+memoryOfForwarded/2), func(o *Options) {
		o.testHooks.limits = func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				next.ServeHTTP(w, r)
				ended.Add(1)
			})
		}
	})
	var conns []net.Conn
	for range 3 {
		conn := r.dial()
		io.WriteString(conn, "POST /a HTTP/1.1\r\nHost: h\r\nX-Denied: yes\r\nContent-Length: 100\r\n\r\n")
		conns = append(conns, conn)
	}
	eventually.True(t, "the requests to be denied", func() bool { return ended.Load() == 3 })
	for range 3 {
		if res := r.mustSend("GET", "/a"); res.StatusCode != 503 {
			t.Errorf("beside three requests in flight, another one got %s; want 503", res.Status)
		}
	}
	for _, conn := range conns {
		io.WriteString(conn, strings.Repeat("a", 100))
		if status, _, err := readResponse(conn); err != nil || status != 403 {
			t.Errorf("after its body, a denied request got %d (error %v); want 403", status, err)
		}
	}
	r.awaitNoMemory()
	for range 100 { // on one connection
		if res := r.mustSend("GET", "/a"); res.StatusCode != 200 {
			t.Fatalf("a request got %s; want 200", res.Status)
		}
	}
	r.awaitNoMemory()
}

// A WebSocket takes memory until it ends.
func TestWebSocketsReleaseTheirMemory(t *testing.T) {
	r := start(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		conn, buffered, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		buffered.WriteString("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
		buffered.Flush()
		io.Copy(io.Discard, conn)
	}), nil)
	conn := r.dial()
	io.WriteString(conn, "GET / HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n")
	if line := make([]byte, len("HTTP/1.1 101")); func() error { _, err := io.ReadFull(conn, line); return err }() != nil || string(line) != "HTTP/1.1 101" {
		t.Fatalf("the response to a WebSocket begins with %q; want HTTP/1.1 101", line)
	}
	if r.metric("rate_limiter_request_memory_bytes") == "0" {
		t.Error("an open WebSocket takes no memory; want some")
	}
	conn.Close()
	r.awaitNoMemory()
}

// A header that arrives slowly takes memory too. If there is none, its connection is closed.
func TestSlowHeadersTakeBoundedMemory(t *testing.T) {
	const sent, fit = 12 << 10, 4 // bytes of each header, and how many such headers fit
	const each = (sent - smallHeader) * memoryOfHeaderByte
	r := start(t, hello, nil, withMemory(fit*each+each/2))
	for i := range fit + 3 {
		conn := r.dial()
		head := "GET / HTTP/1.1\r\nHost: h\r\nX: "
		io.WriteString(conn, head+strings.Repeat("a", sent-len(head)))
		if i < fit {
			eventually.True(t, "the header to take memory", func() bool {
				return r.metric("rate_limiter_request_memory_bytes") == fmt.Sprint((i+1)*each)
			})
		} else if _, err := io.Copy(io.Discard, conn); isTimeout(err) {
			t.Errorf("header %d does not fit, but its connection is open; want it closed", i+1)
		}
		if i == fit-1 { // the first headers end
			if res := r.mustSend("GET", "/"); res.StatusCode != 200 {
				t.Errorf("beside slow headers, a request got %s; want 200", res.Status)
			}
			defer func() {
				io.WriteString(conn, "\r\n\r\n")
				if status, _, err := readResponse(conn); err != nil || status != 200 {
					t.Errorf("after the end of its header, a request got %d (error %v); want 200", status, err)
				}
				conn.Close()
				eventually.True(t, "the memory of the request to be released", func() bool {
					return r.metric("rate_limiter_request_memory_bytes") == fmt.Sprint((fit-1)*each)
				})
			}()
		}
	}
}

// batchOf returns a batch of n checks with one caller limit each, in JSON and as a message.
func batchOf(n int) (text []byte, message *penstockv1.CheckBatchRequest) {
	var out bytes.Buffer
	message = new(penstockv1.CheckBatchRequest)
	for i := range n {
		fmt.Fprintf(&out, `,{"key":"k:%d","limits":[{"name":"a","rate":"9/h"}]}`, i)
		message.Checks = append(message.Checks, &penstockv1.CheckRequest{
			Key: fmt.Sprintf("k:%d", i), Limits: []*penstockv1.Limit{{Name: "a", Rate: "9/h"}},
		})
	}
	return []byte(`{"checks":[` + out.String()[1:] + `]}`), message
}

// The answers of batches that a caller does not read take at most the budget of memory. Small calls
// are still answered.
func TestUnreadBatchesTakeBoundedMemory(t *testing.T) {
	const token = "0123456789abcdef"
	const calls = 10
	r := start(t, nil, map[string]string{"api": "127.0.0.1:0", "caller-token": token, "allow-caller-limits": "true"}, withMemory(5<<20))
	body, _ := batchOf(1000)
	client := r.framesTo(r.API, closedWindow)
	all := map[string]int{} // calls by status
	for i := range uint32(calls) {
		client.request(2*i+1, "POST", "/v1/check-batch", body, "content-type", "application/json", "authorization", "Bearer "+token)
		client.flush()
		byStatus, _ := client.statuses(1)
		for status := range byStatus {
			all[status]++
		}
	}
	if all["200"] != 2 || all["503"] != calls-2 { // each takes 2 MB
		t.Errorf("the statuses of %d batches are %v; want 200 for two, and 503 for the others", calls, all)
	}
	status, text := r.checkBatch(token, 1)
	if status != 200 {
		t.Errorf("beside unread batches, a batch of one got %d %s; want 200", status, text)
	}
	if status, text = r.checkBatch(token, 1000); status != 503 || !strings.Contains(text, "nothing was charged") {
		t.Errorf("beside unread batches, a large batch got %d %.200s; want 503 that says that nothing was charged", status, text)
	}
	client.Close()
	r.awaitNoMemory()
	if status, text = r.checkBatch(token, 1000); status != 200 {
		t.Errorf("after the caller has left, a large batch got %d %.200s; want 200", status, text)
	}
}

// checkBatch sends a batch of n checks by HTTP/1.
func (r *testService) checkBatch(token string, n int) (status int, text string) {
	r.Helper()
	body, _ := batchOf(n)
	request, err := http.NewRequest("POST", "http://"+r.API+"/v1/check-batch", bytes.NewReader(body))
	if err != nil {
		r.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Authorization", "Bearer "+token)
	res, err := http.DefaultClient.Do(request)
	if err != nil {
		r.Fatal(err)
	}
	defer res.Body.Close()
	answer, err := io.ReadAll(res.Body)
	if err != nil {
		r.Fatal(err)
	}
	return res.StatusCode, string(answer)
}

// As TestUnreadBatchesTakeBoundedMemory, over gRPC: the answers wait in grpc-go after their calls.
func TestUnreadGRPCBatchesTakeBoundedMemory(t *testing.T) {
	const calls = 40
	r := start(t, nil, map[string]string{"grpc": "127.0.0.1:0", "allow-caller-limits": "true"}, withMemory(3<<20))
	_, message := batchOf(1000)
	encoded, err := proto.Marshal(message)
	if err != nil {
		t.Fatal(err)
	}
	framed := append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(encoded))), encoded...)
	// outcomes sends calls one after the other, and counts those whose answer waits, and the refused.
	outcomes := func(client *frameClient, calls int) (answered, refused int) {
		for i := range uint32(calls) {
			client.request(2*i+1, "POST", penstockv1.LimitService_CheckBatch_FullMethodName, framed, "content-type", "application/grpc", "te", "trailers")
			client.flush()
			for {
				frame, err := client.ReadFrame()
				if err != nil {
					t.Fatal(err)
				}
				headers, ok := frame.(*http2.MetaHeadersFrame)
				if !ok {
					continue
				}
				if headers.StreamEnded() {
					refused++
				} else {
					answered++
				}
				break
			}
		}
		return answered, refused
	}
	client := r.framesTo(r.GRPC, closedWindow)
	answered, refused := outcomes(client, calls)
	if answered == 0 || refused == 0 {
		t.Errorf("of %d batches, %d were answered and %d refused; want some of both", calls, answered, refused)
	}
	client.Close()
	r.awaitNoMemory()
	if answered, _ := outcomes(r.framesTo(r.GRPC, closedWindow), 1); answered != 1 {
		t.Error("after the caller has left, a large batch was refused")
	}
}

// net/http allocates a frame when its head arrives, so the head of a large one ends the connection.
func TestLargeFramesAreRefused(t *testing.T) {
	r := start(t, hello, nil)
	client := r.framesTo(r.Listen)
	client.flush()
	io.WriteString(client.Conn, "\x0f\xff\xff\x00\x00\x00\x00\x00\x01") // the head of a DATA frame of 1 MB
	for {
		frame, err := client.ReadFrame()
		if err != nil {
			t.Fatalf("after the head of a frame of 1 MB, the connection ends with %v; want GOAWAY", err)
		}
		if goAway, ok := frame.(*http2.GoAwayFrame); ok {
			if goAway.ErrCode != http2.ErrCodeFrameSize {
				t.Errorf("after the head of a frame of 1 MB, the service sends GOAWAY with %v; want FRAME_SIZE_ERROR", goAway.ErrCode)
			}
			return
		}
	}
}

// A client address has at most half of the connections to the upstream. Further requests get 503 at
// once, and one log line says why.
func TestConnectionsToTheUpstreamAreShared(t *testing.T) {
	arrived, release := make(chan struct{}, 1), make(chan struct{})
	r := start(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		arrived <- struct{}{}
		<-release
	}), nil, func(o *Options) { o.testHooks.budget = func(b *connectionBudget) { b.upstream = 2 } })
	first := r.dial()
	io.WriteString(first, "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 100\r\n\r\n")
	<-arrived
	for range 2 {
		if res := r.mustSend("GET", "/"); res.StatusCode != 503 || res.Header.Get("Retry-After") != "1" {
			t.Errorf("beside a request of the same address, another one got %s and Retry-After %q; want 503 and 1", res.Status, res.Header.Get("Retry-After"))
		}
	}
	close(release)
	if lines := r.log.Lines("all connections to the upstream are in use"); len(lines) != 1 {
		t.Errorf("the log has %q; want one line about the connections", lines)
	}
	if n := r.metric(`rate_limiter_overload_refusals_total{resource="upstream"}`); n != "2" {
		t.Errorf("the metric of refused requests is %q; want 2", n)
	}
}
