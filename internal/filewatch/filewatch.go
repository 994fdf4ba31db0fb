// Package filewatch finds out when files may have changed.
package filewatch

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"
)

// Options configure New. The zero value is useful.
type Options struct {
	// Poll is the interval of polls. They find changes that the system does not report (network file
	// systems, folders that were missing). Default: 30s.
	Poll time.Duration

	// Quiet is how long nothing must change before check is called. If files keep changing, check is
	// called after 20 times this time. Default: 50ms.
	Quiet time.Duration

	// PollsOnly means that the Watcher uses no reports of the system.
	PollsOnly bool
}

const (
	defaultPoll    = 30 * time.Second
	defaultQuiet   = 50 * time.Millisecond
	maxQuietFactor = 20 // a check waits at most this number times Quiet
	maxRounds      = 5  // how often Follow lists the folders, if links change meanwhile
)

// A Watcher calls a function when files may have changed. Many goroutines may call its methods,
// except Start.
type Watcher struct {
	options Options
	system  *fsnotify.Watcher // nil if the system does not report changes
	stop    chan struct{}     // closed by Close
	ended   chan struct{}     // closed when the goroutine of Start ends; nil before Start
	closing sync.Once
}

func New(o Options) *Watcher {
	if o.Poll <= 0 {
		o.Poll = defaultPoll
	}
	if o.Quiet <= 0 {
		o.Quiet = defaultQuiet
	}
	w := &Watcher{options: o, stop: make(chan struct{})}
	if o.PollsOnly {
		return w
	}
	if system, err := fsnotify.NewWatcher(); err == nil { // otherwise the system has no watches left
		w.system = system
	}
	return w
}

// Start calls check in a goroutine until Close: at once, because files may have changed before
// Start, then some time after each change in a followed folder, and at each poll.
func (w *Watcher) Start(check func()) {
	w.ended = make(chan struct{})
	go func() {
		defer close(w.ended)
		w.run(check)
	}()
}

func (w *Watcher) run(check func()) {
	var changed <-chan fsnotify.Event
	var missed <-chan error
	if w.system != nil {
		changed, missed = w.system.Events, w.system.Errors
	}
	poll := time.NewTicker(w.options.Poll)
	defer poll.Stop()
	quiet := time.NewTimer(0) // fires when no further change has come for a while
	defer quiet.Stop()
	var firstChange time.Time // the first change that was not checked yet; zero: there is none
	for {
		select {
		case <-w.stop:
			return
		case <-changed:
		case <-missed: // there were more changes than the system can queue
		case <-quiet.C:
			firstChange = time.Time{}
			check()
			continue
		case <-poll.C:
			check()
			continue
		}
		if firstChange.IsZero() {
			firstChange = time.Now()
		}
		quiet.Reset(w.options.waitFor(time.Since(firstChange)))
	}
}

// waitFor returns how long to wait for further changes. elapsed is the time since the first change
// that was not checked yet.
func (o Options) waitFor(elapsed time.Duration) time.Duration {
	return max(0, min(o.Quiet, maxQuietFactor*o.Quiet-elapsed))
}

// Follow watches these folders, and every folder on the way to the paths, also through symbolic
// links, as far as the system allows. It watches no other folders any more. isNew reports whether
// it watches a folder that it did not watch before.
func (w *Watcher) Follow(paths []string, folders ...string) (isNew bool) {
	if w.system == nil {
		return false
	}
	var all []string
	for range maxRounds { // until a round adds no folder and finds all folders
		all = slices.Clone(folders)
		for _, path := range paths {
			all = append(all, foldersOf(path)...)
		}
		slices.Sort(all)
		all = slices.Compact(all)
		watched, hasChanged := w.system.WatchList(), false
		for _, folder := range all {
			if slices.Contains(watched, folder) {
				continue
			}
			err := w.system.Add(folder)
			isNew = isNew || err == nil
			hasChanged = hasChanged || err == nil || errors.Is(err, fs.ErrNotExist)
		}
		if !hasChanged {
			break
		}
	}
	for _, folder := range w.system.WatchList() {
		if !slices.Contains(all, folder) {
			_ = w.system.Remove(folder)
		}
	}
	return isNew
}

func (w *Watcher) Folders() []string {
	if w.system == nil {
		return nil
	}
	return w.system.WatchList()
}

func (w *Watcher) IsClosed() bool {
	select {
	case <-w.stop:
		return true
	default:
		return false
	}
}

// Close ends the calls of check. It returns when the last one has returned.
func (w *Watcher) Close() {
	w.closing.Do(func() { close(w.stop) })
	if w.ended != nil {
		<-w.ended
	}
	if w.system != nil {
		_ = w.system.Close()
	}
}

// foldersOf returns the folders in which a change can make a path lead to another file. They are
// the folder of the file, and the folders of all links in the path. If an element of the path does
// not exist, the last folder is the one where it is missing. The returned paths contain no links.
// The given path must be absolute.
func foldersOf(path string) (folders []string) {
	const separator = string(filepath.Separator)
	root := filepath.VolumeName(path) + separator
	here, rest := root, path[len(root)-1:]
	const maxLinks = 40 // Linux follows no more in one path
	for links := 0; links < maxLinks; {
		element, after, _ := strings.Cut(strings.TrimLeft(rest, separator), separator)
		next := filepath.Join(here, element)
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
