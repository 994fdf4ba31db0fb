package redisops

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/penstock/penstock/internal/luagen"
	"github.com/penstock/penstock/internal/redisinfo"
	"github.com/penstock/penstock/redisstore"
)

// A Server describes the only server of a store, or one primary of a Cluster, by its INFO. Counts
// begin when the server starts. A number that the server does not report is 0.
type Server struct {
	Memory

	Keys    int64 // in all databases
	Evicted int64 // keys that were deleted because the memory was full
	Expired int64 // keys whose TTL ended

	CPU           time.Duration // CPU time of the main thread, which runs all scripts
	Scripts       int64         // calls of EVALSHA and EVAL, by all clients
	ScriptTime    time.Duration // total time of these calls
	CachedScripts int64         // scripts in the server's cache

	Clients    int64 // connected clients
	MaxClients int64 // the most that may be connected
	Refused    int64 // connections that were closed because MaxClients were open

	// RunID names one run of a server. It is another one after a failover, and after a restart.
	RunID string

	Replicas int64 // connected replicas
	Lag      int64 // bytes that the slowest replica has not received
}

// infoLua replies the parts of INFO that a Server is made of.
var infoLua = luagen.CheckRights(`local call = redis.call
RIGHTS()
return call('INFO', 'server', 'memory', 'stats', 'cpu', 'clients', 'replication', 'commandstats', 'keyspace')`)

// Servers describes the server of the store, or every primary of a Cluster, in the order of their
// addresses. Servers needs the right to INFO and, on a Cluster, the right to CLUSTER SLOTS. Decide
// needs neither right.
func Servers(ctx context.Context, store *redisstore.Store) ([]Server, error) {
	var all []Server
	err := store.EvalOnEach(ctx, infoLua, "info", nil, func(address, reply string) error {
		server, err := parseInfo(reply)
		server.Address = address
		all = append(all, server)
		return err
	})
	if err != nil {
		return nil, err
	}
	return all, nil
}

// maxInfoBytes bounds a reply of INFO, in bytes. A usual one has less than 20,000.
const maxInfoBytes = 1 << 20

func parseInfo(text string) (Server, error) {
	if len(text) > maxInfoBytes {
		return Server{}, fmt.Errorf("the info script replied %d bytes; the most is %d", len(text), maxInfoBytes)
	}
	fields := redisinfo.Parse(text)
	if fields["used_memory"] == "" {
		return Server{}, fmt.Errorf("the info script replied %.40q; expected a text with used_memory", text)
	}
	number := fields.Integer
	const maxText = 40 // bytes; the longest policy of Redis has 15, and a run ID has 40
	short := func(name string) string { return fields[name][:min(len(fields[name]), maxText)] }
	s := Server{
		Memory:  Memory{Used: number("used_memory"), Max: number("maxmemory"), Policy: short("maxmemory_policy")},
		Evicted: number("evicted_keys"), Expired: number("expired_keys"),
		CPU:           seconds(fields["used_cpu_sys_main_thread"]) + seconds(fields["used_cpu_user_main_thread"]),
		CachedScripts: number("number_of_cached_scripts"),
		Clients:       number("connected_clients"), MaxClients: number("maxclients"), Refused: number("rejected_connections"),
		RunID: short("run_id"), Replicas: number("connected_slaves"),
	}
	for name, value := range fields {
		switch {
		case name == "cmdstat_eval" || name == "cmdstat_evalsha": // calls=5,usec=76,…
			s.Scripts += redisinfo.Integer(redisinfo.ListField(value, "calls"))
			const maxMicros = redisinfo.MaxInteger / 1000 // so that the time has at most MaxInteger ns
			s.ScriptTime += time.Duration(min(redisinfo.Integer(redisinfo.ListField(value, "usec")), maxMicros)) * time.Microsecond
		case redisinfo.IsNumbered(name, "db"): // keys=1,expires=0,…
			s.Keys += redisinfo.Integer(redisinfo.ListField(value, "keys"))
		case redisinfo.IsNumbered(name, "slave"): // ip=10.0.0.2,port=6379,state=online,offset=14,lag=1
			if offset := redisinfo.ListField(value, "offset"); offset != "" {
				s.Lag = max(s.Lag, number("master_repl_offset")-redisinfo.Integer(offset))
			}
		}
	}
	return s, nil
}

// seconds returns a time of INFO, which is in seconds. If the text is not a number, or negative, it
// returns 0.
func seconds(text string) time.Duration {
	n, _ := strconv.ParseFloat(text, 64)
	if !(n > 0) { // also for NaN
		return 0
	}
	return time.Duration(min(n, redisinfo.MaxInteger/float64(time.Second)) * float64(time.Second))
}

type Memory struct {
	Used    int64  // bytes
	Max     int64  // bytes; 0: there is no maximum
	Policy  string // maxmemory-policy: what the server does when its memory is full
	Address string // on a Cluster the server's address, else ""
}

// Evicts reports whether the server may delete counters when its memory is full. Then used units
// could be spent again. With the policy noeviction, a full server rejects calls instead, and the
// guards decide.
func (m Memory) Evicts() bool { return m.Max > 0 && m.Policy != "noeviction" }

// WorstMemory returns the memory that most needs attention: that of a server that evicts, or else
// of the fullest server. Without servers it returns the zero value.
func WorstMemory(servers []Server) Memory {
	var worst Memory
	for i, s := range servers {
		if i == 0 || s.Memory.isWorseThan(worst) {
			worst = s.Memory
		}
	}
	return worst
}

func (m Memory) isWorseThan(other Memory) bool {
	if m.Evicts() != other.Evicts() {
		return m.Evicts()
	}
	return m.utilization() > other.utilization()
}

func (m Memory) utilization() float64 {
	if m.Max == 0 {
		return 0
	}
	return float64(m.Used) / float64(m.Max)
}
