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
	"github.com/penstock/penstock/internal/redistest"
)

var (
	unready = []penstock.Reason{penstock.ReasonNotReady}
	refused = []penstock.Reason{penstock.ReasonPermissionDenied}
)

// The server answers, but not the question.
var refusing = []row{
	{
		id: "F5", name: "loading",
		prepare: do("DEBUG POPULATE 2000", "SAVE"), // what it forgets is all that comes later
		begin: func(l *lab) {
			kill(l)
			if err := l.to.primary().Relaunch("--key-load-delay", "1000", "--loading-process-events-interval-bytes", "1024"); err != nil {
				l.Fatal(err)
			}
		},
		end:     func(l *lab) { l.await("the server has loaded", l.answers) },
		partial: true, sees: unready, forgets: 1,
	},
	{
		id: "F6", name: "read-only",
		begin: do("REPLICAOF 127.0.0.1 1"), end: do("REPLICAOF NO ONE"),
		sees: unready,
	},
	{
		id: "F7", name: "a replica without its primary",
		begin: do("CONFIG SET replica-serve-stale-data no", "REPLICAOF 127.0.0.1 1"), end: do("REPLICAOF NO ONE"),
		sees: unready,
	},
	{
		id: "F7", name: "too few replicas", onMore: groups,
		begin: do("CONFIG SET min-replicas-to-write 2"), end: do("CONFIG SET min-replicas-to-write 0"),
		sees: unready,
	},
	{
		id: "F10", name: "out of memory", onMore: groups,
		begin: do("CONFIG SET maxmemory 1"), end: do("CONFIG SET maxmemory 0"),
		sees: []penstock.Reason{penstock.ReasonOutOfMemory},
	},
	{
		id: "F16", name: "busy",
		args: []string{"--busy-reply-threshold", "50"},
		begin: func(l *lab) {
			go l.to.primary().Do("EVAL", "while true do end", "0")
			l.await("the server is busy", func() bool {
				_, err := l.to.primary().Do("PING")
				return err != nil && strings.HasPrefix(err.Error(), "BUSY")
			})
		},
		end:  do("SCRIPT KILL"),
		sees: []penstock.Reason{penstock.ReasonBusy},
	},
	{
		id: "F17", name: "a right taken",
		prepare: asLimiter,
		begin:   do("ACL SETUSER limiter -time"), end: do("ACL SETUSER limiter +time"),
		sees: refused, asked: true,
	},
	{
		id: "F17", name: "another password",
		prepare: asLimiter,
		begin:   do("ACL SETUSER limiter resetpass >another", "CLIENT KILL USER limiter"), end: do("ACL SETUSER limiter resetpass >secret"),
		sees: refused,
	},
	{
		id: "F29", name: "full of clients",
		begin: fill, end: undo,
		sees: unknown, may: unready, // the server closes the connection on what it says
	},
}

// asLimiter has the instances come as a user with the rights of docs/operations.md, and no more.
func asLimiter(l *lab) {
	l.do("ACL SETUSER limiter reset on >secret ~ps1* -@all +ping " + rights(l.T))
	l.to.url = strings.Replace(l.to.url, "://", "://limiter:secret@", 1)
}

// rights are those that docs/operations.md lists for one server.
func rights(t testing.TB) string {
	t.Helper()
	text, err := os.ReadFile("../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	line := regexp.MustCompile(`(?m)^ACL SETUSER limiter on .*$`).FindString(string(text))
	found := regexp.MustCompile(`\+[a-z|]+`).FindAllString(line, -1)
	if len(found) < 10 {
		t.Fatalf("docs/operations.md lists %d rights: %v", len(found), found)
	}
	return strings.Join(found, " ")
}

// fill keeps the last place for one client, who makes room again.
func fill(l *lab) { l.undo = fillServer(l, l.to.primary()) }

func fillServer(l *lab, s *redistest.Server) (empty func()) {
	l.Helper()
	conn, err := net.Dial("unix", s.Socket)
	if err != nil {
		l.Fatal(err)
	}
	replies := bufio.NewReader(conn)
	do := func(command string) {
		if _, err := fmt.Fprint(conn, command, "\r\n"); err != nil {
			l.Fatalf("%s: %v", command, err)
		}
		if reply, err := replies.ReadString('\n'); err != nil || strings.HasPrefix(reply, "-") {
			l.Fatalf("%s: %q, %v", command, reply, err)
		}
	}
	do("CONFIG SET maxclients 1")
	do("CLIENT KILL TYPE normal")
	return func() {
		do("CONFIG SET maxclients 1000")
		conn.Close()
	}
}
