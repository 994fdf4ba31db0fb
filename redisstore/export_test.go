package redisstore

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// Waiting is how many callers wait for a script.
func Waiting(s *Store) (n int) {
	count := func(g *gatherer) {
		g.mu.Lock()
		defer g.mu.Unlock()
		for _, b := range g.queue {
			n += b.callers
		}
	}
	count(&s.whole)
	if list := s.parts.list.Load(); list != nil {
		for i := range list {
			if g := list[i].Load(); g != nil {
				count(g)
			}
		}
	}
	return n
}

// PrefixOf is the prefix that a store was made with.
func PrefixOf(s *Store) string { return s.prefix[:len(s.prefix)-len(schemaVersion)] }

const MaxGivingBack = maxGivingBack

// GivingBack is how many batches are being given back.
func GivingBack(s *Store) int64 { return s.givingBack.Load() }

// Rights are the rights that docs/operations.md says a user needs.
type Rights struct {
	Single  string // on one server, as +get +set
	Cluster string // the others on a Cluster
	GoRedis string // and go-redis' cluster client besides
}

// DocumentedRights reads them there.
func DocumentedRights(t testing.TB) (r Rights) {
	t.Helper()
	text, err := os.ReadFile("../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile("(?m)^ACL SETUSER limiter (.*)$").FindAllStringSubmatch(string(text), -1) {
		var found []string
		for _, word := range strings.Fields(m[1]) {
			if strings.HasPrefix(word, "+") {
				found = append(found, word)
			}
		}
		for _, list := range []*string{&r.Single, &r.Cluster, &r.GoRedis} {
			if *list == "" {
				*list = strings.Join(found, " ")
				break
			}
		}
	}
	if r.GoRedis == "" {
		t.Fatal("docs/operations.md does not have the rights of a server, a Cluster and go-redis")
	}
	return r
}
