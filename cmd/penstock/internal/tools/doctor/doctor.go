// Package doctor examines the servers of a store. It reports whether Penstock can use them, and the
// risks. It only reads, except for its probe keys.
package doctor

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"github.com/penstock/penstock/cmd/penstock/internal/console/redisops"
	"github.com/penstock/penstock/cmd/penstock/internal/text/rediscli"
	"github.com/penstock/penstock/internal/luagen"
	"github.com/penstock/penstock/internal/redisclient"
	"github.com/penstock/penstock/internal/rediskeys"
	"github.com/penstock/penstock/internal/redisrights"
	"github.com/penstock/penstock/redisstore"
)

// Options of Run. URL must be set.
type Options struct {
	URL          string             // of the store, as redisstore.Open reads it
	Name         string             // name of the store in the report, without secrets
	Keys         redisstore.Options // prefix and secret, as for serve
	StoreTimeout time.Duration      // how long a decision of serve may take
	Measured     time.Duration      // of half of the decisions of one caller, as penstock bench measured it earlier; 0: it did not
	Digest       string             // of the policy that the instances should have; "" if it is not known
	Region       string             // of the store; "" if there is only one
	Peers        map[string]string  // URLs of the other regions' stores, by name
	Interval     time.Duration      // how often regions exchange; default: 1 s

	// ReadInstance reads the summary of an instance.
	ReadInstance func(summary string) (Instance, error)

	// AskInstance asks a running instance how the store works for it. Its Host is the address that
	// was asked. Default: no instance is asked.
	AskInstance func(context.Context) (Instance, error)
}

type Status string

// The statuses, from good to bad.
const (
	OK      Status = "ok"
	Unknown Status = "unknown" // the check could not read what it needs
	Warning Status = "warning" // a risk: decisions may fail, or counters may be lost
	Failed  Status = "failed"  // a fault: decisions fail, or counters are lost
)

var severity = map[Status]int{OK: 0, Unknown: 1, Warning: 2, Failed: 3}

type Report struct {
	Store    string  `json:"store"`
	Kind     string  `json:"kind"` // single, sentinel or cluster
	Prefix   string  `json:"prefix"`
	Status   Status  `json:"status"`   // the worst of all checks
	Commands int64   `json:"commands"` // number of commands that were sent
	Checks   []Check `json:"checks"`
}

type Check struct {
	Name    string         `json:"name"`
	Server  string         `json:"server,omitempty"` // its address; "" if the check is about all servers
	Status  Status         `json:"status"`
	Summary string         `json:"summary"`
	Why     string         `json:"why,omitempty"`    // the consequence
	Remedy  string         `json:"remedy,omitempty"` // what to do: a command, if there is one
	Needs   string         `json:"needs,omitempty"`  // the right that would show more, such as "+info"
	Facts   map[string]any `json:"facts,omitempty"`  // numbers behind the summary

	isLoginRefused bool // true if the check is reach, and the server refused the user or the password
}

// Names are the names of the checks, in the order of the report.
var Names = []string{"reach", "version", "rights", "decisions", "latency", "slowlog", "eviction", "memory", "clock", "persistence", "replication",
	"topology", "scripts", "connections", "keys", "tenants", "instances", "regions"}

const (
	commandTimeout = 5 * time.Second
	connectTimeout = 5 * time.Second
)

// Run examines the servers of a store. It takes some seconds, and longer if servers do not respond.
// The Report has the faults of the servers. If the URL or the options are wrong, Run returns an
// error that wraps penstock.ErrInvalid.
func Run(ctx context.Context, o Options) (*Report, error) {
	option, err := redisclient.ParseURL(o.URL)
	if err != nil {
		return nil, err
	}
	if err := o.Keys.Validate(); err != nil {
		return nil, err
	}
	d := &doctor{Options: o, option: option, base: rediskeys.Base(o.Keys.Prefix), kind: "single"}
	defer d.disconnect()
	d.discover(ctx)
	d.examine(ctx)
	r := &Report{Store: o.Name, Kind: d.kind, Prefix: d.base, Status: OK, Checks: d.sorted()}
	for _, c := range r.Checks {
		if severity[c.Status] > severity[r.Status] {
			r.Status = c.Status
		}
	}
	r.Commands = d.commands.Load()
	return r, nil
}

// IsReached reports whether at least one server was reached. A refused login counts too.
func (r *Report) IsReached() bool {
	return slices.ContainsFunc(r.Checks, func(c Check) bool { return c.Name == "reach" && (c.Status != Failed || c.isLoginRefused) })
}

// Has reports whether any check has the status least or a worse one.
func (r *Report) Has(least Status) bool { return severity[r.Status] >= severity[least] }

type doctor struct {
	Options
	option    rueidis.ClientOption
	base      string // how all keys begin, such as ps1: the prefix, and 1 for the format
	kind      string // single, sentinel or cluster
	servers   []*server
	sentinels []*server
	primaries []*server // the servers that make decisions
	checks    []Check
	commands  atomic.Int64
}

func (d *doctor) disconnect() {
	for _, s := range append(d.servers, d.sentinels...) {
		s.connector.Close()
	}
}

func (d *doctor) examine(ctx context.Context) {
	d.checkReach()
	d.readServers(ctx)
	for _, s := range d.servers {
		if s.client == nil {
			continue
		}
		d.checkVersion(s)
		d.checkRights(ctx, s)
		d.checkSlowlog(ctx, s)
		for _, one := range checksOfInfo {
			if s.info == nil {
				d.addWithoutInfo(one.name, s, one.what)
			} else {
				one.check(d, s)
			}
		}
	}
	d.checkVersionsAreEqual()
	d.checkClocks(ctx)
	d.checkReplication()
	d.checkTopology(ctx)
	if store, err := d.open(); err == nil { // Run has checked the options, so there is no error
		defer store.Close()
		d.checkDecisions(ctx, store)
		d.checkInstances(ctx, store)
		d.checkRegions(ctx, store)
	}
	for _, s := range d.primaries {
		d.checkKeys(ctx, s)
	}
	d.checkSpread()
	d.checkAskedInstance(ctx)
	d.checkEvictions(ctx)
}

// checksOfInfo examine what a server's INFO shows. what names the subject of a check, for messages.
var checksOfInfo = []struct {
	name, what string
	check      func(*doctor, *server)
}{
	{"eviction", "what happens when the memory is full", (*doctor).checkEvictionPolicy},
	{"memory", "the memory", (*doctor).checkMemory},
	{"persistence", "persistence", (*doctor).checkPersistence},
	{"scripts", "the script cache", (*doctor).checkScripts},
	{"connections", "the connections", (*doctor).checkConnections},
}

func (d *doctor) add(c Check) { d.checks = append(d.checks, c) }

// addWithoutRight adds a check that could not be made because the user lacks a right.
func (d *doctor) addWithoutRight(name string, s *server, what, right string) {
	d.add(Check{Name: name, Server: s.address, Status: Unknown, Summary: what + " cannot be read without the right " + right, Needs: right,
		Remedy: d.grant(s, right)})
}

// addUnreadable adds a check that could not be made because a command failed. right is the right
// that the command needs.
func (d *doctor) addUnreadable(name string, s *server, what, right string, err error) {
	if deniedRight(err) != "" {
		d.addWithoutRight(name, s, what, right)
		return
	}
	d.add(Check{Name: name, Server: s.address, Status: Unknown, Summary: what + " cannot be read: " + shortText(err)})
}

// addWithoutInfo adds a check that could not be made because INFO failed, or because the user may
// not run it.
func (d *doctor) addWithoutInfo(name string, s *server, what string) {
	if s.infoErr == nil {
		d.addWithoutRight(name, s, what, "+info")
		return
	}
	d.addUnreadable(name, s, what, "+info", s.infoErr)
}

func (d *doctor) user() string {
	return cmp.Or(d.option.Username, "default")
}

func (d *doctor) cli(s *server, command string) string {
	return s.cli(d.option.TLSConfig != nil, d.option.SelectDB) + " " + command
}

func (d *doctor) sorted() (checks []Check) {
	for _, name := range Names {
		for _, c := range d.checks {
			if c.Name == name {
				checks = append(checks, c)
			}
		}
	}
	return checks
}

func (d *doctor) do(ctx context.Context, s *server, args ...string) rueidis.RedisResult {
	d.commands.Add(1)
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	return s.client.Do(ctx, s.client.B().Arbitrary(args[0]).Args(args[1:]...).Build())
}

func (d *doctor) doAll(ctx context.Context, s *server, commands [][]string) []rueidis.RedisResult {
	d.commands.Add(int64(len(commands)))
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	built := make(rueidis.Commands, len(commands))
	for i, args := range commands {
		built[i] = s.client.B().Arbitrary(args[0]).Args(args[1:]...).Build()
	}
	return s.client.DoMulti(ctx, built...)
}

// count returns a number with its noun, such as "2 keys".
func count(n int64, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// grant returns the command line that gives rights to the user on a server. rights has the form of
// a StoreError's hint: words such as "+set" and "~ps1*", or a sentence.
func (d *doctor) grant(s *server, rights string) string {
	line := d.cli(s, "ACL SETUSER "+rediscli.Word(d.user()))
	for word := range strings.FieldsSeq(rights) {
		if word[0] != '+' && word[0] != '~' {
			return "grant the user " + d.user() + ": " + rights
		}
		line += " " + rediscli.Word(word)
	}
	return line
}

// Rights returns the rights that all checks need: those of the store, and more to inspect the
// servers. If a right to inspect is missing, a check has the status unknown and names the right.
func Rights(o redisrights.Options) []redisrights.Right {
	rights := append(redisops.Rights(o),
		redisrights.Right{Command: "scan", Example: []string{"SCAN", "0"}, Without: "look at a sample of the keys"},
		redisrights.Right{Command: "type", Example: []string{"TYPE", luagen.KeyOfExample}, Without: "find keys of a wrong type"},
		redisrights.Right{Command: "pttl", Example: []string{"PTTL", luagen.KeyOfExample}, Without: "find keys without a TTL"},
		redisrights.Right{Command: "memory|usage", Example: []string{"MEMORY", "USAGE", luagen.KeyOfExample}, Without: "measure the size of keys"},
		redisrights.Right{Command: "slowlog|get", Example: []string{"SLOWLOG", "GET", "1"}, Without: "name slow commands"})
	if o.Cluster {
		rights = append(rights, redisrights.Right{Command: "cluster|info", Example: []string{"CLUSTER", "INFO"}, Without: "see the state of the Cluster"})
	}
	return rights
}
