package resplimit

import (
	"bufio"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/guard"
	"github.com/penstock/penstock/internal/testing/effort"
	"github.com/penstock/penstock/internal/testing/eventually"
	"github.com/penstock/penstock/memstore"
)

// hostile are inputs that no ordinary client sends.
func hostile(seed uint64) (inputs []string) {
	numbers := []string{"", "-", "-0", "00", "+1", " 1", "1 ", "1e9", "0x10", "17", "4097", "65536", "2147483647", "2147483648", "4294967296", "9223372036854775807",
		"9223372036854775808", "18446744073709551615", "-1", "-9223372036854775808", "-9223372036854775809", strings.Repeat("9", 31), strings.Repeat("9", 1000), "\x00", "１"}
	for _, n := range numbers {
		inputs = append(inputs, "*"+n+"\r\n$4\r\nPING\r\n", "*1\r\n$"+n+"\r\nPING\r\n", encode("SELECT", n), encode("HELLO", n), encode("PENSTOCK.CHECK", "search", "a", n))
		for at := 2; at < 6; at++ {
			args := []string{"CL.THROTTLE", "a", "1", "1", "1", "1"}
			args[at] = n
			inputs = append(inputs, encode(args...))
			args[0] = "THROTTLE"
			inputs = append(inputs, encode(args...))
		}
	}
	long := strings.Repeat("k", maxBulk)
	for _, command := range []string{"CL.THROTTLE", "PENSTOCK.CHECK", "DEL", "ECHO", "AUTH", "HELLO", "CLIENT", "COMMAND", "CONFIG", "CLUSTER", "INFO", "SELECT", "PING", "QUIT", "RESET", "", long, "\r\n", "\x00", "a\r\n+OK\r\n"} {
		inputs = append(inputs, encode(command), encode(command, ""), encode(command, "\r\n-ERR x\r\n"), encode(command, "a\x00b", "1", "1", "1"), encode(command, long, long, long),
			encode(command, "SETNAME", "a b"), encode(command, "\xff\xfe", "\r", "\n"), strings.ToLower(command)+"\r\n", command+" \"\r\n", command+" \\x '\r\n")
	}
	inputs = append(inputs, "GET / HTTP/1.1\r\nHost: example.com\r\n\r\n", "POST / HTTP/1.1\r\nContent-Length: 40\r\n\r\nCL.THROTTLE victim 0 1 999999\r\n",
		"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "SSH-2.0-OpenSSH_9.2\r\n", "stats\r\nversion\r\n", "%1\r\n", "~1\r\n", ">1\r\n", "|1\r\n", "(1\r\n", "#t\r\n", "_\r\n", ",1.5\r\n", "=4\r\ntxt:\r\n", "$4\r\nPING\r\n", "+PING\r\n", ":1\r\n",
		strings.Repeat("*1\r\n", 20_000), strings.Repeat("*0\r\n", 100_000), strings.Repeat("\n", 1_000_000), strings.Repeat("\r\n", 100_000), strings.Repeat(" ", 60_000)+"\n", strings.Repeat("a", 1_000_000),
		strings.Repeat("\"", 60_000)+"\n", strings.Repeat("\\x", 30_000)+"\n", strings.Repeat(encode("PING"), 20_000), strings.Repeat(encode("CL.THROTTLE", "a", "1", "1", "1"), 5_000), strings.Repeat("QUIT\n", 1000))
	random := rand.New(rand.NewPCG(seed, 2))
	for range 100 {
		text := make([]byte, random.IntN(2000))
		for i := range text {
			text[i] = "*$\r\n0123456789-PINGCL.THROTTLE \"'\\x\x00\xff"[random.IntN(37)]
		}
		inputs = append(inputs, string(text))
	}
	return inputs
}

// For any input, a client gets well-formed replies, or its connection is closed. Other clients are
// served as before.
func TestHostileInputIsContained(t *testing.T) {
	seed := effort.Seed()
	store := memstore.New(memstore.Options{})
	s, addr := serve(t, store, controllerOf(t, store, guard.FailClosed, penstock.PerSecond(10)), Options{})
	other := connect(t, addr)
	inputs := hostile(seed)
	replies := 0
	for i, input := range inputs {
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		conn.SetDeadline(time.Now().Add(testTimeout))
		go func() {
			io.WriteString(conn, input) // the server may close before it has read all
			conn.(*net.TCPConn).CloseWrite()
		}()
		for r := bufio.NewReader(conn); ; replies++ {
			_, err := readReply(r)
			if e, ok := err.(net.Error); ok && e.Timeout() {
				t.Fatalf("PENSTOCK_SEED=%d, input %d, %.60q: there is no reply for %v; want one, or that the connection is closed", seed, i, input, testTimeout)
			} else if strings.HasPrefix(fmt.Sprint(err), "a reply begins") {
				t.Fatalf("PENSTOCK_SEED=%d, input %d, %.60q: %v; want a well-formed reply", seed, i, input, err)
			} else if err != nil {
				break
			}
		}
		conn.Close()
		other.expect(fmt.Sprintf("ECHO %d", i), fmt.Sprint(i))
	}
	eventually.True(t, "only the other client is connected", func() bool { return s.Connections() == 1 })
	t.Logf("%d inputs, %d replies", len(inputs), replies)
	if len(inputs) < 100 || replies < 20_000 {
		t.Errorf("%d inputs got %d replies; want at least 100 and 20,000", len(inputs), replies)
	}
}

// A client that has not authenticated cannot make the server keep much. RESET takes the right to
// long commands away again.
func TestLongCommandsNeedAuth(t *testing.T) {
	_, addr := serve(t, memstore.New(memstore.Options{}), nil, Options{Credentials: []Credential{{"", "token"}}})
	long, auth := encode("ECHO", "a", strings.Repeat("b", maxBulk), strings.Repeat("b", maxBulk), strings.Repeat("b", maxBulk)), encode("AUTH", "token")
	for text, isOpen := range map[string]bool{
		long: false, auth + long: true, auth + encode("RESET") + long: false, auth + encode("RESET") + auth + long: true,
	} {
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		io.WriteString(conn, text+encode("PING"))
		conn.(*net.TCPConn).CloseWrite()
		replies, _ := io.ReadAll(conn) // a reset is an end too
		conn.Close()
		if got := strings.HasSuffix(string(replies), "+PONG\r\n") || strings.Contains(string(replies), "NOAUTH"); got != isOpen {
			t.Errorf("%.60q… gets %.200q; want a reply to the last command: %t", text, replies, isOpen)
		}
	}
}
