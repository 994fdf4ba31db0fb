package revproxy_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/cmd/penstock/internal/serve/revproxy"
)

const webSocketRequest = "GET /chat HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n" +
	"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"

// echoUpgraded switches to any requested protocol, and then sends back what it receives. It closes
// ended when the connection has ended.
func echoUpgraded(ended chan<- struct{}) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		conn, buffered, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer conn.Close()
		defer close(ended)
		upgrade := r.Header.Get("Upgrade")
		if upgrade == "" {
			upgrade = "h2c"
		}
		fmt.Fprintf(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\n", upgrade)
		io.Copy(conn, buffered)
	}
}

func TestWebSocketsPassInBothDirections(t *testing.T) {
	ended := make(chan struct{})
	site := startProxy(t, revproxy.Options{}, startUpstream(t, echoUpgraded(ended)))
	conn, err := net.Dial("tcp", strings.TrimPrefix(site, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(patience))
	io.WriteString(conn, webSocketRequest)
	reader := bufio.NewReader(conn)
	res, err := http.ReadResponse(reader, nil)
	if err != nil || res.StatusCode != 101 || res.Header.Get("Upgrade") != "websocket" {
		t.Fatalf("the response is %v, %v; want 101", res, err)
	}
	for i := range 1000 {
		message := fmt.Sprintf("\x81\x05%05d", i) // a frame with 5 bytes of text
		io.WriteString(conn, message)
		got := make([]byte, len(message))
		if _, err := io.ReadFull(reader, got); err != nil || string(got) != message {
			t.Fatalf("message %d came back as %q, %v; want it unchanged", i, got, err)
		}
	}
	conn.Close()
	select {
	case <-ended:
	case <-time.After(patience):
		t.Error("the client closed its connection, but that to the upstream is still open; want it closed")
	}
}

func TestOtherProtocolsAreNotTunneled(t *testing.T) {
	for _, upgrade := range []string{"h2c", "HTTP/2.0", "TLS/1.0", "tcp", "websocket2", "h2c, websocket", ""} {
		site := startProxy(t, revproxy.Options{}, startUpstream(t, echoUpgraded(make(chan struct{}))))
		res, body := sendRaw(t, site, "GET / HTTP/1.1\r\nHost: h\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: "+upgrade+"\r\nHTTP2-Settings: AAMAAABk\r\n\r\n")
		if res.StatusCode != http.StatusBadGateway {
			t.Errorf("with Upgrade: %s, and an upstream that accepts it, the client gets %s %s; want 502", upgrade, res.Status, body)
		}
	}
}

func TestRefusedWebSocketIsNoTunnel(t *testing.T) {
	site := startProxy(t, revproxy.Options{}, startUpstream(t, func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(http.StatusUpgradeRequired) }))
	conn, err := net.Dial("tcp", strings.TrimPrefix(site, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(patience))
	reader := bufio.NewReader(conn)
	for range 3 { // the connection carries further requests
		io.WriteString(conn, webSocketRequest)
		if res, err := http.ReadResponse(reader, nil); err != nil || res.StatusCode != http.StatusUpgradeRequired {
			t.Fatalf("the response is %v, %v; want 426", res, err)
		}
	}
}
