// Command modproxy makes a module proxy of the tree: a folder that GOPROXY=file://FOLDER names,
// with one version of each module that is tagged. So a test installs what users will install once
// that version is tagged.
package main

import (
	"encoding/json"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/mod/modfile"
	"golang.org/x/mod/module"
	"golang.org/x/mod/zip"
)

// tagged are the folders of the modules that get a tag for each version. A tag of cmd/penstock is
// cmd/penstock/v0.1.0.
var tagged = []string{".", "cmd/penstock", "grpclimit", "redisstore/goredis"}

func main() {
	if len(os.Args) != 4 {
		log.Fatal("usage: modproxy TREE VERSION FOLDER")
	}
	for _, dir := range tagged {
		if err := add(filepath.Join(os.Args[1], dir), os.Args[2], os.Args[3]); err != nil {
			log.Fatal(err)
		}
	}
}

// add puts the module in dir into the proxy, as the files .info, .mod and .zip of its version.
func add(dir, version, proxy string) error {
	mod, err := os.ReadFile(filepath.Join(dir, "go.mod"))
	if err != nil {
		return err
	}
	path := modfile.ModulePath(mod)
	escaped, err := module.EscapePath(path)
	if err != nil {
		return err
	}
	versions := filepath.Join(proxy, filepath.FromSlash(escaped), "@v")
	if err := os.MkdirAll(versions, 0o755); err != nil {
		return err
	}
	info, err := json.Marshal(map[string]any{"Version": version, "Time": time.Now().UTC()})
	if err != nil {
		return err
	}
	for name, text := range map[string][]byte{"list": []byte(version + "\n"), version + ".info": info, version + ".mod": mod} {
		if err := os.WriteFile(filepath.Join(versions, name), text, 0o644); err != nil {
			return err
		}
	}
	archive, err := os.Create(filepath.Join(versions, version+".zip"))
	if err != nil {
		return err
	}
	// Like the go command for a tagged version, this omits the folders of other modules.
	if err := zip.CreateFromDir(archive, module.Version{Path: path, Version: version}, dir); err != nil {
		return fmt.Errorf("%s: %w", dir, err)
	}
	return archive.Close()
}
