package redisstore_test

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/redisclient"
	"github.com/penstock/penstock/redisstore"
)

// formatOptions formats the options of a URL, without those that all URLs have in common.
func formatOptions(o rueidis.ClientOption) string {
	var s strings.Builder
	fmt.Fprint(&s, strings.Join(o.InitAddress, " "))
	for _, f := range []struct {
		name  string
		value any
	}{
		{"user", o.Username}, {"password", o.Password}, {"db", o.SelectDB}, {"primary", o.Sentinel.MasterSet},
		{"sentinel user", o.Sentinel.Username}, {"sentinel password", o.Sentinel.Password},
	} {
		if !reflect.ValueOf(f.value).IsZero() {
			fmt.Fprintf(&s, ", %s %v", f.name, f.value)
		}
	}
	if o.Dialer.Timeout != time.Second {
		fmt.Fprintf(&s, ", dial %v", o.Dialer.Timeout)
	}
	if c := o.TLSConfig; c != nil {
		s.WriteString(", tls")
		if c.ServerName != "" {
			fmt.Fprintf(&s, " %s", c.ServerName)
		}
		if c.InsecureSkipVerify {
			s.WriteString(" unverified")
		}
		if c.RootCAs != nil {
			s.WriteString(" ca")
		}
		if c.GetClientCertificate != nil {
			s.WriteString(" cert")
		}
	}
	if o.DialCtxFn != nil {
		s.WriteString(", socket")
	}
	return s.String()
}

func TestURLsAreParsed(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	passwordFile := filepath.Join(dir, "password")
	if err := os.WriteFile(passwordFile, []byte("from a file\r\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	cert, key := writeCertificate(t, dir)
	for url, want := range map[string]string{
		"redis://localhost":                                     "localhost:6379",
		"redis://localhost/":                                    "localhost:6379",
		"redis://localhost:6380":                                "localhost:6380",
		"redis://10.1.2.3:1":                                    "10.1.2.3:1",
		"redis://10.1.2.3:65535/":                               "10.1.2.3:65535",
		"redis://[::1]":                                         "[::1]:6379",
		"redis://[::1]:6380":                                    "[::1]:6380",
		"redis://[fe80::1%25eth0]:6380":                         "[fe80::1%25eth0]:6380",
		"redis://::1":                                           "[::1]:6379",
		"redis://localhost/3":                                   "localhost:6379, db 3",
		"redis://localhost/0":                                   "localhost:6379",
		"redis://localhost?db=4":                                "localhost:6379, db 4",
		"redis://localhost/3?db=4":                              "localhost:6379, db 4",
		"redis://:pw@localhost":                                 "localhost:6379, password pw",
		"redis://user:pw@localhost:1/2":                         "localhost:1, user user, password pw, db 2",
		"redis://user@localhost":                                "localhost:6379, user user",
		"redis://user:@localhost":                               "localhost:6379, user user",
		"redis://:p%40%2F%3A%23%3F%25@localhost":                "localhost:6379, password p@/:#?%",
		"redis://:p@w@localhost":                                "localhost:6379, password p@w",
		"redis://us%3Aer:p%20w@localhost":                       "localhost:6379, user us:er, password p w",
		"redis://localhost?password_file=" + passwordFile:       "localhost:6379, password from a file",
		"redis://u:old@localhost?password_file=" + passwordFile: "localhost:6379, user u, password from a file",
		"redis://localhost?dial_timeout=250ms":                  "localhost:6379, dial 250ms",
		"redis://localhost?dial_timeout=1m&db=1":                "localhost:6379, db 1, dial 1m0s",
		"valkey://localhost":                                    "localhost:6379",
		"rediss://localhost":                                    "localhost:6379, tls",
		"valkeys://db.example:6380":                             "db.example:6380, tls",
		"rediss://10.1.2.3?server_name=db":                      "10.1.2.3:6379, tls db",
		"rediss://[::1]:1":                                      "[::1]:1, tls",
		"rediss://h?insecure_skip_verify=true":                  "h:6379, tls unverified",
		"rediss://h?insecure_skip_verify=false":                 "h:6379, tls",
		"rediss://h?ca=" + cert:                                 "h:6379, tls ca",
		"rediss://h?cert=" + cert + "&key=" + key:               "h:6379, tls cert",
		"redis+cluster://h1":                                    "h1:6379",
		"redis+cluster://h1:1,h2:2,[::1]:3,h4":                  "h1:1 h2:2 [::1]:3 h4:6379",
		"redis+cluster://u:p@h1,h2/0":                           "h1:6379 h2:6379, user u, password p",
		"valkey+cluster://h1,h2":                                "h1:6379 h2:6379",
		"rediss+cluster://h1:1,h2:2":                            "h1:1 h2:2, tls",
		"valkeys+cluster://h1":                                  "h1:6379, tls",
		"redis+sentinel://h1/main":                              "h1:26379, primary main",
		"redis+sentinel://h1:1,h2,h3:3/main":                    "h1:1 h2:26379 h3:3, primary main",
		"redis+sentinel://h1/main/5":                            "h1:26379, db 5, primary main",
		"redis+sentinel://h1/main?db=6":                         "h1:26379, db 6, primary main",
		"redis+sentinel://u:p@h1/main?sentinel_username=su&sentinel_password=s%40p": "h1:26379, user u, password p, primary main, sentinel user su, sentinel password s@p",
		"redis+sentinel://h1/main?sentinel_password=s@p":                            "h1:26379, primary main, sentinel password s@p",
		"redis+sentinel://h1/main?sentinel_password_file=" + passwordFile:           "h1:26379, primary main, sentinel password from a file, socket",
		"rediss+sentinel://h1/main":                                                 "h1:26379, primary main, tls",
		"valkey+sentinel://h1/main":                                                 "h1:26379, primary main",
		"redis-sentinel://h1/main":                                                  "h1:26379, primary main",
		"rediss-sentinel://h1/main":                                                 "h1:26379, primary main, tls",
		"unix:///run/redis.sock":                                                    "/run/redis.sock, socket",
		"unix:///run/redis.sock?db=2":                                               "/run/redis.sock, db 2, socket",
		"unix:///run/my%20redis.sock":                                               "/run/my redis.sock, socket",
		"unix:///run/a@b.sock":                                                      "/run/a@b.sock, socket",
		"unix://user:pw@/run/redis.sock":                                            "/run/redis.sock, user user, password pw, socket",
		"unix:///run/r?password_file=" + passwordFile:                               "/run/r, password from a file, socket",
	} {
		o, err := redisclient.ParseURL(url)
		if err != nil || formatOptions(o) != want {
			t.Errorf("%s is parsed as %s, %v; want %s", url, formatOptions(o), err, want)
		}
		if !o.DisableCache || !o.DisableRetry || o.ClientName != "penstock" || o.Dialer.KeepAlive != time.Second || o.ConnWriteTimeout != time.Second {
			t.Errorf("%s has the options %+v; want those that every client has", url, o)
		}
		if o.TLSConfig != nil && o.TLSConfig.MinVersion != tls.VersionTLS12 {
			t.Errorf("%s allows TLS %#x; want %#x, which is 1.2", url, o.TLSConfig.MinVersion, tls.VersionTLS12)
		}
		if o.TLSConfig != nil && strings.Contains(url, "sentinel") != (o.Sentinel.TLSConfig != nil) {
			t.Errorf("%s: TLS to Sentinels is %t; want it only for a URL of Sentinels", url, o.Sentinel.TLSConfig != nil)
		}
	}
}

// Certificates end, so their files are read for each new connection.
func TestClientCertificateIsReadAgain(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	cert, key := writeCertificate(t, dir)
	o, err := redisclient.ParseURL("rediss://h?cert=" + cert + "&key=" + key)
	if err != nil {
		t.Fatal(err)
	}
	first, err := o.TLSConfig.GetClientCertificate(nil)
	if err != nil {
		t.Fatal(err)
	}
	writeCertificate(t, dir)
	want, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	second, err := o.TLSConfig.GetClientCertificate(nil)
	if err != nil || !bytes.Equal(second.Certificate[0], want.Certificate[0]) || bytes.Equal(second.Certificate[0], first.Certificate[0]) {
		t.Errorf("after the files have changed, the certificate is the first one, or there is the error %v; want the second one", err)
	}
	if err := os.Remove(key); err != nil {
		t.Fatal(err)
	}
	if _, err := o.TLSConfig.GetClientCertificate(nil); err == nil || !strings.Contains(err.Error(), "cert and key: stat "+key) {
		t.Errorf("without the key: %v; want an error that names its file", err)
	}
}

const malformed = "the user, password, path or options are malformed; percent-encode special characters"

func TestErrorsOfWrongURLs(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	cert, _ := writeCertificate(t, dir)
	noScheme := "it has no scheme; write redis://host:6379"
	badScheme := func(s string) string {
		return fmt.Sprintf("the scheme %q is not known; there are redis, rediss, unix, redis+sentinel and redis+cluster, and valkey for redis", s)
	}
	badPort := func(host string) string {
		return fmt.Sprintf("the port of host %q is not a number from 1 to 65535", host)
	}
	badHost := func(host string) string {
		return fmt.Sprintf("%q is not a valid host; write an IPv6 address in brackets: [2001:db8::1]:6379", host)
	}
	needsTLS := func(option string) string {
		return fmt.Sprintf("the option %q needs TLS: write rediss:// for redis://", option)
	}
	for url, want := range map[string]string{
		"":                                         noScheme,
		"localhost:6379":                           noScheme,
		"redis:localhost":                          noScheme,
		"redis:/localhost":                         noScheme,
		"user:pa://ss@host":                        noScheme,
		"://host":                                  badScheme(""),
		"http://host":                              badScheme("http"),
		"REDIS://host":                             badScheme("REDIS"),
		"redis+ring://host":                        badScheme("redis+ring"),
		"redis+tls://host":                         badScheme("redis+tls"),
		"unix+cluster:///run/r":                    badScheme("unix+cluster"),
		"redis+cluster+sentinel://h":               badScheme("redis+cluster+sentinel"),
		"redis://":                                 "a host is empty",
		"redis:///3":                               "a host is empty",
		"redis://:6379":                            "a host is empty",
		"redis://user:pw@":                         "a host is empty",
		"redis+cluster://h1,,h2":                   "a host is empty",
		"redis+cluster://h1,":                      "a host is empty",
		"redis://host:":                            badPort("host"),
		"redis://host:0":                           badPort("host"),
		"redis://host:65536":                       badPort("host"),
		"redis://host:-1":                          badPort("host"),
		"redis://host:http":                        badPort("host"),
		"redis://host:63:79":                       badHost("host"),
		"redis://ho st":                            badHost("ho st"),
		"redis://h1:1,h2:2":                        "several hosts are given; write redis+cluster:// or redis+sentinel://",
		"rediss://h1,h2":                           "several hosts are given; write redis+cluster:// or redis+sentinel://",
		"redis://host/x":                           `the database is "x"; it must be a whole number from 0 on`,
		"redis://host/-1":                          `the database is "-1"; it must be a whole number from 0 on`,
		"redis://host/1/2":                         `the database is "1/2"; it must be a whole number from 0 on`,
		"redis://host?db=one":                      `the database is "one"; it must be a whole number from 0 on`,
		"redis+cluster://h1/2":                     "a Cluster has only the database 0",
		"redis+sentinel://h1":                      "a sentinel URL names the primary in its path: redis+sentinel://host:26379/mymaster",
		"redis+sentinel://h1/":                     "a sentinel URL names the primary in its path: redis+sentinel://host:26379/mymaster",
		"redis+sentinel:///main":                   "a host is empty",
		"redis+sentinel://h1/main/x":               `the database is "x"; it must be a whole number from 0 on`,
		"unix://":                                  "a unix URL names a socket by its absolute path: unix:///run/redis.sock",
		"unix://run/redis.sock":                    "a unix URL names a socket by its absolute path: unix:///run/redis.sock",
		"redis://host?dbs=1":                       `the option "dbs" is not known; there are db, password_file, dial_timeout, ca, cert, key, server_name, insecure_skip_verify, sentinel_username, sentinel_password, sentinel_password_file`,
		"redis://host?sentinel_password_file=x":    `the option "sentinel_password_file" needs a URL of Sentinels: redis+sentinel://host:26379/mymaster`,
		"redis://host?db=1;ca=x":                   malformed,
		"redis://host?db=%zz":                      malformed,
		"redis://host/%zz":                         malformed,
		"redis://host#1":                           malformed,
		"redis://us er:pw@host":                    malformed,
		"redis://:p%zzw@host":                      malformed,
		"redis://host?dial_timeout=5":              `dial_timeout is "5"; write a duration such as 500ms or 5s`,
		"redis://host?dial_timeout=-1s":            `dial_timeout is "-1s"; write a duration such as 500ms or 5s`,
		"redis://host?dial_timeout=0s":             `dial_timeout is "0s"; write a duration such as 500ms or 5s`,
		"redis://host?password_file=/no/file":      "password_file: stat /no/file: no such file or directory",
		"redis://host?ca=" + cert:                  needsTLS("ca"),
		"redis://host?cert=" + cert:                needsTLS("cert"),
		"redis://host?key=" + cert:                 needsTLS("key"),
		"redis://host?server_name=x":               needsTLS("server_name"),
		"redis://host?insecure_skip_verify=1":      needsTLS("insecure_skip_verify"),
		"unix:///run/r?server_name=x":              needsTLS("server_name"),
		"rediss://h?insecure_skip_verify=yes":      `insecure_skip_verify is "yes"; it must be true or false`,
		"rediss://h?ca=/no/file":                   "ca: stat /no/file: no such file or directory",
		"rediss://h?ca=" + dir + "/key.pem":        "ca: " + dir + "/key.pem holds no certificate in PEM form",
		"rediss://h?cert=" + cert:                  "cert and key belong together; write both or neither",
		"rediss://h?key=" + cert:                   "cert and key belong together; write both or neither",
		"rediss://h?cert=" + cert + "&key=" + cert: "cert and key: tls: found a certificate rather than a key in the PEM for the private key",
	} {
		_, err := redisclient.ParseURL(url)
		if want = "penstock: invalid: redis URL: " + want; err == nil || err.Error() != want || !errors.Is(err, penstock.ErrInvalid) {
			t.Errorf("%s: %v; want %s", url, err, want)
		}
		if _, err := redisstore.Open(url, redisstore.Options{}); !errors.Is(err, penstock.ErrInvalid) {
			t.Errorf("Open(%s): %v; want an ErrInvalid", url, err)
		}
	}
}

// A password may be misplaced in many ways; no error shows it.
func TestErrorsOfURLsNeverShowThePassword(t *testing.T) {
	t.Parallel()
	for _, password := range []string{"s3cret", "s3/cret", "s3?cret", "s3#cret", "s3@cret", "s3 cret", "s3%cret", "s3:cret", "s3,cret", "s3[cret", "s3&cret", "s3;cret", "1/s3cret", "6379?s3cret=1", "6379#s3cret", "s3://cret"} {
		for _, form := range []string{
			"redis://user:%s@host:x", "redis://:%s@host:x", "redis://user:%s@", "redis://user:%s", "redis://:%s", "redis://user:%s@h1,h2",
			"redis://user:%s@host/db", "redis://user:%s@host?no=1", "redis://user:%s@host?db=x", "user:%s@host", "http://user:%s@host",
			"redis+cluster://user:%s@h1,h2:x", "redis+sentinel://user:%s@h1", "unix://user:%s@host/run", "rediss://user:%s@host?ca=/no/file",
			"redis://host:x?sentinel_password=%s", "redis://%s@host:x",
		} {
			if !strings.Contains(form, "@") && password[0] != 's' {
				continue // a host, a port and a path: this may not be a password
			}
			url := fmt.Sprintf(form, password)
			if _, err := redisclient.ParseURL(url); err != nil && (strings.Contains(err.Error(), "s3") || strings.Contains(err.Error(), "cret")) {
				t.Errorf("%s: %v; want an error that does not show the password", url, err)
			}
		}
	}
}

func FuzzParseURL(f *testing.F) {
	for _, url := range []string{
		"redis://user:pw@host:1/2?db=3", "redis+cluster://h1:1,[::1]:2", "redis+sentinel://u:p@h1/main/1?sentinel_password=s",
		"unix:///run/redis.sock?db=1", "rediss://h?insecure_skip_verify=true", "redis://%", "://", "redis://h?db=%zz", "redis://:a@b@c",
	} {
		f.Add(url)
	}
	f.Fuzz(func(t *testing.T, url string) {
		for _, option := range []string{"_file=", "ca=", "cert=", "key="} {
			if strings.Contains(url, option) {
				return // the option names a file, which ParseURL would read
			}
		}
		o, err := redisclient.ParseURL(url)
		if err != nil {
			if !errors.Is(err, penstock.ErrInvalid) {
				t.Errorf("%q: %v; want an ErrInvalid", url, err)
			}
			return
		}
		if len(o.InitAddress) == 0 || o.InitAddress[0] == "" || o.SelectDB < 0 || o.Dialer.Timeout <= 0 {
			t.Errorf("%q is parsed as %s; want a server, a database from 0 on and a timeout", url, formatOptions(o))
		}
	})
}

// writeCertificate writes a self-signed certificate and its key.
func writeCertificate(t testing.TB, dir string) (cert, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	signed, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	if err != nil {
		t.Fatal(err)
	}
	encoded, err := x509.MarshalECPrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	cert, key = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	for file, block := range map[string]*pem.Block{
		cert: {Type: "CERTIFICATE", Bytes: signed}, key: {Type: "EC PRIVATE KEY", Bytes: encoded},
	} {
		if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return cert, key
}
