// Package redisops is what operators need of a store on Redis besides decisions: the state of its
// servers, a sample of its keys, summaries of the instances that share it, and its user's rights.
package redisops

import "github.com/penstock/penstock/internal/redisrights"

// Rights returns the rights that the Redis user of penstock serve needs. With o.DecideOnly, they
// are not enough for Servers and for summaries.
func Rights(o redisrights.Options) []redisrights.Right {
	if !o.DecideOnly {
		o.Scripts = append(o.Scripts, infoLua, writeSummaryLua, readSummariesLua)
	}
	return redisrights.Of(o)
}
