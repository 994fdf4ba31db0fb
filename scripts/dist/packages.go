package main

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

const nfpmPackage = "github.com/goreleaser/nfpm/v2/cmd/nfpm@v2.45.0"

// A packager makes packages from the files of a platform.
type packager struct {
	release
	nfpm string // path of the program
}

// newPackager builds nfpm, which makes the packages. go.mod does not require nfpm, because that
// would add a hundred modules.
func newPackager(r release, work string) (*packager, error) {
	c := exec.Command("go", "install", nfpmPackage)
	c.Env = append(os.Environ(), "GOBIN="+work, "GOWORK=off", "GOFLAGS=")
	c.Dir = work
	if out, err := c.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("go install %s: %w: %s", nfpmPackage, err, out)
	}
	return &packager{release: r, nfpm: filepath.Join(work, "nfpm")}, nil
}

// pack makes a .deb and an .rpm of the files in content.
func (p *packager) pack(content fileSet, arch, work, out string) error {
	stage := filepath.Join(work, "packages-"+arch)
	files, err := p.packageFiles(content)
	if err != nil {
		return err
	}
	if err := files.write(stage, p.date); err != nil {
		return err
	}
	text, err := os.ReadFile(filepath.Join(p.tree, "packaging", "nfpm.yaml"))
	if err != nil {
		return err
	}
	values := map[string]string{"ARCH": arch, "VERSION": p.number(), "DATE": p.date.Format(time.RFC3339), "STAGE": stage}
	config := os.Expand(string(text), func(name string) string {
		if values[name] == "" {
			err = fmt.Errorf("packaging/nfpm.yaml contains ${%s}, which this command does not set", name)
		}
		return values[name]
	})
	if err != nil {
		return err
	}
	configFile := filepath.Join(stage, "nfpm.yaml")
	if err := os.WriteFile(configFile, []byte(config), 0o644); err != nil {
		return err
	}
	for _, kind := range []string{"deb", "rpm"} {
		target := filepath.Join(out, fmt.Sprintf("penstock_%s_linux_%s.%s", p.number(), arch, kind))
		c := exec.Command(p.nfpm, "package", "--config", configFile, "--packager", kind, "--target", target)
		c.Dir = p.tree
		c.Env = append(os.Environ(), fmt.Sprint("SOURCE_DATE_EPOCH=", p.date.Unix()))
		if text, err := c.CombinedOutput(); err != nil {
			return fmt.Errorf("make the .%s with nfpm: %w: %s", kind, err, text)
		}
	}
	return nil
}

// packageFiles returns the files that a package gets from the content of an archive. The
// changelogs, the licenses and the man pages are compressed. nfpm reads all other files from the
// tree.
func (p *packager) packageFiles(content fileSet) (fileSet, error) {
	files := make(fileSet)
	debianChangelog := fmt.Sprintf("penstock (%s-1) unstable; urgency=medium\n\n  * Version %s; see changelog.gz.\n\n -- Penstock maintainers <penstock@users.noreply.github.com>  %s\n",
		strings.Replace(p.number(), "-", "~", 1), p.number(), p.date.Format(time.RFC1123Z))
	toCompress := map[string]file{
		"changelog.Debian.gz":     {text: []byte(debianChangelog)},
		"changelog.gz":            content["CHANGELOG.md"],
		"THIRD_PARTY_LICENSES.gz": content["THIRD_PARTY_LICENSES"],
	}
	for name, f := range content {
		switch {
		case strings.HasPrefix(name, "man/"):
			toCompress[name+".gz"] = f
		case strings.HasPrefix(name, "completions/"), name == "penstock":
			files[name] = f
		}
	}
	for name, f := range toCompress {
		text, err := f.read()
		if err != nil {
			return nil, err
		}
		var out bytes.Buffer
		w, err := gzip.NewWriterLevel(&out, gzip.BestCompression)
		if err != nil {
			return nil, err
		}
		w.Write(text) // writing to a buffer cannot fail
		if err := w.Close(); err != nil {
			return nil, err
		}
		files[name] = file{text: out.Bytes()}
	}
	return files, nil
}
