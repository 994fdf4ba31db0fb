package fastgrpc_test

import (
	"net"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"

	"github.com/penstock/penstock/cmd/penstock/internal/rpc/fastgrpc"
)

// The documentation of Options.MaxConnections promises this bound.
func TestIdleConnectionsAreSmall(t *testing.T) {
	const n = 1000         // idle connections
	const bound = 20 << 10 // bytes of one connection
	server, address := startFast(t, fastgrpc.Options{})
	warm := dialRaw(t, address)
	warm.call(1, "x")
	if got := warm.outcome(1); got != good {
		t.Fatalf("the outcome of the first call is %q; want %q", got, good)
	}
	hello := append([]byte(http2.ClientPreface), 0, 0, 0, 4, 0, 0, 0, 0, 0) // and an empty SETTINGS frame
	connections := make([]net.Conn, n)
	before := inUse()
	for i := range connections {
		conn, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if _, err := conn.Write(hello); err != nil {
			t.Fatal(err)
		}
		answer := make([]byte, (9+12)+(9+4)+9) // SETTINGS, WINDOW_UPDATE and the acknowledgement of SETTINGS; each has a header of 9 bytes
		for read := 0; read < len(answer); {
			got, err := conn.Read(answer[read:])
			if err != nil {
				t.Fatal(err)
			}
			read += got
		}
		connections[i] = conn
	}
	if got := server.Connections(); got != n+1 {
		t.Errorf("%d clients are connected; want %d", got, n+1)
	}
	each := (inUse() - before) / n
	t.Logf("an idle connection takes %d bytes, in the server and the client together", each)
	if each > bound {
		t.Errorf("an idle connection takes %d bytes, in the server and the client together; want at most %d", each, bound)
	}
	runtime.KeepAlive(connections)
}

// A request can arrive in parts after its connection was idle for longer than ReadTimeout. The time
// of the request begins with its first part.
func TestRequestInPartsAfterAnIdleTimeIsAnswered(t *testing.T) {
	inBubble(t, fastgrpc.Options{ReadTimeout: time.Second}, func(t *testing.T, _ *fastgrpc.Server, r *rawClient) {
		r.begin()
		r.call(1, "x")
		if got := r.outcome(1); got != good {
			t.Errorf("the outcome of the first call is %q; want %q", got, good)
		}
		time.Sleep(time.Minute)
		r.headers(3, false, fields())
		synctest.Wait() // the server has read the headers
		r.logError(r.WriteData(3, true, message("x")))
		if got := r.outcome(3); got != good {
			t.Errorf("the outcome of the call in two parts is %q; want %q", got, good)
		}
	})
}

// inUse returns how many bytes the heap and the stacks of this process use.
func inUse() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc + m.StackInuse)
}
