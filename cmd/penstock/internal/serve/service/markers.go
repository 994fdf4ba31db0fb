package service

import (
	"context"
	"net/http"
	"time"

	"github.com/penstock/penstock/cmd/penstock/internal/console/activity"
	"github.com/penstock/penstock/cmd/penstock/internal/serve/core"
	"github.com/penstock/penstock/cmd/penstock/internal/serve/logthrottle"
)

// setMarker replaces the marker in the headers of a request for the upstream by that of this
// instance. A request that no limit has charged gets none. ctx is the context of the request.
func (s *service) setMarker(ctx context.Context, h http.Header) {
	if own := s.core.Marker(); own != nil && core.IsCharged(ctx) {
		h[core.MarkerHeader] = own
	} else {
		delete(h, core.MarkerHeader)
	}
}

// noteMarkers counts and logs requests that another instance with the same store, prefix and policy
// has already charged.
func (s *service) noteMarkers(next http.Handler) http.Handler {
	count := s.metrics.AddChargedTwice()
	line := &logthrottle.Line{Every: time.Hour}
	reportTwice := func() {
		count()
		if _, isDue := line.Due(); isDue {
			s.Log.Warn("requests were already charged by another instance with the same store, prefix and policy, so clients get at most half of their limits; give one of the two its own rules or prefix",
				activity.EventAttribute, activity.ChargedTwice)
		}
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if s.core.Marker() != nil {
			r = r.WithContext(s.core.NoteCharges(r.Context(), r.Header[core.MarkerHeader], reportTwice))
		}
		next.ServeHTTP(w, r)
	})
}
