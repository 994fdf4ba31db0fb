package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/mod/modfile"
	"golang.org/x/mod/module"
	"golang.org/x/mod/zip"
)

const (
	root    = "github.com/penstock/penstock"
	program = root + "/cmd/penstock"
)

// tagged are the folders of the modules that get a tag for each version. A module comes after the
// modules that it requires. A tag of cmd/penstock is cmd/penstock/v0.1.0.
var tagged = []string{".", "redisstore/goredis", "observe/prometheus", "observe/otel", "httplimit/echolimit", "httplimit/fiberlimit", "httplimit/ginlimit", "grpclimit", "cmd/penstock"}

// moduleVersions returns one version for every tagged module, by the folder of the module.
func moduleVersions(version string) map[string][]string {
	versions := make(map[string][]string)
	for _, dir := range tagged {
		versions[dir] = []string{version}
	}
	return versions
}

// writeProxy makes a module proxy of a tree: a folder for GOPROXY=file://FOLDER. The map versions
// has the versions of each module, by the folder of the module. All versions have the files of the
// tree. With the proxy, a test can install the modules as users will after the release.
func writeProxy(tree, folder string, versions map[string][]string, date time.Time) error {
	for _, dir := range tagged {
		if err := addToProxy(tree, dir, versions[dir], folder, date); err != nil {
			return fmt.Errorf("%s: %w", dir, err)
		}
	}
	return nil
}

// addToProxy puts a module into the proxy, as the files .info, .mod and .zip of each version.
func addToProxy(tree, dir string, versions []string, proxy string, date time.Time) error {
	mod, err := os.ReadFile(filepath.Join(tree, dir, "go.mod"))
	if err != nil {
		return err
	}
	parsed, err := modfile.Parse("go.mod", mod, nil)
	if err != nil {
		return err
	}
	if len(parsed.Replace) > 0 {
		return errors.New("go.mod has a replace directive; go install rejects such modules")
	}
	path := parsed.Module.Mod.Path
	escaped, err := module.EscapePath(path)
	if err != nil {
		return err
	}
	files, err := moduleFiles(tree, dir)
	if err != nil {
		return err
	}
	folder := filepath.Join(proxy, filepath.FromSlash(escaped), "@v")
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	list := ""
	for _, version := range versions {
		list += version + "\n"
		info, err := json.Marshal(map[string]any{"Version": version, "Time": date.UTC()})
		if err != nil {
			return err
		}
		for name, text := range map[string][]byte{version + ".info": info, version + ".mod": mod} {
			if err := os.WriteFile(filepath.Join(folder, name), text, 0o644); err != nil {
				return err
			}
		}
		archive, err := os.Create(filepath.Join(folder, version+".zip"))
		if err != nil {
			return err
		}
		if err := zip.Create(archive, module.Version{Path: path, Version: version}, files); err != nil {
			return errors.Join(err, archive.Close())
		}
		if err := archive.Close(); err != nil {
			return err
		}
	}
	return os.WriteFile(filepath.Join(folder, "list"), []byte(list), 0o644)
}

// moduleFiles returns the files of a module. Like the go command for a tagged version, it omits the
// folders of other modules, and adds the LICENSE of the repository to a module without one.
func moduleFiles(tree, dir string) ([]zip.File, error) {
	checked, err := zip.CheckDir(filepath.Join(tree, dir))
	if err != nil {
		return nil, err
	}
	var files []zip.File
	hasLicense := false
	for _, path := range checked.Valid {
		rel, err := filepath.Rel(filepath.Join(tree, dir), path)
		if err != nil {
			return nil, err
		}
		hasLicense = hasLicense || rel == "LICENSE"
		files = append(files, moduleFile{filepath.ToSlash(rel), path})
	}
	if !hasLicense {
		files = append(files, moduleFile{"LICENSE", filepath.Join(tree, "LICENSE")})
	}
	return files, nil
}

// A moduleFile is a file on disk under the name that it has in its module.
type moduleFile struct{ name, path string }

func (f moduleFile) Path() string { return f.name }

func (f moduleFile) Lstat() (fs.FileInfo, error) { return os.Lstat(f.path) }

func (f moduleFile) Open() (io.ReadCloser, error) { return os.Open(f.path) }
