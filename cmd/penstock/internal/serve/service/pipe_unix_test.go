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
		t.Skip("cannot make a pipe: ", err)
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
				t.Errorf("with a pipe as %s, Run returned %v; want an error that it is not a regular file", name, err)
			}
		case <-time.After(patience):
			t.Fatalf("with a pipe as %s, Run has not returned within %v; want an error", name, patience)
		}
	}
}
