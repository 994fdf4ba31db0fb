package audit

import (
	"bytes"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/penstock/penstock/cmd/penstock/internal/console/keylimits"
)

func sample() Line {
	l := New("reset", Actor{Kind: API, Address: "127.0.0.1:1"})
	l.Key, l.Ref, l.Reason = "key:cu…11", "0123456789abcdef", "support-4711 <b>"
	l.Add(keylimits.Change{Before: keylimits.Limit{Rule: "api", Limit: "hour", Used: 3, Left: 7}, After: &keylimits.Limit{Left: 10}})
	return l
}

// The JSON log and the audit file have the same fields with the same values.
func TestLogAndFileHaveOneForm(t *testing.T) {
	l := sample()
	const isRefused = true
	l.End(errors.New("why"), isRefused)
	l.Unlogged = 3
	var out bytes.Buffer
	slog.New(slog.NewJSONHandler(&out, nil)).Info("m", l.Attributes()...)
	var logged, filed map[string]any
	if err := errors.Join(json.Unmarshal(out.Bytes(), &logged), json.Unmarshal(l.JSON(), &filed)); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"time", "level", "msg"} {
		delete(logged, name)
	}
	delete(filed, "time")
	if !reflect.DeepEqual(logged, filed) {
		t.Errorf("the log has %v, and the file has %v; want the same", logged, filed)
	}
	var text bytes.Buffer
	slog.New(slog.NewTextHandler(&text, nil)).Info("m", l.Attributes()...)
	if !strings.Contains(text.String(), `limits="api.hour 3->0"`) || !strings.Contains(text.String(), "actor.address=127.0.0.1:1") {
		t.Errorf("the log line is %s; want the limits and the address", &text)
	}
}

func TestResultDependsOnHowTheWriteEnded(t *testing.T) {
	lost := func(l *Line) { l.Add(keylimits.Change{Before: keylimits.Limit{Used: 1}}) }
	for name, c := range map[string]struct {
		change    func(*Line)
		err       error
		isRefused bool
		want      Result
	}{
		"ok":      {want: OK},
		"refused": {err: errors.New("e"), isRefused: true, want: Refused},
		"failed":  {err: errors.New("e"), want: Failed},
		"lost":    {change: lost, err: errors.New("e"), want: Unknown},
	} {
		l := sample()
		if c.change != nil {
			c.change(&l)
		}
		if l.End(c.err, c.isRefused); l.Result != c.want || (l.Problem == "") != (c.err == nil) {
			t.Errorf("%s: the line is %+v; want the result %v", name, l, c.want)
		}
	}
}

func TestFileIsAppendedAndMayBeRotated(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.json")
	f, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	write := func(line string) {
		if _, err := f.Write([]byte(line)); err != nil {
			t.Error(err)
		}
	}
	write("one\n")
	if f, err = Open(path); err != nil {
		t.Fatal(err)
	}
	write("two\n")
	if err := os.Rename(path, path+".1"); err != nil {
		t.Fatal(err)
	}
	write("three\n")
	for name, want := range map[string]string{path + ".1": "one\ntwo\n", path: "three\n"} {
		text, err := os.ReadFile(name)
		if info, stat := os.Stat(name); err != nil || stat != nil || string(text) != want || info.Mode().Perm() != 0o600 {
			t.Errorf("%s has %q, %v; want %q with mode 600", name, text, err, want)
		}
	}
	for _, path := range []string{t.TempDir(), filepath.Join(t.TempDir(), "none", "a.json"), "/dev/null"} {
		if _, err := Open(path); err == nil {
			t.Errorf("%s can be the audit file; want an error", path)
		}
	}
}
