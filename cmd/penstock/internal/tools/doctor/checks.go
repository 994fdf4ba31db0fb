package doctor

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/cmd/penstock/internal/console/redisops"
	"github.com/penstock/penstock/internal/luagen"
	"github.com/penstock/penstock/internal/redisinfo"
	"github.com/penstock/penstock/internal/redisrights"
)

const (
	minCertificateLife = 14 * 24 * time.Hour    // until a server's certificate expires
	maxCachedScripts   = 500                    // a larger cache has scripts of other programs, which may evict ours
	maxMemoryShare     = 80                     // % of maxmemory
	maxConnectionShare = 80                     // % of maxclients
	maxFork            = 100 * time.Millisecond // decisions wait while the server forks
	maxLagBytes        = 1 << 20                // that a replica has not received
	maxLagSeconds      = 10                     // since a replica's latest answer
	minRedis           = "7.0"                  // version
	minValkey          = "7.2"                  // version
)

func (d *doctor) checkReach() {
	for _, s := range append(slices.Clone(d.sentinels), d.servers...) {
		c := Check{Name: "reach", Server: s.address, Status: OK}
		isSentinel, isRefused := slices.Contains(d.sentinels, s), isLoginRefused(s.err)
		// A Sentinel that answers, but names no primary, fails in the check topology.
		if s.client == nil || s.err != nil && (!isSentinel || isRefused) {
			c.Status, c.Summary = Failed, "the server cannot be reached: "+shortText(s.err)
			c.isLoginRefused = isRefused
			if s.isHanging() {
				c.Summary = fmt.Sprintf("the server accepted the connection, and did not answer within %v", s.waited.Round(100*time.Millisecond))
			} else if isRefused {
				c.Summary = "the server refuses the user or the password: " + shortText(s.err)
			}
			c.Why, c.Remedy = d.whyUnreached(s)
			if s.isReplica {
				c.Status, c.Why = Warning, "the replica cannot be used from here; after a failover, limits would use on_failure"
			}
			d.add(c)
			continue
		}
		s.dialed.mu.Lock()
		took, tlsState := s.dialed.took, s.dialed.tls
		s.dialed.mu.Unlock()
		c.Summary = fmt.Sprintf("the server can be reached; connecting took %v", took.Round(100*time.Microsecond))
		c.Facts = map[string]any{"connect_us": took.Microseconds()}
		if tlsState != nil {
			d.judgeCertificate(&c, s, tlsState)
		}
		if s.hello["mode"] == "sentinel" && !isSentinel {
			c.Status, c.Summary = Failed, "this is a Sentinel, which has no counters"
			c.Remedy = "write the URL as redis+sentinel://" + s.address + "/NAME"
		}
		d.add(c)
	}
}

func (d *doctor) judgeCertificate(c *Check, s *server, state *tls.ConnectionState) {
	end := state.PeerCertificates[0].NotAfter
	left := time.Until(end)
	c.Facts["certificate_expires"] = end.UTC().Format(time.RFC3339)
	c.Summary += fmt.Sprintf("; %s, the certificate ends in %d days", tls.VersionName(state.Version), int(left/(24*time.Hour)))
	if left < minCertificateLife {
		c.Status, c.Why = Warning, "after "+end.UTC().Format("2006-01-02 15:04")+" UTC no instance can connect"
		c.Remedy = "install a new certificate on the server; then " + d.cli(s, "CONFIG SET tls-cert-file FILE")
	}
	if d.option.TLSConfig.InsecureSkipVerify {
		c.Status, c.Why = Warning, "insecure_skip_verify accepts any certificate: an attacker in the network can read the password and change counters"
		c.Remedy = "remove insecure_skip_verify from the URL, and name the authority by ca=FILE"
	}
}

// isLoginRefused reports whether a server was reached, and refused the user or the password.
func isLoginRefused(err error) bool {
	text := shortText(err)
	return strings.Contains(text, "WRONGPASS") || strings.Contains(text, "NOAUTH")
}

func (d *doctor) whyUnreached(s *server) (why, remedy string) {
	if why, remedy = wrongCertificate(s.err); why != "" {
		return why, remedy
	}
	text := shortText(s.err)
	hasTLS := d.option.TLSConfig != nil
	switch {
	case isLoginRefused(s.err):
		return "the user or the password is wrong", d.correctLogin(s)
	case strings.Contains(text, "max number of clients"):
		return "the server has as many connections as it accepts",
			"close a connection first, because redis-cli needs one too, for example by stopping an instance; then " + d.cli(s, "CONFIG SET maxclients 10000")
	case strings.Contains(text, "protected mode"):
		return "the server has no password, so it accepts only connections from its own machine", "on that machine, add the user that penstock acl prints; then disable the user default or give it a password"
	case strings.Contains(text, "NOPERM"):
		return "the user lacks a right that every connection needs", "grant the rights that penstock acl prints"
	case s.isHanging():
		return "while the server does not answer, limits use on_failure", "see whether its process hangs or is stopped, and whether this is the port of Redis: " + d.cli(s, "PING")
	case !hasTLS && (strings.Contains(text, "reset by peer") || strings.Contains(text, "EOF")):
		return "the port may expect TLS", "try rediss:// instead of redis://"
	case strings.Contains(text, "first record does not look like a TLS handshake"), hasTLS && strings.Contains(text, "deadline exceeded"):
		return "the port may not expect TLS", "try redis:// instead of rediss://"
	}
	return "while the server cannot be reached, limits use on_failure", "check the address and the firewall, and whether the server runs: " + d.cli(s, "PING")
}

// wrongCertificate explains why a server's certificate is refused, and returns a remedy. They are
// "" if the error has another reason.
func wrongCertificate(err error) (why, remedy string) {
	var invalidCertificate x509.CertificateInvalidError
	var otherName x509.HostnameError
	var unknownAuthority x509.UnknownAuthorityError
	switch {
	case errors.As(err, &invalidCertificate) && invalidCertificate.Reason == x509.Expired:
		return "the server's certificate has expired", "install a new certificate on the server"
	case errors.As(err, &otherName):
		return "the certificate is for another name", "write server_name=NAME into the URL, or use a certificate with the server's name"
	case errors.As(err, &unknownAuthority):
		return "the certificate's authority is not known here", "write ca=FILE into the URL"
	}
	return "", ""
}

// correctLogin returns the remedy for a login that a server refuses. It has no command, because
// the server would refuse that too.
func (d *doctor) correctLogin(s *server) string {
	option := "password_file"
	if slices.Contains(d.sentinels, s) {
		option = "sentinel_password_file"
	}
	_, query, _ := strings.Cut(d.URL, "?")
	options, _ := url.ParseQuery(query) // a URL that cannot be parsed has ended the run before
	if file := options.Get(option); file != "" {
		return "correct the password in the file " + file + " (" + option + "), or the user in the URL"
	}
	return "correct the URL: its user and its password, or write " + option + "=FILE"
}

// shortText returns an error's text without the prefixes that do not matter in a report.
func shortText(err error) string {
	if err == nil {
		return "the reason is unknown"
	}
	text := strings.TrimPrefix(err.Error(), penstock.ErrUnavailable.Error()+": ")
	return strings.TrimPrefix(text, "nothing was sent: ")
}

func (d *doctor) checkVersion(s *server) {
	c := Check{Name: "version", Server: s.address, Status: OK, Summary: s.version(), Facts: map[string]any{"version": s.version()}}
	_, digits, _ := strings.Cut(s.version(), " ")
	least, name := minRedis, "Redis"
	if s.isValkey() {
		least, name = minValkey, "Valkey"
	}
	if isOlder(digits, least) {
		c.Status, c.Summary = Failed, s.version()+" is too old"
		c.Why, c.Remedy = "on such a version, scripts may run in part on a replica or on a full server", "use "+name+" "+least+" or later"
	}
	d.add(c)
}

// isOlder reports whether a version, such as 7.10.1, is older than least, such as 7.2. Text that is
// no version is older than all versions.
func isOlder(version, least string) bool {
	var major, minor, leastMajor, leastMinor int
	fmt.Sscanf(version, "%d.%d", &major, &minor)
	fmt.Sscanf(least, "%d.%d", &leastMajor, &leastMinor)
	return major < leastMajor || major == leastMajor && minor < leastMinor
}

func (d *doctor) checkVersionsAreEqual() {
	var versions []string
	for _, s := range d.servers {
		if s.client != nil && !slices.Contains(versions, s.version()) {
			versions = append(versions, s.version())
		}
	}
	if len(versions) > 1 {
		d.add(Check{Name: "version", Status: Warning, Summary: "the servers have different versions: " + strings.Join(versions, ", "),
			Why: "an old replica may not understand a newer primary", Remedy: "finish the upgrade: the replicas first, then a failover"})
	}
}

// checkRights finds the rights that serve needs and the user lacks. Users are not replicated, so it
// checks each server.
func (d *doctor) checkRights(ctx context.Context, s *server) {
	rights := redisops.Rights(redisrights.Options{Cluster: d.kind == "cluster", Sentinel: d.kind == "sentinel", Database: d.option.SelectDB != 0})
	c := Check{Name: "rights", Server: s.address, Status: OK, Summary: fmt.Sprintf("the user %s has all rights that serve needs", d.user())}
	text, err := d.do(ctx, s, "EVAL", redisrights.CheckScript(rights), "0", d.base+"{doctor}self-test").ToString()
	if err != nil {
		c.Status, c.Summary = Unknown, "the rights of the user "+d.user()+" cannot be checked: "+shortText(err)
		if strings.Contains(err.Error(), "NOPERM") {
			c.Status, c.Needs = Failed, "+eval"
			c.Why, c.Remedy = "no script can be checked or loaded", d.grant(s, "+eval")
		}
		d.add(c)
		return
	}
	missing := strings.FieldsFunc(text, func(r rune) bool { return r == ',' })
	var needed, useful []string // missing rights without which decisions fail, and the others
	why := ""
	keyed, missingKeyed := 0, 0 // all commands that use a key, and those that the user lacks
	for _, right := range rights {
		hasKey := slices.Contains(right.Example, luagen.KeyOfExample)
		if hasKey {
			keyed++
		}
		if !slices.Contains(missing, right.Command) {
			continue
		}
		if hasKey {
			missingKeyed++
		}
		if right.Without == "" {
			needed = append(needed, "+"+right.Command)
		} else {
			useful, why = append(useful, "+"+right.Command), "without it, serve cannot "+right.Without
		}
	}
	if missingKeyed == keyed { // the user may not use the keys at all
		needed = append([]string{"~" + d.base + "*"}, needed...)
	}
	switch {
	case len(needed) > 0:
		c.Status, c.Summary = Failed, fmt.Sprintf("the user %s lacks %s", d.user(), strings.Join(append(needed, useful...), " "))
		c.Why, c.Needs = "scripts that need them fail, and limits use on_failure", strings.Join(needed, " ")
	case len(useful) > 0:
		c.Status, c.Summary, c.Why = Warning, fmt.Sprintf("the user %s lacks %s", d.user(), strings.Join(useful, " ")), why
		c.Needs = strings.Join(useful, " ")
	}
	if c.Status != OK {
		c.Remedy = d.grant(s, strings.Join(append(needed, useful...), " "))
	}
	d.add(c)
}

func (d *doctor) checkEvictionPolicy(s *server) {
	evictionPolicy := s.info["maxmemory_policy"]
	c := Check{Name: "eviction", Server: s.address, Status: OK, Summary: "maxmemory-policy is noeviction: a full server deletes no counters",
		Facts: map[string]any{"maxmemory_policy": evictionPolicy, "evicted_keys": s.info.Integer("evicted_keys")}}
	if evictionPolicy != "noeviction" {
		c.Status, c.Summary = Failed, "maxmemory-policy is "+evictionPolicy
		c.Why = "a full server deletes counters, and clients may use their limits again"
		c.Remedy = d.cli(s, "CONFIG SET maxmemory-policy noeviction") + ", and in redis.conf"
		if s.info.Integer("maxmemory") == 0 {
			c.Status, c.Why = Warning, "this has no effect while maxmemory is 0; with a bound, the server would delete counters"
		}
	}
	d.add(c)
}

func (d *doctor) checkMemory(s *server) {
	used, maxMemory := s.info.Integer("used_memory"), s.info.Integer("maxmemory")
	c := Check{Name: "memory", Server: s.address, Status: OK, Facts: map[string]any{"used_memory": used, "maxmemory": maxMemory}}
	switch share := percent(used, maxMemory); {
	case maxMemory == 0:
		c.Summary = fmt.Sprintf("%s in use, without a bound", size(used))
		if system := s.info.Integer("total_system_memory"); system > 0 && used*100/system >= maxMemoryShare {
			c.Status, c.Why = Warning, fmt.Sprintf("that is %d %% of the machine's memory; the kernel may kill the server", used*100/system)
			c.Remedy = d.cli(s, "CONFIG SET maxmemory BYTES")
		}
	case share >= 100:
		c.Status, c.Summary = Failed, fmt.Sprintf("full: %s of %s in use", size(used), size(maxMemory))
		c.Why, c.Remedy = "the server rejects decisions, and limits use on_failure", d.cli(s, maxMemoryCommand(s))
	default:
		c.Summary = fmt.Sprintf("%d %% in use: %s of %s", share, size(used), size(maxMemory))
		if share >= maxMemoryShare {
			c.Status, c.Why = Warning, "a full server rejects decisions, and limits use on_failure"
			c.Remedy = d.cli(s, maxMemoryCommand(s))
		}
	}
	d.add(c)
}

// maxMemoryCommand returns the command that at least doubles a server's maxmemory. All checks of a
// run suggest the same number.
func maxMemoryCommand(s *server) string {
	const least = 64 << 20 // bytes
	return fmt.Sprintf("CONFIG SET maxmemory %d", max(2*s.info.Integer("used_memory"), 2*s.info.Integer("maxmemory"), least))
}

func percent(part, whole int64) int64 {
	if whole <= 0 {
		return 0
	}
	return int64(float64(part) / float64(whole) * 100)
}

func size(bytes int64) string {
	switch {
	case bytes >= 1<<30:
		return fmt.Sprintf("%.1f GB", float64(bytes)/(1<<30))
	case bytes >= 1<<20:
		return fmt.Sprintf("%.1f MB", float64(bytes)/(1<<20))
	}
	return fmt.Sprintf("%.1f KB", float64(bytes)/(1<<10))
}

// checkEvictions compares the number of evicted keys with the number at the start of the run.
func (d *doctor) checkEvictions(ctx context.Context) {
	for _, s := range d.primaries {
		if s.info == nil {
			continue
		}
		text, err := d.do(ctx, s, "INFO", "stats").ToString()
		evicted := redisinfo.Parse(text).Integer("evicted_keys")
		if n := evicted - s.info.Integer("evicted_keys"); err == nil && n > 0 {
			d.add(Check{Name: "eviction", Server: s.address, Status: Failed, Summary: "the server is deleting keys now: " + count(n, "key") + " during this run",
				Why: "counters are among them, so clients use their limits again", Remedy: d.cli(s, "CONFIG SET maxmemory-policy noeviction"),
				Facts: map[string]any{"evicted_keys": evicted}})
		}
	}
}

// checkPersistence reports whether the server can write its files, and what a restart would lose.
func (d *doctor) checkPersistence(s *server) {
	fork := time.Duration(s.info.Integer("latest_fork_usec")) * time.Microsecond
	c := Check{Name: "persistence", Server: s.address, Status: OK, Facts: map[string]any{"aof_enabled": s.info["aof_enabled"] == "1",
		"rdb_last_bgsave_status": s.info["rdb_last_bgsave_status"], "aof_last_write_status": s.info["aof_last_write_status"], "latest_fork_us": fork.Microseconds()}}
	switch {
	case s.info["loading"] == "1":
		c.Status, c.Summary, c.Why = Failed, "the server is loading its data", "it makes no decision until it has loaded them"
		c.Remedy = "wait: loading takes about " + s.info["loading_eta_seconds"] + " s more"
	case s.info["rdb_last_bgsave_status"] == "err":
		c.Status, c.Summary = Failed, "the latest snapshot failed"
		c.Why = "with stop-writes-on-bgsave-error, which is the default, the server rejects all decisions"
		c.Remedy = "free space on the server's disk and correct the rights of its folder; then " + d.cli(s, "BGSAVE")
	case s.info["aof_last_write_status"] == "err":
		c.Status, c.Summary = Failed, "the latest write to the append-only file failed"
		c.Why, c.Remedy = "the server rejects all decisions until it can write", "free space on the server's disk; then "+d.cli(s, "BGREWRITEAOF")
	case fork > maxFork:
		c.Status, c.Summary = Warning, fmt.Sprintf("the latest fork took %v", fork.Round(time.Millisecond))
		c.Why, c.Remedy = "all decisions wait while the server forks", d.cli(s, `CONFIG SET save ""`)+", or use a separate server for limits"
	case s.info["aof_enabled"] == "1":
		c.Summary = "the append-only file is written; a restart keeps the counters"
	case s.info["rdb_saves"] == "0":
		c.Summary = "no append-only file, and no snapshot since the server's start: a restart loses what clients have used since then"
	default:
		c.Summary = "no append-only file: a restart loses what clients have used since the latest snapshot"
	}
	d.add(c)
}

// checkScripts finds servers whose script cache is full of scripts of other programs.
func (d *doctor) checkScripts(s *server) {
	n, evicted := s.info.Integer("number_of_cached_scripts"), s.info.Integer("evicted_scripts")
	c := Check{Name: "scripts", Server: s.address, Status: OK, Summary: count(n, "script") + " in the cache", Facts: map[string]any{"cached": n, "evicted": evicted}}
	if n > maxCachedScripts || evicted > 0 {
		c.Status = Warning
		c.Why = "other programs send ever new script texts by EVAL; these fill the memory, and may evict Penstock's scripts"
		c.Remedy = "let those programs use a fixed text with arguments; then " + d.cli(s, "SCRIPT FLUSH ASYNC")
	}
	d.add(c)
}

// checkConnections finds servers that refuse connections, or soon will.
func (d *doctor) checkConnections(s *server) {
	n, most, rejected := s.info.Integer("connected_clients"), s.info.Integer("maxclients"), s.info.Integer("rejected_connections")
	c := Check{Name: "connections", Server: s.address, Status: OK, Summary: fmt.Sprintf("%s of %d", count(n, "connection"), most),
		Facts: map[string]any{"connected": n, "most": most, "rejected": rejected, "blocked": s.info.Integer("blocked_clients")}}
	isNearlyFull := percent(n, most) >= maxConnectionShare
	if !isNearlyFull && rejected > 0 {
		c.Summary += fmt.Sprintf("; %d were rejected since the server's start", rejected)
	}
	if isNearlyFull || rejected > 0 {
		c.Status, c.Why = Warning, "an instance that cannot connect uses on_failure"
		c.Remedy = d.cli(s, fmt.Sprintf("CONFIG SET maxclients %d", 2*most))
	}
	d.add(c)
}

// checkReplication compares the replicas' offsets with those of their primaries.
func (d *doctor) checkReplication() {
	for _, s := range d.servers {
		switch {
		case s.client == nil:
		case s.info == nil:
			d.addWithoutInfo("replication", s, "the replication")
		case s.info["role"] == "slave":
			d.judgeReplica(s)
		default:
			d.judgePrimary(s)
		}
	}
}

func (d *doctor) judgeReplica(s *server) {
	c := Check{Name: "replication", Server: s.address, Status: OK, Summary: "a replica, in sync", Facts: map[string]any{"role": "replica", "link": s.info["master_link_status"]}}
	switch {
	case slices.Contains(d.primaries, s):
		c.Status, c.Summary, c.Why = Failed, "the server is a replica, which cannot decide", "limits use on_failure"
		c.Remedy = "name its primary in the URL: " + s.info["master_host"] + ":" + s.info["master_port"] + "; or " + d.cli(s, "REPLICAOF NO ONE")
	case s.info["master_link_status"] != "up":
		c.Status, c.Summary = Warning, "the replica has lost its primary"
		c.Why, c.Remedy = "if it is promoted, everything that clients used since then is lost", "see its log; "+d.cli(s, "INFO replication")
	}
	d.add(c)
}

func (d *doctor) judgePrimary(s *server) {
	replicas := s.info.Integer("connected_slaves")
	c := Check{Name: "replication", Server: s.address, Status: OK, Summary: "a primary with " + count(replicas, "replica"), Facts: map[string]any{"role": "primary", "replicas": replicas}}
	offset := s.info.Integer("master_repl_offset")
	for i := range replicas {
		line := s.info["slave"+strconv.FormatInt(i, 10)]
		replicated, lag := redisinfo.Integer(redisinfo.ListField(line, "offset")), redisinfo.Integer(redisinfo.ListField(line, "lag"))
		state := redisinfo.ListField(line, "state")
		if lag > maxLagSeconds || offset-replicated > maxLagBytes || state != "online" {
			c.Status = Warning
			c.Summary = fmt.Sprintf("the replica %s:%s lags: state %s, %s behind, latest answer %d s ago", redisinfo.ListField(line, "ip"), redisinfo.ListField(line, "port"), state, size(offset-replicated), lag)
			c.Why, c.Remedy = "after a failover, clients may use again the units that the replica has not received", "see the replica's log and its network"
		}
	}
	switch inSync, isSet := s.info["min_slaves_good_slaves"]; { // a field that exists only with min-replicas-to-write
	case isSet && inSync == "0":
		c.Status, c.Summary = Failed, "min-replicas-to-write is set, and no replica is in sync"
		c.Why, c.Remedy = "the server rejects all decisions", "start a replica, or "+d.cli(s, "CONFIG SET min-replicas-to-write 0")
	case replicas == 0 && d.kind != "single":
		c.Status, c.Summary = Warning, "a primary without a replica"
		c.Why, c.Remedy = "if it fails, no replica takes over, and the limits of its keys use on_failure", "start a replica of it"
	case replicas == 0:
		c.Summary = "a primary without a replica; while it is down, limits use on_failure"
	}
	d.add(c)
}
