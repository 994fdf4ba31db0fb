package main

import (
	"archive/zip"
	"bytes"
	"debug/buildinfo"
	"encoding/json"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestProxyHasTheModulesThatTheMakefileTags also checks that no module requires a later one.
func TestProxyHasTheModulesThatTheMakefileTags(t *testing.T) {
	makefile, err := os.ReadFile("../../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	listed := strings.Fields(string(regexp.MustCompile(`(?m)^tagged = (.*)$`).FindSubmatch(makefile)[1]))
	want := append([]string{"."}, listed...)
	if !slices.Equal(tagged, want) {
		t.Errorf("the list tagged is %q; want that of the Makefile, %q", tagged, want)
	}
	for i, dir := range tagged {
		mod, err := os.ReadFile(filepath.Join("../..", dir, "go.mod"))
		if err != nil {
			t.Fatal(err)
		}
		for _, later := range tagged[i:] {
			if later != "." && strings.Contains(string(mod), "\t"+root+"/"+later+" v") {
				t.Errorf("%s requires %s, which is tagged later", dir, later)
			}
		}
	}
}

func TestProxyServesWhatGitWouldTag(t *testing.T) {
	t.Parallel()
	tree, proxy := filepath.Join(t.TempDir(), "tree"), t.TempDir()
	// The proxy serves a checkout, because the repository's folder may have files that make built.
	if _, err := checkout("../..", "v0.9.8-rc.1", tree); err != nil {
		t.Fatal(err)
	}
	if err := writeProxy(tree, proxy, moduleVersions("v0.9.8"), time.Unix(0, 0)); err != nil {
		t.Fatal(err)
	}
	for _, dir := range tagged {
		prefix := strings.TrimSuffix(root+"/"+strings.TrimPrefix(dir, "."), "/")
		archive, err := zip.OpenReader(filepath.Join(proxy, prefix, "@v", "v0.9.8.zip"))
		if err != nil {
			t.Fatal(err)
		}
		defer archive.Close()
		var names []string
		for _, f := range archive.File {
			name, isInside := strings.CutPrefix(f.Name, prefix+"@v0.9.8/")
			if !isInside {
				t.Errorf("%s has the file %s; want only files in %s@v0.9.8", dir, f.Name, prefix)
			}
			names = append(names, name)
		}
		for _, want := range []string{"go.mod", "LICENSE"} {
			if !slices.Contains(names, want) {
				t.Errorf("%s has no %s", dir, want)
			}
		}
		isOfCommand := func(name string) bool { return strings.HasPrefix(name, "cmd/penstock/") }
		if dir == "." && slices.ContainsFunc(names, isOfCommand) {
			t.Error("the root module has files of cmd/penstock, which is another module")
		}
	}
}

func TestModulesWithReplaceAreNotTagged(t *testing.T) {
	err := addToProxy("../..", "scripts", []string{"v0.9.8"}, t.TempDir(), time.Unix(0, 0))
	if err == nil || !strings.Contains(err.Error(), "replace") {
		t.Errorf("addToProxy of a module with a replace directive returns the error %v; want one about replace", err)
	}
}

// TestVersionComesFromTheTag also checks that a release has no uncommitted changes.
func TestVersionComesFromTheTag(t *testing.T) {
	repository := t.TempDir()
	git := func(args ...string) {
		t.Helper()
		c := exec.Command("git", append([]string{"-C", repository, "-c", "user.name=t", "-c", "user.email=t@localhost"}, args...)...)
		c.Env = append(os.Environ(), "GIT_COMMITTER_DATE=2026-11-30T12:00:00Z")
		if out, err := c.CombinedOutput(); err != nil {
			t.Fatalf("git %s: %v: %s", args, err, out)
		}
	}
	name := filepath.Join(repository, "cmd", "penstock", "go.mod")
	if err := writeFile(name, strings.NewReader("module "+program+"\n\nrequire "+root+" v0.1.0\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	git("init", "-q")
	git("add", "-A")
	git("commit", "-q", "-m", "one")
	if err := writeFile(filepath.Join(repository, "uncommitted"), strings.NewReader(""), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		tag   string // to add to the commit; "": none
		given string // the argument -version
		want  string // beginning of the expected version
		fails string // part of the expected error; "": no error
	}{
		{want: "v0.1.0-dev.g"},
		{given: "v0.1.0-rc.1", want: "v0.1.0-rc.1"},
		{given: "0.1.0", fails: "does not have the form"},
		{given: "v0.2.0", fails: "requires github.com/penstock/penstock v0.1.0"},
		{tag: "v1", want: "v0.1.0-dev.g"},
		{tag: "v0.1.0", want: "v0.1.0"},
	} {
		if c.tag != "" {
			git("tag", c.tag)
		}
		tree := filepath.Join(t.TempDir(), "tree")
		r, err := checkout(repository, c.given, tree)
		switch {
		case c.fails != "":
			if err == nil || !strings.Contains(err.Error(), c.fails) {
				t.Errorf("version %q: the error is %v; want one that contains %q", c.given, err, c.fails)
			}
		case err != nil:
			t.Errorf("version %q, tag %q: the error is %v; want the version %s", c.given, c.tag, err, c.want)
		case !strings.HasPrefix(r.version, c.want), len(r.commit) != 40, r.date.Format(time.RFC3339) != "2026-11-30T12:00:00Z":
			t.Errorf("version %q, tag %q: the release is %+v; want a version that begins with %s, a commit of 40 digits, and the date 2026-11-30T12:00:00Z", c.given, c.tag, r, c.want)
		}
		if _, err := os.Stat(filepath.Join(tree, "uncommitted")); err == nil {
			t.Error("the release contains an uncommitted file")
		}
	}
}

func TestArchivesDependOnTheirFilesOnly(t *testing.T) {
	date := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	dir := t.TempDir()
	program := filepath.Join(dir, "penstock")
	if err := os.WriteFile(program, []byte("program"), 0o600); err != nil {
		t.Fatal(err)
	}
	files := fileSet{"penstock": {path: program, mode: 0o755}, "doc/a": {text: []byte("a")}}
	pack := func(name string) []byte {
		path := filepath.Join(dir, name)
		write := files.writeTarGz
		if strings.HasSuffix(name, ".zip") {
			write = files.writeZip
		}
		err := write(path, "top", date)
		if err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	first, firstZip := pack("1.tar.gz"), pack("1.zip")
	if err := os.Chtimes(program, date, date.AddDate(1, 0, 0)); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(pack("2.tar.gz"), first) || !bytes.Equal(pack("2.zip"), firstZip) {
		t.Error("an archive changed with the time of a file; want equal archives of files with equal content")
	}
	out, err := exec.Command("tar", "--numeric-owner", "-tvzf", filepath.Join(dir, "1.tar.gz")).Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"-rwxr-xr-x 0/0 ", " top/penstock", "-rw-r--r-- 0/0 "} {
		if !strings.Contains(string(out), want) {
			t.Errorf("tar lists %q; want a list that contains %q", out, want)
		}
	}
	if err := writeChecksums(dir); err != nil {
		t.Fatal(err)
	}
	c := exec.Command("sha256sum", "--check", "--strict", "checksums.txt")
	c.Dir = dir
	if out, err := c.CombinedOutput(); err != nil || strings.Count(string(out), ": OK") != 5 {
		t.Errorf("sha256sum --check: %v: %s; want OK for the program and the 4 archives", err, out)
	}
}

func TestComponentsAreTheModulesOfTheBinary(t *testing.T) {
	info := &buildinfo.BuildInfo{GoVersion: "go1.26.8", Deps: []*debug.Module{{Path: "example.org/a", Version: "v1.2.3", Sum: "h1:abc="}}}
	embedded, license, err := embeddedIn("../..")
	if err != nil || !strings.Contains(string(license), "MIT License") {
		t.Fatalf("the license of the dashboard's npm package is %.100q, error %v; want the MIT License", license, err)
	}
	text, err := componentsOf(info, "v0.1.0", embedded)
	if err != nil {
		t.Fatal(err)
	}
	var bom struct {
		BOMFormat    string
		SerialNumber string
		Metadata     struct {
			Timestamp string
			Component struct{ PURL string }
		}
		Components []struct {
			PURL     string
			Licenses []struct{ License struct{ ID string } }
		}
	}
	if err := json.Unmarshal(text, &bom); err != nil {
		t.Fatal(err)
	}
	if bom.BOMFormat != "CycloneDX" || bom.Metadata.Component.PURL != "pkg:golang/"+program+"@v0.1.0" || len(bom.Components) != 3 {
		t.Fatalf("the list is not one of CycloneDX for %s with 3 components: %s", program, text)
	}
	stdlib, module, script := bom.Components[0], bom.Components[1], bom.Components[2]
	if stdlib.PURL != "pkg:golang/stdlib@go1.26.8" || module.PURL != "pkg:golang/example.org/a@v1.2.3" || !strings.HasPrefix(script.PURL, "pkg:npm/uplot@1.") {
		t.Errorf("the components are %q, %q and %q; want stdlib, example.org/a and uplot, with their versions", stdlib.PURL, module.PURL, script.PURL)
	}
	if script.Licenses[0].License.ID != "MIT" {
		t.Errorf("the license of uplot is %q; want MIT", script.Licenses[0].License.ID)
	}
	if bom.SerialNumber != "" || bom.Metadata.Timestamp != "" {
		t.Errorf("the list has the serial number %q and the time %q; want neither, so that equal builds have equal lists", bom.SerialNumber, bom.Metadata.Timestamp)
	}
}

func TestModulesMustHaveTheSumsOfGoSum(t *testing.T) {
	name := filepath.Join(t.TempDir(), "go.sum")
	if err := os.WriteFile(name, []byte("example.org/a v1.2.3 h1:abc=\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	module := debug.Module{Path: "example.org/a", Version: "v1.2.3", Sum: "h1:abc="}
	info := &buildinfo.BuildInfo{Deps: []*debug.Module{&module, {Path: root, Version: "v0.1.0", Sum: "h1:xyz="}}}
	if err := checkSums(info, name, false); err != nil {
		t.Errorf("checkSums of a development version: %v; want no error", err)
	}
	if checkSums(info, name, true) == nil {
		t.Error("checkSums returns no error for a root module that go.sum does not have")
	}
	module.Sum = "h1:abd="
	if checkSums(info, name, false) == nil {
		t.Error("checkSums returns no error for a module with changed files")
	}
}

// TestPreparedModulesHaveTheSumsOfTheirTags compares the sums in go.sum with the modules that a
// proxy of the prepared tree serves.
func TestPreparedModulesHaveTheSumsOfTheirTags(t *testing.T) {
	tree := t.TempDir()
	for _, dir := range tagged {
		for name, text := range map[string]string{
			"go.mod":  "module " + path.Join(root, dir) + "\n",
			"go.sum":  "example.org/a v1.2.3 h1:abc=\n" + root + " v0.0.1 h1:old=\n",
			"LICENSE": "a",
		} {
			if name == "go.mod" && dir != "." {
				text += "\nrequire " + root + " v0.0.1\n"
			}
			if err := writeFile(filepath.Join(tree, dir, name), strings.NewReader(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, file := range versioned {
		text, err := os.Open(filepath.Join("../..", file.path))
		if err != nil {
			t.Fatal(err)
		}
		defer text.Close()
		if err := writeFile(filepath.Join(tree, file.path), text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	const version = "v0.9.8"
	if err := prepare(tree, version); err != nil {
		t.Fatal(err)
	}
	if required, err := requiredVersion(tree); err != nil || required != version {
		t.Errorf("cmd/penstock requires the version %q (error %v); want %s", required, err, version)
	}
	proxy := t.TempDir()
	if err := writeProxy(tree, proxy, moduleVersions(version), time.Unix(0, 0)); err != nil {
		t.Fatal(err)
	}
	want, err := sumsOf(filepath.Join(proxy, root, "@v"), root, version)
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range tagged[1:] {
		sum, err := os.ReadFile(filepath.Join(tree, dir, "go.sum"))
		if err != nil {
			t.Fatal(err)
		}
		if string(sum) != "example.org/a v1.2.3 h1:abc=\n"+want {
			t.Errorf("%s/go.sum is\n%s\nwant the sum of example.org/a and the sums of the root module:\n%s", dir, sum, want)
		}
	}
	const last = "cmd/penstock/go.sum"
	before, _ := os.ReadFile(filepath.Join(tree, last))
	err = prepare(tree, version)
	if err != nil {
		t.Fatal(err)
	}
	if after, _ := os.ReadFile(filepath.Join(tree, last)); !bytes.Equal(after, before) {
		t.Errorf("the second prepare changes %s to\n%s\nfrom\n%s", last, after, before)
	}
}

// TestPreparedDeploymentsNameTheVersion also checks that no line keeps the old version.
func TestPreparedDeploymentsNameTheVersion(t *testing.T) {
	tree := t.TempDir()
	old := ""
	for _, file := range versioned {
		text, err := os.ReadFile(filepath.Join("../..", file.path))
		if err != nil {
			t.Fatal(err)
		}
		if m := regexp.MustCompile(`(?m)^appVersion: (.*)$`).FindSubmatch(text); m != nil {
			old = string(m[1])
		}
		if err := writeFile(filepath.Join(tree, file.path), bytes.NewReader(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := setVersions(tree, "v0.9.8-rc.1"); err != nil {
		t.Fatal(err)
	}
	for _, file := range versioned {
		before, err := os.ReadFile(filepath.Join("../..", file.path))
		if err != nil {
			t.Fatal(err)
		}
		after, err := os.ReadFile(filepath.Join(tree, file.path))
		if err != nil {
			t.Fatal(err)
		}
		if want := strings.ReplaceAll(string(before), old, "0.9.8-rc.1"); string(after) != want {
			t.Errorf("%s is\n%s\nwant\n%s", file.path, after, want)
		}
	}
	if err := os.WriteFile(filepath.Join(tree, versioned[0].path), []byte("name: penstock\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := setVersions(tree, "v0.9.9"); err == nil || !strings.Contains(err.Error(), versioned[0].path) {
		t.Errorf("setVersions with %s without a version returns the error %v; want one that names the file", versioned[0].path, err)
	}
}

func TestTagsNameTheFoldersOfTheirModules(t *testing.T) {
	names := tags("v0.1.0")
	if names[0] != "v0.1.0" || names[len(names)-1] != "cmd/penstock/v0.1.0" {
		t.Errorf("the tags are %q; want v0.1.0 first and cmd/penstock/v0.1.0 last", names)
	}
}
