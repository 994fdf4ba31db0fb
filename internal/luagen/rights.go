package luagen

import (
	"fmt"
	"iter"
	"strings"
)

// CheckRights replaces the line RIGHTS in a script by statements that end the script if its user
// may not run one of its commands. A script that writes more than once must check before its first
// write. Without this check, Redis would reject the second write and keep the first. The error
// names the missing right, which Redis 7.0 does not name.
func CheckRights(text string) string {
	before, after, found := strings.Cut(text, "RIGHTS\n")
	if !found {
		return text
	}
	var checks strings.Builder
	checked := make(map[string]bool)
	for command := range Commands(text) {
		if example, ok := Examples[command]; ok && !checked[command] {
			checked[command] = true
			fmt.Fprintf(&checks, "not may(%s) and '%s' or ", InLua(example, "KEYS[1]"), strings.ToLower(command))
		}
	}
	return before + "local may = redis.acl_check_cmd\nlocal missing = " + checks.String() + "nil\n" +
		"if missing then return redis.error_reply('NOPERM the user needs the right +' .. missing) end\n" + after
}

// KeyOfExample stands for the key in Examples.
const KeyOfExample = "KEY"

// Examples are calls of the commands that scripts run, to check whether the user may run them.
// Examples must have as many arguments as the command takes, because Redis 7.0 crashes if the key
// is missing. Commands without an example, such as TIME, are not checked, because scripts run them
// before their first write.
var Examples = map[string][]string{
	"GET": {"GET", KeyOfExample}, "SET": {"SET", KeyOfExample, ""}, "SETRANGE": {"SETRANGE", KeyOfExample, "0", ""},
	"DEL": {"DEL", KeyOfExample}, "PEXPIRE": {"PEXPIRE", KeyOfExample, "1"}, "ZADD": {"ZADD", KeyOfExample, "1", ""},
	"ZCARD": {"ZCARD", KeyOfExample}, "ZCOUNT": {"ZCOUNT", KeyOfExample, "1", "1"}, "ZRANGE": {"ZRANGE", KeyOfExample, "1", "1"},
	"ZRANGEBYSCORE": {"ZRANGEBYSCORE", KeyOfExample, "1", "1"}, "ZREM": {"ZREM", KeyOfExample, ""},
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
