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
// A module requires only modules that come before it in the list tagged. So the checksums of these
// modules are final when its go.sum is written. Therefore one commit can have the tags of all
// modules.
func prepare(tree, version string) error {
	if semver.Canonical(version) != version {
		return fmt.Errorf("the version %q does not have the form v0.1.0", version)
	}
	proxy, err := os.MkdirTemp("", "penstock-prepare-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(proxy)
	// The versions are written first, because the root module's checksum includes these files.
	if err := setVersions(tree, version); err != nil {
		return err
	}
	sums := make(map[string]string) // lines of go.sum by the path of the module
	for _, dir := range tagged {
		if err := require(filepath.Join(tree, dir), version, sums); err != nil {
			return fmt.Errorf("%s: %w", dir, err)
		}
		date := time.Unix(0, 0) // any date, because checksums do not depend on it
		if err := addToProxy(tree, dir, []string{version}, proxy, date); err != nil {
			return fmt.Errorf("%s: %w", dir, err)
		}
		modulePath := path.Join(root, dir)
		if sums[modulePath], err = sumsOf(filepath.Join(proxy, modulePath, "@v"), modulePath, version); err != nil {
			return fmt.Errorf("%s: %w", dir, err)
		}
	}
	return nil
}

// versioned are the files for deployments that contain the version.
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
			return fmt.Errorf("%s has no line for the version; want a line that matches %s", file.path, file.line)
		}
		text = file.line.ReplaceAll(text, []byte("${1}"+strings.TrimPrefix(version, "v")))
		if err := os.WriteFile(name, text, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// sumsOf returns the two lines of go.sum for a module in a proxy. One has the checksum of all
// files, the other has that of go.mod.
func sumsOf(folder, modulePath, version string) (string, error) {
	archiveSum, err := dirhash.HashZip(filepath.Join(folder, version+".zip"), dirhash.Hash1)
	if err != nil {
		return "", err
	}
	goMod, err := os.ReadFile(filepath.Join(folder, version+".mod"))
	if err != nil {
		return "", err
	}
	goModSum, err := dirhash.Hash1([]string{"go.mod"}, func(string) (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(goMod)), nil })
	required := modulePath + " " + version
	return required + " " + archiveSum + "\n" + required + "/go.mod " + goModSum + "\n", err
}

// require sets the version of the modules of this repository that a module requires, and writes
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
		if !isOwnModule(r.Mod.Path) {
			continue
		}
		if sums[r.Mod.Path] == "" {
			return fmt.Errorf("the module requires %s, which does not come before it in the list tagged", r.Mod.Path)
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
