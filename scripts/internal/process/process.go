// Package process starts programs for the checks of this module. They end with the test.
package process

import (
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// A Process is a running program.
type Process struct {
	t    testing.TB
	name string
	log  string // path of its output
	cmd  *exec.Cmd
	done chan struct{} // is closed when the program has ended
}

// Start starts a program, and ends it at the end of the test. The name is that of its log.
func Start(t testing.TB, name string, cmd *exec.Cmd) *Process {
	t.Helper()
	p := &Process{t, name, filepath.Join(t.TempDir(), name+".log"), cmd, make(chan struct{})}
	out, err := os.Create(p.log)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = cmd.Wait() // Await reports a process that has ended
		close(p.done)
	}()
	t.Cleanup(p.End)
	return p
}

// End ends the process with SIGINT, so that it ends its children. After 5 s it uses SIGKILL.
func (p *Process) End() {
	p.Signal(os.Interrupt)
	select {
	case <-p.done:
	case <-time.After(5 * time.Second):
		p.Signal(os.Kill)
		<-p.done
	}
}

// Signal sends a signal to the process, which may have ended.
func (p *Process) Signal(s os.Signal) { _ = p.cmd.Process.Signal(s) }

// Log returns what the process has written.
func (p *Process) Log() string {
	text, _ := os.ReadFile(p.log)
	return string(text)
}

// Await waits until check returns nil, for a minute at most. The parameter what describes the
// expected state. If Await fails, it ends the test with the end of the log.
func (p *Process) Await(what string, check func() error) {
	p.t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		err := check()
		if err == nil {
			return
		}
		hasEnded := false
		select {
		case <-p.done:
			hasEnded = true
		default:
		}
		if hasEnded || time.Now().After(end) {
			const shown = 2000 // bytes of the log
			log := p.Log()
			p.t.Fatalf("%s: this never became true: %s: %v\n%s", p.name, what, err, log[max(0, len(log)-shown):])
		}
	}
}

// AwaitListening waits until the process accepts connections at an address.
func (p *Process) AwaitListening(address string) {
	p.t.Helper()
	p.Await("it listens on "+address, func() error {
		conn, err := net.Dial("tcp", address)
		if err == nil {
			err = conn.Close()
		}
		return err
	})
}

var build = sync.OnceValues(func() (program string, err error) {
	if program, err = filepath.Abs("../../bin/penstock"); err != nil {
		return "", err
	}
	cmd := exec.Command("go", "build", "-o", program, ".")
	cmd.Dir = "../../cmd/penstock"
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build penstock: %w\n%s", err, out)
	}
	return program, nil
})

// Penstock builds penstock, and returns the path of the program.
func Penstock(t testing.TB) string {
	t.Helper()
	program, err := build()
	if err != nil {
		t.Fatal(err)
	}
	return program
}

// A Service is a running penstock serve, with the addresses at which it listens.
type Service struct {
	*Process
	Listen, API, GRPC string
	Admin             string `json:"admin_listen"`
}

// Serve starts penstock serve, and returns when it listens. By default it has no admin listener.
func Serve(t testing.TB, args ...string) *Service {
	t.Helper()
	cmd := exec.Command(Penstock(t), append([]string{"serve", "--log-format=json", "--admin-listen=off"}, args...)...)
	s := &Service{Process: Start(t, "penstock", cmd)}
	s.Await("penstock serve listens", func() error {
		for line := range strings.Lines(s.Log()) {
			if strings.Contains(line, `"msg":"listening"`) {
				return json.Unmarshal([]byte(line), s)
			}
		}
		return errors.New("the log has no line \"listening\"")
	})
	return s
}

// FreeAddress returns an address on loopback at which nothing listens.
func FreeAddress(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// ServeHTTP serves HTTP at a free address, until the test ends.
func ServeHTTP(t testing.TB, h http.Handler) (address string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go http.Serve(l, h)
	return l.Addr().String()
}

var client = http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{
	TLSClientConfig:   &tls.Config{InsecureSkipVerify: true}, // the certificates are made up
	DisableKeepAlives: true,
}}

// Get returns the body of a response with status 200.
func Get(url string) (string, error) {
	res, err := client.Get(url)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode != http.StatusOK {
		err = fmt.Errorf("GET %s: %s: %.200s", url, res.Status, text)
	}
	return string(text), err
}

// Run runs a program, and returns its standard output. If it fails, Run ends the test.
func Run(t testing.TB, program string, args ...string) string {
	t.Helper()
	out, err := Try(program, args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// Try runs a program, and returns its standard output. The error has its standard error.
func Try(program string, args ...string) (string, error) {
	out, err := exec.Command(program, args...).Output()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		err = fmt.Errorf("%s %s: %w\n%s%s", filepath.Base(program), strings.Join(args, " "), err, out, exit.Stderr)
	}
	return string(out), err
}

// WriteFile writes a file, with its folders.
func WriteFile(t testing.TB, path, text string) {
	t.Helper()
	err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644))
	if err != nil {
		t.Fatal(err)
	}
}

// ReadFile returns the text of a file.
func ReadFile(t testing.TB, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
