package policyfile

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock/internal/boundedfile"
	"github.com/penstock/penstock/internal/filewatch"
	"github.com/penstock/penstock/internal/panicked"
	"github.com/penstock/penstock/policy"
)

// A Watcher keeps Rules up to date with their file and the files that it names. The Rules always
// come from one complete load. A file that is missing or has a mistake changes nothing. Many
// goroutines may call its methods.
//
// Files are read when they have not changed for 50 ms, and at the latest a second after the first
// change. Every 30 s, a poll compares them too. It finds changes that the system does not report
// (network file systems, folders that were missing). A file with a mistake is loaded again at each
// poll.
//
// To change a policy, write the new text into another file, and rename that file to the name of the
// policy, as editors and Kubernetes do. If you write into the policy file itself, a load may read a
// half written file, and half a policy can be valid.
type Watcher struct {
	path    string
	options WatchOptions
	load    func(path string) (*Policy, error)
	policy  atomic.Pointer[Policy]

	changes *filewatch.Watcher

	mu              sync.Mutex  // held while loading
	files           []string    // absolute names of the files of the rules, sorted
	lastFingerprint fingerprint // of files, before they were last loaded
	lastErr         error       // of the last load
}

// WatchOptions configure Watch.
type WatchOptions struct {
	Options

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

	poll, settle time.Duration // of filewatch.Options; for tests
}

const loadTries = 5 // how many times a load reads files that change during the load

var errWatcherClosed = errors.New("policy: the watcher is closed")

// Watch loads the rules of a file. It loads the rules again when this file changes, or a file that
// this file names. If the first load fails, Watch returns its error and watches nothing. Close ends
// the Watcher.
func Watch(path string, o WatchOptions) (*Watcher, error) {
	return watch(path, o, func(path string) (*Policy, error) { return load(path, o.Options) }, false)
}

// watch is Watch with another loader. If pollsOnly is true, only polls find changes.
func watch(path string, o WatchOptions, load func(string) (*Policy, error), pollsOnly bool) (*Watcher, error) {
	if o.Ready == nil {
		o.Ready = func(*Policy) {}
	}
	if o.Notify == nil {
		o.Notify = func(error) {}
	}
	w := &Watcher{path: path, options: o, load: load, files: absolute([]string{path})}
	w.changes = filewatch.New(filewatch.Options{Poll: o.poll, Quiet: o.settle, PollsOnly: pollsOnly})
	if err := w.loadLocked(); err != nil {
		w.changes.Close()
		return nil, err
	}
	w.changes.Start(w.loadIfChanged)
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
	if w.changes.IsClosed() {
		return errWatcherClosed
	}
	err := w.loadLocked()
	w.reportLocked(err)
	return err
}

// Close stops watching, and stops reading keys. It returns when both activities have ended. The
// Rules keep working.
func (w *Watcher) Close() error {
	w.changes.Close()
	w.mu.Lock() // a Reload ends first
	defer w.mu.Unlock()
	w.Policy().Close()
	return nil
}

// loadIfChanged loads the file if a file of the policy has changed. It also loads the file if the
// last load failed, because the cause may be outside the files.
func (w *Watcher) loadIfChanged() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.changes.Follow(w.files)
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

func (w *Watcher) reportLocked(err error) {
	defer panicked.Recover("reporting a reload")
	w.options.Notify(err)
}

// loadLocked loads the file. It uses the new rules only if none of their files changed during the
// load. If they change during each of loadTries loads, that is the error.
func (w *Watcher) loadLocked() error {
	w.lastErr = fmt.Errorf("the files changed during each of %d loads; they are loaded again soon; change them less often, and if a file is written in place, write it under another name, and rename it", loadTries)
	for range loadTries {
		w.changes.Follow(w.files)
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

// fingerprintOf adds of each file the contents, or the error if it cannot be read.
func fingerprintOf(names []string) (f fingerprint) {
	all := sha256.New()
	for _, name := range names {
		content := sha256.New()
		err := boundedfile.Copy(content, name, maxListBytes)
		if err != nil {
			content.Reset() // a file such as /proc/kmsg has other bytes at each read
		}
		fmt.Fprintf(all, "%q %x %v\n", name, content.Sum(nil), err)
	}
	all.Sum(f[:0])
	return f
}
