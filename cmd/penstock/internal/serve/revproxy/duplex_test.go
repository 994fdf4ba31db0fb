package revproxy_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock/penstock/cmd/penstock/internal/serve/revproxy"
)

// TestConnectionClosesUnlessTheBodyEndsCleanly: the proxy closes a client's connection if a request
// body was malformed, too long or not read to its end. Otherwise the rest of the body could be read
// as a request.
func TestConnectionClosesUnlessTheBodyEndsCleanly(t *testing.T) {
	const (
		head     = "POST /a HTTP/1.1\r\nHost: h\r\n"
		chunked  = head + "Transfer-Encoding: chunked\r\n"
		smuggled = "GET /smuggled HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"
		next     = "GET /next HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"
	)
	for name, handler := range map[string]http.HandlerFunc{
		"reads the body": echo,
		"answers before it reads": func(w http.ResponseWriter, r *http.Request) {
			http.NewResponseController(w).EnableFullDuplex()
			w.Header().Set("Connection", "close")
			io.WriteString(w, "at once")
		},
	} {
		up := startUpstream(t, func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/smuggled" {
				t.Errorf("an upstream that %s got a request that was hidden in a body", name)
			}
			handler(w, r)
		})
		for _, c := range []struct {
			request string
			isClean bool // the body ends cleanly, for an upstream that reads it
		}{
			{request: chunked + "\r\nxyz\r\n" + smuggled},
			{request: chunked + "\r\n5\r\nhello\r\nxyz\r\n" + smuggled},
			{request: chunked + "\r\n5\r\nhelloworld\r\n0\r\n\r\n" + smuggled},
			{request: chunked + "\r\n5\r\nhello\r\n0\r\n" + smuggled}, // invalid trailers
			{request: chunked + "Trailer: X\r\n\r\n5\r\nhello\r\n0\r\nno field\r\n\r\n" + smuggled},
			{request: chunked + "\r\n65\r\n" + strings.Repeat("x", 0x65) + "\r\n0\r\n\r\n" + smuggled}, // too long
			{request: chunked + "Expect: 100-continue\r\n\r\nxyz\r\n" + smuggled},
			{request: head + fmt.Sprintf("Expect: 100-continue\r\nContent-Length: %d\r\n\r\n", len(smuggled)) + smuggled + next, isClean: true},
			{request: chunked + "\r\n5\r\nhello\r\n0\r\n\r\n" + next, isClean: true},
			{request: chunked + "Trailer: X\r\n\r\n5\r\nhello\r\n0\r\nX: y\r\n\r\n" + next, isClean: true},
			{request: head + "Content-Length: 5\r\n\r\nhello" + next, isClean: true},
		} {
			site := startProxy(t, revproxy.Options{MaxBody: 100}, up)
			res, rest := exchange(t, site, c.request)
			if !c.isClean && !res.Close {
				t.Errorf("an upstream that %s, %q: the connection stays open; want it closed", name, c.request)
			}
			if c.isClean && name == "reads the body" && res.Close {
				t.Errorf("an upstream that %s, %q: the connection is closed; want it kept", name, c.request)
			}
			if res.Close != (rest == "") {
				t.Errorf("an upstream that %s, %q: Connection: close is sent: %v, and then %q is received; want nothing after close, and a response otherwise", name, c.request, res.Close, rest)
			}
		}
	}
}

// exchange sends the text. It returns the first final response, and what follows it until the
// connection ends.
func exchange(t *testing.T, site, request string) (*http.Response, string) {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(site, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(patience))
	go io.WriteString(conn, request)
	r := bufio.NewReader(conn)
	for {
		res, err := http.ReadResponse(r, nil)
		if err != nil {
			t.Fatalf("%q: no response: %v", request, err)
		}
		io.Copy(io.Discard, res.Body)
		if res.StatusCode != http.StatusContinue {
			rest, _ := io.ReadAll(r)
			return res, string(rest)
		}
	}
}

// TestBodyAfterTheResponseIsNotReadAsARequest: an upstream responds before the body has arrived.
func TestBodyAfterTheResponseIsNotReadAsARequest(t *testing.T) {
	paths := make(chan string, 10)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		paths <- r.URL.Path
		http.NewResponseController(w).EnableFullDuplex()
		w.Header().Set("Connection", "close")
		io.WriteString(w, "at once")
	}))
	t.Cleanup(server.Close)
	for _, framing := range []string{"Content-Length: 1000000", "Transfer-Encoding: chunked", "Content-Length: 1000000\r\nExpect: 100-continue"} {
		conn, err := net.Dial("tcp", strings.TrimPrefix(startProxy(t, revproxy.Options{}, server.URL), "http://"))
		if err != nil {
			t.Fatal(err)
		}
		conn.SetDeadline(time.Now().Add(patience))
		fmt.Fprintf(conn, "POST /a HTTP/1.1\r\nHost: h\r\n%s\r\n\r\n", framing)
		res, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil || !res.Close {
			t.Errorf("with %q, the client gets the error %v and the response %+v; want one that closes the connection", framing, err, res)
		}
		io.WriteString(conn, "xyz\r\nGET /smuggled HTTP/1.1\r\nHost: h\r\n\r\n")
		conn.(*net.TCPConn).CloseWrite()
		io.Copy(io.Discard, conn)
		conn.Close()
		if path := <-paths; path != "/a" || len(paths) != 0 {
			t.Errorf("%s: the upstream got %s, and %d more requests; want /a alone", framing, path, len(paths))
		}
	}
}

// TestEarlyResponseKeepsAnHTTP2Connection: other requests use the same connection. Those that the
// client has just sent would be lost if the connection ended.
func TestEarlyResponseKeepsAnHTTP2Connection(t *testing.T) {
	upstream, err := url.Parse(startUpstream(t, func(w http.ResponseWriter, _ *http.Request) {
		http.NewResponseController(w).EnableFullDuplex() // respond before the body has arrived
		w.WriteHeader(http.StatusRequestEntityTooLarge)
	}))
	if err != nil {
		t.Fatal(err)
	}
	proxy := newProxy(revproxy.Options{Upstream: upstream})
	defer proxy.Close()
	server := httptest.NewUnstartedServer(proxy)
	server.Config.Protocols = new(http.Protocols)
	server.Config.Protocols.SetUnencryptedHTTP2(true)
	var connections atomic.Int32
	server.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			connections.Add(1)
		}
	}
	server.Start()
	defer server.Close()
	client := &http.Client{Transport: &http.Transport{Protocols: server.Config.Protocols}, Timeout: patience}
	defer client.CloseIdleConnections()
	const uploads = 20
	for range uploads {
		body, feed := io.Pipe()
		go feed.Write([]byte("a"))
		res, err := client.Post(server.URL, "", body)
		if err != nil {
			t.Fatal(err)
		}
		if res.StatusCode != http.StatusRequestEntityTooLarge {
			t.Errorf("the client gets %s; want the upstream's 413", res.Status)
		}
		res.Body.Close()
		feed.Close()
	}
	if n := connections.Load(); n != 1 {
		t.Errorf("%d uploads used %d connections; want 1", uploads, n)
	}
}

// TestPanicOfABodyDoesNotEndTheProcess: the transport reads and closes bodies in its own goroutine,
// where no other code recovers.
func TestPanicOfABodyDoesNotEndTheProcess(t *testing.T) {
	upstream := startUpstream(t, echo)
	for _, panics := range []panickingBody{{inRead: true}, {inClose: true}} {
		site := startWrappedProxy(t, revproxy.Options{}, upstream, func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				r = r.WithContext(r.Context()) // a copy: the server needs the Body of its own request
				panics.ReadCloser = r.Body
				r.Body = panics
				next.ServeHTTP(w, r)
			})
		})
		res, err := http.Post(site, "", strings.NewReader("hello"))
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if isServed := res.StatusCode == http.StatusOK; isServed != panics.inClose {
			t.Errorf("a request whose body panics in Read: %v, in Close: %v: it gets %s; want 200 only for Close", panics.inRead, panics.inClose, res.Status)
		}
	}
}

// A panickingBody panics when it is read or closed.
type panickingBody struct {
	io.ReadCloser
	inRead, inClose bool
}

func (b panickingBody) Read(p []byte) (int, error) {
	if b.inRead {
		panic("as it should")
	}
	return b.ReadCloser.Read(p)
}

func (b panickingBody) Close() error {
	if b.inClose {
		panic("as it should")
	}
	return b.ReadCloser.Close()
}
