package command

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/testing/eventually"
)

// TestMain runs the test binary as the penstock program, if BE_PENSTOCK is set.
func TestMain(m *testing.M) {
	if os.Getenv("BE_PENSTOCK") != "" {
		Main()
	}
	os.Exit(m.Run())
}

// patience is the longest time that a test waits for a command or a process.
const patience = time.Minute

// command runs a command line in this process. It returns the exit status, standard output and
// standard error.
func command(args ...string) (code int, out, err string) {
	var stdout, stderr bytes.Buffer
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	code = Run(ctx, args, &stdout, &stderr)
	return code, stdout.String(), stderr.String()
}

// missingIn returns the wanted texts that a text does not contain.
func missingIn(text string, wanted ...string) (missing []string) {
	for _, want := range wanted {
		if !strings.Contains(text, want) {
			missing = append(missing, want)
		}
	}
	return missing
}

func TestExitCodeDependsOnTheFailure(t *testing.T) {
	broken := writeFile(t, "broken.yaml", "server: [\n")
	outdated := writeFile(t, "outdated.yaml", "server: {grpc_server: standard}\nrules: [{name: a, unlimited: true}]\n")
	for _, c := range []struct {
		args string
		code int
		text string // on standard error
	}{
		{args: "", code: exitOK},
		{args: "--help", code: exitOK},
		{args: "version", code: exitOK},
		{args: "completion bash", code: exitOK},
		{args: "--version", code: exitOK},
		{args: "serve --print-settings", code: exitOK},
		{args: "serve --demo --drain-delay soon", code: exitUsage, text: `drain-delay "soon" (from --drain-delay): it is not a duration`},
		{args: "serve --demo --max-connections 0 --log-level loud", code: exitUsage, text: "it is out of bounds"},
		{args: "explain --from nowhere /", code: exitUsage, text: "nowhere"},
		{args: "explain --config /none.yaml --min-instances many /", code: exitInvalid, text: "/none.yaml"},
		{args: "explain --min-instances many /", code: exitUsage, text: "it is not a whole number"},
		{args: "serve --demo --print-settings", code: exitOK},
		{args: "unknown", code: exitUsage, text: `penstock: unknown command "unknown"`},
		{args: "serve --unknown", code: exitUsage, text: `Run "penstock serve --help" for usage.`},
		{args: "serve --grpc-server standard", code: exitUsage, text: "there is no --grpc-server any more; delete it: "},
		{args: "serve --allow-stated-limits", code: exitUsage, text: "there is no --allow-stated-limits any more; its name is allow_caller_limits now"},
		{args: "serve --demo --config " + outdated, code: exitInvalid, text: `outdated.yaml:1:10: there is no field "grpc_server" here; delete it: `},
		{args: "serve extra", code: exitUsage, text: "penstock serve --help"},
		{args: "version extra", code: exitUsage, text: "penstock version --help"},
		{args: "serve --listen", code: exitUsage, text: "flag needs an argument: --listen"},
		{args: "serve", code: exitInvalid, text: "upstream (not set): write --upstream http://localhost:3000"},
		{args: "serve --upstream localhost:3000", code: exitUsage, text: `upstream "localhost:3000" (from --upstream): it has no scheme`},
		{args: "serve --demo --config /none.yaml", code: exitInvalid, text: "/none.yaml"},
		{args: "serve --demo --config " + broken, code: exitInvalid, text: "broken.yaml:"},
		{args: "serve --demo --tls-cert /none.pem --tls-key /none.pem", code: exitInvalid, text: "tls-cert (--tls-cert)"},
		{args: "serve --demo --store redis://u:hunter2@127.0.0.1:1/x", code: exitUsage, text: "redis URL"},
		{args: "serve --demo --store redis://u:hunter2@127.0.0.1:1 --require-store", code: exitUnreachable, text: "penstock: store redis://127.0.0.1:1 (--store): unreachable: "},
		{args: "serve --resp 0.0.0.0:1", code: exitInvalid, text: "write --caller-token or --caller-client-ca, 127.0.0.1 as the host, or --allow-open-callers if"},
		{args: "validate", code: exitUsage, text: "penstock: an argument is missing; write the name of a policy file, as in: penstock validate rules.yaml"},
		{args: "explain", code: exitUsage, text: "penstock: an argument is missing; write one URL or path, as in: penstock explain --config rules.yaml /api/rides"},
		{args: "serve rules.yaml", code: exitUsage, text: `penstock: the argument "rules.yaml" is one too many; write flags only, as in: penstock serve --config rules.yaml`},
		{args: "validate --config rules.yaml", code: exitUsage, text: "this command has no --config; write the name of the file alone, as in: penstock validate rules.yaml"},
		{args: "test --config rules.yaml cases.yaml", code: exitUsage, text: "this command has no --config; write the name of the file alone, as in: penstock test rules.yaml cases.yaml"},
		{args: "explain /a /b", code: exitUsage, text: `penstock: the argument "/b" is one too many; write one URL or path`},
		{args: "serve --demo --listen 192.0.2.1:1 --admin-listen off", code: exitInternal, text: "listen (--listen)"},
	} {
		code, out, err := command(strings.Fields(c.args)...)
		if code != c.code || !strings.Contains(err, c.text) {
			t.Errorf("penstock %s: exit status %d with %s\nwant %d with %s", c.args, code, err, c.code, c.text)
		}
		if hasOutput := out != ""; hasOutput != (c.code == exitOK) {
			t.Errorf("penstock %s writes %q to standard output; want a text only with exit status 0", c.args, out)
		}
		if strings.Contains(err, "hunter2") {
			t.Errorf("penstock %s shows the password of the store: %s", c.args, err)
		}
	}
}

func TestHelpShowsTheFormOfEachFlag(t *testing.T) {
	_, help, _ := command("serve", "--help")
	help = strings.Join(strings.Fields(help), " ")
	for _, want := range []string{"--demo start a test backend", "--drain-delay duration after SIGTERM", "--listen host:port address for requests; without a host, all addresses of the machine (default :8080)"} {
		if !strings.Contains(help, want) {
			t.Errorf("the help does not contain %q:\n%s", want, help)
		}
	}
}

func TestVersionAsTextAndJSON(t *testing.T) {
	if _, out, _ := command("version"); !strings.HasPrefix(out, "penstock ") || strings.Count(out, "\n") != 1 {
		t.Errorf("version prints %q; want one line", out)
	}
	var b map[string]string
	if _, out, _ := command("version", "-o", "json"); json.Unmarshal([]byte(out), &b) != nil || b["version"] == "" || b["go"] == "" || b["platform"] == "" {
		t.Errorf("version -o json prints %q; want version, go and platform", out)
	}
	if code, _, err := command("version", "-o", "xml"); code != exitUsage || !strings.Contains(err, "write text or json") {
		t.Errorf("version -o xml: exit status %d, %q; want %d with %q", code, err, exitUsage, "write text or json")
	}
	released := build{Version: "v1.2.3", Commit: "0123456789abcdef0123456789abcdef01234567", Date: "2026-11-30T12:00:00Z", Go: "go1.26.8", Platform: "linux/arm64"}
	if line := released.line(); line != "penstock v1.2.3 (commit 0123456789ab of 2026-11-30, go1.26.8, linux/arm64)\n" {
		t.Errorf("a release prints %q; want its version, commit and platform", line)
	}
}

func TestSettingsArePrintedWithTheirSources(t *testing.T) {
	file := filepath.Join(t.TempDir(), "p.yaml")
	text := "server:\n  upstream: http://localhost:3000\n  max_connections: 7\n  pprof: true\nrules: [{name: a, unlimited: true}]\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PENSTOCK_CONFIG", file)
	t.Setenv("REDIS_URL", "redis://:hunter2@r:1")
	t.Setenv("PENSTOCK_KEY_HASH_SECRET", "pepper")
	code, out, errors := command("serve", "--listen", ":1", "--print-settings")
	if code != exitOK {
		t.Fatalf("serve --print-settings fails: %s", errors)
	}
	for _, want := range []string{
		"listen :1 --listen", "upstream http://localhost:3000 server.upstream in " + file, "max-connections 7 server.max_connections in " + file,
		"pprof true server.pprof in " + file,
		"store redis://r:1 REDIS_URL", "key-hash-secret (hidden) PENSTOCK_KEY_HASH_SECRET", "header-timeout 5s default", "config " + file + " PENSTOCK_CONFIG",
	} {
		if !slices.ContainsFunc(strings.Split(out, "\n"), func(line string) bool { return strings.Join(strings.Fields(line), " ") == want }) {
			t.Errorf("no line contains %s:\n%s", want, out)
		}
	}
}

func TestCompletionKnowsValues(t *testing.T) {
	const valuesOnly, filesByExtension = 4, 8 // numbers of cobra's directives to the shell
	for _, c := range []struct {
		args      string
		want      string
		directive int
	}{
		{args: "serve --log-format", want: "text json", directive: valuesOnly},
		{args: "validate --output", want: "text json", directive: valuesOnly},
		{args: "explain -o", want: "text json", directive: valuesOnly},
		{args: "validate", want: "yaml yml", directive: filesByExtension},
		{args: "validate a.yaml", want: "yaml yml", directive: filesByExtension},
		{args: "validate -v -o json", want: "yaml yml", directive: filesByExtension},
		{args: "serve --config", want: "yaml yml", directive: filesByExtension},
		{args: "explain --config", want: "yaml yml", directive: filesByExtension},
		{args: "explain", directive: valuesOnly},
	} {
		_, out, _ := command(append(append([]string{"__complete"}, strings.Fields(c.args)...), "")...)
		if got := strings.Join(strings.Fields(out), " "); got != strings.TrimSpace(fmt.Sprintf("%s :%d", c.want, c.directive)) {
			t.Errorf("after penstock %s the completions are %q; want %s :%d", c.args, got, c.want, c.directive)
		}
	}
}

func TestShellsAcceptTheirCompletion(t *testing.T) {
	for _, shell := range []string{"bash", "zsh", "fish"} {
		code, out, err := command("completion", shell)
		if code != exitOK || !strings.Contains(out, "__complete") || err != "" {
			t.Errorf("completion %s: exit status %d, %d bytes, %s; want %d with %q", shell, code, len(out), err, exitOK, "__complete")
		}
		if _, err := exec.LookPath(shell); err != nil {
			t.Logf("%s is not installed", shell)
			continue
		}
		read := exec.Command(shell, "-n") // check only, do not run
		read.Stdin = strings.NewReader(out)
		if output, err := read.CombinedOutput(); err != nil {
			t.Errorf("%s rejects its completion: %v, %s", shell, err, output)
		}
	}
}

// A process is a running penstock program.
type process struct {
	*exec.Cmd
	lines         *bufio.Scanner
	listen, admin string
}

// startProcess starts penstock serve --demo with the args, and waits until it listens.
func startProcess(t *testing.T, args ...string) *process {
	t.Helper()
	return startProcessBy(t, nil, args...)
}

// startProcessBy starts the program through a wrapper, such as a shell that sets ulimit first.
func startProcessBy(t *testing.T, wrapper []string, args ...string) *process {
	t.Helper()
	all := slices.Concat(wrapper, []string{os.Args[0], "serve", "--demo", "--listen=127.0.0.1:0", "--admin-listen=off", "--log-format=json"}, args)
	p := &process{Cmd: exec.Command(all[0], all[1:]...)}
	p.Env = []string{"BE_PENSTOCK=1", "PATH=" + os.Getenv("PATH")}
	pipe, err := p.StderrPipe()
	if err == nil {
		err = p.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	late := time.AfterFunc(patience, func() { p.Process.Kill() }) // ends the wait if the line never comes
	t.Cleanup(func() {
		late.Stop()
		p.Process.Kill()
		p.Wait()
	})
	p.lines = bufio.NewScanner(pipe)
	for p.lines.Scan() {
		var line struct {
			Msg, Listen string
			Admin       string `json:"admin_listen"`
		}
		if err := json.Unmarshal(p.lines.Bytes(), &line); err != nil {
			t.Fatalf("%q is not JSON: %v", p.lines.Text(), err)
		}
		if line.Msg == "listening" {
			p.listen, p.admin = line.Listen, line.Admin
			return p
		}
	}
	t.Fatalf("the process ended before it listened: %v", p.Wait())
	return nil
}

func TestProcessServesUntilASignal(t *testing.T) {
	for _, signal := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		p := startProcess(t)
		res, err := http.Get("http://" + p.listen + "/api/fares/estimate")
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(res.Body)
		res.Body.Close()
		if res.StatusCode != 200 || !strings.Contains(string(body), "EUR") {
			t.Errorf("the response is %s %s; want 200 with EUR", res.Status, body)
		}
		p.Process.Signal(signal)
		last := ""
		for p.lines.Scan() {
			last = p.lines.Text()
		}
		if err := p.Wait(); err != nil || !strings.Contains(last, `"stopped"`) {
			t.Errorf("after %v: %v, and the last line is %s; want exit status 0 and stopped", signal, err, last)
		}
	}
}

func TestSecondSignalEndsTheProcessAtOnce(t *testing.T) {
	p := startProcess(t, "--drain-delay=1h")
	p.Process.Signal(syscall.SIGTERM)
	for p.lines.Scan() && !strings.Contains(p.lines.Text(), "shutting down") {
	}
	ended := make(chan error, 1)
	go func() { ended <- p.Wait() }()
	for end := time.After(patience); ; {
		p.Process.Signal(syscall.SIGTERM)
		select {
		case err := <-ended:
			if err == nil {
				t.Error("the exit status is 0, as after a drain; want that of a signal")
			}
			return
		case <-end:
			t.Fatalf("the process has not ended %v after the second signal", patience)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// await reads the log until a line contains words.
func (p *process) await(t *testing.T, words string) {
	t.Helper()
	for p.lines.Scan() {
		if strings.Contains(p.lines.Text(), words) {
			return
		}
	}
	t.Fatalf("the process ended without logging %q: %v", words, p.Wait())
}

func TestHangupReloadsThePolicy(t *testing.T) {
	config := writeFile(t, "rules.yaml", "rules: [{name: a, unlimited: true}]\n")
	p := startProcess(t, "--config="+config)
	for range 2 { // the file has not changed: a hangup reloads it anyway
		p.Process.Signal(syscall.SIGHUP)
		p.await(t, "policy reloaded")
	}
	if err := os.WriteFile(config, []byte("rules: [\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	p.Process.Signal(syscall.SIGHUP)
	p.await(t, "policy reload failed")

	demo := startProcess(t)
	for _, p := range []*process{p, demo} {
		p.Process.Signal(syscall.SIGHUP)
		p.Process.Signal(syscall.SIGTERM)
		p.await(t, `"stopped"`)
		if err := p.Wait(); err != nil {
			t.Errorf("a hangup ended the process: %v", err)
		}
	}
}

// The reader of the log may end at any time: its terminal closes, or a log shipper crashes.
func TestServiceOutlivesTheReaderOfItsLog(t *testing.T) {
	config := writeFile(t, "rules.yaml", "rules: [{name: a, unlimited: true}]\n")
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	c := exec.Command(os.Args[0], "serve", "--demo", "--listen=127.0.0.1:0", "--admin-listen=127.0.0.1:0", "--log-format=json", "--config="+config)
	c.Env, c.Stdout, c.Stderr = []string{"BE_PENSTOCK=1"}, write, write
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.Process.Kill()
		c.Wait()
	})
	write.Close()
	var line struct {
		Msg, Listen string
		Admin       string `json:"admin_listen"`
	}
	for lines := bufio.NewScanner(read); line.Msg != "listening"; {
		if !lines.Scan() || json.Unmarshal(lines.Bytes(), &line) != nil {
			t.Fatalf("the service does not listen; the last line of its log is %q", lines.Text())
		}
	}
	read.Close()
	if err := os.WriteFile(config, []byte("rules: [\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	lost := regexp.MustCompile(`(?m)^rate_limiter_log_lines_lost_total [1-9]`)
	eventually.True(t, "rate_limiter_log_lines_lost_total above 0", func() bool {
		c.Process.Signal(syscall.SIGHUP) // makes it log why the reload failed
		return lost.MatchString(mustGet(t, "http://"+line.Admin+"/metrics"))
	})
	mustGet(t, "http://"+line.Listen+"/api/fares/estimate")
	c.Process.Signal(syscall.SIGTERM)
	if err := c.Wait(); err != nil {
		t.Errorf("the process did not drain: %v", err)
	}
}

// net/http logs an unsolicited response of the upstream. The line must have the format of the log,
// without the bytes of the response.
func TestLinesOfTheStandardLibraryHaveTheLogFormat(t *testing.T) {
	upstream, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer upstream.Close()
	go func() {
		for {
			conn, err := upstream.Accept()
			if err != nil {
				return
			}
			http.ReadRequest(bufio.NewReader(conn))
			io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\nSECRET")
		}
	}()
	config := writeFile(t, "rules.yaml", "rules: [{name: a, unlimited: true}]\n")
	p := startProcess(t, "--demo=false", "--config="+config, "--upstream=http://"+upstream.Addr().String())
	for found := false; !found; {
		mustGet(t, "http://"+p.listen+"/")
		p.Process.Signal(syscall.SIGHUP) // makes it log a last line
		for p.lines.Scan() {
			var line struct{ Level, Msg, Err string }
			if err := json.Unmarshal(p.lines.Bytes(), &line); err != nil || strings.Contains(p.lines.Text(), "SECRET") {
				t.Fatalf("the log line %s: %v; want JSON without the secret", p.lines.Text(), err)
			}
			if line.Msg == "message of Go's standard library" && line.Level == "WARN" {
				found = true
			}
			if line.Msg == "policy reloaded" {
				break
			}
		}
	}
}

// A process that may open few file descriptors keeps some for health checks.
func TestHealthChecksWorkWhenClientsUseManyConnections(t *testing.T) {
	block := make(chan struct{})
	upstream := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-block }))
	defer upstream.Close()
	defer close(block)
	config := writeFile(t, "rules.yaml", "rules: [{name: a, unlimited: true}]\n")
	p := startProcessBy(t, []string{"sh", "-c", `ulimit -n 100; exec "$0" "$@"`}, "--demo=false", "--admin-listen=127.0.0.1:0", "--config="+config, "--upstream="+upstream.URL)
	for range 200 { // twice as many as the file descriptors
		conn, err := net.Dial("tcp", p.listen)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		io.WriteString(conn, "GET / HTTP/1.1\r\nHost: h\r\n\r\n")
	}
	p.await(t, "max_connections is reached")
	for range 20 {
		mustGet(t, "http://"+p.admin+"/livez")
		mustGet(t, "http://"+p.admin+"/readyz")
		http.DefaultTransport.(*http.Transport).CloseIdleConnections()
	}
}

// mustGet returns the body of a response with status 200.
func mustGet(t *testing.T, url string) string {
	t.Helper()
	res, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != 200 {
		t.Fatalf("GET %s: status %s, %v; want status 200", url, res.Status, err)
	}
	return string(body)
}
