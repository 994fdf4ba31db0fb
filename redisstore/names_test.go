package redisstore

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/rediskeys"
	"github.com/penstock/penstock/internal/testing/effort"
)

func TestNamesAreThoseOfTheStore(t *testing.T) {
	seed := effort.Seed()
	t.Logf("PENSTOCK_SEED=%d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	keys := []string{"", "user:42", "%_", "%#00", "a b{c}", strings.Repeat("k", rediskeys.MaxName), strings.Repeat("k", rediskeys.MaxName+1), strings.Repeat("k", 5000)}
	for range 1000 {
		b := make([]byte, r.IntN(200))
		for i := range b {
			b[i] = byte(r.IntN(256))
		}
		keys = append(keys, string(b))
	}
	plan := penstock.PerSecond(1).WithName("g").MustCompile()
	hashed := 0
	for _, o := range []Options{{}, {Secret: []byte("pepper")}} {
		names := rediskeys.NewNames(o.Secret)
		for _, key := range keys {
			name := string(names.Append(nil, key))
			full, err := KeyOf(penstock.Charge{Key: key, Plan: plan}, o)
			if want := fmt.Sprintf("ps1{%s}g", name); err != nil || full != want || len(name) > rediskeys.MaxName {
				t.Fatalf("the key %q: KeyOf returns %q, %v; want %q", key, full, err, want)
			}
			switch got, ok := rediskeys.KeyOf(name); {
			case strings.HasPrefix(name, "%#"):
				hashed++
				if ok {
					t.Errorf("%q: rediskeys.KeyOf finds the key %q of the hash %s; want none", key, got, name)
				}
			case !ok || got != key:
				t.Errorf("the name %q has the key %q, %v; want %q", name, got, ok, key)
			}
		}
	}
	if hashed < len(keys) {
		t.Errorf("%d names are hashes; want %d or more, as many as there are keys", hashed, len(keys))
	}
	for _, bad := range []string{"%41", strings.Repeat("a", rediskeys.MaxName+1), "", "a b", "{", "%", "%4", "%4g", "%zz", "%2f"} {
		if key, ok := rediskeys.KeyOf(bad); ok {
			t.Errorf("rediskeys.KeyOf finds the key %[2]q of the invalid name %[1]q; want none", bad, key)
		}
	}
}

func TestNamesAllocateNothing(t *testing.T) {
	effort.SkipUnderRace(t)
	room := make([]byte, 0, rediskeys.MaxName+3)
	for _, o := range []Options{{}, {Secret: []byte("pepper")}} {
		names, key := rediskeys.NewNames(o.Secret), strings.Repeat("k", rediskeys.MaxName+1)
		if n := testing.AllocsPerRun(100, func() { names.Append(room, key) }); n > 0 {
			t.Errorf("with the secret %q, a name takes %v allocations; want none", o.Secret, n)
		}
	}
}
