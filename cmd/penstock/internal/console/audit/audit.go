// Package audit describes writes: who has changed what, and why. The log, the audit file and
// penstock reset have the same fields. No line has an identity in clear, or a secret.
package audit

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/penstock/penstock/cmd/penstock/internal/console/keylimits"
)

// A Line is one write, or an attempt that was refused.
type Line struct {
	IsAudit  bool      `json:"audit"` // always true; distinguishes audit lines in a log
	Time     time.Time `json:"time"`
	ID       string    `json:"id"` // equal in all lines about one write
	Actor    Actor     `json:"actor"`
	Action   string    `json:"action"`        // reset
	Key      string    `json:"key,omitempty"` // masked
	Ref      string    `json:"ref,omitempty"` // equal in all lines about one key
	Limits   Changes   `json:"limits"`
	Reason   string    `json:"reason,omitempty"`
	Result   Result    `json:"result"`
	Problem  string    `json:"err,omitempty"`      // why the write was refused or failed
	Unlogged int64     `json:"unlogged,omitempty"` // refused attempts before this one that have no line
}

type Actor struct {
	Kind    string `json:"kind"`              // API or CommandLine
	Name    string `json:"name,omitempty"`    // of the user of a command line
	Host    string `json:"host,omitempty"`    // of the command line
	Address string `json:"address,omitempty"` // of the client of the API
}

const (
	API         = "api"
	CommandLine = "cli"
)

type Result string

const (
	Intent  Result = "intent" // the write follows; another line with the same ID has its outcome
	OK      Result = "ok"
	Refused Result = "refused" // nothing was changed: the actor may not write, or the request is wrong
	Failed  Result = "failed"  // the store gave no answer; only what Line.Limits has was changed
	Unknown Result = "unknown" // the answer of the store was lost, so the last limit may have been changed
)

// A Change is what a write has changed in one limit.
type Change struct {
	Rule   string `json:"rule"`
	Limit  string `json:"limit"`
	Tier   string `json:"tier,omitempty"` // the tier that Usage.Left is for; "": all tiers
	Before Usage  `json:"before"`
	After  *Usage `json:"after,omitempty"` // nil: not known
}

type Usage struct {
	Used int64 `json:"used"`
	Left int64 `json:"left"`
}

// Changes are the changes of one write. In a text, each has the form RULE.LIMIT USED->USED.
type Changes []Change

func (c Changes) MarshalText() ([]byte, error) { return []byte(c.String()), nil }

func (c Changes) MarshalJSON() ([]byte, error) {
	if c == nil {
		c = Changes{}
	}
	return json.Marshal([]Change(c))
}

func (c Changes) String() string {
	var all []string
	for _, one := range c {
		after := "?"
		if one.After != nil {
			after = fmt.Sprint(one.After.Used)
		}
		all = append(all, fmt.Sprintf("%s.%s %d->%s", one.Rule, one.Limit, one.Before.Used, after))
	}
	return strings.Join(all, ", ")
}

func New(action string, actor Actor) Line {
	return Line{IsAudit: true, Time: time.Now().UTC(), ID: rand.Text(), Actor: actor, Action: action}
}

// Intent returns the line to append before limits are reset. It has the states that are in use.
func (l Line) Intent(states []keylimits.Limit) Line {
	l.Result, l.Limits = Intent, nil
	for _, state := range states {
		if state.IsInUse() {
			l.Add(keylimits.Change{Before: state})
		}
	}
	return l
}

func (l *Line) Add(c keylimits.Change) {
	one := Change{Rule: c.Before.Rule, Limit: c.Before.Limit, Tier: c.Before.Tier, Before: Usage{c.Before.Used, c.Before.Left}}
	if c.After != nil {
		one.After = &Usage{c.After.Used, c.After.Left}
	}
	l.Limits = append(l.Limits, one)
}

// End sets the result. isRefused is true if err is not a failure of the store.
func (l *Line) End(err error, isRefused bool) {
	l.Result = OK
	if err == nil {
		return
	}
	l.Problem = err.Error()
	switch last := len(l.Limits) - 1; {
	case last >= 0 && l.Limits[last].After == nil:
		l.Result = Unknown
	case isRefused:
		l.Result = Refused
	default:
		l.Result = Failed
	}
}

func (l *Line) JSON() []byte {
	var b strings.Builder
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	_ = encoder.Encode(l) // it has texts and numbers only
	return []byte(b.String())
}

// Attributes returns the fields for a line of the log, except the time, which the log adds.
func (l *Line) Attributes() []any {
	all := []any{"audit", true, "id", l.ID, slog.Group("actor", l.Actor.attributes()...), "action", l.Action, "key", l.Key, "ref", l.Ref, "limits", l.Limits,
		"reason", l.Reason, "result", string(l.Result)}
	if l.Problem != "" {
		all = append(all, "err", l.Problem)
	}
	if l.Unlogged > 0 {
		all = append(all, "unlogged", l.Unlogged)
	}
	return all
}

func (a *Actor) attributes() (all []any) {
	for _, field := range []struct{ name, value string }{{"kind", a.Kind}, {"name", a.Name}, {"host", a.Host}, {"address", a.Address}} {
		if field.value != "" {
			all = append(all, field.name, field.value)
		}
	}
	return all
}

// A File is a file to which lines are appended. It is opened for each line, so it can be rotated.
type File struct {
	path string
	mu   sync.Mutex // held while a line is appended
}

// Open makes the file if it does not exist, and checks that it can be written. Its mode is 0600.
func Open(path string) (*File, error) {
	f := &File{path: path}
	if err := f.check(); err != nil {
		return nil, err
	}
	return f, nil
}

// check returns an error if the file cannot be opened for a line. It makes the file as Open does.
func (f *File) check() error {
	info, err := os.Stat(f.path)
	switch {
	case err == nil && !info.Mode().IsRegular():
		return notRegular(f.path)
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return err
	}
	to, err := f.open()
	if err != nil {
		return err
	}
	return to.Close()
}

// open opens the file. It checks again that the file is regular, because the name may now belong
// to a pipe. Because of O_NONBLOCK, the call does not wait for a reader of the pipe.
func (f *File) open() (*os.File, error) {
	to, err := os.OpenFile(f.path, flags, mode)
	if err != nil {
		return nil, err
	}
	info, err := to.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = notRegular(f.path)
	}
	if err != nil {
		return nil, errors.Join(err, to.Close())
	}
	return to, nil
}

func notRegular(path string) error {
	return fmt.Errorf("%s is not a file; name a file to which lines can be appended", path)
}

const (
	flags = os.O_APPEND | os.O_CREATE | os.O_RDWR | syscall.O_NONBLOCK
	mode  = 0o600
)

// Write appends a line, and returns when the line is on the disk. If the file ends in the middle of
// a line, because the disk was full, Write begins a new one.
func (f *File) Write(line []byte) (n int, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	to, err := f.open()
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, to.Close()) }()
	isCut, err := endsInLine(to)
	if err != nil {
		return 0, err
	}
	if isCut {
		line = slices.Concat([]byte("\n"), line)
	}
	if n, err = to.Write(line); err != nil {
		return n, err
	}
	return n, to.Sync()
}

// endsInLine reports whether the last line of a file has no newline.
func endsInLine(file *os.File) (bool, error) {
	info, err := file.Stat()
	if err != nil || info.Size() == 0 {
		return false, err
	}
	var last [1]byte
	if _, err := file.ReadAt(last[:], info.Size()-1); err != nil {
		return false, err
	}
	return last[0] != '\n', nil
}
