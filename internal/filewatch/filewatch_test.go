package filewatch

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestSettlingIsBounded(t *testing.T) {
	t.Parallel()
	o := Options{Quiet: 50 * time.Millisecond}
	// Keys and values are milliseconds.
	for elapsed, want := range map[time.Duration]time.Duration{0: 50, 500: 50, 950: 50, 960: 40, 999: 1, 1000: 0, 5000: 0} {
		if got := o.waitFor(elapsed * time.Millisecond); got != want*time.Millisecond {
			t.Errorf("%d ms after the first change: waitFor returns %v; want %d ms", elapsed, got, want)
		}
	}
}

func TestFoldersThatLeadToAFile(t *testing.T) {
	t.Parallel()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	must(t, err)
	for _, name := range []string{"a/b", "c", "k/..1"} {
		must(t, os.MkdirAll(filepath.Join(dir, name), 0o700))
	}
	must(t, os.WriteFile(dir+"/a/b/file", nil, 0o600))
	must(t, os.WriteFile(dir+"/k/..1/file", nil, 0o600))
	for name, target := range map[string]string{"c/up": "../a/b/../b/file", "c/abs": dir + "/a/b/file", "c/dir": "../a", "k/..data": "..1", "k/file": "..data/file",
		"loop": "loop", "c/lost": "../gone/file", "c/twice": "up", "c/slash": "../a//b/"} {
		must(t, os.Symlink(target, filepath.Join(dir, name)))
	}
	const maxLinks = 40
	for name, want := range map[string]string{ // the folders, separated by spaces
		"a/b/file": "a/b", "a/b/absent": "a/b", "a/absent/x/file": "a", "c/up": "c a/b", "c/abs": "c a/b", "c/dir/b/file": "c a/b", "k/file": "k k k/..1",
		"c/lost": "c .", "c/twice": "c c a/b", "c/slash/file": "c a/b", "loop": strings.TrimSpace(strings.Repeat(". ", maxLinks)), "a/b/file/x": "a/b/file",
	} {
		var got []string
		for _, folder := range foldersOf(filepath.Join(dir, name)) {
			relative, err := filepath.Rel(dir, folder)
			must(t, err)
			got = append(got, relative)
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%s: the folders are %q; want %q", name, got, want)
		}
	}
}
