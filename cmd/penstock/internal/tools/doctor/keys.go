package doctor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/penstock/penstock/cmd/penstock/internal/text/rediscli"
	"github.com/penstock/penstock/internal/redisinfo"
)

const (
	maxSample   = 10_000          // keys of all servers
	maxSized    = 100             // keys of each server whose size is read
	scanCount   = "500"           // keys that the server looks at for one reply
	scanBudget  = 3 * time.Second // for the keys of one server
	minSpread   = 1000            // keys; with fewer, their distribution is not judged
	maxSpread   = 1.5             // largest good ratio of the fullest primary to the mean
	maxExamples = 3               // keys that a problem names
	batchSize   = 500             // keys whose types and TTLs are read together
)

type sample struct {
	ours      int64 // keys that Penstock makes
	forever   int64 // of these, keys without a TTL
	wrongType int64 // of these, keys of another type than Penstock's
	foreign   int64 // other keys under the prefix
	deleted   int64 // keys that the server evicted or expired since its INFO was read

	isWhole      bool                // all keys under the prefix were read
	sized, bytes int64               // number of keys whose size is known, and the sum of their sizes
	examples     map[string][]string // masked keys by problem
	needs        []string            // missing rights that would show more
}

func (d *doctor) checkKeys(ctx context.Context, s *server) {
	s.sample = &sample{examples: make(map[string][]string)}
	keys, err := d.scan(ctx, s)
	if err != nil {
		s.sample = nil
		d.addUnreadable("keys", s, "the keys", "+scan", err)
	} else {
		for batch := range slices.Chunk(keys, batchSize) {
			d.readKeys(ctx, s, batch)
		}
		s.sample.deleted = d.deletedSince(ctx, s)
		d.judgeKeys(s)
	}
	d.checkTenants(s)
}

// deletedSince returns how many keys the server has evicted or expired since its INFO was read.
func (d *doctor) deletedSince(ctx context.Context, s *server) int64 {
	if s.info == nil {
		return 0
	}
	now := &server{client: s.client}
	d.readInfo(ctx, now)
	removed := func(s *server) int64 { return s.info.Integer("evicted_keys") + s.info.Integer("expired_keys") }
	return max(removed(now)-removed(s), 0)
}

func (d *doctor) scan(ctx context.Context, s *server) (keys []string, err error) {
	most := maxSample / len(d.primaries)
	begin, cursor := time.Now(), "0"
	for {
		reply, err := d.do(ctx, s, "SCAN", cursor, "MATCH", d.base+"*", "COUNT", scanCount).AsScanEntry()
		if err != nil {
			return nil, err
		}
		keys = append(keys, reply.Elements...)
		if reply.Cursor == 0 { // the end of the scan
			s.sample.isWhole = true
			return keys, nil
		}
		cursor = strconv.FormatUint(reply.Cursor, 10)
		if len(keys) >= most || time.Since(begin) > scanBudget {
			return keys[:min(len(keys), most)], nil
		}
	}
}

// readKeys reads the type and TTL of each key, and the size of some.
func (d *doctor) readKeys(ctx context.Context, s *server, keys []string) {
	commands := make([][]string, 0, 2*len(keys))
	for _, key := range keys {
		commands = append(commands, []string{"TYPE", key}, []string{"PTTL", key})
	}
	replies := d.doAll(ctx, s, commands)
	for i, key := range keys {
		kind, typeErr := replies[2*i].ToString()
		ttl, ttlErr := replies[2*i+1].AsInt64()
		s.sample.noteMissingRight(typeErr)
		s.sample.noteMissingRight(ttlErr)
		const gone, noTTL = -2, -1 // special replies to PTTL
		hasExpired := kind == "none" || ttlErr == nil && ttl == gone
		if hasExpired { // since the scan
			continue
		}
		want, isOurs := d.typeOf(key)
		if !isOurs {
			s.sample.foreign++
			s.sample.addExample("foreign", key)
			continue
		}
		s.sample.ours++
		if typeErr == nil && want != "" && kind != want {
			s.sample.wrongType++
			s.sample.addExample("wrong type", key)
		} else if ttlErr == nil && ttl == noTTL {
			s.sample.forever++
			s.sample.addExample("no TTL", key)
		}
		if s.sample.sized < maxSized && !slices.Contains(s.sample.needs, "+memory|usage") {
			bytes, err := d.do(ctx, s, "MEMORY", "USAGE", key).AsInt64()
			s.sample.noteMissingRight(err)
			if err == nil {
				s.sample.sized++
				s.sample.bytes += bytes
			}
		}
	}
}

func (m *sample) noteMissingRight(err error) {
	if right := deniedRight(err); right != "" && !slices.Contains(m.needs, right) {
		m.needs = append(m.needs, right)
	}
}

func (m *sample) addExample(problem, key string) {
	if len(m.examples[problem]) < maxExamples {
		m.examples[problem] = append(m.examples[problem], masked(key))
	}
}

// masked returns a key without the identity in its braces, which may be a secret. Only the
// identity's kind stays. If the key has no braces, only the text up to its first separator stays.
// If that text is too long, only a few characters stay.
func masked(key string) string {
	const maxShown, fewShown, maxKind, maxRest = 24, 6, 16, 80 // bytes
	begin := strings.IndexByte(key, '{') + 1
	length := strings.IndexByte(key[begin:], '}')
	if begin == 0 || length < 0 {
		shown := strings.IndexAny(key, ":{/|") + 1
		if shown == 0 || shown > maxShown {
			shown = min(len(key), fewShown)
		}
		return strconv.Quote(key[:shown] + "…")
	}
	kind, _, _ := strings.Cut(key[begin:begin+length], ":")
	if len(kind) > maxKind || kind == key[begin:begin+length] {
		kind = ""
	} else {
		kind += ":"
	}
	rest := key[begin+length+1:]
	return strconv.Quote(key[:begin] + kind + "…}" + rest[:min(len(rest), maxRest)])
}

// typeOf returns the Redis type that a key of a store must have, or "" for any. isOurs is true for
// a key that Penstock makes.
func (d *doctor) typeOf(key string) (want string, isOurs bool) {
	afterBrace, hasBrace := strings.CutPrefix(key, d.base+"{")
	tag, rest, isClosed := strings.Cut(afterBrace, "}")
	if !hasBrace || !isClosed || tag == "" {
		return "", false
	}
	parts := strings.Split(rest, ":")
	switch {
	case rest == "instances" && tag == "%@":
		return "zset", true
	case rest == "epoch" && tag == "%@":
		return "string", true
	case strings.HasPrefix(tag, "%@"): // other state of instances: the key of a limit never has such a tag
		return "", true
	case len(parts) == 1 && rest != "":
		return "string", true
	case len(parts) == 3 && (parts[2] == "slidinglog" || parts[2] == "concurrency"):
		return "zset", true
	case len(parts) == 3:
		return "", true // a collection of a custom algorithm
	}
	return "", false
}

func (d *doctor) judgeKeys(s *server) {
	m := s.sample
	which := "all"
	if !m.isWhole {
		which = "a sample of"
	}
	c := Check{Name: "keys", Server: s.address, Status: OK, Summary: fmt.Sprintf("read %s keys: %s of limits, each with a TTL", which, count(m.ours, "key")),
		Facts: map[string]any{"ours": m.ours, "no_ttl": m.forever, "wrong_type": m.wrongType, "foreign": m.foreign, "is_whole": m.isWhole}}
	if m.sized > 0 {
		c.Facts["mean_bytes"] = m.bytes / m.sized
		c.Summary += fmt.Sprintf(", %d bytes on average", m.bytes/m.sized)
	}
	listCommand := d.cli(s, "--scan --pattern "+rediscli.Word(d.base+"*"))
	hasProblem := false
	addProblem := func(status Status, n int64, kind, format, why, remedy string) {
		if n == 0 {
			return
		}
		hasProblem = true
		summary := fmt.Sprintf(format, count(n, "key")) + ": " + strings.Join(m.examples[kind], ", ")
		d.add(Check{Name: "keys", Server: s.address, Status: status, Summary: summary, Why: why, Remedy: remedy, Facts: c.Facts})
	}
	addProblem(Failed, m.forever, "no TTL", "%s of limits will never expire", "another program wrote or changed them; they may deny a client forever, and fill the memory",
		listCommand+" | while read -r k; do ["+` "$(`+d.cli(s, `PTTL "$k"`)+`)" = -1 ] && echo "$k"; done lists them; delete them with DEL`)
	addProblem(Failed, m.wrongType, "wrong type", "%s of limits with a wrong type", "another program wrote them; decisions about them fail with the reason corrupt",
		listCommand+` | while read -r k; do t="$(`+d.cli(s, `TYPE "$k"`)+`)"; case "$k" in *:slidinglog|*:concurrency|*}instances) w=zset;; *) w=string;; esac; [ "$t" = $w ] || echo "$t $k"; done`+
			` lists them with their types; delete them, and give the programs different prefixes`)
	addProblem(Warning, m.foreign, "foreign", "%s under the prefix that Penstock did not make", "another program uses the same prefix, and may overwrite counters", listCommand+" lists them; give the programs different prefixes")
	if len(m.needs) > 0 {
		what := map[string]string{"+type": "keys of a wrong type", "+pttl": "keys without a TTL", "+memory|usage": "the size of keys"}
		for _, right := range m.needs {
			d.addWithoutRight("keys", s, what[right], right)
		}
		if slices.Contains(m.needs, "+pttl") {
			c.Summary = strings.Replace(c.Summary, ", each with a TTL", "", 1)
		}
	}
	if !hasProblem {
		d.add(c)
	}
}

// checkTenants reports whether the server has keys of other programs, which use its memory and CPU.
func (d *doctor) checkTenants(s *server) {
	if s.info == nil {
		d.addWithoutInfo("tenants", s, "whether other programs use the server")
		return
	}
	var all, elsewhere int64
	ownDatabase := "db" + strconv.Itoa(d.option.SelectDB)
	for name, value := range s.info {
		if !redisinfo.IsNumbered(name, "db") {
			continue
		}
		n := redisinfo.Integer(redisinfo.ListField(value, "keys"))
		all += n
		if name != ownDatabase {
			elsewhere += n
		}
	}
	c := Check{Name: "tenants", Server: s.address, Status: OK, Summary: fmt.Sprintf("the server has only keys of limits; %s commands per second", s.info["instantaneous_ops_per_sec"]),
		Facts: map[string]any{"keys": all, "ops_per_second": s.info.Integer("instantaneous_ops_per_sec")}}
	others := elsewhere
	hasAllKeys := s.sample != nil && s.sample.isWhole
	isReplica := s.role() == "replica" || s.role() == "slave"
	switch {
	case hasAllKeys && isReplica:
		// The replica's keys include expired ones, which it keeps until the primary deletes them.
		others += s.sample.foreign
		c.Summary = fmt.Sprintf("%s, some of which may have expired, because this is a replica; %s commands per second", count(all, "key"), s.info["instantaneous_ops_per_sec"])
	case hasAllKeys:
		withoutPrefix := max(all-s.sample.ours-s.sample.foreign-s.sample.deleted, 0)
		others = withoutPrefix + s.sample.foreign
		if others > 0 {
			c.Summary = fmt.Sprintf("%d of the %d keys are not of limits; %s commands per second", others, all, s.info["instantaneous_ops_per_sec"])
		}
	case s.sample != nil:
		c.Summary = fmt.Sprintf("%s, of which a sample was read; %s commands per second", count(all, "key"), s.info["instantaneous_ops_per_sec"])
	default:
		c.Summary = fmt.Sprintf("%s; their owners are unknown", count(all, "key"))
	}
	c.Facts["others"] = others
	// Some keys are made or expire while they are counted, such as the probe keys. A few unknown keys
	// are therefore no sign of other programs.
	const fewKeys, fewPercent = 10, 1
	if others > fewKeys && others > all*fewPercent/100 {
		c.Status, c.Summary = Warning, fmt.Sprintf("other programs have about %d of the %d keys", others, all)
		c.Why = "their commands delay decisions, and their keys fill the memory"
		c.Remedy = "use a separate server for limits"
	}
	d.add(c)
}

// checkSpread finds Clusters with an uneven distribution of keys among the primaries.
func (d *doctor) checkSpread() {
	if d.kind != "cluster" || len(d.primaries) < 2 {
		return
	}
	var all, most int64
	var fullest *server
	for _, s := range d.primaries {
		if s.sample == nil || s.info == nil {
			return
		}
		n := redisinfo.Integer(redisinfo.ListField(s.info["db0"], "keys"))
		all += n
		if n > most || fullest == nil {
			most, fullest = n, s
		}
	}
	if all < minSpread {
		return
	}
	mean := float64(all) / float64(len(d.primaries))
	c := Check{Name: "keys", Status: OK, Summary: fmt.Sprintf("the keys are spread: the fullest of %d primaries has %.1f times the mean", len(d.primaries), float64(most)/mean),
		Facts: map[string]any{"max_over_mean": float64(most) / mean}}
	if float64(most) > maxSpread*mean {
		c.Status, c.Summary = Warning, fmt.Sprintf("%s has %.1f times as many keys as the primaries have on average", fullest.address, float64(most)/mean)
		c.Why = "its memory and its processor are used up first"
		c.Remedy = d.cli(fullest, "--cluster rebalance "+rediscli.Word(fullest.address))
	}
	d.add(c)
}

// deniedRight returns the missing right that an error names, such as "+scan", or "".
func deniedRight(err error) string {
	reply, ok := errors.AsType[*rueidis.RedisError](err)
	if !ok || !strings.HasPrefix(reply.Error(), "NOPERM") {
		return ""
	}
	if _, rest, ok := strings.Cut(reply.Error(), "run the '"); ok { // the error has "run the 'scan' command"
		command, _, _ := strings.Cut(rest, "'")
		return "+" + command
	}
	return ""
}
