package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"golang.org/x/mod/modfile"
	"golang.org/x/mod/semver"
	"golang.org/x/mod/sumdb/dirhash"
)

// prepare makes all tagged modules of a tree require each other at the version. It writes the
// checksums of the required modules to each go.sum, and the version to the files for deployments.
//
// A module requires only modules that come before it in the list tagged. So their checksums are
// final when its go.sum is written, and one commit can have the tags of all modules.
func prepare(tree, version string) error {
	if semver.Canonical(version) != version {
		return fmt.Errorf("the version %q does not have the form v0.1.0", version)
	}
	proxy, err := os.MkdirTemp("", "penstock-prepare-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(proxy)
	if err := setVersions(tree, version); err != nil { // first, because the root's sum includes these files
		return err
	}
	sums := make(map[string]string) // lines of go.sum by the module's path
	for _, dir := range tagged {
		if err := require(filepath.Join(tree, dir), version, sums); err != nil {
			return fmt.Errorf("%s: %w", dir, err)
		}
		if err := addToProxy(tree, dir, []string{version}, proxy, time.Unix(0, 0)); err != nil { // the date is not in the sums
			return fmt.Errorf("%s: %w", dir, err)
		}
		modulePath := path.Join(root, dir)
		if sums[modulePath], err = sumsOf(filepath.Join(proxy, modulePath, "@v"), modulePath, version); err != nil {
			return fmt.Errorf("%s: %w", dir, err)
		}
	}
	return nil
}

// versioned are the files for deployments that have the version in them.
var versioned = []struct {
	path string
	line *regexp.Regexp // a line with the version; the group is the part before the version
}{
	{"deploy/helm/penstock/Chart.yaml", regexp.MustCompile(`(?m)^((?:appVersion|version): ).*$`)},
	{"deploy/kubernetes/kustomization.yaml", regexp.MustCompile(`(?m)^(    newTag: ).*$`)},
	{"deploy/kubernetes/penstock.yaml", regexp.MustCompile(`(?m)^( +image: penstock:| +app\.kubernetes\.io/version: ")[^"\n]*`)},
	{"deploy/compose/compose.yaml", regexp.MustCompile(`(?m)^( +image: &image penstock:).*$`)},
}

// setVersions writes the version to the files for deployments.
func setVersions(tree, version string) error {
	for _, file := range versioned {
		name := filepath.Join(tree, filepath.FromSlash(file.path))
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		if !file.line.Match(text) {
			return fmt.Errorf("%s has no line with the version; want one like %s", file.path, file.line)
		}
		text = file.line.ReplaceAll(text, []byte("${1}"+strings.TrimPrefix(version, "v")))
		if err := os.WriteFile(name, text, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// sumsOf returns the two lines of go.sum for a module in a proxy: the sum of its files, and that of
// its go.mod.
func sumsOf(folder, modulePath, version string) (string, error) {
	archive, err := dirhash.HashZip(filepath.Join(folder, version+".zip"), dirhash.Hash1)
	if err != nil {
		return "", err
	}
	goMod, err := os.ReadFile(filepath.Join(folder, version+".mod"))
	if err != nil {
		return "", err
	}
	modSum, err := dirhash.Hash1([]string{"go.mod"}, func(string) (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(goMod)), nil })
	return fmt.Sprintf("%s %s %s\n%[1]s %[2]s/go.mod %[4]s\n", modulePath, version, archive, modSum), err
}

// require makes a module require the other modules of this repository at the version, and writes
// their lines to its go.sum. sums has the lines of the modules that come before it in tagged.
func require(dir, version string, sums map[string]string) error {
	name := filepath.Join(dir, "go.mod")
	text, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	mod, err := modfile.Parse(name, text, nil)
	if err != nil {
		return err
	}
	required := "" // lines of go.sum
	for _, r := range mod.Require {
		if r.Mod.Path != root && !strings.HasPrefix(r.Mod.Path, root+"/") {
			continue
		}
		if sums[r.Mod.Path] == "" {
			return fmt.Errorf("it requires %s, which is not tagged before it", r.Mod.Path)
		}
		required += sums[r.Mod.Path]
		if err := mod.AddRequire(r.Mod.Path, version); err != nil {
			return err
		}
	}
	if required == "" {
		return nil
	}
	if text, err = mod.Format(); err != nil {
		return err
	}
	if err := os.WriteFile(name, text, 0o644); err != nil {
		return err
	}
	name = filepath.Join(dir, "go.sum")
	if text, err = os.ReadFile(name); err != nil && !os.IsNotExist(err) {
		return err
	}
	lines := slices.DeleteFunc(strings.SplitAfter(string(text)+required, "\n"), func(line string) bool {
		isOld := strings.HasPrefix(line, root) && !strings.Contains(required, line)
		return line == "" || isOld
	})
	slices.Sort(lines)
	return os.WriteFile(name, []byte(strings.Join(slices.Compact(lines), "")), 0o644)
}

// tags returns the names of the tags of a version, in the order of the modules.
func tags(version string) (names []string) {
	for _, dir := range tagged {
		names = append(names, path.Join(dir, version))
	}
	return names
}
