package command

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/penstock/penstock/cmd/penstock/internal/console/adminapi"
	"github.com/penstock/penstock/internal/testing/eventually"
)

// A lockedBuffer collects what a command prints. A test may read it while the command runs.
type lockedBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// The command shows each denial of a running instance as it happens. The log of the instance has a
// line with the masked key.
func TestDenialsAreFollowed(t *testing.T) {
	f := &statusFixture{process: startProcess(t, "--config", writeFile(t, "rules.yaml", statusPolicy), "--admin-listen=127.0.0.1:0", "--operator-token=a-token-of-operators")}
	t.Setenv("PENSTOCK_OPERATOR_TOKEN", "a-token-of-operators")
	ctx, stop := context.WithCancel(t.Context())
	out, jsonOut := new(lockedBuffer), new(lockedBuffer)
	var all sync.WaitGroup
	for output, args := range map[*lockedBuffer]string{out: "--rule login", jsonOut: "--key key:customer-4711 -o json"} {
		all.Go(func() {
			if code := Run(ctx, append([]string{"denials", "--follow", "--admin", f.admin}, strings.Fields(args)...), output, output); code != exitOK {
				t.Errorf("denials --follow %s: exit status %d, %s; want %d", args, code, output, exitOK)
			}
		})
	}
	eventually.True(t, "a denial in both outputs", func() bool {
		f.request(t, "/login", "customer-4711")
		f.request(t, "/near", "customer-4711")
		return out.String() != "" && jsonOut.String() != ""
	})
	stop()
	all.Wait()
	line, _, _ := strings.Cut(out.String(), "\n")
	for _, want := range []string{"login.hour key:cu…11#", "denied, retry in", ", by store"} {
		if !strings.Contains(line, want) {
			t.Errorf("the first denial is %s; want %q in it", line, want)
		}
	}
	if strings.Contains(line, "4711") {
		t.Errorf("the first denial is %s; want a masked key", line)
	}
	checkDenial(t, jsonOut.String())
	f.await(t, "request denied")

	code, text, errors := command("denials", "--admin", f.admin, "--rule", "login")
	if code != exitOK || !strings.Contains(text, "login.hour") {
		t.Errorf("denials without --follow: exit status %d, %s%s; want %d with %q", code, text, errors, exitOK, "login.hour")
	}
	if strings.Contains(text, "near.") || strings.Contains(text, "4711") {
		t.Errorf("denials --rule login prints %s; want no other rule and no whole key", text)
	}
	for args, want := range map[string]struct {
		code int
		text string
	}{
		"--follow --admin 127.0.0.1:1":                  {exitUnreachable, "does not answer"},
		"--key a --admin " + f.admin:                    {exitUsage, "only with --follow"},
		"--follow --admin " + f.listen:                  {exitUsage, "not that of the admin API"},
		"--admin " + f.listen:                           {exitUsage, "not that of the admin API"},
		"--follow --admin " + f.admin + " -o x":         {exitUsage, "text or json"},
		"--follow --admin " + f.admin + " --admin-ca=/": {exitUsage, "--admin-ca"},
	} {
		if code, out, errors := command(append([]string{"denials"}, strings.Fields(args)...)...); code != want.code || out != "" || !strings.Contains(errors, want.text) {
			t.Errorf("denials %s: exit status %d, %q, %s; want %d with %q", args, code, out, errors, want.code, want.text)
		}
	}
}

// Denials by a limit of all clients have no key, so the total says that it lacks them. It is the
// total of all rules, also with --rule.
func TestTotalOfDenialsSaysWhatItCounts(t *testing.T) {
	const policy = `
rules:
  - {name: keys, per: {key: header X-Key}, limits: [{rate: 1/h}]}
  - {name: all, match: {path: /all}, per: global, limits: [{rate: 1/h}]}
`
	f := &statusFixture{process: startProcess(t, "--config", writeFile(t, "rules.yaml", policy), "--admin-listen=127.0.0.1:0")}
	for range 3 { // two are denied
		f.request(t, "/keys", "a")
		f.request(t, "/all", "a")
	}
	for _, rule := range []string{"", "keys", "all"} {
		const want = "The keys of all rules together: denials in 5m: 2. Denials by limits of all clients together (per: global) have no\nkey, so they are not in this number; the page Rules of the dashboard shows them.\nDenials of the last 3 s may be missing, and those that other instances made in the last 6 s."
		if code, out, errors := command("denials", "--admin", f.admin, "--rule", rule); code != exitOK || !strings.Contains(out, want) {
			t.Errorf("denials of rule %q: exit status %d, %s%s; want %d with %q", rule, code, out, errors, exitOK, want)
		}
	}
}

// checkDenial checks that the first line of a text is a denial in JSON.
func checkDenial(t *testing.T, text string) {
	t.Helper()
	line, _, _ := strings.Cut(text, "\n")
	var d adminapi.Denial
	if err := json.Unmarshal([]byte(line), &d); err != nil || d.Outcome != "denied" || d.Rule == "" || d.RetryMS <= 0 {
		t.Errorf("the first line is %s, %v; want JSON of a denial with its rule and a retry time", line, err)
	}
}

// The command connects again when the stream of denials ends. Texts of clients cannot control the
// terminal.
func TestFollowingConnectsAgain(t *testing.T) {
	connections := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		connections++
		if connections == 2 {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprint(w, "event: other\ndata: {}\n\nevent: denial\ndata: {\"rule\": \"a\\u001b[2J\", \"limit\": \"b\", \"outcome\": \"denied\", \"retry_after_ms\": -1}\n\n")
	}))
	defer server.Close()
	ctx, stop := context.WithCancel(t.Context())
	out, errors := new(lockedBuffer), new(lockedBuffer)
	ended := make(chan int)
	go func() {
		ended <- Run(ctx, []string{"denials", "-f", "--admin", server.Listener.Addr().String()}, out, errors)
	}()
	eventually.True(t, "two denials", func() bool { return strings.Count(out.String(), "\n") >= 2 })
	stop()
	if code := <-ended; code != exitOK || strings.Count(errors.String(), "trying again") < 2 {
		t.Errorf("denials -f: exit status %d, %s; want %d, and two new connections", code, errors, exitOK)
	}
	if text := out.String(); strings.Contains(text, "\x1b") || !strings.Contains(text, "a�[2J.b  denied forever") {
		t.Errorf("denials -f prints %q; want denials without control characters", text)
	}
}

func TestAnswersCannotControlTheTerminal(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		if strings.Contains(q.URL.Path, "offenders") {
			w.Write([]byte(`{"window": "\u001b[2J", "offenders": [{"rule": "\u001b]0;", "identity": "\u009b", "ref": "\u001b[1m"}]}`))
			return
		}
		w.WriteHeader(http.StatusForbidden)
		w.Write([]byte(`{"detail": "\u001b[2J\r\u009b31mno"}`))
	}))
	defer server.Close()
	address := strings.TrimPrefix(server.URL, "http://")
	for _, args := range []string{"denials", "denials --follow", "top --once", "status key:a", "reset key:a --reason r --yes"} {
		_, out, errors := command(append(strings.Fields(args), "--admin", address)...)
		if out+errors == "" || strings.ContainsAny(out+errors, "\x1b\r\u009b") {
			t.Errorf("%s prints %q and %q; want a text without control characters", args, out, errors)
		}
	}
	var out lockedBuffer
	if err := (&denialsCommand{output: "json"}).print(&out, "denial", []byte("{\"rule\":\r\"\u009ba\",\"x\":1}")); err != nil || strings.ContainsAny(out.String(), "\r\u009b") {
		t.Errorf("a denial is printed as %q, %v; want no control characters and no error", out.String(), err)
	}
}
