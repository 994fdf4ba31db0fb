package main

import (
	"bytes"
	"debug/buildinfo"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/mod/semver"
)

// A platform is an operating system and an architecture, as the go command names them.
type platform struct{ os, arch string }

func (p platform) String() string { return p.os + "/" + p.arch }

var platforms = []platform{{"linux", "amd64"}, {"linux", "arm64"}, {"darwin", "amd64"}, {"darwin", "arm64"}, {"windows", "amd64"}}

// A builder builds a release for any platform.
type builder struct {
	release
	work    string   // temporary folder
	environ []string // of the go command
	pages   string   // folder of the man pages and completions
}

// newBuilder makes the module proxy that the builds use, the man pages and the completions.
func newBuilder(r release, work string) (*builder, error) {
	b := &builder{release: r, work: work, pages: filepath.Join(work, "pages")}
	proxy := filepath.Join(work, "proxy")
	versions := moduleVersions(r.rootVersion)
	if r.version != r.rootVersion { // only cmd/penstock has a development version
		versions["cmd/penstock"] = append(versions["cmd/penstock"], r.version)
	}
	if err := writeProxy(r.tree, proxy, versions, r.date); err != nil {
		return nil, err
	}
	env, err := exec.Command("go", "env", "GOMODCACHE", "GOPROXY", "GOCACHE").Output()
	if err != nil {
		return nil, err
	}
	lines := strings.Split(string(env), "\n")
	moduleCache, goProxy, buildCache := filepath.ToSlash(lines[0]), lines[1], lines[2]
	// Other projects' modules come from the local cache if they are in it. checkSums compares them
	// with go.sum.
	b.environ = append(withoutGoSettings(os.Environ()),
		"GOPROXY=file://"+proxy+",file://"+moduleCache+"/cache/download,"+goProxy, "GOCACHE="+buildCache,
		"GOSUMDB=off", "GOFLAGS=-modcacherw", "GOWORK=off", "GOENV=off",
		"GOMODCACHE="+filepath.Join(work, "modules"), "GOPATH="+filepath.Join(work, "gopath"), "CGO_ENABLED=0")
	pages := exec.Command("go", "-C", filepath.Join(r.tree, "scripts"), "run", "./manpages", b.pages, r.version, r.date.Format(time.RFC3339))
	pages.Env = append(os.Environ(), "GOFLAGS=-buildvcs=false")
	if out, err := pages.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("make the man pages and completions: %w: %s", err, out)
	}
	return b, nil
}

// withoutGoSettings removes the settings of the go command, which could change the bytes of a
// build.
func withoutGoSettings(environ []string) []string {
	return slices.DeleteFunc(environ, func(line string) bool { return strings.HasPrefix(line, "GO") || strings.HasPrefix(line, "CGO_") })
}

// install builds the binary as `go install …/cmd/penstock@VERSION` does, with the commit and its
// date. It returns the binary's path.
func (b *builder) install(p platform) (string, error) {
	variables := "-X " + program + "/command.commit=" + b.commit + " -X " + program + "/command.date=" + b.date.Format(time.RFC3339)
	flags := "-s -w -buildid= " + variables
	c := exec.Command("go", "install", "-trimpath", "-ldflags", flags, program+"@"+b.version)
	c.Dir = b.work
	c.Env = append(slices.Clone(b.environ), "GOOS="+p.os, "GOARCH="+p.arch)
	if out, err := c.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go install: %w: %s", err, out)
	}
	folder := filepath.Join(b.work, "gopath", "bin")
	if p != (platform{runtime.GOOS, runtime.GOARCH}) {
		folder = filepath.Join(folder, p.os+"_"+p.arch)
	}
	path := filepath.Join(folder, b.binary(p))
	info, err := buildinfo.ReadFile(path)
	if err != nil {
		return "", err
	}
	return path, checkSums(info, filepath.Join(b.tree, "cmd", "penstock", "go.sum"), semver.Prerelease(b.version) == "")
}

// binary returns the file name of the program on a platform.
func (b *builder) binary(p platform) string {
	if p.os == "windows" {
		return "penstock.exe"
	}
	return "penstock"
}

// checkSums returns an error unless the file goSum has the sum of each module that a binary
// contains. For a development version, it does not check the modules of this repository.
func checkSums(info *buildinfo.BuildInfo, goSum string, isRelease bool) error {
	text, err := os.ReadFile(goSum)
	if err != nil {
		return err
	}
	for _, m := range info.Deps {
		switch {
		case !isRelease && isOwnModule(m.Path):
		case m.Sum == "" || !bytes.Contains(text, []byte(m.Path+" "+m.Version+" "+m.Sum+"\n")):
			return fmt.Errorf("cmd/penstock/go.sum does not have the line %q; for a module of this repository, run make prepare VERSION=… and commit", m.Path+" "+m.Version+" "+m.Sum)
		}
	}
	return nil
}

// isOwnModule reports whether a module is in this repository.
func isOwnModule(path string) bool { return path == root || strings.HasPrefix(path, root+"/") }

// contentOf builds the binary of a platform, and returns the files of the platform's archive. It
// writes the list of the binary's components to the folder out.
func (b *builder) contentOf(p platform, out string) (fileSet, error) {
	binary, err := b.install(p)
	if err != nil {
		return nil, err
	}
	info, err := buildinfo.ReadFile(binary)
	if err != nil {
		return nil, err
	}
	licenses, err := licensesOf(info, filepath.Join(b.work, "modules"))
	if err != nil {
		return nil, err
	}
	embedded, license, err := embeddedIn(b.tree)
	if err != nil {
		return nil, err
	}
	licenses = fmt.Appendf(licenses, "\n\n==== %s %s, in the dashboard\n\n%s", embedded.Name, embedded.Version, license)
	components, err := componentsOf(info, b.version, embedded)
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(out, b.name(p)+".cdx.json"), components, 0o644); err != nil {
		return nil, err
	}
	content := fileSet{
		b.binary(p):            {path: binary, mode: 0o755},
		"LICENSE":              {path: filepath.Join(b.tree, "LICENSE")},
		"THIRD_PARTY_LICENSES": {text: licenses},
		"CHANGELOG.md":         {path: filepath.Join(b.tree, "CHANGELOG.md")},
		"policy.yaml":          {path: filepath.Join(b.tree, "packaging", "policy.yaml")},
		"penstock.service":     {path: filepath.Join(b.tree, "packaging", "penstock.service")},
	}
	return content, errors.Join(content.add("man", filepath.Join(b.pages, "man")), content.add("completions", filepath.Join(b.pages, "completions")))
}

// name returns the name of a platform's archive without its extension.
func (b *builder) name(p platform) string {
	return fmt.Sprintf("penstock_%s_%s_%s", b.number(), p.os, p.arch)
}

// writeArchive writes the archive of a platform to the folder out.
func (b *builder) writeArchive(p platform, content fileSet, out string) error {
	if p.os == "windows" {
		return content.writeZip(filepath.Join(out, b.name(p)+".zip"), b.name(p), b.date)
	}
	return content.writeTarGz(filepath.Join(out, b.name(p)+".tar.gz"), b.name(p), b.date)
}
