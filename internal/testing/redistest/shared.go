package redistest

import (
	"flag"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
)

var (
	isServerStarted, isClusterStarted bool // whether they were started; read by Main after all tests

	shared = sync.OnceValues(func() (*Server, error) {
		isServerStarted = true
		return Launch()
	})
	sharedCluster = sync.OnceValues(func() (*Cluster, error) {
		isClusterStarted = true
		return launchTolerant()
	})
)

// Shared returns the server that all tests of a package share. Each test uses its own keys. A test
// that stops, fills, flushes or configures a server must start its own server. So must a test that
// checks state that other tests may change. The package needs a TestMain that calls Main.
func Shared(t testing.TB) *Server {
	t.Helper()
	s, err := shared()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// SharedCluster is Shared for a Cluster.
func SharedCluster(t testing.TB) *Cluster {
	t.Helper()
	c, err := sharedCluster()
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// Main runs the tests of a package, up to 8 in parallel, because most of them wait for servers.
// Then it closes the shared servers. Main fails if a goroutine still runs code of the package with
// this import path, or of a package below that path.
func Main(m *testing.M, path string) {
	flag.Parse()
	isParallelSet := false
	flag.Visit(func(f *flag.Flag) { isParallelSet = isParallelSet || f.Name == "test.parallel" })
	if !isParallelSet {
		_ = flag.Set("test.parallel", "8")
	}
	code := m.Run()
	if isServerStarted {
		if s, err := shared(); err == nil {
			s.Close()
		}
	}
	if isClusterStarted {
		if c, err := sharedCluster(); err == nil {
			c.Close()
		}
	}
	if left := goroutinesOf(path); left != "" && code == 0 {
		_, _ = os.Stderr.WriteString("goroutines are left after the tests:\n\n" + left + "\n")
		code = 1
	}
	os.Exit(code)
}

// goroutinesOf returns the stacks of the goroutines that run code of a package, except this one. It
// waits up to 5 s for these goroutines to end. The idle goroutines of a store that was not closed
// live for 10 s, so they are reported.
func goroutinesOf(path string) (left string) {
	buf := make([]byte, 16<<20) // stacks beyond this are not examined
	for end := time.Now().Add(5 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		stacks := strings.Split(string(buf[:runtime.Stack(buf, true)]), "\n\n")
		var found []string
		for _, stack := range stacks[1:] { // the first is this goroutine
			if strings.Contains(stack, path) {
				found = append(found, stack)
			}
		}
		if left = strings.Join(found, "\n\n"); left == "" || time.Now().After(end) {
			return left
		}
	}
}
