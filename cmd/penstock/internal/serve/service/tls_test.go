package service

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/testing/effort"
	"github.com/penstock/penstock/internal/testing/eventually"
)

// An authority signs certificates for tests.
type authority struct {
	*testing.T
	dir  string
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
	pool *x509.CertPool
}

func newAuthority(t *testing.T) *authority {
	a := &authority{T: t, dir: t.TempDir(), pool: x509.NewCertPool()}
	a.key, _ = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	template := &x509.Certificate{
		SerialNumber:          big.NewInt(1),
		Subject:               pkix.Name{CommonName: "authority"},
		NotAfter:              time.Now().Add(time.Hour),
		IsCA:                  true,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, a.key.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	a.cert, _ = x509.ParseCertificate(der)
	a.pool.AddCert(a.cert)
	a.write("ca.pem", "CERTIFICATE", der)
	return a
}

func (a *authority) write(name, kind string, der []byte) {
	if err := os.WriteFile(filepath.Join(a.dir, name), pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		a.Fatal(err)
	}
}

// issue writes a certificate with this serial number to cert.pem and key.pem, and returns it. The
// certificate is valid for as many hours as its serial number.
func (a *authority) issue(serial int64) tls.Certificate {
	key, _ := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(serial),
		NotAfter:     time.Now().Add(time.Duration(serial) * time.Hour),
		IPAddresses:  []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key)
	if err != nil {
		a.Fatal(err)
	}
	private, _ := x509.MarshalECPrivateKey(key)
	a.write("cert.pem", "CERTIFICATE", der)
	a.write("key.pem", "EC PRIVATE KEY", private)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

func (a *authority) path(name string) string { return filepath.Join(a.dir, name) }

// serial connects to a server, and returns the serial number of the server's certificate.
func (a *authority) serial(address string, config *tls.Config) (int64, error) {
	config.RootCAs = a.pool
	conn, err := tls.DialWithDialer(&net.Dialer{Timeout: patience}, "tcp", address, config)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(patience))
	io.WriteString(conn, "GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
	if _, _, err := readResponse(conn); err != nil { // with TLS 1.3, the first read reports whether the server accepts the client
		return 0, err
	}
	return conn.ConnectionState().PeerCertificates[0].SerialNumber.Int64(), nil
}

func TestHTTPSAndHTTP2(t *testing.T) {
	a := newAuthority(t)
	a.issue(2)
	r := start(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, r.Header.Get("X-Forwarded-Proto")) }),
		map[string]string{"tls-cert": a.path("cert.pem"), "tls-key": a.path("key.pem")})
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: a.pool}, ForceAttemptHTTP2: true}
	defer transport.CloseIdleConnections()
	res, err := (&http.Client{Transport: transport, Timeout: patience}).Get("https://" + r.Listen)
	if err != nil {
		t.Fatal(err)
	}
	body, _ := io.ReadAll(res.Body)
	res.Body.Close()
	if res.ProtoMajor != 2 || string(body) != "https" {
		t.Errorf("the response is HTTP/%d with the body %q; want HTTP/2 with \"https\"", res.ProtoMajor, body)
	}
	for _, version := range []uint16{tls.VersionTLS10, tls.VersionTLS11} {
		if _, err := a.serial(r.Listen, &tls.Config{MinVersion: version, MaxVersion: version}); err == nil {
			t.Errorf("the server accepted a connection with %s; want TLS 1.2 or later", tls.VersionName(version))
		}
	}
	if status, _, err := get("http://" + r.Listen); err == nil && status != 400 {
		t.Errorf("without TLS, the status is %d; want 400 or no connection", status)
	}
}

func TestChangedCertificateIsReloadedUnlessMalformed(t *testing.T) {
	effort.SkipUnderRace(t)
	a := newAuthority(t)
	a.issue(2)
	r := start(t, hello, map[string]string{"tls-cert": a.path("cert.pem"), "tls-key": a.path("key.pem")})
	if n, err := a.serial(r.Listen, &tls.Config{}); n != 2 || err != nil {
		t.Fatalf("the server presents certificate %d (error %v); want certificate 2", n, err)
	}
	if err := os.WriteFile(a.path("cert.pem"), []byte("no certificate"), 0o600); err != nil {
		t.Fatal(err)
	}
	eventually.True(t, "the broken file to be noticed", func() bool {
		if n, err := a.serial(r.Listen, &tls.Config{}); n != 2 || err != nil {
			t.Fatalf("the server presents certificate %d (error %v); want certificate 2", n, err)
		}
		return r.log.Lines("level=ERROR", "certificate reload failed", "listener=listen ", "file="+a.path("cert.pem")) != nil
	})
	renewed, err := x509.ParseCertificate(a.issue(3).Certificate[0])
	if err != nil {
		t.Fatal(err)
	}
	series := fmt.Sprintf("\nrate_limiter_certificate_expiry_timestamp_seconds{listener=\"listen\"} %v\n", float64(renewed.NotAfter.Unix()))
	eventually.True(t, "the expiry of the new certificate in the metrics, before a client connects", func() bool {
		return strings.Contains(r.mustGet("http://"+r.Admin+"/metrics", 200), series)
	})
	eventually.True(t, "the new certificate", func() bool {
		n, err := a.serial(r.Listen, &tls.Config{})
		if err != nil {
			t.Fatal(err)
		}
		return n == 3
	})
	if n := len(r.log.Lines("level=ERROR")); n != 1 {
		t.Errorf("%d errors are logged; want 1, about the malformed certificate: %s", n, r.log)
	}
}

func TestClientCertificatesAreRequiredIfConfigured(t *testing.T) {
	a, stranger := newAuthority(t), newAuthority(t)
	known := a.issue(2)
	r := start(t, hello, map[string]string{"tls-cert": a.path("cert.pem"), "tls-key": a.path("key.pem"), "tls-client-ca": a.path("ca.pem")})
	for name, c := range map[string]struct {
		certificates []tls.Certificate
		isServed     bool
	}{
		"nobody":     {nil, false},
		"a stranger": {[]tls.Certificate{stranger.issue(2)}, false},
		"a client":   {[]tls.Certificate{known}, true},
	} {
		if _, err := a.serial(r.Listen, &tls.Config{Certificates: c.certificates}); (err == nil) != c.isServed {
			t.Errorf("with the certificate of %s, the error of the connection is %v; want served: %t", name, err, c.isServed)
		}
	}
}
