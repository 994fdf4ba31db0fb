package envoyconfig

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/penstock/penstock/internal/boundedfile"
	"github.com/penstock/penstock/internal/linkedfolders"
	"github.com/penstock/penstock/internal/panicked"
)

// The bounds of a folder.
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

// readDir also returns the folders that it has read.
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

// LoadDir loads the files of a folder.
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
	// old configuration stays in force. Default: none.
	Ready func(*Config) error

	// Notify is called after every load except the first, with the error of the load or nil. If
	// polling finds the same error again, Notify is not called. The calls do not overlap. Notify must
	// not call Reload or Close. Default: none.
	Notify func(error)
}

const (
	defaultPoll   = 30 * time.Second
	defaultSettle = 50 * time.Millisecond
	maxSettles    = 20 // the longest delay of a load after a change, as a multiple of Settle
)

// A Watcher keeps a configuration up to date with its folder. If any file is invalid, the old
// configuration stays in force. Many goroutines may call its methods.
type Watcher struct {
	dir     string
	options WatchOptions
	config  atomic.Pointer[Config]
	notices *fsnotify.Watcher // nil if the system does not report changes
	stop    chan struct{}     // closed by Close
	ended   chan struct{}     // closed when run returns
	close   sync.Once

	mu       sync.Mutex        // held while loading
	lastHash [sha256.Size]byte // of the files of the last load
	lastErr  error             // of the last load
	folders  []string          // that the last load without an error has read
}

var errClosed = errors.New("envoyconfig: the watcher is closed")

// Watch loads the files of a folder, and loads them again when one changes. The folder, or a file
// in it, may be a link. If the first load fails, Watch returns its error and watches nothing.
func Watch(dir string, o WatchOptions) (*Watcher, error) {
	if o.Poll <= 0 {
		o.Poll = defaultPoll
	}
	if o.Settle <= 0 {
		o.Settle = defaultSettle
	}
	if o.Ready == nil {
		o.Ready = func(*Config) error { return nil }
	}
	if o.Notify == nil {
		o.Notify = func(error) {}
	}
	full, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	w := &Watcher{dir: full, options: o, stop: make(chan struct{}), ended: make(chan struct{})}
	if w.notices, err = fsnotify.NewWatcher(); err != nil {
		w.notices = nil // only polling finds changes
	}
	w.folders = []string{full}
	w.follow()
	if _, err := w.loadLocked(true); err != nil {
		if w.notices != nil {
			w.notices.Close()
		}
		return nil, err
	}
	w.follow()
	go w.run()
	return w, nil
}

// Config returns the configuration in force.
func (w *Watcher) Config() *Config { return w.config.Load() }

// Reload loads the files now, even if none has changed. After an error the old configuration stays
// in force.
func (w *Watcher) Reload() error {
	select {
	case <-w.stop:
		return errClosed
	default:
	}
	return w.reload(true)
}

// Close stops watching and waits until the watcher has ended. The configuration remains usable.
func (w *Watcher) Close() error {
	w.close.Do(func() { close(w.stop) })
	<-w.ended
	return nil
}

func (w *Watcher) run() {
	defer close(w.ended)
	var changed <-chan fsnotify.Event
	var missed <-chan error
	if w.notices != nil {
		defer w.notices.Close()
		changed, missed = w.notices.Events, w.notices.Errors
	}
	poll := time.NewTicker(w.options.Poll)
	defer poll.Stop()
	quiet := time.NewTimer(0) // fires immediately: the files may have changed since Watch has read them
	defer quiet.Stop()
	var firstChange time.Time // of the changes that are not loaded yet; zero if there are none
	for {
		select {
		case <-w.stop:
			return
		case <-changed:
		case <-missed: // the queue of changes was full
		case <-quiet.C:
			firstChange = time.Time{}
			w.reload(false)
			continue
		case <-poll.C:
			w.reload(false)
			continue
		}
		if firstChange.IsZero() {
			firstChange = time.Now()
		}
		// The files are read when nothing has changed for Settle. If changes continue, the files are read
		// maxSettles times Settle after the first change.
		latest := maxSettles*w.options.Settle - time.Since(firstChange)
		quiet.Reset(max(0, min(w.options.Settle, latest)))
	}
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

// loadAndNotifyLocked calls loadLocked, and then Notify if it is due.
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

// follow watches every folder on the path to the files. It ignores errors, because polling finds
// the changes. isNew reports whether it watches a folder that was not watched before.
func (w *Watcher) follow() (isNew bool) {
	if w.notices == nil {
		return false
	}
	folders := slices.Clone(w.folders)
	for _, name := range append([]string{w.dir}, w.folders...) {
		folders = append(folders, linkedfolders.Of(name)...)
		entries, _ := os.ReadDir(name)
		for _, e := range entries[:min(len(entries), maxFiles)] {
			if e.Type()&fs.ModeSymlink != 0 {
				folders = append(folders, linkedfolders.Of(filepath.Join(name, e.Name()))...)
			}
		}
	}
	slices.Sort(folders)
	folders = slices.Compact(folders)
	watched := w.notices.WatchList()
	for _, name := range folders {
		if !slices.Contains(watched, name) {
			isNew = w.notices.Add(name) == nil || isNew
		}
	}
	for _, name := range watched {
		if !slices.Contains(folders, name) {
			_ = w.notices.Remove(name)
		}
	}
	return isNew
}
