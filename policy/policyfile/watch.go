package policyfile

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/penstock/penstock/internal/panicked"
	"github.com/penstock/penstock/policy"
)

// A Watcher keeps Rules up to date with their file and the files that it names. What it gives are
// always the Rules of one load: a file that is broken, gone or half written changes nothing. Its
// methods may be called by many goroutines.
//
// To change a policy, write it under another name and rename that over the file, as editors and
// Kubernetes do. If you write into the file itself, a load may read it half written.
type Watcher struct {
	path    string
	options WatchOptions
	load    func(path string) (*Policy, error)
	policy  atomic.Pointer[Policy]

	notices *fsnotify.Watcher // nil where the system gives none
	stop    chan struct{}
	ended   chan struct{}

	mu     sync.Mutex  // held while loading
	files  []string    // of the rules: sorted, absolute
	tried  fingerprint // of files, when last loaded
	failed error       // how that ended
	closed bool
}

// WatchOptions say how a Watcher watches.
type WatchOptions struct {
	Options

	// Poll is how often the files are read and compared, for where the system does not tell of a
	// change (network file systems, folders that were not there). While the file is broken it is also
	// how often it is loaded again. Default: 30s.
	Poll time.Duration

	// Settle is how long it must be quiet after a change before the files are read; after 20 times as
	// long they are read anyway. Default: 50ms.
	Settle time.Duration

	// Ready is called with a policy that was loaded, the first one included. It takes effect when
	// Ready returns, so Ready must return soon. Default: none.
	Ready func(*Policy)

	// Notify is called after every load but the first, and once for each error, however often it
	// occurs. One goroutine at a time calls it. It must not call Reload or Close. Default: none.
	Notify func(Reload)

	// Keys is called after each reading of tokens.jwks_url, with nil if it succeeded. Several
	// goroutines may call it at once. Default: none.
	Keys func(error)
}

const (
	watchPoll   = 30 * time.Second
	watchSettle = 50 * time.Millisecond
	settleMost  = 20 // times Settle
	loadTries   = 5  // while the files change in the middle of a load
)

// A Reload is how a load ended.
type Reload struct {
	At    time.Time
	Rules int   // how many are in force
	Err   error // nil, or why those of before stay
}

var errWatcherClosed = errors.New("policy: the watcher is closed")

// Watch loads the rules of a file and keeps loading them when it, or a file that it names, changes.
// If the first load fails, it returns that error and watches nothing. Close ends it.
func Watch(path string, o WatchOptions) (*Watcher, error) {
	notices, err := fsnotify.NewWatcher()
	if err != nil {
		notices = nil // out of watches: polling finds what changes
	}
	return watch(path, o, func(path string) (*Policy, error) { return load(path, o.Options) }, notices)
}

func watch(path string, o WatchOptions, load func(string) (*Policy, error), notices *fsnotify.Watcher) (*Watcher, error) {
	if o.Poll <= 0 {
		o.Poll = watchPoll
	}
	if o.Settle <= 0 {
		o.Settle = watchSettle
	}
	if o.Ready == nil {
		o.Ready = func(*Policy) {}
	}
	if o.Notify == nil {
		o.Notify = func(Reload) {}
	}
	w := &Watcher{path: path, options: o, load: load, notices: notices, stop: make(chan struct{}), ended: make(chan struct{})}
	w.files = absolute([]string{path})
	if err := w.loadLocked(); err != nil {
		if notices != nil {
			_ = notices.Close()
		}
		return nil, err
	}
	go w.run()
	return w, nil
}

// Policy is the policy in force.
func (w *Watcher) Policy() *Policy { return w.policy.Load() }

// Rules are the rules in force. The call is cheap enough for each request.
func (w *Watcher) Rules() *policy.Rules { return w.policy.Load().Rules }

// Reload loads the file now, changed or not, as on SIGHUP. An error leaves the rules as they are.
func (w *Watcher) Reload() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return errWatcherClosed
	}
	err := w.loadLocked()
	w.reportLocked(err)
	return err
}

// Close ends the watching and the rules' reading of keys, and returns once both have ended. The
// rules still answer.
func (w *Watcher) Close() error {
	w.mu.Lock()
	first := !w.closed
	w.closed = true
	w.mu.Unlock()
	if first {
		close(w.stop)
	}
	<-w.ended
	return nil
}

// run waits for changes, for as long as the Watcher is open.
func (w *Watcher) run() {
	defer close(w.ended)
	defer func() { w.Policy().Close() }()
	var changed <-chan fsnotify.Event
	var missed <-chan error
	if w.notices != nil {
		defer w.notices.Close()
		changed, missed = w.notices.Events, w.notices.Errors
	}
	poll := time.NewTicker(w.options.Poll)
	defer poll.Stop()
	quiet := time.NewTimer(0)
	defer quiet.Stop()
	var since time.Time // of the first change that was not looked at
	for {
		select {
		case <-w.stop:
			return
		case <-changed:
		case <-missed: // there were more changes than fit
		case <-quiet.C:
			since = time.Time{}
			w.look()
			continue
		case <-poll.C:
			w.look()
			continue
		}
		if since.IsZero() {
			since = time.Now()
		}
		quiet.Reset(w.options.waitFor(time.Since(since)))
	}
}

// waitFor is how long it must be quiet after a change, when the first that was not looked at is so
// long ago.
func (o WatchOptions) waitFor(since time.Duration) time.Duration {
	return max(0, min(o.Settle, settleMost*o.Settle-since))
}

// look loads the file if anything changed, or if that failed last time for reasons that may lie
// elsewhere.
func (w *Watcher) look() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return
	}
	w.followLocked()
	same := fingerprintOf(w.files) == w.tried
	if same && w.failed == nil {
		return
	}
	before := w.failed
	err := w.loadLocked()
	if same && err != nil && err.Error() == before.Error() {
		return
	}
	w.reportLocked(err)
}

func (w *Watcher) reportLocked(err error) {
	defer panicked.Recover("reporting a reload")
	w.options.Notify(Reload{At: time.Now(), Rules: len(w.Rules().Rules()), Err: err})
}

// loadLocked loads the file, and takes the rules if no file that they were made of changed
// meanwhile.
func (w *Watcher) loadLocked() error {
	w.failed = errors.New("the files change faster than they can be read; write under another name, and rename")
	for range loadTries {
		w.followLocked()
		w.tried = fingerprintOf(w.files)
		p, err := panicked.Try("policy: load "+w.path, func() (*Policy, error) { return w.load(w.path) })
		if err != nil {
			w.failed = err
			if fingerprintOf(w.files) == w.tried {
				break
			}
			continue
		}
		if files := absolute(p.Files); !slices.Equal(files, w.files) || fingerprintOf(files) != w.tried {
			w.files = files // now that they are known, they can be compared
			p.Close()
			continue
		}
		p.Start(w.options.Keys)
		if _, w.failed = panicked.Try("policy: call Ready", func() (struct{}, error) {
			w.options.Ready(p)
			return struct{}{}, nil
		}); w.failed != nil {
			p.Close()
			break
		}
		if old := w.policy.Swap(p); old != nil {
			old.Close()
		}
		return nil
	}
	return w.failed
}

// followLocked has the system tell of changes in every folder that leads to the files, as far as it
// can. What leads to them may change before it does: so it looks again until nothing is added.
func (w *Watcher) followLocked() {
	if w.notices == nil {
		return
	}
	var folders []string
	for range loadTries {
		folders = folders[:0]
		for _, name := range w.files {
			folders = append(folders, foldersOf(name)...)
		}
		slices.Sort(folders)
		folders = slices.Compact(folders)
		followed, added := w.notices.WatchList(), false
		for _, name := range folders {
			if !slices.Contains(followed, name) && w.notices.Add(name) == nil {
				added = true
			}
		}
		if !added {
			break
		}
	}
	for _, name := range w.notices.WatchList() {
		if !slices.Contains(folders, name) {
			_ = w.notices.Remove(name)
		}
	}
}

// foldersOf are the folders in which something can be changed so that a name stands for another
// file: its own, those of all links on the way, and if a part of the way is missing, the one where
// it is. They hold no links themselves.
func foldersOf(name string) (folders []string) {
	const separator = string(filepath.Separator)
	root := filepath.VolumeName(name) + separator
	here, rest := root, name[len(root)-1:]
	for links := 0; links < 40; { // as many as the system follows
		step, after, _ := strings.Cut(strings.TrimLeft(rest, separator), separator)
		next := filepath.Join(here, step)
		info, err := os.Lstat(next)
		switch {
		case err == nil && info.Mode().Type() == os.ModeSymlink:
			folders = append(folders, here)
			links++
			target, _ := os.Readlink(next)
			if filepath.IsAbs(target) {
				here = root
			}
			rest = target + separator + after
		case err != nil || after == "":
			return append(folders, here)
		default:
			here, rest = next, after
		}
	}
	return folders
}

// absolute are names that do not depend on the process's folder, each once.
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

// A fingerprint tells whether files are still what they were.
type fingerprint [sha256.Size]byte

func fingerprintOf(names []string) (p fingerprint) {
	h := sha256.New()
	for _, name := range names {
		fmt.Fprintf(h, "%q\n", name)
		if err := addFile(h, name); err != nil {
			fmt.Fprintf(h, "%v\n", err)
		}
	}
	h.Sum(p[:0])
	return p
}

// addFile adds what a file holds. Of what is no file, and of what is beyond any policy's size, it
// tells only that.
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
	_, err = io.Copy(h, io.LimitReader(file, maxLists+1))
	return err
}
