package keylimits

import (
	"testing"

	"github.com/penstock/penstock/internal/syntax"
)

func TestRepairNamesTheServer(t *testing.T) {
	t.Parallel()
	limits := []*Limit{{key: "a", Stored: "ps1{a}x"}, {key: "a", Stored: "ps1{a}y"}, {key: "a", Stored: "ps1{a}x"}, {key: syntax.GlobalKey, Stored: "ps1{global}x"}}
	const a, global = "DEL 'ps1{a}x' 'ps1{a}y'", "DEL 'ps1{global}x'"
	for _, c := range []struct{ url, want string }{
		{"redis://user:secret@redis-1:6390/2", "redis-cli -h redis-1 -p 6390 -n 2 -c " + a + " && redis-cli -h redis-1 -p 6390 -n 2 -c " + global},
		{"rediss://[::1]:6379", "redis-cli -h ::1 -p 6379 --tls -c " + a + " && redis-cli -h ::1 -p 6379 --tls -c " + global},
		{"unix:///run/redis.sock", "redis-cli -s /run/redis.sock -c " + a + " && redis-cli -s /run/redis.sock -c " + global},
		{"redis+sentinel://s1:26379/main", "at the server that redis-cli -h s1 -p 26379 SENTINEL GET-MASTER-ADDR-BY-NAME main names: redis-cli " + a + " && redis-cli " + global},
	} {
		if got := (&Reader{URL: c.url}).Repair(limits); got != c.want {
			t.Errorf("with the store %s, the repair is\n%s\nwant\n%s", c.url, got, c.want)
		}
	}
}
