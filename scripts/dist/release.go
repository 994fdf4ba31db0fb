package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/mod/modfile"
	"golang.org/x/mod/semver"
)

// A release is a commit with its version.
type release struct {
	tree        string // the commit's files
	version     string // of the binary, such as v0.1.0
	rootVersion string // of the root module, as cmd/penstock/go.mod requires it
	commit      string // 40 hexadecimal digits
	date        time.Time
}

// number returns the version without its v, as in the names of files.
func (r release) number() string { return strings.TrimPrefix(r.version, "v") }

// checkout writes the files of the repository's HEAD to tree, and determines the version of the
// release. This is the given version, or the tag of HEAD if none is given. If HEAD has no tag, it
// is a development version.
func checkout(repository, version, tree string) (release, error) {
	git := func(args ...string) ([]byte, error) {
		out, err := exec.Command("git", append([]string{"-C", repository}, args...)...).Output()
		if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
			return nil, fmt.Errorf("git %s: %w: %s", args[0], err, bytes.TrimSpace(exit.Stderr))
		}
		return out, err
	}
	head, err := git("log", "-1", "--format=%H %ct")
	if err != nil {
		return release{}, err
	}
	commit, seconds, _ := strings.Cut(strings.TrimSpace(string(head)), " ")
	unix, err := strconv.ParseInt(seconds, 10, 64)
	if err != nil {
		return release{}, fmt.Errorf("git log printed %q; want a commit and its time in seconds", head)
	}
	r := release{tree: tree, version: version, commit: commit, date: time.Unix(unix, 0).UTC()}
	files, err := git("archive", "--format=tar", "HEAD")
	if err != nil {
		return release{}, err
	}
	if err := os.MkdirAll(tree, 0o755); err != nil {
		return release{}, err
	}
	extract := exec.Command("tar", "-xp", "-C", tree)
	extract.Stdin = bytes.NewReader(files)
	if out, err := extract.CombinedOutput(); err != nil {
		return release{}, fmt.Errorf("tar -x: %w: %s", err, out)
	}
	if r.rootVersion, err = requiredVersion(tree); err != nil {
		return release{}, err
	}
	if r.version == "" {
		tags, err := git("tag", "--points-at", "HEAD", "--list", "v*")
		if err != nil {
			return release{}, err
		}
		r.version = versionOf(strings.Fields(string(tags)), r.rootVersion, commit)
	}
	switch {
	case semver.Canonical(r.version) != r.version:
		return release{}, fmt.Errorf("the version %q does not have the form v0.1.0", r.version)
	case semver.Prerelease(r.version) == "" && r.version != r.rootVersion:
		return release{}, fmt.Errorf("the version is %s, but cmd/penstock/go.mod requires %s %s; run make prepare VERSION=%s", r.version, root, r.rootVersion, r.version)
	}
	return r, nil
}

// versionOf returns the first tag that is a version. If no tag is one, it returns a development
// version with the commit.
func versionOf(tags []string, rootVersion, commit string) string {
	for _, tag := range tags {
		if semver.Canonical(tag) == tag {
			return tag
		}
	}
	// Without the g, the last part might be a number with a leading 0, which is invalid.
	return fmt.Sprintf("%s-dev.%.12s", rootVersion, "g"+commit)
}

// requiredVersion returns the version of the root module that cmd/penstock requires.
func requiredVersion(tree string) (string, error) {
	name := filepath.Join(tree, "cmd", "penstock", "go.mod")
	text, err := os.ReadFile(name)
	if err != nil {
		return "", err
	}
	mod, err := modfile.Parse(name, text, nil)
	if err != nil {
		return "", err
	}
	for _, r := range mod.Require {
		if r.Mod.Path == root {
			return r.Mod.Version, nil
		}
	}
	return "", fmt.Errorf("%s does not require %s", name, root)
}

// writeFile makes a file and the folders above it. It fails if the file exists.
func writeFile(path string, from io.Reader, mode os.FileMode) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	if _, err := io.Copy(f, from); err != nil {
		f.Close()
		return err
	}
	return f.Close()
}
