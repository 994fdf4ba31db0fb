package doctor

import (
	"github.com/penstock/penstock/cmd/penstock/internal/console/redisops"
	"github.com/penstock/penstock/internal/luagen"
	"github.com/penstock/penstock/internal/redisrights"
)

// Rights returns the rights that all checks need: those of the store, and more to inspect the
// servers. If a right to inspect is missing, a check has the status unknown and names the right.
func Rights(o redisrights.Options) []redisrights.Right {
	rights := append(redisops.Rights(o),
		redisrights.Right{Command: "scan", Example: []string{"SCAN", "0"}, Without: "look at a sample of the keys"},
		redisrights.Right{Command: "type", Example: []string{"TYPE", luagen.KeyOfExample}, Without: "find keys of a wrong type"},
		redisrights.Right{Command: "pttl", Example: []string{"PTTL", luagen.KeyOfExample}, Without: "find keys without a TTL"},
		redisrights.Right{Command: "memory|usage", Example: []string{"MEMORY", "USAGE", luagen.KeyOfExample}, Without: "measure the size of keys"},
		redisrights.Right{Command: "slowlog|get", Example: []string{"SLOWLOG", "GET", "1"}, Without: "name slow commands"})
	if o.Cluster {
		rights = append(rights, redisrights.Right{Command: "cluster|info", Example: []string{"CLUSTER", "INFO"}, Without: "see the state of the Cluster"})
	}
	return rights
}
