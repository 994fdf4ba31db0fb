package resplimit

import (
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/testing/redistest"
	"github.com/penstock/penstock/memstore"
)

func TestMain(m *testing.M) { redistest.Main(m, "github.com/penstock/penstock/resplimit") }

// exchange sends an input and QUIT, and returns all that the server sends.
func exchange(t *testing.T, addr, input string) string {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(testTimeout))
	io.WriteString(conn, input+encode("QUIT")) // an error is no failure, because the server may have closed the connection
	output, err := io.ReadAll(conn)
	if e, ok := err.(net.Error); ok && e.Timeout() {
		t.Fatalf("input %.60q: the connection stays open after QUIT; want that the server closes it", input)
	}
	return string(output)
}

// A Server and a Redis server give the same replies to these inputs.
func TestFramingAndErrorsEqualThoseOfRedis(t *testing.T) {
	redis := redistest.Start(t)
	_, addr := serve(t, memstore.New(memstore.Options{}), nil, Options{})
	long := strings.Repeat("x", 200)
	for _, input := range []string{
		// arrays
		"", "\r\n", "\n\n", "*0\r\n", "*-1\r\n", "*-5\r\n", "*abc\r\n", "*\r\n", "*+1\r\n", "*01\r\n", "*1a\r\n", "* 1\r\n",
		"*9223372036854775807\r\n", "*9223372036854775808\r\n", "*-9223372036854775809\r\n", "*2147483648\r\n",
		"*1\r\n+PING\r\n", "*1\r\n*1\r\n", "*1\r\n:4\r\n", "*1\r\nPING\r\n", "*1\r\n\r\n",
		"*1\r\n$-1\r\n", "*1\r\n$-2\r\n", "*1\r\n$abc\r\n", "*1\r\n$\r\n", "*1\r\n$04\r\nPING\r\n", "*1\r\n$9223372036854775807\r\n", "*1\r\n$18446744073709551617\r\n",
		"*1\r\n$0\r\n\r\n", encode("PING"), encode("ping", "hello"), encode("PING") + "*x\r\n" + encode("PING"),
		// lines
		"PING\r\n", "PING\n", "  PING   hello \r\n", "PING\thello\r\n", "ECHO \"a\\x41\\n\\t\\r\\b\\a\\\\\\q\\\"b\"\r\n", "ECHO 'a\\'b\\n'\r\n", "ECHO \"\"\r\n", "ECHO ''\r\n",
		"ECHO \"abc\r\n", "ECHO 'abc\r\n", "ECHO a\"b c\"\r\n", "ECHO \"\\xZZ\\x4\"\r\n", "ECHO \"a\\\r\n",
		"POST / HTTP/1.1\r\nHost: x\r\n\r\nPING\r\n", "Host: x\r\nPING\r\n", "post\r\n", encode("POST", "a") + encode("PING"),
		// commands
		encode("FOO"), encode("foo", "a", "b"), encode(long, long, long, "b"), encode("FOO", "a\r\nb", "c\nd"), encode("FOO", "a\x00b"), encode("F\r\nOO"), encode("FOO", strings.Repeat("y", 127), "z"),
		encode("PING", "a", "b"), encode("ECHO"), encode("ECHO", "a", "b"), encode("ECHO", "a\r\nb"),
		encode("SELECT", "0"), encode("SELECT", "x"), encode("SELECT", "99"), encode("SELECT", "-1"), encode("SELECT"),
		encode("AUTH", "x"), encode("AUTH", "a", "b"), encode("HELLO", "4"), encode("HELLO", "x"), encode("HELLO", "3", "FOO"), encode("HELLO", "3", "AUTH", "a"), encode("HELLO", "2", "AUTH", "a", "b"),
		encode("HELLO", "2", "SETNAME", "a b"), encode("CLIENT", "SETNAME", "a b"), encode("CLIENT", "SETNAME", "ab") + encode("CLIENT", "GETNAME"), encode("CLIENT", "GETNAME"), encode("CLIENT"),
		encode("CLIENT", "NO-EVICT", "on"), encode("CLUSTER", "SLOTS"), encode("CLUSTER", "INFO"), encode("RESET"), encode("CONFIG", "GET", "nonesuch"),
		encode("CLIENT", "SETNAME", "ab") + encode("RESET") + encode("CLIENT", "GETNAME"),
	} {
		want, got := exchange(t, redis.Addr, input), exchange(t, addr, input)
		const noArgs = ", with args beginning with: " // Redis 8.6 leaves it out
		if strings.ReplaceAll(got, noArgs+"\r", "\r") != strings.ReplaceAll(want, noArgs+"\r", "\r") {
			t.Errorf("input %.80q: the reply is\n%.300q; want, as from Redis,\n%.300q", input, got, want)
		}
	}
}

// Redis or Valkey 9.1 accepts these inputs. A Server refuses them, because they need more memory
// than its bounds allow, or could be read in two ways.
func TestFramingIsStricterThanThatOfRedis(t *testing.T) {
	_, addr := serve(t, memstore.New(memstore.Options{}), nil, Options{})
	for input, want := range map[string]string{
		encode(strings.Fields(strings.Repeat("a ", maxArgs+1))...): "invalid multibulk length",
		encode("ECHO", strings.Repeat("a", maxBulk+1)):             "invalid bulk length",
		"*1\r\n$4\r\nPINGxx":                     "expected CRLF",
		"*" + strings.Repeat("1", 70_000):        "too big mbulk count string",
		"*1\r\n$" + strings.Repeat("1", 70_000):  "too big bulk count string",
		strings.Repeat("a", 70_000):              "too big inline request",
		"*1\rx$4\r\nPING\r\n":                    "invalid multibulk length",
		"*1\r\n$4\rxPING\r\n":                    "invalid bulk length",
		strings.Repeat("a ", maxArgs+1) + "\r\n": "invalid multibulk length",
		"ECHO \"a\"b\r\n":                        "unbalanced quotes in request",
		"ECHO 'a'b\r\n":                          "unbalanced quotes in request",
	} {
		if got := exchange(t, addr, input); !strings.HasPrefix(got, "-ERR Protocol error: "+want) || strings.Count(got, "\r\n") != 1 {
			t.Errorf("input %.40q: the reply is %q; want one protocol error with %q", input, got, want)
		}
	}
}
