package resplimit

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/penstock/penstock/guard"
	"github.com/penstock/penstock/internal/testing/redistest"
	"github.com/penstock/penstock/memstore"
	"github.com/penstock/penstock/redisstore"
	"github.com/redis/rueidis"

	"github.com/penstock/penstock"
)

func TestRedisCLIWorks(t *testing.T) {
	if testing.Short() {
		t.Skip("with -short, no programs of Redis run")
	}
	_, addr := serve(t, memstore.New(memstore.Options{Now: newClock().Now}), nil, Options{Credentials: []Credential{{"ann", "secret"}, {"", "token"}}})
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		t.Fatal(err)
	}
	run := func(input string, args ...string) string {
		t.Helper()
		cmd := exec.Command(redistest.CLI(), append([]string{"-h", host, "-p", port, "--no-auth-warning"}, args...)...)
		cmd.Stdin = strings.NewReader(input)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("redis-cli %v: %v; want no error\n%s", args, err, out)
		}
		return strings.TrimSpace(string(out))
	}
	if got, want := run("", "--user", "ann", "--pass", "secret", "CL.THROTTLE", "user123", "15", "30", "60", "1"), "0\n16\n15\n-1\n2"; got != want {
		t.Errorf("the reply is %q; want %q", got, want)
	}
	for range 15 {
		run("", "-a", "token", "CL.THROTTLE", "user123", "15", "30", "60", "1")
	}
	if got, want := run("", "-3", "-a", "token", "CL.THROTTLE", "user123", "15", "30", "60", "1"), "1\n16\n0\n2\n32"; got != want {
		t.Errorf("the seventeenth reply is %q; want %q", got, want)
	}
	if got := run("PING\nSELECT 0\nCLIENT GETNAME\nnonesuch a\nQUIT\n", "-a", "token"); !strings.HasPrefix(got, "PONG\nOK\n\nERR unknown command 'nonesuch', with args beginning with: 'a'") {
		t.Errorf("the replies to piped commands are %q; want one to each, and an error for %q", got, "nonesuch")
	}
	if got := run("", "CL.THROTTLE", "user123", "15", "30", "60"); got != "NOAUTH Authentication required." {
		t.Errorf("the reply to a client without a password is %q; want NOAUTH", got)
	}
	if got := run("", "--raw", "-a", "token", "INFO"); !strings.Contains(got, "loading:0") {
		t.Errorf("the reply to INFO is %q; want one with loading:0", got)
	}
}

// By default rueidis requires CLIENT TRACKING. It sends the calls of several goroutines as one
// pipeline.
func TestRueidisWorks(t *testing.T) {
	_, addr := serve(t, memstore.New(memstore.Options{Now: newClock().Now}), nil, Options{Credentials: []Credential{{"ann", "secret"}}})
	for _, o := range []rueidis.ClientOption{{}, {AlwaysRESP2: true, DisableCache: true}} {
		o.InitAddress, o.Username, o.Password, o.ClientName = []string{addr}, "ann", "secret", "app"
		client, err := rueidis.NewClient(o)
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		ctx := context.Background()
		var batch rueidis.Commands
		for i := range 100 {
			batch = append(batch, client.B().ClThrottle().Key(fmt.Sprintf("%v:%d", o.DisableCache, i%10)).MaxBurst(6).CountPerPeriod(1).Period(60).Build())
		}
		var allowed int
		for _, result := range client.DoMulti(ctx, batch...) {
			reply, err := result.AsIntSlice()
			if err != nil || len(reply) != 5 || reply[1] != 7 {
				t.Fatalf("the reply is %v, %v; want five integers, the second 7", reply, err)
			}
			allowed += 1 - int(reply[0])
		}
		if allowed != 70 {
			t.Errorf("%d of 100 calls were allowed; want 70", allowed)
		}
	}
}

// The files of testdata have what clients sent and received while they connected, called and left.
// A line that begins with '>' was sent by the client. A line that begins with '<' was received.
// Each line has its text as a Go string.
func TestOtherClientsAreAnsweredAsRecorded(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) != 3 {
		t.Fatalf("there are %d recordings, %v; want 3", len(files), err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		_, addr := serve(t, memstore.New(memstore.Options{Now: newClock().Now}), nil, Options{})
		client := connect(t, addr)
		for line := range strings.Lines(string(text)) {
			line = strings.TrimSpace(line)
			if line == "" || line[0] == '#' {
				continue
			}
			payload, err := strconv.Unquote(line[2:])
			if err != nil {
				t.Fatalf("%s: the line %s has no Go string: %v", file, line, err)
			}
			if line[0] == '>' {
				client.send(payload)
			} else if got := client.reply(); got != payload {
				t.Errorf("%s: the reply is %q; want %q", file, got, payload)
			}
		}
	}
}

// storesOf returns stores that must give the same replies.
func storesOf(t *testing.T) map[string]penstock.Store {
	t.Helper()
	store, err := redisstore.Open(redistest.Start(t).URL(), redisstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { store.Close() })
	guarded, err := guard.Standard(store, guard.Options{Server: store})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { guarded.Close() })
	return map[string]penstock.Store{"memstore": memstore.New(memstore.Options{}), "redisstore": store, "guarded": guarded}
}

// The periods are long, so that nothing is refilled during the test.
func TestAllStoresGiveTheSameReplies(t *testing.T) {
	var first []string
	for name, store := range storesOf(t) {
		_, addr := serve(t, store, nil, Options{})
		client := connect(t, addr)
		client.do("DEL a b c d e")
		var replies []string
		var pipeline strings.Builder
		const n = 200
		// Every 41st command is a DEL, and a third of the others are a THROTTLE.
		for i := range n {
			key := string("abcde"[i%5])
			switch {
			case i%41 == 40:
				pipeline.WriteString(encode("DEL", key))
			case i%3 == 0:
				pipeline.WriteString(encode("THROTTLE", key, "5", "1", "86400", strconv.Itoa(i%4)))
			default:
				pipeline.WriteString(encode("CL.THROTTLE", key, "6", "1", "86400", strconv.Itoa(i%3)))
			}
		}
		client.send(pipeline.String())
		for range n {
			fields := strings.Fields(strings.Trim(client.reply(), "[]"))
			if len(fields) == 5 {
				fields = fields[:3] // the other two are times
			}
			replies = append(replies, strings.Join(fields, " "))
		}
		if first == nil {
			first = replies
		} else if !slices.Equal(replies, first) {
			t.Errorf("the replies with %s are\n%v\nwant, as with the first store,\n%v", name, replies, first)
		}
	}
}
