package command

import (
	"bufio"
	"encoding/json"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/redistest"
)

// A screen is penstock top in a terminal of script(1).
type screen struct {
	mu   sync.Mutex
	text string // drawn since the last call of await
}

// startTop starts penstock top in a terminal of 80 columns and 60 rows.
func startTop(t *testing.T, args ...string) *screen {
	t.Helper()
	script, err := exec.LookPath("script")
	if err != nil {
		t.Skip("script(1) is not installed, so there is no terminal")
	}
	c := exec.CommandContext(t.Context(), script, "-qfc", strings.Join(append([]string{"stty cols 80 rows 60;", os.Args[0], "top"}, args...), " "), "/dev/null")
	c.Env = []string{"BE_PENSTOCK=1", "PATH=" + os.Getenv("PATH"), "SHELL=/bin/sh"}
	out, err := c.StdoutPipe()
	if err == nil {
		err = c.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	s := new(screen)
	t.Cleanup(func() { _ = c.Process.Kill(); _ = c.Wait() })
	go func() {
		lines := bufio.NewReader(out)
		for {
			line, err := lines.ReadString('\n')
			s.mu.Lock()
			s.text += line
			s.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
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
	s := startTop(t, "--admin", f.admin)
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
