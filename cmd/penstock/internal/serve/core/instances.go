package core

import (
	"context"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/cmd/penstock/internal/console/activity"
	"github.com/penstock/penstock/cmd/penstock/internal/serve/logthrottle"
	"github.com/penstock/penstock/guard"
)

// An instanceReporter is the Server of the guards. At most once a minute, it logs heartbeats that
// fail because a right is missing or a key is corrupt. An outage has log lines of its own. It logs
// each loss of the store's keys, which heartbeats notice.
type instanceReporter struct {
	guard.Server
	losses       func() int64 // counts the losses
	loggedLosses int64        // needs no lock: heartbeats are sent one at a time
	core         *Core
	line         logthrottle.Line
}

func (r *instanceReporter) Heartbeat(ctx context.Context, instance string, life time.Duration) (int, error) {
	n, err := r.Server.Heartbeat(ctx, instance, life)
	if err == nil {
		r.core.fleet.name.Store(&instance)
		r.core.markers.own.CompareAndSwap(nil, &[]string{markerOf(instance)})
		if n := r.losses(); n > r.loggedLosses {
			r.loggedLosses = n
			r.core.Log.Warn("the store has lost its keys; clients may use their limits again", activity.EventAttribute, activity.KeysLost)
		}
	}
	e := penstock.AsStoreError(err)
	if e == nil || e.IsStoreFault { // no error of the store, or an outage
		return n, err
	}
	if _, isDue := r.line.Due(); isDue {
		r.core.Log.Error("this instance is not counted; if the store fails, the instances admit more than their shares", withHint(err, "err", err)...)
	}
	return n, err
}
