package admission

import (
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/reserved"
	"github.com/penstock/penstock/internal/testing/effort"
	"github.com/penstock/penstock/policy"
)

// Memory is bounded, however many identities and addresses there are. Identities in use stay known.
func TestKnownIdentitiesAreBounded(t *testing.T) {
	effort.SkipUnderRace(t)
	s := newIdentities(nil)
	plan, err := penstock.Limit{Name: reserved.NewIdentities, Group: "a", Algorithm: penstock.TokenBucket, Count: 1 << 30, Period: time.Second}.Compile()
	if err != nil {
		t.Fatal(err)
	}
	u := &policy.InventedIdentity{Limit: plan, Address: "ip:192.0.2.1"}
	for i := range 5 * maxIdentities {
		u.Key = strconv.Itoa(i)
		if isAdmitted, _ := s.admit(u); !isAdmitted {
			t.Fatalf("the new identity %d is denied; want it admitted", i)
		}
		if i%1000 == 0 {
			u.Key = "in use"
			s.admit(u)
		}
	}
	if young, old := countGenerations(s); young > maxIdentities || old != maxIdentities {
		t.Errorf("%d young and %d old identities are known; want at most %d young and exactly %[3]d old", young, old, maxIdentities)
	}
	onePerHour, err := penstock.Limit{Name: reserved.NewIdentities, Group: "b", Algorithm: penstock.TokenBucket, Count: 1, Period: time.Hour}.Compile()
	if err != nil {
		t.Fatal(err)
	}
	admitted := 0
	u.Limit = onePerHour
	for i := range 2 * maxAddresses {
		u.Address, u.Key = "ip:"+strconv.Itoa(i), strconv.Itoa(i)
		if isAdmitted, _ := s.admit(u); isAdmitted {
			admitted++
		}
		if i == maxAddresses/2 {
			s.admit(&policy.InventedIdentity{Limit: plan, Address: "ip:192.0.2.1", Key: "in use"})
		}
	}
	if admitted > maxAddresses || s.newByAddress.Len() > maxAddresses {
		t.Errorf("new identities of %d addresses were admitted, and %d addresses are counted; want at most %d each", admitted, s.newByAddress.Len(), maxAddresses)
	}
	u.Limit, u.Key = plan, "in use"
	if isAdmitted, _ := s.admit(u); !isAdmitted {
		t.Error("an identity in use is denied; want it admitted, because it is known")
	}
}

func TestDocumentationHasTheBoundsOfIdentities(t *testing.T) {
	const file = "../docs/configuration/identities.md"
	page, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for phrase, want := range map[string]int{
		`at least the last ([0-9,]*[0-9])`:   maxIdentities,
		`more than ([0-9,]*[0-9]) addresses`: maxAddresses,
	} {
		match := regexp.MustCompile(phrase).FindSubmatch(page)
		if match == nil {
			t.Errorf("%s has no text of the form %q; want one with the number %d", file, phrase, want)
			continue
		}
		if got := strings.ReplaceAll(string(match[1]), ",", ""); got != strconv.Itoa(want) {
			t.Errorf("%s: %q has the number %s; want %d", file, match[0], got, want)
		}
	}
}

// countGenerations returns how many identities of each generation are known.
func countGenerations(s *identities) (young, old int) {
	for i := range s.stripes {
		young, old = young+len(s.stripes[i].young), old+len(s.stripes[i].old)
	}
	return young, old
}

// Even if requests come concurrently, an address can send only as many new identities as its limit
// admits. Each identity is counted once, and memory keeps its bound.
func TestRacingIdentitiesAreCountedOnce(t *testing.T) {
	const (
		goroutines = 8
		mayBeNew   = 500 // identities that the address may send
		room       = 250 // identities until a new generation begins
	)
	s := newIdentities(nil)
	plan, err := penstock.Limit{Name: reserved.NewIdentities, Group: "a", Algorithm: penstock.TokenBucket, Count: mayBeNew, Period: 1000 * time.Hour}.Compile()
	if err != nil {
		t.Fatal(err)
	}
	// Only this room is left, so a new generation begins during the race.
	for i := range int64(maxIdentities) - room {
		stripe := &s.stripes[i%int64(len(s.stripes))]
		if stripe.young == nil {
			stripe.young = make(map[uint64]struct{})
		}
		stripe.young[uint64(i)] = struct{}{}
		s.youngCount.Add(1)
	}
	var admitted atomic.Int64
	var racers sync.WaitGroup
	for range goroutines {
		racers.Go(func() {
			for i := range 1000 {
				if isAdmitted, _ := s.admit(&policy.InventedIdentity{Limit: plan, Address: "ip:192.0.2.1", Key: strconv.Itoa(i)}); isAdmitted {
					admitted.Add(1)
				}
			}
		})
	}
	racers.Wait()
	if n := admitted.Load(); n != goroutines*mayBeNew {
		t.Errorf("%d calls were admitted; want %d: those of %d goroutines with the same %d identities", n, goroutines*mayBeNew, goroutines, mayBeNew)
	}
	young, old := countGenerations(s)
	if int64(young) != s.youngCount.Load() || old != maxIdentities || young < mayBeNew-room || young > mayBeNew {
		t.Errorf("%d young and %d old identities are known, and youngCount is %d; want %d to %d young, %d old, and youngCount equal to the young",
			young, old, s.youngCount.Load(), mayBeNew-room, mayBeNew, maxIdentities)
	}
}

func BenchmarkKnownIdentity(b *testing.B) {
	s := newIdentities(nil)
	plan, err := penstock.Limit{Name: reserved.NewIdentities, Group: "a", Algorithm: penstock.TokenBucket, Count: 1 << 30, Period: time.Second}.Compile()
	if err != nil {
		b.Fatal(err)
	}
	b.RunParallel(func(pb *testing.PB) {
		for i := 0; pb.Next(); i++ {
			s.admit(&policy.InventedIdentity{Limit: plan, Address: "ip:192.0.2.1", Key: benchmarkKeys[i%len(benchmarkKeys)]})
		}
	})
}

var benchmarkKeys = func() (keys [1024]string) {
	for i := range keys {
		keys[i] = "key:" + strconv.Itoa(i)
	}
	return keys
}()
