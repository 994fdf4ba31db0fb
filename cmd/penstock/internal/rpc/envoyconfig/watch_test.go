package envoyconfig_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/cmd/penstock/internal/rpc/envoyconfig"
)

const oneLimit = "domain: a\ndescriptors: [{key: k, rate_limit: {unit: day, requests_per_unit: 1}}]"

func write(t *testing.T, name, content string) {
	t.Helper()
	if err := os.WriteFile(name, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

// watch watches a folder until the test ends. It returns the watcher, and a channel with the result
// of each reload.
func watch(t *testing.T, dir string) (*envoyconfig.Watcher, <-chan error) {
	t.Helper()
	results := make(chan error, 100)
	w, err := watchFolder(dir, envoyconfig.WatchOptions{Poll: time.Hour, Settle: 5 * time.Millisecond, Notify: func(err error) { results <- err }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.Close() })
	return w, results
}

// await waits for reloads until the configuration has this number of limits.
func await(t *testing.T, w *envoyconfig.Watcher, results <-chan error, limits int) {
	t.Helper()
	timeout := time.After(time.Minute)
	for len(w.Config().Limits()) != limits {
		select {
		case <-results:
		case <-timeout:
			t.Fatalf("after a minute there are %d limits; want %d", len(w.Config().Limits()), limits)
		}
	}
}

func TestChangesOfAFolderTakeEffect(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "a.yaml"), oneLimit)
	w, results := watch(t, dir)
	await(t, w, results, 1)

	other := strings.Replace(oneLimit, "domain: a", "domain: b", 1)
	write(t, filepath.Join(dir, "b.yaml"), other)
	await(t, w, results, 2)

	write(t, filepath.Join(dir, "b.yaml"), "domain: a")
	for err := error(nil); err == nil; {
		select {
		case err = <-results:
		case <-time.After(time.Minute):
			t.Fatal("Notify was not called with an error within a minute; want the error of the invalid file")
		}
	}
	if n := len(w.Config().Limits()); n != 2 {
		t.Errorf("after an invalid file there are %d limits; want the 2 limits from before", n)
	}
	if err := os.Remove(filepath.Join(dir, "b.yaml")); err != nil {
		t.Fatal(err)
	}
	await(t, w, results, 1)

	if err := os.MkdirAll(filepath.Join(dir, "more"), 0o755); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "more", "c.yaml"), other)
	await(t, w, results, 2)
}

// Kubernetes updates a ConfigMap by replacing one link: the files are links to ..data/NAME, and
// ..data is a link to the folder of one version.
func TestSwappedLinksTakeEffect(t *testing.T) {
	dir := t.TempDir()
	twoLimits := strings.Replace(oneLimit, "}}]", "}}, {key: l, rate_limit: {unit: day, requests_per_unit: 1}}]", 1)
	for version, content := range map[string]string{"..1": oneLimit, "..2": twoLimits} {
		if err := os.Mkdir(filepath.Join(dir, version), 0o755); err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(dir, version, "a.yaml"), content)
	}
	// link makes a symbolic link with a name, or replaces it in one step.
	link := func(name, target string) {
		t.Helper()
		if err := os.Symlink(target, name+".new"); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(name+".new", name); err != nil {
			t.Fatal(err)
		}
	}
	link(filepath.Join(dir, "..data"), "..1")
	link(filepath.Join(dir, "a.yaml"), filepath.Join("..data", "a.yaml"))
	w, results := watch(t, dir)
	await(t, w, results, 1)
	link(filepath.Join(dir, "..data"), "..2")
	await(t, w, results, 2)

	// The whole folder may be a link too.
	current := filepath.Join(t.TempDir(), "current")
	other := t.TempDir()
	link(current, dir)
	w, results = watch(t, current)
	await(t, w, results, 2)
	write(t, filepath.Join(other, "a.yaml"), oneLimit)
	link(current, other)
	await(t, w, results, 1)
}

func TestReloadLoadsUnchangedFiles(t *testing.T) {
	dir := t.TempDir()
	if _, err := watchFolder(filepath.Join(dir, "none"), envoyconfig.WatchOptions{}); err == nil {
		t.Error("Watch of a missing folder returns no error; want one")
	}
	write(t, filepath.Join(dir, "a.yaml"), "domain: a\nfoo: bar")
	if _, err := watchFolder(dir, envoyconfig.WatchOptions{}); err == nil || !strings.Contains(err.Error(), filepath.Join(dir, "a.yaml")+":2: unknown key 'foo'") {
		t.Errorf("for an invalid file the error is %v; want one with the file and the line", err)
	}
	if _, err := watchFolder(filepath.Join(dir, "a.yaml"), envoyconfig.WatchOptions{}); err == nil || !strings.Contains(err.Error(), "is a file") {
		t.Errorf("for a file instead of a folder the error is %v; want that it is a file", err)
	}
	write(t, filepath.Join(dir, "a.yaml"), oneLimit)
	loads := 0
	w, err := watchFolder(dir, envoyconfig.WatchOptions{Poll: time.Hour, Ready: func(*envoyconfig.Config) error { loads++; return nil }})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Reload(); err != nil || loads != 2 {
		t.Errorf("Reload returns %v, and there were %d loads; want nil and 2 loads, by Watch and by Reload", err, loads)
	}
	w.Close()
	if err := w.Reload(); err == nil {
		t.Error("Reload after Close returns no error; want one")
	}
}

// watchFolder calls Watch. The functions that o lacks do nothing.
func watchFolder(dir string, o envoyconfig.WatchOptions) (*envoyconfig.Watcher, error) {
	if o.Ready == nil {
		o.Ready = func(*envoyconfig.Config) error { return nil }
	}
	if o.Notify == nil {
		o.Notify = func(error) {}
	}
	return envoyconfig.Watch(dir, o)
}
