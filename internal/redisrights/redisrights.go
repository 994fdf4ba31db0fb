// Package redisrights lists the rights that the Redis user of a store needs.
package redisrights

import (
	"slices"
	"strings"

	"github.com/penstock/penstock/algorithm"
	"github.com/penstock/penstock/internal/luagen"
	"github.com/penstock/penstock/internal/rediskeys"
)

// A Right is a command that a store's user must be allowed to run.
type Right struct {
	Command string   // as ACL SETUSER takes it after '+': "get", "script|load"
	Example []string // a call of the command, for ACL DRYRUN; luagen.KeyOfExample stands for a key

	// Without is what cannot be done without the right. "" means that the store cannot decide.
	Without string
}

// Options describe how a store is used.
type Options struct {
	DecideOnly bool     // the program calls only Decide and Load: not Heartbeat or Ping
	Scripts    []string // scripts that the program sends by Eval and EvalOnEach
	Further    []Right  // rights that the program needs besides

	Cluster  bool // the servers are a Redis Cluster
	Sentinel bool // the store's URL begins with redis+sentinel
	Database bool // the store uses another database than 0
	GoRedis  bool // the client is from package redisstore/goredis, not from Open

	// Algorithms are those of the limits. Default: all built-in ones.
	Algorithms []*algorithm.Algorithm
}

// Of returns the rights that the Redis user of a store needs. First come those to send scripts,
// then those for the commands inside scripts, then those for the connection. The commands inside
// scripts are read from the scripts themselves.
func Of(o Options) []Right {
	exampleDigest := strings.Repeat("0", 40) // the hexadecimal digits of a SHA-1
	rights := []Right{
		{Command: "evalsha", Example: []string{"EVALSHA", exampleDigest, "1", luagen.KeyOfExample}},
		{Command: "eval", Example: []string{"EVAL", "return 1", "1", luagen.KeyOfExample}},
		{Command: "script|load", Example: []string{"SCRIPT", "LOAD", "return 1"}, Without: "load scripts in advance: the first call that needs one sends its text"},
	}
	for _, command := range commandsInScripts(o) {
		right := Right{Command: strings.ToLower(command), Example: luagen.Examples[command]}
		if right.Example == nil {
			right.Example = []string{command}
		}
		if command == "INFO" {
			right.Without = "report the health of the server, warn if it may evict counters, or find the replicas behind Sentinel"
		}
		rights = append(rights, right)
	}
	if !o.DecideOnly {
		rights = append(rights, Right{Command: "ping", Example: []string{"PING"}, Without: "answer Store.Ping"})
	}
	rights = append(rights, o.Further...)
	if o.Cluster {
		rights = append(rights,
			Right{Command: "cluster|slots", Example: []string{"CLUSTER", "SLOTS"}},
			Right{Command: "cluster|shards", Example: []string{"CLUSTER", "SHARDS"}})
		if o.GoRedis {
			rights = append(rights, Right{Command: "command", Example: []string{"COMMAND"}})
		}
	}
	if o.Sentinel && !o.GoRedis {
		rights = append(rights, Right{Command: "role", Example: []string{"ROLE"}})
	}
	if o.Database {
		rights = append(rights, Right{Command: "select", Example: []string{"SELECT", "1"}})
	}
	return rights
}

// commandsInScripts returns the commands that the scripts run, sorted by name.
func commandsInScripts(o Options) []string {
	algorithms := o.Algorithms
	if algorithms == nil {
		algorithms = algorithm.All()
	}
	scripts := []string{luagen.Mixed(algorithms)}
	for _, a := range algorithms {
		if !a.IsCollection() && a.Numbers() <= luagen.MaxNumbers {
			one := []*algorithm.Algorithm{a}
			scripts = append(scripts, luagen.Single(one), luagen.Uniform(one))
		}
	}
	if !o.DecideOnly {
		scripts = append(scripts, luagen.Heartbeat)
	}
	var commands []string
	for _, script := range append(scripts, o.Scripts...) {
		commands = slices.AppendSeq(commands, luagen.Commands(script))
	}
	slices.Sort(commands) // commands on sorted sets, which begin with Z, come last
	return slices.Compact(commands)
}

// CheckScript returns a script that replies with the rights that its user lacks, separated by
// commas. The script's ARGV[1] is a key of the store. The script writes nothing, and needs the
// right to EVAL.
func CheckScript(rights []Right) string {
	var b strings.Builder
	b.WriteString("local missing = {}\nlocal function check(right, ...)\n" +
		"  local isKnown, isAllowed = pcall(redis.acl_check_cmd, ...)\n" +
		"  if not (isKnown and isAllowed) then missing[#missing + 1] = right end\nend\n")
	for _, r := range rights {
		b.WriteString("check('" + r.Command + "', " + luagen.InLua(r.Example, "ARGV[1]") + ")\n")
	}
	b.WriteString("return table.concat(missing, ',')")
	return b.String()
}

// Rules returns the rules of a user that has these rights to the keys of stores with this prefix,
// and no others. The rules are the end of a call of ACL SETUSER, or of a line in an ACL file.
func Rules(prefix string, rights []Right) string {
	rules := "~" + rediskeys.Base(prefix) + "* -@all"
	for _, r := range rights {
		rules += " +" + r.Command
	}
	return rules
}
