package policyfile

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"runtime/pprof"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/boundedfile"
	"github.com/penstock/penstock/internal/testing/eventually"
	"github.com/penstock/penstock/internal/testing/jwttest"
	"github.com/penstock/penstock/policy"
)

// version returns a version of the policy: its one rule has this name.
func version(name string) string {
	return "rules:\n- name: " + name + "\n  per: ip\n  limits:\n  - rate: 10/s\n"
}

// versionOf returns the name of the version that is in force.
func versionOf(w *Watcher) string { return w.Rules().Spec().Rules[0].Name }

// A recorder records the reports of a Watcher.
type recorder struct {
	mu      sync.Mutex
	reloads []error
}

func (r *recorder) notify(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.reloads = append(r.reloads, err)
}

func (r *recorder) all() []error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.reloads)
}

// outcomes returns one word for each report.
func (r *recorder) outcomes() (words []string) {
	for _, err := range r.all() {
		word := "loaded"
		if err != nil {
			word = "failed"
		}
		words = append(words, word)
	}
	return words
}

const (
	never = time.Hour             // an interval of polling that is longer than a test
	often = 10 * time.Millisecond // an interval of polling for tests without file notifications
)

// loadPlain loads a file without sections.
func loadPlain(path string) (*Policy, error) { return load(path, Options{}) }

// newWatcher returns a Watcher. Unless poll is never, it uses polling only, without file
// notifications.
func newWatcher(t testing.TB, path string, poll time.Duration, o WatchOptions, load func(string) (*Policy, error)) *Watcher {
	t.Helper()
	o.poll = poll
	w, err := watch(path, o, load, poll != never)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	})
	return w
}

// replace replaces a file atomically.
func replace(t testing.TB, name, text string) {
	t.Helper()
	write(t, name+".new", text)
	must(t, os.Rename(name+".new", name))
}

// link makes a symbolic link, and atomically replaces an earlier one.
func link(t testing.TB, target, name string) {
	t.Helper()
	must(t, os.Symlink(target, name+".new"))
	must(t, os.Rename(name+".new", name))
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// A changeMethod is a way in which people and programs change a file. begin gets an empty folder,
// writes a policy into it and returns the policy's name. change gets the same folder.
type changeMethod struct {
	name   string
	begin  func(t *testing.T, dir string) string
	change func(t *testing.T, dir string)
}

var changeMethods = []changeMethod{
	{name: "write", begin: writeFirstPolicy, change: func(t *testing.T, dir string) { write(t, dir+"/p.yaml", version("v2")) }},
	{name: "truncate, then write in parts", begin: writeFirstPolicy, change: func(t *testing.T, dir string) {
		f, err := os.Create(dir + "/p.yaml")
		must(t, err)
		for _, line := range strings.SplitAfter(version("v2"), "\n") {
			_, err := f.WriteString(line)
			must(t, err)
		}
		must(t, f.Close())
	}},
	{name: "rename over", begin: writeFirstPolicy, change: func(t *testing.T, dir string) { replace(t, dir+"/p.yaml", version("v2")) }},
	{name: "keep a backup, then write a new file", begin: writeFirstPolicy, change: func(t *testing.T, dir string) {
		must(t, os.Rename(dir+"/p.yaml", dir+"/p.yaml~"))
		write(t, dir+"/p.yaml", version("v2"))
	}},
	{name: "delete, then create", begin: writeFirstPolicy, change: func(t *testing.T, dir string) {
		must(t, os.Remove(dir+"/p.yaml"))
		write(t, dir+"/p.yaml", version("v2"))
	}},
	{name: "Kubernetes ConfigMap", begin: func(t *testing.T, dir string) string {
		must(t, os.Mkdir(dir+"/..2026_1", 0o700))
		write(t, dir+"/..2026_1/p.yaml", version("v1"))
		must(t, os.Symlink("..2026_1", dir+"/..data"))
		must(t, os.Symlink("..data/p.yaml", dir+"/p.yaml"))
		return dir + "/p.yaml"
	}, change: func(t *testing.T, dir string) {
		must(t, os.Mkdir(dir+"/..2026_2", 0o700))
		write(t, dir+"/..2026_2/p.yaml", version("v2"))
		link(t, "..2026_2", dir+"/..data")
		must(t, os.RemoveAll(dir+"/..2026_1"))
	}},
	{name: "behind a link", begin: func(t *testing.T, dir string) string {
		must(t, os.Mkdir(dir+"/real", 0o700))
		must(t, os.Mkdir(dir+"/etc", 0o700))
		write(t, dir+"/real/policy", version("v1"))
		must(t, os.Symlink("../real/policy", dir+"/etc/p.yaml"))
		return dir + "/etc/p.yaml"
	}, change: func(t *testing.T, dir string) { replace(t, dir+"/real/policy", version("v2")) }},
	{name: "another release's folder", begin: func(t *testing.T, dir string) string {
		for _, v := range []string{"v1", "v2"} {
			must(t, os.MkdirAll(dir+"/releases/"+v+"/etc", 0o700))
			write(t, dir+"/releases/"+v+"/etc/p.yaml", version(v))
		}
		must(t, os.Symlink(dir+"/releases/v1", dir+"/current"))
		return dir + "/current/etc/p.yaml"
	}, change: func(t *testing.T, dir string) { link(t, dir+"/releases/v2", dir+"/current") }},
	{name: "folder renamed over", begin: writeFirstPolicyInSubfolder, change: func(t *testing.T, dir string) {
		must(t, os.Mkdir(dir+"/new", 0o700))
		write(t, dir+"/new/p.yaml", version("v2"))
		must(t, os.Rename(dir+"/a", dir+"/old"))
		must(t, os.Rename(dir+"/new", dir+"/a"))
	}},
	{name: "folder deleted, then created", begin: writeFirstPolicyInSubfolder, change: func(t *testing.T, dir string) {
		must(t, os.RemoveAll(dir+"/a"))
		must(t, os.Mkdir(dir+"/a", 0o700))
		write(t, dir+"/a/p.yaml", version("v2"))
	}},
}

func writeFirstPolicy(t *testing.T, dir string) string {
	write(t, dir+"/p.yaml", version("v1"))
	return dir + "/p.yaml"
}

func writeFirstPolicyInSubfolder(t *testing.T, dir string) string {
	must(t, os.Mkdir(dir+"/a", 0o700))
	write(t, dir+"/a/p.yaml", version("v1"))
	return dir + "/a/p.yaml"
}

func TestChangesAreLoaded(t *testing.T) {
	t.Parallel()
	for _, method := range changeMethods {
		for by, poll := range map[string]time.Duration{"folderWatcher": never, "polling": often} {
			t.Run(method.name+" by "+by, func(t *testing.T) {
				t.Parallel()
				dir := t.TempDir()
				w := newWatcher(t, method.begin(t, dir), poll, WatchOptions{}, loadPlain)
				if v := versionOf(w); v != "v1" {
					t.Fatalf("version %s is loaded; want v1", v)
				}
				method.change(t, dir)
				eventually.True(t, "the change is loaded", func() bool { return versionOf(w) == "v2" })
				changeAgain(t, w)
			})
		}
	}
	t.Logf("counted: %d ways to change a file", 2*len(changeMethods))
}

// changeAgain changes the file once more, at its current place. The watcher must still follow the
// links to it.
func changeAgain(t *testing.T, w *Watcher) {
	t.Helper()
	name, err := filepath.EvalSymlinks(w.path)
	must(t, err)
	replace(t, name, version("v3"))
	eventually.True(t, "the second change is loaded", func() bool { return versionOf(w) == "v3" })
}

func TestRulesAreReadyBeforeTheyTakeEffect(t *testing.T) {
	t.Parallel()
	name := filepath.Join(t.TempDir(), "p.yaml")
	write(t, name, version("v1"))
	var inForce atomic.Pointer[Watcher]
	var reloads []string // for each new policy: its version, and the version in force
	o := WatchOptions{Ready: func(p *Policy) {
		now := "none"
		if w := inForce.Load(); w != nil {
			now = versionOf(w)
		}
		reloads = append(reloads, p.Rules.Spec().Rules[0].Name+" over "+now)
	}}
	w := newWatcher(t, name, never, o, loadPlain)
	inForce.Store(w)
	w.mu.Lock() // while it is locked, the Watcher loads nothing by itself
	write(t, name, version("v2"))
	must(t, w.loadLocked())
	write(t, name, "rules: broken")
	if w.loadLocked() == nil {
		t.Error("a broken file was loaded; want an error")
	}
	got := slices.Clone(reloads)
	w.mu.Unlock()
	if want := []string{"v1 over none", "v2 over v1"}; !slices.Equal(got, want) {
		t.Errorf("Ready was called with the versions %v; want %v", got, want)
	}
}

// A folder may be missing for a long time. A notification of its parent reports its return.
func TestMissingFolderIsFoundAgain(t *testing.T) {
	t.Parallel()
	dir, reports := t.TempDir(), new(recorder)
	must(t, os.Mkdir(dir+"/a", 0o700))
	w := newWatcher(t, inSubfolderOf(t, dir+"/a"), never, WatchOptions{Notify: reports.notify}, loadPlain)
	must(t, os.RemoveAll(dir+"/a"))
	eventually.True(t, "the absence is reported", func() bool { return len(reports.all()) > 0 })
	eventually.True(t, "the parent folder is watched", func() bool { return slices.Contains(w.changes.Folders(), realName(t, dir)) })
	must(t, os.MkdirAll(dir+"/a/b", 0o700))
	write(t, dir+"/a/b/p.yaml", version("v2"))
	eventually.True(t, "the file is loaded", func() bool { return versionOf(w) == "v2" })
}

func inSubfolderOf(t *testing.T, dir string) string {
	must(t, os.Mkdir(dir+"/b", 0o700))
	write(t, dir+"/b/p.yaml", version("v1"))
	return dir + "/b/p.yaml"
}

func realName(t *testing.T, name string) string {
	t.Helper()
	name, err := filepath.EvalSymlinks(name)
	must(t, err)
	return name
}

// A folder that replaces another is watched, even if its file has the same text.
func TestReplacedFolderIsWatched(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	w := newWatcher(t, writeFirstPolicyInSubfolder(t, dir), never, WatchOptions{}, loadPlain)
	must(t, os.Mkdir(dir+"/new", 0o700))
	write(t, dir+"/new/p.yaml", version("v1"))
	before, folder := w.Rules(), realName(t, dir+"/a")
	isWatched := func() bool { return slices.Contains(w.changes.Folders(), folder) }
	w.mu.Lock() // no load until the old folder is removed
	must(t, os.Rename(dir+"/a", dir+"/old"))
	must(t, os.Rename(dir+"/new", dir+"/a"))
	eventually.True(t, "the old folder is no longer watched", func() bool { return !isWatched() })
	w.mu.Unlock()
	eventually.True(t, "the new folder is watched", isWatched)
	if w.Rules() != before {
		t.Error("rules with the same text replaced the old ones; want that the old ones stay")
	}
	replace(t, dir+"/a/p.yaml", version("v2"))
	eventually.True(t, "the change is loaded", func() bool { return versionOf(w) == "v2" })
}

func TestBrokenFileChangesNothing(t *testing.T) {
	t.Parallel()
	broken := []string{"", "rules:", "rules: [", version("v1") + version("v1"), "\xff", "rules:\n- name: v2\n  limits:\n  - rate: many\n",
		"rules: []", version("v1")[:20], version("v1") + "tokens: {key_file: absent.pem}\n", strings.Repeat("#", boundedfile.MaxPolicy+1)}
	for _, text := range broken {
		reports := new(recorder)
		name := writeFirstPolicy(t, t.TempDir())
		w := newWatcher(t, name, never, WatchOptions{Notify: reports.notify, settle: time.Millisecond}, loadPlain)
		before := w.Rules()
		replace(t, name, text)
		eventually.True(t, "the failure is reported", func() bool { return len(reports.all()) == 1 })
		if err := reports.all()[0]; !errors.Is(err, penstock.ErrInvalid) {
			t.Errorf("file %.60q: reported %v; want an ErrInvalid", text, err)
		}
		if w.Rules() != before {
			t.Errorf("file %.60q changed the rules; want the old ones", text)
		}
		replace(t, name, version("v2"))
		eventually.True(t, "the fixed file is loaded", func() bool { return versionOf(w) == "v2" && len(reports.all()) == 2 })
		if got := reports.outcomes(); !slices.Equal(got, []string{"failed", "loaded"}) {
			t.Errorf("file %.60q: reported %q; want a failure, then a load", text, got)
		}
	}
	t.Logf("counted: %d broken files that changed nothing", len(broken))
}

func TestUnchangedFileIsNotLoaded(t *testing.T) {
	t.Parallel()
	for _, poll := range []time.Duration{never, often} {
		dir, reports := t.TempDir(), new(recorder)
		name := writeFirstPolicy(t, dir)
		w := newWatcher(t, name, poll, WatchOptions{Notify: reports.notify, settle: time.Millisecond}, loadPlain)
		before := w.Rules()
		for i := range 20 {
			replace(t, name, version("v1"))
			write(t, dir+"/other.log", strconv.Itoa(i))
			must(t, os.Chtimes(name, time.Now(), time.Now().Add(time.Duration(i)*time.Hour)))
			must(t, os.Chmod(name, 0o600|os.FileMode(i&0o44)))
		}
		if w.Rules() != before {
			t.Error("rules with the same text replaced the old ones; want that the old ones stay")
		}
		replace(t, name, version("v2"))
		eventually.True(t, "the change is loaded", func() bool { return versionOf(w) == "v2" && len(reports.all()) > 0 })
		if got := reports.outcomes(); !slices.Equal(got, []string{"loaded"}) {
			t.Errorf("reported %q; want one load", got)
		}
	}
}

func TestAbsenceIsReportedOnce(t *testing.T) {
	t.Parallel()
	reports, loads := new(recorder), new(atomic.Int64)
	name := writeFirstPolicy(t, t.TempDir())
	w := newWatcher(t, name, often, WatchOptions{Notify: reports.notify}, func(path string) (*Policy, error) {
		loads.Add(1)
		return Load(path, Options{})
	})
	before := w.Rules()
	must(t, os.Remove(name))
	eventually.True(t, "ten loads have failed", func() bool { return loads.Load() > 10 })
	if r := reports.all(); len(r) != 1 || !errors.Is(r[0], os.ErrNotExist) || w.Rules() != before {
		t.Errorf("reported %v; want one ErrNotExist, and the old rules in force", r)
	}
	replace(t, name, version("v1")) // the text is the old one, but the return of the file must be reported
	eventually.True(t, "the return is reported", func() bool { return len(reports.all()) > 1 })
	if got := reports.outcomes(); !slices.Equal(got, []string{"failed", "loaded"}) {
		t.Errorf("reported %q; want a failure, then a load", got)
	}
}

func TestFilesThatThePolicyNamesAreWatched(t *testing.T) {
	t.Parallel()
	for _, poll := range []time.Duration{never, often} {
		dir, pairs := t.TempDir(), jwttest.Pairs()
		must(t, os.Mkdir(dir+"/keys", 0o700))
		must(t, os.Mkdir(dir+"/lists", 0o700))
		write(t, dir+"/keys/public.pem", jwttest.PublicPEM(pairs["EdDSA"][0]))
		write(t, dir+"/lists/bad.txt", "192.0.2.1\n")
		write(t, dir+"/p.yaml", version("v1")+"tokens: {key_file: keys/public.pem}\ndeny:\n  ip: {file: lists/bad.txt}\n")
		w := newWatcher(t, dir+"/p.yaml", poll, WatchOptions{}, loadPlain)

		accepted := func(pairIndex int) bool {
			token := jwttest.Sign("EdDSA", pairs["EdDSA"][pairIndex], `{"alg":"EdDSA"}`, fmt.Sprintf(`{"sub":"x","exp":%d}`, time.Now().Add(time.Hour).Unix()))
			return accepts(w.Rules(), token)
		}
		denies := func(address string) bool {
			var v policy.Evaluation
			w.Rules().Evaluate(testRequest{address: address}, &v)
			return v.ListMatch == policy.DenyListed
		}
		if !accepted(0) || accepted(1) {
			t.Fatal("the rules use another key than that of the file")
		}
		replace(t, dir+"/keys/public.pem", jwttest.PublicPEM(pairs["EdDSA"][1]))
		eventually.True(t, "the new key is used", func() bool { return accepted(1) && !accepted(0) })
		between := w.Rules()
		replace(t, dir+"/lists/bad.txt", "192.0.2.2\n")
		eventually.True(t, "the new list is loaded", func() bool { return w.Rules() != between })

		must(t, os.Mkdir(dir+"/more", 0o700)) // a folder that only the changed policy names
		write(t, dir+"/more/bad.txt", "192.0.2.3\n")
		replace(t, dir+"/p.yaml", version("v2")+"deny:\n  ip: {file: more/bad.txt}\n")
		eventually.True(t, "the changed policy is loaded", func() bool { return versionOf(w) == "v2" })
		if poll == never {
			w.mu.Lock()
			watched := w.changes.Folders()
			slices.Sort(watched)
			w.mu.Unlock()
			if dir := realName(t, dir); !slices.Equal(watched, []string{dir, dir + "/more"}) {
				t.Errorf("the watched folders are %q; want %q", watched, []string{dir, dir + "/more"})
			}
		}
		replace(t, dir+"/more/bad.txt", "192.0.2.4\n")
		eventually.True(t, "the list of the changed policy is loaded", func() bool { return denies("192.0.2.4") })
		if got := versionOf(w); got != "v2" || denies("192.0.2.2") || denies("192.0.2.3") {
			t.Errorf("%s is in force, and an earlier list is used: %t; want v2 with its new list only", got, denies("192.0.2.2") || denies("192.0.2.3"))
		}
	}
}

// A failed load does not name its files, so the cause may be fixed in a file that is not watched.
func TestFixInAnUnwatchedFileIsLoaded(t *testing.T) {
	t.Parallel()
	dir, elsewhere, reports := t.TempDir(), t.TempDir(), new(recorder)
	name := writeFirstPolicy(t, dir)
	w := newWatcher(t, name, often, WatchOptions{Notify: reports.notify}, loadPlain)
	replace(t, name, version("v2")+"deny:\n  ip: {file: "+elsewhere+"/bad.txt}\n")
	eventually.True(t, "the failure is reported", func() bool { return len(reports.all()) > 0 })
	write(t, elsewhere+"/bad.txt", "192.0.2.1\n")
	eventually.True(t, "the policy is loaded", func() bool { return versionOf(w) == "v2" && len(reports.all()) > 1 })
	if got := reports.outcomes(); !slices.Equal(got, []string{"failed", "loaded"}) {
		t.Errorf("reported %q; want a failure, then a load", got)
	}
}

func TestManyChangesAreFewLoads(t *testing.T) {
	t.Parallel()
	reports := new(recorder)
	name := writeFirstPolicy(t, t.TempDir())
	w := newWatcher(t, name, never, WatchOptions{Notify: reports.notify, settle: 200 * time.Millisecond}, loadPlain)
	const changes = 200
	for i := range changes {
		replace(t, name, version(fmt.Sprint("v", i+2)))
	}
	eventually.True(t, "the last change is loaded", func() bool { return versionOf(w) == fmt.Sprint("v", changes+1) })
	if loads := len(reports.all()); loads > changes/10 {
		t.Errorf("%d changes took %d loads; want at most %d", changes, loads, changes/10)
	}
	t.Logf("counted: %d changes in a row (%d loads)", changes, len(reports.all()))
}

func TestConstantChangesDoNotDelayALoadForever(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	w := newWatcher(t, writeFirstPolicy(t, dir), never, WatchOptions{}, loadPlain)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			case <-time.After(time.Millisecond): // well within settle
				_ = os.WriteFile(dir+"/other.log", fmt.Append(nil, i), 0o600)
			}
		}
	})
	for _, v := range []string{"v2", "v3"} {
		replace(t, dir+"/p.yaml", version(v))
		eventually.True(t, "the change is loaded", func() bool { return versionOf(w) == v })
	}
	close(stop)
	wg.Wait()
}

// The loader reads two files, one after another. Between the two reads, both files are replaced
// together.
func TestRulesAreNeverAMixtureOfTwoVersions(t *testing.T) {
	t.Parallel()
	for _, poll := range []time.Duration{never, time.Millisecond} {
		dir := t.TempDir()
		publish := func(v int) {
			folder := fmt.Sprintf("..2026_%d", v)
			must(t, os.Mkdir(filepath.Join(dir, folder), 0o700))
			for _, name := range []string{"p.yaml", "list.txt"} {
				write(t, filepath.Join(dir, folder, name), strconv.Itoa(v))
			}
			link(t, folder, filepath.Join(dir, "..data"))
			_ = os.RemoveAll(filepath.Join(dir, fmt.Sprintf("..2026_%d", v-1)))
		}
		for _, name := range []string{"p.yaml", "list.txt"} {
			must(t, os.Symlink("..data/"+name, filepath.Join(dir, name)))
		}
		publish(0)
		mixed, loads := new(atomic.Int64), new(atomic.Int64)
		// A load sends to swap when it has read the first file. After both files were replaced, the load
		// receives from swap.
		swap := make(chan struct{})
		load := func(path string) (*Policy, error) {
			loads.Add(1)
			text, err := os.ReadFile(path)
			select {
			case swap <- struct{}{}:
				<-swap
			default:
			}
			list, listErr := os.ReadFile(filepath.Join(dir, "list.txt"))
			if err := errors.Join(err, listErr); err != nil {
				return nil, err
			}
			if string(text) != string(list) {
				mixed.Add(1)
			}
			rules, err := policy.New(policy.Spec{Rules: []*policy.Rule{{Name: string(text) + "." + string(list), Unlimited: true}}})
			return &Policy{Rules: rules, Files: []string{path, filepath.Join(dir, "list.txt")}}, err
		}
		w := newWatcher(t, filepath.Join(dir, "p.yaml"), poll, WatchOptions{settle: time.Millisecond}, load)
		wantOneVersion := func() {
			if text, list, _ := strings.Cut(versionOf(w), "."); text != list {
				t.Fatalf("the rules come from version %s of one file and version %s of the other", text, list)
			}
		}
		swaps := 0
		for mixed.Load() < 8 || swaps < 40 {
			swaps++
			publish(swaps)
			select { // if a load is between the two files, swap them now
			case <-swap:
				swaps++
				publish(swaps)
				swap <- struct{}{}
			case <-time.After(5 * time.Millisecond):
			}
			wantOneVersion()
		}
		// This test receives no more from swap. Further loads do not block, because they send only to a
		// waiting receiver.
		want := fmt.Sprintf("%d.%[1]d", swaps)
		eventually.True(t, "the last version is loaded", func() bool { wantOneVersion(); return versionOf(w) == want })
		t.Logf("counted: %d swaps of two files together (%d loads, of which %d read a mixture)", swaps, loads.Load(), mixed.Load())
	}
}

func TestLoadIsRetriedIfFilesChanged(t *testing.T) {
	t.Parallel()
	name, isChanging := writeFirstPolicy(t, t.TempDir()), false
	w := newWatcher(t, name, never, WatchOptions{}, func(path string) (*Policy, error) {
		if isChanging {
			isChanging = false
			write(t, name, version("v2"))
			return nil, errors.New("half of it")
		}
		return Load(path, Options{})
	})
	w.mu.Lock()
	isChanging = true
	w.mu.Unlock()
	if err := w.Reload(); err != nil || versionOf(w) != "v2" {
		t.Errorf("Reload returns %v, and %s is in force; want no error, and v2", err, versionOf(w))
	}
}

// If files change faster than they can be read, the rules stay.
func TestConstantlyChangingFilesAreNotLoaded(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	name, v, isRestless := writeFirstPolicy(t, dir), 1, false
	w := newWatcher(t, name, never, WatchOptions{}, func(path string) (*Policy, error) {
		p, err := Load(path, Options{})
		if isRestless {
			v++
			replace(t, name, version(fmt.Sprint("v", v)))
		}
		return p, err
	})
	w.mu.Lock()
	isRestless = true
	w.mu.Unlock()
	if err := w.Reload(); err == nil || !strings.Contains(err.Error(), "changed during each of") || !strings.Contains(err.Error(), "change them less often") {
		t.Errorf("Reload returns %v; want an error that the files change too often, with this advice", err)
	}
	if got := versionOf(w); got != "v1" {
		t.Errorf("%s was loaded; want v1 to stay", got)
	}
	w.mu.Lock()
	isRestless = false
	w.mu.Unlock()
	eventually.True(t, "the final files are loaded", func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return versionOf(w) == fmt.Sprint("v", v)
	})
}

func TestReloadLoadsChangedFiles(t *testing.T) {
	t.Parallel()
	reports := new(recorder)
	name := writeFirstPolicy(t, t.TempDir())
	// Only Reload loads the file. There are no file notifications, and the bubble's time is too short
	// for a poll.
	synctest.Test(t, func(t *testing.T) {
		w, err := watch(name, WatchOptions{poll: never, Notify: reports.notify}, loadPlain, true)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second) // the Watcher compares the files once at its start
		synctest.Wait()
		before := w.Rules()
		if err := w.Reload(); err != nil || w.Rules() == before {
			t.Errorf("Reload of an unchanged file returns %v, and made new rules: %t; want no error, and new rules", err, w.Rules() != before)
		}
		write(t, name, "rules:")
		if err := w.Reload(); !errors.Is(err, penstock.ErrInvalid) || versionOf(w) != "v1" {
			t.Errorf("Reload of a broken file returns %v, and %s is in force; want an ErrInvalid, and v1", err, versionOf(w))
		}
		write(t, name, version("v2"))
		if err := w.Reload(); err != nil || versionOf(w) != "v2" {
			t.Errorf("Reload of a changed file returns %v, and %s is in force; want no error, and v2", err, versionOf(w))
		}
		must(t, w.Close())
		if got := reports.outcomes(); !slices.Equal(got, []string{"loaded", "failed", "loaded"}) {
			t.Errorf("reported %q; want one report for each Reload", got)
		}
		if err := w.Reload(); !errors.Is(err, errWatcherClosed) || versionOf(w) != "v2" {
			t.Errorf("Reload after Close returns %v, and %s is in force; want errWatcherClosed, and v2", err, versionOf(w))
		}
	})
}

func TestReloadWhileFilesChange(t *testing.T) {
	t.Parallel()
	name := writeFirstPolicy(t, t.TempDir())
	reloads := new(atomic.Int64)
	isNotifying := new(atomic.Bool)
	w := newWatcher(t, name, often, WatchOptions{settle: time.Millisecond, Notify: func(err error) {
		if !isNotifying.CompareAndSwap(false, true) {
			t.Error("Notify is called while an earlier call runs")
		}
		reloads.Add(1)
		isNotifying.Store(false)
	}}, loadPlain)
	const changes = 100
	done := make(chan struct{})
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				if err := w.Reload(); err != nil && !strings.Contains(err.Error(), "changed during each of") {
					t.Errorf("Reload returns %v; want no error, or that the files changed during each load", err)
				}
				versionOf(w)
			}
		})
	}
	for i := range changes {
		replace(t, name, version(fmt.Sprint("v", i+2)))
	}
	eventually.True(t, "the last change is loaded", func() bool { return versionOf(w) == fmt.Sprint("v", changes+1) })
	close(done)
	wg.Wait()
	t.Logf("counted: %d loads while the file changed", reloads.Load())
}

func TestFirstLoadThatFailsIsAnError(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, dir+"/broken.yaml", "rules:")
	for _, name := range []string{"absent.yaml", "broken.yaml", "absent/p.yaml", "."} {
		w, err := Watch(filepath.Join(dir, name), WatchOptions{})
		if err == nil || w != nil || !errors.Is(err, penstock.ErrInvalid) {
			t.Errorf("%s: Watch returns the watcher %v and the error %v; want an ErrInvalid and no watcher", name, w, err)
		}
	}
}

// Rules refresh their keys exactly as long as they are in force.
func TestKeysAreRefreshedForTheRulesInForce(t *testing.T) {
	t.Parallel()
	set := jwttest.JWKS(jwttest.JWK(jwttest.Pairs()["EdDSA"][0], ""))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, set) }))
	defer server.Close()
	dir, reloads := t.TempDir(), new(atomic.Int64)
	tokens := "tokens: {jwks_url: " + server.URL + "}\n"
	write(t, dir+"/p.yaml", version("v1")+tokens)
	w := newWatcher(t, dir+"/p.yaml", never, WatchOptions{Keys: func(err error) {
		if err != nil {
			t.Error(err)
		}
		reloads.Add(1)
	}}, loadPlain)
	ended := func(p *Policy) bool { return !p.verifier.IsReading() }
	claims := fmt.Sprintf(`{"sub":"x","exp":%d}`, time.Now().Add(time.Hour).Unix())
	token := jwttest.Sign("EdDSA", jwttest.Pairs()["EdDSA"][0], `{"alg":"EdDSA"}`, claims)
	first := w.Policy()
	if !accepts(first.Rules, token) {
		t.Error("the first rules reject a token that their key has signed")
	}
	replace(t, dir+"/p.yaml", version("v2")+tokens)
	eventually.True(t, "the change is loaded", func() bool { return versionOf(w) == "v2" })
	second := w.Policy()
	if !accepts(second.Rules, token) {
		t.Error("the second rules reject a token that their key has signed")
	}
	eventually.True(t, "the first rules have stopped reading keys", func() bool { return ended(first) })
	if ended(second) {
		t.Error("the rules in force have stopped reading keys; want that they continue")
	}
	must(t, w.Close())
	if !ended(second) || reloads.Load() != 2 {
		t.Errorf("after Close: the reads have ended: %t, and %d reads were reported; want true and 2", ended(second), reloads.Load())
	}
}

// The test does not run in parallel, so all goroutines belong to this test.
func TestCloseEndsAllGoroutines(t *testing.T) {
	dir := t.TempDir()
	name := writeFirstPolicy(t, dir)
	const watchers = 20
	for i := range watchers {
		w, err := Watch(name, WatchOptions{settle: time.Millisecond, poll: often})
		must(t, err)
		replace(t, name, version(fmt.Sprint("v", i)))
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() { must(t, w.Close()) })
			wg.Go(func() { _ = w.Reload() })
		}
		wg.Wait()
		if w.Rules() == nil {
			t.Error("the watcher has no rules after Close")
		}
	}
	for _, broken := range []string{"absent", "."} {
		if _, err := Watch(filepath.Join(dir, broken), WatchOptions{}); err == nil {
			t.Errorf("Watch of %q returns no error; want one", broken)
		}
	}
	running := func() (found []string) {
		var all strings.Builder
		must(t, pprof.Lookup("goroutine").WriteTo(&all, 1))
		ours := regexp.MustCompile(`fsnotify|filewatch|policyfile\.\(\*Watcher\)|jwt\.\(\*fetcher\)`)
		for _, stack := range strings.Split(all.String(), "\n\n") {
			if ours.MatchString(stack) {
				found = append(found, stack)
			}
		}
		return found
	}
	found := running()
	for end := time.Now().Add(10 * time.Second); len(found) > 0 && time.Now().Before(end); found = running() {
		runtime.Gosched() // fsnotify's goroutine reports its end just before it ends
	}
	for _, stack := range found {
		t.Errorf("after all watchers are closed, this goroutine still runs:\n%s", stack)
	}
	t.Logf("counted: %d watchers closed", watchers)
}

// Panics of callbacks are logged, and the next change is loaded.
func TestPanicsOfCallbacksDoNotEndWatching(t *testing.T) {
	for _, callback := range []string{"Notify", "Ready"} {
		path := filepath.Join(t.TempDir(), "rules.yaml")
		replace(t, path, version("a"))
		var calls atomic.Int32
		fail := func(name string) {
			if calls.Add(1) == 1 && name == callback {
				panic("a bug in a callback")
			}
		}
		w, err := watch(path, WatchOptions{poll: often, Notify: func(error) { fail("Notify") }, Ready: func(p *Policy) {
			if callback == "Ready" && p.Rules.Spec().Rules[0].Name == "b" {
				fail("Ready")
			}
		}}, loadPlain, true)
		if err != nil {
			t.Fatal(err)
		}
		replace(t, path, version("b"))
		eventually.True(t, "the callback panics", func() bool { return calls.Load() > 0 })
		replace(t, path, version("c"))
		if err := w.Reload(); err != nil || versionOf(w) != "c" {
			t.Errorf("after a panic of %s: Reload returns %v, and %s is in force; want c", callback, err, versionOf(w))
		}
		w.Close()
	}
}

func TestFingerprintClosesItsFile(t *testing.T) {
	t.Parallel()
	const openFiles = "/proc/self/fd"
	if _, err := os.Stat(openFiles); err != nil {
		t.Skip("only Linux lists the open files of a process:", err)
	}
	name := filepath.Join(t.TempDir(), "policy.yaml")
	write(t, name, version("first"))
	fingerprintOf([]string{name})
	links, err := os.ReadDir(openFiles)
	must(t, err)
	for _, link := range links {
		// Other tests may close their files before Readlink, so its error does not matter.
		if target, _ := os.Readlink(filepath.Join(openFiles, link.Name())); target == name {
			t.Errorf("after fingerprintOf, the file %s is still open; want it closed", name)
		}
	}
}
