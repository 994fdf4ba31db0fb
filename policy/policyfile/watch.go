package policyfile

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/penstock/penstock/internal/linkedfolders"
	"github.com/penstock/penstock/internal/panicked"
	"github.com/penstock/penstock/policy"
)

// A Watcher keeps Rules up to date with their file and the files that it names. The Rules always
// come from one complete load. A file that is missing or has a mistake changes nothing. Many
// goroutines may call its methods.
//
// To change a policy, write the new text into another file, and rename that file to the name of the
// policy, as editors and Kubernetes do. If you write into the policy file itself, a load may read a
// half written file, and half a policy can be valid.
type Watcher struct {
	path    string
	options WatchOptions
	load    func(path string) (*Policy, error)
	policy  atomic.Pointer[Policy]

	folderWatcher *fsnotify.Watcher // nil if the system has none
	stop          chan struct{}
	ended         chan struct{}

	mu              sync.Mutex  // held while loading
	files           []string    // absolute names of the files of the rules, sorted
	lastFingerprint fingerprint // of files, before they were last loaded
	lastErr         error       // of the last load
	isClosed        bool
}

// WatchOptions configure Watch.
type WatchOptions struct {
	Options

	// Poll is how often the files are read and compared. Polls find changes that the system does not
	// report (network file systems, folders that were missing). A file with a mistake is loaded again
	// at each poll. Default: 30s.
	Poll time.Duration

	// Settle is how long the files must stay unchanged before they are read. If they keep changing,
	// they are read after 20 times this time. Default: 50ms.
	Settle time.Duration

	// Ready is called with each policy that was loaded, also the first. The policy takes effect when
	// Ready returns, so Ready must return soon. Default: none.
	Ready func(*Policy)

	// Notify is called after every load except the first, with nil, or with the reason why the old
	// rules stay in force. If the files did not change, and a poll finds the same error again, it is
	// not called. The calls do not overlap. Notify must not call Reload or Close. Default: none.
	Notify func(error)

	// Keys is called after each read of tokens.jwks_url, with its error or nil. Calls may overlap.
	// Default: none.
	Keys func(error)
}

const (
	defaultPoll     = 30 * time.Second
	defaultSettle   = 50 * time.Millisecond
	maxSettleFactor = 20 // a load waits at most this number times Settle
	loadTries       = 5  // how many times a load reads files that change during the load
)

var errWatcherClosed = errors.New("policy: the watcher is closed")

// Watch loads the rules of a file. It loads the rules again when this file changes, or a file that
// this file names. If the first load fails, Watch returns its error and watches nothing. Close ends
// the Watcher.
func Watch(path string, o WatchOptions) (*Watcher, error) {
	folderWatcher, err := fsnotify.NewWatcher()
	if err != nil {
		folderWatcher = nil // the system has no watches left, and polling finds changes
	}
	return watch(path, o, func(path string) (*Policy, error) { return load(path, o.Options) }, folderWatcher)
}

func watch(path string, o WatchOptions, load func(string) (*Policy, error), folderWatcher *fsnotify.Watcher) (*Watcher, error) {
	if o.Poll <= 0 {
		o.Poll = defaultPoll
	}
	if o.Settle <= 0 {
		o.Settle = defaultSettle
	}
	if o.Ready == nil {
		o.Ready = func(*Policy) {}
	}
	if o.Notify == nil {
		o.Notify = func(error) {}
	}
	w := &Watcher{path: path, options: o, load: load, folderWatcher: folderWatcher, stop: make(chan struct{}), ended: make(chan struct{})}
	w.files = absolute([]string{path})
	if err := w.loadLocked(); err != nil {
		if folderWatcher != nil {
			_ = folderWatcher.Close()
		}
		return nil, err
	}
	go w.run()
	return w, nil
}

// Policy returns the policy in force.
func (w *Watcher) Policy() *Policy { return w.policy.Load() }

// Rules returns the rules in force. Rules is fast enough to be called for each request.
func (w *Watcher) Rules() *policy.Rules { return w.policy.Load().Rules }

// Reload loads the file now, like SIGHUP, even if it did not change. After an error the rules stay.
func (w *Watcher) Reload() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.isClosed {
		return errWatcherClosed
	}
	err := w.loadLocked()
	w.reportLocked(err)
	return err
}

// Close stops watching, and stops reading keys. It returns when both activities have ended. The
// Rules keep working.
func (w *Watcher) Close() error {
	w.mu.Lock()
	isFirst := !w.isClosed
	w.isClosed = true
	w.mu.Unlock()
	if isFirst {
		close(w.stop)
	}
	<-w.ended
	return nil
}

// run waits for changes until the Watcher is closed.
func (w *Watcher) run() {
	defer close(w.ended)
	defer func() { w.Policy().Close() }()
	var changed <-chan fsnotify.Event
	var missed <-chan error
	if w.folderWatcher != nil {
		defer w.folderWatcher.Close()
		changed, missed = w.folderWatcher.Events, w.folderWatcher.Errors
	}
	poll := time.NewTicker(w.options.Poll)
	defer poll.Stop()
	// quiet fires when no further change has come for a while. The first time it fires immediately,
	// because the files may have changed since the first load.
	quiet := time.NewTimer(0)
	defer quiet.Stop()
	var firstChange time.Time // the first change that was not loaded yet; zero: there is none
	for {
		select {
		case <-w.stop:
			return
		case <-changed:
		case <-missed: // there were more changes than the system can queue
		case <-quiet.C:
			firstChange = time.Time{}
			w.loadIfChanged()
			continue
		case <-poll.C:
			w.loadIfChanged()
			continue
		}
		if firstChange.IsZero() {
			firstChange = time.Now()
		}
		quiet.Reset(w.options.waitFor(time.Since(firstChange)))
	}
}

// waitFor returns how long to wait for further changes. elapsed is the time since the first change
// that was not loaded yet.
func (o WatchOptions) waitFor(elapsed time.Duration) time.Duration {
	return max(0, min(o.Settle, maxSettleFactor*o.Settle-elapsed))
}

// loadIfChanged loads the file if a file of the policy has changed. It also loads the file if the
// last load failed, because the cause may be outside the files.
func (w *Watcher) loadIfChanged() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.isClosed {
		return
	}
	w.watchFoldersLocked()
	isSame := fingerprintOf(w.files) == w.lastFingerprint
	if isSame && w.lastErr == nil {
		return
	}
	previousErr := w.lastErr
	err := w.loadLocked()
	if isSame && err != nil && err.Error() == previousErr.Error() {
		return
	}
	w.reportLocked(err)
}

// reportLocked calls Notify with the result of a load.
func (w *Watcher) reportLocked(err error) {
	defer panicked.Recover("reporting a reload")
	w.options.Notify(err)
}

// loadLocked loads the file. It uses the new rules only if none of their files changed during the
// load.
func (w *Watcher) loadLocked() error {
	w.lastErr = fmt.Errorf("the files changed during each of %d loads; they are loaded again soon; change them less often, and if a file is written in place, write it under another name, and rename it", loadTries)
	for range loadTries {
		w.watchFoldersLocked()
		w.lastFingerprint = fingerprintOf(w.files)
		p, err := panicked.Try("policy: load "+w.path, func() (*Policy, error) { return w.load(w.path) })
		if err != nil {
			w.lastErr = err
			if fingerprintOf(w.files) == w.lastFingerprint {
				break
			}
			continue
		}
		if files := absolute(p.Files); !slices.Equal(files, w.files) || fingerprintOf(files) != w.lastFingerprint {
			w.files = files // the next try compares these
			p.Close()
			continue
		}
		p.Start(w.options.Keys)
		callReady := func() (struct{}, error) {
			w.options.Ready(p)
			return struct{}{}, nil
		}
		if _, w.lastErr = panicked.Try("policy: call Ready", callReady); w.lastErr != nil {
			p.Close()
			break
		}
		if old := w.policy.Swap(p); old != nil {
			old.Close()
		}
		return nil
	}
	return w.lastErr
}

// watchFoldersLocked watches every folder on the path to the files, also through symbolic links, as
// far as the system allows. The links may change at the same time. So it repeats this until a round
// adds no folder and finds all folders.
func (w *Watcher) watchFoldersLocked() {
	if w.folderWatcher == nil {
		return
	}
	var folders []string
	for range loadTries {
		folders = folders[:0]
		for _, name := range w.files {
			folders = append(folders, linkedfolders.Of(name)...)
		}
		slices.Sort(folders)
		folders = slices.Compact(folders)
		watched, hasChanged := w.folderWatcher.WatchList(), false
		for _, name := range folders {
			if slices.Contains(watched, name) {
				continue
			}
			if err := w.folderWatcher.Add(name); err == nil || errors.Is(err, fs.ErrNotExist) {
				hasChanged = true
			}
		}
		if !hasChanged {
			break
		}
	}
	for _, name := range w.folderWatcher.WatchList() {
		if !slices.Contains(folders, name) {
			_ = w.folderWatcher.Remove(name)
		}
	}
}

// absolute returns the absolute names, sorted and each once.
func absolute(names []string) []string {
	all := make([]string, 0, len(names))
	for _, name := range names {
		if full, err := filepath.Abs(name); err == nil {
			name = full
		}
		all = append(all, name)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// A fingerprint is a hash of the contents of files. Different fingerprints mean that a file has
// changed.
type fingerprint [sha256.Size]byte

func fingerprintOf(names []string) (f fingerprint) {
	h := sha256.New()
	for _, name := range names {
		fmt.Fprintf(h, "%q\n", name)
		if err := addFile(h, name); err != nil {
			fmt.Fprintf(h, "%v\n", err)
		}
	}
	h.Sum(f[:0])
	return f
}

// addFile adds the type and the size of a file, and the contents of a regular file. It adds only
// the first maxListBytes+1 bytes, because a longer file is a mistake in any case.
func addFile(h hash.Hash, name string) error {
	info, err := os.Stat(name)
	if err != nil {
		return err
	}
	fmt.Fprintf(h, "%v %d\n", info.Mode().Type(), info.Size())
	if !info.Mode().IsRegular() {
		return nil
	}
	file, err := os.Open(name)
	if err != nil {
		return err
	}
	defer file.Close()
	_, err = io.Copy(h, io.LimitReader(file, maxListBytes+1))
	return err
}
