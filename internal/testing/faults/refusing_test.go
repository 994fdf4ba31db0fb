package faults

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/testing/redistest"
)

var (
	unready = []penstock.Reason{penstock.ReasonNotReady}
	refused = []penstock.Reason{penstock.ReasonPermissionDenied}
)

// The server replies, but makes no decision.
var refusing = []fault{
	{
		id: "F5", name: "loading",
		prepare: runCommands("DEBUG POPULATE 2000", "SAVE"), // the server loses everything that is written later
		begin: func(e *experiment) {
			kill(e)
			if err := e.target.primary().Relaunch("--key-load-delay", "1000", "--loading-process-events-interval-bytes", "1024"); err != nil {
				e.Fatal(err)
			}
		},
		end:       func(e *experiment) { e.await("the server to finish loading", e.isAnswering) },
		isPartial: true, wantErrors: unready, dataLosses: 1,
	},
	{
		id: "F6", name: "read-only",
		begin:      runCommands("REPLICAOF 127.0.0.1 1"), // no server listens at port 1
		end:        runCommands("REPLICAOF NO ONE"),
		wantErrors: unready,
	},
	{
		id: "F7", name: "a replica without its primary",
		begin: runCommands("CONFIG SET replica-serve-stale-data no", "REPLICAOF 127.0.0.1 1"), end: runCommands("REPLICAOF NO ONE"),
		wantErrors: unready,
	},
	{
		id: "F7", name: "too few replicas", onMore: groups,
		begin: runCommands("CONFIG SET min-replicas-to-write 2"), end: runCommands("CONFIG SET min-replicas-to-write 0"),
		wantErrors: unready,
	},
	{
		id: "F10", name: "out of memory", onMore: groups,
		begin: runCommands("CONFIG SET maxmemory 1"), end: runCommands("CONFIG SET maxmemory 0"),
		wantErrors: []penstock.Reason{penstock.ReasonOutOfMemory},
	},
	{
		id: "F16", name: "busy",
		args: []string{"--busy-reply-threshold", "50"},
		begin: func(e *experiment) {
			go e.target.primary().Do("EVAL", "while true do end", "0")
			e.await("the server to be busy", func() bool {
				_, err := e.target.primary().Do("PING")
				return err != nil && strings.HasPrefix(err.Error(), "BUSY")
			})
		},
		end:        runCommands("SCRIPT KILL"),
		wantErrors: []penstock.Reason{penstock.ReasonBusy},
	},
	{
		id: "F17", name: "a right revoked",
		prepare: asLimiter,
		begin:   runCommands("ACL SETUSER limiter -time"), end: runCommands("ACL SETUSER limiter +time"),
		wantErrors: refused, isStoreCalled: true,
	},
	{
		id: "F17", name: "another password",
		prepare: asLimiter,
		begin:   runCommands("ACL SETUSER limiter resetpass >another", "CLIENT KILL USER limiter"), end: runCommands("ACL SETUSER limiter resetpass >secret"),
		wantErrors: refused,
	},
	{
		id: "F29", name: "maxclients reached",
		begin: fill, end: undo,
		wantErrors: unknown, mayHaveErrors: unready, // the server closes the connection after its error
	},
}

// asLimiter makes the instances log in as a user with only the rights of docs/operations.md.
func asLimiter(e *experiment) {
	e.do("ACL SETUSER limiter reset on >secret ~ps1* -@all +ping " + rights(e.T))
	e.target.url = strings.Replace(e.target.url, "://", "://limiter:secret@", 1)
}

// rights returns the rights that docs/operations.md lists for one server.
func rights(t testing.TB) string {
	t.Helper()
	text, err := os.ReadFile("../../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	line := regexp.MustCompile(`(?m)^ACL SETUSER limiter reset on .*$`).FindString(string(text))
	found := regexp.MustCompile(`\+[a-z|]+`).FindAllString(line, -1)
	if len(found) < 10 {
		t.Fatalf("docs/operations.md lists %d rights, %v; want at least 10", len(found), found)
	}
	return strings.Join(found, " ")
}

// fill sets maxclients to 1 and holds the only connection, until undo.
func fill(e *experiment) { e.undo = fillServer(e, e.target.primary()) }

// fillServer sets maxclients of a server to 1 and holds the only connection, until release is
// called.
func fillServer(e *experiment, s *redistest.Server) (release func()) {
	e.Helper()
	conn, err := net.Dial("unix", s.Socket)
	if err != nil {
		e.Fatal(err)
	}
	replies := bufio.NewReader(conn)
	do := func(command string) {
		if _, err := fmt.Fprint(conn, command, "\r\n"); err != nil {
			e.Fatalf("command %q: %v; want no error", command, err)
		}
		if reply, err := replies.ReadString('\n'); err != nil || strings.HasPrefix(reply, "-") {
			e.Fatalf("command %q: reply %q, %v; want a reply that is no error", command, reply, err)
		}
	}
	do("CONFIG SET maxclients 1")
	do("CLIENT KILL TYPE normal")
	return func() {
		do("CONFIG SET maxclients 1000")
		conn.Close()
	}
}
