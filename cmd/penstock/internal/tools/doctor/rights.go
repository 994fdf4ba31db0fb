package doctor

import "github.com/penstock/penstock/redisstore"

// Rights returns the rights that all checks need: those of the store, and more to inspect the
// servers. If a right to inspect is missing, a check has the status unknown and names the right.
func Rights(o redisstore.RightsOptions) []redisstore.Right {
	rights := append(redisstore.Rights(o),
		redisstore.Right{Command: "scan", Example: []string{"SCAN", "0"}, Without: "look at a sample of the keys"},
		redisstore.Right{Command: "type", Example: []string{"TYPE", redisstore.KeyOfExample}, Without: "find keys of a wrong type"},
		redisstore.Right{Command: "pttl", Example: []string{"PTTL", redisstore.KeyOfExample}, Without: "find keys without a TTL"},
		redisstore.Right{Command: "memory|usage", Example: []string{"MEMORY", "USAGE", redisstore.KeyOfExample}, Without: "measure the size of keys"},
		redisstore.Right{Command: "slowlog|get", Example: []string{"SLOWLOG", "GET", "1"}, Without: "name slow commands"})
	if o.Cluster {
		rights = append(rights, redisstore.Right{Command: "cluster|info", Example: []string{"CLUSTER", "INFO"}, Without: "see the state of the Cluster"})
	}
	return rights
}
