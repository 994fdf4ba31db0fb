//go:build unix

package service

import (
	"maps"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestCertificateInAPipeIsRejected(t *testing.T) {
	a := newAuthority(t)
	a.issue(2)
	pipe := a.path("pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Skip(err)
	}
	files := map[string]string{"tls-cert": a.path("cert.pem"), "tls-key": a.path("key.pem"), "tls-client-ca": a.path("ca.pem")}
	for name := range files {
		flags := maps.Clone(files)
		flags[name] = pipe
		ended := make(chan error, 1)
		go func() { ended <- Run(t.Context(), options(t, nil, flags)) }()
		select {
		case err := <-ended:
			if err == nil || !strings.Contains(err.Error(), "pipe is not a regular file; write the name of one") {
				t.Errorf("%s: %v; want an error that the pipe is not a regular file", name, err)
			}
		case <-time.After(patience):
			t.Fatalf("with a pipe as %s the start does not return; want an error", name)
		}
	}
}
