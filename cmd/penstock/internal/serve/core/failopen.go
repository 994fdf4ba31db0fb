package core

import (
	"log/slog"
	"sync"
	"time"

	"github.com/penstock/penstock/cmd/penstock/internal/console/activity"
)

// A failOpenReporter logs requests that pass unlimited: the first one immediately, then their
// number every logInterval. It logs the total once none has passed for a logInterval and the store
// works: without requests, none passes during an outage either.
type failOpenReporter struct {
	log *slog.Logger

	mu        sync.Mutex
	sinceLine int64     // requests that passed since the last line
	inOutage  int64     // requests that passed in this outage
	latest    time.Time // when the latest request passed
	nextLine  time.Time // when the next line is due
}

// reportPassed records that a request has passed unlimited, and logs it if a line is due.
func (r *failOpenReporter) reportPassed(rule string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	r.sinceLine++
	r.inOutage++
	r.latest = now
	if now.Before(r.nextLine) {
		return
	}
	line := []any{"critical", true, "requests", r.sinceLine, "rule", rule}
	if r.inOutage == 1 {
		line = append(line, activity.EventAttribute, activity.Unlimited)
	}
	r.log.Error("requests pass unlimited: the store makes no decision", line...)
	r.sinceLine, r.nextLine = 0, now.Add(logInterval)
}

func (r *failOpenReporter) reportEnd(isStoreFailing bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.inOutage == 0 || isStoreFailing || time.Since(r.latest) < logInterval {
		return
	}
	r.log.Warn("limits are enforced again; requests had passed unlimited", activity.EventAttribute, activity.LimitedAgain, "requests", r.inOutage, "until", r.latest.UTC().Format(time.RFC3339))
	r.sinceLine, r.inOutage, r.nextLine = 0, 0, time.Time{}
}
