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
		begin: func(e *experiment) {
			e.certify(e.authorities[0], -time.Minute)
			e.do("CLIENT KILL TYPE normal")
		},
		end:        func(e *experiment) { e.certify(e.authorities[0], time.Hour) },
		wantErrors: []penstock.Reason{penstock.ReasonUnreachable},
		finally: func(e *experiment) {
			if texts := e.texts(penstock.ReasonUnreachable.String()); !strings.Contains(fmt.Sprint(texts), "expired") {
				e.Errorf("the errors are %v; want one that the server's certificate has expired", texts)
			}
		},
	},
	{
		id: "F18", name: "an expired certificate, for new connections",
		deadline:  patient,
		prepare:   secure,
		begin:     func(e *experiment) { e.certify(e.authorities[0], -time.Minute) },
		end:       func(e *experiment) { e.certify(e.authorities[0], time.Hour) },
		decidedBy: byStore,
		finally:   checkNoError, // open connections still work
	},
	{
		id: "F18", name: "certificates and their authority rotated",
		prepare: secure,
		begin: func(e *experiment) {
			e.certify(e.authorities[1], time.Hour)
			e.do("CLIENT KILL TYPE normal")
		},
		end:       func(e *experiment) { e.certify(e.authorities[0], time.Hour) },
		decidedBy: byStore,
	},
}

// secure makes the instances connect with TLS. The instances trust two certificate authorities. The
// server has a certificate that the first authority signed.
func secure(e *experiment) {
	dir := e.TempDir()
	var trusted []byte
	for i := range e.authorities {
		e.authorities[i] = newAuthority(e)
		trusted = append(trusted, e.authorities[i].text...)
	}
	e.write(filepath.Join(dir, "ca.pem"), trusted)
	e.certify(e.authorities[0], time.Hour)
	e.do("CONFIG SET tls-auth-clients no")
	var port string
	e.await("a free port for TLS", func() bool {
		free, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return false
		}
		_, port, _ = net.SplitHostPort(free.Addr().String())
		free.Close()
		_, err = e.target.primary().Do("CONFIG", "SET", "tls-port", port)
		return err == nil
	})
	e.target.url = "rediss://127.0.0.1:" + port + "?ca=" + filepath.Join(dir, "ca.pem")
}

// certify gives the server a certificate that is valid until valid has passed. If valid is
// negative, the certificate has expired.
func (e *experiment) certify(a *authority, valid time.Duration) {
	e.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		e.Fatal(err)
	}
	cert, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()),
		Subject:      pkix.Name{CommonName: "redis"},
		NotBefore:    time.Now().Add(-time.Hour), NotAfter: time.Now().Add(valid),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}, a.cert, &key.PublicKey, a.key)
	if err != nil {
		e.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		e.Fatal(err)
	}
	dir := e.TempDir()
	e.write(filepath.Join(dir, "cert.pem"), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert}))
	e.write(filepath.Join(dir, "key.pem"), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret}))
	e.do(fmt.Sprintf("CONFIG SET tls-cert-file %[1]s/cert.pem tls-key-file %[1]s/key.pem", dir))
}

// An authority signs certificates.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	text []byte // its own certificate
}

func newAuthority(e *experiment) *authority {
	e.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		e.Fatal(err)
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
		e.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		e.Fatal(err)
	}
	return &authority{cert, key, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})}
}

func (e *experiment) write(file string, text []byte) {
	e.Helper()
	if err := os.WriteFile(file, text, 0o600); err != nil {
		e.Fatal(err)
	}
}
