package redisstore

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"net/url"
	"strings"
	"testing"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/hashslot"
	"github.com/penstock/penstock/internal/rediskeys"
	"github.com/penstock/penstock/internal/testing/effort"
)

// keyStore returns a store without a server. If secret is "", the store has no secret.
func keyStore(t testing.TB, secret string) *Store {
	t.Helper()
	o := Options{}
	if secret != "" {
		o.Secret = []byte(secret)
	}
	s, err := New(readCounter{}, o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// planOf compiles a limit.
func planOf(t testing.TB, limit penstock.Limit) *penstock.Plan {
	t.Helper()
	plan, err := limit.Compile()
	if err != nil {
		t.Fatal(err)
	}
	return plan
}

// nameOf returns the name in Redis of a key's state.
func (s *Store) nameOf(key string, plan *penstock.Plan) string {
	return string(s.keys.Append(nil, key, plan))
}

// tagOf returns the hash tag of a name: the text between the braces.
func tagOf(t testing.TB, name string) string {
	t.Helper()
	_, rest, isOpened := strings.Cut(name, "{")
	tag, _, isClosed := strings.Cut(rest, "}")
	hasOne := strings.Count(name, "{") == 1 && strings.Count(name, "}") == 1
	if !isOpened || !isClosed || tag == "" || !hasOne {
		t.Errorf("the name is %.200q; want exactly one hash tag, in braces", name)
	}
	return tag
}

func TestKeysAreEncodedAsDocumented(t *testing.T) {
	t.Parallel()
	search := penstock.PerSecond(1)
	search.Group = "search"
	uploads := search.WithName("uploads").With(penstock.SlidingLog)
	long := strings.Repeat("a", rediskeys.MaxName+1)
	sum := sha256.Sum256([]byte(long))
	for _, row := range []struct {
		key   string
		limit penstock.Limit
		want  string
	}{
		{key: "user:42", limit: search, want: "ps1{user:42}search"},
		{key: "user:42", limit: search.WithName("other"), want: "ps1{user:42}search"},
		{key: "user:42", limit: uploads, want: "ps1{user:42}search:uploads:slidinglog"},
		{key: "", limit: search, want: "ps1{%_}search"},
		{key: "a{b}c%\n\x00", limit: search, want: "ps1{a%7Bb%7Dc%25%0A%00}search"},
		{key: "é", limit: search, want: "ps1{%C3%A9}search"},
		{key: "2001:db8::1", limit: search, want: "ps1{2001:db8::1}search"},
		{key: long[1:], limit: search, want: "ps1{" + long[1:] + "}search"},
		{key: long, limit: search, want: "ps1{%#" + hex.EncodeToString(sum[:]) + "}search"},
	} {
		if got := keyStore(t, "").nameOf(row.key, planOf(t, row.limit)); got != row.want {
			t.Errorf("key %.40q is encoded as %q; want %q", row.key, got, row.want)
		}
	}
}

// hostileKeys returns n different keys, as attackers and careless programs make them.
func hostileKeys(n int) []string {
	kinds := []func(i int) string{
		func(i int) string { return fmt.Sprintf("{user}:%d", i) },
		func(i int) string { return fmt.Sprintf("{}%d", i) },
		func(i int) string { return fmt.Sprintf("%d}{", i) },
		func(i int) string { return strings.Repeat("{", i%50) + fmt.Sprint(i) },
		func(i int) string { return fmt.Sprintf("user:%d", i) },
		func(i int) string { return fmt.Sprintf("%%7B%d%%7D", i) },
		func(i int) string { return fmt.Sprintf("\x00%d\n", i) },
		func(i int) string { return fmt.Sprintf("%s%d", strings.Repeat("x", 10<<10), i) },
		func(i int) string { return fmt.Sprintf("%%#%d", i) },
		func(i int) string { return fmt.Sprintf("10.%d.%d.%d", i>>16, i>>8&255, i&255) },
	}
	keys := make([]string, n)
	for i := range keys {
		keys[i] = kinds[i%len(kinds)](i)
	}
	return keys
}

func TestDifferentKeysHaveDifferentNames(t *testing.T) {
	effort.SkipUnderRace(t)
	t.Parallel()
	plan := planOf(t, penstock.PerSecond(1))
	for _, secret := range []string{"", "secret"} {
		s := keyStore(t, secret)
		keys := make(map[string]string)
		for _, key := range hostileKeys(10_000) {
			name := s.nameOf(key, plan)
			tagOf(t, name)
			if other, ok := keys[name]; ok {
				t.Errorf("%.60q and %.60q both have the name %q; want two names", key, other, name)
			}
			keys[name] = key
		}
	}
}

// Under one key, limits with different groups, names or kinds of state never share a place.
func TestLimitsOfOneKeyHaveTheirOwnNames(t *testing.T) {
	t.Parallel()
	s := keyStore(t, "")
	seen := make(map[string]string)
	for _, group := range []string{"a", "a.b", "a-b", "b", "a.a"} {
		for _, name := range []string{"a", "a.b", "b", "slidinglog", "concurrency"} {
			for _, a := range []penstock.Limit{
				penstock.PerSecond(1), penstock.PerSecond(1).With(penstock.SlidingLog), penstock.InFlight(1, 1e9),
			} {
				limit := a.WithName(name)
				limit.Group = group
				plan := planOf(t, limit)
				where := s.nameOf("k", plan)
				if !plan.Algorithm().IsCollection() {
					where += fmt.Sprint(" ", plan.Tag()) // an entry of the group's string
				}
				what := fmt.Sprint(group, "/", name, "/", plan.Algorithm().Name())
				if other, ok := seen[where]; ok {
					t.Errorf("%s and %s are both kept at %q; want two places", what, other, where)
				}
				seen[where] = what
			}
		}
	}
}

func TestLongKeysHaveShortNames(t *testing.T) {
	effort.SkipUnderRace(t)
	t.Parallel()
	s, plan := keyStore(t, ""), planOf(t, penstock.PerSecond(1))
	seen := make(map[string]bool)
	for i := range 1000 {
		key := []byte(strings.Repeat("k", 10<<10))
		key[i*10] = 'x'
		name := s.nameOf(string(key), plan)
		if len(name) > 200 {
			t.Errorf("a key of 10 kB has a name of %d bytes; want at most 200", len(name))
		}
		if seen[name] {
			t.Errorf("two keys of 10 kB both have the name %q; want two names", name)
		}
		seen[name] = true
	}
	for n := range 200 { // short keys are encoded, and longer ones are hashed
		if name := s.nameOf(strings.Repeat("\x00", n), plan); len(tagOf(t, name)) > rediskeys.MaxName {
			t.Errorf("%d bytes of zero are encoded as %q; want at most %d bytes between the braces", n, name, rediskeys.MaxName)
		}
	}
}

func TestSecretHidesTheKey(t *testing.T) {
	t.Parallel()
	plan := planOf(t, penstock.PerSecond(1))
	plain, one, two := keyStore(t, ""), keyStore(t, "one"), keyStore(t, "two")
	for _, key := range []string{"anna@example.org", "", "a", "{", strings.Repeat("anna", 1000)} {
		names := map[string]bool{plain.nameOf(key, plan): true, one.nameOf(key, plan): true, two.nameOf(key, plan): true}
		if len(names) != 3 {
			t.Errorf("key %.20q: no secret and two secrets give %d names: %v; want 3", key, len(names), names)
		}
		name := one.nameOf(key, plan)
		if len(key) > 1 && strings.Contains(name, key[:2]) || !strings.HasPrefix(name, "ps1{%#") {
			t.Errorf("key %.20q has the name %q; want a hash that does not show the key", key, name)
		}
		if name != keyStore(t, "one").nameOf(key, plan) {
			t.Errorf("key %.20q: two stores with one secret give two names; want one", key)
		}
	}
}

func TestClientsCannotChooseTheSlotOfAKey(t *testing.T) {
	effort.SkipUnderRace(t)
	t.Parallel()
	const keys = 50_000
	for _, secret := range []string{"", "secret"} {
		s, plan := keyStore(t, secret), planOf(t, penstock.PerSecond(1))
		var thirds [3]int // keys by thirds of the slots, as three primaries have them
		used := make(map[uint16]bool)
		for _, key := range hostileKeys(keys) {
			slot := hashslot.Of([]byte(s.nameOf(key, plan)))
			thirds[int(slot)*3/hashslot.Slots]++
			used[slot] = true
		}
		most := max(thirds[0], thirds[1], thirds[2])
		t.Logf("secret %q: %v keys per third of the slots, %d of %d slots in use", secret, thirds, len(used), hashslot.Slots)
		if most > keys*2/5 { // 1.2 times the mean, which is keys/3
			t.Errorf("secret %q: %v keys per third of the slots; want at most 1.2 times the mean in each", secret, thirds)
		}
		if len(used) < hashslot.Slots*9/10 {
			t.Errorf("secret %q: %d keys use %d of %d slots; want at least nine tenths", secret, keys, len(used), hashslot.Slots)
		}
	}
}

func TestSlotsAreThoseOfRedis(t *testing.T) {
	t.Parallel()
	// The specification of Redis Cluster gives this CRC16 of 123456789. This CRC16 is below the number
	// of slots.
	const want = 0x31c3
	if got := hashslot.Of([]byte("ps1{123456789}search")); got != want {
		t.Errorf("the slot of 123456789 is %#x; want %#x", got, want)
	}
}

func TestPrefixIsChecked(t *testing.T) {
	t.Parallel()
	for _, bad := range []string{"{", "a}", "a b", "%", "a\n", "\x00", "é", strings.Repeat("p", 200)} {
		if _, err := New(readCounter{}, Options{Prefix: bad}); err == nil || !strings.Contains(err.Error(), "prefix") {
			t.Errorf("prefix %.20q: %v; want an error about the prefix", bad, err)
		}
	}
	s, err := New(readCounter{}, Options{Prefix: "Shop-2_a.b:c"})
	if err != nil {
		t.Fatal(err)
	}
	if name := s.nameOf("k", planOf(t, penstock.PerSecond(1))); name != "Shop-2_a.b:c1{k}second" {
		t.Errorf("the name is %q; want \"Shop-2_a.b:c1{k}second\"", name)
	}
}

func FuzzKey(f *testing.F) {
	for i, key := range hostileKeys(40) {
		f.Add(key, hostileKeys(41)[i+1])
	}
	f.Add("%", "%25")
	f.Add("", "%_")
	f.Add("{", "%7B")
	s, plan := keyStore(f, ""), planOf(f, penstock.PerSecond(1))
	f.Fuzz(func(t *testing.T, a, b string) {
		name := s.nameOf(a, plan)
		tag := tagOf(t, name)
		if (name == s.nameOf(b, plan)) != (a == b) {
			t.Errorf("%q and %q have the names %q and %q; want equal names only for equal keys", a, b, name, s.nameOf(b, plan))
		}
		for i := range len(name) {
			if name[i] <= ' ' || name[i] > '~' {
				t.Errorf("%q is encoded as %q; want printable ASCII without spaces", a, name)
			}
		}
		if isHash := strings.HasPrefix(tag, "%#"); !isHash && tag != "%_" {
			if back, err := url.PathUnescape(tag); err != nil || back != a {
				t.Errorf("%q is encoded as %q, which decodes to %q, %v; want the key", a, tag, back, err)
			}
		}
	})
}

// Random keys that differ by one byte have different names.
func TestNeighboringKeysDiffer(t *testing.T) {
	effort.SkipUnderRace(t)
	t.Parallel()
	seed := effort.Seed()
	rng := rand.New(rand.NewPCG(seed, 0))
	s, plan := keyStore(t, ""), planOf(t, penstock.PerSecond(1))
	for range 50_000 {
		a := make([]byte, 1+rng.IntN(140))
		for i := range a {
			const chars = "{}%:#_07BDabé\x00\n"
			a[i] = chars[rng.IntN(len(chars))]
		}
		b := append([]byte(nil), a...)
		b[rng.IntN(len(b))]++
		if s.nameOf(string(a), plan) == s.nameOf(string(b), plan) {
			t.Errorf("seed %d: %q and %q have one name; want two", seed, a, b)
		}
	}
}
