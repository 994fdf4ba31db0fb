// Package redistest runs real Redis or Valkey servers for tests. Each server has a temporary folder
// and free ports. When the program that started a server ends, the server ends too, even if the
// program is killed.
//
// Start, StartCluster, StartProxiedCluster and StartSentinel are for tests. Launch, LaunchCluster
// and so on do the same for programs, which must call Close. A [Proxy] is between clients and a
// server, and can lose replies.
package redistest

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

const (
	answerTimeout = 5 * time.Second      // longest wait for the reply to a command
	readyTimeout  = 60 * time.Second     // longest wait for a server, Cluster or Sentinel group to be ready
	pollInterval  = 5 * time.Millisecond // pause between two checks of what is awaited
)

// A Server is one process of [Program] in a temporary folder.
type Server struct {
	Socket string // path of the unix socket
	Addr   string // host:port, "" when the server listens on the socket only
	Source string // the source address of its connections to other servers; "": not set

	dir  string
	port int // the server may listen on it; reserved until the call of remove
	args []string
	env  []string // in addition to the environment of this program

	removal sync.Once

	mu   sync.Mutex
	cmd  *exec.Cmd
	done chan struct{} // closed once cmd has ended

	clusterID string // "" until it is first needed
}

// Launch starts a server without persistence on a unix socket and a free loopback port. args are
// further arguments of the server, which override the defaults.
func Launch(args ...string) (*Server, error) {
	return launch(func(dir string, port int) ([]string, error) {
		return append(defaults(dir, port), args...), nil
	})
}

// Start is Launch for a test. The test fails if the server does not start. At the end of the test,
// the server is closed.
func Start(t testing.TB, args ...string) *Server {
	t.Helper()
	s, err := Launch(args...)
	return mustStart(t, s, err)
}

// String returns the server's address for messages. The server may be nil.
func (s *Server) String() string {
	if s == nil {
		return "no server"
	}
	return cmp.Or(s.Addr, s.Socket)
}

// URL returns the address of the unix socket, unix:///path.
func (s *Server) URL() string { return "unix://" + s.Socket }

// PID returns the process id, or the last process id if the server is down.
func (s *Server) PID() int {
	cmd, _ := s.process()
	return cmd.Process.Pid
}

// Do runs a command on a new connection, and waits up to 5 s. The reply is a string, int64, nil or
// []any. An error reply is returned as the error, with its text.
func (s *Server) Do(args ...string) (any, error) {
	return call("unix", s.Socket, answerTimeout, args...)
}

// Kill ends the process with SIGKILL, and returns when it has ended.
func (s *Server) Kill() {
	cmd, done := s.process()
	_ = cmd.Process.Kill() // fails only if the process has already ended
	select {
	case <-done:
	case <-time.After(answerTimeout):
		panic(fmt.Sprintf("redistest: process %d outlived SIGKILL by %v", cmd.Process.Pid, answerTimeout))
	}
}

// Pause stops the process. The kernel still accepts connections, but no command gets a reply until
// Resume.
func (s *Server) Pause() {
	cmd, _ := s.process()
	_ = cmd.Process.Signal(stopSignal)
	for end := time.Now().Add(answerTimeout); !isStopped(cmd.Process.Pid) && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
}

// Resume continues a paused process.
func (s *Server) Resume() {
	cmd, _ := s.process()
	_ = cmd.Process.Signal(continueSignal)
}

// Restart starts a killed server again with the same folder, socket and port. It returns when the
// server executes commands.
func (s *Server) Restart() error {
	if _, done := s.process(); !isClosed(done) {
		return fmt.Errorf("redistest: restart: process %d still runs", s.PID())
	}
	// A connection of another process may use the port for a moment.
	return await(readyTimeout, func() error {
		err := s.start()
		if err != nil && !errors.Is(err, errPortTaken) {
			return permanentError{err}
		}
		return err
	})
}

// Relaunch is Restart with further arguments, which also apply to later restarts. It returns as
// soon as the server answers anything, even if the server is still loading data.
func (s *Server) Relaunch(args ...string) error {
	if _, done := s.process(); !isClosed(done) {
		return fmt.Errorf("redistest: relaunch: process %d still runs", s.PID())
	}
	s.args = append(s.args, args...)
	return await(readyTimeout, func() error {
		err := s.startUntil(s.checkAnswers)
		if err != nil && !errors.Is(err, errPortTaken) {
			return permanentError{err}
		}
		return err
	})
}

// CommandStats returns how often the command ran, and for how many microseconds in total.
// Subcommands have Redis' names, such as "config|get".
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

// UsedMemory returns how many bytes Redis has allocated.
func (s *Server) UsedMemory() (int64, error) {
	fields, err := s.info("memory")
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(fields["used_memory"], 10, 64)
}

// Close ends the process and removes its folder. A second call does nothing.
func (s *Server) Close() {
	s.Kill()
	s.remove()
}

// remove removes the folder of a server that does not run, and releases its ports.
func (s *Server) remove() {
	s.removal.Do(func() {
		_ = os.RemoveAll(s.dir)
		reserved.release(s.port)
		if bus, err := strconv.Atoi(option(s.args, "--cluster-port")); err == nil {
			reserved.release(bus)
		}
	})
}

// Log returns the log of all runs of the server.
func (s *Server) Log() string {
	text, _ := os.ReadFile(s.logFile())
	return string(text)
}

// A recipe returns the arguments of a server with this folder and port.
type recipe func(dir string, port int) ([]string, error)

var errPortTaken = errors.New("redistest: another process has taken the port")

func launch(r recipe) (*Server, error) {
	return launchEnv(func(dir string, port int) (args, env []string, err error) {
		args, err = r(dir, port)
		return args, nil, err
	})
}

// An envRecipe also returns environment variables of the server.
type envRecipe func(dir string, port int) (args, env []string, err error)

func launchEnv(r envRecipe) (*Server, error) {
	if testing.Testing() && testing.Short() {
		return nil, errShort
	}
	const maxTries = 5 // with a new port each
	var s *Server
	err := errPortTaken
	for tries := 0; tries < maxTries && errors.Is(err, errPortTaken); tries++ {
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
		reserved.release(port)
		return nil, err
	}
	s := &Server{dir: dir, port: port, Socket: filepath.Join(dir, "redis.sock")}
	if s.args, s.env, err = r(dir, port); err == nil {
		err = s.start()
	}
	if err != nil {
		s.remove()
		return nil, err
	}
	if port := option(s.args, "--tls-port"); port != "" {
		s.Addr = net.JoinHostPort(option(s.args, "--bind"), port)
	} else if port := option(s.args, "--port"); port != "0" {
		s.Addr = net.JoinHostPort("127.0.0.1", port)
	}
	return s, nil
}

// start returns when the server executes commands. After an error no process is left.
func (s *Server) start() error { return s.startUntil(s.checkReady) }

// startUntil starts the process, and returns when the check ready succeeds.
func (s *Server) startUntil(ready func() error) error {
	log, err := os.OpenFile(s.logFile(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	oldLogSize := len(s.Log()) // in bytes

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

	err = await(readyTimeout, func() error {
		if isClosed(done) {
			return permanentError{fmt.Errorf("%s ended before it was ready", Program())}
		}
		return ready()
	})
	if err == nil {
		return nil
	}
	s.Kill()
	if strings.Contains(s.Log()[oldLogSize:], "Address already in use") {
		return errPortTaken
	}
	return s.explain(err)
}

// checkReady returns nil when the server executes commands. An error reply other than LOADING, such
// as NOAUTH, also proves this.
func (s *Server) checkReady() error {
	_, err := s.Do("PING")
	if reply, ok := errors.AsType[replyError](err); ok && !strings.HasPrefix(string(reply), "LOADING") {
		return nil
	}
	return err
}

// checkAnswers returns nil when the server answers, even if it is still loading.
func (s *Server) checkAnswers() error {
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
	const maxLines = 15
	lines := strings.Split(strings.TrimSpace(s.Log()), "\n")
	return fmt.Errorf("%w\nlog of the server, last lines:\n%s", err, strings.Join(lines[max(0, len(lines)-maxLines):], "\n"))
}

func defaults(dir string, port int) []string {
	return []string{
		"--dir", dir, "--unixsocket", filepath.Join(dir, "redis.sock"),
		"--bind", "127.0.0.1", "--port", strconv.Itoa(port),
		"--save", "", "--appendonly", "no", "--enable-debug-command", "yes",
		"--repl-diskless-sync-delay", "0", // otherwise a replica waits 5 s for further replicas
	}
}

// option returns the last value of the option in args, which is the one that Redis uses.
func option(args []string, name string) (value string) {
	for i, arg := range args[:max(len(args)-1, 0)] {
		if strings.EqualFold(arg, name) {
			value = args[i+1]
		}
	}
	return value
}

// freePort reserves a TCP port for a server. The port stays reserved while the server is down. The
// port is below 32768, where Linux assigns no ports to clients.
func freePort() (int, error) {
	const first, end = 16384, 32768
	var err error
	for range 100 {
		port := first + rand.IntN(end-first)
		if err = reserved.reserve(port); err != nil {
			continue
		}
		var l net.Listener
		if l, err = net.Listen("tcp", address(port)); err == nil {
			return port, l.Close()
		}
		reserved.release(port)
	}
	return 0, err
}

func address(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

// reservations has the TCP ports that this process has reserved. For each of them, it keeps a UDP
// socket with the same port number. Another process cannot open that socket, so it cannot reserve
// the port too. Servers do not use UDP.
type reservations struct {
	mu     sync.Mutex
	byPort map[int]net.PacketConn
}

var reserved = reservations{byPort: make(map[int]net.PacketConn)}

func (r *reservations) reserve(port int) error {
	socket, err := net.ListenPacket("udp", address(port))
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.byPort[port] = socket
	return nil
}

// release ends the reservation of a port, if there is one.
func (r *reservations) release(port int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if socket := r.byPort[port]; socket != nil {
		socket.Close()
		delete(r.byPort, port)
	}
}

// starter runs every start on one thread that lives as long as the program. For the kernel, the
// parent of a server is the thread that started it: the server gets its death signal when that
// thread ends.
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

// startTied starts a process that ends when this program ends.
func startTied(cmd *exec.Cmd) error {
	cmd.SysProcAttr = sysProcAttr()
	result := make(chan error)
	starter() <- func() { result <- cmd.Start() }
	return <-result
}

type closer interface{ Close() }

// errShort is the error of starting a server in a test with the flag -short.
var errShort = errors.New("redistest: with -short, no server is started")

// mustStart ends the test if err is not nil. At the end of the test it closes c.
func mustStart[T closer](t testing.TB, c T, err error) T {
	t.Helper()
	if errors.Is(err, errShort) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// A permanentError is an error that waiting cannot fix.
type permanentError struct{ error }

func (e permanentError) Unwrap() error { return e.error }

// await polls until check returns nil. If that takes longer than limit, it returns the last error
// of check, which names what is missing.
func await(limit time.Duration, check func() error) error {
	for end := time.Now().Add(limit); ; time.Sleep(pollInterval) {
		err := check()
		if err == nil {
			return nil
		}
		if e, isPermanent := errors.AsType[permanentError](err); isPermanent {
			return e.error
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
