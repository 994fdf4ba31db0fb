package envoyconfig

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock/internal/boundedfile"
	"github.com/penstock/penstock/internal/filewatch"
	"github.com/penstock/penstock/internal/panicked"
)

const (
	maxFiles      = 10_000
	maxFolderSize = 64 << 20 // bytes of all files
)

// ReadDir reads the files of a folder and of the folders in it, sorted by name. It omits names that
// begin with a dot. Kubernetes keeps the versions of a ConfigMap under such names.
func ReadDir(dir string) ([]File, error) {
	files, _, err := readDir(dir)
	return files, err
}

func readDir(dir string) (files []File, folders []string, err error) {
	if info, err := os.Stat(dir); err != nil {
		return nil, nil, fmt.Errorf("the folder with Envoy's rate limits: %w", err)
	} else if !info.IsDir() {
		return nil, nil, fmt.Errorf("%s is a file; name the folder that it is in", dir)
	}
	root, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return nil, nil, err
	}
	size := 0
	err = filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case name != root && strings.HasPrefix(d.Name(), "."):
			if d.IsDir() {
				return fs.SkipDir
			}
			return nil
		case d.IsDir():
			folders = append(folders, name)
			return nil
		}
		if info, err := os.Stat(name); err == nil && info.IsDir() { // a link to a folder
			return nil
		}
		if len(files) == maxFiles {
			return fmt.Errorf("%s has more than %d files; use fewer", dir, maxFiles)
		}
		content, err := boundedfile.Read(name, maxFileSize)
		if err != nil {
			return err
		}
		if size += len(content); size > maxFolderSize {
			return fmt.Errorf("the files of %s have more than %d MB together; use fewer", dir, maxFolderSize>>20)
		}
		files = append(files, File{filepath.Join(dir, strings.TrimPrefix(name, root)), content})
		return nil
	})
	return files, folders, err
}

func LoadDir(dir string, o Options) (*Config, error) {
	files, err := ReadDir(dir)
	if err != nil {
		return nil, err
	}
	return Load(files, o)
}

// WatchOptions configure Watch. The zero value is useful.
type WatchOptions struct {
	Options

	// Poll is how often the files are read and compared. It finds changes that the system does not
	// report. Default: 30s.
	Poll time.Duration

	// Settle is the quiet time after a change before the files are read. If changes continue, the
	// files are read after 20 times Settle. Default: 50ms.
	Settle time.Duration

	// Ready is called with each configuration before it takes effect. If Ready returns an error, the
	// old configuration stays in force.
	Ready func(*Config) error

	// Notify is called after every load except the first, with the error of the load or nil. If
	// polling finds the same error again, Notify is not called. The calls do not overlap. Notify must
	// not call Reload or Close.
	Notify func(error)
}

// A Watcher keeps a configuration up to date with its folder. If any file is invalid, the old
// configuration stays in force. Many goroutines may call its methods.
type Watcher struct {
	dir     string
	options WatchOptions
	config  atomic.Pointer[Config]
	changes *filewatch.Watcher

	mu       sync.Mutex        // held while loading
	lastHash [sha256.Size]byte // of the files of the last load
	lastErr  error             // of the last load
	folders  []string          // that the last load without an error has read
}

var errClosed = errors.New("envoyconfig: the watcher is closed")

// Watch loads the files of a folder, and loads them again when one changes. The folder, or a file
// in it, may be a link. If the first load fails, Watch returns its error and watches nothing.
func Watch(dir string, o WatchOptions) (*Watcher, error) {
	full, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	w := &Watcher{dir: full, options: o, folders: []string{full}, changes: filewatch.New(filewatch.Options{Poll: o.Poll, Quiet: o.Settle})}
	w.follow()
	if _, err := w.loadLocked(true); err != nil {
		w.changes.Close()
		return nil, err
	}
	w.follow()
	w.changes.Start(func() { w.reload(false) })
	return w, nil
}

// Config returns the configuration in force.
func (w *Watcher) Config() *Config { return w.config.Load() }

// Reload loads the files now, even if none has changed. After an error the old configuration stays.
func (w *Watcher) Reload() error {
	if w.changes.IsClosed() {
		return errClosed
	}
	return w.reload(true)
}

// Close stops watching and waits until the watcher has ended. The configuration remains usable.
func (w *Watcher) Close() error {
	w.changes.Close()
	return nil
}

// reload loads the files if one has changed, or if isForced is true.
func (w *Watcher) reload(isForced bool) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.follow()
	err := w.loadAndNotifyLocked(isForced)
	for n := 0; w.follow() && n < maxRereads; n++ {
		err = w.loadAndNotifyLocked(false) // files of a new folder may have changed before it was watched
	}
	return err
}

// maxRereads is how often a reload reads the files again because it has found new folders. Polling
// finds later changes.
const maxRereads = 3

func (w *Watcher) loadAndNotifyLocked(isForced bool) error {
	previous := w.lastErr
	isNew, err := w.loadLocked(isForced)
	isRepeated := !isForced && err != nil && previous != nil && err.Error() == previous.Error()
	if isNew && !isRepeated {
		defer panicked.Recover("the result of a reload is reported")
		w.options.Notify(err)
	}
	return err
}

// loadLocked loads the files if they have changed since the last load, or if isForced is true.
// isNew reports whether it has loaded them.
func (w *Watcher) loadLocked(isForced bool) (isNew bool, err error) {
	files, folders, err := readDir(w.dir)
	if err == nil {
		w.folders = folders
	}
	h := sha256.New()
	fmt.Fprintf(h, "%v\n", err)
	for _, f := range files {
		fmt.Fprintf(h, "%q %d\n", f.Name, len(f.Content))
		h.Write(f.Content)
	}
	hash := [sha256.Size]byte(h.Sum(nil))
	if !isForced && hash == w.lastHash {
		return false, w.lastErr
	}
	w.lastHash = hash
	if err == nil {
		err = w.apply(files)
	}
	w.lastErr = err
	return true, err
}

// apply puts the configuration of the files in force, unless Load or Ready returns an error.
func (w *Watcher) apply(files []File) error {
	c, err := Load(files, w.options.Options)
	if err != nil {
		return err
	}
	_, err = panicked.Try("use a configuration of Envoy's rate limits", func() (struct{}, error) { return struct{}{}, w.options.Ready(c) })
	if err != nil {
		return err
	}
	w.config.Store(c)
	return nil
}

// follow watches every folder on the path to the files. isNew reports whether it watches a folder
// that was not watched before.
func (w *Watcher) follow() (isNew bool) {
	paths := append([]string{w.dir}, w.folders...)
	for _, folder := range paths {
		entries, _ := os.ReadDir(folder)
		for _, e := range entries[:min(len(entries), maxFiles)] {
			if e.Type()&fs.ModeSymlink != 0 {
				paths = append(paths, filepath.Join(folder, e.Name()))
			}
		}
	}
	return w.changes.Follow(paths, w.folders...)
}
