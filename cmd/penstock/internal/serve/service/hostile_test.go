package service

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/penstock/penstock/internal/testing/eventually"
)

// preface begins a connection with HTTP/2 and no settings.
const preface = http2.ClientPreface + "\x00\x00\x00\x04\x00\x00\x00\x00\x00"

// slowClients occupy a connection. Each client sends begin once, and then drip every 20 ms.
var slowClients = []struct{ name, begin, drip string }{
	{name: "sends nothing", begin: "", drip: ""},
	{name: "sends only a request line", begin: "GET / HTTP/1.1\r\n", drip: ""},
	{name: "sends a header byte by byte", begin: "GET / HTTP/1.1\r\nHost: h\r\nX: ", drip: "x"},
	{name: "sends endless headers", begin: "GET / HTTP/1.1\r\nHost: h\r\n", drip: "X: y\r\n"},
	{name: "sends endless empty lines", begin: "", drip: "\r\n"},
	{name: "sends no body", begin: "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 100000\r\n\r\n", drip: ""},
	{name: "sends a body byte by byte", begin: "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 100000\r\n\r\n", drip: "x"},
	{name: "sends endless chunks", begin: "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n", drip: "1\r\nx\r\n"},
	{name: "sends an endless chunk extension", begin: "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n1;", drip: "x"},
	{name: "sends endless trailers", begin: "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n", drip: "X: y\r\n"},
	{name: "is denied and sends no body", begin: "POST / HTTP/1.1\r\nHost: h\r\nX-Denied: yes\r\nContent-Length: 100\r\n\r\n", drip: ""},
	{name: "is denied and sends a body byte by byte", begin: "POST / HTTP/1.1\r\nHost: h\r\nX-Denied: yes\r\nContent-Length: 100000\r\n\r\n", drip: "x"},
	{name: "sends a body after a 417", begin: "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 100\r\nExpect: 200-maybe\r\n\r\n", drip: "x"},
	{name: "stays idle after its request", begin: "GET / HTTP/1.1\r\nHost: h\r\n\r\n", drip: ""},
	{name: "sends half of a second request", begin: "GET / HTTP/1.1\r\nHost: h\r\n\r\nGET / HT", drip: ""},
	{name: "begins HTTP/2 and stops", begin: "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", drip: ""},
	{name: "begins HTTP/2 with half a frame", begin: "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00", drip: ""},
	{name: "sends a HEADERS frame byte by byte", begin: preface + "\x00\x40\x00\x01\x05\x00\x00\x00\x01", drip: "\x82"},
	{name: "sends endless CONTINUATION frames", begin: preface + "\x00\x00\x01\x01\x00\x00\x00\x00\x01\x82", drip: "\x00\x00\x00\x09\x00\x00\x00\x00\x01"},
}

func TestSlowClientsAreCutOffWhileOthersAreServed(t *testing.T) {
	const clientsOfEachKind = 12
	const timeout = 400 * time.Millisecond
	const policy = "deny: [{header X-Denied: \"yes\"}]\nrules: [{name: none, match: {path: /none}, per: global, limits: [{rate: 1/s}]}]\n"
	r := startLimited(t, hello, policy, map[string]string{"header-timeout": timeout.String(), "stall-timeout": timeout.String(), "idle-timeout": timeout.String()})
	var slow, others sync.WaitGroup
	for _, c := range slowClients {
		for range clientsOfEachKind {
			slow.Go(func() {
				conn, err := net.Dial("tcp", r.Listen)
				if err != nil {
					t.Error(err)
					return
				}
				defer conn.Close()
				conn.SetDeadline(time.Now().Add(patience))
				io.WriteString(conn, c.begin)
				cutOff := make(chan struct{})
				go func() {
					defer close(cutOff)
					if _, err := io.Copy(io.Discard, conn); isTimeout(err) {
						t.Errorf("after %v, a client that %s is still connected; want it cut off", patience, c.name)
					}
				}()
				for {
					select {
					case <-cutOff:
						return
					case <-time.After(20 * time.Millisecond):
						io.WriteString(conn, c.drip)
					}
				}
			})
		}
	}
	var served atomic.Int64
	slowEnded := make(chan struct{})
	for range 2 {
		others.Go(func() {
			for {
				select {
				case <-slowEnded:
					return
				default:
				}
				begin := time.Now()
				status, body, err := get("http://" + r.Listen + "/x")
				if time.Since(begin) >= timeout {
					continue // on a busy machine, this client may be as slow as the others
				}
				if status != 200 || body != "hello /x" {
					t.Errorf("another client got %d %s (error %v); want 200 hello /x", status, body, err)
					return
				}
				served.Add(1)
			}
		})
	}
	slow.Wait()
	close(slowEnded)
	others.Wait()
	if served.Load() == 0 {
		t.Error("no other client was served beside the slow ones; want some")
	}
	t.Logf("counted: %d slow clients that were cut off (%d others were served meanwhile)", len(slowClients)*clientsOfEachKind, served.Load())
}

func TestStalledBodyGets408(t *testing.T) {
	r := start(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.Copy(io.Discard, r.Body) }),
		map[string]string{"stall-timeout": "100ms"})
	for _, head := range []string{"Content-Length: 10", "Transfer-Encoding: chunked"} {
		conn := r.dial()
		fmt.Fprintf(conn, "POST / HTTP/1.1\r\nHost: h\r\n%s\r\n\r\n", head)
		if status, body, err := readResponse(conn); err != nil || status != http.StatusRequestTimeout {
			t.Errorf("a stalled body with %s got %d %s (error %v); want 408", head, status, body, err)
		}
	}
	if r.log.Lines("level=WARN") != nil {
		t.Errorf("the log reports an error of the upstream, but the client stalled: %s", r.log)
	}
}

func TestClientThatReadsNoResponseFreesTheUpstream(t *testing.T) {
	ended := make(chan error, 1)
	r := start(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, err := io.Copy(w, endlessReader{})
		ended <- err
	}), map[string]string{"stall-timeout": "300ms"})
	conn := r.dial()
	io.WriteString(conn, "GET / HTTP/1.1\r\nHost: h\r\n\r\n")
	select {
	case <-ended:
	case <-time.After(patience):
		t.Errorf("after %v, the upstream is still sending to a client that reads nothing", patience)
	}
}

// An endlessReader is a reader without an end.
type endlessReader struct{}

func (endlessReader) Read(p []byte) (int, error) { return len(p), nil }

func TestUploadsAndStreamsMayLastLongerThanTheTimeouts(t *testing.T) {
	const pause, pieces = 300 * time.Millisecond, 10 // an upload and a response take 3 s each, longer than each timeout
	t.Parallel()
	r := startWithoutLeakCheck(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n, err := io.Copy(io.Discard, r.Body)
		if err != nil {
			t.Errorf("the upload failed: %v", err)
		}
		for range pieces {
			fmt.Fprintf(w, "%d ", n)
			http.NewResponseController(w).Flush()
			time.Sleep(pause)
		}
	}), map[string]string{"header-timeout": "1s", "stall-timeout": "2s", "idle-timeout": "1s"})
	for _, version := range []int{1, 2} {
		protocols := new(http.Protocols)
		protocols.SetHTTP1(version == 1)
		protocols.SetUnencryptedHTTP2(version == 2)
		transport := &http.Transport{Protocols: protocols}
		body, feed := io.Pipe()
		go func() {
			for range pieces {
				feed.Write(make([]byte, 1000))
				time.Sleep(pause)
			}
			feed.Close()
		}()
		res, err := (&http.Client{Transport: transport, Timeout: patience}).Post("http://"+r.Listen, "", body)
		if err != nil {
			t.Fatalf("the upload by HTTP/%d got no response: %v", version, err)
		}
		text, err := io.ReadAll(res.Body)
		if err != nil || string(text) != strings.Repeat("10000 ", pieces) || res.ProtoMajor != version {
			t.Errorf("the response by HTTP/%d is %q (error %v); want the size 10000 %d times by HTTP/%d", res.ProtoMajor, text, err, pieces, version)
		}
		transport.CloseIdleConnections()
	}
}

// TestUploadWhoseResponseComesEarlyDoesNotEndTheProcess: when the upstream has responded, the
// transport may still be reading the body of a request whose handler has returned.
func TestUploadWhoseResponseComesEarlyDoesNotEndTheProcess(t *testing.T) {
	r := start(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.NewResponseController(w).EnableFullDuplex() // respond before the body has arrived
		w.WriteHeader(http.StatusRequestEntityTooLarge)
	}), nil)
	for _, version := range []int{1, 2} {
		protocols := new(http.Protocols)
		protocols.SetHTTP1(version == 1)
		protocols.SetUnencryptedHTTP2(version == 2)
		transport := &http.Transport{Protocols: protocols}
		var uploads sync.WaitGroup
		for range 100 {
			uploads.Go(func() {
				body, feed := io.Pipe()
				go feed.Write([]byte("a"))
				defer feed.Close()
				res, err := (&http.Client{Transport: transport, Timeout: patience}).Post("http://"+r.Listen, "", body)
				if err != nil {
					t.Errorf("an upload by HTTP/%d got no response: %v", version, err)
					return
				}
				defer res.Body.Close()
				if res.StatusCode != http.StatusRequestEntityTooLarge || res.ProtoMajor != version {
					t.Errorf("an upload got %s by HTTP/%d; want 413 by HTTP/%d", res.Status, res.ProtoMajor, version)
				}
			})
		}
		uploads.Wait()
		transport.CloseIdleConnections()
	}
	r.mustGet("http://"+r.Admin+"/livez", 200)
	if lines := r.log.Lines("panic"); lines != nil {
		t.Errorf("the log has panics: %q", lines)
	}
}

// TestClientsThatLeaveAtAnyByteDoNotEndTheProcess: a client sends the first bytes of some uploads
// and leaves, for each number of bytes. The upstream responds at different moments. So the body of
// a request ends before, while and after its handler returns.
func TestClientsThatLeaveAtAnyByteDoNotEndTheProcess(t *testing.T) {
	const policy = "rules: [{name: a, match: {path: /**}, per: global, limits: [{rate: 1M/s, cost: {body: 1KB}}, {in_flight: 100000, ttl: 1m}, {name: failed, rate: 10M/s, on_status: 401}]}]\n"
	r := startLimited(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		control := http.NewResponseController(w)
		control.EnableFullDuplex()
		w.Header().Set("Connection", "close") // after an early response, net/http cannot keep the connection
		switch r.URL.Path {
		case "/early": // responds at once
			w.WriteHeader(http.StatusUnauthorized)
		case "/interim": // responds at once, in parts
			w.WriteHeader(http.StatusEarlyHints)
			io.WriteString(w, "first")
			control.Flush()
			io.WriteString(w, "second")
		case "/half": // responds after a part of the body
			io.ReadFull(r.Body, make([]byte, 2))
			io.WriteString(w, "half")
		case "/breaks": // ends the connection
			panic(http.ErrAbortHandler)
		default:
			io.Copy(w, r.Body)
		}
	}), policy, nil)
	log.SetOutput(r.log) // where a panic is reported that was recovered outside of a handler
	defer log.SetOutput(os.Stderr)
	var uploads []string
	for _, path := range []string{"/early", "/interim", "/half", "/breaks", "/whole"} {
		uploads = append(uploads, "POST "+path+" HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\nTrailer: X-T\r\n\r\n5\r\nhello\r\n0\r\nX-T: a\r\n\r\nGET / HTTP/1.1\r\nHost: h\r\n\r\n",
			"POST "+path+" HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\nhello", uploadsByHTTP2(t, path))
	}
	places := make(chan struct{}, 32) // bounds how many clients are connected
	var clients sync.WaitGroup
	sent := 0
	for _, upload := range uploads {
		for n := rand.IntN(3); n <= len(upload); n += 3 { // every third byte, other ones in each run
			sent++
			places <- struct{}{}
			clients.Go(func() {
				defer func() { <-places }()
				conn := r.dial()
				io.WriteString(conn, upload[:n])
				if n%2 == 0 { // the others leave while the response comes
					conn.SetReadDeadline(time.Now().Add(5 * time.Millisecond))
					io.Copy(io.Discard, conn)
				}
				conn.Close()
			})
		}
	}
	clients.Wait()
	if status, body, err := get("http://" + r.Listen + "/whole"); err != nil || status != http.StatusOK {
		t.Errorf("after these clients, a request got %d %s (error %v); want 200", status, body, err)
	}
	if lines := r.log.Lines("panic"); lines != nil {
		t.Errorf("the log has %d lines about panics, first %q; want none", len(lines), lines[0])
	}
	t.Logf("counted: %d clients that left early", sent)
}

// uploadsByHTTP2 returns what a client sends for five uploads on one connection. They end in
// different ways: with trailers, with a reset, with too many bytes, or not at all.
func uploadsByHTTP2(t *testing.T, path string) string {
	t.Helper()
	var out, block bytes.Buffer
	out.WriteString(http2.ClientPreface)
	framer, encoder := http2.NewFramer(&out, nil), hpack.NewEncoder(&block)
	framer.AllowIllegalWrites = true
	header := func(id uint32, write func(), isLast bool) {
		block.Reset()
		write()
		framer.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block.Bytes(), EndHeaders: true, EndStream: isLast})
	}
	framer.WriteSettings()
	for i := range uint32(5) {
		id := 2*i + 1
		header(id, func() {
			encodeRequest(encoder, "POST", path)
			encoder.WriteField(hpack.HeaderField{Name: "trailer", Value: "x-t"})
			if i == 2 {
				encoder.WriteField(hpack.HeaderField{Name: "content-length", Value: "3"})
			}
		}, false)
		framer.WriteData(id, false, []byte("hello"))
		switch i {
		case 0:
			header(id, func() { encoder.WriteField(hpack.HeaderField{Name: "x-t", Value: "a"}) }, true)
		case 1:
			framer.WriteRSTStream(id, http2.ErrCodeCancel)
		case 3:
			framer.WriteData(id, true, nil)
		}
	}
	framer.WritePing(false, [8]byte{})
	return out.String()
}

// While requests are in flight on all connections, a new one waits until another one is closed.
func TestNoMoreConnectionsThanTheLimit(t *testing.T) {
	const places = 5 // the value of max_connections
	arrived, release := make(chan struct{}, places), make(chan struct{})
	r := start(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/in" {
			arrived <- struct{}{}
			<-release
		}
		hello(w, r)
	}), map[string]string{"max-connections": fmt.Sprint(places)})
	var inside []net.Conn
	for range places {
		conn := r.dial()
		io.WriteString(conn, "GET /in HTTP/1.1\r\nHost: h\r\n\r\n")
		<-arrived
		inside = append(inside, conn)
	}
	var outside []net.Conn
	for range 3 {
		conn := r.dial()
		io.WriteString(conn, "GET /out HTTP/1.1\r\nHost: h\r\n\r\n")
		outside = append(outside, conn)
	}
	eventually.True(t, "the line about max_connections", func() bool { return r.log.Lines("max_connections is reached", "limit=5") != nil })
	outside[0].SetReadDeadline(time.Now().Add(50 * time.Millisecond))
	if n, err := outside[0].Read(make([]byte, 1)); n != 0 || err == nil {
		t.Error("a connection beyond the limit was served")
	}
	for i, conn := range outside {
		inside[i].Close()
		conn.SetReadDeadline(time.Now().Add(patience))
		if _, body, err := readResponse(conn); err != nil || body != "hello /out" {
			t.Errorf("after another connection closed, a waiting one got %q (error %v); want hello /out", body, err)
		}
	}
	close(release)
	for i, conn := range inside[len(outside):] { // connections within the limit are still served
		if _, body, err := readResponse(conn); err != nil || body != "hello /in" {
			t.Errorf("connection %d got %q (error %v); want hello /in", i, body, err)
		}
	}
	r.mustGet("http://"+r.Admin+"/livez", 200)
	if n := len(r.log.Lines("max_connections is reached")); n != 1 {
		t.Errorf("max_connections is logged %d times; want once", n)
	}
}

// If all connections are taken, a new one takes the place of an idle one.
func TestIdleConnectionsMakeRoomForNewOnes(t *testing.T) {
	const places = 5 // the value of max_connections
	r := start(t, hello, map[string]string{"max-connections": fmt.Sprint(places)})
	get := func(conn net.Conn, path string) error {
		io.WriteString(conn, "GET "+path+" HTTP/1.1\r\nHost: h\r\n\r\n")
		conn.SetReadDeadline(time.Now().Add(patience))
		_, body, err := readResponse(conn)
		if err == nil && body != "hello "+path {
			err = fmt.Errorf("the body is %q", body)
		}
		return err
	}
	var conns []net.Conn
	for i := range 3 * places {
		conns = append(conns, r.dial())
		if err := get(conns[i], "/first"); err != nil {
			t.Fatalf("connection %d beside idle ones: %v; want a response", i, err)
		}
	}
	// Which ones are kept is open here: a client may read its response before the server notes that
	// the connection is idle. TestTheLongestIdleIsClosed has the order.
	kept := 0
	for _, conn := range conns {
		if get(conn, "/second") == nil {
			kept++
		}
	}
	if kept != places {
		t.Errorf("%d connections were kept; want %d", kept, places)
	}
}

func TestRapidResetsKeepFewRequestsInFlight(t *testing.T) {
	var inFlight, most atomic.Int64
	countRequests := func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			now := inFlight.Add(1)
			// This raises most to now.
			for before := most.Load(); now > before && !most.CompareAndSwap(before, now); {
				before = most.Load()
			}
			defer inFlight.Add(-1)
			next.ServeHTTP(w, r)
		})
	}
	r := start(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/slow" {
			<-r.Context().Done()
			return
		}
		io.WriteString(w, "ok")
	}), nil, func(o *Options) { o.testHooks.limits = countRequests })
	const resets = 20_000
	const resetsPerConnection = 5000 // at most
	sent, connections := 0, 0
	for sent < resets {
		connections++
		n := resetStreams(r, min(resetsPerConnection, resets-sent))
		if n == 0 {
			t.Fatalf("connection %d opened no stream", connections)
		}
		sent += n
		if body := r.mustGet("http://"+r.Listen+"/quick", 200); body != "ok" {
			t.Errorf("another client got %q; want ok", body)
		}
	}
	eventually.True(t, "the reset requests to end", func() bool { return inFlight.Load() == 0 })
	const streams, others = 100, 1 // streams that a connection may have open, and requests of the other client
	if bound := int64(streams*connections + others); most.Load() > bound {
		t.Errorf("%d requests were in flight at once; want at most %d on %d connections", most.Load(), bound, connections)
	}
	t.Logf("counted: %d streams opened and reset (at most %d in flight at once)", sent, most.Load())
}

// net/http checks the method of HTTP/1.1 requests only.
func TestMalformedMethodOfHTTP2IsNotCharged(t *testing.T) {
	r := startLimited(t, hello, "rules: [{name: a, per: ip, limits: [{rate: 1/h}]}]", nil)
	// statusOf sends a request by HTTP/2, and returns the status of its response.
	statusOf := func(method string) (status string) {
		conn := r.dial()
		io.WriteString(conn, http2.ClientPreface)
		framer := http2.NewFramer(conn, conn)
		framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
		framer.WriteSettings()
		var block bytes.Buffer
		encodeRequest(hpack.NewEncoder(&block), method, "/")
		framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block.Bytes(), EndStream: true, EndHeaders: true})
		for {
			frame, err := framer.ReadFrame()
			if err != nil {
				t.Fatalf("a request with the method %q got no response: %v", method, err)
			}
			if headers, ok := frame.(*http2.MetaHeadersFrame); ok {
				return headers.PseudoValue("status")
			}
		}
	}
	for _, c := range []struct{ method, status string }{{"P(OST", "400"}, {"P/OST", "400"}, {"POST", "200"}, {"POST", "429"}, {"P(OST", "400"}} {
		if status := statusOf(c.method); status != c.status {
			t.Errorf("a request with the method %q got %s; want %s", c.method, status, c.status)
		}
	}
}

// encodeRequest encodes the header of a request.
func encodeRequest(encoder *hpack.Encoder, method, path string) {
	for _, field := range []hpack.HeaderField{
		{Name: ":method", Value: method}, {Name: ":scheme", Value: "http"}, {Name: ":authority", Value: "h"}, {Name: ":path", Value: path},
	} {
		encoder.WriteField(field)
	}
}

// resetStreams opens up to n streams on one connection and resets each immediately. It stops when
// the server closes the connection.
func resetStreams(r *testService, n int) (sent int) {
	conn := r.dial()
	defer conn.Close()
	io.WriteString(conn, http2.ClientPreface)
	out := bufio.NewWriterSize(conn, 1<<16)
	framer := http2.NewFramer(out, nil)
	framer.WriteSettings()
	go io.Copy(io.Discard, conn)
	var block bytes.Buffer
	encoder := hpack.NewEncoder(&block)
	for ; sent < n; sent++ {
		block.Reset()
		encodeRequest(encoder, "GET", "/slow")
		id := uint32(2*sent + 1)
		framer.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block.Bytes(), EndStream: true, EndHeaders: true})
		if framer.WriteRSTStream(id, http2.ErrCodeCancel) != nil {
			return sent
		}
	}
	out.Flush() // fails if the server has closed the connection
	return sent
}
