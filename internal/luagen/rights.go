package luagen

import (
	"fmt"
	"iter"
	"slices"
	"strings"
)

// CheckRights replaces each line RIGHTS() in a script by statements that end the script if its user
// may not run one of its commands. A line such as RIGHTS('ZADD', 'PEXPIRE') only checks these. A
// script that writes with more than one command must check before its first write. Without this
// check, Redis would reject the second write and keep the first. The error names the missing right,
// which Redis 7.0 does not name.
func CheckRights(text string) string {
	var all []string
	for command := range Commands(text) {
		if Examples[command] != nil && !slices.Contains(all, command) {
			all = append(all, command)
		}
	}
	return replaceRights(text, func(commands []string) string {
		if len(commands) == 0 {
			commands = all
		}
		var checks strings.Builder
		for _, command := range commands {
			fmt.Fprintf(&checks, "not may(%s) and '%s' or ", InLua(Examples[command], "KEYS[1]"), strings.ToLower(command))
		}
		return "local may = redis.acl_check_cmd\nlocal missing = " + checks.String() + "nil\n" +
			"if missing then return redis.error_reply('NOPERM the user needs the right +' .. missing) end\n"
	})
}

// replaceRights replaces each line RIGHTS(…) by what write returns for the commands that it names.
func replaceRights(text string, write func(commands []string) string) string {
	var out strings.Builder
	for {
		before, rest, found := strings.Cut(text, "RIGHTS(")
		out.WriteString(before)
		if !found {
			return out.String()
		}
		names, after, _ := strings.Cut(rest, ")\n")
		out.WriteString(write(strings.FieldsFunc(names, func(r rune) bool { return r < 'A' || r > 'Z' })))
		text = after
	}
}

// KeyOfExample stands for the key in Examples.
const KeyOfExample = "KEY"

// Examples are calls of the commands that scripts run, to check whether the user may run them.
// Examples must have as many arguments as the command takes, because Redis 7.0 crashes if the key
// is missing. Commands without an example, such as TIME, are not checked, because scripts run them
// before their first write.
var Examples = map[string][]string{
	"GET": {"GET", KeyOfExample}, "MGET": {"MGET", KeyOfExample}, "SET": {"SET", KeyOfExample, ""}, "SETRANGE": {"SETRANGE", KeyOfExample, "0", ""},
	"DEL": {"DEL", KeyOfExample}, "PTTL": {"PTTL", KeyOfExample}, "PEXPIRE": {"PEXPIRE", KeyOfExample, "1"}, "ZADD": {"ZADD", KeyOfExample, "1", ""},
	"ZCARD": {"ZCARD", KeyOfExample}, "ZCOUNT": {"ZCOUNT", KeyOfExample, "1", "1"}, "ZRANGE": {"ZRANGE", KeyOfExample, "1", "1"},
	"ZRANGEBYSCORE": {"ZRANGEBYSCORE", KeyOfExample, "1", "1"}, "ZMSCORE": {"ZMSCORE", KeyOfExample, ""}, "ZREM": {"ZREM", KeyOfExample, ""},
	"ZREMRANGEBYRANK":  {"ZREMRANGEBYRANK", KeyOfExample, "1", "1"},
	"ZREMRANGEBYSCORE": {"ZREMRANGEBYSCORE", KeyOfExample, "1", "1"},
	"ZSCORE":           {"ZSCORE", KeyOfExample, ""}, "INFO": {"INFO", "memory"},
}

// InLua returns the words of an example as arguments in Lua. The Lua expression key replaces
// KeyOfExample.
func InLua(example []string, key string) string {
	written := make([]string, len(example))
	for i, argument := range example {
		written[i] = "'" + argument + "'"
		if argument == KeyOfExample {
			written[i] = key
		}
	}
	return strings.Join(written, ", ")
}

// Commands iterates over the commands that a script runs: call('GET', …), or get('GET', …).
func Commands(script string) iter.Seq[string] {
	return func(yield func(string) bool) {
		for {
			before, rest, found := strings.Cut(script, "('")
			if !found {
				return
			}
			command, after, _ := strings.Cut(rest, "'")
			isCall := strings.HasSuffix(before, "call") || strings.HasSuffix(before, "get")
			if !isCall {
				script = rest
				continue
			}
			isCommand := strings.Trim(command, "ABCDEFGHIJKLMNOPQRSTUVWXYZ") == ""
			if isCommand && !yield(command) {
				return
			}
			script = after
		}
	}
}
