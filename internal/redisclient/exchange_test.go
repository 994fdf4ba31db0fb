package redisclient

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"
)

// commandsOf returns commands as rueidis writes them.
func commandsOf(lines ...string) string {
	var b strings.Builder
	for _, line := range lines {
		words := strings.Fields(line)
		b.WriteString("*" + strconv.Itoa(len(words)) + "\r\n")
		for _, w := range words {
			b.WriteString("$" + strconv.Itoa(len(w)) + "\r\n" + w + "\r\n")
		}
	}
	return b.String()
}

// stampedCommand returns the command of a script whose argument has the stamp of a number. The
// reply must begin with the two bytes of the number, the lower one first.
func stampedCommand(number uint16) string {
	argument := make([]byte, 60)
	PutStamp(argument, number)
	return "*5\r\n$7\r\nEVALSHA\r\n$40\r\n" + strings.Repeat("0", 40) + "\r\n$1\r\n1\r\n$25\r\nps1{user:123456789}second\r\n$60\r\n" + string(argument) + "\r\n"
}

// receiveAll passes a stream to an exchange in pieces. It returns the bytes that the exchange
// accepts, and its error.
func receiveAll(x *exchange, stream string, piece func() int) (accepted string, err error) {
	for stream != "" && err == nil {
		n := min(piece(), len(stream))
		got, e := x.receive([]byte(stream[:n]))
		accepted, err = accepted+stream[:got], e
		if got < n && err == nil {
			_, err = x.receive([]byte{0})
		}
		stream = stream[n:]
	}
	return accepted, err
}

func whole() int  { return 1 << 30 }
func single() int { return 1 }

const evalsha = "EVALSHA 0123 1 key 1 2 3"

var replyCases = []struct {
	name     string
	commands []string
	stream   string
	surplus  string // the end of the stream that must not pass: "\n" if its last reply is malformed; "" if all is right
}{
	{"packed string", []string{evalsha}, "$5\r\n\x00\r\n\xff1\r\n", ""},
	{"all types", []string{"EXEC"}, "*11\r\n+OK\r\n-ERR no\r\n:-42\r\n$0\r\n\r\n$-1\r\n*-1\r\n_\r\n#t\r\n,1.5\r\n(123\r\n%1\r\n=7\r\ntxt:abc\r\n~1\r\n!3\r\nERR\r\n", ""},
	{"empty aggregates", []string{"A", "B", "C"}, "*0\r\n%0\r\n~0\r\n", ""},
	{"a pipeline", []string{evalsha, evalsha, evalsha}, "$1\r\na\r\n$1\r\nb\r\n$1\r\nc\r\n", ""},
	{"eight levels", []string{"A"}, strings.Repeat("*1\r\n", 8) + ":1\r\n", ""},
	{"pushes to nobody", []string{"GET k"}, ">2\r\n+invalidate\r\n*1\r\n+k\r\n$1\r\nv\r\n>1\r\n+x\r\n", ""},
	{"negative array", []string{evalsha}, "*-5\r\n", "\n"},
	{"negative string", []string{evalsha}, "$-2\r\n", "\n"},
	{"negative map", []string{evalsha}, "%-3\r\n", "\n"},
	{"map of -1", []string{evalsha}, "%-1\r\n", "\n"},
	{"set of -1", []string{evalsha}, "~-1\r\n", "\n"},
	{"push of -1", []string{evalsha}, ">-1\r\n", "\n"},
	{"nested negative array", []string{evalsha}, "*1\r\n*-5\r\n", "\n"},
	{"2 billion elements", []string{evalsha}, "*2000000000\r\n", "\n"},
	{"1 billion pairs", []string{evalsha}, "%1000000000\r\n", "\n"},
	{"elements beyond 64 bits", []string{evalsha}, "*9999999999999999999\r\n", "\n"},
	{"string of 1 TB", []string{evalsha}, "$1000000000000\r\n", "\n"},
	{"the longest string", []string{evalsha}, "$16777216\r\na", ""},
	{"too long a string", []string{evalsha}, "$16777217\r\n", "\n"},
	{"the longest strings", []string{evalsha, evalsha}, "+OK\r\n*2\r\n$1\r\na\r\n$16777215\r\na", ""},
	{"too long strings", []string{evalsha}, "*2\r\n$1\r\na\r\n$16777216\r\n", "\n"},
	{"too long strings after a line", []string{evalsha}, "*2\r\n+a\r\n$16777216\r\n", "\n"},
	{"most elements", []string{evalsha}, "*524288\r\n:1\r\n", ""},
	{"too many elements", []string{evalsha}, "*524289\r\n", "\n"},
	{"most pairs", []string{evalsha}, "%262144\r\n:1\r\n", ""},
	{"too many pairs", []string{evalsha}, "%262145\r\n", "\n"},
	{"most elements in total", []string{evalsha, evalsha}, "*1\r\n:1\r\n*2\r\n*0\r\n*524286\r\n:1\r\n", ""},
	{"too many elements in total", []string{evalsha}, "*2\r\n*0\r\n*524287\r\n", "\n"},
	{"nine levels", []string{evalsha}, strings.Repeat("*1\r\n", 9), "\n"},
	{"surplus reply", []string{evalsha}, ":1\r\n:1\r\n", "\n"},
	{"reply to no command", nil, "-ERR max number of clients reached\r\n", "\n"},
	{"a web server", []string{evalsha}, "HTTP/1.1 400 Bad Request\r\n", "HTTP/1.1 400 Bad Request\r\n"},
	{"streamed string", []string{evalsha}, "$?\r\n;1\r\n", "?\r\n;1\r\n"},
	{"attribute", []string{evalsha}, "|1\r\n+a\r\n+b\r\n:1\r\n", "|1\r\n+a\r\n+b\r\n:1\r\n"},
	{"nested push", []string{evalsha}, "*1\r\n>1\r\n+a\r\n", ">1\r\n+a\r\n"},
	{"line without a carriage return", []string{evalsha}, "+OK\n", "\n"},
	{"string that is longer than its length", []string{evalsha}, "$1\r\nab\r\n", "b\r\n"},
	{"no length", []string{evalsha}, "$\r\n", "\r\n"},
	{"length with a plus", []string{evalsha}, "*+1\r\n", "+1\r\n"},

	{"redirection to nowhere", []string{evalsha}, "-MOVED\r\n", "\n"},
	{"redirection without a server", []string{evalsha}, "-ASK 1\r\n", "\n"},
	{"redirection of a replica to nowhere", []string{evalsha}, "-REDIRECT\r\n", "\n"},
	{"redirection to nowhere, as a text", []string{evalsha}, "!5\r\nMOVED\r\n", "\n"},
	{"a string like a redirection", []string{evalsha, evalsha}, "$5\r\nMOVED\r\n+ASK\r\n", ""},
	{"redirections", []string{evalsha, evalsha, evalsha}, "-MOVED 1 h:1\r\n-ASK 1 h:1\r\n-REDIRECT h:1\r\n", ""},
	{"empty role", []string{"PING", "ROLE"}, "+PONG\r\n*0\r\n", "\n"},
	{"role", []string{"PING", "ROLE", "PING"}, "+PONG\r\n*1\r\n+master\r\n+PONG\r\n", ""},
	{"half an address", []string{"SENTINEL GET-MASTER-ADDR-BY-NAME m"}, "*1\r\n+1.2.3.4\r\n", "\n"},
	{"no address", []string{"SENTINEL GET-MASTER-ADDR-BY-NAME m", "SENTINEL SENTINELS m"}, "*-1\r\n*0\r\n", ""},

	{"subscription", []string{"HELLO 3", "SUBSCRIBE a b", "PING"},
		"%0\r\n>3\r\n+subscribe\r\n+a\r\n:1\r\n>3\r\n+message\r\n+a\r\n+text\r\n>3\r\n+subscribe\r\n+b\r\n:2\r\n+PONG\r\n", ""},
	{"a third confirmation", []string{"HELLO 3", "SUBSCRIBE a b"},
		"%0\r\n" + strings.Repeat(">3\r\n+subscribe\r\n+a\r\n:1\r\n", 3), "\n"},
	{"confirmation of no subscription", []string{"HELLO 3", "GET k"}, "%0\r\n>3\r\n+subscribe\r\n+a\r\n:1\r\n", "\n"},
	{"confirmation before its turn", []string{"HELLO 3", "GET k", "SUBSCRIBE a"}, "%0\r\n>3\r\n+subscribe\r\n+a\r\n:1\r\n", "\n"},
	{"rejected subscription", []string{"HELLO 3", "SUBSCRIBE a", "PING"}, "%0\r\n-NOPERM no\r\n+PONG\r\n", ""},
	{"another reply to a subscription", []string{"HELLO 3", "SUBSCRIBE a"}, "%0\r\n+OK\r\n", "\n"},
	{"queued subscription", []string{"HELLO 3", "SUBSCRIBE a"}, "%0\r\n+QUEUED\r\n", "\n"},
	{"end of a subscription", []string{"HELLO 3", "UNSUBSCRIBE a b", "PING", "GET k"},
		"%0\r\n>3\r\n+unsubscribe\r\n+a\r\n:1\r\n>3\r\n+unsubscribe\r\n+b\r\n:0\r\n+PONG\r\n$-1\r\n", ""},
	{"rejected end of a subscription", []string{"HELLO 3", "UNSUBSCRIBE a", "PING", "GET k"}, "%0\r\n-NOPERM no\r\n+PONG\r\n$-1\r\n", ""},
	{"rejected ping", []string{"HELLO 3", "UNSUBSCRIBE a", "PING", "GET k"},
		"%0\r\n>3\r\n+unsubscribe\r\n+a\r\n:0\r\n-NOPERM no permissions to run the 'ping' command\r\n$-1\r\n", ""},
	{"no pong", []string{"HELLO 3", "UNSUBSCRIBE a", "PING"}, "%0\r\n-NOPERM no\r\n+OK\r\n", "\n"},
	{"pong before the ping", []string{"HELLO 3", "UNSUBSCRIBE a"}, "%0\r\n+PONG\r\n", "\n"},
	{"a second pong", []string{"HELLO 3", "UNSUBSCRIBE a", "PING"}, "%0\r\n+PONG\r\n+PONG\r\n", "\n"},
	{"subscription in RESP 2", []string{"SUBSCRIBE a", "PING"},
		"*3\r\n+subscribe\r\n+a\r\n:1\r\n*3\r\n+message\r\n+a\r\n+text\r\n*2\r\n+pong\r\n$0\r\n\r\n", ""},
	{"event of a new primary", []string{"GET k"}, ">3\r\n+message\r\n+" + "+switch-master\r\n+m 1.1.1.1 1 2.2.2.2 2\r\n", ""},
	{"short event", []string{"GET k"}, ">3\r\n+message\r\n+" + "+switch-master\r\n+m 1.1.1.1 1\r\n", "\n"},
	{"short event of a replica", []string{"GET k"}, ">3\r\n+message\r\n+" + "+sdown\r\n+slave a b c\r\n", "\n"},
	{"short event of a Sentinel", []string{"GET k"}, ">3\r\n+message\r\n+" + "+sentinel\r\n+sentinel a b\r\n", "\n"},
}

// Right replies pass whole, and of a malformed one never the last byte. Both also hold if each byte
// comes alone.
func TestMalformedRepliesDoNotPass(t *testing.T) {
	for _, c := range replyCases {
		for pieces, piece := range map[string]func() int{"whole": whole, "byte by byte": single} {
			x := new(exchange)
			x.send([]byte(commandsOf(c.commands...)))
			accepted, err := receiveAll(x, c.stream, piece)
			if want := strings.TrimSuffix(c.stream, c.surplus); accepted != want || (err != nil) != (c.surplus != "") {
				t.Errorf("%s, %s: accepted %q of %q and the error %v; want %q", c.name, pieces, accepted, c.stream, err, want)
			}
		}
	}
}

// A script's reply passes only if it has the stamp of its call, or is an error.
func TestRepliesToOtherCallsDoNotPass(t *testing.T) {
	const first, second = "$6\r\n\x01\x02abcd\r\n", "$6\r\n\x02\x02abcd\r\n"
	for name, c := range map[string]struct{ stream, surplus string }{
		"in order":                {first + second, ""},
		"only the stamp":          {"$2\r\n\x01\x02\r\n", ""},
		"an error first":          {"-NOSCRIPT\r\n" + second, ""},
		"the first is lost":       {second, "\n"},
		"the first is repeated":   {first + first, "\n"},
		"swapped":                 {second + first, "\n" + first},
		"half a stamp":            {"$1\r\n\x01\r\n", "\n"},
		"half the second stamp":   {first + "$1\r\n\x02\r\n", "\n"},
		"an empty string":         {first + "$0\r\n\r\n", "\n"},
		"a null":                  {"$-1\r\n", "\n"},
		"a reply to PING":         {"+PONG\r\n", "\n"},
		"an integer":              {":513\r\n", "\n"},
		"an array with the stamp": {"*1\r\n" + first, "\n"},
		"a push before it":        {">1\r\n$2\r\n\x02\x02\r\n" + first + second, ""},
	} {
		for pieces, piece := range map[string]func() int{"whole": whole, "byte by byte": single} {
			x := new(exchange)
			for sent := commandsOf("PING") + stampedCommand(0x0201) + stampedCommand(0x0202) + commandsOf("PING"); sent != ""; {
				n := min(piece(), len(sent))
				x.send([]byte(sent[:n]))
				sent = sent[n:]
			}
			stream := "+PONG\r\n" + c.stream
			accepted, err := receiveAll(x, stream, piece)
			if want := strings.TrimSuffix(stream, c.surplus); accepted != want || (err != nil) != (c.surplus != "") {
				t.Errorf("%s, %s: accepted %q of %q and the error %v; want %q", name, pieces, accepted, stream, err, want)
			}
		}
	}
}

func TestLinesAreBounded(t *testing.T) {
	x := new(exchange)
	x.send([]byte(commandsOf(evalsha)))
	if accepted, err := receiveAll(x, "+"+strings.Repeat("a", maxReplyBytes+1), whole); len(accepted) != 1+maxReplyBytes || err == nil {
		t.Errorf("a line of %d bytes: %d bytes are accepted, error %v; want all but one, and an error", maxReplyBytes+1, len(accepted)-1, err)
	}
}

// The first 512 bytes of each field are kept.
func TestFieldsAreKeptInPart(t *testing.T) {
	text := strings.Repeat("0123456789abcdef", 100)
	for _, reply := range []string{"-" + text + "\r\n", fmt.Sprintf("!%d\r\n%s\r\n", len(text), text), fmt.Sprintf(">1\r\n$%d\r\n%s\r\n", len(text), text)} {
		for pieces, piece := range map[string]func() int{"whole": whole, "byte by byte": single, "in parts of 300 bytes": func() int { return 300 }} {
			x := new(exchange)
			x.send([]byte(commandsOf("GET k")))
			_, err := receiveAll(x, reply, piece)
			if got := string(x.replies.fields[0]); got != text[:512] || err != nil {
				t.Errorf("of the reply %.20q, %s, %d bytes are kept: %.20q, %v; want the first 512 of the text", reply, pieces, len(got), got, err)
			}
		}
	}
}

// Commands are found in any pieces.
func TestCommandsAreCounted(t *testing.T) {
	text := commandsOf("HELLO 3", "MSET k 0123456789 c d e f g h i", "SUBSCRIBE a b", "PING") + "*2\r\n$3\r\nGET\r\n$0\r\n\r\n" + "*2\r\n$3\r\nGET\r\n$13\r\n\r\n*1\r\n$1\r\nA\r\n\r\n"
	for size := 1; size <= len(text); size++ {
		x := new(exchange)
		for rest := text; rest != ""; {
			n := min(size, len(rest))
			x.send([]byte(rest[:n]))
			rest = rest[n:]
		}
		if n := x.sent.Load(); n != 6 || !x.isRESP3.Load() || len(x.specials) != 1 || x.specials[0] != (special{number: 2, kind: subscribe, channels: 2}) {
			t.Fatalf("in pieces of %d bytes: %d commands, RESP 3: %v, special %+v; want 6, true, and the third one, of 2 channels", size, n, x.isRESP3.Load(), x.specials)
		}
	}
}

func TestExchangesDoNotAllocate(t *testing.T) {
	x, command, reply := new(exchange), []byte(stampedCommand(0)), []byte("$40\r\n"+strings.Repeat("\x00", 40)+"\r\n")
	if n := testing.AllocsPerRun(100, func() {
		x.send(command)
		if _, err := x.receive(reply); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("a command and its reply allocate %.0f times; want 0", n)
	}
}

// BenchmarkExchange measures what the checks add to a script call.
func BenchmarkExchange(b *testing.B) {
	x, reply := new(exchange), []byte("$40\r\n"+strings.Repeat("\x00", 40)+"\r\n")
	command := []byte(stampedCommand(0))
	for b.Loop() {
		x.send(command)
		if _, err := x.receive(reply); err != nil {
			b.Fatal(err)
		}
	}
}

// Any stream in any pieces gives the same result, and what passes does not make rueidis panic.
func FuzzReplies(f *testing.F) {
	for i, c := range replyCases {
		for mode := range modes {
			f.Add(byte(mode), uint64(i), []byte(c.stream))
		}
	}
	f.Add(byte(sentinelClient), uint64(1), []byte("*0\r\n*2\r\n+1.1.1.1\r\n+1\r\n\x00*0\r\n"))
	f.Add(byte(sentinelClient), uint64(1), []byte(">3\r\n+unsubscribe\r\n+a\r\n:0\r\n+PONG\r\n*0\r\n*2\r\n+1.1.1.1\r\n+1\r\n\x00*1\r\n+master\r\n"))
	f.Add(byte(pipelined), uint64(1), []byte("$1\r\na\r\n+a\r\n-no\r\n+PONG\r\n-no\r\n*1\r\n+a\r\n+a\r\n+a\r\n$3\r\naa1\r\n$2\r\nba\r\n"))
	f.Fuzz(func(t *testing.T, mode byte, seed uint64, stream []byte) {
		rng := rand.New(rand.NewPCG(seed, 0))
		sent := commandsOf(evalsha, "GET k", "UNSUBSCRIBE a", "PING", "SUBSCRIBE a b", "ROLE", "GET k", "GET k") + stampedCommand(0x6161) + stampedCommand(0x6162)
		one, many := new(exchange), new(exchange)
		one.send([]byte(sent))
		many.send([]byte(sent))
		accepted, err := receiveAll(one, string(stream), whole)
		acceptedInPieces, errInPieces := receiveAll(many, string(stream), func() int { return 1 + rng.IntN(8) })
		if accepted != acceptedInPieces || (err == nil) != (errInPieces == nil) || err != nil && err.Error() != errInPieces.Error() {
			t.Errorf("in one piece %q, %v; in pieces %q, %v; want the same", accepted, err, acceptedInPieces, errInPieces)
		}
		letRueidisRead(t, clientMode(mode)%modes, stream)
	})
}

// A clientMode is a way in which rueidis reads replies.
type clientMode byte

const (
	synchronous clientMode = iota
	pipelined
	subscribing
	sentinelClient
	modes
)

// letRueidisRead lets a client of rueidis read a stream as the replies to its commands. A zero byte
// in the stream of a sentinelClient begins the replies of the primary.
func letRueidisRead(t *testing.T, mode clientMode, stream []byte) {
	option := rueidis.ClientOption{
		InitAddress: []string{"redis:1"}, DisableCache: true, DisableRetry: true, ForceSingleClient: mode != sentinelClient, ClientSetInfo: rueidis.DisableClientSetInfo,
		ReadBufferEachConn: 512, WriteBufferEachConn: 512, RingScaleEachConn: 2, PipelineMultiplex: -1, AlwaysPipelining: mode != synchronous,
	}
	option.Dialer.KeepAlive = time.Hour // the time between two PINGs
	if mode == sentinelClient {
		option.Sentinel.MasterSet, option.Sentinel.Dialer = "m", option.Dialer
	}
	ofSentinel, ofPrimary, _ := strings.Cut(string(stream), "\x00")
	if mode != sentinelClient {
		ofSentinel, ofPrimary = string(stream), ""
	}
	var dialed atomic.Int64
	option.DialCtxFn = func(context.Context, string, *net.Dialer, *tls.Config) (net.Conn, error) {
		switch dialed.Add(1) {
		case 1:
			return newScripted(ofSentinel, map[clientMode]int64{synchronous: 2, pipelined: 4, subscribing: 4, sentinelClient: 3}[mode]), nil
		case 2:
			return newScripted(ofPrimary, 2), nil
		}
		return nil, errors.New("no further connection")
	}
	life, end := context.WithCancel(context.Background())
	defer end()
	checkConnections(&option, life)
	client, err := rueidis.NewClient(option)
	if err != nil {
		return
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	get := func() rueidis.Completed { return client.B().Get().Key("k").Build() }
	switch mode {
	case synchronous:
		client.Do(ctx, get())
		client.Do(ctx, get())
	case pipelined:
		client.DoMulti(ctx, get(), get(), get())
	case subscribing:
		var ended sync.WaitGroup
		defer ended.Wait()
		ended.Go(func() { client.Do(ctx, client.B().Unsubscribe().Channel("a").Build()) })
		_ = client.Receive(ctx, client.B().Subscribe().Channel("a", "b").Build(), func(rueidis.PubSubMessage) {})
	}
}

// A scriptedConn is a connection to a server that answers HELLO. When the server has received
// replyAfter commands, it sends the stream.
type scriptedConn struct {
	net.Conn
	mu         sync.Mutex
	changed    sync.Cond
	commands   commandScanner
	received   int64 // commands that the client has sent
	replyAfter int64 // commands, with HELLO
	stream     io.Reader
	hello      io.Reader
	isClosed   bool
}

func newScripted(stream string, replyAfter int64) *scriptedConn {
	c := &scriptedConn{replyAfter: replyAfter, hello: strings.NewReader("%1\r\n+proto\r\n:3\r\n"), stream: strings.NewReader(stream)}
	c.changed.L = &c.mu
	return c
}

func (c *scriptedConn) Write(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for rest := b; len(rest) > 0; {
		var isComplete bool
		if rest, isComplete = c.commands.scan(rest); isComplete {
			c.received++
		}
	}
	c.changed.Broadcast()
	return len(b), nil
}

func (c *scriptedConn) Read(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.received == 0 && !c.isClosed {
		c.changed.Wait()
	}
	if n, err := c.hello.Read(b); n > 0 {
		return n, err
	}
	for c.received < c.replyAfter && !c.isClosed {
		c.changed.Wait()
	}
	if c.isClosed {
		return 0, net.ErrClosed
	}
	return c.stream.Read(b)
}

func (c *scriptedConn) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.isClosed = true
	c.changed.Broadcast()
	return nil
}

func (c *scriptedConn) SetDeadline(time.Time) error      { return nil }
func (c *scriptedConn) SetReadDeadline(time.Time) error  { return os.ErrNoDeadline }
func (c *scriptedConn) SetWriteDeadline(time.Time) error { return nil }
func (c *scriptedConn) RemoteAddr() net.Addr             { return &net.TCPAddr{} }
