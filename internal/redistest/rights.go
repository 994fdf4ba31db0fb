package redistest

import (
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"
)

// Rights are the rights of a user, as docs/operations.md lists them.
type Rights struct {
	Single  string // on one server, such as +get +set
	Cluster string // further rights on a Cluster
	GoRedis string // further rights of go-redis' cluster client
}

// DocumentedRights reads the rights from docs/operations.md.
func DocumentedRights(t testing.TB) (r Rights) {
	t.Helper()
	_, here, _, _ := runtime.Caller(0)
	text, err := os.ReadFile(filepath.Join(filepath.Dir(here), "../../docs/operations.md"))
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
