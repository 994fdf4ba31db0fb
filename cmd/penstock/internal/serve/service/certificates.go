package service

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/penstock/penstock/cmd/penstock/internal/serve/settings"
)

// tlsFiles are the files of a listener's certificate. caName is the name of the setting for
// clientCA. The names of the settings for cert and key begin with prefix.
type tlsFiles struct{ cert, key, clientCA, prefix, caName string }

// tlsConfig returns the TLS configuration for a listener, or nil without a certificate. The metrics
// show under the listener's name when the certificate expires.
func (s *service) tlsConfig(listener string, files tlsFiles) (*tls.Config, error) {
	if files.cert == "" {
		return nil, nil
	}
	c := &certificates{listener: listener, certFile: files.cert, keyFile: files.key, log: s.Log}
	if err := c.load(); err != nil {
		cert, key := files.prefix+"-cert", files.prefix+"-key"
		return nil, fmt.Errorf("%w: %s (%s) and %s (%s): %w", settings.ErrInvalid, cert, s.Settings.Source(cert), key, s.Settings.Source(key), err)
	}
	s.metrics.AddCertificate(listener, c.expiry)
	config := &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: c.get}
	if files.clientCA != "" {
		pem, err := settings.ReadFile(files.clientCA)
		config.ClientCAs = x509.NewCertPool()
		if err == nil && !config.ClientCAs.AppendCertsFromPEM(pem) {
			err = fmt.Errorf("%s contains no certificate in PEM format", files.clientCA)
		}
		if err != nil {
			return nil, fmt.Errorf("%w: %s (%s): %w", settings.ErrInvalid, files.caName, s.Settings.Source(files.caName), err)
		}
		config.ClientAuth = tls.RequireAndVerifyClientCert
	}
	return config, nil
}

// certificates serves the certificate of a certificate file and a key file. When a client connects,
// it reloads files that have changed, at most once a second. If the files cannot be used, the old
// certificate stays in use.
type certificates struct {
	listener          string
	certFile, keyFile string
	log               *slog.Logger

	mu      sync.Mutex
	current *tls.Certificate
	stamps  [2]stamp  // of certFile and keyFile, when they were last read
	checked time.Time // when the files were last checked
}

// A stamp changes when its file changes.
type stamp struct {
	modified time.Time
	size     int64
}

func (c *certificates) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if time.Since(c.checked) >= time.Second {
		c.checked = time.Now()
		if found := c.currentStamps(); found != c.stamps {
			if err := c.load(); err != nil {
				c.stamps = found // log this error only once
				c.log.Error("certificate reload failed; the old certificate stays in use", "listener", c.listener, "file", c.certFile, "key_file", c.keyFile, "err", err)
			} else {
				c.log.Info("certificate reloaded", "listener", c.listener, "file", c.certFile)
			}
		}
	}
	return c.current, nil
}

// expiry returns when the current certificate expires. It reads files that have changed.
func (c *certificates) expiry() time.Time {
	current, _ := c.get(nil) // its error is always nil
	return current.Leaf.NotAfter
}

// load reads the files. The caller holds mu, or c is not in use yet.
func (c *certificates) load() error {
	stamps := c.currentStamps() // before reading, so that a change during the read is noticed later
	cert, err := settings.ReadFile(c.certFile)
	if err != nil {
		return err
	}
	key, err := settings.ReadFile(c.keyFile)
	if err != nil {
		return err
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return err
	}
	c.current, c.stamps = &pair, stamps
	return nil
}

func (c *certificates) currentStamps() (stamps [2]stamp) {
	for i, file := range []string{c.certFile, c.keyFile} {
		if info, err := os.Stat(file); err == nil {
			stamps[i] = stamp{info.ModTime(), info.Size()}
		}
	}
	return stamps
}
