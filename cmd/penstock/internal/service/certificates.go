package service

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/penstock/penstock/cmd/penstock/internal/settings"
)

// tlsOf is how TLS is spoken with clients, or nil if it is not.
func tlsOf(s settings.Settings, log *slog.Logger) (*tls.Config, error) {
	if s.TLSCert == "" {
		return nil, nil
	}
	c := &certificates{certFile: s.TLSCert, keyFile: s.TLSKey, log: log}
	if err := c.load(); err != nil {
		return nil, fmt.Errorf("%w: tls-cert (%s) and tls-key (%s): %w", settings.ErrInvalid, s.Source("tls-cert"), s.Source("tls-key"), err)
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: c.get}
	if s.TLSClientCA != "" {
		pem, err := settings.ReadFile(s.TLSClientCA)
		config.ClientCAs = x509.NewCertPool()
		if err == nil && !config.ClientCAs.AppendCertsFromPEM(pem) {
			err = fmt.Errorf("%s holds no certificate in PEM form", s.TLSClientCA)
		}
		if err != nil {
			return nil, fmt.Errorf("%w: tls-client-ca (%s): %w", settings.ErrInvalid, s.Source("tls-client-ca"), err)
		}
		config.ClientAuth = tls.RequireAndVerifyClientCert
	}
	return config, nil
}

// certificates is the certificate of two files, as they are now: they are looked at when a client
// comes, at most once a second. If they cannot be used, the last that could be stays.
type certificates struct {
	certFile, keyFile string
	log               *slog.Logger

	mu      sync.Mutex
	current *tls.Certificate
	stamps  [2]stamp
	looked  time.Time
}

// A stamp is what changes when a file does.
type stamp struct {
	modified time.Time
	size     int64
}

func (c *certificates) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if time.Since(c.looked) >= time.Second {
		c.looked = time.Now()
		if now := c.look(); now != c.stamps {
			if err := c.load(); err != nil {
				c.stamps = now // and say so once
				c.log.Error("the changed certificate was not taken up; the old one stays", "err", err)
			} else {
				c.log.Info("the changed certificate was taken up", "file", c.certFile)
			}
		}
	}
	return c.current, nil
}

func (c *certificates) load() error {
	stamps := c.look() // before reading: a change meanwhile is noticed later
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

func (c *certificates) look() (stamps [2]stamp) {
	for i, file := range []string{c.certFile, c.keyFile} {
		if info, err := os.Stat(file); err == nil {
			stamps[i] = stamp{info.ModTime(), info.Size()}
		}
	}
	return stamps
}
