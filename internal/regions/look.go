package regions

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/penstock/penstock"
)

// A Look is what a region's Redis shows about the exchange, for penstock doctor and explain.
type Look struct {
	Clock  time.Time
	Region string   // the name that its instances have; "" if none has used it
	Peers  []string // the other regions that they know
	Mark   string   // a hash of their secret; other secrets have other marks

	// Contact is how long ago both regions knew all that the other had granted, by the names of Peers.
	// It is negative if they never did.
	Contact map[string]time.Duration

	// Delay is how long a message to the farthest region takes, by the last answers. 0: not known.
	Delay time.Duration
}

// lookLua replies the time, and what the site says, in six lines. It only reads.
const lookLua = `#!lua flags=no-writes
local time = redis.call('TIME')
local site = redis.call('GET', KEYS[1])
site = site and cmsgpack.unpack(site) or { region = '', mark = '', peers = {} }
local now, peers, ages, delay = time[1] * 1000000 + time[2], {}, {}, 0
for name, p in pairs(site.peers) do
  local at = math.min(p.asked, p.visited)
  peers[#peers + 1], ages[#ages + 1], delay = name, string.format('%.0f', at > 0 and math.max(now - at, 0) or -1), math.max(delay, p.delay or 0)
end
return time[1] .. ' ' .. time[2] .. '\n' .. site.region .. '\n' .. site.mark .. '\n' .. table.concat(peers, ' ') .. '\n' .. table.concat(ages, ' ') .. '\n' .. string.format('%.0f', delay)`

// LookAt reads what a region's Redis shows.
func LookAt(ctx context.Context, s Server) (l Look, err error) {
	reply, err := s.Eval(ctx, lookLua, []string{"regions"})
	if err != nil {
		return l, err
	}
	lines := strings.Split(reply, "\n")
	var seconds, micros, delay int64
	if len(lines) == 6 {
		_, err = fmt.Sscan(lines[0]+" "+lines[5], &seconds, &micros, &delay)
	}
	if len(lines) != 6 || err != nil {
		return l, fmt.Errorf("the script of regions replied %.40q; expected six lines", reply)
	}
	l = Look{
		Clock: time.Unix(seconds, micros*1000), Region: lines[1], Mark: lines[2], Peers: strings.Fields(lines[3]),
		Contact: make(map[string]time.Duration), Delay: time.Duration(delay) * time.Microsecond,
	}
	for n, age := range strings.Fields(lines[4]) {
		if n < len(l.Peers) {
			micros, _ := strconv.ParseInt(age, 10, 64)
			l.Contact[l.Peers[n]] = time.Duration(micros) * time.Microsecond
		}
	}
	return l, nil
}

// Enforced returns what the region enforces of a limit now; see Exchange.Enforced. every is
// Options.Every of its instances.
func (l Look) Enforced(plan *penstock.Plan, every time.Duration) *penstock.Plan {
	e, err := New(Options{Self: l.Region, Peers: l.Peers, Every: every})
	if err != nil { // no other region is known
		return plan
	}
	for name, age := range l.Contact {
		if age >= 0 {
			at := e.o.Now().Add(-age)
			e.peers[name].contactAt = at
			e.site.setContact(name, at)
		}
	}
	return e.Enforced(plan)
}

// MarkOf returns the Mark of instances whose stores have this secret.
func MarkOf(secret []byte) string { return newSealer(secret).mark }
