package main

import (
	"bytes"
	"debug/buildinfo"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"strings"

	cyclonedx "github.com/CycloneDX/cyclonedx-go"
	"golang.org/x/mod/module"
)

// componentsOf returns a list of the modules of a binary and of the embedded package, with their
// checksums, in the format of CycloneDX. The list has no time and no serial number, so that equal
// binaries have equal lists.
func componentsOf(info *buildinfo.BuildInfo, version string, embedded cyclonedx.Component) ([]byte, error) {
	top := componentOf(debug.Module{Path: program, Version: version}, cyclonedx.ComponentTypeApplication)
	components := []cyclonedx.Component{componentOf(debug.Module{Path: "stdlib", Version: info.GoVersion}, cyclonedx.ComponentTypeLibrary)}
	dependsOn := []string{components[0].BOMRef}
	for _, m := range info.Deps {
		c := componentOf(*m, cyclonedx.ComponentTypeLibrary)
		components = append(components, c)
		dependsOn = append(dependsOn, c.BOMRef)
	}
	components, dependsOn = append(components, embedded), append(dependsOn, embedded.BOMRef)
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

// dashboardFolder has files of an npm package, which are embedded in the binary. The file VENDORED
// records the package and the sums of its files.
const dashboardFolder = "cmd/penstock/internal/console/dashboard"

// The lines of VENDORED.
var (
	vendoredPackage = regexp.MustCompile(`^Files of the npm package (\S+) (\S+) \((\S+)\)`) // name, version, license
	vendoredFile    = regexp.MustCompile(`(?m)^([0-9a-f]{64}) (\S+)$`)                      // SHA-256, path
)

// embeddedIn returns the npm package whose files the dashboard has, and the text of its license.
func embeddedIn(tree string) (c cyclonedx.Component, license []byte, err error) {
	folder := filepath.Join(tree, filepath.FromSlash(dashboardFolder))
	record, err := os.ReadFile(filepath.Join(folder, "VENDORED"))
	if err != nil {
		return c, nil, err
	}
	found, files := vendoredPackage.FindSubmatch(record), vendoredFile.FindAllSubmatch(record, -1)
	if found == nil || files == nil {
		return c, nil, fmt.Errorf("%s/VENDORED does not name an npm package with its version, its license and the sums of its files", dashboardFolder)
	}
	name, version, licenseID := string(found[1]), string(found[2]), string(found[3])
	url := "pkg:npm/" + name + "@" + version
	c = cyclonedx.Component{BOMRef: url, Type: cyclonedx.ComponentTypeLibrary, Name: name, Version: version, PackageURL: url,
		Licenses: &cyclonedx.Licenses{{License: &cyclonedx.License{ID: licenseID}}}, Properties: &[]cyclonedx.Property{}}
	for _, f := range files {
		sum, file := string(f[1]), string(f[2])
		*c.Properties = append(*c.Properties, cyclonedx.Property{Name: "sha256 of " + path.Base(file), Value: sum})
		if strings.HasSuffix(file, ".LICENSE") {
			if license, err = os.ReadFile(filepath.Join(folder, filepath.FromSlash(file))); err != nil {
				return c, nil, err
			}
		}
	}
	if license == nil {
		return c, nil, fmt.Errorf("%s/VENDORED lists no license of %s", dashboardFolder, name)
	}
	return c, license, nil
}

var licenseName = regexp.MustCompile(`(?i)^(licen[cs]e|copying|notice|patents)([.-].*)?$`)

// licensesOf returns the texts of the licenses of all modules in a binary, from the module cache.
// Most licenses require that copies of a program contain their text.
func licensesOf(info *buildinfo.BuildInfo, cache string) ([]byte, error) {
	var all bytes.Buffer
	fmt.Fprintf(&all, "Penstock contains the following modules, and the standard library of Go (https://go.dev/LICENSE).\n")
	for _, m := range info.Deps {
		if isOwnModule(m.Path) {
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
			return nil, fmt.Errorf("module %s %s has no license", m.Path, m.Version)
		}
	}
	return all.Bytes(), nil
}
