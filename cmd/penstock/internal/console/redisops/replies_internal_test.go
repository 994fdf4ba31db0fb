package redisops

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/redisstore"
)

// A fakeClient answers each script by a function of its keys and arguments.
type fakeClient struct {
	redisstore.Client
	reply func(keys, args []string) (string, error)
}

func (c fakeClient) Eval(_ context.Context, _ string, keys, args []string) (string, error) {
	return c.reply(keys, args)
}

func (fakeClient) Sharded(context.Context) (bool, error) { return false, nil }
func (fakeClient) Close() error                          { return nil }

func newStore(t *testing.T, reply func(keys, args []string) (string, error)) *redisstore.Store {
	t.Helper()
	s, err := redisstore.New(fakeClient{reply: reply}, redisstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// A reply of a wrong form is an error of the store, and not of the caller.
func TestRepliesAreChecked(t *testing.T) {
	for reply, want := range map[string]string{
		"2\n1 2\nnxy": "2 [{n xy}]", "0\n": "0 []", "5\n0 0\n1 0\nm": "5 [{ } {m }]", "": "", "x\n": "", "1\n1 2\nnx": "", "1\n-1 2\nnxy": "", "1\n1 -2\nnxy": "", "1\nx\n": "", "1\n1 2": "",
	} {
		all, n, err := parseSummaries(reply)
		if got := fmt.Sprint(n, " ", all); (err != nil) != (want == "") || err == nil && got != want {
			t.Errorf("the reply %q is read as %s, %v; want %q", reply, got, err, want)
		}
	}
	if _, err := parseInfo("used_memory:1\r\n" + strings.Repeat("x", 1<<20-15)); err != nil {
		t.Errorf("a reply of 1 MiB: %v; want no error", err)
	}
	if _, err := parseInfo("used_memory:1\r\n" + strings.Repeat("x", 1<<20-14)); err == nil {
		t.Error("a reply of more than 1 MiB is accepted; want an error")
	}
}

// Summaries are read in parts of 20, up to 100.
func TestSummariesAreReadInParts(t *testing.T) {
	for n, want := range map[int]string{
		0: "-20 -1", 20: "-20 -1", 21: "-20 -1 -40 -21", 40: "-20 -1 -40 -21", 1000: "-20 -1 -40 -21 -60 -41 -80 -61 -100 -81",
	} {
		var ranges []string
		s := newStore(t, func(keys, args []string) (string, error) {
			ranges = append(ranges, args[0], args[1])
			if keys[0] != "ps1{%@}instances" || len(args) != 2 {
				t.Errorf("the script gets the key %q and the arguments %q; want that of instances, and a range", keys, args)
			}
			return fmt.Sprint(n, "\n1 1\nab"), nil
		})
		all, instances, err := ReadSummaries(t.Context(), s)
		if got := strings.Join(ranges, " "); got != want || err != nil || instances != n || len(all) != len(ranges)/2 {
			t.Errorf("of %d instances, the ranges %s are read as %d summaries, %v; want %s, and one of each", n, got, len(all), err, want)
		}
		s.Close()
	}
	s := newStore(t, func(_, _ []string) (string, error) { return "x", nil })
	defer s.Close()
	if _, _, err := ReadSummaries(t.Context(), s); penstock.AsStoreError(err) == nil {
		t.Errorf("a wrong reply: %v; want a StoreError", err)
	}
	for _, c := range []struct {
		size    int
		life    time.Duration
		isValid bool
	}{{16 << 10, time.Millisecond, true}, {16<<10 + 1, time.Second, false}, {1, time.Millisecond - 1, false}} {
		if err := WriteSummary(t.Context(), s, "i", strings.Repeat("x", c.size), c.life); (err == nil) != c.isValid || err != nil && !errors.Is(err, penstock.ErrInvalid) {
			t.Errorf("a summary of %d bytes for %v: %v; want it valid: %t", c.size, c.life, err, c.isValid)
		}
	}
}

func TestSamplesHaveABound(t *testing.T) {
	for _, c := range []struct {
		n    int
		want string
	}{{-1, "1"}, {0, "1"}, {1, "1"}, {500, "500"}, {501, "500"}} {
		s := newStore(t, func(_, args []string) (string, error) {
			if args[0] != c.want {
				t.Errorf("a sample of %d keys has the arguments %q; want the number %s first", c.n, args, c.want)
			}
			return "4 2\n1 a", nil
		})
		if k, err := SampleKeys(t.Context(), s, c.n); err != nil || k.Total != 4 || k.Seen != 2 || k.Groups["a"] != 2 {
			t.Errorf("the sample is %+v, %v; want 4 keys, 2 of them seen, and 2 of a", k, err)
		}
		s.Close()
	}
}
