package policyfile

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/penstock/penstock/internal/panicked"
)

// loadWithBug is a loader that panics.
func loadWithBug(string) (*Policy, error) { panic("index out of range") }

func wantPanic(t *testing.T, err error) {
	t.Helper()
	var caught *panicked.Error
	if !errors.As(err, &caught) || !bytes.Contains(caught.Stack, []byte("panic")) {
		t.Fatalf("the error is %v; want a panicked.Error with its stack", err)
	}
}

func TestPanicInTheFirstLoadIsAnError(t *testing.T) {
	_, err := watch("rules.yaml", WatchOptions{}, loadWithBug, true)
	wantPanic(t, err)
}

func TestPanicInAReloadKeepsTheRules(t *testing.T) {
	path := filepath.Join(t.TempDir(), "rules.yaml")
	if err := os.WriteFile(path, []byte(version("first")), 0o600); err != nil {
		t.Fatal(err)
	}
	var broken atomic.Bool // atomic, because the watcher's own goroutine loads too
	var reports recorder
	w, err := watch(path, WatchOptions{poll: never, Notify: reports.notify}, func(path string) (*Policy, error) {
		if broken.Load() {
			return loadWithBug(path)
		}
		return load(path, Options{})
	}, true)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	broken.Store(true)
	wantPanic(t, w.Reload())
	if versionOf(w) != "first" || len(reports.all()) != 1 {
		t.Fatalf("rules %s are in force, and %d loads were reported; want the old rules and one report", versionOf(w), len(reports.all()))
	}
	wantPanic(t, reports.all()[0])
	broken.Store(false)
	if err := w.Reload(); err != nil {
		t.Fatalf("the next reload fails: %v", err)
	}
}
