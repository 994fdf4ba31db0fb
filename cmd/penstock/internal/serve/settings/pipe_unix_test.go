//go:build unix

package settings

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func TestSecretFileIsARegularFile(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Skip("cannot make a pipe: ", err)
	}
	for _, path := range []string{pipe, t.TempDir(), os.DevNull} {
		_, err := load(map[string]string{}, "PENSTOCK_KEY_HASH_SECRET_FILE="+path)
		if err == nil || !strings.Contains(err.Error(), path+" is not a regular file; write the name of one") {
			t.Errorf("with the secret file %s, the error is %v; want that it is not a regular file", path, err)
		}
	}
}
