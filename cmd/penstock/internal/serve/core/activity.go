package core

import (
	"crypto/sha256"
	"encoding/binary"

	"github.com/penstock/penstock/cmd/penstock/internal/console/activity"
	"github.com/penstock/penstock/cmd/penstock/internal/serve/metrics"
	"github.com/penstock/penstock/cmd/penstock/internal/serve/settings"
	"github.com/penstock/penstock/internal/rediskeys"
)

// newActivity makes the recorder of what happens in this instance. It keeps keys in the form that
// the store has: as hashes if there is a secret.
func newActivity(s settings.Settings) *activity.Recorder {
	o := activity.Options{Seed: seedOf(s), NearPercent: int(s.NearLimit)}
	if s.ShownIdentities != "off" {
		// Each function that Names returns serves one goroutine.
		o.Names = func() func([]byte, string) []byte { return rediskeys.NewNames(s.KeyHashSecret).Append }
	}
	return activity.New(o)
}

// seedOf returns a number that is the same for all instances with the same secrets. Clients must
// not know it: they could choose identities that the estimated number of different keys misses.
func seedOf(s settings.Settings) uint64 {
	hash := sha256.New()
	for _, part := range [][]byte{[]byte("penstock activity"), []byte(s.Prefix), s.KeyHashSecret, s.CallerToken} {
		hash.Write(binary.BigEndian.AppendUint32(nil, uint32(len(part))))
		hash.Write(part)
	}
	return binary.BigEndian.Uint64(hash.Sum(nil))
}

func (c *Core) eachCounter(add func(activity.Series, uint64)) {
	c.Metrics.Each(func(rule metrics.Rule, name string, n uint64) {
		if n > 0 {
			add(activity.Series{Rule: rule.Name, Limit: rule.Limit, Name: name}, n)
		}
	})
}
