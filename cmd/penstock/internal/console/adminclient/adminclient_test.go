package adminclient

import (
	"compress/gzip"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// An authority signs its own certificate, that of a server and that of a client.
type authority struct {
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{dir: t.TempDir()}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority"}, NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true}
	a.cert, a.key = a.issue(t, "ca", template)
	return a
}

// issue signs a certificate. It writes the certificate to NAME.pem, and its key to NAME-key.pem.
func (a *authority) issue(t *testing.T, name string, template *x509.Certificate) (*x509.Certificate, *ecdsa.PrivateKey) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	parent, signer := a.cert, a.key
	if parent == nil {
		parent, signer = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for file, block := range map[string]*pem.Block{name: {Type: "CERTIFICATE", Bytes: der}, name + "-key": {Type: "PRIVATE KEY", Bytes: private}} {
		if err := os.WriteFile(a.path(file), pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return cert, key
}

func (a *authority) path(name string) string { return filepath.Join(a.dir, name+".pem") }

func TestClientReachesTheInstance(t *testing.T) {
	a, stranger := newAuthority(t), newAuthority(t)
	a.issue(t, "server", &x509.Certificate{SerialNumber: big.NewInt(2), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, DNSNames: []string{"localhost"}})
	a.issue(t, "client", &x509.Certificate{SerialNumber: big.NewInt(3), NotAfter: time.Now().Add(time.Hour), ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	handler := http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		certificates := 0
		if q.TLS != nil {
			certificates = len(q.TLS.VerifiedChains)
		}
		fmt.Fprintf(w, "%s %s %s %d", q.Method, q.URL.Path, q.Header.Get("Authorization"), certificates)
	})
	plain, secure, socket := httptest.NewServer(handler), httptest.NewUnstartedServer(handler), httptest.NewUnstartedServer(handler)
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	pair, err := tls.LoadX509KeyPair(a.path("server"), a.path("server-key"))
	if err != nil {
		t.Fatal(err)
	}
	secure.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, ClientCAs: pool, ClientAuth: tls.VerifyClientCertIfGiven}
	secure.StartTLS()
	socketPath := filepath.Join(t.TempDir(), "a.sock")
	socket.Listener.Close()
	if socket.Listener, err = net.Listen("unix", socketPath); err != nil {
		t.Fatal(err)
	}
	socket.Start()
	for _, s := range []*httptest.Server{plain, secure, socket} {
		t.Cleanup(s.Close)
	}
	_, port, _ := net.SplitHostPort(plain.Listener.Addr().String())
	// The keys are the wanted answers, as the handler writes them, and then the wanted errors. Some
	// end in a space, or are cut, because keys must differ.
	for want, o := range map[string]Options{
		"GET /x Bearer t 0":  {Address: plain.Listener.Addr().String(), Token: "t"},
		"GET /x  0":          {Address: "0.0.0.0:" + port},
		"GET /gate/x  0":     {Address: plain.URL + "/gate/"},
		"POST /x Bearer s 0": {Address: "unix:" + socketPath, Token: "s"},
		"GET /x Bearer u 0":  {Address: "unix://" + socketPath, Token: "u"},
		"GET /x Bearer 2 0":  {Address: secure.URL, CA: a.path("ca"), Token: "2"},
		"GET /x  1":          {Address: secure.Listener.Addr().String(), CA: a.path("ca"), Cert: a.path("client"), Key: a.path("client-key")},

		"write --admin https://":                               {Address: secure.Listener.Addr().String()},
		"name the authority of its certificate by --admin-ca":  {Address: secure.URL},
		"name the authority of its certificate by --admin-ca ": {Address: secure.URL, CA: stranger.path("ca")},
		"this address has no TLS":                              {Address: "https://" + plain.Listener.Addr().String()},
		"a file for TLS is given":                              {Address: plain.URL, CA: a.path("ca")},
		"--admin-ca: open":                                     {Address: secure.URL, CA: "/none"},
		"has no certificate in PEM form":                       {Address: secure.URL, CA: a.path("client-key")},
		"belong together":                                      {Address: secure.URL, Cert: a.path("client")},
		"--admin-cert, --admin-key: ":                          {Address: secure.URL, Cert: a.path("client"), Key: a.path("server-key")},
		"is not an address; write host:port":                   {Address: "localhost"},
		"is not an address; write host:port, ":                 {Address: "ftp://h:1"},
		"is not an address; write host:port, htt":              {Address: "http://user@h:1"},
		"is not an address":                                    {Address: "unix:"},
		"check that the service runs":                          {Address: "127.0.0.1:1"},
	} {
		var body []byte
		if strings.HasPrefix(want, "POST") {
			body = []byte("{}")
		}
		c, err := New(o)
		var text []byte
		if err == nil {
			_, text, err = c.Send(t.Context(), "/x", body)
			c.Close()
		}
		got := string(text)
		if err != nil {
			got = err.Error()
		}
		if !strings.Contains(got, strings.TrimSpace(want)) || (err == nil) != (got == want) {
			t.Errorf("with %+v, the answer or error is %q; want %q", o, got, want)
		}
	}
}

func TestFollowReadsEvents(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		switch q.URL.Path {
		case "/refused":
			w.WriteHeader(http.StatusServiceUnavailable)
			fmt.Fprint(w, "full")
		case "/page":
			fmt.Fprint(w, "hello")
		default:
			w.Header().Set("Content-Type", "text/event-stream")
			fmt.Fprint(w, "retry: 3000\n\n: comment\n\nevent: a\nid: 1\ndata: {\"x\": 1}\n\nevent: b\ndata: 2\n\n")
		}
	}))
	defer server.Close()
	c, err := New(Options{Address: server.Listener.Addr().String()})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	var got []string
	use := func(event string, data []byte) error { got = append(got, event+" "+string(data)); return nil }
	if status, _, err := c.Follow(t.Context(), "/", use); status != 200 || err == nil || fmt.Sprint(got) != `[a {"x": 1} b 2]` {
		t.Errorf("Follow returns %d, %v, with the events %v; want 200, the error at the end, and events a and b", status, err, got)
	}
	enough := errors.New("enough")
	if _, _, err := c.Follow(t.Context(), "/", func(string, []byte) error { return enough }); !errors.Is(err, enough) {
		t.Errorf("Follow returns %v; want the error of the caller, %v", err, enough)
	}
	if status, text, err := c.Follow(t.Context(), "/refused", use); status != 503 || string(text) != "full" || err != nil {
		t.Errorf("Follow of a refused stream returns %d, %s, %v; want 503 with its text", status, text, err)
	}
	if _, _, err := c.Follow(t.Context(), "/page", use); err == nil || !strings.Contains(err.Error(), "not a stream") {
		t.Errorf("Follow of a page returns %v; want an error that it is not a stream", err)
	}
}

// An instance cannot fill the memory of a client, or keep a client waiting.
func TestHostileInstancesAreBounded(t *testing.T) {
	t.Parallel()
	endless := func(w http.ResponseWriter, text string) {
		for {
			if _, err := io.WriteString(w, text); err != nil {
				return
			}
		}
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		switch q.URL.Path {
		case "/objects":
			io.WriteString(w, "["+strings.Repeat("{},", maxObjects)+"{}]")
		case "/zipped":
			w.Header().Set("Content-Encoding", "gzip")
			z := gzip.NewWriter(w)
			for range 20 {
				z.Write(make([]byte, 1<<20))
			}
			z.Close()
		case "/header":
			w.Header().Set("X-Long", strings.Repeat("x", 100<<10))
		case "/endless":
			endless(w, strings.Repeat("x", 64<<10))
		case "/refused":
			w.WriteHeader(http.StatusServiceUnavailable)
			endless(w, strings.Repeat("x", 64<<10))
		case "/line":
			w.Header().Set("Content-Type", "text/event-stream")
			io.WriteString(w, "data: ")
			endless(w, strings.Repeat("x", 64<<10))
		case "/silent":
			w.Header().Set("Content-Type", "text/event-stream")
			io.WriteString(w, "data: 1\n\n")
			w.(http.Flusher).Flush()
			<-q.Context().Done()
		case "/silent-refusal":
			w.WriteHeader(http.StatusServiceUnavailable)
			w.(http.Flusher).Flush()
			<-q.Context().Done()
		}
	}))
	defer server.Close()
	c, err := New(Options{Address: server.Listener.Addr().String()})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if c.transport.ResponseHeaderTimeout == 0 {
		t.Error("ResponseHeaderTimeout is 0; want a bound on the time without a header")
	}
	for path, want := range map[string]string{"/objects": "objects", "/zipped": "bytes", "/endless": "bytes", "/header": "header"} {
		if _, answer, err := c.Send(t.Context(), path, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Send of %s returns %d bytes and the error %v; want an error about %s", path, len(answer), err, want)
		}
	}
	use := func(string, []byte) error { return nil }
	for path, want := range map[string]string{"/line": "token too long", "/silent": errSilent.Error(), "/silent-refusal": errSilent.Error()} {
		c.streamTimeout = 200 * time.Millisecond
		if path == "/line" {
			c.streamTimeout = streamTimeout
		}
		if _, _, err := c.Follow(t.Context(), path, use); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Follow of %s returns %v; want %q", path, err, want)
		}
	}
	c.streamTimeout = streamTimeout
	if status, answer, err := c.Follow(t.Context(), "/refused", use); status != http.StatusServiceUnavailable || len(answer) > maxLine || err != nil {
		t.Errorf("Follow of /refused returns %d, %d bytes and the error %v; want 503 with at most %d bytes", status, len(answer), err, maxLine)
	}
}
