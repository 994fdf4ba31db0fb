package policyfile

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"testing"
)

// A changed file of values changes the rules, so it must change the digest.
func TestDigestIncludesFilesOfValues(t *testing.T) {
	dir := t.TempDir()
	const text = "deny: [{ip: {file: bad.txt}}]\nrules: [{name: a, per: global, limits: [{rate: 1/s}]}]\n"
	path := filepath.Join(dir, "rules.yaml")
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("rules.yaml", text)
	for _, values := range []string{"192.0.2.1\n", "192.0.2.2\n"} {
		write("bad.txt", values)
		sum := sha256.Sum256([]byte(text + values))
		p, err := Load(path, Options{})
		if err != nil {
			t.Fatal(err)
		}
		const digits = 12 // of a digest
		if got, want := p.Digest, hex.EncodeToString(sum[:])[:digits]; got != want {
			t.Errorf("with the values %q, the digest is %s; want %s", values, got, want)
		}
		p.Close()
	}
}
