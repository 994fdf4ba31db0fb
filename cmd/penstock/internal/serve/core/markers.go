package core

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"sync/atomic"
	"time"
)

// MarkerHeader is the header by which an instance marks the requests that it forwards. A request
// that passes two instances with one store, prefix and policy is charged twice. The second
// instance then warns. A marker never changes a decision, because clients could send one.
const MarkerHeader = "Penstock-Instance"

const (
	markersEvery = 3 * time.Second // the least time between two reads of the other instances
	markerLife   = time.Minute     // how long the summary reports requests that were charged twice
)

// markers recognizes the markers of other instances that have the same store, prefix and policy.
type markers struct {
	own         atomic.Pointer[[]string]        // values of MarkerHeader; nil: not yet registered
	others      atomic.Pointer[map[string]bool] // nil: not yet read
	isWanted    chan struct{}                   // asks for a read of the other instances
	lastCharged atomic.Int64                    // Unix time of the last request that was charged twice
}

// markerOf returns the marker of an instance. It does not reveal the name of the instance.
func markerOf(instance string) string {
	hash := sha256.Sum256([]byte("penstock marker\x00" + instance))
	return hex.EncodeToString(hash[:16])
}

// Marker returns the values of MarkerHeader for forwarded requests, or nil if there are none: the
// counters are in memory, or the instance is not yet registered. The caller must not change them.
func (c *Core) Marker() []string {
	if own := c.markers.own.Load(); own != nil {
		return *own
	}
	return nil
}

// IsCharged reports whether a request with this marker was already charged by another instance
// with the same store, prefix and policy. It never waits for the store, so it may recognize an
// instance only after some seconds.
func (c *Core) IsCharged(marker string) bool {
	select {
	case c.markers.isWanted <- struct{}{}:
	default:
	}
	others := c.markers.others.Load()
	if others == nil || !(*others)[marker] {
		return false
	}
	c.markers.lastCharged.Store(time.Now().Unix())
	return true
}

// readMarkers reads the markers of the other instances when IsCharged has asked for it, until ctx
// ends.
func (c *Core) readMarkers(ctx context.Context) {
	tick := time.NewTicker(markersEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.markers.isWanted:
		}
		found := make(map[string]bool)
		fleet := c.Fleet(ctx)
		for _, instance := range fleet.Instances {
			if !instance.IsSelf && instance.Digest == fleet.Instances[0].Digest { // the first is this one
				found[markerOf(instance.Name)] = true
			}
		}
		c.markers.others.Store(&found)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}
