package service

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/penstock/penstock/internal/testing/effort"
)

// A strictUpstream parses HTTP/1.1 exactly as RFC 9112 requires, with its own parser. It records a
// complaint about each request that is ambiguous or badly framed.
type strictUpstream struct {
	net.Listener
	conns sync.WaitGroup

	mu         sync.Mutex
	received   []string // method and path of each message
	complaints []string
}

func startStrictUpstream(t *testing.T) *strictUpstream {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &strictUpstream{Listener: listener}
	s.conns.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			s.conns.Go(func() { s.serve(conn) })
		}
	})
	t.Cleanup(func() {
		listener.Close()
		s.conns.Wait() // by now the service has ended and closed its connections
	})
	return s
}

func (s *strictUpstream) serve(conn net.Conn) {
	defer conn.Close()
	r := bufio.NewReader(conn)
	for {
		message, body, err := readStrictly(r)
		if message == "" && errors.Is(err, io.EOF) {
			return
		}
		s.mu.Lock()
		if err == nil {
			s.received = append(s.received, message)
		} else if !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
			// An incomplete body is no complaint: the service forwards what the client has sent.
			s.complaints = append(s.complaints, fmt.Sprintf("%s: %v", message, err))
		}
		s.mu.Unlock()
		if err != nil {
			return
		}
		answer := message + " " + body
		fmt.Fprintf(conn, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(answer), answer)
	}
}

// A strictReader reads the parts of messages.
type strictReader struct {
	*bufio.Reader
	err error // the first problem; all results after it are meaningless
}

func (r *strictReader) fail(err error) {
	if r.err == nil {
		r.err = err
	}
}

// readLine reads a line that ends in CRLF, and returns it without CRLF.
func (r *strictReader) readLine() string {
	text, err := r.ReadString('\n')
	text, hasCRLF := strings.CutSuffix(text, "\r\n")
	switch {
	case err != nil:
		r.fail(err)
	case !hasCRLF:
		r.fail(fmt.Errorf("the line %q ends in a bare LF", text))
	case strings.ContainsAny(text, "\r\x00"):
		r.fail(fmt.Errorf("the line %q has a control character", text))
	}
	return text
}

// parseSize parses a size in bytes.
func (r *strictReader) parseSize(text string, base int) int {
	n, err := strconv.ParseUint(text, base, 31)
	if err != nil {
		r.fail(err)
	}
	return int(n)
}

// readBytes reads n bytes.
func (r *strictReader) readBytes(n int) string {
	if r.err != nil {
		return ""
	}
	p := make([]byte, n)
	if _, err := io.ReadFull(r, p); err != nil {
		r.fail(err)
	}
	return string(p)
}

// readChunks reads a chunked body without trailers.
func (r *strictReader) readChunks() (body string) {
	for {
		n := r.parseSize(r.readLine(), 16)
		body += r.readBytes(n)
		if end := r.readLine(); end != "" {
			r.fail(fmt.Errorf("a chunk is followed by %q", end))
		}
		if r.err != nil || n == 0 {
			return body
		}
	}
}

// readStrictly reads one message. If the request line is invalid, message is "?".
func readStrictly(buffered *bufio.Reader) (message, body string, err error) {
	r := &strictReader{Reader: buffered}
	words := strings.Split(r.readLine(), " ")
	if r.err != nil {
		return "", "", r.err
	}
	if len(words) != 3 || words[2] != "HTTP/1.1" || !strings.HasPrefix(words[1], "/") {
		return "?", "", fmt.Errorf("the request line %q is malformed", words)
	}
	message = words[0] + " " + words[1]
	fields := make(map[string][]string)
	for {
		text := r.readLine()
		if r.err != nil {
			return message, "", r.err
		}
		if text == "" {
			break
		}
		name, value, ok := strings.Cut(text, ":")
		if !ok || name == "" || strings.ContainsAny(name, " \t") {
			return message, "", fmt.Errorf("the header line %q is malformed", text)
		}
		fields[strings.ToLower(name)] = append(fields[strings.ToLower(name)], strings.TrimSpace(value))
	}
	lengths, encodings := fields["content-length"], fields["transfer-encoding"]
	switch {
	case len(fields["host"]) != 1:
		return message, "", fmt.Errorf("the Host fields are %q, not one", fields["host"])
	case len(lengths)+len(encodings) > 1:
		return message, "", fmt.Errorf("the message has the lengths %q and the encodings %q, not one of them", lengths, encodings)
	case encodings != nil && encodings[0] != "chunked":
		return message, "", fmt.Errorf("the encoding %q is not chunked", encodings)
	case lengths != nil:
		body = r.readBytes(r.parseSize(lengths[0], 10))
	case encodings != nil:
		body = r.readChunks()
	}
	return message, body, r.err
}

const (
	post     = "POST /a HTTP/1.1\r\nHost: h\r\n"
	smuggled = "GET /smuggled HTTP/1.1\r\nHost: h\r\n\r\n" // has 35 bytes, 23 in hexadecimal
)

// attacks try to make two servers disagree about where a message ends.
var attacks = []struct {
	text   string
	passes []string // the messages that may reach the upstream
}{
	// Lengths of a body that servers may read differently.
	{post + "Content-Length: 5\r\nContent-Length: 40\r\n\r\nhello" + smuggled, nil},
	{post + "Content-Length: 40\r\nContent-Length: 5\r\n\r\nhello" + smuggled, nil},
	{post + "Content-Length: 5, 40\r\n\r\nhello" + smuggled, nil},
	{post + "Content-Length: +5\r\n\r\nhello" + smuggled, nil},
	{post + "Content-Length: -5\r\n\r\nhello" + smuggled, nil},
	{post + "Content-Length: 0x5\r\n\r\nhello" + smuggled, nil},
	{post + "Content-Length: 5_0\r\n\r\nhello" + smuggled, nil},
	{post + "Content-Length: 5 5\r\n\r\nhello" + smuggled, nil},
	{post + "Content-Length: 99999999999999999999\r\n\r\nhello" + smuggled, nil},
	{post + "Content-Length: \r\n\r\n" + smuggled, nil},
	{post + "Content-Length : 5\r\n\r\nhello" + smuggled, nil},
	{post + "Content-Length\t: 5\r\n\r\nhello" + smuggled, nil},
	{post + "Content-Length: 5\x00\r\n\r\nhello" + smuggled, nil},
	{post + "Content-Length: 5\r\n\r\nhello", []string{"POST /a"}},
	{post + "Content-Length: 05\r\n\r\nhello", []string{"POST /a"}},
	{post + "Content-Length: 5\r\nContent-Length: 5\r\n\r\nhello", []string{"POST /a"}},
	{post + "Content-Length: 35\r\n\r\n" + smuggled, []string{"POST /a"}},
	{"GET /a HTTP/1.1\r\nHost: h\r\nContent-Length: 35\r\n\r\n" + smuggled, []string{"GET /a"}},

	// Encodings that only some servers understand.
	{post + "Transfer-Encoding: xchunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n" + smuggled, nil},
	{post + "Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n" + smuggled, nil},
	{post + "Transfer-Encoding: identity, chunked\r\n\r\n0\r\n\r\n" + smuggled, nil},
	{post + "Transfer-Encoding: identity\r\nContent-Length: 5\r\n\r\nhello" + smuggled, nil},
	{post + "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + smuggled, nil},
	{post + "Transfer-Encoding: chunked\r\nTransfer-Encoding: x\r\nContent-Length: 5\r\n\r\n0\r\n\r\n" + smuggled, nil},
	{post + "Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n" + smuggled, nil},
	{post + "Transfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n" + smuggled, nil},
	{post + "Transfer-Encoding: \"chunked\"\r\n\r\n0\r\n\r\n" + smuggled, nil},
	{post + "Transfer-Encoding: chunked\x00\r\n\r\n0\r\n\r\n" + smuggled, nil},
	{post + " Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", nil}, // a folded line, which continues Host
	{post + "X: y\r\n Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\nhello", []string{"POST /a"}},
	{post + "Transfer-Encoding:\r\n chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n", []string{"POST /a"}},
	{post + "Transfer-Encoding: CHUNKED\r\n\r\n5\r\nhello\r\n0\r\n\r\n", []string{"POST /a"}},

	// Messages with a length and an encoding: the encoding counts. What follows the last chunk is a
	// message of its own. It reaches the upstream only if the limits allow it.
	{post + "Content-Length: 6\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nG", []string{"POST /a"}},
	{post + "Transfer-Encoding: chunked\r\nContent-Length: 40\r\n\r\n0\r\n\r\n" + smuggled, []string{"POST /a", "GET /smuggled"}},
	{"POST /a HTTP/1.0\r\nHost: h\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\nhello", []string{"POST /a"}},
	// In HTTP/1.0 there are no encodings, but a server in front may use them.
	{"POST /a HTTP/1.0\r\nHost: h\r\nConnection: keep-alive\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n23\r\n" + smuggled + "\r\n0\r\n\r\n", []string{"POST /a"}},
	{"POST /denied HTTP/1.0\r\nHost: h\r\nConnection: keep-alive\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n23\r\n" + smuggled + "\r\n0\r\n\r\n", nil},
	{"GET /a HTTP/1.0\r\nHost: h\r\nConnection: keep-alive\r\nTransfer-Encoding: chunked\r\n\r\n" + smuggled, []string{"GET /a"}},

	// Malformed chunks, and some valid ones.
	{post + "Transfer-Encoding: chunked\r\n\r\nxyz\r\nhello\r\n0\r\n\r\n" + smuggled, nil},
	{post + "Transfer-Encoding: chunked\r\n\r\n-5\r\nhello\r\n0\r\n\r\n" + smuggled, nil},
	{post + "Transfer-Encoding: chunked\r\n\r\n+5\r\nhello\r\n0\r\n\r\n" + smuggled, nil},
	{post + "Transfer-Encoding: chunked\r\n\r\n0x5\r\nhello\r\n0\r\n\r\n" + smuggled, nil},
	{post + "Transfer-Encoding: chunked\r\n\r\n5_\r\nhello\r\n0\r\n\r\n" + smuggled, nil},
	{post + "Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\nhello\r\n0\r\n\r\n" + smuggled, nil},
	{post + "Transfer-Encoding: chunked\r\n\r\n5\r\nhelloworld\r\n0\r\n\r\n" + smuggled, nil},
	{post + "Transfer-Encoding: chunked\r\n\r\n5\nhello\n0\n\n" + smuggled, nil},
	{post + "Transfer-Encoding: chunked\r\n\r\n5;x\ny\r\nhello\r\n0\r\n\r\n" + smuggled, nil},
	{post + "Transfer-Encoding: chunked\r\n\r\n\r\n5\r\nhello\r\n0\r\n\r\n" + smuggled, nil},
	{post + "Transfer-Encoding: chunked\r\n\r\n5;x=y\r\nhello\r\n0\r\n\r\n", []string{"POST /a"}},
	{post + "Transfer-Encoding: chunked\r\nTrailer: Content-Length\r\n\r\n5\r\nhello\r\n0\r\nContent-Length: 5\r\n\r\n", nil},
	{post + "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nContent-Length: 5\r\n\r\n", []string{"POST /a"}},

	// Malformed lines, and one that ends in LF.
	{"POST /a HTTP/1.1\nHost: h\nContent-Length: 5\n\nhello", []string{"POST /a"}},
	{post + "X: a\rTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\nhello" + smuggled, nil},
	{post + "X\r\nContent-Length: 5\r\n\r\nhello" + smuggled, nil},
	{post + "X Y: z\r\nContent-Length: 5\r\n\r\nhello" + smuggled, nil},
	{post + ": z\r\nContent-Length: 5\r\n\r\nhello" + smuggled, nil},
	{post + "X: a\x00b\r\nContent-Length: 5\r\n\r\nhello" + smuggled, nil},
	{post + "X(: a\r\nContent-Length: 5\r\n\r\nhello" + smuggled, nil},

	// Malformed request lines and hosts, and some valid ones.
	{"GET /a\r\n\r\n", nil},
	{"GET /a HTTP/1.1 HTTP/1.1\r\nHost: h\r\n\r\n", nil},
	{"GET  /a HTTP/1.1\r\nHost: h\r\n\r\n", nil},
	{"GET /a b HTTP/1.1\r\nHost: h\r\n\r\n", nil},
	{"GET /a http/1.1\r\nHost: h\r\n\r\n", nil},
	{"GET /a HTTP/2.0\r\nHost: h\r\n\r\n", nil},
	{"GET /a HTTP/1.2\r\nHost: h\r\n\r\n", []string{"GET /a"}},
	{"GE T /a HTTP/1.1\r\nHost: h\r\n\r\n", nil},
	{"G\x00T /a HTTP/1.1\r\nHost: h\r\n\r\n", nil},
	{"GET /a\x01 HTTP/1.1\r\nHost: h\r\n\r\n", nil},
	{"GET a HTTP/1.1\r\nHost: h\r\n\r\n", nil},
	{"GET http://evil/a HTTP/1.1\r\nHost: h\r\n\r\n", nil},
	{"CONNECT evil:443 HTTP/1.1\r\nHost: evil:443\r\n\r\n" + smuggled, []string{"GET /smuggled"}},
	{"OPTIONS * HTTP/1.1\r\nHost: h\r\n\r\n", nil},
	{"GET * HTTP/1.1\r\nHost: h\r\n\r\n", nil},
	{"GET /a HTTP/1.1\r\n\r\n", nil},
	{"GET /a HTTP/1.1\r\nHost: h\r\nHost: evil\r\n\r\n", nil},
	{"GET /a HTTP/1.1\r\nHost: h/evil\r\n\r\n", nil},
	{"GET /a HTTP/1.1\r\nHost: h\r\nX: " + strings.Repeat("x", 32<<10) + "\r\n\r\n", nil},
	{"GET /" + strings.Repeat("x", 32<<10) + " HTTP/1.1\r\nHost: h\r\n\r\n", nil},
	{"GET /a HTTP/1.1\r\nHost: h\r\n" + strings.Repeat("X: y\r\n", 8<<10) + "\r\n", nil},

	// Several messages on one connection.
	{"GET /a HTTP/1.1\r\nHost: h\r\n\r\nGET /b HTTP/1.1\r\nHost: h\r\n\r\n", []string{"GET /a", "GET /b"}},
	{"\r\nGET /a HTTP/1.1\r\nHost: h\r\n\r\n", nil},
	{"POST /denied HTTP/1.1\r\nHost: h\r\nContent-Length: 35\r\n\r\n" + smuggled + "GET /b HTTP/1.1\r\nHost: h\r\n\r\n", []string{"GET /b"}},
	{"POST /denied HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n23\r\n" + smuggled + "\r\n0\r\n\r\nGET /b HTTP/1.1\r\nHost: h\r\n\r\n", []string{"GET /b"}},
	{"POST /denied HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n" + smuggled, nil},
	{"POST /denied HTTP/1.1\r\nHost: h\r\nContent-Length: 35\r\nExpect: 100-continue\r\n\r\n" + smuggled, nil},
	{"POST /denied HTTP/1.1\r\nHost: h\r\nContent-Length: 1000000\r\n\r\n" + strings.Repeat(smuggled, 1000000/len(smuggled)), nil},
	{post + "Content-Length: 35\r\nExpect: 100-continue\r\n\r\n" + smuggled, []string{"POST /a"}},
	{post + "Content-Length: 37\r\nExpect: 200-maybe\r\n\r\n" + smuggled, nil},
	{"GET /a HTTP/1.1\r\nHost: h\r\nUpgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAMAAABk\r\n\r\n" +
		"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", []string{"GET /a"}},
	{"GET /a HTTP/1.1\r\nHost: h\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n" + smuggled, []string{"GET /a", "GET /smuggled"}},
	{"PRI * HTTP/2.0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: h\r\n\r\n", nil},
}

// A limitRecorder records each request that the limits check, and denies those for /denied.
type limitRecorder struct {
	mu      sync.Mutex
	allowed []string // method and path of each request that was not denied
}

func (g *limitRecorder) wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/denied") {
			w.WriteHeader(http.StatusTooManyRequests)
			return
		}
		g.mu.Lock()
		g.allowed = append(g.allowed, r.Method+" "+r.URL.Path)
		g.mu.Unlock()
		next.ServeHTTP(w, r)
	})
}

// Some upstreams use the path in such a header: a client could evade the rule for /login by it.
func TestHeadersWithAnotherPathDoNotReachTheUpstream(t *testing.T) {
	const rules = "rules: [{name: login, match: {path: /login}, per: ip, limits: [{rate: 1/d}]}]\n"
	received := make(chan http.Header, 1)
	r := startLimited(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { received <- r.Header }), rules, nil)
	r.mustSend("GET", "/free", "X-Original-URL: /login", "X-Rewrite-URL: /login", "X-Other: a")
	if got := <-received; got.Get("X-Original-URL") != "" || got.Get("X-Rewrite-URL") != "" || got.Get("X-Other") != "a" {
		t.Errorf("the upstream got %v; want X-Other, and no header with another path", got)
	}
}

func TestNoMessageIsHiddenInAnother(t *testing.T) {
	effort.SkipUnderRace(t)
	for i, attack := range attacks {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			t.Parallel()
			upstream := startStrictUpstream(t)
			limits := new(limitRecorder)
			r := startWithoutLeakCheck(t, nil, map[string]string{"upstream": "http://" + upstream.Addr().String(),
				"header-timeout": "1s", "idle-timeout": "200ms", "stall-timeout": "1s"}, func(o *Options) { o.testHooks.limits = limits.wrap })
			conn := r.dial()
			go io.WriteString(conn, attack.text)
			answers := bufio.NewReader(conn)
			served := 0 // responses with status 200
			for {
				res, err := http.ReadResponse(answers, nil)
				if err != nil {
					if isTimeout(err) {
						t.Errorf("%.200q: the connection was not closed within %v", attack.text, patience)
					}
					break
				}
				body, _ := io.ReadAll(res.Body)
				if res.StatusCode == 100 {
					continue
				}
				if res.StatusCode == 200 {
					if served < len(attack.passes) && !strings.HasPrefix(string(body), attack.passes[served]+" ") {
						t.Errorf("%.200q: response %d belongs to %.80q; want that to %s", attack.text, served+1, body, attack.passes[served])
					}
					served++
				}
			}
			if served != len(attack.passes) {
				t.Errorf("%.200q: %d responses with status 200; want %d", attack.text, served, len(attack.passes))
			}
			for n := range 5 { // connections to the upstream still work
				path := fmt.Sprintf("/after/%d", n)
				if body := r.mustGet("http://"+r.Listen+path, 200); body != "GET "+path+" " {
					t.Errorf("%.200q: afterwards %s got %q; want its own response", attack.text, path, body)
				}
			}
			r.wait()
			upstream.mu.Lock()
			defer upstream.mu.Unlock()
			upstream.received = slices.DeleteFunc(upstream.received, func(m string) bool { return strings.HasPrefix(m, "GET /after/") })
			if !slices.Equal(upstream.received, attack.passes) || upstream.complaints != nil {
				t.Errorf("%.200q: the upstream got %q and complains about %q; want %q", attack.text, upstream.received, upstream.complaints, attack.passes)
			}
			for _, message := range upstream.received {
				if !slices.Contains(limits.allowed, message) {
					t.Errorf("%.200q: %s reached the upstream without a check of the limits", attack.text, message)
				}
			}
		})
	}
	t.Logf("counted: %d attempts to hide a message in another", len(attacks))
}

func TestHugeHeadersAreRefusedWithAReason(t *testing.T) {
	r := start(t, hello, nil)
	const request = "GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\nX: %s\r\n\r\n"
	exact := 16<<10 - len(fmt.Sprintf(request, "")) // the header then has the size of max_header
	for _, c := range []struct {
		size, status int
	}{
		{15 << 10, 200},
		{exact, 200},
		{exact + 1, 431},
		{19 << 10, 431},
		{32 << 10, 431},
		{10 << 20, 431},
	} {
		conn := r.dial()
		go fmt.Fprintf(conn, request, strings.Repeat("x", c.size))
		if status, _, err := readResponse(conn); err != nil || status != c.status {
			t.Errorf("a header value of %d bytes got status %d (error %v); want %d", c.size, status, err, c.status)
		}
	}
}
