// Package redistest runs real Redis or Valkey servers that nobody has to clean up:
// each lives in a temporary folder, on ports the system picked, and dies with the
// program that started it, even when that program is killed.
//
// Start, StartCluster, StartProxiedCluster and StartSentinel serve tests; their
// Launch twins serve programs, which call Close themselves. A [Proxy] stands
// before a server and loses its replies.
package redistest

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

const (
	answerLimit = 5 * time.Second  // one command
	readyLimit  = 60 * time.Second // one server, cluster or sentinel group
	pollEvery   = 5 * time.Millisecond
)

// A Server is one process of [Program] in a temporary folder.
type Server struct {
	Socket string // path of the unix socket
	Addr   string // host:port, "" when the server listens on the socket only
	Source string // the IP address from which it reaches other servers, "" when that is any

	dir  string
	args []string
	env  []string // besides the program's own

	mu   sync.Mutex
	cmd  *exec.Cmd
	done chan struct{} // closed once cmd has ended

	clusterID string // "" while nobody has asked
}

// Launch starts a server without persistence on a unix socket and a free
// loopback port. Its arguments are the program's and win over the defaults.
func Launch(args ...string) (*Server, error) {
	return launch(func(dir string, port int) ([]string, error) {
		return append(defaults(dir, port), args...), nil
	})
}

// Start is Launch for a test, which fails if the server does not come up.
func Start(t testing.TB, args ...string) *Server {
	t.Helper()
	s, err := Launch(args...)
	return started(t, s, err)
}

// URL is the address of the unix socket, unix:///path.
func (s *Server) URL() string { return "unix://" + s.Socket }

// PID is the process id, the last one when the server is down.
func (s *Server) PID() int {
	cmd, _ := s.process()
	return cmd.Process.Pid
}

// Do runs one command on a connection of its own and waits at most 5 s. The
// answer is a string, int64, nil or []any; an error reply is the error, in
// Redis's own words.
func (s *Server) Do(args ...string) (any, error) {
	return call("unix", s.Socket, answerLimit, args...)
}

// Kill ends the process at once, with SIGKILL, and returns when it is gone.
func (s *Server) Kill() {
	cmd, done := s.process()
	_ = cmd.Process.Kill() // fails only when it has ended already
	select {
	case <-done:
	case <-time.After(answerLimit):
		panic(fmt.Sprintf("redistest: process %d outlived SIGKILL by %v", cmd.Process.Pid, answerLimit))
	}
}

// Pause stops the process: connections are still accepted by the kernel, and
// nothing is answered until Resume.
func (s *Server) Pause() {
	cmd, _ := s.process()
	_ = cmd.Process.Signal(syscall.SIGSTOP)
	for end := time.Now().Add(answerLimit); !stopped(cmd.Process.Pid) && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
}

// Resume lets a paused process go on.
func (s *Server) Resume() {
	cmd, _ := s.process()
	_ = cmd.Process.Signal(syscall.SIGCONT)
}

// Restart starts a killed server again in the same folder, on the same socket
// and port, and returns when it answers.
func (s *Server) Restart() error {
	if _, done := s.process(); !isClosed(done) {
		return fmt.Errorf("redistest: restart: process %d still runs", s.PID())
	}
	// A connection of some other process may hold the port for a moment.
	return await(readyLimit, func() error {
		err := s.start()
		if err != nil && !errors.Is(err, errPortTaken) {
			return giveUp{err}
		}
		return err
	})
}

// Relaunch is Restart with more arguments, from then on, and returns as soon as the server answers
// anything: it may be loading.
func (s *Server) Relaunch(args ...string) error {
	if _, done := s.process(); !isClosed(done) {
		return fmt.Errorf("redistest: relaunch: process %d still runs", s.PID())
	}
	s.args = append(s.args, args...)
	return await(readyLimit, func() error {
		err := s.startUntil(s.answers)
		if err != nil && !errors.Is(err, errPortTaken) {
			return giveUp{err}
		}
		return err
	})
}

// CommandStats says how often the command ran, and for how many microseconds
// in all. A subcommand is named as Redis does: "config|get".
func (s *Server) CommandStats(cmd string) (calls, usec int64, err error) {
	fields, err := s.info("commandstats")
	if err != nil {
		return 0, 0, err
	}
	line, ok := fields["cmdstat_"+strings.ToLower(cmd)]
	if !ok {
		return 0, 0, nil // never ran
	}
	_, err = fmt.Sscanf(line, "calls=%d,usec=%d", &calls, &usec)
	return calls, usec, err
}

// UsedMemory is what Redis has allocated, in bytes.
func (s *Server) UsedMemory() (int64, error) {
	fields, err := s.info("memory")
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(fields["used_memory"], 10, 64)
}

// Close ends the process and removes its folder; a second call does nothing.
func (s *Server) Close() {
	s.Kill()
	_ = os.RemoveAll(s.dir)
}

// Log is what the server has logged so far, over all its runs.
func (s *Server) Log() string {
	text, _ := os.ReadFile(s.logFile())
	return string(text)
}

// A recipe names the arguments of a server in dir that listens on port.
type recipe func(dir string, port int) ([]string, error)

var errPortTaken = errors.New("redistest: the port was taken meanwhile")

func launch(r recipe) (*Server, error) {
	return launchEnv(func(dir string, port int) (args, env []string, err error) {
		args, err = r(dir, port)
		return args, nil, err
	})
}

// An envRecipe also names what stands in the server's environment.
type envRecipe func(dir string, port int) (args, env []string, err error)

func launchEnv(r envRecipe) (*Server, error) {
	var s *Server
	err := errPortTaken
	for tries := 0; tries < 5 && errors.Is(err, errPortTaken); tries++ {
		s, err = launchOnce(r)
	}
	return s, err
}

func launchOnce(r envRecipe) (*Server, error) {
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "redistest-")
	if err != nil {
		return nil, err
	}
	s := &Server{dir: dir, Socket: filepath.Join(dir, "redis.sock")}
	if s.args, s.env, err = r(dir, port); err == nil {
		err = s.start()
	}
	if err != nil {
		_ = os.RemoveAll(dir)
		return nil, err
	}
	if port := option(s.args, "--tls-port"); port != "" {
		s.Addr = net.JoinHostPort(option(s.args, "--bind"), port)
	} else if port := option(s.args, "--port"); port != "0" {
		s.Addr = net.JoinHostPort("127.0.0.1", port)
	}
	return s, nil
}

// start returns once the server executes commands; after an error no process is left.
func (s *Server) start() error { return s.startUntil(s.ready) }

func (s *Server) startUntil(ready func() error) error {
	log, err := os.OpenFile(s.logFile(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	before := len(s.Log())

	cmd, done := exec.Command(Program(), s.args...), make(chan struct{})
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Env = append(os.Environ(), s.env...)
	if err := startTied(cmd); err != nil {
		return fmt.Errorf("redistest: start %s: %w", Program(), err)
	}
	go func() {
		defer close(done)
		_ = cmd.Wait()
	}()
	s.mu.Lock()
	s.cmd, s.done = cmd, done
	s.mu.Unlock()

	err = await(readyLimit, func() error {
		if isClosed(done) {
			return giveUp{fmt.Errorf("%s ended at once", Program())}
		}
		return ready()
	})
	if err == nil {
		return nil
	}
	s.Kill()
	if strings.Contains(s.Log()[before:], "Address already in use") {
		return errPortTaken
	}
	return s.explain(err)
}

// ready is nil once commands are executed: an error such as NOAUTH is an answer too.
func (s *Server) ready() error {
	_, err := s.Do("PING")
	if reply, ok := errors.AsType[replyError](err); ok && !strings.HasPrefix(string(reply), "LOADING") {
		return nil
	}
	return err
}

// answers is nil once the server answers, be it that it is loading.
func (s *Server) answers() error {
	_, err := s.Do("PING")
	if _, ok := errors.AsType[replyError](err); ok {
		return nil
	}
	return err
}

func (s *Server) process() (*exec.Cmd, chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cmd, s.done
}

func (s *Server) info(section string) (map[string]string, error) {
	text, err := s.Do("INFO", section)
	if err != nil {
		return nil, err
	}
	return fieldsOf(text), nil
}

func (s *Server) logFile() string { return filepath.Join(s.dir, "redis.log") }

// explain adds the end of the server's log to err.
func (s *Server) explain(err error) error {
	lines := strings.Split(strings.TrimSpace(s.Log()), "\n")
	return fmt.Errorf("%w\nlog of the server, last lines:\n%s", err, strings.Join(lines[max(0, len(lines)-15):], "\n"))
}

func defaults(dir string, port int) []string {
	return []string{
		"--dir", dir, "--unixsocket", filepath.Join(dir, "redis.sock"),
		"--bind", "127.0.0.1", "--port", strconv.Itoa(port),
		"--save", "", "--appendonly", "no", "--enable-debug-command", "yes",
		"--repl-diskless-sync-delay", "0", // otherwise a replica waits 5 s for company
	}
}

// option is the value of the last name in args: Redis lets the last one win.
func option(args []string, name string) (value string) {
	for i, arg := range args[:len(args)-1] {
		if strings.EqualFold(arg, name) {
			value = args[i+1]
		}
	}
	return value
}

func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}

// starter runs every start on one thread that lives as long as the program:
// the death signal is sent when the thread that forked ends, not the process.
var starter = sync.OnceValue(func() chan<- func() {
	starts := make(chan func())
	go func() {
		runtime.LockOSThread()
		for start := range starts {
			start()
		}
	}()
	return starts
})

// startTied starts cmd so that it dies with this program.
func startTied(cmd *exec.Cmd) error {
	cmd.SysProcAttr = tied()
	result := make(chan error)
	starter() <- func() { result <- cmd.Start() }
	return <-result
}

type closer interface{ Close() }

func started[T closer](t testing.TB, c T, err error) T {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// giveUp wraps an error that more waiting cannot mend.
type giveUp struct{ error }

func (g giveUp) Unwrap() error { return g.error }

// await polls until ok is nil; ok's error says what is still missing.
func await(limit time.Duration, ok func() error) error {
	for end := time.Now().Add(limit); ; time.Sleep(pollEvery) {
		err := ok()
		if err == nil {
			return nil
		}
		if g, hopeless := errors.AsType[giveUp](err); hopeless {
			return g.error
		}
		if time.Now().After(end) {
			return fmt.Errorf("redistest: waited %v: %w", limit, err)
		}
	}
}

func isClosed(done <-chan struct{}) bool {
	select {
	case <-done:
		return true
	default:
		return false
	}
}
