package redistest

import (
	"cmp"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// A TLS is a certificate authority for servers that accept only TLS. Each server has its own
// certificate.
type TLS struct {
	IsClientCertRequired bool     // clients need a certificate
	ServerName           string   // the name by which servers connect to each other; "": by their addresses
	ExtraNames           []string // further names in every certificate

	// Lifetime is how long the certificates of servers and clients are valid. Default: an hour.
	Lifetime time.Duration

	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// Options returns the URL options for clients: ca, and if clients need a certificate, cert and key.
func (a *TLS) Options() url.Values {
	options := url.Values{"ca": {filepath.Join(a.dir, "ca.pem")}}
	if a.IsClientCertRequired {
		options.Set("cert", filepath.Join(a.dir, "client.pem"))
		options.Set("key", filepath.Join(a.dir, "client.key"))
	}
	return options
}

// StartTLS starts a server whose certificate has only the names in ExtraNames.
func StartTLS(t testing.TB, a *TLS) *Server {
	t.Helper()
	a.createAuthority(t)
	s, err := launch(a.secure(plain, "127.0.0.1", nil))
	return mustStart(t, s, err)
}

// StartTLSCluster is StartCluster with TLS. Each node has its own address.
func StartTLSCluster(t testing.TB, a *TLS) *Cluster {
	t.Helper()
	a.createAuthority(t)
	c := new(Cluster)
	launchAll := func() (*Cluster, error) {
		for i := range 2 * primaries {
			host := a.host(i)
			announce := []string{"--cluster-announce-ip", host, "--bind-source-addr", host, "--tls-cluster", "yes"}
			names := []string{a.name(i)}
			if a.ServerName != "" {
				announce = append(announce, "--cluster-announce-hostname", a.ServerName, "--cluster-preferred-endpoint-type", "hostname")
				if i == 0 { // clients connect to the first node by its address, and learn the names from it
					names = append(names, host)
				}
			}
			s, err := launch(a.secure(clusterNode, host, names, announce...))
			if err != nil {
				c.Close()
				return nil, err
			}
			c.Nodes = append(c.Nodes, s)
		}
		return c.form()
	}
	c, err := launchAll()
	return mustStart(t, c, err)
}

// StartTLSSentinel is StartSentinel with TLS. Each server and Sentinel has its own address.
func StartTLSSentinel(t testing.TB, a *TLS) *SentinelGroup {
	t.Helper()
	a.createAuthority(t)
	s := &SentinelGroup{tls: a}
	if err := s.launch(); err != nil {
		s.Close()
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// host returns the address at which the server with this number listens.
func (a *TLS) host(number int) string {
	if a.ServerName != "" {
		return "127.0.0.1"
	}
	return fmt.Sprintf("127.0.2.%d", number+1)
}

// name returns the name or address by which others connect to the server with this number.
func (a *TLS) name(number int) string {
	if a.ServerName != "" {
		return a.ServerName
	}
	return a.host(number)
}

// secure extends a recipe: the server listens at host, with TLS only, and has a certificate with
// these names. more has further arguments of the server.
func (a *TLS) secure(r recipe, host string, names []string, more ...string) recipe {
	return func(dir string, port int) ([]string, error) {
		args, err := r(dir, port)
		if err != nil {
			return nil, err
		}
		if err := a.certify(filepath.Join(dir, "server"), append(names, a.ExtraNames...)...); err != nil {
			return nil, err
		}
		clients := map[bool]string{true: "yes", false: "no"}[a.IsClientCertRequired]
		args = append(args, "--bind", host)
		// A replica or a Sentinel tries only one address of a name. On Debian, localhost is first ::1.
		if a.ServerName != "" {
			args = append(args, "-::1") // if the machine has IPv6
		}
		args = append(args, "--protected-mode", "no", "--port", "0", "--tls-port", fmt.Sprint(port), "--tls-replication", "yes", "--tls-auth-clients", clients,
			"--tls-ca-cert-file", filepath.Join(a.dir, "ca.pem"),
			"--tls-cert-file", filepath.Join(dir, "server.pem"), "--tls-key-file", filepath.Join(dir, "server.key"))
		return append(args, more...), nil
	}
}

// plain is the recipe of a server with the default arguments.
func plain(dir string, port int) ([]string, error) { return defaults(dir, port), nil }

// createAuthority makes the certificate of the authority, and one for clients.
func (a *TLS) createAuthority(t testing.TB) {
	t.Helper()
	a.dir = t.TempDir()
	err := func() (err error) {
		if a.key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
			return err
		}
		template := &x509.Certificate{
			SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority"},
			NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
			IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
		}
		der, err := x509.CreateCertificate(rand.Reader, template, template, &a.key.PublicKey, a.key)
		if err != nil {
			return err
		}
		if a.cert, err = x509.ParseCertificate(der); err != nil {
			return err
		}
		if err := writePEM(filepath.Join(a.dir, "ca.pem"), "CERTIFICATE", der); err != nil {
			return err
		}
		return a.certify(filepath.Join(a.dir, "client"), "client")
	}()
	if err != nil {
		t.Fatal(err)
	}
}

// certify writes a certificate for addresses and host names to file.pem, and its key to file.key.
func (a *TLS) certify(file string, names ...string) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: "a server"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(cmp.Or(a.Lifetime, time.Hour)),
	}
	for _, name := range names {
		if ip := net.ParseIP(name); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, name)
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, &key.PublicKey, a.key)
	if err != nil {
		return err
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	if err := writePEM(file+".pem", "CERTIFICATE", der); err != nil {
		return err
	}
	return writePEM(file+".key", "PRIVATE KEY", secret)
}

func writePEM(file, kind string, der []byte) error {
	return os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600)
}
