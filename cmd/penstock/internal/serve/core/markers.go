package core

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/admission"
)

// MarkerHeader is the header by which an instance marks the requests that it has charged and
// forwards. A request that passes two instances with one store, prefix and policy is charged twice.
// The second instance then warns. A marker never changes a decision, because clients could send
// one.
const MarkerHeader = "Penstock-Instance"

const (
	markersEvery     = 3 * time.Second // the least time between two reads of the other instances
	chargedTwiceLife = time.Minute     // how long the instance's summary reports that a request was charged twice
)

// markers recognizes the markers of other instances that have the same store, prefix and policy.
type markers struct {
	own              atomic.Pointer[[]string]        // values of MarkerHeader; nil: not yet registered
	others           atomic.Pointer[map[string]bool] // nil: not yet read
	wanted           chan struct{}                   // a value requests a read of the other instances
	lastChargedTwice atomic.Int64                    // Unix time of the last request that was charged twice
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

// A chargeNote is what Observe notes in the context of a request that the proxy decides.
type chargeNote struct {
	isCharged   atomic.Bool // a limit has charged the request in the store
	reportTwice func()      // called if a limit here decides the request in the store too; nil: no other instance has charged it
}

type noteKey struct{}

// NoteCharges returns a context in which Observe notes what limits decide about the request. Then
// IsCharged can be called with this context. markers are the values of MarkerHeader that the
// request has. reportTwice is called at most once, if another instance with the same store, prefix
// and policy has charged the request, and a limit of this instance decides it too.
//
// NoteCharges never waits for the store, so it may recognize an instance only after some seconds.
func (c *Core) NoteCharges(ctx context.Context, markers []string, reportTwice func()) context.Context {
	note := new(chargeNote)
	if len(markers) == 1 && c.isOther(markers[0]) {
		note.reportTwice = reportTwice
	}
	return context.WithValue(ctx, noteKey{}, note)
}

// IsCharged reports whether a limit has charged the request with this context in the store.
func IsCharged(ctx context.Context) bool {
	note, ok := ctx.Value(noteKey{}).(*chargeNote)
	return ok && note.isCharged.Load()
}

// noteDecision notes for IsCharged that the store has decided a request by an enforced limit. It
// calls reportTwice if another instance has charged the request too. It notes nothing if no
// enforced limit counts the request, or if a fallback decided it: its counters are not those of the
// store.
func (c *Core) noteDecision(e *admission.Event) {
	if e.Context == nil || !isEnforcedDecision(e) {
		return
	}
	switch e.Source {
	case penstock.FromStore, penstock.FromLease, penstock.FromDenyCache:
	default:
		return
	}
	note, ok := e.Context.Value(noteKey{}).(*chargeNote)
	if !ok {
		return
	}
	if isFirst := !note.isCharged.Swap(true); isFirst && note.reportTwice != nil {
		c.markers.lastChargedTwice.Store(time.Now().Unix())
		note.reportTwice()
	}
}

// isOther reports whether a marker is that of another instance with the same policy. It asks for a
// read of the other instances.
func (c *Core) isOther(marker string) bool {
	select {
	case c.markers.wanted <- struct{}{}:
	default:
	}
	others := c.markers.others.Load()
	return others != nil && (*others)[marker]
}

// readMarkers reads the markers of the other instances when isOther asks for it, until ctx ends.
func (c *Core) readMarkers(ctx context.Context) {
	tick := time.NewTicker(markersEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.markers.wanted:
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
