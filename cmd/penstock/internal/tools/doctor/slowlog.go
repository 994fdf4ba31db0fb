package doctor

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"
)

const (
	maxSlowEntries = 128       // that are read; the log of a server has as many by default
	slowPeriod     = time.Hour // older entries do not count
)

// A slowCommand sums up the entries of one command of one program in a server's log.
type slowCommand struct {
	name, program string
	isOwn         bool // the program is Penstock
	count         int64
	longest       time.Duration
}

// checkSlowlog names the commands of the last hour that were slow. The server runs one command at a
// time, so decisions have waited for them.
func (d *doctor) checkSlowlog(ctx context.Context, s *server) {
	entries, err := d.do(ctx, s, "SLOWLOG", "GET", strconv.Itoa(maxSlowEntries)).ToArray()
	if err != nil {
		d.addUnreadable("slowlog", s, "the log of slow commands", "+slowlog|get", err)
		return
	}
	c := Check{Name: "slowlog", Server: s.address, Status: OK, Summary: "the server's log has no slow command of the last hour"}
	if all := slowCommands(entries, time.Now().Add(-slowPeriod)); len(all) > 0 {
		var parts []string
		var n int64
		for _, one := range all {
			parts = append(parts, fmt.Sprintf("%s of %s (%d x, up to %v)", one.name, one.program, one.count, rounded(one.longest)))
			n += one.count
		}
		longest := all[0].longest
		c.Summary = count(n, "slow command") + " in the last hour: " + strings.Join(parts[:min(len(parts), 5)], ", ")
		c.Facts = map[string]any{"slow_commands": n, "longest_us": longest.Microseconds()}
		if longest > d.StoreTimeout/2 { // as for latency
			c.Status, c.Why = Warning, "decisions wait for a slow command; those that wait longer than store_timeout use on_failure"
			c.Remedy = "let that program send shorter commands, or use a separate server for limits; " + d.cli(s, "SLOWLOG GET 10") + " shows the commands in full"
			if all[0].isOwn {
				c.Remedy = "the slowest command is a decision of Penstock: the server lacks CPU time, or a key has very many limits; " + d.cli(s, "SLOWLOG GET 10") + " shows its key"
			}
		}
	}
	d.add(c)
}

// slowCommands sums up the entries since a time, the slowest command first. Arguments may have
// identities, so only the names of commands are read.
func slowCommands(entries []rueidis.RedisMessage, since time.Time) (all []slowCommand) {
	for _, entry := range entries {
		// The number, the time in seconds, the duration in microseconds, the arguments, the client's
		// address and its name.
		fields, err := entry.ToArray()
		if err != nil || len(fields) < 4 {
			continue
		}
		at, _ := fields[1].AsInt64()
		micros, _ := fields[2].AsInt64()
		arguments, _ := fields[3].AsStrSlice()
		if at < since.Unix() || len(arguments) == 0 {
			continue
		}
		program, isOwn := "an unknown client", false
		if len(fields) >= 6 {
			address, _ := fields[4].ToString()
			name, _ := fields[5].ToString()
			if program = hostOf(address); name != "" {
				program, isOwn = fmt.Sprintf("%.40q at %s", name, program), name == "penstock"
			}
		}
		name := fmt.Sprintf("%.40s", strings.ToUpper(arguments[0]))
		i := slices.IndexFunc(all, func(c slowCommand) bool { return c.name == name && c.program == program })
		if i < 0 {
			i, all = len(all), append(all, slowCommand{name: name, program: program, isOwn: isOwn})
		}
		all[i].count++
		all[i].longest = max(all[i].longest, time.Duration(micros)*time.Microsecond)
	}
	slices.SortStableFunc(all, func(a, b slowCommand) int { return int(b.longest - a.longest) })
	return all
}

// hostOf returns the host of a client's address. A client at a socket has the address of the
// socket, with the port 0.
func hostOf(address string) string {
	host := address[:max(strings.LastIndexByte(address, ':'), 0)]
	if host == "" || host == "?" {
		return "a script"
	}
	return host
}
