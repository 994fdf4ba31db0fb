package checkapi

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/penstock/penstock/memstore"
)

// The API accepts the calls of docs/migrate/gubernator.md. As the page describes, ten calls are
// allowed in a second, and the next one is denied.
func TestMigrationPageShowsValidCalls(t *testing.T) {
	page, err := os.ReadFile("../../../../../docs/migrate/gubernator.md")
	if err != nil {
		t.Fatal(err)
	}
	policies := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllStringSubmatch(string(page), -1)
	calls := regexp.MustCompile("(?s)<!-- check -->\n```json\n(.*?)```").FindAllStringSubmatch(string(page), -1)
	if len(policies) != 1 || len(calls) != 2 {
		t.Fatalf("the page has %d policies and %d calls; want 1 and 2", len(policies), len(calls))
	}
	for _, call := range calls {
		s := newServiceOf(t, policies[0][1], memstore.New(memstore.Options{Now: newClock().Now}))
		for n := 1; n <= 11; n++ {
			w := s.send(callerToken, "/v1/check", call[1])
			want := fmt.Sprintf(`"allowed":%t`, n <= 10)
			if body := strings.ReplaceAll(w.Body.String(), " ", ""); w.Code != 200 || !strings.Contains(body, want) {
				t.Fatalf("call %d of %s: %d %s; want 200 with %s", n, call[1], w.Code, body, want)
			}
		}
	}
}
