package policy

import "github.com/penstock/penstock/guard"

// guards reads how the limit is guarded.
func (c *compiler) guards(l *Limit, config *LimitConfig) {
	l.Guard.OnFailure = c.onFailure
	if config.OnFailure != "" {
		l.Guard.OnFailure = c.failure(&config.OnFailure)
	}
	if l.Shadow {
		l.Guard = shadowed(l.Guard)
	}
}

// shadowed are the settings of a limit that is tried only. Nobody waits for it, so nothing is drawn in advance or split; and what it would have denied
// without the store would say little of it.
func shadowed(s guard.Settings) guard.Settings {
	return guard.Settings{OnFailure: guard.Open, DenyFor: s.DenyFor}
}

var failures = map[string]guard.Failure{"local": guard.Local, "open": guard.Open, "closed": guard.Closed}

// failure reads what happens to charges while the store gives no answer.
func (c *compiler) failure(p *string) guard.Failure {
	return failures[c.oneOf(p, "on_failure", "local", "open", "closed")]
}
