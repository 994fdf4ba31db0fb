package httplimit

import (
	"strconv"
	"testing"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/policy"
)

// However many identities there are, and addresses that bring them, the memory is bounded; what is in use is known.
func TestKnownIdentitiesAreBounded(t *testing.T) {
	s := newIdentities()
	limit, err := penstock.Limit{Name: policy.NewIdentities, Group: "a", Algorithm: penstock.TokenBucket, Count: 1 << 30, Period: time.Second}.Ready()
	if err != nil {
		t.Fatal(err)
	}
	u := &policy.UncheckedIdentity{Limit: limit, Address: "ip:192.0.2.1"}
	for i := range 5 * mostIdentities {
		u.Key = strconv.Itoa(i)
		if ok, _ := s.admit(u); !ok {
			t.Fatalf("identity %d is not admitted", i)
		}
		if i%1000 == 0 {
			u.Key = "in use"
			s.admit(u)
		}
	}
	if n := len(s.young) + len(s.old); n > 2*mostIdentities || n < mostIdentities {
		t.Errorf("%d identities are known", n)
	}
	once, err := penstock.Limit{Name: policy.NewIdentities, Group: "b", Algorithm: penstock.TokenBucket, Count: 1, Period: time.Hour}.Ready()
	if err != nil {
		t.Fatal(err)
	}
	admitted := 0
	u.Limit = once
	for i := range 2 * mostAddresses {
		u.Address, u.Key = "ip:"+strconv.Itoa(i), strconv.Itoa(i)
		if ok, _ := s.admit(u); ok {
			admitted++
		}
		if i == mostAddresses/2 {
			s.admit(&policy.UncheckedIdentity{Limit: limit, Address: "ip:192.0.2.1", Key: "in use"})
		}
	}
	if admitted > mostAddresses || s.counts.Len() > mostAddresses {
		t.Errorf("%d addresses brought new identities, and %d are counted", admitted, s.counts.Len())
	}
	u.Limit, u.Key = limit, "in use"
	if ok, _ := s.admit(u); !ok {
		t.Error("an identity in use is not known")
	}
}
