package regions

import (
	"context"
	"fmt"
	"strings"
	"time"
)

// A Look is what a region's Redis shows to one who examines it.
type Look struct {
	Clock  time.Time
	Region string   // the name that its instances have; "" if none has used it
	Peers  []string // the other regions that they know
	Mark   string   // tells their secret from others
}

// lookLua replies the time, and what the site says, in four lines. It only reads.
const lookLua = `#!lua flags=no-writes
local time = redis.call('TIME')
local site = redis.call('GET', KEYS[1])
site = site and cmsgpack.unpack(site) or { region = '', mark = '', peers = {} }
local peers = {}
for name in pairs(site.peers) do peers[#peers + 1] = name end
return time[1] .. ' ' .. time[2] .. '\n' .. site.region .. '\n' .. site.mark .. '\n' .. table.concat(peers, ' ')`

// LookAt reads what a region's Redis shows.
func LookAt(ctx context.Context, s Server) (l Look, err error) {
	reply, err := s.Eval(ctx, lookLua, []string{"regions"})
	if err != nil {
		return l, err
	}
	lines := strings.Split(reply, "\n")
	var seconds, micros int64
	if len(lines) == 4 {
		_, err = fmt.Sscan(lines[0], &seconds, &micros)
	}
	if len(lines) != 4 || err != nil {
		return l, fmt.Errorf("the script of regions replied %.40q; expected four lines", reply)
	}
	return Look{Clock: time.Unix(seconds, micros*1000), Region: lines[1], Mark: lines[2], Peers: strings.Fields(lines[3])}, nil
}

// MarkOf returns the Mark of instances whose stores have this secret.
func MarkOf(secret []byte) string { return newSealer(secret).mark }
