package envoyconfig

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/penstock/penstock/internal/filewatch"
)

// A file can come into a new folder after the folder was read, and before it is watched. Ready is
// called between the two.
func TestFilesOfANewFolderAreNotMissed(t *testing.T) {
	const oneLimit = "descriptors: [{key: k, rate_limit: {unit: day, requests_per_unit: 1}}]"
	dir := t.TempDir()
	folder := filepath.Join(dir, "more")
	if err := os.Mkdir(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "a.yaml"), []byte("domain: a\n"+oneLimit), 0o644); err != nil {
		t.Fatal(err)
	}
	changes := filewatch.New(filewatch.Options{})
	defer changes.Close()
	w := &Watcher{dir: dir, changes: changes, folders: []string{dir}, options: WatchOptions{
		Ready: func(*Config) error {
			return os.WriteFile(filepath.Join(folder, "b.yaml"), []byte("domain: b\n"+oneLimit), 0o644)
		},
		Notify: func(error) {},
	}}
	if err := w.reload(true); err != nil {
		t.Fatal(err)
	}
	if n := len(w.Config().Limits()); n != 2 {
		t.Errorf("there are %d limits; want 2, one of each file", n)
	}
}
