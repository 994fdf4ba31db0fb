package redisstore_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/algorithm"
	"github.com/penstock/penstock/internal/testing/effort"
	"github.com/penstock/penstock/internal/testing/redistest"
	"github.com/penstock/penstock/redisstore"
)

// A foreignValue is a value that the store has not written, under one of the store's keys.
type foreignValue struct {
	name  string
	write []string // the command that writes it; the second word stands for the key
}

// onlyKey returns the only key of a server.
func onlyKey(t testing.TB, s *redistest.Server) string {
	t.Helper()
	keys := must(t, s, "KEYS", "*").([]any)
	if len(keys) != 1 {
		t.Fatalf("the server has the keys %q; want exactly one", keys)
	}
	return keys[0].(string)
}

// Foreign values are put under keys of the store. If a script treated such a key as absent, it
// would admit requests forever.
func TestForeignValueIsNeverAFreshKey(t *testing.T) {
	t.Parallel()
	list := foreignValue{"list", []string{"LPUSH", "", "x"}}
	hash := foreignValue{"hash", []string{"HSET", "", "f", "v"}}
	set := foreignValue{"sorted set", []string{"ZADD", "", "1", "x"}}
	text := foreignValue{"string", []string{"SET", "", "some text"}}
	malformed := []foreignValue{list, hash, set, text}
	for _, garbage := range []string{"x", "123", "text", "\x00\x00\x00\x00\x00", "\x01\x00\x00\x00", "\x7f\x00\x00\x00", "\xff\xff\xff\xff",
		"a longer text that cannot be numbers, since its length does not fit", strings.Repeat("\xff", 100)} {
		malformed = append(malformed, foreignValue{fmt.Sprintf("%.12q", garbage), []string{"SET", "", garbage}})
	}
	for _, row := range []struct {
		limit  penstock.Limit
		values []foreignValue
	}{
		{slowRefill("numbers", 10).Limit(), malformed},
		{slowRefill("many-numbers", 10).Limit().With(penstock.SubWindow(8)), malformed},
		// The state of these two is a sorted set itself.
		{slowRefill("log", 10).Limit().With(penstock.SlidingLog), []foreignValue{list, hash, text}},
		{penstock.InFlight(10, time.Hour).WithName("slots"), []foreignValue{list, hash, text}},
	} {
		t.Run(row.limit.Name, func(t *testing.T) {
			t.Parallel()
			s := redistest.Start(t)
			store := open(t, s.URL(), redisstore.Options{})
			charge := spend("k", row.limit.MustCompile(), 1)
			charge.Holder = "holder"
			other := spend("k", slowRefill("other", 10), 1)
			for _, value := range row.values {
				must(t, s, "FLUSHALL")
				if _, err := store.Decide(t.Context(), []penstock.Charge{charge}); err != nil {
					t.Fatal(err)
				}
				key := onlyKey(t, s)
				write := slices.Clone(value.write)
				write[1] = key
				must(t, s, "DEL", key)
				must(t, s, write...)
				before := must(t, s, "DUMP", key)
				for _, mode := range []penstock.Mode{penstock.Spend, penstock.Peek, penstock.Force, penstock.Refund} {
					charge.Mode = mode
					for _, batch := range [][]penstock.Charge{{charge}, {charge, other}, {other, charge}} {
						_, err := store.Decide(t.Context(), batch)
						wantReason(t, fmt.Sprintf("%s: %v in a batch of %d", value.name, mode, len(batch)), err, penstock.ReasonCorrupt)
					}
				}
				charge.Mode = penstock.Spend
				if after := must(t, s, "DUMP", key); after != before {
					t.Errorf("%s: the store has overwritten the value; want it unchanged", value.name)
				}
				if left := remaining(t, store, "k", other.Plan); left != 10 {
					t.Errorf("%s: %d units of another limit are left, want 10", value.name, left)
				}
				must(t, s, "DEL", key)
				if d, err := store.Decide(t.Context(), []penstock.Charge{charge}); err != nil || d.Status(0).Remaining != 9 {
					t.Errorf("%s: after the key was deleted: %+v, %v; want 9 units left", value.name, d.Status(0), err)
				}
			}
		})
	}
}

// A state of the right form may have a level that this store never writes. Its answers would deny
// for thousands of years, with times that are negative. At a rate of 90 parts per microsecond, the
// times look possible.
func TestImpossibleLevelIsCorrupt(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	store := open(t, s.URL(), redisstore.Options{})
	other := spend("k", slowRefill("other", 10).Limit().MustCompile(), 1)
	for _, limit := range []penstock.Limit{
		slowRefill("bucket", 3).Limit(),
		penstock.PerSecond(90_000_000).WithName("fast"),
		penstock.PerSecond(90_000_000).With(algorithm.LeakyBucket).WithName("leaky"),
	} {
		for _, level := range []uint64{1<<56 - 1, 1<<53 + 1, algorithm.Max + 1} {
			must(t, s, "FLUSHALL")
			charge := spend("k", limit.MustCompile(), 1)
			if _, err := store.Decide(t.Context(), []penstock.Charge{charge}); err != nil {
				t.Fatal(err)
			}
			key := onlyKey(t, s)
			state := []byte(must(t, s, "GET", key).(string))
			for i := range 7 {
				state[8+i] = byte(level >> (8 * i))
			}
			for _, mode := range []penstock.Mode{penstock.Peek, penstock.Spend, penstock.Force, penstock.Refund, penstock.Peek} {
				must(t, s, "SET", key, string(state))
				charge.Mode = mode
				for _, batch := range [][]penstock.Charge{{charge}, {charge, other}, {other, charge}} {
					_, err := store.Decide(t.Context(), batch)
					wantReason(t, fmt.Sprintf("%s with the level %d: %v in a batch of %d", limit.Name, level, mode, len(batch)), err, penstock.ReasonCorrupt)
				}
				if got := must(t, s, "GET", key).(string); got != string(state) {
					t.Errorf("%s with the level %d: %v has changed the corrupt state", limit.Name, level, mode)
				}
			}
			charge.Mode = penstock.Reset
			if _, err := store.Decide(t.Context(), []penstock.Charge{charge}); err != nil {
				t.Error(err)
			}
			if left := must(t, s, "DBSIZE").(int64); left != 0 {
				t.Errorf("%s with the level %d: %d keys are left after a reset; want none", limit.Name, level, left)
			}
		}
	}
}

// A sub-window stores how many parts it has. If a script counted to whatever is stored there, one
// small value would block the server.
func TestImpossibleNumberOfPartsIsCorrupt(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	store := open(t, s.URL(), redisstore.Options{})
	charge := spend("k", penstock.PerHour(3).With(penstock.SubWindow(4)).MustCompile(), 1)
	if _, err := store.Decide(t.Context(), []penstock.Charge{charge}); err != nil {
		t.Fatal(err)
	}
	key := onlyKey(t, s)
	state := []byte(must(t, s, "GET", key).(string))
	copy(state[4+4+7:4+4+2*7], "\x00\x00\x00\x00\x00\x01\x00") // 2^40 parts
	for _, mode := range []penstock.Mode{penstock.Peek, penstock.Spend, penstock.Force, penstock.Refund, penstock.Peek} {
		must(t, s, "SET", key, string(state))
		charge.Mode = mode
		for _, batch := range [][]penstock.Charge{{charge}, {charge, spend("k", slowRefill("other", 10).Limit().MustCompile(), 1)}} {
			_, err := store.Decide(t.Context(), batch)
			wantReason(t, fmt.Sprintf("%v in a batch of %d", mode, len(batch)), err, penstock.ReasonCorrupt)
		}
		if got := must(t, s, "GET", key).(string); got != string(state) {
			t.Errorf("%v has changed the corrupt state", mode)
		}
	}
	charge.Mode = penstock.Reset
	if _, err := store.Decide(t.Context(), []penstock.Charge{charge}); err != nil {
		t.Error(err)
	}
	if charge.Mode = penstock.Spend; remaining(t, store, "k", charge.Plan) != 3 {
		t.Error("after a reset, the key is not new")
	}
}

// A string has an entry for each limit of its key. If a script copied them one by one, the time
// would grow with the square of their number. Strings that no policy can make are corrupt.
func TestLongStringsAreBounded(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	store := open(t, s.URL(), redisstore.Options{})
	plan := func(i int) *penstock.Plan {
		return penstock.Limit{Name: fmt.Sprint("limit", i), Group: "g", Count: 5, Period: time.Hour}.MustCompile()
	}
	var reason string
	written := 0
	for i := 0; i < 4000 && reason == ""; i += 60 {
		var batch []penstock.Charge
		for j := range 60 {
			batch = append(batch, spend("k", plan(i+j), 1))
		}
		if _, err := store.Decide(t.Context(), batch); err != nil {
			reason = penstock.AsStoreError(err).Reason.String()
			break
		}
		written += 60
	}
	if size := len(must(t, s, "GET", onlyKey(t, s)).(string)); reason != "corrupt" || written < 2600 || size > 70_000 {
		t.Errorf("after %d limits and %d bytes, the reason is %q; want corrupt after more than 2,600 limits", written, size, reason)
	}
	for _, batch := range [][]penstock.Charge{{spend("k", plan(1), 1)}, {spend("k", plan(1), 1), spend("k", plan(2), 1)}} {
		_, err := store.Decide(t.Context(), batch)
		wantReason(t, fmt.Sprintf("a batch of %d", len(batch)), err, penstock.ReasonCorrupt)
	}
}

// An entry has at least two numbers. Otherwise a script could count to very many of them.
func TestEmptyEntriesAreCorrupt(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	store := open(t, s.URL(), redisstore.Options{})
	bucket, window := penstock.PerHour(3).MustCompile(), penstock.PerDay(3).With(penstock.SubWindow(4)).MustCompile()
	for _, charges := range [][]penstock.Charge{{spend("k", bucket, 1)}, {spend("k", window, 1)}} {
		if _, err := store.Decide(t.Context(), charges); err != nil {
			t.Fatal(err)
		}
		key := onlyKey(t, s)
		must(t, s, "SET", key, string(make([]byte, 100)))
		_, err := store.Decide(t.Context(), charges)
		wantReason(t, charges[0].Plan.String(), err, penstock.ReasonCorrupt)
		must(t, s, "DEL", key)
	}
}

// A set stores the longest period of its holds. If its clock has stepped back, a hold lasts for
// that long at most, and never longer than the longest period that a limit may have.
func TestStoredPeriodIsBounded(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	store := open(t, s.URL(), redisstore.Options{})
	plan := penstock.InFlight(1, time.Minute).MustCompile()
	hold := func(holder string) penstock.Decision {
		t.Helper()
		d, err := store.Decide(t.Context(), []penstock.Charge{{Key: "k", Plan: plan, Cost: 1, Holder: holder}})
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	hold("a")
	key := onlyKey(t, s)
	must(t, s, "ZADD", key, "4503599627370496", "ha", "-4503599627370496", "p") // 2^52 µs: 142 years
	if d := hold("b"); d.Allowed || d.RetryAfter() > 8*365*24*time.Hour {
		t.Errorf("the decision is %v, with a RetryAfter of %v; want a denial of at most eight years", d.Allowed, d.RetryAfter())
	}
}

// However many bytes at the end of a state are missing, the answer is an error or a denial.
func TestTruncatedStateIsNeverAFreshKey(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	store := open(t, s.URL(), redisstore.Options{})
	grouped := func(name string) *penstock.Plan {
		limit := slowRefill(name, 10).Limit()
		limit.Group = "g"
		return limit.MustCompile()
	}
	used, other := grouped("used"), grouped("other")
	if _, err := store.Decide(t.Context(), []penstock.Charge{spend("k", other, 1), spend("k", used, 10)}); err != nil {
		t.Fatal(err)
	}
	key := onlyKey(t, s)
	whole := must(t, s, "GET", key).(string)
	for n := len(whole) - 1; n > 0; n-- {
		if n == 4+(len(whole)-4)/2 {
			continue // the head and exactly one of two entries: not malformed
		}
		must(t, s, "SET", key, whole[:n])
		for _, batch := range [][]penstock.Charge{{spend("k", used, 1)}, {spend("k", other, 5), spend("k", used, 1)}} {
			d, err := store.Decide(t.Context(), batch)
			if err == nil && d.Allowed {
				t.Errorf("%d of %d bytes: a batch of %d was admitted; want an error or a denial", n, len(whole), len(batch))
			}
		}
	}
}

// replies are errors of Redis and Valkey, word for word, with the reason and hint that each must
// get, whichever server the store uses.
var replies = []struct {
	server, text string
	reason       penstock.Reason
	hint         string
}{
	{server: "Redis 7.0", text: "NOPERM this user has no permissions to run the 'evalsha' command", reason: penstock.ReasonPermissionDenied, hint: "+evalsha"},
	{server: "Redis 7.0", text: "NOPERM this user has no permissions to run the 'cluster|slots' command", reason: penstock.ReasonPermissionDenied, hint: "+cluster|slots"},
	{server: "Redis 7.0", text: "NOPERM this user has no permissions to access one of the keys used as arguments", reason: penstock.ReasonPermissionDenied, hint: "~ps*"},
	{server: "Redis 7.0", text: "ERR The user executing the script can't run this command or subcommand script: f37160b6aecfc7a91f39a747f0056ecc3eb35618, on @user_script:2.",
		reason: penstock.ReasonPermissionDenied, hint: "the right to a command of the scripts; docs/operations.md lists all of them"},
	{server: "Redis 7.0", text: "ERR The user executing the script can't access at least one of the keys mentioned in the command arguments script: e9b26805962546bd96803672e66fa4436f774677, on @user_script:2.",
		reason: penstock.ReasonPermissionDenied, hint: "~ps*"},
	{server: "Redis 7.0", text: "ERR Unknown Redis command called from script script: 1a69158b476b7570f1a723395a06319712ea49aa, on @user_script:2.",
		reason: penstock.ReasonPermissionDenied, hint: "the right to a command of the scripts; docs/operations.md lists all of them"},
	{server: "Valkey 8", text: "NOPERM User limiter has no permissions to run the 'script|load' command", reason: penstock.ReasonPermissionDenied, hint: "+script|load"},
	{server: "Valkey 8", text: "NOPERM No permissions to access a key", reason: penstock.ReasonPermissionDenied, hint: "~ps*"},
	{server: "Valkey 8", text: "ERR ACL failure in script: User limiter has no permissions to run the 'del' command script: f37160b6aecfc7a91f39a747f0056ecc3eb35618, on @user_script:2.",
		reason: penstock.ReasonPermissionDenied, hint: "+del"},
	{server: "Valkey 8", text: "ERR ACL failure in script: User limiter has no permissions to run the 'cluster|slots' command script: 94a93c8b45599178c6903f182b88ce2c60b9ac58, on @user_script:2.",
		reason: penstock.ReasonPermissionDenied, hint: "+cluster|slots"},
	{server: "Valkey 8", text: "ERR ACL failure in script: No permissions to access a key script: e9b26805962546bd96803672e66fa4436f774677, on @user_script:2.",
		reason: penstock.ReasonPermissionDenied, hint: "~ps*"},
	{server: "Valkey 8", text: "ERR Unknown command called from script script: 1a69158b476b7570f1a723395a06319712ea49aa, on @user_script:2.",
		reason: penstock.ReasonPermissionDenied, hint: "the right to a command of the scripts; docs/operations.md lists all of them"},
	{server: "both", text: "ERR Invalid command passed to redis.acl_check_cmd() script: 1a69158b476b7570f1a723395a06319712ea49aa, on @user_script:2.",
		reason: penstock.ReasonPermissionDenied, hint: "the right to a command of the scripts; docs/operations.md lists all of them"},
	{server: "both", text: "NOPERM the user needs the right +zadd", reason: penstock.ReasonPermissionDenied, hint: "+zadd"},
	{server: "both", text: "NOAUTH Authentication required.", reason: penstock.ReasonPermissionDenied, hint: "a valid user and password for the store"},
	{server: "both", text: "WRONGPASS invalid username-password pair or user is disabled.", reason: penstock.ReasonPermissionDenied, hint: "a valid user and password for the store"},
	{server: "both", text: "ERR unknown command 'evalsha', with args beginning with: 'f37160b6aecf' '1' ", reason: penstock.ReasonPermissionDenied,
		hint: "the right to a command of the scripts; docs/operations.md lists all of them"},
	{server: "both", text: "WRONGTYPE Operation against a key holding the wrong kind of value script: 2c52d693e6b6ea42f70c349bf8614b8c2ec172f3, on @user_script:2.", reason: penstock.ReasonCorrupt},
	{server: "both", text: "ERR user_script:2: bad argument #2 to 'unpack' (data string too short) script: 59d001b560bf244569ab43386d1136e2860d28aa, on @user_script:2.", reason: penstock.ReasonCorrupt},
	{server: "both", text: "ERR user_script:2: CORRUPT the state of this key is malformed script: bc4a07ac7404905237c78baa980faa41648f66a6, on @user_script:2.", reason: penstock.ReasonCorrupt},
	{server: "both", text: "CORRUPT the state of this key is malformed", reason: penstock.ReasonCorrupt},
	{server: "both", text: "OOM command not allowed when used memory > 'maxmemory'.", reason: penstock.ReasonOutOfMemory},
	{server: "both", text: "OOM command not allowed when used memory > 'maxmemory'. script: 705f427bd3bc66b529c7de9d33d600045af11bcf, on @user_script:2.", reason: penstock.ReasonOutOfMemory},
	{server: "both", text: "READONLY You can't write against a read only replica.", reason: penstock.ReasonNotReady},
	{server: "both", text: "NOREPLICAS Not enough good replicas to write.", reason: penstock.ReasonNotReady},
	{server: "both", text: "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.", reason: penstock.ReasonNotReady},
	{server: "both", text: "MISCONF Errors writing to the AOF file: No space left on device", reason: penstock.ReasonNotReady},
	{server: "both", text: "LOADING Redis is loading the dataset in memory", reason: penstock.ReasonNotReady},
	{server: "both", text: "CLUSTERDOWN The cluster is down", reason: penstock.ReasonNotReady},
	{server: "both", text: "MOVED 3999 127.0.0.1:6381", reason: penstock.ReasonNotReady},
	{server: "both", text: "ASK 3999 127.0.0.1:6381", reason: penstock.ReasonNotReady},
	{server: "both", text: "TRYAGAIN Multiple keys request during rehashing of slot", reason: penstock.ReasonNotReady},
	{server: "both", text: "ERR max number of clients reached", reason: penstock.ReasonNotReady},
	{server: "both", text: "BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.", reason: penstock.ReasonBusy},
	{server: "both", text: "ERR Error compiling script (new function): user_script:2: ')' expected near '<eof>'", reason: penstock.ReasonRejected},
}

func TestRepliesMeanTheSameForEachServer(t *testing.T) {
	effort.SkipUnderRace(t)
	t.Parallel()
	for _, r := range replies {
		for _, text := range []string{r.text, strings.TrimPrefix(r.text, "ERR ")} { // rueidis strips it
			store := newStore(t, brokenClient{err: redisstore.ReplyError(text)}, redisstore.Options{})
			_, err := store.Decide(t.Context(), []penstock.Charge{spend("k", slowRefill("d", 10), 1)})
			wantReason(t, r.server+": "+text, err, r.reason)
			if e, ok := errors.AsType[*penstock.StoreError](err); ok && e.Hint != r.hint {
				t.Errorf("%s: %s: the hint is %q; want %q", r.server, text, e.Hint, r.hint)
			}
			// A missing right may affect only a few limits, so it must not open a breaker.
			isLogin := strings.HasPrefix(text, "NOAUTH") || strings.HasPrefix(text, "WRONGPASS")
			isFault := isLogin || r.reason != penstock.ReasonPermissionDenied && r.reason != penstock.ReasonCorrupt
			if e := penstock.AsStoreError(err); e.IsStoreFault != isFault {
				t.Errorf("%s: %s: IsStoreFault is %t; want %t", r.server, text, e.IsStoreFault, isFault)
			}
		}
	}
	t.Logf("counted: %d replies, with ERR and without", len(replies))
}

// The errors of several servers are joined into one with one reason and one hint, in whichever
// order they answered.
func TestErrorsOfSeveralServersAreMerged(t *testing.T) {
	effort.SkipUnderRace(t)
	t.Parallel()
	const (
		load  = "NOPERM User limiter has no permissions to run the 'script|load' command"
		set   = "ERR ACL failure in script: User limiter has no permissions to run the 'set' command script: f37160b6aecf, on @user_script:2."
		key   = "NOPERM No permissions to access a key"
		login = "WRONGPASS invalid username-password pair or user is disabled."
		other = "ERR unknown command 'evalsha', with args beginning with: 'f37160b6aecf' '1' "
	)
	for _, c := range []struct {
		answers []string // "" is a connection that broke
		reason  penstock.Reason
		hint    string
	}{
		{answers: []string{load, load, load}, reason: penstock.ReasonPermissionDenied, hint: "+script|load"},
		{answers: []string{load, "", set}, reason: penstock.ReasonPermissionDenied, hint: "+script|load +set"},
		{answers: []string{set, key, load, key}, reason: penstock.ReasonPermissionDenied, hint: "+script|load +set ~ps*"},
		{answers: []string{login, load, login}, reason: penstock.ReasonPermissionDenied, hint: "+script|load; a valid user and password for the store"},
		{answers: []string{other, set}, reason: penstock.ReasonPermissionDenied, hint: "+set"},
		{answers: []string{other, ""}, reason: penstock.ReasonPermissionDenied, hint: "the right to a command of the scripts; docs/operations.md lists all of them"},
		{answers: []string{"READONLY You can't access it.", set}, reason: penstock.ReasonPermissionDenied, hint: "+set"},
		{answers: []string{"READONLY You can't write against a read only replica.", "BUSY Redis is busy running a script."}, reason: penstock.ReasonNotReady},
	} {
		for range 10 {
			var all []error
			for _, i := range rand.Perm(len(c.answers)) {
				var err error = redisstore.ReplyError(c.answers[i])
				if c.answers[i] == "" {
					err = io.ErrUnexpectedEOF
				}
				all = append(all, fmt.Errorf("10.0.0.%d:6379: %w", i, err))
			}
			store := newStore(t, brokenClient{err: fmt.Errorf("load: %w", errors.Join(all...))}, redisstore.Options{})
			_, err := store.Decide(t.Context(), []penstock.Charge{spend("k", slowRefill("d", 10), 1)})
			wantReason(t, fmt.Sprint(c.answers), err, c.reason)
			if e, ok := errors.AsType[*penstock.StoreError](err); ok && e.Hint != c.hint {
				t.Errorf("the hint is %q; want %q, for the errors %v", e.Hint, c.hint, all)
			}
		}
	}
}

// An error without a reply has the reason timeout or unknown.
func TestErrorsWithoutAnAnswer(t *testing.T) {
	t.Parallel()
	for reason, cause := range map[penstock.Reason]error{
		penstock.ReasonUnknown: errors.New("reset by peer"),
		penstock.ReasonTimeout: fmt.Errorf("gone: %w", context.DeadlineExceeded),
	} {
		store := newStore(t, brokenClient{err: cause}, redisstore.Options{})
		_, err := store.Decide(t.Context(), []penstock.Charge{spend("k", slowRefill("d", 10), 1)})
		wantReason(t, cause.Error(), err, reason)
		if e := penstock.AsStoreError(err); !e.MayBeCharged || !errors.Is(err, cause) {
			t.Errorf("%+v; want a StoreError with its cause, whose charges may have been made", e)
		}
	}
}

// A brokenClient always returns the same error.
type brokenClient struct {
	redisstore.Client
	err error
}

func (b brokenClient) Close() error { return nil }

func (b brokenClient) Sharded(context.Context) (bool, error) { return false, nil }

func (b brokenClient) EvalSha(context.Context, string, []string, []string) (string, error) {
	return "", b.err
}

// After a failed TLS handshake the reason is unreachable, because no command was sent.
func TestWrongCertificateIsUnreachable(t *testing.T) {
	t.Parallel()
	certificate := &tls.CertificateVerificationError{Err: x509.CertificateInvalidError{Reason: x509.Expired}}
	for _, cause := range []error{certificate, fmt.Errorf("dial: %w", certificate)} {
		store := newStore(t, brokenClient{err: cause}, redisstore.Options{})
		_, err := store.Decide(t.Context(), []penstock.Charge{spend("k", slowRefill("d", 10), 1)})
		wantReason(t, cause.Error(), err, penstock.ReasonUnreachable)
	}
}
