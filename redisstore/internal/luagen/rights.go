package luagen

import (
	"fmt"
	"iter"
	"strings"
)

// CheckRights replaces the line RIGHTS in a script by statements that end the script if its user
// may not run one of its commands. A script that writes more than once must check before its first
// write: otherwise Redis would reject the second write and keep the first. The error names the
// missing right, which Redis 7.0 does not.
func CheckRights(text string) string {
	before, after, found := strings.Cut(text, "RIGHTS\n")
	if !found {
		return text
	}
	var checks strings.Builder
	checked := make(map[string]bool)
	for command := range Commands(text) {
		if arguments, ok := examples[command]; ok && !checked[command] {
			checked[command] = true
			fmt.Fprintf(&checks, "not may('%s', %s) and '%s' or ", command, arguments, strings.ToLower(command))
		}
	}
	return before + "local may = redis.acl_check_cmd\nlocal missing = " + checks.String() + "nil\n" +
		"if missing then return redis.error_reply('NOPERM the user needs the right +' .. missing) end\n" + after
}

// examples are arguments for the commands that scripts run, to check whether the user may
// run them. There must be as many as the command takes: Redis 7.0 crashes if the key is missing.
// Commands that are not here are not checked.
var examples = map[string]string{
	"GET": "KEYS[1]", "SET": "KEYS[1], ''", "SETRANGE": "KEYS[1], '0', ''", "DEL": "KEYS[1]", "PEXPIRE": "KEYS[1], '1'",
	"ZADD": "KEYS[1], '1', ''", "ZCARD": "KEYS[1]", "ZCOUNT": "KEYS[1], '1', '1'", "ZRANGE": "KEYS[1], '1', '1'",
	"ZRANGEBYSCORE": "KEYS[1], '1', '1'", "ZREM": "KEYS[1], ''", "ZREMRANGEBYRANK": "KEYS[1], '1', '1'",
	"ZREMRANGEBYSCORE": "KEYS[1], '1', '1'", "ZSCORE": "KEYS[1], ''", "INFO": "'memory'",
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
			script = rest
			if !strings.HasSuffix(before, "call") && !strings.HasSuffix(before, "get") {
				continue
			}
			if strings.Trim(command, "ABCDEFGHIJKLMNOPQRSTUVWXYZ") == "" && !yield(command) {
				return
			}
			script = after
		}
	}
}
