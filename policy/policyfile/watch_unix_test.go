//go:build unix

package policyfile

import (
	"os"
	"strings"
	"syscall"
	"testing"
)

// A listed file may be replaced by one that blocks readers, as /proc/kmsg does. A load then fails,
// and the next one works.
func TestFileThatBlocksDoesNotStopReloads(t *testing.T) {
	t.Parallel()
	kinds := map[string]func(name string) error{
		"is not a regular file": func(name string) error { return syscall.Mkfifo(name, 0o600) },
	}
	// Only root may read kmsg, and some systems forbid it to root.
	if file, err := os.OpenFile("/proc/kmsg", os.O_RDONLY|syscall.O_NONBLOCK, 0); err == nil {
		file.Close()
		kinds["does not end within"] = func(name string) error { return os.Symlink("/proc/kmsg", name) }
	}
	for want, block := range kinds {
		dir := t.TempDir()
		write(t, dir+"/bad.txt", "192.0.2.1\n")
		write(t, dir+"/p.yaml", version("v1")+"deny:\n  ip: {file: bad.txt}\n")
		w := newWatcher(t, dir+"/p.yaml", never, WatchOptions{}, loadPlain)
		must(t, block(dir+"/new"))
		must(t, os.Rename(dir+"/new", dir+"/bad.txt"))
		if err := w.Reload(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("a reload returns %v; want that the file %s", err, want)
		}
		replace(t, dir+"/bad.txt", "192.0.2.2\n")
		replace(t, dir+"/p.yaml", version("v2")+"deny:\n  ip: {file: bad.txt}\n")
		if err := w.Reload(); err != nil || versionOf(w) != "v2" {
			t.Errorf("after the file %s, a reload returns %v, and %s is in force; want v2", want, err, versionOf(w))
		}
	}
}
