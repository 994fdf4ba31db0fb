package denials

import (
	"context"
	"log/slog"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/cmd/penstock/internal/text/redact"
)

const (
	LogOff     = "off"
	LogSampled = "sampled"
	LogAll     = "all"
)

// rates bound the lines that are logged, by the value of denial_log.
var rates = map[string]Rate{
	LogSampled: {PerSecond: 10, PerLimit: 1},
	LogAll:     {PerSecond: 1000},
}

// Log returns a function that logs denials with masked keys until its context ends. It logs the
// denials since the return of Log too, up to maxQueued, because it may start late on a busy
// machine. It is called once. mode is LogOff, LogSampled or LogAll.
func (r *Recorder) Log(mode string, log *slog.Logger, identities *redact.Identities) (run func(context.Context)) {
	if mode == LogOff {
		return func(context.Context) {}
	}
	reader := r.Join(Filter{}, rates[mode])
	if reader == nil { // cannot happen: the log joins first, so there is room
		return func(context.Context) {}
	}
	return func(ctx context.Context) {
		defer r.Leave(reader)
		for {
			select {
			case <-ctx.Done():
				return
			case d := <-reader.C:
				log.Info("request denied", d.attributes(identities)...)
			}
		}
	}
}

func (d *Denial) attributes(identities *redact.Identities) []any {
	all := append([]any{"rule", d.Rule, "limit", d.Limit}, identities.Attributes(d.Key)...)
	all = append(all, "outcome", d.Outcome.String(), "source", d.DecidedBy())
	switch {
	case d.RetryAfter == penstock.Never:
		all = append(all, "retry_after", "never")
	case d.RetryAfter > 0:
		all = append(all, "retry_after", d.RetryAfter)
	}
	if d.TraceID != "" {
		all = append(all, "trace_id", d.TraceID)
	}
	return append(all, "unlogged", d.Skipped)
}
