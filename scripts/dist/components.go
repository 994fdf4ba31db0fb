package main

import (
	"bytes"
	"debug/buildinfo"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"strings"

	cyclonedx "github.com/CycloneDX/cyclonedx-go"
	"golang.org/x/mod/module"
)

// componentsOf lists the modules of a binary, with their sums, in the form of CycloneDX. It has no
// time and no serial number, so that equal binaries have equal lists.
func componentsOf(info *buildinfo.BuildInfo, version string) ([]byte, error) {
	top := componentOf(debug.Module{Path: program, Version: version}, cyclonedx.ComponentTypeApplication)
	components := []cyclonedx.Component{componentOf(debug.Module{Path: "stdlib", Version: info.GoVersion}, cyclonedx.ComponentTypeLibrary)}
	dependsOn := []string{components[0].BOMRef}
	for _, m := range info.Deps {
		c := componentOf(*m, cyclonedx.ComponentTypeLibrary)
		components = append(components, c)
		dependsOn = append(dependsOn, c.BOMRef)
	}
	bom := cyclonedx.NewBOM()
	bom.Metadata = &cyclonedx.Metadata{Component: &top}
	bom.Components = &components
	bom.Dependencies = &[]cyclonedx.Dependency{{Ref: top.BOMRef, Dependencies: &dependsOn}}
	var out bytes.Buffer
	err := cyclonedx.NewBOMEncoder(&out, cyclonedx.BOMFileFormatJSON).SetPretty(true).Encode(bom)
	return out.Bytes(), err
}

func componentOf(m debug.Module, kind cyclonedx.ComponentType) cyclonedx.Component {
	url := "pkg:golang/" + m.Path + "@" + m.Version
	c := cyclonedx.Component{BOMRef: url, Type: kind, Name: m.Path, Version: m.Version, PackageURL: url}
	if m.Sum != "" {
		c.Properties = &[]cyclonedx.Property{{Name: "go.sum", Value: m.Sum}}
	}
	return c
}

var licenseName = regexp.MustCompile(`(?i)^(licen[cs]e|copying|notice|patents)([.-].*)?$`)

// licensesOf are the licences of all modules in a binary, which are in the module cache. Most
// licences require that copies of a program have them.
func licensesOf(info *buildinfo.BuildInfo, cache string) ([]byte, error) {
	var all bytes.Buffer
	fmt.Fprintf(&all, "Penstock contains the following modules, and the standard library of Go (https://go.dev/LICENSE).\n")
	for _, m := range info.Deps {
		if m.Path == root || strings.HasPrefix(m.Path, root+"/") {
			continue
		}
		escaped, err := module.EscapePath(m.Path)
		if err != nil {
			return nil, err
		}
		dir := filepath.Join(cache, filepath.FromSlash(escaped)+"@"+m.Version)
		entries, err := os.ReadDir(dir)
		if err != nil {
			return nil, err
		}
		found := 0
		for _, e := range entries {
			if e.IsDir() || !licenseName.MatchString(e.Name()) {
				continue
			}
			text, err := os.ReadFile(filepath.Join(dir, e.Name()))
			if err != nil {
				return nil, err
			}
			found++
			fmt.Fprintf(&all, "\n\n==== %s %s: %s\n\n%s", m.Path, m.Version, e.Name(), bytes.ReplaceAll(text, []byte("\r\n"), []byte("\n")))
		}
		if found == 0 {
			return nil, fmt.Errorf("module %s %s has no licence", m.Path, m.Version)
		}
	}
	return all.Bytes(), nil
}
