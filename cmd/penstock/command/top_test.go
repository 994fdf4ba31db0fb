package command

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/testing/redistest"
)

// A screen is a terminal of 80 columns and 60 rows, with penstock top in it.
type screen struct {
	mu   sync.Mutex
	text string // drawn since the last call of await
}

func (s *screen) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.text += string(p)
	return len(p), nil
}

// startTop shows an instance on a screen until the test ends. The test needs no real terminal,
// which a container may not have.
func startTop(t *testing.T, address string) *screen {
	t.Helper()
	var top topCommand
	top.admin.Address = address
	var err error
	if top.instance, err = top.admin.open(credential{}); err != nil {
		t.Fatal(err)
	}
	s := new(screen)
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- top.follow(ctx, s, func() (width, height int, err error) { return 80, 60, nil }) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Errorf("top ended with the error %v; want none", err)
		}
		top.instance.Close()
		s.mu.Lock()
		defer s.mu.Unlock()
		if !strings.HasSuffix(s.text, "\x1b[?25h\x1b[?1049l") {
			t.Error("at its end, top does not show the cursor and the former screen again")
		}
	})
	return s
}

// await waits until all words have been drawn, and returns how long that took.
func (s *screen) await(t *testing.T, words ...string) time.Duration {
	t.Helper()
	start := time.Now()
	s.mu.Lock()
	s.text = ""
	s.mu.Unlock()
	for time.Since(start) < patience {
		s.mu.Lock()
		text := s.text
		s.mu.Unlock()
		hasAll := true
		for _, word := range words {
			hasAll = hasAll && strings.Contains(text, word)
		}
		if hasAll {
			return time.Since(start)
		}
		time.Sleep(20 * time.Millisecond)
	}
	t.Fatalf("after %v, not all of %q are drawn:\n%s", patience, words, s.text)
	return 0
}

// The terminal shows an outage of the store while it lasts, what the limits may admit meanwhile,
// and the end of the outage.
func TestTopShowsAnOutage(t *testing.T) {
	f := &statusFixture{redis: redistest.Start(t)}
	f.process = startProcess(t, "--store=redis://"+f.redis.Addr, "--config", writeFile(t, "rules.yaml", statusPolicy), "--admin-listen=127.0.0.1:0")
	stopped := make(chan struct{})
	var load sync.WaitGroup
	load.Go(func() {
		for {
			select {
			case <-stopped:
				return
			case <-time.After(20 * time.Millisecond):
				if res, err := http.Get("http://" + f.listen + "/near"); err == nil {
					res.Body.Close()
				}
			}
		}
	})
	defer load.Wait()
	defer close(stopped)
	s := startTop(t, f.admin)
	s.await(t, "breaker    closed", "near.hour", "DENIED MOST", "INSTANCES 1 shown")
	f.redis.Kill()
	took := s.await(t, "FAILING", " open: the server is not called", "local, by this instance's share", "WITHOUT THE STORE", "near.hour, while it fails: no more, with one instance")
	t.Logf("the outage was shown after %v", took)
	if err := f.redis.Restart(); err != nil {
		t.Fatal(err)
	}
	t.Logf("its end was shown after %v", s.await(t, "decides again", "breaker    closed"))

	code, out, errors := command("top", "--admin", f.admin, "-o", "json", "--rule", "near")
	var got struct {
		State struct{ Store struct{ Name string } }
		Rules struct{ Rules []struct{ Name string } }
	}
	if err := json.Unmarshal([]byte(out), &got); err != nil || code != exitOK || len(got.Rules.Rules) != 1 {
		t.Fatalf("top -o json --rule near: exit status %d, %v, %s%s; want %d and one rule", code, err, errors, out, exitOK)
	}
	if rule, store := got.Rules.Rules[0].Name, got.State.Store.Name; rule != "near" || !strings.HasPrefix(store, "redis://") {
		t.Errorf("top -o json --rule near shows the rule %s and the store %s; want the rule near and a URL", rule, store)
	}
	if code, out, _ := command("top", "--admin", f.admin); code != exitOK || !strings.Contains(out, "near.hour") || strings.Contains(out, "\x1b") {
		t.Errorf("top without a terminal: exit status %d, %s; want %d with %q", code, out, exitOK, "near.hour")
	}
	for args, want := range map[string]struct {
		code int
		text string
	}{
		"--admin " + f.admin + " --rule none":  {exitUsage, `has no rule "none"`},
		"--admin " + f.listen:                  {exitUsage, "not that of the admin API"},
		"--admin 127.0.0.1:1 --once":           {exitUnreachable, "does not answer"},
		"--admin " + f.admin + " -o yaml":      {exitUsage, "text or json"},
		"--admin " + f.admin + " --admin-ca /": {exitUsage, "--admin-ca"},
	} {
		if code, out, errors := command(append([]string{"top"}, strings.Fields(args)...)...); code != want.code || out != "" || !strings.Contains(errors, want.text) {
			t.Errorf("top %s: exit status %d, %q, %s; want %d with %q", args, code, out, errors, want.code, want.text)
		}
	}
}
