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

	Contacts map[string]Contact // by the names of Peers

	// Idle is how long no instance has led the exchange: none runs, or none can write to this Redis.
	// It is 0 while one leads, and negative if none ever did.
	Idle time.Duration

	// Delay is how long a message to the farthest region takes, by the last answers. 0: not known.
	Delay time.Duration
}

// A Contact says how recently a region and another one knew what the other had granted. A time is
// negative if they never did.
type Contact struct {
	Asked   time.Duration // since the region asked for the last full answer that it has merged
	Visited time.Duration // since the other region had merged all that this one had granted
}

// Age returns how long ago both regions knew all that the other had granted. It is negative if they
// never did.
func (c Contact) Age() time.Duration {
	if c.Asked < 0 || c.Visited < 0 {
		return -1
	}
	return max(c.Asked, c.Visited)
}

// IsLost reports whether the regions are out of contact, so that each enforces its share. every is
// Options.Every of their instances.
func (c Contact) IsLost(every time.Duration) bool { return isLost(c.Age(), every) }

// HasAnswers reports whether the region got full answers of the other one lately.
func (c Contact) HasAnswers(every time.Duration) bool { return !isLost(c.Asked, every) }

func isLost(age, every time.Duration) bool {
	o := Options{Every: every}
	o.setDefaults()
	return age < 0 || age > o.Silence
}

// lookLua replies the time, and what the site says, in six lines. It only reads.
const lookLua = `#!lua flags=no-writes
local time = redis.call('TIME')
local site = redis.call('GET', KEYS[1])
site = site and cmsgpack.unpack(site) or { region = '', mark = '', lease = 0, peers = {} }
local now, peers, ages, delay = time[1] * 1000000 + time[2], {}, {}, 0
local function age(at) return string.format('%.0f', at > 0 and at <= now and now - at or -1) end
for name, p in pairs(site.peers) do
  peers[#peers + 1], ages[#ages + 1], delay = name, age(p.asked) .. ' ' .. age(p.visited), math.max(delay, p.delay or 0)
end
local idle = site.lease > now and '0' or age(site.lease)
return time[1] .. ' ' .. time[2] .. '\n' .. site.region .. '\n' .. site.mark .. '\n' .. table.concat(peers, ' ') .. '\n' .. table.concat(ages, ' ') .. '\n' .. string.format('%.0f', delay) .. ' ' .. idle`

// LookAt reads what a region's Redis shows.
func LookAt(ctx context.Context, s Server) (l Look, err error) {
	reply, err := s.Eval(ctx, lookLua, []string{"regions"})
	if err != nil {
		return l, err
	}
	lines := strings.Split(reply, "\n")
	var seconds, micros, delay, idle int64
	if len(lines) == 6 {
		_, err = fmt.Sscan(lines[0]+" "+lines[5], &seconds, &micros, &delay, &idle)
	}
	if len(lines) != 6 || err != nil {
		return l, fmt.Errorf("the script of regions replied %.40q; expected six lines", reply)
	}
	l = Look{
		Clock: time.Unix(seconds, micros*1000), Region: lines[1], Mark: lines[2], Peers: strings.Fields(lines[3]),
		Contacts: make(map[string]Contact), Delay: time.Duration(delay) * time.Microsecond, Idle: time.Duration(idle) * time.Microsecond,
	}
	ages := strings.Fields(lines[4])
	for n := range min(len(l.Peers), len(ages)/2) {
		asked, _ := strconv.ParseInt(ages[2*n], 10, 64)
		visited, _ := strconv.ParseInt(ages[2*n+1], 10, 64)
		l.Contacts[l.Peers[n]] = Contact{time.Duration(asked) * time.Microsecond, time.Duration(visited) * time.Microsecond}
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
	for name, c := range l.Contacts {
		if age := c.Age(); age >= 0 {
			at := e.o.Now().Add(-age)
			e.peers[name].contactAt = at
			e.site.setContact(name, at)
		}
	}
	return e.Enforced(plan)
}

// MarkOf returns the Mark of instances whose stores have this secret.
func MarkOf(secret []byte) string { return newSealer(secret).mark }
