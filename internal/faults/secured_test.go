package faults

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/penstock/penstock"
)

// The connection is secured by TLS.
var secured = []fault{
	{
		id: "F18", name: "an expired certificate",
		prepare: secure,
		begin: func(l *experiment) {
			l.certify(l.authorities[0], -time.Minute)
			l.do("CLIENT KILL TYPE normal")
		},
		end:        func(l *experiment) { l.certify(l.authorities[0], time.Hour) },
		wantErrors: []penstock.Reason{penstock.ReasonUnreachable},
		finally: func(l *experiment) {
			if texts := l.texts(penstock.ReasonUnreachable.String()); !strings.Contains(fmt.Sprint(texts), "expired") {
				l.Errorf("no error mentions that the server's certificate has expired: %v", texts)
			}
		},
	},
	{
		id: "F18", name: "an expired certificate, for new connections",
		deadline:   patient,
		prepare:    secure,
		begin:      func(l *experiment) { l.certify(l.authorities[0], -time.Minute) },
		end:        func(l *experiment) { l.certify(l.authorities[0], time.Hour) },
		answeredBy: byStore,
		finally:    withoutError, // open connections still work
	},
	{
		id: "F18", name: "certificates and their authority rotated",
		prepare: secure,
		begin: func(l *experiment) {
			l.certify(l.authorities[1], time.Hour)
			l.do("CLIENT KILL TYPE normal")
		},
		end:        func(l *experiment) { l.certify(l.authorities[0], time.Hour) },
		answeredBy: byStore,
	},
}

// secure makes the instances connect with TLS. They trust two authorities; the server has a
// certificate of the first.
func secure(l *experiment) {
	dir := l.TempDir()
	var trusted []byte
	for i := range l.authorities {
		l.authorities[i] = newAuthority(l)
		trusted = append(trusted, l.authorities[i].text...)
	}
	l.write(filepath.Join(dir, "ca.pem"), trusted)
	l.certify(l.authorities[0], time.Hour)
	l.do("CONFIG SET tls-auth-clients no")
	var port string
	l.await("the port for TLS", func() bool {
		free, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return false
		}
		_, port, _ = net.SplitHostPort(free.Addr().String())
		free.Close()
		_, err = l.target.primary().Do("CONFIG", "SET", "tls-port", port)
		return err == nil
	})
	l.target.url = "rediss://127.0.0.1:" + port + "?ca=" + filepath.Join(dir, "ca.pem")
}

// certify gives the server a certificate that is valid for a time from now.
func (l *experiment) certify(a *authority, valid time.Duration) {
	l.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		l.Fatal(err)
	}
	cert, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()),
		Subject:      pkix.Name{CommonName: "redis"},
		NotBefore:    time.Now().Add(-time.Hour), NotAfter: time.Now().Add(valid),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}, a.cert, &key.PublicKey, a.key)
	if err != nil {
		l.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		l.Fatal(err)
	}
	dir := l.TempDir()
	l.write(filepath.Join(dir, "cert.pem"), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert}))
	l.write(filepath.Join(dir, "key.pem"), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret}))
	l.do(fmt.Sprintf("CONFIG SET tls-cert-file %[1]s/cert.pem tls-key-file %[1]s/key.pem", dir))
}

// An authority signs certificates.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	text []byte // its own certificate
}

func newAuthority(l *experiment) *authority {
	l.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		l.Fatal(err)
	}
	serial := time.Now().UnixNano()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(serial),
		Subject:      pkix.Name{CommonName: fmt.Sprint("authority ", serial)},
		NotBefore:    time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		l.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		l.Fatal(err)
	}
	return &authority{cert, key, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})}
}

func (l *experiment) write(file string, text []byte) {
	l.Helper()
	if err := os.WriteFile(file, text, 0o600); err != nil {
		l.Fatal(err)
	}
}
